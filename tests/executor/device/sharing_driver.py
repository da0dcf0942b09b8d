"""A CUDA driver made of host memory that remembers the order of what it was asked of streams and events. No test."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as real

from tests.executor.device.fake_driver import OK, FakeDriver, R

OURS, BESIDE, THEIRS = 0x5000, 0x6000, 0x7000  # streams
ADDRESS = 0x7F00_0000_0000


class SharingDriver(FakeDriver):
    """`order` holds what was asked of streams and events, `work` the streams that other work went to; `places` says whose GPU's
    memory an address range is, `elsewhere` which streams are of another context, `captured` which are being captured; events
    pass while `passing`."""

    CUpointer_attribute = real.CUpointer_attribute
    CUmemorytype = real.CUmemorytype
    CUstreamCaptureStatus = real.CUstreamCaptureStatus

    def __init__(self) -> None:
        super().__init__(gpus=2)
        self.order: list[tuple[Any, ...]] = []
        self.places: dict[range, int] = {range(ADDRESS, ADDRESS + 400): 0, range(2 * ADDRESS, 2 * ADDRESS + 400): 1}
        self.passing = True
        self.work: list[tuple[str, int]] = []
        self.made = OURS
        self.elsewhere: set[int] = set()
        self.current: Any = None  # context
        self.captured: set[int] = set()

    def cuStreamCreate(self, flags: int) -> tuple[Any, Any]:
        super().cuStreamCreate(flags)
        return OK, self.made

    def fetching(self) -> None:
        """The next stream that is made is the one that fetches go to."""
        self.made = BESIDE

    def cuEventCreate(self, flags: int) -> tuple[Any, Any]:
        super().cuEventCreate(flags)
        return OK, f"event {self.live['event']}"

    def cuEventRecord(self, event: Any, stream: Any) -> tuple[Any]:
        self.order.append(("record", event, stream))
        return (OK,)

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> tuple[Any]:
        self.order.append(("wait", event, stream))
        return (OK,)

    def cuEventQuery(self, event: Any) -> tuple[Any]:
        return (OK if self.passing else R.CUDA_ERROR_NOT_READY,)

    def cuLaunchKernel(self, *call: Any) -> tuple[Any]:
        self.order.append(("launch",))
        self.work.append(("launch", call[8]))
        return (OK,)

    def cuGraphLaunch(self, instance: Any, stream: Any) -> tuple[Any]:
        self.work.append(("replay", stream))
        return super().cuGraphLaunch(instance, stream)

    def cuMemcpyHtoDAsync(self, destination: int, source: int, nbytes: int, stream: Any) -> tuple[Any]:
        self.work.append(("upload", stream))
        return super().cuMemcpyHtoDAsync(destination, source, nbytes, stream)

    def cuMemcpyDtoHAsync(self, destination: int, source: int, nbytes: int, stream: Any) -> tuple[Any]:
        self.work.append(("download", stream))
        return super().cuMemcpyDtoHAsync(destination, source, nbytes, stream)

    def cuMemcpyDtoDAsync(self, destination: int, source: int, nbytes: int, stream: Any) -> tuple[Any]:
        self.work.append(("copy", stream))
        return super().cuMemcpyDtoDAsync(destination, source, nbytes, stream)

    def cuMemsetD8Async(self, pointer: int, byte: int, nbytes: int, stream: Any) -> tuple[Any]:
        self.work.append(("fill", stream))
        return super().cuMemsetD8Async(pointer, byte, nbytes, stream)

    def cuStreamSynchronize(self, stream: Any) -> tuple[Any]:
        self.work.append(("wait", stream))
        return super().cuStreamSynchronize(stream)

    def cuCtxSetCurrent(self, context: Any) -> tuple[Any]:
        self.current = context
        return super().cuCtxSetCurrent(context)

    def cuStreamGetCtx(self, stream: Any) -> tuple[Any, Any]:
        return OK, "context of another" if stream in self.elsewhere else self.current

    def cuStreamIsCapturing(self, stream: Any) -> tuple[Any, Any]:
        status = self.CUstreamCaptureStatus
        captured = stream in self.captured
        return OK, status.CU_STREAM_CAPTURE_STATUS_ACTIVE if captured else status.CU_STREAM_CAPTURE_STATUS_NONE

    def cuMemFree(self, pointer: int) -> tuple[Any]:
        self.order.append(("free", pointer))
        return super().cuMemFree(pointer)

    def cuPointerGetAttribute(self, attribute: Any, pointer: int) -> tuple[Any, Any]:
        place = next((place for where, place in self.places.items() if pointer in where), None)
        own = any(base <= pointer < base + size for base, size in self._sizes.items())
        if place is None and not own:
            return R.CUDA_ERROR_INVALID_VALUE, None
        if attribute == self.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            return OK, max(place or 0, 0)
        return OK, self.CUmemorytype.CU_MEMORYTYPE_HOST if place == -1 else self.CUmemorytype.CU_MEMORYTYPE_DEVICE
