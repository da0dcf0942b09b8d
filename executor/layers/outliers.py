"""Massive activations, which 8-bit activations cannot hold beside the others: the predicate on host arrays, and the watch that
finds them on the device. Who then takes another kernel is decided in executor/layers/indexed.py."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from executor.base.arguments import array
from executor.launch.launch import NOWHERE, Launcher, LaunchRecord, LayerOperation, Plan
from executor.layers.graph.gathers import COMPUTED_IN_PARTS, GATHERED
from executor.layers.indexed import OUTPUTS, sites
from executor.memory.buffers import GpuBuffer
from executor.memory.kv_cache import KvCache
from ptxgen.errors import ArgumentError
from ptxgen.kernels.quantize.outlier_flag import OutlierFlag, has_outlier
from ptxgen.types import U32

OUTLIER_RATIO: Final = 8.0
"""How many times the root mean square an activation must exceed to count as massive."""


def is_massive_activation_outlier(values: ArrayLike, ratio: float = OUTLIER_RATIO) -> bool:
    """Whether the largest |value| is more than `ratio` times the root mean square of all, or one of them is not finite.

    values: numbers of any shape; they and the ratio are rounded to f32, which makes this the very answer of the kernel
    `outlier_flag` (float64 inside; see ptxgen.kernels.quantize.outlier_flag.has_outlier). Exactly the ratio is no outlier;
    nothing and zeros have none. Raises ArgumentError for a ratio that is negative or NaN, and for values that are not real
    numbers.
    """
    numbers = array("activations", values)
    if numbers.dtype.kind not in "biuf":
        raise ArgumentError(f"activations must be real numbers, got an array of {numbers.dtype}")
    with np.errstate(over="ignore"):  # beyond f32 is infinite, which is flagged
        x, limit = numbers.astype(np.float32).reshape(-1), float(np.float32(ratio))
    if not limit >= 0.0:
        raise ArgumentError(f"ratio must be 0 or more, got {ratio}")
    return has_outlier(x, limit)


class OutlierWatch:
    """An observer of a launcher: after each launch of a watched operation, a kernel looks for an outlier in its output. What it
    finds stays on the device until `flagged` is asked: a watched step waits for nothing. An operation that had an outlier once
    stays flagged."""

    def __init__(self, launcher: Launcher, watched: Collection[LayerOperation]) -> None:
        # A launcher of its own, without observers.
        self._launcher = Launcher(launcher.device, launcher.modules)
        self._places = {site: i for i, site in enumerate(watched)}
        self._flags = GpuBuffer.zeros(launcher.device, U32, (max(1, len(self._places)),), "outlier flags")
        self._plans: dict[LayerOperation, Plan] = {}

    def __call__(self, record: LaunchRecord) -> None:
        site, x = self._output(record)
        if site not in self._places:
            return
        plan = self._plans.get(site)
        if plan is None:
            plan = self._plans[site] = self._plan(site, x)
        plan()

    def flagged(self) -> frozenset[LayerOperation]:
        """The sites whose output had an outlier so far. Waits for the device."""
        flags = self._flags.to_numpy()
        return frozenset(site for site, i in self._places.items() if flags[i])

    def free(self) -> None:
        """Give the flags' memory back."""
        self._flags.free()

    def _output(self, record: LaunchRecord) -> tuple[LayerOperation, object]:
        """The operation whose output a launch has written whole, and that. Where each rank computes a part, it is the launch
        that gathers them that does."""
        layer, operation = record.place
        if operation.endswith(GATHERED):
            return LayerOperation(layer, operation.removesuffix(GATHERED)), record.arguments["y"]
        if self._launcher.device.ranks > 1 and operation in COMPUTED_IN_PARTS:
            return NOWHERE, None
        return record.place, record.arguments.get(OUTPUTS.get(operation, ""))

    def _plan(self, site: LayerOperation, x: object) -> Plan:
        assert isinstance(x, GpuBuffer)
        n = x.nbytes // x.dtype.bytes
        flag = self._flags.view(self._places[site] * U32.bytes, (1,))
        kernel = OutlierFlag(n=n)
        return self._launcher.prepare(kernel, flag=flag, x=x.view(0, (n,)), ratio=OUTLIER_RATIO)


def find_outliers(
    launcher: Launcher, layers: int, cache: KvCache, tokens: Sequence[int], step: Callable[[int], None]
) -> frozenset[LayerOperation]:
    """The operations whose output has an outlier while `step` runs these tokens, whose launches are the launcher's. The keys
    and values of the cache are set aside meanwhile."""
    watch = OutlierWatch(launcher, sites(layers))
    launcher.observers.append(watch)
    try:
        with cache.set_aside(len(tokens)):
            for token in tokens:
                step(token)
        return watch.flagged()
    finally:
        launcher.observers.remove(watch)
        if not launcher.device.closed:
            watch.free()
