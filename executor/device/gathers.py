"""By what several devices gather what each has computed: kernels of ours, which store into each other's memory, or NCCL. It is
chosen here, once for all of them; how NCCL does it is nccl.py's business."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from itertools import permutations
from typing import TYPE_CHECKING, Final, NamedTuple

from executor.base.arguments import whole
from executor.base.environment import GATHERINGS, GATHERS, NCCL, PEER
from executor.base.errors import DeviceError, NoPeerAccess
from ptxgen.errors import ArgumentError
from ptxgen.extras import install

if TYPE_CHECKING:
    from executor.device.protocol import Device

NCCL_FROM: Final[int | None] = None
"""Gathered bytes from which NCCL is taken where GPUs reach each other and nothing is asked for; None: never. On two H200s
kernels of ours were faster for slices of 4 KiB (2.9 us for 6.8) to 64 MiB (246 for 290); benchmarks/all_gather.py times
both."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Gathers:
    """nccl_from: NCCL gathers what has so many bytes in all, or more; None: nothing; 0: everything, and no kernel of one device
    uses the memory of another. reason: why. ArgumentError unless it is a whole number."""

    nccl_from: int | None = None
    reason: str = "all reach each other"

    def __post_init__(self) -> None:
        if self.nccl_from is not None:
            whole("the bytes from which NCCL gathers", self.nccl_from, 0)

    @property
    def nccl(self) -> bool:
        """Whether NCCL gathers anything."""
        return self.nccl_from is not None

    @property
    def peers(self) -> bool:
        """Whether kernels of ours gather anything: then all reach each other."""
        return self.nccl_from != 0

    def by_nccl(self, nbytes: int) -> bool:
        """Whether NCCL gathers so many bytes, those of all ranks together."""
        return self.nccl_from is not None and nbytes >= self.nccl_from

    def __str__(self) -> str:
        if self.nccl_from is None:
            return f"kernels of ours ({self.reason})"
        below = f" from {self.nccl_from} bytes on, kernels of ours below" if self.nccl_from else ""
        return f"NCCL{below} ({self.reason})"


PEERS: Final = Gathers()


class Gather(NamedTuple):
    """One gather of NCCL's: where each rank has its slice of `nbytes`, and where the whole goes on each."""

    slices: tuple[int, ...]
    wholes: tuple[int, ...]
    nbytes: int


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
        raise DeviceError(f"NCCL gathers on GPUs, and {devices[0].name} is none; leave {GATHERS.name} unset, or say {PEER}")
    if asked == NCCL:
        return _chosen(Gathers(0, "asked for"))
    apart = _apart(devices)
    if apart:
        names = "; ".join(map(str, apart.values()))
        if asked is not None:
            raise DeviceError(f"{names}. Kernels of ours are asked for, and need it; with {GATHERS.name}={NCCL} NCCL gathers")
        if not installed():
            raise DeviceError(f"{names}. NCCL gathers without it: {install('nccl')}")
        return _chosen(Gathers(0, f"no peer access between {' and '.join(apart)}"))
    if limited is not None:
        return _chosen(limited)
    if asked is None and NCCL_FROM is not None and devices[0].kind == "cuda" and installed():
        return _chosen(Gathers(NCCL_FROM, "measured"))
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
