"""What can go wrong between this program and a GPU, each in one line."""

from __future__ import annotations


class GpuFault(RuntimeError):  # noqa: N818 - it says what happened
    """The driver refused a call or the device is gone: nothing on it can be trusted any more."""


class CannotCompile(GpuFault):
    """A kernel cannot be built for this GPU; the message names the versions, and a way out where one is known."""


class BadImage(CannotCompile):
    """The driver takes a kernel's image for none: it may have been damaged where it was kept."""
