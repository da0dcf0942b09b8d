"""Launches that were recorded instead of run, and run as one graph from then on. A whole model captures itself
(executor/model/decoder.py)."""

from __future__ import annotations

from collections.abc import Callable

from executor.base.errors import LaunchError
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher, LaunchRecord, Plan
from executor.layers.graph.binding import SharedForms
from executor.layers.sequence import LayerSequence
from executor.memory.workspace import Workspace
from ptxgen.errors import ArgumentError


class Capture:
    """What was launched in `with executor.capture() as graph:`, by whatever name. state: what the choice of kernels depends on.

    A captured layer, and whatever reads `sequence.position`, takes its position from the device: `replay(position)` puts it
    there first. What was captured under another profile, with other weights or before the memory grew is refused, never run:
    capture it anew."""

    def __init__(self, launcher: Launcher, workspace: Workspace, state: Callable[[], object]) -> None:
        self.shared = SharedForms()
        """Those that the capture itself makes: a replay makes them each time."""
        self._layers: list[int] = []
        self._sequence: LayerSequence | None = None
        self._launcher = launcher
        self._state = state
        self._captured: object = None
        self._graph: LaunchGraph | None = None
        self._plans: list[Plan] = []

    def takes_position(self, sequence: LayerSequence) -> None:
        """A replay reads the position of the sequence's current token."""
        self._sequence = sequence

    def runs_layer(self, sequence: LayerSequence, layer: int) -> None:
        """A replay runs this layer on the sequence's current token."""
        self.takes_position(sequence)
        self._layers.append(layer)

    def finish(self, plans: list[Plan]) -> None:
        """Make the graph of what was recorded. Raises LaunchError if nothing was."""
        if not plans:
            raise LaunchError("nothing was launched in the capture, so there is nothing to replay")
        self._plans = plans
        self._graph = LaunchGraph(self._launcher.device, plans)
        self._captured = self._state()

    @property
    def records(self) -> tuple[LaunchRecord, ...]:
        """The launches of a replay, in order."""
        return self._finished().records

    def replay(self, position: int | None = None) -> None:
        """Launch all at once; one by one, with the same bits, while the launcher has observers.

        position: of the token that captured layers run; what reads `sequence.position` needs it, and nothing else takes it.
        Raises LaunchError if what the graph was captured from has changed, ArgumentError as LayerSequence.begin."""
        graph = self._finished()
        graph.check_alive()
        if self._state() != self._captured:
            raise LaunchError(f"{graph} was captured with a different profile or different weights; capture it again")
        if (position is None) != (self._sequence is None):
            takes = "needs the position of its token" if self._sequence is not None else "reads no position, so takes none"
            raise ArgumentError(f"{graph} {takes}, got {position}")
        if self._sequence is None or position is None:
            self._run(graph)
            return
        self._sequence.begin(position, *self._layers)
        self._run(graph)
        self._sequence.commit(position, *self._layers)

    def close(self) -> None:
        """Give the graph back."""
        if self._graph is not None:
            self._graph.close()

    def _run(self, graph: LaunchGraph) -> None:
        if not self._launcher.observers:
            graph.replay()
            return
        for plan in self._plans:
            plan()

    def _finished(self) -> LaunchGraph:
        if self._graph is None:
            raise LaunchError("the capture is not finished: replay it after its `with` block")
        return self._graph
