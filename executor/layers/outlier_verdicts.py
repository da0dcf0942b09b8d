"""Whether the input of an operation has a massive activation: asked of the device once, and kept while the weights stay.
Watching a whole step without waiting is executor/layers/outliers.py's business."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from executor.base.arguments import described, one_of, whole
from executor.launch.launch import LayerOperation
from executor.layers.graph.binding import Binding
from executor.layers.indexed import LLAMA_OUTPUTS
from executor.layers.outliers import OUTLIER_RATIO
from executor.memory.buffers import GpuBuffer
from executor.memory.weights import Weights
from executor.memory.workspace import Workspace
from ptxgen.errors import ArgumentError
from ptxgen.kernels.quantize.outlier_flag import OutlierFlag
from ptxgen.types import U32


class OutlierVerdicts:
    """By layer and operation, whose output is examined."""

    def __init__(self, weights: Weights, workspace: Workspace) -> None:
        self._weights = weights
        self._workspace = workspace
        self._of: dict[LayerOperation, bool] = {}
        self._generation = weights.generation

    def of(self, launches: Callable[[], AbstractContextManager[Binding]], x: GpuBuffer, site: LayerOperation | None) -> bool:
        """Whether x, f32[n], has an outlier, found by what `launches` runs. The first answer for a site stays its
        answer; without one nothing is kept."""
        self._forget_old()
        verdict = None if site is None else self._of.get(site)
        if verdict is None:
            flag = self._workspace.buffer("outlier flag", (1,), U32)
            flag.fill(0)
            with launches() as launch:
                kernel = OutlierFlag(n=x.shape[0])
                launch("outlier_flag", kernel, flag=flag, x=x, ratio=OUTLIER_RATIO)
            verdict = bool(flag.to_numpy()[0])
            if site is not None:
                self._of[site] = verdict
        return verdict

    @property
    def flagged(self) -> frozenset[LayerOperation]:
        """The sites that have an outlier."""
        self._forget_old()
        return frozenset(site for site, verdict in self._of.items() if verdict)

    @staticmethod
    def checked_site(site: Any, layers: int | None) -> LayerOperation:
        """A site of which a verdict decides something: a layer of so many (None: of any), and an operation that makes what
        its matrices multiply. ArgumentError names those that there are."""
        if not isinstance(site, tuple | list) or len(site) != 2:
            raise ArgumentError(f"site is {described(site)}; allowed: a layer and one of {', '.join(LLAMA_OUTPUTS)}")
        layer, operation = site
        last = None if layers is None else layers - 1
        layer = whole("the layer of the site", layer, 0, last)
        return LayerOperation(layer, one_of("the operation of the site", operation, LLAMA_OUTPUTS))

    def _forget_old(self) -> None:
        if self._generation != self._weights.generation:
            self._of.clear()
            self._generation = self._weights.generation
