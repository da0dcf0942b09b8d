"""NCCL's all-gather on several GPUs of this process: a communicator each, calls in groups on the GPUs' own streams, at once or
into graphs; and the watch over them, since a gather of NCCL's waits for the others as long as it takes.

By `nccl.core` of nccl4py 0.6 (NCCL user guide, "NCCL4Py") and, for the gather itself, the function that its `allgather` calls,
since that one asks others of which GPU a piece of memory is, and was told the wrong one. Both are imported when communicators
are made."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from executor.base.errors import DeviceError, MissingExtra
from executor.device.cuda_context import checked, driver_message
from executor.device.cuda_gpu import driver
from executor.device.gathers import NcclGather
from ptxgen.extras import install

if TYPE_CHECKING:
    from executor.device.cuda import CudaDevice

BETWEEN_LOOKS: Final = 0.05
"""Seconds."""
LONGEST_START: Final = 30.0
"""Seconds that the host may take to start a gather, or a graph that has some, on all GPUs, and that the first gather may take
in all. To start takes microseconds; but the driver may block when one GPU has been given its part, and this then waits for the
others (NCCL user guide, "Using NCCL with CUDA Graphs", of several GPUs in a process)."""
LONGEST_END: Final = 5.0
"""Seconds that closing waits for communicators that are aborted."""
UINT8: Final = 1
"""ncclUint8."""
FINE: Final = (0, 7)
"""ncclSuccess and ncclInProgress."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


def core() -> tuple[Any, Any]:
    """nccl.core, and nccl.bindings.nccl. MissingExtra if nccl4py is not installed, or cannot be imported."""
    try:
        import nccl.bindings.nccl
        import nccl.core
    except ImportError as error:
        raise MissingExtra(f"to gather by NCCL takes nccl4py ({error}): {install('nccl')}") from error
    return nccl.core, nccl.bindings.nccl


