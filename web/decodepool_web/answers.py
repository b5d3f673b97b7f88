"""How answers are written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web


def json_answer(data: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Answer with JSON."""
    return web.Response(text=compact(data), status=status, content_type="application/json", headers=headers)


def compact(data: Mapping[str, Any]) -> str:
    """Return JSON without spaces; non-ASCII as it is, since answers and streams are UTF-8."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
