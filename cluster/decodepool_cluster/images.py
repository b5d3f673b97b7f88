"""The product's images, built from the Dockerfile without a registry, and kept as archives under their inputs' digest.

The base is a minimal Debian with Python, made from Debian's packages; on top of it runs the same `docker build` as
anywhere else.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from decodepool_sizing.cache_folder import cache_folder

from decodepool_cluster import linux
from decodepool_cluster.linux import run
from decodepool_cluster.locks import alone, in_use, is_in_use
from decodepool_cluster.say import say

SOURCE = Path(__file__).parents[2]
INPUTS = ("Dockerfile", ".dockerignore", "LICENSE", "README.md", "pyproject.toml", "uv.lock")
ROOMS = ("sizing", "kernels", "web", "worker", "gateway", "operator", "cli")
TARGETS = ("worker-cpu", "operator", "gateway")
"""What runs in the local cluster; the Dockerfile has `worker-cuda` besides."""
KEPT_ARCHIVES = 1
"""Of earlier sources, for each group of targets: what changed last may change back."""
BUILD_SECONDS = 1200
PRIVATE = ("setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Namespaces that go, with all in them, when whoever started them does, however it ends."""
CGROUP = "decodepool-images-"
"""Before the mark of the process that builds."""
BUILDER = Path(__file__).with_name("build_images.sh")
SUITE = "bookworm"
BASE_OPTIONS = (
    "--variant=extract",  # unpacks packages and runs none of their scripts: quick, small, enough for a process
    "--include=python3,python3-venv,libstdc++6,dash,coreutils,findutils,ca-certificates",
    *(f"--dpkgopt=path-exclude=/usr/share/{left_out}/*" for left_out in ("doc", "man", "locale")),
    '--customize-hook=cat "$1"/usr/share/ca-certificates/mozilla/*.crt > "$1"/etc/ssl/certs/ca-certificates.crt',
)


@contextmanager
def archive(*targets: str) -> Iterator[Path]:
    """Have an archive of the images of some targets, as these sources make them; build what is missing.

    While it is held no build of other sources removes it.
    """
    folder = cache_folder("cluster") / "images"
    path = folder / input_digest() / f"{'+'.join(targets)}.tar"
    with ExitStack() as held:
        with alone(folder):
            if not path.exists():
                _build(targets, path)
            forget_old(other for other in folder.glob(f"*/{path.name}") if other != path)
            held.enter_context(in_use(path))
        yield path


def name(target: str) -> str:
    """Return the name of a target's image."""
    return f"localhost/decodepool-{target}:dev"


def input_digest() -> str:
    """Return a digest of all that images are made of."""
    digest = sha256(f"{BUILDER.read_text()}{BASE_OPTIONS}".encode())
    for path in _inputs():
        digest.update(f"{path.relative_to(SOURCE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def clean_up_after_killed_builds() -> None:
    """Remove the cgroups of builds that are dead; what was in them died with them."""
    for cgroup in linux.cgroups(f"{CGROUP}*.*"):
        if not linux.is_alive(cgroup.removeprefix(CGROUP)):
            linux.remove_cgroup(cgroup)


def forget_old(archives: Iterable[Path]) -> None:
    """Remove all but the last archives; what somebody holds is left to whoever comes next."""
    idle = [path for path in archives if not is_in_use(path)]
    for old in sorted(idle, key=lambda path: path.stat().st_mtime)[:-KEPT_ARCHIVES]:
        old.unlink()
        with suppress(OSError):  # another group's archive is still in it
            old.parent.rmdir()


def _inputs() -> Iterator[Path]:
    yield from (SOURCE / file for file in INPUTS)
    for room in ROOMS:
        files = (path for path in (SOURCE / room).rglob("*") if path.is_file())
        yield from sorted(path for path in files if "__pycache__" not in path.parts)


def _build(targets: tuple[str, ...], path: Path) -> None:
    say(f"building the images {', '.join(targets)}: two minutes at first, then seconds")
    aside = path.with_suffix(".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    clean_up_after_killed_builds()
    cgroup = f"{CGROUP}{linux.mark_of(os.getpid())}"
    given = {"SOURCE": SOURCE, "BASE": _base(), "DATA": cache_folder("cluster") / "docker", "OUT": aside}
    settings = {key: str(value) for key, value in given.items()} | {"CGROUP": cgroup}
    try:
        run([*PRIVATE, "sh", str(BUILDER), *targets], environment={**os.environ, **settings}, seconds=BUILD_SECONDS)
    finally:
        linux.remove_cgroup(cgroup)
    aside.rename(path)


def _base() -> Path:
    digest = sha256(f"{SUITE}{BASE_OPTIONS}".encode()).hexdigest()[:16]
    path = cache_folder("cluster") / f"base-{digest}.tar"
    if not path.exists():
        aside = path.with_suffix(".part.tar")
        run(["mmdebstrap", "--quiet", *BASE_OPTIONS, SUITE, str(aside)])
        aside.rename(path)
    return path