class NcclGroup:
    """The communicators of these GPUs, rank r that of device r.

    `cause`: what was the end of them; empty while they work. A thread looks every BETWEEN_LOOKS whether a communicator has an
    asynchronous error, a GPU a fault, or a start takes more than LONGEST_START. Then it aborts all of them, which ends the
    gathers that run: a thread that waits for a GPU returns, and finds the cause by `trouble`. Everything else belongs to the
    thread of the devices. Graphs that hold gathers must be given back before `close`: NCCL waits for them.

    Raises DeviceError, which names the GPUs, if NCCL cannot set them up; MissingExtra as `core`."""

    def __init__(self, devices: Sequence[CudaDevice]) -> None:
        self.cause = ""
        self._devices = tuple(devices)
        (self._core, self._bindings), self._cuda = core(), driver()
        self._lock = threading.RLock()  # held by who asks communicators, or captures; never while a gather starts
        self._started: float | None = None
        self._closing = threading.Event()
        self._aborting: list[threading.Thread] = []
        names = ", ".join(device.name for device in devices)
        devices[0].enter_anew("setting NCCL up")
        ordinals = [device.ordinal for device in devices]
        self._communicators: list[Any] = _asked(f"setting up {names}", lambda: self._core.Communicator.init_all(ordinals))
        devices[0].enter_anew("setting NCCL up")
        self._streams = [int(device.sharing.stream) for device in devices]
        self._contexts = [checked(self._cuda, self._cuda.cuStreamGetCtx(one), "asking for a context") for one in self._streams]
        self._watch = threading.Thread(
            target=_watch, args=(weakref.ref(self), self._closing), name=f"NCCL watch of {names}", daemon=True
        )
        self._watch.start()
        try:
            self._connect()
        except BaseException:
            self.abort("it was not set up")
            self.close()
            raise
        _log.info("NCCL %s gathers on %s", self._core.get_version().libnccl, names)

    def all_gather(self, gather: NcclGather) -> None:
        """Start it on all, each on its stream. DeviceError names the rank, if NCCL says which, and what NCCL says."""
        self._require_life()
        self._call(gather)

    def captured(self, gather: NcclGather) -> tuple[Any, ...]:
        """It as a graph of each GPU, of which other graphs take copies; `drop` gives them back. Errors as `all_gather`."""
        self._require_life()
        graphs: list[Any] = []
        with self._lock:  # to ask a stream how far it is would end its capture
            capturing = []
            try:
                for device, stream in zip(self._devices, self._streams, strict=True):
                    device.enter_anew("capturing a gather")
                    mode = self._cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED  # NCCL may allocate meanwhile
                    checked(self._cuda, self._cuda.cuStreamBeginCapture(stream, mode), f"capturing a gather on {device.name}")
                    capturing.append((device, stream))
                self._call(gather)
            except BaseException:
                for device, stream in capturing:
                    device.enter_anew("ending a capture")
                    _, graph = self._cuda.cuStreamEndCapture(stream)
                    graphs += [] if graph is None else [graph]
                self.drop(graphs)
                raise
            for device, stream in capturing:
                device.enter_anew("ending a capture")
                doing = f"ending the capture of a gather on {device.name}"
                graphs.append(checked(self._cuda, self._cuda.cuStreamEndCapture(stream), doing))
        return tuple(graphs)

    def drop(self, graphs: Sequence[Any]) -> None:
        """Give back what `captured` gave."""
        for graph in graphs:
            self._cuda.cuGraphDestroy(graph)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """In the block GPUs are given work that waits for the others: an end comes to all if it takes too long."""
        self._started = time.monotonic()
        try:
            yield
        finally:
            self._started = None

    def trouble(self) -> str:
        """Why no gather can be trusted that has ended or not; empty if they can."""
        with self._lock:
            return self.cause or self._asynchronous_error()

    def abort(self, cause: str) -> None:
        """The end of all of them, for this cause, unless there was one before: gathers that run end without the others. Does
        not wait: NCCL may, for graphs that hold gathers, and a thread each lets it reach all communicators."""
        with self._lock:
            if self.cause or self._closing.is_set():
                return
            self.cause = cause
            self._aborting = [
                threading.Thread(target=_abort, args=(one,), name="NCCL abort", daemon=True) for one in self._communicators
            ]
        _log.error("NCCL is aborted on %s: %s", ", ".join(device.name for device in self._devices), cause)
        for thread in self._aborting:
            thread.start()

    def close(self) -> None:
        """Give the communicators back: no gather runs any more, and no graph holds one. A second time does nothing."""
        if self._closing.is_set():
            return
        with self._lock:
            self._closing.set()
        self._watch.join()
        if self.cause:
            for thread in self._aborting:
                thread.join(LONGEST_END)
            if any(thread.is_alive() for thread in self._aborting):
                _log.warning("NCCL has not ended within %s s; what it holds stays until the process ends", LONGEST_END)
            return
        try:
            self._core.group_start()
            for communicator in self._communicators:
                communicator.finalize()
            self._core.group_end()
            for communicator in self._communicators:
                communicator.destroy()
        except Exception as error:  # nothing more can be given back
            _log.warning("closing NCCL: %s", error)

    def _connect(self) -> None:
        """One gather before all others, since NCCL connects the GPUs by it, and NCCL4Py imports what it needs: neither belongs
        into a capture. It must have ended within LONGEST_START."""
        ranks, nbytes = len(self._devices), 256
        memory = [device.alloc(nbytes * (1 + ranks), "to set NCCL up") for device in self._devices]
        with self.starting():
            self.all_gather(NcclGather(tuple(memory), tuple(pointer + nbytes for pointer in memory), nbytes))
            for device in self._devices:
                device.synchronize()
        if trouble := self.trouble():
            raise DeviceError(f"NCCL failed while setting up: {trouble}")
        for device, pointer in zip(self._devices, memory, strict=True):
            device.free(pointer)

    def _require_life(self) -> None:
        if self.cause:
            raise DeviceError(f"NCCL was aborted; {self.cause}")

    def _call(self, gather: NcclGather) -> None:
        """In a group: alone, the first would wait for the others."""
        try:
            self._call_in_group(gather)
        finally:
            self._devices[0].enter_anew("gathering")  # NCCL goes from GPU to GPU

    def _call_in_group(self, gather: NcclGather) -> None:
        slices, wholes, nbytes = gather
        _asked("starting a group", self._core.group_start)
        try:
            for rank, communicator in enumerate(self._communicators):
                call = partial(
                    self._bindings.all_gather,
                    slices[rank],
                    wholes[rank],
                    nbytes,
                    UINT8,
                    self._bindings.Comm(communicator.ptr),
                    self._streams[rank],
                )
                _asked(f"gathering on {self._named(rank)}", call)
        except BaseException:
            with suppress(Exception):  # of a group in which a call failed NCCL launches nothing
                self._core.group_end()
            raise
        try:
            self._core.group_end()
        except Exception as error:
            raise DeviceError(f"NCCL failed in a group of gathers: {error}; {self.trouble()}") from error

    def _named(self, rank: int) -> str:
        return f"rank {rank} ({self._devices[rank].name})"

    def _asynchronous_error(self) -> str:
        """What communicators have noted since they were asked for something: of each rank that has an error."""
        told = []
        for rank, communicator in enumerate(self._communicators):
            try:
                result = int(communicator.get_async_error())
                said = "" if result in FINE else f"{self._core.get_error_string(result)} ({communicator.get_last_error()})"
            except Exception as error:
                said = str(error)
            if said:
                told.append(f"{self._named(rank)}: NCCL: {said}")
        return "; ".join(told)

    def look(self) -> bool:
        """What the watch does: whether all is well; else it is the end."""
        started = self._started
        if started is not None and time.monotonic() - started > LONGEST_START:
            self.abort(f"a gather was not started on all GPUs within {LONGEST_START} s")
        elif cause := self._found():
            self.abort(cause)
        return not self.cause

    def _found(self) -> str:
        with self._lock:
            if self._closing.is_set() or self.cause:
                return ""
            return self._asynchronous_error() or self._fault()

    def _fault(self) -> str:
        """Of GPUs: a gather waits for a GPU that has one for ever."""
        fine = self._cuda.CUresult.CUDA_SUCCESS, self._cuda.CUresult.CUDA_ERROR_NOT_READY
        for rank, (context, stream) in enumerate(zip(self._contexts, self._streams, strict=True)):
            self._cuda.cuCtxSetCurrent(context)
            (status,) = self._cuda.cuStreamQuery(stream)
            if status not in fine:
                return f"{self._named(rank)}: {driver_message(self._cuda, status)}"
        return ""


def _watch(group: weakref.ref[NcclGroup], closing: threading.Event) -> None:
    """The thread that looks. It keeps no group and no GPU alive."""
    while not closing.wait(BETWEEN_LOOKS):
        watched = group()
        if watched is None or not watched.look():
            return
        del watched


def _asked(doing: str, call: Callable[[], T]) -> T:
    """What a call of NCCL gives. NCCL4Py has an error for NCCL's codes, one for arguments and those of the libraries that it
    loads; all of them are a DeviceError here."""
    try:
        return call()
    except Exception as error:
        raise DeviceError(f"NCCL failed while {doing}: {error}") from error


def _abort(communicator: Any) -> None:
    try:
        communicator.abort()
    except Exception as error:  # of what is lost already
        _log.info("aborting a communicator: %s", error)
