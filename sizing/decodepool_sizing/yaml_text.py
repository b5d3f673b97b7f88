"""YAML as a manifest may have it: one document, a mapping, no key twice, plain values only."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

LARGEST_TEXT = 1 << 20
"""Characters. Kubernetes keeps no larger object."""


class _Loader(yaml.SafeLoader):
    """The safe loader, but a key that comes twice in a mapping is an error: YAML forbids it, PyYAML takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return a mapping after checking that its own keys differ; merged ones (`<<`) may be overridden, as YAML has
        it.
        """
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key in seen and key != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {str(key)[:40]!r} comes twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_mapping(text: str) -> dict[str, Any]:
    """Return the one document of a YAML text. ValueError, one line, says what is wrong and where."""
    if len(text) > LARGEST_TEXT:
        raise ValueError(f"the text has {len(text)} characters, more than {LARGEST_TEXT}")
    try:
        documents = [document for document in yaml.load_all(text, _Loader) if document is not None]
    except yaml.MarkedYAMLError as error:
        raise ValueError(_described(error)) from None
    except RecursionError:
        raise ValueError("nested too deep") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(" ".join(str(error).split())[:200]) from None
    if len(documents) != 1:
        raise ValueError(f"{len(documents)} documents in this text, expected one: a DecodePool alone")
    (document,) = documents
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise ValueError("expected a mapping with text for keys")
    return document


def _described(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"{place}{error.problem or error.context or 'not YAML'}"
