"""Which operations of a model give massive activations, found by running some tokens. What is done about them is decided where
kernels are chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from executor.launch.launch import Launcher, LayerOperation
from executor.layers.indexed import OUTPUTS, sites
from executor.layers.outliers import OutlierWatch
from executor.memory.kv_cache import KvCache


def find_outliers(
    launcher: Launcher, layers: int, cache: KvCache, tokens: Sequence[int], step: Callable[[int], None]
) -> frozenset[LayerOperation]:
    """The operations whose output has an outlier while `step` runs these tokens, whose launches are the launcher's. The keys
    and values of the cache are set aside meanwhile."""
    watch = OutlierWatch(launcher, sites(layers), OUTPUTS)
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
