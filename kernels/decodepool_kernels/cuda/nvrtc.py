"""NVRTC: CUDA C++ to machine code, no GPU needed. One of the two modules that load `cuda`, which has no types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from cuda.bindings import nvrtc

from decodepool_kernels.cuda.errors import CannotCompile

INSTALL = "install the `cuda` extra (uv sync --inexact --extra cuda)"


def version() -> str:
    """Return NVRTC's version, such as 13.0. CannotCompile where it is not installed."""
    return ".".join(str(part) for part in _asked(nvrtc.nvrtcVersion))


@cache
def architectures() -> tuple[int, ...]:
    """Return the compute capabilities that this NVRTC knows, as 80, 89, 90. CannotCompile where it is not installed."""
    return tuple(_asked(nvrtc.nvrtcGetSupportedArchs)[0])


def compiled(name: str, source: bytes, headers: Mapping[str, bytes], options: Sequence[str]) -> bytes:
    """Return the CUBIN for `--gpu-architecture=sm_*`, the PTX for `compute_*`. CannotCompile holds the log."""
    names, texts = [header.encode() for header in headers], list(headers.values())
    (program,) = _asked(nvrtc.nvrtcCreateProgram, source, name.encode(), len(names), texts, names)
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    if status == nvrtc.nvrtcResult.NVRTC_ERROR_BUILTIN_OPERATION_FAILURE:
        raise CannotCompile(f"NVRTC is not whole: {_first_line(_log(program)).rstrip('.')}; {INSTALL}")
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CannotCompile(f"{_log(program) or status}\n({name} {' '.join(options)})")
    is_ptx = any(option.startswith("--gpu-architecture=compute_") for option in options)
    ask_size, ask = (
        (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX) if is_ptx else (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    )
    image = b" " * int(_asked(ask_size, program)[0])
    _asked(ask, program, image)
    nvrtc.nvrtcDestroyProgram(program)
    return image


def _log(program: object) -> str:
    text = b" " * int(_asked(nvrtc.nvrtcGetProgramLogSize, program)[0])
    _asked(nvrtc.nvrtcGetProgramLog, program, text)
    return text.rstrip(b"\0 \n").decode(errors="replace")


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _asked(call: Callable[..., tuple[Any, ...]], *arguments: object) -> tuple[Any, ...]:
    """Return what a call gave. Whichever comes first loads the library, and finds that it is not there."""
    try:
        status, *values = call(*arguments)
    except RuntimeError as error:
        raise CannotCompile(f"NVRTC cannot be loaded: {_first_line(str(error))}; {INSTALL}") from error
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CannotCompile(f"NVRTC: {status}")
    return tuple(values)
