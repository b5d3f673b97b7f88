"""A chat with the openai client, unchanged. `make setup` has installed it here.

decodepool serve MODEL.gguf --context 2048 &
python examples/openai_chat.py [http://127.0.0.1:8000]     without a URL: port PORT of this machine, 8000 by default
"""

from __future__ import annotations

import argparse
import os
import sys
from urllib.parse import urlsplit

import openai
from openai.types.chat import ChatCompletionMessageParam

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]


def url(text: str) -> str:
    """Return an http URL as it is; ValueError for what is none, or has no port that can be."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or parts.port == 0:
        raise ValueError(text)
    return text


def server_url() -> str:
    """Return the worker's URL from the command line, or the one of `PORT` here, as `make demo` reads it."""
    here = f"http://127.0.0.1:{os.environ.get('PORT', '8000')}"
    parser = argparse.ArgumentParser(description="A chat with the openai client, unchanged.")
    parser.add_argument(
        "server", type=url, nargs="?", default=here, help="the worker's URL (default: %(default)s, by PORT)"
    )
    server: str = parser.parse_args().server
    return server


def main(server: str) -> None:
    """Stream one answer, then ask for the same again, whole."""
    client = openai.OpenAI(base_url=f"{server}/v1", api_key="none")
    model = client.models.list().data[0].id
    streamed = ""
    for chunk in client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=64, temperature=0.2, seed=1, stream=True
    ):
        text = chunk.choices[0].delta.content or ""
        print(text, end="", flush=True)
        streamed += text
    print()
    whole = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=64, temperature=0.2, seed=1)
    assert whole.choices[0].message.content == streamed
    print("Asked again with the same seed, it said the same.")


if __name__ == "__main__":
    address = server_url()
    try:
        main(address)
    except openai.APIStatusError as refusal:
        sys.exit(f"{address} refuses: {refusal.message}")
    except openai.APIConnectionError as error:
        sys.exit(f"no worker answers at {address}: {error.__cause__ or error}")
