from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from decodepool_cli import download
from decodepool_cli.faults import BAD_INPUT, Fault
from decodepool_cli.fetch import fetched
from decodepool_sizing.cache_folder import cache_folder

from tests.sizing.gguf_bytes import tiny

CONTENT = (tiny() + bytes(range(256)) * 4000)[:1_024_000]
CHANGED = tiny({"general.name": "another"}) + bytes(1_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Site:
    """A web server with one file. It cuts its first `cuts` answers half way; without ranges it sends it all."""

    url: str = ""
    content: bytes = CONTENT
    after_a_cut: bytes | None = None
    tells: str | None = None
    """The header by which it tells one version of the file from another."""
    heeds_if_range: bool = True
    cuts: int = 0
    status: int | None = None
    has_ranges: bool = True
    misplaced_bytes: int = 0
    part_bytes: int | None = None
    """The most it sends of a range."""
    has_length: bool = True
    stall: threading.Event | None = None
    asked: list[str | None] = field(default_factory=list)
    conditions: list[str | None] = field(default_factory=list)

    @property
    def version(self) -> str:
        digest = hashlib.sha256(self.content).hexdigest()
        return f'"{digest}"' if self.tells == "ETag" else f"Sun, 29 Nov 2026 20:{int(digest[:2], 16) % 60:02}:00 GMT"


@pytest.fixture
def site() -> Iterator[Site]:
    known = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known.asked.append(self.headers.get("Range"))
            known.conditions.append(self.headers.get("If-Range"))
            if known.status is not None:
                self.send_error(known.status)
                return
            start = self.start()
            if start >= len(known.content):
                self.send_error(416)
                return
            self.send_body(start, known.content[start:][: known.part_bytes if start else None])

        def start(self) -> int:
            wanted, condition = self.headers.get("Range"), self.headers.get("If-Range")
            if not (wanted and known.has_ranges):
                return 0
            is_stale = condition and known.heeds_if_range and condition != known.version
            return 0 if is_stale else int(wanted[6:-1]) - known.misplaced_bytes

        def send_body(self, start: int, body: bytes) -> None:
            self.send_response(206 if start else 200)
            if known.tells:
                self.send_header(known.tells, known.version)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{start + len(body) - 1}/{len(known.content)}")
            if known.has_length:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if known.cuts:
                known.cuts -= 1
                body = body[: len(body) // 2]
                known.content = known.after_a_cut or known.content
            if known.stall:
                self.wfile.write(body[:1000])
                known.stall.wait(30)
            else:
                self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    known.url = f"http://127.0.0.1:{server.server_address[1]}/models/a%20b.gguf?x=1"
    yield known
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache_folder("models")


def test_a_model_is_fetched_once(site: Site, cache: Path) -> None:
    path = fetched(site.url, SHA256)
    assert path.read_bytes() == CONTENT
    assert path.parent == cache
    assert path.name == f"{SHA256[:16]}-a b.gguf"
    assert fetched(site.url, SHA256) == path
    assert site.asked == [None]


def test_a_cut_connection_is_resumed_where_it_was_cut(site: Site) -> None:
    site.cuts = 3
    assert fetched(site.url, SHA256).read_bytes() == CONTENT
    assert site.asked == [None, "bytes=512000-", "bytes=768000-", "bytes=896000-"]


@pytest.mark.parametrize("tells", ["ETag", "Last-Modified"])
def test_a_version_lets_a_cut_connection_be_resumed_without_a_digest(site: Site, tells: str) -> None:
    site.tells, site.cuts = tells, 2
    assert fetched(site.url).read_bytes() == CONTENT
    assert site.asked == [None, "bytes=512000-", "bytes=768000-"]
    assert site.conditions == [None, site.version, site.version]


@pytest.mark.parametrize("heeds", [True, False], ids=["heeds If-Range", "sends the range all the same"])
@pytest.mark.parametrize("tells", ["ETag", "Last-Modified"])
def test_two_versions_of_a_file_are_never_one_file(
    site: Site, monkeypatch: pytest.MonkeyPatch, tells: str, heeds: bool
) -> None:
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0)
    site.tells, site.heeds_if_range, site.cuts, site.after_a_cut = tells, heeds, 1, CHANGED
    assert fetched(site.url).read_bytes() == CHANGED


@pytest.mark.parametrize(
    "lacks",
    [{"tells": None}, {"tells": "ETag", "misplaced_bytes": 10}, {"tells": "ETag", "has_ranges": False}],
    ids=["no version", "another range", "no ranges"],
)
def test_what_cannot_be_resumed_is_begun_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, lacks: dict[str, Any]
) -> None:
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0)
    site.cuts = 1
    for name, value in lacks.items():
        setattr(site, name, value)
    assert fetched(site.url).read_bytes() == CONTENT


