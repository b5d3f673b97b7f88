from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from decodepool_cli import fetch
from decodepool_cli.faults import Fault
from decodepool_cli.fetch import fetched
from decodepool_sizing.cache_folder import cache_folder

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Site:
    """A web server with one file. It cuts its first `cuts` answers half way; without ranges it sends it all."""

    url: str = ""
    cuts: int = 0
    status: int | None = None
    has_ranges: bool = True
    asked: list[str | None] = field(default_factory=list)


@pytest.fixture
def site() -> Iterator[Site]:
    known = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            known.asked.append(wanted)
            if known.status is not None:
                self.send_error(known.status)
                return
            start = int(wanted[6:-1]) if wanted and known.has_ranges else 0
            if start >= len(CONTENT):
                self.send_error(416)
                return
            body = CONTENT[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if known.cuts:
                known.cuts -= 1
                body = body[: len(body) // 2]
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
    monkeypatch.setattr(fetch, "PAUSE_SECONDS", 0)
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
