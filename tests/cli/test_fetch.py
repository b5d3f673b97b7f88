from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from decodepool_cli import download
from decodepool_cli.faults import BAD_INPUT, DONE, Fault
from decodepool_cli.fetch import fetch
from decodepool_cli.fetching import Remote, fetched
from decodepool_sizing.cache_folder import cache_folder

from tests.cli.processes import Running, until
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
    words: str | None = None
    """What it says beside its status."""
    has_ranges: bool = True
    misplaced_bytes: int = 0
    part_bytes: int | None = None
    """The most it sends of a range."""
    has_length: bool = True
    stall: threading.Event | None = None
    asked: list[str | None] = field(default_factory=list)
    conditions: list[str | None] = field(default_factory=list)
    token: str | None = None
    """The bearer token without which it answers 401."""
    elsewhere: str | None = None
    """Where it sends people to."""
    odd: tuple[str, str] | None = None
    """A header that it sends in place of the right one, and nothing else."""

    @property
    def version(self) -> str:
        digest = hashlib.sha256(self.content).hexdigest()
        return f'"{digest}"' if self.tells == "ETag" else f"Sun, 29 Nov 2026 20:{int(digest[:2], 16) % 60:02}:00 GMT"


def handler_of(known: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known.asked.append(self.headers.get("Range"))
            known.conditions.append(self.headers.get("If-Range"))
            if known.token and self.headers.get("Authorization") != f"Bearer {known.token}":
                self.send_error(401)
                return
            if known.elsewhere:
                self.send_response(302)
                self.send_header("Location", known.elsewhere)
                self.end_headers()
                return
            if known.odd:
                self.send_response(206 if known.odd[0] == "Content-Range" else 200)
                self.send_header(*known.odd)
                self.end_headers()
                return
            if known.status is not None:
                self.send_error(known.status, known.words)
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

    return Handler


@pytest.fixture
def site() -> Iterator[Site]:
    known = Site()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(known))
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
    path = fetched(Remote(site.url, SHA256))
    assert path.read_bytes() == CONTENT
    assert path.parent == cache
    assert path.name == f"{SHA256[:16]}-a b.gguf"
    assert fetched(Remote(site.url, SHA256)) == path
    assert site.asked == [None]


def test_a_cut_connection_is_resumed_where_it_was_cut(site: Site) -> None:
    site.cuts = 3
    assert fetched(Remote(site.url, SHA256)).read_bytes() == CONTENT
    assert site.asked == [None, "bytes=512000-", "bytes=768000-", "bytes=896000-"]


@pytest.mark.parametrize("tells", ["ETag", "Last-Modified"])
def test_a_version_lets_a_cut_connection_be_resumed_without_a_digest(site: Site, tells: str) -> None:
    site.tells, site.cuts = tells, 2
    assert fetched(Remote(site.url)).read_bytes() == CONTENT
    assert site.asked == [None, "bytes=512000-", "bytes=768000-"]
    assert site.conditions == [None, site.version, site.version]


@pytest.mark.parametrize("heeds", [True, False], ids=["heeds If-Range", "sends the range all the same"])
@pytest.mark.parametrize("tells", ["ETag", "Last-Modified"])
def test_two_versions_of_a_file_are_never_one_file(
    site: Site, monkeypatch: pytest.MonkeyPatch, tells: str, heeds: bool
) -> None:
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0)
    site.tells, site.heeds_if_range, site.cuts, site.after_a_cut = tells, heeds, 1, CHANGED
    assert fetched(Remote(site.url)).read_bytes() == CHANGED


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
    assert fetched(Remote(site.url)).read_bytes() == CONTENT


def test_a_connection_that_gets_no_further_than_one_before_is_no_progress(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0)
    site.cuts = 1000
    with pytest.raises(Fault, match="the connection was cut"):
        fetched(Remote(site.url))
    assert len(site.asked) == 1 + download.ATTEMPTS


