# ruff: noqa: N818 - the names say what is the matter, rather than that it is an error
"""What can be wrong with a model's text side. The first two are faults of the file, the others of one request."""

from __future__ import annotations


class BadTokenizer(ValueError):
    """The file's tokenizer metadata is missing, malformed or of an unknown kind. The message names the key."""


class NoTokenizer(ValueError):
    """Text was asked of a model that carries no tokenizer (`tokenizer.ggml.model` is `none`). Tokens still work."""

    def __init__(self) -> None:
        super().__init__("the model carries no tokenizer: send and read tokens instead of text")


class TemplateFault(ValueError):
    """The model's chat template is absent, broken, refuses these messages, or asks for more than a template may."""


class TextTooLong(ValueError):
    """A text that cannot be within a limit, found before it was encoded as a whole."""

    def __init__(self, least_tokens: int, limit_tokens: int) -> None:
        super().__init__(f"the text is at least {least_tokens} tokens long, and the context holds {limit_tokens}")
        self.least_tokens = least_tokens
        self.limit_tokens = limit_tokens
