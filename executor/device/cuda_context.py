"""The primary context of a GPU: all devices open on that GPU share it, and one fault breaks it for all of them."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterable
from typing import Any, Final

from executor.base.errors import DeviceError, DeviceFailed

STICKY: Final = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        "ECC_UNCORRECTABLE", "NVLINK_UNCORRECTABLE", "CONTAINED", "ILLEGAL_ADDRESS", "LAUNCH_TIMEOUT", "CONTEXT_IS_DESTROYED",
        "ASSERT", "HARDWARE_STACK_ERROR", "ILLEGAL_INSTRUCTION", "MISALIGNED_ADDRESS", "INVALID_ADDRESS_SPACE", "INVALID_PC",
        "LAUNCH_FAILED", "TENSOR_MEMORY_LEAK", "EXTERNAL_DEVICE",
    )
)  # fmt: skip
"""The answers after which a context answers nothing else (CUDA driver API, CUresult)."""
LAUNCH_HISTORY: Final = 1024
"""Launches that a device keeps for the message of a fault: more than one token of a model has."""
LISTED_LAUNCHES: Final = 8
_COOPERATIVE: Final = (
    "\n  among them are blocks that wait for each other, and give up with a trap when some do not come: so it may be that not "
    "all of them were on the GPU at once, where something else takes part of it"
)
_PEERS: Final = (
    "\n  among them are launches that wait for other devices, and give up with a trap when one does not come: so it may be "
    "that another device has failed, or was given its launch too late"
)

_lock = threading.Lock()
_contexts: dict[tuple[int, int], PrimaryContext] = {}
_causes: dict[tuple[int, int], str] = {}
"""The last fault of a context that was reset."""
_log = logging.getLogger(__name__)


class PrimaryContext:
    """Made by `join`. `cause`: the fault that broke the context, in words; empty while it works.

    The last device to leave a broken context resets it (cuDevicePrimaryCtxReset), which destroys what anybody in the process
    has in it and the fault made unusable before. Whether the GPU can then be opened again is up to the driver. CUDA says of a
    fault that the process must end, and driver 580 keeps to that: after an illegal address its next cuDevicePrimaryCtxRetain
    gives the same error. `join` then raises it, with the first cause.
    """

    def __init__(self, cuda: Any, ordinal: int, gpu: Any) -> None:
        self.cause = ""
        self._cuda = cuda
        self._key = (id(cuda), ordinal)
        self._gpu = gpu
        self._users: weakref.WeakSet[object] = weakref.WeakSet()

    @classmethod
    def join(cls, cuda: Any, ordinal: int, gpu: Any, user: object, name: str) -> tuple[PrimaryContext, Any]:
        """The context of a GPU and its handle, retained for `user` until it leaves. `cuda` is cuda.bindings.driver.

        Raises DeviceFailed if the context is broken and others have not left it yet: they would lose it under their feet."""
        with _lock:
            context = _contexts.get((id(cuda), ordinal))
            if context is not None and context.cause:
                if len(context._users):
                    raise DeviceFailed(
                        f"{name} has failed, and {len(context._users)} that opened it before must be closed before it can be "
                        f"opened again; it failed with: {context.cause}",
                        context.cause,
                    )
                context._reset()
                context = None
            status, handle = cuda.cuDevicePrimaryCtxRetain(gpu)
            if status:
                raise _not_opened(cuda, ordinal, status, name)
            if context is None:
                context = _contexts[id(cuda), ordinal] = cls(cuda, ordinal, gpu)
            context._users.add(user)
            return context, handle

    def keep(self, user: object) -> None:
        """Count a user that the garbage collector has found and that has not left yet. (No lock: its holder may be what
        the collector interrupted.)"""
        self._users.add(user)

    def leave(self, user: object) -> list[tuple[Any, ...]]:
        """Give the context back; returns the driver's answers. The last one to leave a broken context destroys it."""
        with _lock:
            self._users.discard(user)
            answers = [self._cuda.cuDevicePrimaryCtxRelease(self._gpu)]
            if not len(self._users):
                if self.cause:
                    answers += self._reset()
                _contexts.pop(self._key, None)
            return answers

    def failure(
        self, status: Any, doing: str, launched: Iterable[object], name: str, *, cooperative: bool = False, peers: bool = False
    ) -> DeviceError:
        """What to raise when the driver answers `status`, no success. A sticky one breaks the context; then, and ever after,
        this is a DeviceFailed with the first cause. `launched`: what may have been running; `cooperative`: with blocks that
        wait for each other; `peers`: with launches that wait for other devices."""
        message = driver_message(self._cuda, status)
        with _lock:
            if self.cause:
                return DeviceFailed(f"{name} has failed and refuses {doing}; it failed with: {self.cause}", self.cause)
            if getattr(status, "name", "") not in STICKY:
                return DeviceError(f"{doing}: {message}")
            self.cause = f"{doing}: {message}{suspects(launched)}{_COOPERATIVE if cooperative else ''}{_PEERS if peers else ''}"
        _log.error("%s failed: %s", name, self.cause)
        return DeviceFailed(f"{self.cause}\n{name} is lost until all who opened it have closed it", self.cause)

    def _reset(self) -> list[tuple[Any, ...]]:
        _contexts.pop(self._key, None)
        _causes[self._key] = self.cause
        return [self._cuda.cuDevicePrimaryCtxReset(self._gpu)]


def _not_opened(cuda: Any, ordinal: int, status: Any, name: str) -> DeviceError:
    cause = _causes.get((id(cuda), ordinal))
    message = f"making a context on {name}: {driver_message(cuda, status)}"
    if cause is None or getattr(status, "name", "") not in STICKY:
        return DeviceError(message)
    return DeviceFailed(f"{message}\nCUDA keeps a fault until the process ends: restart it; {name} failed with: {cause}", cause)


def suspects(launched: Iterable[object]) -> str:
    """The launches of which one must have been at fault, oldest first, in words."""
    names = [str(work) for work in launched]
    if not names:
        return ""
    if len(names) == 1:
        return f"\n  at fault is the one launch since the last wait: {names[0]}"
    count = (
        f"the {len(names)} launches since the last wait" if len(names) < LAUNCH_HISTORY else f"the last {len(names)} launches"
    )
    more = [f"and {len(names) - LISTED_LAUNCHES} more"] if len(names) > LISTED_LAUNCHES else []
    head = f"\n  at fault is one of {count} (with GPU_DEBUG=1 each is waited for, which names the very one):"
    return "\n    ".join([head, *names[:LISTED_LAUNCHES], *more])


def checked(cuda: Any, result: tuple[Any, ...], doing: str) -> Any:
    """The values of a driver call that needs no context. Raises DeviceError with the driver's words and what was being done."""
    status, *values = result
    if status:
        raise DeviceError(f"{doing}: {driver_message(cuda, status)}")
    return values[0] if len(values) == 1 else tuple(values)


def driver_message(cuda: Any, status: Any) -> str:
    """Name and description of a driver's answer."""
    _, name = cuda.cuGetErrorName(status)
    _, text = cuda.cuGetErrorString(status)
    return f"{name.decode() if name else int(status)}: {text.decode() if text else 'unknown error'}"
