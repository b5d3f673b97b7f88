# ruff: noqa: N802 - jinja2 finds the visitors of nodes by these names
"""The jinja2 that chat templates run in: its immutable sandbox, plus limits on work and on size.

A template comes with a model, not with a request, so this guards against a careless or broken one, not against a
patient attacker: a template cannot loop without end, grow a text without end, or call what pads to any length. A limit
that is passed is a TemplateFault, for that request alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sized
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from decodepool_worker.text.errors import TemplateFault

MAX_STEPS = 500_000
"""Rounds of loops in one rendering, a call of a macro for ten; the longest real conversations take some thousands."""

_CALL_STEPS = 10  # what a call takes, in rounds

MAX_SIZE = 1 << 24
"""Characters of a text, or items of a list, that a template may make: more than the tokens of any context."""

_MAX_INTEGER_BITS = 4096
_METER = " steps"  # a name that no template can write
_PADDING_METHODS = frozenset(("ljust", "rjust", "center", "zfill", "expandtabs", "format_map", "translate", "to_bytes"))
_WIDE_BRACES = re.compile(r"\{[^{}]*:[^{}]*(\d{5}|\{)")  # a width of five digits, or one given by an argument
_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*(\d{5}|\*)")
_LEFT_OUT = ("center", "format", "wordwrap", "urlize", "xmlattr", "batch", "slice", "sum", "pprint", "random")


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment that chat templates are written for, as of Hugging Face transformers, with limits."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        for name in _LEFT_OUT:
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters |= {"tojson": _tojson, "join": _join, "replace": _replace}
        self.filters |= {_STEP: _step, _SIZED: _sized}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def compile_metered(self, source: str) -> Template:
        """Compile a template with a meter in each of its loops and macros. Raises what jinja2 raises."""
        return self.from_string(_Metering().visit(self.parse(source)))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Refuse, besides what the sandbox does, the methods that pad to any length."""
        return attr not in _PADDING_METHODS and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse an operation whose result would be too large, before it is made."""
        if operator in ("*", "**"):
            _check_product(operator, left, right)
        elif operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
            _check_size(len(left) + len(right))
        elif operator == "%" and isinstance(left, str):
            _check_form(left, _WIDE_PERCENT)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Refuse forms that pad to any length, where the sandbox makes the formatting of text safe."""
        owner = getattr(value, "__self__", None)
        if isinstance(owner, str):
            _check_form(owner, _WIDE_BRACES)
        return super().wrap_str_format(value)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Send the methods of text that can multiply its length through the same limits as the filters."""
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str) and name == "replace":
            return _replace(owner, *args)
        if isinstance(owner, str) and name == "join":
            return _join(args[0], owner)
        return super().call(context, obj, *args, **kwargs)


class Meter:
    """Counts the steps of one rendering."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, count: int) -> None:
        """Count some; TemplateFault past the limit."""
        self.steps += count
        if self.steps > MAX_STEPS:
            raise TemplateFault(f"the chat template takes more than {MAX_STEPS} steps")


def metered(variables: dict[str, object]) -> dict[str, object]:
    """Return the variables of one rendering, with a fresh meter among them."""
    return {**variables, _METER: Meter()}


@pass_context
def _step(context: Context, count: int) -> None:
    context[_METER].step(count)


def _sized(value: str) -> str:
    _check_size(len(value))
    return value


_STEP, _SIZED = " step", " sized"


class _Metering(NodeTransformer):
    """Adds a step to the body of each loop and macro, and a check of size to each concatenation."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._with_steps(node, 1)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._with_steps(node, _CALL_STEPS)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._with_steps(node, _CALL_STEPS)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Filter(node, _SIZED, [], [], None, None, lineno=node.lineno)

    def _with_steps(self, node: nodes.For | nodes.Macro | nodes.CallBlock, count: int) -> nodes.Node:
        self.generic_visit(node)
        step = nodes.Filter(nodes.Const(count), _STEP, [], [], None, None, lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        return node


class _Generation(Extension):
    """`{% generation %}` marks what an assistant wrote, for training; here its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: object, **options: Any) -> str:
    """Write JSON as transformers does: no HTML escapes, and characters as they are."""
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _join(value: Iterable[object], d: str = "", attribute: str | int | None = None) -> str:
    items = [str(item if attribute is None else item[attribute]) for item in value]  # type: ignore[index]
    _check_size(sum(map(len, items)) + len(str(d)) * max(len(items) - 1, 0))
    return str(d).join(items)


def _replace(value: object, old: str, new: str, count: int = -1) -> str:
    text = str(value)
    _check_size(len(text) + text.count(old) * len(new))
    return text.replace(old, new, -1 if count is None else count)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _check_product(operator: str, left: Any, right: Any) -> None:
    for many, count in ((left, right), (right, left)):
        if isinstance(many, Sized) and isinstance(count, int):
            _check_size(len(many) * max(count, 0))
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _MAX_INTEGER_BITS:
            raise TemplateFault("the chat template makes a number too large")


def _check_form(form: str, wide: re.Pattern[str]) -> None:
    if wide.search(form):
        raise TemplateFault("the chat template formats to a width that is too large")


def _check_size(size: int) -> None:
    if size > MAX_SIZE:
        raise TemplateFault(f"the chat template makes a text or list of more than {MAX_SIZE} items")
