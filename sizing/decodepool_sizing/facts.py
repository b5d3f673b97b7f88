"""What planning needs to know of a model, small enough to be kept where only kilobytes may be.

A header can be 20 MiB; its facts are a kilobyte or two. They travel as one line of JSON: from the Job that reads a file
in place, as its last words (Kubernetes keeps 4096 bytes of those), and in the status of a pool, so that a restarted
operator reads no file twice. Layers are written once a kind, and in runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Annotated, Any, get_args

from pydantic import Field, TypeAdapter

from decodepool_sizing import limits
from decodepool_sizing.cursor import Reader
from decodepool_sizing.devices import DeviceKind
from decodepool_sizing.errors import BadModelFile, UnknownArchitecture
from decodepool_sizing.header import Header, read_header
from decodepool_sizing.layers import LayerShape
from decodepool_sizing.loaded_tensors import weight_bytes
from decodepool_sizing.matrix_types import MATRICES, MOST_MIXTURES, UNIFORM, StepTypes, step_types
from decodepool_sizing.shape import ModelShape, read_shape
from decodepool_sizing.support import refusals

MAX_JSON_BYTES = 4096
"""What Kubernetes keeps of a container's last words."""

SCHEMA = 1
SHOWN_REFUSALS = 3
SHOWN_REFUSAL_CHARACTERS = 240

_DEVICE_KINDS: tuple[DeviceKind, ...] = get_args(DeviceKind)
_COUNT = Annotated[int, Field(ge=0, lt=1 << 60)]
_SHAPE = TypeAdapter(ModelShape)
_LAYERS = TypeAdapter(tuple[LayerShape, ...])
_RUNS = TypeAdapter(tuple[tuple[_COUNT, _COUNT], ...])
_AMOUNTS = TypeAdapter(dict[DeviceKind, _COUNT])
_MIXTURES = TypeAdapter(
    Annotated[
        tuple[Annotated[tuple[str, ...], Field(min_length=len(MATRICES), max_length=len(MATRICES))], ...],
        Field(min_length=1),
    ]
)
_MIXTURE_OF_BLOCKS = TypeAdapter(tuple[Annotated[int, Field(ge=0, lt=MOST_MIXTURES)], ...])
_REFUSALS = TypeAdapter(dict[DeviceKind, tuple[str, ...]])


class FactsError(ValueError):
    """A text that no `ModelFacts.to_json` has written, or one of another version."""


@dataclass(frozen=True)
class ModelFacts:
    """A model as planning sees it. `weight_bytes`, and `refusals` (why an engine would not run it), are by device.

    `digest` is `sha256:HEX`: of the file where its source says so, else of the file's size and header.
    """

    shape: ModelShape
    weight_bytes: Mapping[DeviceKind, int]
    refusals: Mapping[DeviceKind, tuple[str, ...]]
    file_bytes: int
    digest: str
    quantization: str
    types: StepTypes = UNIFORM

    def to_json(self) -> str:
        """Return a line of JSON of at most `MAX_JSON_BYTES` bytes; BadModelFile for a model too irregular for that.
        `types`, which decide little, stay away where there is no room for them.
        """
        kinds = list(dict.fromkeys(self.shape.layers))
        runs = [(kinds.index(layer), len(list(run))) for layer, run in groupby(self.shape.layers)]
        shape = _SHAPE.dump_python(replace(self.shape, layers=()), mode="json", exclude_defaults=True)
        written = {
            "schema": SCHEMA,
            "digest": self.digest,
            "fileBytes": self.file_bytes,
            "quantization": self.quantization,
            "weightBytes": dict(self.weight_bytes),
            "refusals": {kind: list(lines) for kind, lines in self.refusals.items() if lines},
            "shape": shape,
            "layerKinds": _LAYERS.dump_python(tuple(kinds), mode="json", exclude_defaults=True),
            "layerRuns": runs,
        }
        typed = written if self.types == UNIFORM else {**written, "types": asdict(self.types)}
        text = next((text for each in (typed, written) if len(text := _line(each)) <= MAX_JSON_BYTES), None)
        if text is None:
            raise BadModelFile(f"{len(kinds)} kinds of layers in {len(runs)} runs: more than a plan can be kept of")
        return text

    @classmethod
    def from_json(cls, text: str) -> ModelFacts:
        """Read what `to_json` wrote; FactsError for anything else."""
        try:
            return cls._from_written(json.loads(text))
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise FactsError(f"not the facts of a model: {type(error).__name__}") from None

    @classmethod
    def _from_written(cls, written: Any) -> ModelFacts:
        if written["schema"] != SCHEMA:
            raise FactsError(f"schema {written['schema']}, expected {SCHEMA}")
        kinds = _LAYERS.validate_python(written["layerKinds"])
        runs = _RUNS.validate_python(written["layerRuns"])
        if not 0 < sum(count for _, count in runs) <= limits.BLOCKS:
            raise FactsError("no layers, or too many")
        layers = tuple(layer for kind, count in runs for layer in (kinds[kind],) * count)
        refused = _REFUSALS.validate_python(written["refusals"])
        return cls(
            shape=replace(_SHAPE.validate_python({**written["shape"], "layers": ()}), layers=layers),
            weight_bytes=_AMOUNTS.validate_python(written["weightBytes"]),
            refusals={kind: refused.get(kind, ()) for kind in _DEVICE_KINDS},
            file_bytes=int(written["fileBytes"]),
            digest=str(written["digest"]),
            quantization=str(written["quantization"]),
            types=_read_types(written["types"]) if "types" in written else UNIFORM,
        )


