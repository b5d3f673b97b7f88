"""An image archive as `docker save` writes it, read without a daemon."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class SavedImage:
    """One image of an archive: its configuration, and the files of each layer, the base first."""

    config: dict[str, Any]
    layers: list[list[tarfile.TarInfo]]

    @property
    def size_bytes(self) -> int:
        return sum(member.size for layer in self.layers for member in layer)

    def paths(self, *, above_base: bool = False) -> set[str]:
        return {member.name for layer in self.layers[above_base:] for member in layer}


def read(archive: Path, name: str) -> SavedImage:
    """Return the image of that name. StopIteration if the archive has none."""
    with tarfile.open(archive) as saved:
        manifest = json.load(_file(saved, "manifest.json"))
        image = next(each for each in manifest if name in each["RepoTags"])
        config = json.load(_file(saved, image["Config"]))["config"]
        return SavedImage(config, [_members(saved, layer) for layer in image["Layers"]])


def _members(saved: tarfile.TarFile, layer: str) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=_file(saved, layer)) as members:
        return members.getmembers()


def _file(saved: tarfile.TarFile, name: str) -> Any:
    file = saved.extractfile(name)
    assert file
    return file
