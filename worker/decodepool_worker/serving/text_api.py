"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

from aiohttp import web
from decodepool_sizing.api_errors import ApiError
from decodepool_web.answers import json_answer

from decodepool_worker.serving.requests import body_of
from decodepool_worker.serving.service import service_of
from decodepool_worker.serving.session_bodies import Detokenize, Tokenize
from decodepool_worker.serving.validation import checked_ids

MAX_TOKENIZED_BYTES = 256 << 10
"""Of one call to `/tokenize`: 90 MiB while it is encoded, where every byte is a token."""


async def tokenize(request: web.Request) -> web.Response:
    """Text to token ids."""
    body = await body_of(request, Tokenize)
    served = service_of(request).served()
    add_bos = None if body.add_special else False
    size = len(body.text.encode())
    if size > MAX_TOKENIZED_BYTES:
        message = f"text: {size} bytes are more than the {MAX_TOKENIZED_BYTES} that one call tokenizes"
        raise ApiError("invalid_value", message, "text")
    tokens = await served.prompts.tokens_of(body.text, special=bool(body.parse_special), add_bos=add_bos)
    return json_answer({"tokens": tokens, "count": len(tokens)})


async def detokenize(request: web.Request) -> web.Response:
    """Token ids to text."""
    body = await body_of(request, Detokenize)
    served = service_of(request).served()
    checked_ids(body.tokens, served.vocabulary_size, "tokens")
    return json_answer({"text": await served.prompts.text_of(body.tokens)})