def _line(written: Mapping[str, Any]) -> str:
    return json.dumps(written, separators=(",", ":"), sort_keys=True)


def _read_types(written: Any) -> StepTypes:
    return StepTypes(
        _MIXTURES.validate_python(written["mixtures"]),
        str(written["output"]),
        _MIXTURE_OF_BLOCKS.validate_python(written.get("blocks", ())),
    )


def read_facts(reader: Reader, sha256: str | None = None) -> ModelFacts:
    """Read a model's facts from its header. `sha256` is the file's digest where it is known beforehand.

    BadModelFile for a broken file, UnknownArchitecture for one of a shape nobody has described. A model that is sound
    but that an engine would refuse has its `refusals`.
    """
    header = read_header(reader)
    shape = read_shape(header)
    refused = tuple(line[:SHOWN_REFUSAL_CHARACTERS] for line in refusals(shape, header)[:SHOWN_REFUSALS])
    return ModelFacts(
        shape=shape,
        weight_bytes={kind: weight_bytes(shape, header.tensors, kind) for kind in _DEVICE_KINDS},
        refusals=dict.fromkeys(_DEVICE_KINDS, refused),
        file_bytes=header.file_bytes,
        digest=f"sha256:{sha256 or _header_digest(reader, header)}",
        quantization=_quantization(header),
        types=step_types(shape, header.tensors),
    )


def fault_reason(error: BadModelFile) -> str:
    """Return one CamelCase word for why a file gave no facts, for a condition's reason."""
    if isinstance(error, UnknownArchitecture):
        return "UnsupportedArchitecture"
    text = str(error)
    return next((reason for mark, reason in _REASONS if mark in text), "BadModelFile")


_REASONS = (
    ("not a GGUF file", "NotGGUF"),
    ("no such file", "NotFound"),
    ("not a directory", "NotFound"),
    ("server answers 404", "NotFound"),
    ("server answers 410", "NotFound"),
    ("server answers 401", "Unauthorized"),
    ("server answers 403", "Unauthorized"),
    ("permission denied", "Unauthorized"),
    ("server answers", "ServerRefused"),
    ("cannot be fetched", "Unreachable"),
    ("ignores Range", "RangesUnsupported"),
    ("Content-Range", "RangesUnsupported"),
    ("is a directory", "NotAFile"),
    ("device or a pipe", "NotAFile"),
    ("changed while", "FileChanged"),
    ("file ended at offset", "Truncated"),
    ("but the file ends at", "Truncated"),
    ("sha256 is", "HashDiffers"),
    ("split.count", "SplitModel"),
)
"""Marks of texts in the order in which they are looked for. A table of tests holds every one against a real fault."""


def _header_digest(reader: Reader, header: Header) -> str:
    digest = hashlib.sha256(f"{header.file_bytes}\n".encode())
    digest.update(reader(0, header.data_offset))
    return digest.hexdigest()


def _quantization(header: Header) -> str:
    """Return the type that most of the file's bytes have, as tools name it: `Q4_K`."""
    held: dict[str, int] = {}
    for tensor in header.tensors:
        held[tensor.type.name] = held.get(tensor.type.name, 0) + tensor.size_bytes
    return max(held, key=lambda name: (held[name], name), default="")
