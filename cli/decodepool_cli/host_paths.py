"""Where a node's folders are on this machine: a manifest names paths of its cluster's nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from decodepool_cli.faults import bad_input

FIELD = "spec.model.source.hostPath.path"


@dataclass(frozen=True, slots=True)
class FolderMap:
    """A folder of a node, and what stands for it here."""

    node: PurePosixPath
    here: Path


def parse_maps(texts: Sequence[str]) -> list[FolderMap]:
    """Parse `--map NODE=HERE` options; `~` is the user's home, which no shell expands there."""
    return [_parse(text) for text in texts]


def _parse(text: str) -> FolderMap:
    node, equals, here = text.partition("=")
    if not equals or not node.startswith("/") or not here:
        raise bad_input(f"--map: {text!r} is not NODE_FOLDER=FOLDER_HERE")
    return FolderMap(PurePosixPath(node), Path(here).expanduser())


def path_here(node_path: str, maps: Sequence[FolderMap]) -> Path:
    """Return where a node's file is on this machine; bad input where it is not, with what would help.

    The longest of the maps that fit is used; without one the path is this machine's own.
    """
    path = PurePosixPath(node_path)
    fitting = [folder for folder in maps if path.is_relative_to(folder.node)]
    longest = max(fitting, key=lambda folder: len(folder.node.parts), default=None)
    here = Path(path) if longest is None else longest.here / path.relative_to(longest.node)
    if not here.exists():
        advice = "" if longest else f"; --map {path.parent}=FOLDER says where that folder is on this machine"
        raise bad_input(f"{FIELD}: {here} does not exist{advice}")
    return here
