"""The tokenizer of a real model, against llama.cpp's tokens and its own template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from decodepool_sizing.cache_folder import cache_folder
from decodepool_sizing.header import read_header
from decodepool_sizing.readers import file_reader
from decodepool_worker.text.templates import ChatTemplate
from decodepool_worker.text.tokenizer import Tokenizer

pytestmark = pytest.mark.model

MODEL = cache_folder("models") / "SmolLM2-135M-Instruct.Q4_1.gguf"
GOLDEN = json.loads(Path(__file__).with_name("golden_smollm2.json").read_text())
CASES = [pytest.param(case["text"], case["tokens"], id=str(index)) for index, case in enumerate(GOLDEN["cases"])]

Loaded = tuple[Tokenizer, ChatTemplate]


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    with file_reader(MODEL) as reader:
        metadata = read_header(reader).metadata
    tokenizer = Tokenizer.from_metadata(metadata)
    source = metadata["tokenizer.chat_template"]
    assert isinstance(source, str)
    return tokenizer, ChatTemplate(source, bos=tokenizer.bos_text, eos=tokenizer.eos_text)


@pytest.mark.parametrize(("text", "tokens"), CASES)
def test_tokens_are_llama_cpps(loaded: Loaded, text: str, tokens: list[int]) -> None:
    assert loaded[0].encode(text, special=True) == tokens


def test_a_conversation_gets_the_templates_own_system_turn(loaded: Loaded) -> None:
    tokenizer, template = loaded
    rendered = template.render([{"role": "user", "content": "What is the capital of France?"}])
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    assert rendered.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert rendered.endswith(question)
    start, end = tokenizer.encode("<|im_start|><|im_end|>", special=True)
    tokens = tokenizer.encode(rendered, special=True)
    assert [token for token in tokens if token in (start, end)] == [start, end, start, end, start]
    assert tokenizer.decode(tokens, special=True) == rendered


def test_its_marks_end_turns_and_are_no_text(loaded: Loaded) -> None:
    tokenizer, _ = loaded
    assert tokenizer.vocabulary_size == 49152
    assert tokenizer.eos_ids == {0, 2}
    assert (tokenizer.bos_text, tokenizer.eos_text) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer.decode([1, 504, 2]) == "The"
    assert not {0, 1, 2} & set(tokenizer.encode("<|im_start|>user<|im_end|><|endoftext|>"))


def test_a_letter_repeated_200_000_times_is_encoded_in_time(loaded: Loaded) -> None:
    tokenizer, _ = loaded
    assert tokenizer.decode(tokenizer.encode("a" * 200_000)) == "a" * 200_000
