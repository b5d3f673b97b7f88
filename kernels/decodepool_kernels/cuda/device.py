"""One GPU: its memory, its functions, one stream, graphs of launches. One of the two modules that load `cuda`.

Every call may come from any thread; the caller keeps them one at a time. A refused call raises GpuFault.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda.bindings import driver
from decodepool_sizing.quantities import exact_bytes
from numpy.typing import NDArray

from decodepool_kernels.cuda import nvrtc
from decodepool_kernels.cuda.errors import BadImage, CannotCompile, GpuFault

OVERLAP_CAPABILITY = 90
"""From which on a kernel may start before the one ahead has ended."""
PIECE_BYTES = 256
"""What a piece of a region begins at a multiple of, as the driver's own allocations do."""
Argument = Any
"""A ctypes value, passed as it is."""


@dataclass(frozen=True)
class Function:
    """A kernel loaded on the device, the shared memory it is launched with, and how many of its blocks an SM holds."""

    handle: Any
    threads: int
    shared_bytes: int
    blocks_per_sm: int


@dataclass(frozen=True)
class Launch:
    """One kernel launch with all it needs, and what a profile tells of it: a name, the bytes of weights it reads."""

    name: str
    function: Function
    grid: tuple[int, int]
    arguments: tuple[Argument, ...]
    weight_bytes: int = 0