def test_a_connection_that_gets_no_further_than_one_before_is_no_progress(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0)
    site.cuts = 1000
    with pytest.raises(Fault, match="the connection was cut"):
        fetched(site.url)
    assert len(site.asked) == 1 + download.ATTEMPTS


def test_a_range_may_come_in_parts(site: Site) -> None:
    site.tells, site.cuts, site.part_bytes = "ETag", 1, 200_000
    assert fetched(site.url).read_bytes() == CONTENT
    assert site.asked[1:] == ["bytes=512000-", "bytes=712000-", "bytes=912000-"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"<html>log in</html>", "web page"), (tiny()[:-1], "the file ends at")],
    ids=["page", "cut"],
)
def test_what_is_no_whole_model_is_not_kept(site: Site, cache: Path, content: bytes, reason: str) -> None:
    site.content, site.has_length = content, False
    with pytest.raises(Fault, match=reason) as refusal:
        fetched(site.url)
    assert refusal.value.exit_code == BAD_INPUT
    assert [path.name for path in cache.iterdir() if path.suffix != ".lock"] == []
    site.content = CONTENT
    assert fetched(site.url).read_bytes() == CONTENT


def test_what_has_come_is_kept_be_it_little(site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 2)
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    site.stall = threading.Event()
    try:
        with pytest.raises(KeyboardInterrupt):
            fetched(site.url, SHA256, interrupt)
    finally:
        site.stall.set()
    assert [path.read_bytes() for path in cache.glob("*.part")] == [CONTENT[:1000]]


def test_a_server_without_ranges_sends_it_all_again(site: Site) -> None:
    site.cuts, site.has_ranges = 1, False
    assert fetched(site.url, SHA256).read_bytes() == CONTENT


def test_an_interrupted_fetch_leaves_a_beginning_and_no_model(site: Site, cache: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetched(site.url, SHA256, interrupt)
    assert not (cache / f"{SHA256[:16]}-a b.gguf").exists()
    assert fetched(site.url, SHA256).read_bytes() == CONTENT


def test_a_wrong_digest_is_refused_and_nothing_kept(site: Site, cache: Path) -> None:
    with pytest.raises(Fault, match=SHA256):
        fetched(site.url, "0" * 64)
    assert [path.name for path in cache.iterdir() if path.suffix != ".lock"] == []


def test_a_beginning_that_is_longer_than_the_file_is_thrown_away(site: Site, cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / f"{SHA256[:16]}-a b.gguf.part").write_bytes(CONTENT + b"more")
    assert fetched(site.url, SHA256).read_bytes() == CONTENT


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_refusal_is_told_at_once(site: Site, status: int) -> None:
    site.status = status
    with pytest.raises(Fault, match=str(status)):
        fetched(site.url)
    assert len(site.asked) == 1


def test_a_server_that_is_not_there_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0)
    with pytest.raises(Fault, match="refused"):
        fetched("http://127.0.0.1:9/model.gguf")


def test_without_a_digest_an_old_beginning_is_not_trusted(site: Site, cache: Path) -> None:
    path = fetched(site.url)
    path.rename(path.with_name(path.name + ".part"))
    path.with_name(path.name + ".part").write_bytes(b"another file's beginning")
    assert fetched(site.url).read_bytes() == CONTENT


def test_two_fetches_of_one_model_are_one_download(site: Site) -> None:
    threads = [threading.Thread(target=fetched, args=(site.url, SHA256)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert site.asked == [None]
