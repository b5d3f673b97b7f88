"""NVRTC: CUDA C++ to machine code, no GPU needed. One of the two modules that load `cuda`, which has no types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from cuda.bindings import nvrtc

from decodepool_kernels.cuda.errors import CannotCompile


def version() -> str:
    """Return NVRTC's version, such as 13.0. CannotCompile where it is not installed."""
    try:
        answer = nvrtc.nvrtcVersion()
    except RuntimeError as error:
        raise CannotCompile("NVRTC is not installed; the `cuda` extra brings it") from error
    return ".".join(str(part) for part in _ok(answer))


@cache
def architectures() -> tuple[int, ...]:
    """Return the compute capabilities that this NVRTC knows, as 80, 89, 90."""
    return tuple(_ok(nvrtc.nvrtcGetSupportedArchs())[0])


def compiled(name: str, source: bytes, headers: Mapping[str, bytes], options: Sequence[str]) -> bytes:
    """Return the CUBIN for `--gpu-architecture=sm_*`, the PTX for `compute_*`. CannotCompile holds the log."""
    names, texts = [header.encode() for header in headers], list(headers.values())
    (program,) = _ok(nvrtc.nvrtcCreateProgram(source, name.encode(), len(names), texts, names))
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CannotCompile(f"{name} {' '.join(options)}: {_log(program)}")
    is_ptx = any(option.startswith("--gpu-architecture=compute_") for option in options)
    ask_size, ask = (
        (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX) if is_ptx else (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    )
    image = b" " * int(_ok(ask_size(program))[0])
    _ok(ask(program, image))
    nvrtc.nvrtcDestroyProgram(program)
    return image


def _log(program: object) -> str:
    text = b" " * int(_ok(nvrtc.nvrtcGetProgramLogSize(program))[0])
    _ok(nvrtc.nvrtcGetProgramLog(program, text))
    return text.rstrip(b"\0 \n").decode(errors="replace")


def _ok(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    status, *values = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CannotCompile(f"NVRTC: {status}")
    return tuple(values)