class Gpu:
    """The device `ordinal`, through its primary context."""

    def __init__(self, ordinal: int = 0) -> None:
        _start_driver()
        self._device = _device(ordinal)
        self._context = _ok(driver.cuDevicePrimaryCtxRetain(self._device))
        self._modules: list[Any] = []
        self._allocations: list[int] = []
        self._pinned: list[int] = []
        self._graphs: list[Any] = []
        self._marks: list[Mark] = []
        self.enter()
        self._stream = _ok(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        attribute = driver.CUdevice_attribute
        self.name = _ok(driver.cuDeviceGetName(128, self._device)).split(b"\0")[0].decode()
        self.capability = 10 * self._attribute(
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        ) + self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        self.sm_count = self._attribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        self.shared_bytes = self._attribute(attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        self.driver_version = _dotted(_ok(driver.cuDriverGetVersion()))
        self.memory_bytes = int(_ok(driver.cuDeviceTotalMem(self._device)))

    def _attribute(self, which: Any) -> int:
        return int(_ok(driver.cuDeviceGetAttribute(which, self._device)))

    def enter(self) -> None:
        """Make the device current in this thread; every thread that works with it does so first."""
        _ok(driver.cuCtxSetCurrent(self._context))

    def allocate(self, size_bytes: int) -> int:
        """Return the address of zeroed memory. GpuFault with the numbers where there is not so much."""
        status, address = driver.cuMemAlloc(max(size_bytes, 1))
        if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            asked, free = exact_bytes(size_bytes), exact_bytes(self.free_bytes())
            raise GpuFault(f"{self.name} refuses {asked} of memory ({_name(status)}): {free} are free")
        address = int(_ok((status, address)))
        self._allocations.append(address)
        _ok(driver.cuMemsetD8Async(address, 0, max(size_bytes, 1), self._stream))
        return address

    def release(self, address: int) -> None:
        """Give an allocation back, once everything asked so far is done."""
        self.synchronize()
        self._allocations.remove(address)
        _ok(driver.cuMemFree(address))

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """Give back at the end of a `with` what was allocated in it."""
        before = len(self._allocations)
        yield
        for address in self._allocations[before:]:
            self.release(address)

    def pinned(self, words: int) -> NDArray[np.int32]:
        """Return int32 in the host's memory that copies to and from the device run beside everything else;
        kernels read and write it where the host does.
        """
        address = int(_ok(driver.cuMemHostAlloc(4 * words, 0)))
        self._pinned.append(address)
        return np.ctypeslib.as_array((ctypes.c_int32 * words).from_address(address))

    def used_bytes(self) -> int:
        """Return the device memory that is taken, by whomever."""
        return self.memory_bytes - self.free_bytes()

    def free_bytes(self) -> int:
        """Return the device memory that nobody has taken."""
        free, _ = _ok(driver.cuMemGetInfo())
        return int(free)

    def place(self, array: NDArray[Any]) -> int:
        """Return the address of an array's bytes on the device."""
        address = self.allocate(array.nbytes)
        self.upload(address, np.ascontiguousarray(array))
        self.synchronize()
        return address

    def upload(self, address: int, array: NDArray[Any], size_bytes: int | None = None) -> None:
        """Copy a contiguous array (its first bytes) to the device, in stream order."""
        _ok(
            driver.cuMemcpyHtoDAsync(
                address, array.ctypes.data, array.nbytes if size_bytes is None else size_bytes, self._stream
            )
        )

    def download(self, array: NDArray[Any], address: int, size_bytes: int | None = None) -> None:
        """Fill a contiguous array (its first bytes) from the device, in stream order."""
        _ok(
            driver.cuMemcpyDtoHAsync(
                array.ctypes.data, address, array.nbytes if size_bytes is None else size_bytes, self._stream
            )
        )

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        """Copy within the device, in stream order."""
        _ok(driver.cuMemcpyDtoDAsync(target, source, size_bytes, self._stream))

    def synchronize(self) -> None:
        """Wait for everything asked so far, without the GIL."""
        _ok(driver.cuStreamSynchronize(self._stream))

    def mark(self) -> Mark:
        """Return a point of the stream that can be waited for."""
        self._marks.append(Mark(self._stream))
        return self._marks[-1]

    def load(self, image: bytes, entry: str, threads: int, shared_bytes: int) -> Function:
        """Load a kernel. CannotCompile where the driver cannot take the image (BadImage where it takes it for none), or
        the GPU not such a block.
        """
        status, module = driver.cuModuleLoadData(image)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise self._refused(status)
        self._modules.append(module)
        handle = _ok(driver.cuModuleGetFunction(module, entry.encode()))
        blocks = self._blocks_per_sm(handle, threads, shared_bytes)
        if blocks == 0:
            own = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
            needed = shared_bytes + int(_ok(driver.cuFuncGetAttribute(own, handle)))
            raise CannotCompile(
                f"{entry} needs {needed} bytes of shared memory a block, the GPU has {self.shared_bytes}"
            )
        return Function(handle, threads, shared_bytes, blocks)

    def _refused(self, status: Any) -> CannotCompile:
        """Return the fault of an image that the driver does not load, with a way out where the answer names one."""
        device = f"the driver is for CUDA {self.driver_version}, the GPU is sm_{self.capability}"
        line = f"the driver refuses a kernel ({_name(status)}), made by NVRTC {nvrtc.version()}; {device}"
        if status == driver.CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
            return CannotCompile(f"{line}: install an NVRTC no newer than the driver")
        return BadImage(line) if status == driver.CUresult.CUDA_ERROR_INVALID_IMAGE else CannotCompile(line)

    def _blocks_per_sm(self, handle: Any, threads: int, shared_bytes: int) -> int:
        """Let a kernel have so much shared memory a block; return how many blocks an SM then holds, 0 for none."""
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (status,) = driver.cuFuncSetAttribute(handle, limit, shared_bytes)
        if status == driver.CUresult.CUDA_ERROR_INVALID_VALUE:
            return 0
        _ok((status,))
        return int(_ok(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(handle, threads, shared_bytes)))

    def clusters_at_once(self, function: Function, blocks: int) -> int:
        """Return how many clusters of so many blocks the device holds at once: fewer than its SMs would, where what is
        left of a group of SMs is too little for one; 0 where every group is.
        """
        config = _config((blocks * self.sm_count, 1), function)
        attribute, value = driver.CUlaunchAttribute(), driver.CUlaunchAttributeValue()
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = blocks, 1, 1
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value = value
        config.attrs, config.numAttrs = [attribute], 1
        return int(_ok(driver.cuOccupancyMaxActiveClusters(function.handle, config)))

    def launch(self, launch: Launch) -> None:
        """Launch a kernel. It may start before the one ahead ended, and waits before touching what that one wrote."""
        config = _config(launch.grid, launch.function)
        config.hStream = self._stream
        if self.capability >= OVERLAP_CAPABILITY:
            config.attrs, config.numAttrs = [_overlap()], 1
        pointers = (ctypes.c_void_p * len(launch.arguments))(*(ctypes.addressof(value) for value in launch.arguments))
        _ok(driver.cuLaunchKernelEx(config, launch.function.handle, ctypes.addressof(pointers), 0))

    def captured(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """Return what launches all of them as one graph."""
        with self._capture() as graph:
            for launch in launches:
                self.launch(launch)
        executable = _ok(driver.cuGraphInstantiate(graph[0], 0))
        self._graphs.append(executable)
        _ok(driver.cuGraphDestroy(graph[0]))
        _ok(driver.cuGraphUpload(executable, self._stream))

        def replay() -> None:
            _ok(driver.cuGraphLaunch(executable, self._stream))

        return replay

    @contextmanager
    def _capture(self) -> Iterator[list[Any]]:
        graph: list[Any] = []
        _ok(driver.cuStreamBeginCapture(self._stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
        yield graph
        graph.append(_ok(driver.cuStreamEndCapture(self._stream)))

    def timed(self, work: Callable[[], None]) -> float:
        """Return the seconds that the device takes for what `work` asks of it."""
        start, end = (_ok(driver.cuEventCreate(0)) for _ in range(2))
        _ok(driver.cuEventRecord(start, self._stream))
        work()
        _ok(driver.cuEventRecord(end, self._stream))
        _ok(driver.cuEventSynchronize(end))
        seconds = float(_ok(driver.cuEventElapsedTime(start, end))) / 1000.0
        for event in (start, end):
            _ok(driver.cuEventDestroy(event))
        return seconds

    def close(self) -> None:
        """Give everything back. On a device that is lost every call fails, and nothing is left to be given."""
        driver.cuCtxSetCurrent(self._context)
        driver.cuStreamSynchronize(self._stream)
        for graph in self._graphs:
            driver.cuGraphExecDestroy(graph)
        for mark in self._marks:
            mark.close()
        for address in self._allocations:
            driver.cuMemFree(address)
        for address in self._pinned:
            driver.cuMemFreeHost(address)
        for module in self._modules:
            driver.cuModuleUnload(module)
        driver.cuStreamDestroy(self._stream)
        driver.cuDevicePrimaryCtxRelease(self._device)


class Mark:
    """A point of a stream. `set` it behind everything asked so far, then `wait` until the device has come so far."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._event = _ok(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))

    def set(self) -> None:
        """Be where the stream ends now."""
        _ok(driver.cuEventRecord(self._event, self._stream))

    def wait(self) -> None:
        """Wait, without the GIL."""
        _ok(driver.cuEventSynchronize(self._event))

    def close(self) -> None:
        """Give it back."""
        driver.cuEventDestroy(self._event)


class Region:
    """Memory taken at once and given out piece by piece: the driver gives whole pieces of 2 MiB, a model's tensors are
    many and most are no multiple of that.
    """

    def __init__(self, gpu: Gpu, size_bytes: int) -> None:
        self._gpu, self._size_bytes = gpu, size_bytes
        self._address, self._used = gpu.allocate(size_bytes), 0

    def take(self, size_bytes: int) -> int:
        """Return the address of zeroed memory that nothing else was given. ValueError beyond the region."""
        begin = -(-self._used // PIECE_BYTES) * PIECE_BYTES
        if begin + size_bytes > self._size_bytes:
            raise ValueError(f"{size_bytes} bytes of a region that has {self._size_bytes - begin} left")
        self._used = begin + size_bytes
        return self._address + begin

    def place(self, array: NDArray[Any]) -> int:
        """Return the address of an array's bytes."""
        address = self.take(array.nbytes)
        self._gpu.upload(address, np.ascontiguousarray(array))
        self._gpu.synchronize()
        return address


def _config(grid: tuple[int, int], function: Function) -> Any:
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = *grid, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = function.threads, 1, 1
    config.sharedMemBytes = function.shared_bytes
    return config


def _overlap() -> Any:
    attribute, value = driver.CUlaunchAttribute(), driver.CUlaunchAttributeValue()
    value.programmaticStreamSerializationAllowed = 1
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value = value
    return attribute


def _start_driver() -> None:
    """Start the driver. GpuFault where there is none or it does not answer, or where it shows no GPU."""
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:
        without = "a driver for CUDA 13 or newer is needed, `--device cpu` works without one"
        raise GpuFault(f"no NVIDIA driver answers here: {str(error).rstrip('.')}; {without}") from error
    if status == driver.CUresult.CUDA_ERROR_NO_DEVICE:
        raise GpuFault(f"no GPU is visible ({_name(status)}): does CUDA_VISIBLE_DEVICES name one?")
    if status != driver.CUresult.CUDA_SUCCESS:
        raise GpuFault(f"the NVIDIA driver does not start here: it answered {_name(status)}")


def _device(ordinal: int) -> Any:
    """Return a device by its number. GpuFault where the driver, though it started, has none: a GPU that fell off its
    bus, or a container that was given the driver and no device.
    """
    status, device = driver.cuDeviceGet(ordinal)
    if status != driver.CUresult.CUDA_SUCCESS:
        look = "does `nvidia-smi -L` list one, and CUDA_VISIBLE_DEVICES name it?"
        raise GpuFault(f"the NVIDIA driver started and has no GPU {ordinal} ({_name(status)}): {look}")
    return device


def _ok(answer: tuple[Any, ...]) -> Any:
    """Return what a driver call gave, one value as itself."""
    status, *values = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        raise GpuFault(f"the CUDA driver answered {_name(status)}")
    return values[0] if len(values) == 1 else tuple(values)


def _name(status: Any) -> str:
    return str(getattr(status, "name", status))


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
