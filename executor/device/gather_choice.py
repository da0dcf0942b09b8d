"""The choice of how devices gather, once for all of them: what is asked for, else what they reach and what is installed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from itertools import permutations
from typing import Final

from executor.base.environment import GATHERINGS, NCCL, PEER, variable
from executor.base.errors import DeviceError, NoPeerAccess
from executor.device.gathers import PEERS, Gathers
from executor.device.protocol import Device
from ptxgen.errors import ArgumentError
from ptxgen.extras import install

VARIABLE: Final = variable("gathers").name

_log = logging.getLogger(__name__)


def choose(devices: Sequence[Device], asked: str | int | None = None) -> Gathers:
    """By what these devices gather. asked: `peer`, `nccl`, bytes from which NCCL does, or None: kernels of ours where all reach
    each other, for which the way is opened now, else NCCL.

    ArgumentError for anything else that is asked. DeviceError for NCCL on devices that are no GPUs; and for GPUs that do not
    reach each other, which names them, where kernels of ours are asked for or NCCL is not installed."""
    if isinstance(asked, str) and asked not in GATHERINGS:
        raise ArgumentError(f"gathers is {asked!r}; allowed: {' or '.join(GATHERINGS)}, or bytes from which NCCL gathers")
    if type(asked) is int and asked == 0:
        asked = NCCL  # all have as many bytes
    limited = None if asked is None or isinstance(asked, str) else Gathers(asked, "asked for")
    if asked not in (None, PEER) and devices[0].kind != "cuda":
        raise DeviceError(f"NCCL gathers on GPUs, and {devices[0].name} is none; leave {VARIABLE} unset, or say {PEER}")
    if asked == NCCL:
        return _chosen(Gathers(0, "asked for"))
    apart = _apart(devices)
    if apart:
        names = "; ".join(map(str, apart.values()))
        if asked is not None:
            raise DeviceError(f"{names}. Kernels of ours are asked for, and need it; with {VARIABLE}={NCCL} NCCL gathers")
        if not installed():
            raise DeviceError(f"{names}. NCCL gathers without it: {install('nccl')}")
        return _chosen(Gathers(0, f"no peer access between {' and '.join(apart)}"))
    if limited is not None:
        return _chosen(limited)
    return _chosen(PEERS if asked is None else Gathers(None, "asked for"))


def installed() -> bool:
    """Whether nccl4py is; it is not imported."""
    try:
        distribution("nccl4py")
    except PackageNotFoundError:
        return False
    return True


def _apart(devices: Sequence[Device]) -> dict[str, NoPeerAccess]:
    """Of the pairs that do not reach each other, by their names, what is said of it. The others do from now on."""
    apart: dict[str, NoPeerAccess] = {}
    for device, other in permutations(devices, 2):
        try:
            device.reach(other)
        except NoPeerAccess as error:
            if f"{other.name}, {device.name}" not in apart:
                apart[f"{device.name}, {other.name}"] = error
    return apart


def _chosen(gathers: Gathers) -> Gathers:
    _log.info("gathers: %s", gathers)
    return gathers
