"""What can go wrong between this program and a GPU, each in one line."""

from __future__ import annotations


class GpuFault(RuntimeError):  # noqa: N818 - it says what happened
    """The driver refused a call or the device is gone: nothing on it can be trusted any more."""


class CannotCompile(GpuFault):
    """A kernel cannot be built for this GPU; the message names the versions and what would work."""
