"""What the parts of a DecodePool are made of: their manners, and rules that hold in Python and at an API server alike.

A rule that a JSON schema cannot say is written twice, in one place: as a pydantic validator, and beside it as a CEL
expression that the API server runs. Tests give both the same documents. A pattern becomes a CEL rule too, since the API
server tells a rule by its message and a pattern by the expression itself.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema
from pydantic.alias_generators import to_camel

from decodepool_sizing.quantities import LARGEST_BYTES, QUANTITY_PATTERN, parse_bytes

RULES = "x-kubernetes-validations"
QUANTITY_LETTERS = 32
"""Longest text of a quantity: 19 digits, a point, 9 digits and a unit."""

POOL_NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN_PATTERN = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"
RELATIVE_PATH_PATTERN = r"^[^/\x00-\x1f][^\x00-\x1f]*$"
ABSOLUTE_PATH_PATTERN = r"^/[^\x00-\x1f]+$"


class Part(BaseModel):
    """The manners of every part: no unknown field, no number written as text, names as Kubernetes writes them."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=to_camel)


def rule(expression: str, message: str, computed: str | None = None) -> dict[str, str]:
    """Return a CEL rule. `computed` is an expression that makes a message out of literals; where it speaks of values
    themselves the API server finds it too dear.
    """
    told = {} if computed is None else {"messageExpression": computed}
    return {"rule": expression, "message": message, **told}


def rules(*each: dict[str, str]) -> dict[str, Any]:
    """Return what a model or a field adds to its JSON schema for these rules."""
    return {RULES: [*each]}


def matches(pattern: str, message: str) -> dict[str, str]:
    """Return the rule that a text matches a pattern. The pattern has no single quote, so it needs no escape."""
    return rule(f"self.matches(r'{pattern}')", message)


def _quantity(value: object) -> int:
    if isinstance(value, str):
        return parse_bytes(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= LARGEST_BYTES:
        raise ValueError("not an amount of memory such as 80Gi")
    return value


Quantity = Annotated[
    int,
    BeforeValidator(_quantity),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": QUANTITY_LETTERS,
            RULES: [
                rule(
                    f"type(self) == int ? self >= 1 && self <= {LARGEST_BYTES}"
                    f" : self.matches(r'{QUANTITY_PATTERN}') && self.matches('[1-9]')",
                    "must be an amount of memory such as 80Gi, 512Mi or 1073741824",
                )
            ],
        }
    ),
]
"""Bytes, written as an integer or as `80Gi`."""
