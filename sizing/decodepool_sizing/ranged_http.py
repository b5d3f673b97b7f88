"""Reading parts of a file over HTTP, so that sizing a model costs its header and not its weights.

Every answer is held to what was asked: a server that ignores `Range`, a size that changes, a short body are errors,
never data.
"""

from __future__ import annotations

import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import IO, Any
from urllib.parse import urlsplit

from decodepool_sizing.errors import BadModelFile, shown
from decodepool_sizing.http_connections import Terms, handlers

FIRST_REQUEST_BYTES = 256 << 10
TIMEOUT_SECONDS = 30.0
"""For each connection and each wait for bytes. How long the whole may last is `total_seconds`."""

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class CarefulRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but takes no credential to another host and never leaves encryption."""

    def redirect_request(  # noqa: PLR0917 - the signature is urllib's
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Return the request to follow a redirect with."""
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if new.scheme not in ("http", "https") or (old.scheme == "https" and new.scheme == "http"):
            fp.close()
            raise BadModelFile(f"redirected from {old.scheme} to {new.scheme or 'nowhere'}, which is not followed")
        try:
            require_no_user(newurl)
        except BadModelFile:
            fp.close()
            raise
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request and (old.scheme, old.netloc) == (new.scheme, new.netloc):
            for name, value in req.unredirected_hdrs.items():
                request.add_unredirected_header(name, value)
        return request


def require_no_user(url: str) -> None:
    """Refuse a URL with a user: urllib would look `user:password@host` up as the name of a host."""
    if "@" in urlsplit(url).netloc:
        raise BadModelFile(
            "cannot be fetched: a URL's user and password are not used, a token is (secretRef, --bearer-file)"
        )


class HttpReader:
    """Reads a file behind a URL by ranged GETs. The first request, made at once, learns the file's size."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        *,
        total_seconds: float | None = None,
        local_addresses: bool = True,
    ) -> None:
        """`total_seconds`: for everything that is ever read by this, from now on. Without `local_addresses`, a host or
        a redirect that leads to loopback, link-local or unspecified addresses is a BadModelFile.
        """
        until = None if total_seconds is None else time.monotonic() + total_seconds
        self._url = url
        self._headers = dict(headers or {})
        self._timeout_seconds = timeout_seconds
        self._opener = urllib.request.build_opener(CarefulRedirects, *handlers(Terms(until, local_addresses)))
        self._identity: str | None = None
        self.file_bytes = 0
        self._first = self._get(0, FIRST_REQUEST_BYTES)

    def __call__(self, offset: int, length: int) -> bytes:
        """Return the bytes `[offset, offset + length)`; fewer only at the end of the file."""
        length = min(length, self.file_bytes - offset)
        if length <= 0:
            return b""
        if offset + length <= len(self._first):
            return self._first[offset : offset + length]
        return self._get(offset, length)

    def _get(self, offset: int, length: int) -> bytes:
        try:
            with self._opener.open(self._request(offset, length), timeout=self._timeout_seconds) as answer:
                expected = self._checked_length(answer, offset, length)
                body: bytes = answer.read(expected + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise BadModelFile(_refusal(error)) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            if isinstance(error, BadModelFile):
                raise
            raise BadModelFile(f"cannot be fetched: {told_fault(error)}") from None
        if len(body) != expected:
            raise BadModelFile(f"offset {offset}: the server sent {len(body)} bytes of a range of {expected}")
        return body

    def _request(self, offset: int, length: int) -> urllib.request.Request:
        require_no_user(self._url)
        request = urllib.request.Request(self._url)  # noqa: S310 - only http and https reach this class, redirects included
        request.add_header("Range", f"bytes={offset}-{offset + length - 1}")
        request.add_header("Accept-Encoding", "identity")
        request.add_header("User-Agent", "decodepool")
        for name, value in self._headers.items():
            request.add_unredirected_header(name, value)
        return request

    def _checked_length(self, answer: Any, offset: int, length: int) -> int:
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            raise BadModelFile(
                "the server ignores Range requests, so the header alone cannot be read: "
                "put the file where they are served, or on a disk or claim"
            )
        text = answer.headers.get("Content-Range") or ""
        match = _CONTENT_RANGE.fullmatch(text)
        if not match:
            raise BadModelFile("the server's Content-Range does not tell the file's size")
        begin, last, total = (int(number) for number in match.groups())
        if begin != offset or last + 1 != min(offset + length, total):
            raise BadModelFile(f"the server was asked for bytes {offset}-{offset + length - 1} and sent {begin}-{last}")
        self._check_unchanged(total, answer.headers.get("ETag"))
        return last + 1 - begin

    def _check_unchanged(self, total: int, tag: str | None) -> None:
        identity = f"{total} bytes, {tag}"
        if self._identity is not None and self._identity != identity:
            before, now = shown(self._identity), shown(identity)
            raise BadModelFile(f"the file changed while its header was read: {before}, then {now}")
        self._identity, self.file_bytes = identity, total


def told_fault(error: Exception) -> str:
    """Return why a connection or an answer failed: nothing of the URL, and no word of whoever answers."""
    match error:
        case http.client.InvalidURL():  # whose text has the URL
            return "the URL has no such port, or control characters"
        case http.client.RemoteDisconnected():
            return "the connection was closed without an answer"
        case http.client.BadStatusLine():  # whose text is what came
            return "what answers does not speak HTTP"
        case urllib.error.HTTPError():
            known = {status.value: status.phrase for status in http.HTTPStatus}
            return f"the server answers {error.code} {known.get(error.code, '')}".rstrip()
    cause = getattr(error, "reason", error)
    return shown(str(getattr(cause, "strerror", None) or cause or type(error).__name__))


def _refusal(error: urllib.error.HTTPError) -> str:
    if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return "the server has no bytes at all for this URL: an empty file?"
    return told_fault(error)
