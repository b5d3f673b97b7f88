from __future__ import annotations

import time

import pytest
from decodepool_worker.text.errors import TemplateFault
from decodepool_worker.text.templates import ChatTemplate, Message

CHATML = (
    "{%- for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
USER: list[Message] = [{"role": "user", "content": "Hi"}]


def render(source: str, messages: list[Message] = USER) -> str:
    return ChatTemplate(source, bos="<s>", eos="</s>").render(messages)


def test_a_conversation_is_written_as_the_template_says() -> None:
    template = ChatTemplate(CHATML)
    messages: list[Message] = [{"role": "system", "content": "Be brief."}, *USER]
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert template.render(messages) == expected + "<|im_start|>assistant\n"
    assert template.render(messages, add_generation_prompt=False) == expected


# What chat templates expect of their environment, as of Hugging Face transformers.
ENVIRONMENT = [
    pytest.param("{{ bos_token }}|{{ eos_token }}", "<s>|</s>", id="marks"),
    pytest.param("{{ {'é': '<b>'} | tojson }}", '{"é": "<b>"}', id="tojson leaves characters alone"),
    pytest.param("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}', id="tojson indents"),
    pytest.param("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01", id="break"),
    pytest.param("{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "02", id="next"),
    pytest.param("{% if true %}\n  x\n{% endif %}\n", "  x\n", id="blocks take their line"),
    pytest.param("{% generation %}x{% endgeneration %}", "x", id="generation"),
    pytest.param("{{ strftime_now('%Y') | length }}", "4", id="strftime_now"),
    pytest.param("{{ tools is none }}", "True", id="no tools"),
    pytest.param("{{ missing }}{{ messages[0].missing }}", "", id="undefined is empty"),
    pytest.param("{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}", "2", id="namespace"),
    pytest.param("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(1) ~ f(2) }}", "[1][2]", id="macros"),
    pytest.param("{{ 'a-b'.replace('-', '+') }}{{ ','.join(['x', 'y']) }}{{ '{}'.format(1) }}", "a+bx,y1", id="text"),
    pytest.param("{{ '%02d' % 7 }}{{ '{:.2f}'.format(1.5) }}", "071.50", id="small widths"),
    pytest.param("{{ [{'n': 'a'}, {'n': 'b'}] | join('-', attribute='n') }}", "a-b", id="join by attribute"),
    pytest.param("{{ 2 ** 10 }}{{ '=' * 3 }}{{ [1] + [2] }}", "1024===[1, 2]", id="operators"),
]


@pytest.mark.parametrize(("source", "text"), ENVIRONMENT)
def test_templates_find_what_they_expect(source: str, text: str) -> None:
    assert render(source) == text


def test_a_model_without_template_says_so() -> None:
    template = ChatTemplate(None)
    assert template.fault
    with pytest.raises(TemplateFault, match="carries no chat template"):
        template.render(USER)


def test_a_template_that_does_not_compile_is_a_fault_only_when_used() -> None:
    template = ChatTemplate("{% if %}")
    assert template.fault
    with pytest.raises(TemplateFault, match="chat template: "):
        template.render(USER)


def test_what_a_template_raises_is_told_to_the_user() -> None:
    with pytest.raises(TemplateFault, match="System role not supported"):
        render("{{ raise_exception('System role not supported') }}")


GROW = "{% set n = namespace(x='aa') %}{% for i in range(60) %}{% set n.x = n.x OP n.x %}{% endfor %}"
HOSTILE = [
    pytest.param("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "steps", id="loops"),
    pytest.param("{% for i in range(10**9) %}x{% endfor %}", "Range too big", id="huge range"),
    pytest.param("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion", id="endless recursion"),
    pytest.param(
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(64) }}",
        "steps",
        id="recursion that doubles",
    ),
    pytest.param("{{ 'a' * 10**10 }}", "more than", id="repetition"),
    pytest.param("{{ [1] * 10**10 }}", "more than", id="repetition of a list"),
    pytest.param(GROW.replace("OP", "~"), "more than", id="concatenation that doubles"),
    pytest.param(GROW.replace("OP", "+"), "more than", id="addition that doubles"),
    pytest.param("{{ ('a' * 10**6) | replace('a', 'b' * 10**6) }}", "more than", id="replace"),
    pytest.param("{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}", "more than", id="replace method"),
    pytest.param("{{ range(99999) | join('a' * 10**6) }}", "more than", id="join"),
    pytest.param("{{ ('a' * 10**6).join(['x'] * 10**5) }}", "more than", id="join method"),
    pytest.param("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "more than", id="output"),
    pytest.param("{{ 9 ** (9 ** 9) }}", "number too large", id="power"),
    pytest.param("{{ 'x'.ljust(10**10) }}", "unsafe", id="padding"),
    pytest.param("{{ '%9999999999d' % 1 }}", "width", id="percent width"),
    pytest.param("{{ '%*d' % (10**10, 1) }}", "width", id="percent width from an argument"),
    pytest.param("{{ '{:>9999999999}'.format(1) }}", "width", id="format width"),
    pytest.param("{{ '{:>{}}'.format(1, 10**10) }}", "width", id="format width from an argument"),
    pytest.param("{{ 'x' | center(10**10) }}", "No filter", id="padding filter"),
    pytest.param("{{ lipsum(10**6) }}", "undefined", id="lipsum"),
    pytest.param("{{ ''.__class__.__mro__ }}", "unsafe", id="into Python"),
    pytest.param("{{ messages.append(1) }}", "unsafe", id="changing the messages"),
    pytest.param("{% include '/etc/passwd' %}", "loader", id="files"),
    pytest.param("{{ 1 / 0 }}", "division", id="division by zero"),
    pytest.param("{{ nothing.at.all }}", "undefined", id="attribute of nothing"),
]


@pytest.mark.parametrize(("source", "reason"), HOSTILE)
def test_a_hostile_template_is_a_fault_of_the_request_and_soon(source: str, reason: str) -> None:
    started = time.perf_counter()
    with pytest.raises(TemplateFault) as fault:
        render(source)
    assert reason in str(fault.value)
    assert "\n" not in str(fault.value)
    assert time.perf_counter() - started < 5


def test_a_rendering_does_not_use_up_the_steps_of_the_next() -> None:
    template = ChatTemplate("{% for a in range(400) %}{% for b in range(1000) %}{% endfor %}{% endfor %}ok")
    assert [template.render(USER), template.render(USER)] == ["ok", "ok"]
