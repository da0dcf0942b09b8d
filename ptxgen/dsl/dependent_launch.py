"""What a kernel touches before it waits for the launch before it (programmatic dependent launch), and from where on it lets the
next one start: as its signature promises it. What its text does is found by conformance/before_wait.py."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ptxgen.dsl.arguments import Array, Signature
from ptxgen.dsl.kernel_type import KernelType


class NextStarts(IntEnum):
    """When a launch lets its dependent start, the earliest first."""

    BEFORE_THE_WAIT = 0
    """On some path before it has waited itself, so launches before it may still run, too."""
    AFTER_THE_WAIT = 1
    AT_ITS_END = 2


@dataclass(frozen=True)
class BeforeWait:
    """Names of pointer arguments by what a launch may do with them, on some path, before `griddepcontrol.wait`. reads: by
    ordinary loads and by copies into shared memory; copies: those of them that are copied; prefetches: named to a cache, which
    reads nothing that the kernel sees. read_only: loaded through the read-only path, before the wait or after it: that path
    promises that nothing writes there while the kernel runs. anywhere: it may touch memory of an address that comes from no
    argument. waits: no thread ends without having waited."""

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    copies: frozenset[str] = frozenset()
    prefetches: frozenset[str] = frozenset()
    read_only: frozenset[str] = frozenset()
    anywhere: bool = False
    waits: bool = True
    next_starts: NextStarts = NextStarts.AT_ITS_END


def promised(kernel: KernelType, signature: Signature, *, dependent: bool, of_itself: bool) -> BeforeWait:
    """What the kernel's signature allows before the wait. dependent: of its dependent form (`build`), which lets the next
    launch start at once unless it says otherwise; of_itself: it has only one form, which is dependent (LaunchConfig.dependent).
    Any other form starts when the launches before it have ended."""
    if not dependent and not of_itself:
        return BeforeWait()
    if not of_itself and not kernel.waits_inside:
        return _WAITS_FIRST
    reads = (name for name, argument in signature.items() if isinstance(argument, Array) and argument.readable_before_wait)
    return BeforeWait(frozenset(reads), next_starts=NextStarts.BEFORE_THE_WAIT)


_WAITS_FIRST = BeforeWait(next_starts=NextStarts.BEFORE_THE_WAIT)
