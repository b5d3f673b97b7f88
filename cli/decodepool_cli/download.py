"""One file from a URL over as many connections as it takes.

Two answers make one file only if both are of the same version of it: the same `ETag`, or else the same time of the
last change, where the server tells one. A digest tells too, in the end; without either, what was cut is begun again.
"""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO, Any

from decodepool_sizing.errors import BadModelFile, told_url
from decodepool_sizing.ranged_http import CarefulRedirects, require_no_user, told_fault

from decodepool_cli.faults import Fault, bad_input

CHUNK_BYTES = 1 << 18
"""The most that is read at once. What has come is written, be it less."""

TIMEOUT_SECONDS = 60.0
ATTEMPTS = 5
"""Connections in a row that may get no further than one before them."""

PAUSE_SECONDS = 1.0
"""How long to wait after one that got no further; twice as long after the next."""

Progress = Callable[[int, int], None]
"""Hears of bytes there are, and of all there will be; only where the server says how many."""

_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


class _Redirects(CarefulRedirects):
    """Closes an answer whose redirect cannot be read, which urllib leaves open."""

    def http_error_302(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage
    ) -> Any:
        """Follow a redirect."""
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except ValueError:
            fp.close()
            raise

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


class Download:
    """Appends to `part` what is missing. What is there already is believed only where a digest will tell. `room` hears
    of bytes before they come, and fails where there is no room for them.

    `headers` go to the URL's own host alone, wherever it redirects to.
    """

    def __init__(
        self,
        url: str,
        part: Path,
        room: Callable[[int], None],
        *,
        has_digest: bool,
        progress: Progress | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._url = url
        self._part = part
        self._room = room
        self._has_digest = has_digest
        self._progress = progress
        self._headers = dict(headers or {})
        self._opener = urllib.request.build_opener(_Redirects)
        self._version: str | None = None

    def run(self) -> None:
        """Bring the whole file; `Fault` where it cannot be had."""
        furthest, failures = 0, 0
        while True:
            try:
                if self._one_answer():
                    return
                reason = "the connection was cut"
            except (OSError, HTTPException) as error:
                reason = told_fault(error)
            except BadModelFile as error:  # a user in the URL, or a redirect that is not followed
                raise bad_input(f"{told_url(self._url)}: {error}") from None
            except ValueError:  # whose text may have the user and password of a redirect
                raise Fault(f"{told_url(self._url)}: the URL, or what the server answers, is malformed") from None
            failures = 0 if self._have() > furthest else failures + 1
            furthest = max(furthest, self._have())
            if failures >= ATTEMPTS:
                raise Fault(f"{told_url(self._url)}: {reason}")
            if failures:
                time.sleep(PAUSE_SECONDS * 2 ** (failures - 1))

    def _have(self) -> int:
        return self._part.stat().st_size if self._part.exists() else 0

    def _one_answer(self) -> bool:
        """Read one answer into `part`; True if the file is complete."""
        if not (self._has_digest or self._version):
            self._part.unlink(missing_ok=True)  # nothing would tell if the file behind the URL is another by now
        have = self._have()
        require_no_user(self._url)
        request = urllib.request.Request(self._url, headers=self._range_from(have))  # noqa: S310 - http and https alone come here
        for name, value in self._headers.items():
            request.add_unredirected_header(name, value)
        try:
            answer = self._opener.open(request, timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            with error:
                self._refused(error, have)
                return False
        with answer:
            return self._take(answer, have)

    def _range_from(self, have: int) -> dict[str, str]:
        if not have:
            return {}
        return {"Range": f"bytes={have}-"} | ({"If-Range": self._version} if self._version else {})

    def _refused(self, error: urllib.error.HTTPError, have: int) -> None:
        if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            self._part.unlink()  # longer than the file is: not a beginning of it
        elif error.code < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise Fault(f"{told_url(self._url)}: {told_fault(error)}") from None
        else:
            raise error

    def _take(self, answer: HTTPResponse, have: int) -> bool:
        version, length = _version(answer.headers), answer.headers.get("Content-Length") or ""
        begin, total = 0, int(length) if length.isdigit() else None
        if answer.status == HTTPStatus.PARTIAL_CONTENT:
            place = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range") or "")
            if not place or int(place[1]) != have or version != (self._version or version):
                self._part.unlink(missing_ok=True)  # what came does not continue what is there
                return False
            begin, total = have, int(place[2])
        self._version = version
        with self._part.open("ab" if begin else "wb") as out:
            if total is not None:
                self._room(total - begin)
            return _copy(answer, out.write, begin, total, self._progress)


def _version(headers: HTTPMessage) -> str | None:
    """Return what `If-Range` takes: a strong ETag, or else the time of the last change."""
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _copy(
    answer: HTTPResponse, write: Callable[[bytes], object], have: int, total: int | None, progress: Progress | None
) -> bool:
    while chunk := answer.read1(CHUNK_BYTES):
        write(chunk)
        have += len(chunk)
        if progress is not None and total is not None:
            progress(have, total)
    return total is None or have >= total
