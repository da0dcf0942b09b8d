"""The tile profiler of an executor, switched on and off. How it measures is executor/measure/profiler.py's business."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.launch.launch import Launcher
from executor.measure.profiler import ActiveProfiler, TileProfiler
from executor.measure.tile_summary import tile_table
from ptxgen.errors import ArgumentError

if TYPE_CHECKING:
    from rich.table import Table


class TileProfiling:
    """Of the launches of one launcher, and of the models that share its `timing`."""

    def __init__(self, launcher: Launcher) -> None:
        self.timing = ActiveProfiler()
        self._launcher = launcher

    @property
    def profiler(self) -> TileProfiler:
        """ArgumentError before it is enabled."""
        if self.timing.profiler is None:
            raise ArgumentError("tile profiling is off; enable_tile_profiling() switches it on")
        return self.timing.profiler

    def enable(self) -> TileProfiler:
        """Time launches from now on, each as a tile: those of transformer_layer_gpu_tiled_profiled, of models that were loaded
        here or given to replay_decode, and of blocks `with executor.tile_profiler.step():`, where the device may wait for the
        host. A tile is Macro (a matrix product), Midi (attention) or Micro (a pass over a vector), by its kernel's family. On a
        GPU that was never asked this measures its bandwidth first. ArgumentError while the debug mode is on, which waits for
        every launch."""
        from executor.model.decode_profile import limit_of, require_unwatched

        if self.timing.profiler is None:
            require_unwatched(self._launcher)
            self.timing.profiler = TileProfiler(self._launcher.device, limit_of(self._launcher.device))
            self._launcher.observers.append(self.timing.profiler)
        return self.timing.profiler

    def disable(self) -> None:
        """Time nothing more, and forget what was timed."""
        if self.timing.profiler is not None:
            self._launcher.observers.remove(self.timing.profiler)
            self.timing.profiler = None

    def summary(self, by: str = "operation") -> Table:
        """What was timed, as a table with a row for each operation, kernel, level (Macro, Midi, Micro) or layer; see
        executor/measure/tile_summary.py."""
        return tile_table(self.profiler, by)
