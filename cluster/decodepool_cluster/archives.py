"""Image archives written without a daemon: the pause image, which holds a pod's namespaces open."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

from decodepool_cluster.settings import PAUSE_IMAGE

BUSYBOX = Path("/bin/busybox")
PAUSE = f"while :; do {BUSYBOX} sleep 3600 & wait; done"
"""A shell that waits takes in whoever lost its parent, as the first process of a pod has to."""


def write_pause(out: Path) -> None:
    """Write the pause image: a static busybox that waits."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        files.add(BUSYBOX.resolve(), "bin/busybox")
    write_image(out, PAUSE_IMAGE, layer.getvalue(), {"Entrypoint": [str(BUSYBOX), "sh", "-c", PAUSE]})


def write_image(out: Path, name: str, layer: bytes, process: dict[str, object]) -> None:
    """Write an archive, as `docker save` does, of one layer; `process` is the config's Entrypoint, Env and so on."""
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": process,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(out, "w") as archive:
        _add(archive, "manifest.json", json.dumps(manifest).encode())
        _add(archive, "config.json", json.dumps(config).encode())
        _add(archive, "layer.tar", layer)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))