def test_a_range_may_come_in_parts(site: Site) -> None:
    site.tells, site.cuts, site.part_bytes = "ETag", 1, 200_000
    assert fetched(Remote(site.url)).read_bytes() == CONTENT
    assert site.asked[1:] == ["bytes=512000-", "bytes=712000-", "bytes=912000-"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"<html>log in</html>", "web page"), (tiny()[:-1], "the file ends at")],
    ids=["page", "cut"],
)
def test_what_is_no_whole_model_is_not_kept(site: Site, cache: Path, content: bytes, reason: str) -> None:
    site.content, site.has_length = content, False
    with pytest.raises(Fault, match=reason) as refusal:
        fetched(Remote(site.url))
    assert refusal.value.exit_code == BAD_INPUT
    assert [path.name for path in cache.iterdir() if path.suffix != ".lock"] == []
    site.content = CONTENT
    assert fetched(Remote(site.url)).read_bytes() == CONTENT


def test_what_has_come_is_kept_be_it_little(site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 2)
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    site.stall = threading.Event()
    try:
        with pytest.raises(KeyboardInterrupt):
            fetched(Remote(site.url, SHA256), interrupt)
    finally:
        site.stall.set()
    assert [path.read_bytes() for path in cache.glob("*.part")] == [CONTENT[:1000]]


def test_a_fetch_that_is_told_to_end_ends_by_itself(site: Site, tmp_path: Path) -> None:
    """As process 1 of a pod it would otherwise go on, with the pod's GPU, until it is killed after the whole drain."""
    site.stall = threading.Event()
    running = Running(tmp_path, "fetch", site.url, "--output", tmp_path / "model.gguf")
    try:
        until((tmp_path / "model.gguf.part").exists)
        running.signal()
        assert running.end(5) == 130
    finally:
        running.process.kill()
        running.process.wait()
        site.stall.set()


def test_a_server_without_ranges_sends_it_all_again(site: Site) -> None:
    site.cuts, site.has_ranges = 1, False
    assert fetched(Remote(site.url, SHA256)).read_bytes() == CONTENT


def test_an_interrupted_fetch_leaves_a_beginning_and_no_model(site: Site, cache: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetched(Remote(site.url, SHA256), interrupt)
    assert not (cache / f"{SHA256[:16]}-a b.gguf").exists()
    assert fetched(Remote(site.url, SHA256)).read_bytes() == CONTENT


def test_a_wrong_digest_is_refused_and_nothing_kept(site: Site, cache: Path) -> None:
    with pytest.raises(Fault, match=SHA256):
        fetched(Remote(site.url, "0" * 64))
    assert [path.name for path in cache.iterdir() if path.suffix != ".lock"] == []


def test_a_beginning_that_is_longer_than_the_file_is_thrown_away(site: Site, cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / f"{SHA256[:16]}-a b.gguf.part").write_bytes(CONTENT + b"more")
    assert fetched(Remote(site.url, SHA256)).read_bytes() == CONTENT


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_refusal_is_told_at_once(site: Site, status: int) -> None:
    site.status = status
    with pytest.raises(Fault, match=str(status)):
        fetched(Remote(site.url))
    assert len(site.asked) == 1


SECRETIVE: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "refused": ({"status": 403}, None, "the server answers 403 Forbidden"),
    "failed": ({"status": 500}, None, "the server answers 500 Internal Server Error"),
    "no model": ({"content": b"<html>log in</html>"}, None, "what came was deleted"),
    "another file": ({}, "0" * 64, "its sha256 is"),
}


