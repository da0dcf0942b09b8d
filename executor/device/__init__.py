"""GPUs, the emulator, several of either and a dry run with the same roles, and devices by name. The CUDA bindings are
imported only to open a GPU: this works on a machine with no driver."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from executor.base.arguments import instance
from executor.base.environment import settings
from executor.base.errors import DeviceError, DeviceFailed
from executor.device.protocol import Device, Event, LoadedKernel, MemoryUse
from ptxgen.errors import ArgumentError

__all__ = ["Device", "Event", "LoadedKernel", "MemoryUse", "open_device", "open_devices"]

_log = logging.getLogger(__name__)


def open_device(spec: str = "auto", *, sanitize: bool = False, stream: object | None = None) -> Device:
    """Open a device: "cuda" (the first GPU), "cuda:N", "emulator", or "auto": a GPU if there is one that works, else the
    emulator.

    `device.reason` says why it was chosen. sanitize: the emulator checks every access; "auto" then takes the emulator, and a
    GPU is an ArgumentError. stream: where a GPU's work goes, as stream_handle.py takes it, instead of a stream of its own;
    "auto" then takes a GPU, and the emulator is an ArgumentError.

    Raises DeviceError, which says what is there, if the device is not; DeviceFailed for a GPU that a fault has broken and that
    is still open elsewhere in this process: "auto" then takes no other device.
    """
    match = re.fullmatch(r"auto|emulator|cuda(?::(\d{1,4}))?", instance("device", spec, str))
    if not match:
        raise ArgumentError(f"unknown device {spec!r}; use auto, cuda, cuda:N or emulator")
    if spec.startswith("cuda") and sanitize:
        raise ArgumentError(f"only the emulator has a sanitiser; device {spec} has none")
    if stream is not None and (spec == "emulator" or sanitize):
        raise ArgumentError(f"only a GPU has streams, and {'sanitize' if sanitize else 'the device'} asks for the emulator")
    reason = "only the emulator has a sanitiser" if spec == "auto" else "asked for"
    if spec != "emulator" and not sanitize:
        from executor.device.cuda import CudaDevice

        try:
            return _opened(CudaDevice(int(match[1] or 0), stream), "the first GPU" if spec == "auto" else "asked for")
        except DeviceError as error:
            if spec != "auto" or stream is not None or isinstance(error, DeviceFailed):
                raise
            reason = str(error)
    from executor.device.emulated import EmulatedDevice

    return _opened(EmulatedDevice(sanitize=sanitize), reason)


def _gpu(spec: str) -> str:
    return "cuda:0" if spec == "cuda" else spec


def open_devices(specs: Sequence[str], *, sanitize: bool = False) -> Device:
    """Open several devices as one (several.py): "cuda:0", "cuda:1" and so on, or "emulator" as often as is wanted. One is that
    device itself. By what they gather the environment says (gather_choice.py). Raises ArgumentError for none, too many, one GPU
    twice, devices that are not alike and "auto"; DeviceError if one is not there, or GPUs cannot reach each other's memory and
    NCCL is not installed, or cannot be set up. Nothing stays open then."""
    from executor.device.several import MOST_RANKS, SeveralDevices

    if isinstance(specs, str) or not 1 <= len(specs) <= MOST_RANKS:
        raise ArgumentError(f"devices is {specs!r}; allowed: a list of 1 to {MOST_RANKS}, such as ['cuda:0', 'cuda:1']")
    for number, spec in enumerate(specs):
        if spec == "auto":
            raise ArgumentError("devices names auto; name each of several: cuda:0, cuda:1, or emulator more than once")
        if spec != "emulator" and _gpu(spec) in map(_gpu, specs[:number]):
            raise ArgumentError(f"devices names {_gpu(spec)} twice; each rank needs a GPU of its own")
    if len(specs) == 1:
        return open_device(specs[0], sanitize=sanitize)
    opened: list[Device] = []
    try:
        for spec in specs:
            opened.append(open_device(spec, sanitize=sanitize))
        return _opened(SeveralDevices(opened, settings().gathers), "asked for")
    except BaseException:
        for device in opened:
            device.close()
        raise


def _opened(device: Device, reason: str) -> Device:
    device.reason = reason
    _log.info("device %s: %s", device.name, reason)
    return device
