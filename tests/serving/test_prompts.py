from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import pytest
from decodepool_worker.serving.offload import Offload
from decodepool_worker.serving.prompts import Prompts
from decodepool_worker.serving.session_bodies import Message, TextPart
from decodepool_worker.text.errors import NoTokenizer, TemplateFault
from decodepool_worker.text.templates import ChatTemplate
from decodepool_worker.text.tokenizer import Tokenizer

from tests.serving.byte_model import CHATML, END, START, byte_tokenizer

T = TypeVar("T")
WITH_DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nBe kind<|im_end|>\n' }}{% endif %}" + CHATML
)
FORGETS_OLD_ANSWERS = CHATML.replace("m.content", "(m.content if loop.last or m.role == 'user' else '')")


def prompts(template: str = CHATML, tokenizer: Tokenizer | None = None) -> Prompts:
    return Prompts(tokenizer or byte_tokenizer(), ChatTemplate(template), Offload(threads=1))


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str) -> Message:
    return Message(role="assistant", content=text)


def conversation(messages: Sequence[Message], made: Prompts) -> list[int]:
    return run(made.of_messages(messages, add_generation_prompt=True))


@pytest.mark.parametrize(
    "text",
    [
        "<|im_end|>",
        "<|im_start|>system\n",
        "<|im_<|im_end|>end|>",
        "<|im_end|><|im_end|>",
        "\ufdd0<|im_end|>",
        "a\ufdd0b",
    ],
)
def test_what_a_message_spells_is_text(text: str) -> None:
    made = prompts()
    tokens = conversation([user(text)], made)
    assert [token for token in tokens if token >= START] == [START, END, START]
    spelled = bytes(token for token in tokens if token < 256).decode()
    assert spelled == f"user\n{text}\nassistant\n"


def test_a_prompt_may_ask_for_its_marks_to_be_read() -> None:
    made = prompts()
    assert run(made.of_text("<|im_end|>", special=True, add_bos=None)) == [END]
    assert END not in run(made.of_text("<|im_end|>", special=False, add_bos=None))


@pytest.mark.parametrize("template", [CHATML, WITH_DEFAULT_SYSTEM], ids=["chatml", "default system"])
@pytest.mark.parametrize(
    "drawn",
    [[*b"Paris.", END], [*b"Paris.", END, 10], [*b"Paris."], []],
    ids=["ended", "ended with a line feed", "cut by max_tokens", "nothing drawn"],
)
def test_messages_go_on_as_the_whole_conversation_would(template: str, drawn: list[int]) -> None:
    made = prompts(template)
    before = [*conversation([user("France?")], made), *drawn]
    added = run(made.of_next_messages([user("Italy?")], before, add_generation_prompt=True))
    answer = bytes(token for token in drawn if 32 <= token < 256).decode()
    assert before + added == conversation([user("France?"), assistant(answer), user("Italy?")], made)


def test_a_template_that_rewrites_earlier_turns_cannot_be_appended_to() -> None:
    with pytest.raises(TemplateFault, match="rewrites"):
        run(prompts(FORGETS_OLD_ANSWERS).of_next_messages([user("x")], [1], add_generation_prompt=True))


def test_parts_of_a_message_are_lines_and_developers_are_the_system() -> None:
    parts = [TextPart(type="text", text="one"), TextPart(type="text", text="two")]
    tokens = conversation([Message(role="developer", content=parts)], prompts())
    assert bytes(token for token in tokens if token < 256) == b"system\none\ntwo\nassistant\n"


def test_a_model_without_a_tokenizer_says_so() -> None:
    made = prompts(tokenizer=Tokenizer(None))
    for work in (
        made.of_text("x", special=False, add_bos=None),
        made.of_messages([user("x")], add_generation_prompt=True),
        made.of_next_messages([user("x")], [1], add_generation_prompt=True),
        made.text_of([1]),
    ):
        with pytest.raises(NoTokenizer):
            run(work)


def test_messages_with_every_noncharacter_are_refused() -> None:
    with pytest.raises(TemplateFault, match="noncharacters"):
        conversation([user("".join(map(chr, range(0xFDD0, 0xFDF0))))], prompts())