@pytest.mark.parametrize("name", SECRETIVE)
def test_no_line_has_what_is_secret_in_a_url_or_the_servers_words(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The line becomes a condition and an Event, which more people read than Secrets."""
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0)
    does, sha256, told = SECRETIVE[name]
    site.words = "sesame"
    for field_name, value in does.items():
        setattr(site, field_name, value)
    plain = site.url.partition("?")[0]
    with pytest.raises(Fault, match=told) as caught:
        fetched(Remote(f"{plain}?X-Amz-Signature=sesame#sesame", sha256))
    assert str(caught.value).startswith(plain + ": ")
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://user:sesame@127.0.0.1/x", "http://user:sesame@127.0.0.1:9/x?sesame", "ftp://u:sesame@h/x"]
)
def test_a_users_password_is_in_no_line(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0)
    with pytest.raises(Fault) as caught:
        fetch(url, output=tmp_path / "model.gguf")
    assert "sesame" not in str(caught.value)


def test_a_server_that_is_not_there_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0)
    with pytest.raises(Fault, match="Connection refused"):
        fetched(Remote("http://127.0.0.1:9/model.gguf"))


def test_without_a_digest_an_old_beginning_is_not_trusted(site: Site, cache: Path) -> None:
    path = fetched(Remote(site.url))
    path.rename(path.with_name(path.name + ".part"))
    path.with_name(path.name + ".part").write_bytes(b"another file's beginning")
    assert fetched(Remote(site.url)).read_bytes() == CONTENT


def test_two_fetches_of_one_model_are_one_download(site: Site) -> None:
    threads = [threading.Thread(target=fetched, args=(Remote(site.url, SHA256),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert site.asked == [None]


def test_the_command_writes_the_file_with_a_token_and_keeps_what_is_there(site: Site, tmp_path: Path) -> None:
    site.token = "hf_secret"
    bearer, output = tmp_path / "token", tmp_path / "models" / "model.gguf"
    bearer.write_text("hf_secret\n")
    assert fetch(site.url, output=output, sha256=SHA256, bearer_file=bearer) == DONE
    assert output.read_bytes() == CONTENT
    assert fetch(site.url, output=output, sha256=SHA256, bearer_file=bearer) == DONE
    assert len(site.asked) == 1


def test_without_its_token_a_private_model_is_refused_in_one_line(site: Site, tmp_path: Path) -> None:
    site.token = "hf_secret"
    with pytest.raises(Fault, match="401") as caught:
        fetch(site.url, output=tmp_path / "model.gguf")
    assert "\n" not in str(caught.value)


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a claim with room for one model and half of another, where two lie already."""
    folder = tmp_path / "claim"
    folder.mkdir()
    for age, name in enumerate(("new.gguf", "old.gguf")):
        (folder / name).write_bytes(bytes(len(CONTENT) // 2))
        os.utime(folder / name, (0, 1_000_000 - age))

    def usage(path: Path) -> Any:
        assert path == folder
        total = len(CONTENT) * 3 // 2
        return SimpleNamespace(total=total, free=total - sum(each.stat().st_size for each in folder.iterdir()))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    return folder


def models(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_a_model_that_fits_beside_others_leaves_them(site: Site, volume: Path) -> None:
    (volume / "new.gguf").unlink()
    fetch(site.url, output=volume / "x.gguf", sha256=SHA256, make_room=True)
    assert models(volume) == ["old.gguf", "x.gguf"]


def test_the_oldest_model_of_a_cache_goes_where_another_does_not_fit(site: Site, volume: Path) -> None:
    fetch(site.url, output=volume / "x.gguf", sha256=SHA256, make_room=True)
    assert models(volume) == ["new.gguf", "x.gguf"]
    assert (volume / "x.gguf").read_bytes() == CONTENT


def test_the_beginning_of_a_model_goes_before_any_model(site: Site, volume: Path) -> None:
    (volume / "new.gguf").rename(volume / "gone.gguf.part")
    fetch(site.url, output=volume / "x.gguf", sha256=SHA256, make_room=True)
    assert models(volume) == ["old.gguf", "x.gguf"]


def test_a_model_that_somebody_fetches_stays(site: Site, volume: Path) -> None:
    (volume / "old.gguf").rename(volume / "old.gguf.part")
    with (volume / "old.gguf.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fetch(site.url, output=volume / "x.gguf", sha256=SHA256, make_room=True)
    assert models(volume) == ["old.gguf.part", "x.gguf"]


def test_nothing_is_deleted_unasked_and_the_bytes_are_told(site: Site, volume: Path) -> None:
    """A person's folder is no cache of a pool."""
    with pytest.raises(Fault, match=r"1000\.0 KiB are to come, and 500\.0 KiB are free there"):
        fetch(site.url, output=volume / "x.gguf", sha256=SHA256)
    assert {"new.gguf", "old.gguf"} < set(models(volume))


def test_a_file_system_that_tells_no_size_is_written_to(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=0, free=0))
    fetch(site.url, output=tmp_path / "x.gguf", sha256=SHA256)
    assert (tmp_path / "x.gguf").read_bytes() == CONTENT


def test_a_token_does_not_follow_a_redirect_to_another_host(site: Site, tmp_path: Path) -> None:
    seen: list[str | None] = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT)

        def log_message(self, *args: object) -> None: ...

    other = ThreadingHTTPServer(("127.0.0.1", 0), Other)
    thread = threading.Thread(target=other.serve_forever)
    thread.start()
    try:
        site.token, site.elsewhere = "hf_secret", f"http://127.0.0.1:{other.server_address[1]}/model.gguf"
        bearer = tmp_path / "token"
        bearer.write_text("hf_secret")
        fetch(site.url, output=tmp_path / "model.gguf", sha256=SHA256, bearer_file=bearer)
    finally:
        other.shutdown()
        thread.join()
        other.server_close()
    assert seen == [None]


@pytest.mark.parametrize(
    ("url", "sha256", "told"),
    [
        ("ftp://host/model.gguf", None, "http and https"),
        ("/models/model.gguf", None, "http and https"),
        ("http://host/model.gguf", "ABC", "--sha256"),
    ],
    ids=["ftp", "a path", "a short digest"],
)
def test_the_command_refuses_what_it_cannot_fetch(url: str, sha256: str | None, told: str, tmp_path: Path) -> None:
    with pytest.raises(Fault, match=told) as caught:
        fetch(url, output=tmp_path / "model.gguf", sha256=sha256)
    assert caught.value.exit_code == BAD_INPUT


@pytest.mark.parametrize(
    "content", [None, b"", b"two\nlines", b"\xff"], ids=["absent", "empty", "two lines", "no text"]
)
def test_a_token_file_that_is_none_is_named(content: bytes | None, tmp_path: Path) -> None:
    bearer = tmp_path / "token"
    if content is not None:
        bearer.write_bytes(content)
    with pytest.raises(Fault, match="--bearer-file"):
        fetch("http://127.0.0.1:9/model.gguf", output=tmp_path / "model.gguf", bearer_file=bearer)


@pytest.mark.parametrize(
    "odd",
    [("Content-Length", "\xb2"), ("Content-Range", f"bytes 0-1/{'9' * 5000}")],
    ids=["a length in superscript", "a size of 5000 digits"],
)
def test_nonsense_for_a_size_is_told_in_one_line(site: Site, tmp_path: Path, odd: tuple[str, str]) -> None:
    site.odd = odd
    with pytest.raises(Fault, match="what the server answers, is malformed") as caught:
        fetch(site.url, output=tmp_path / "model.gguf")
    assert str(caught.value).startswith(f"{site.url.partition('?')[0]}: ")


@pytest.mark.parametrize(
    ("elsewhere", "told"),
    [
        ("http://me:sesame@[::1/", "malformed"),
        ("http://\xb2:99999/?sesame", "malformed"),
        ("http://me:sesame@host/x", "user and password are not used"),
        ("ftp://me:sesame@host/x", "redirected from http to ftp"),
    ],
    ids=["half an address", "no ASCII", "a user", "ftp"],
)
def test_a_redirect_that_leads_nowhere_is_told_with_the_url_and_no_secret(
    site: Site, tmp_path: Path, elsewhere: str, told: str
) -> None:
    site.elsewhere = elsewhere
    with pytest.raises(Fault, match=told) as caught:
        fetch(site.url, output=tmp_path / "model.gguf")
    assert str(caught.value).startswith(f"{site.url.partition('?')[0]}: ")
    assert "sesame" not in str(caught.value)
