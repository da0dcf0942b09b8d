"""Calls to several devices, rank by rank, and their common end: once one has failed, or not all have started a launch, all
refuse. What the devices are asked for is in several.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Literal, NoReturn, TypeVar

from executor.base.errors import DeviceError, DeviceFailed
from executor.device.owner import OwnerThread
from executor.device.protocol import Device
from ptxgen.errors import ArgumentError

if TYPE_CHECKING:
    from executor.device.nccl import NcclGroup

T = TypeVar("T")


class DeviceGroup:
    """Devices of one kind and one GPU model, rank r the r-th, which belong to one thread from now on. ArgumentError if they are
    not alike. From a failure on every call is a DeviceFailed, which tells of the first cause on every rank that has one."""

    def __init__(self, devices: Sequence[Device]) -> None:
        first = devices[0]
        self.devices = tuple(devices)
        self.ranks = len(devices)
        self.name = f"{self.ranks} devices ({', '.join(device.name for device in devices)})"
        self.closed = False
        self.cause = ""
        """Of the fault that has broken them."""
        self.owner = OwnerThread(self.name)
        self._nccl: NcclGroup | None = None  # if NCCL gathers: it is aborted with the group, and the group ends with it
        for device in devices:
            if (device.kind, device.build) != (first.kind, first.build):
                raise ArgumentError(
                    f"{device.name} is another kind of device than {first.name}: {device.build}, {first.build}; "
                    "the devices of one model must be alike"
                )
            device.owner = self.owner

    @property
    def kind(self) -> Literal["cuda", "emulator"]:
        """Which of the two all of them are."""
        return self.devices[0].kind

    def each(self, doing: str, call: Callable[[int, Device], T], *, immediate: bool = False) -> list[T]:
        """What the call gives for each rank."""
        self._enter(doing, immediate=immediate)
        try:
            given = [call(rank, device) for rank, device in enumerate(self.devices)]
        except DeviceFailed as error:
            self._fail(doing, error)
        self._trust_gathers(doing)
        return given

    def first(self, doing: str, call: Callable[[Device], T]) -> T:
        """What the call gives for rank 0."""
        self._enter(doing, immediate=True)
        try:
            given = call(self.devices[0])
        except DeviceFailed as error:
            self._fail(doing, error)
        self._trust_gathers(doing)
        return given

    def _enter(self, doing: str, *, immediate: bool = False) -> None:
        if self.closed:
            raise DeviceError(f"{self.name} are closed; {doing} needs open devices")
        self.owner.check(doing, immediate=immediate)
        if self.cause:
            raise DeviceFailed(f"{self.name} have failed and refuse {doing}; {self.cause}", self.cause)

    def _start(self, doing: str, calls: Sequence[Callable[[], None]]) -> None:
        """Have all ranks start the same. What not all have started leaves the others waiting for them, so it is the end."""
        self._enter("launching", immediate=True)
        if self._nccl is not None and self._nccl.cause:
            self._fail(doing, DeviceError(self._nccl.cause))
        started = 0
        try:
            with nullcontext() if self._nccl is None else self._nccl.starting():
                for call in calls:
                    call()
                    started += 1
        except Exception as error:
            self._fail(doing, error, started if len(calls) > 1 else None)
        except BaseException:
            if self.kind == "cuda":
                self.cause = f"an interrupt came while {doing}, which not all may have started"
            if self._nccl is not None:
                self._nccl.abort(self.cause)
            raise

    def _fail(self, doing: str, error: Exception, rank: int | None = None) -> NoReturn:
        """From now on nothing works; logs it once, with the reports of the ranks that failed."""
        if self._nccl is not None:  # else who waits for a gather would wait for ever
            self._nccl.abort(str(error))
        failed = {} if rank is None else {rank: str(error)}
        for number, device in enumerate(self.devices):
            try:
                device.synchronize()
            except DeviceError as fault:
                failed.setdefault(number, fault.cause if isinstance(fault, DeviceFailed) else str(fault))
        if failed:  # who has not failed tells of who waited for whom
            failed |= {number: "has ended all that it was given" for number in range(self.ranks) if number not in failed}
        told = [f"rank {number} ({self.devices[number].name}): {text}" for number, text in failed.items()]
        self.cause = "; ".join(told) or str(error)
        raise DeviceFailed(
            f"{doing} failed on {self.name}: {self.cause}\n"
            "all that was on them is lost, weights, keys and values; close them and open them anew",
            self.cause,
        ) from error

    def _trust_gathers(self, doing: str) -> None:
        """The end, if a gather of NCCL's may have ended without the others."""
        if self._nccl is not None and (trouble := self._nccl.trouble()):
            self._fail(doing, DeviceError(trouble))

    def _give_back(self, call: Callable[[], None]) -> None:
        """Of what has failed, one that is broken gives nothing back."""
        with suppress(*(DeviceError,) * bool(self.cause)):
            call()
