"""The rule for launches one after the other: a dependent launch works until the launch before it has ended, so its neighbours
decide which form of its kernel is fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from executor.layers.calls import KernelCall
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels import compose


def in_order(calls: Sequence[KernelCall], *, dependent: bool) -> tuple[KernelCall, ...]:
    """The calls with the kernels that are fastest one after the other (compose.between), if they are dependent launches; else
    as they were."""
    if not dependent:
        return tuple(calls)
    kernels = [None, *(call.kernel for call in calls), None]
    neighbours = zip(kernels, kernels[2:], strict=False)
    chosen = [_between(call.kernel, *two) for call, two in zip(calls, neighbours, strict=True)]
    behind = [*(call.arguments for call in calls[1:]), {}]
    return tuple(
        call._replace(kernel=kernel, arguments=call.arguments | _borrowed(kernel, after))
        for call, kernel, after in zip(calls, chosen, behind, strict=True)
    )


def _borrowed(kernel: KernelType, after: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are those of the launch after it."""
    return {own: after[name] for own, name in compose.borrowed(kernel).items()}


@lru_cache(maxsize=256)
def _between(kernel: KernelType, before: KernelType | None, behind: KernelType | None) -> KernelType:
    """Found once, since layers have the same kernels."""
    return compose.between(kernel, before, behind)
