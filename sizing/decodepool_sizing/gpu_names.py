"""GPUs by the names that people, drivers and node labels (nvidia.com/gpu.product) give them: h100, Tesla-T4-SHARED,
NVIDIA-A100-SXM4-80GB, NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from decodepool_sizing.gpus import GPU, GPUS

ALIASES = {
    "h100": "h100 sxm",
    "h100 80gb": "h100 sxm",
    "h100 80gb hbm2e": "h100 pcie",
    "a100": "a100 80gb",
    "v100": "v100 16gb",
    "gh200": "gh200 96gb",
    "gh200 480gb": "gh200 96gb",
    "gh200 120gb": "gh200 96gb",
}
"""The last two are by the memory of the CPU beside it, as drivers have it."""
BRANDS = ("nvidia ", "tesla ", "geforce ")
SLICE, SHARED = " mig ", " shared"
MEDIA = re.compile(r"[+.]me(\.all)?$")
"""Behind the profile of a slice that has media engines."""
EDITIONS = frozenset(
    {"hbm2", "hbm2e", "hbm3", "hbm3e", "ac", "generation", "blackwell", "server", "workstation", "max", "q", "edition"}
)
"""Words of names that tell no two rows apart."""
FORMS, SIZE = frozenset({"sxm", "pcie"}), re.compile(r"(\d+)gb")
SIZE_TOLERANCE = 0.03
"""Of a size in a name: GB or GiB, rounded."""
PROFILE = re.compile(r"(?P<cores>\d)g\.(?P<size>\d+)gb")
EIGHTHS = {"1": (1, 2), "2": (2,), "3": (4,), "4": (4,), "7": (8,)}
"""Of a card's memory that slices have, by the sevenths of its cores."""


def find_gpu(name: str) -> GPU:
    """Return the GPU of a name, whatever its case and punctuation; of one that is shared out, all of it. ValueError
    lists the closest names.
    """
    wanted = _plain(name)
    known = {_plain(gpu.name): gpu for gpu in GPUS}
    for reading in _readings(wanted):
        found = known.get(ALIASES.get(reading, reading))
        if found is not None and _agrees(wanted, reading, found):
            return found
    raise ValueError(f"no GPU is called {name[:40]!r}; {_near(wanted, known)}")


def _near(wanted: str, known: Mapping[str, GPU]) -> str:
    """Say which names are close, or else which there are; those of slices only to who asks for one."""
    is_slice = SLICE in wanted
    names = {name: gpu for name, gpu in known.items() if (SLICE in name) is is_slice}
    names |= {} if is_slice else {alias: known[name] for alias, name in ALIASES.items()}
    close = dict.fromkeys(names[match].name for match in get_close_matches(wanted, names, n=4, cutoff=0.5))
    if close:
        return f"did you mean {', '.join(close)}?"
    return f"known are {', '.join(dict.fromkeys(gpu.name for gpu in names.values()))}"


def is_shared(name: str) -> bool:
    """Whether a node's label says that its GPUs are shared out: a pod has less than the memory of one."""
    return _spaced(name).endswith(SHARED)


def _spaced(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name.strip().lower())


def _plain(name: str) -> str:
    words = _spaced(name).removesuffix(SHARED)
    for brand in BRANDS:
        words = words.removeprefix(brand)
    return words


def _readings(plain: str) -> Iterator[str]:
    """Yield names that a row may have, the most exact first. A slice is of a card's family, whatever the card's memory
    and form, and with media engines or without.
    """
    card, is_slice, profile = plain.partition(SLICE)
    if is_slice:
        yield f"{card.partition(' ')[0]}{SLICE}{MEDIA.sub('', profile)}"
        return
    yield plain
    words = [re.sub(r"^sxm\d$", "sxm", word) for word in plain.split() if word not in EDITIONS]
    unsized = [word for word in words if not SIZE.fullmatch(word)]
    for kept in (words, unsized):
        yield " ".join(kept)
    for kept in (words, unsized):
        yield " ".join(word for word in kept if word not in FORMS)


def _agrees(wanted: str, reading: str, gpu: GPU) -> bool:
    """Whether a GPU has the size that a name tells and its reading leaves out, or a card of that size the slice."""
    card, is_slice, profile = wanted.partition(SLICE)
    sizes = [int(found[1]) for word in set(card.split()) - set(reading.split()) if (found := SIZE.fullmatch(word))]
    return all(_has_slice(size, profile) if is_slice else _has_size(gpu, size) for size in sizes)


def _has_size(gpu: GPU, size: int) -> bool:
    """Whether a size in a name may be that of a GPU: vendors print GiB, GB, and what lies between."""
    least, most = (1 - SIZE_TOLERANCE) * size, (1 + SIZE_TOLERANCE) * size
    return gpu.memory_bytes >= least * 10**9 and gpu.memory_bytes <= most * (1 << 30)


def _has_slice(card_size: int, profile: str) -> bool:
    """Whether cards of a size are cut into slices of a profile."""
    found = PROFILE.match(profile)
    if found is None:
        return False
    size, parts = int(found["size"]), EIGHTHS.get(found["cores"], ())
    return any(abs(card_size * part / 8 - size) <= SIZE_TOLERANCE * size for part in parts)
