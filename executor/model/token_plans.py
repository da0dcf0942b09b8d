"""The launches of one token, checked, and the graphs of them. When they must be made anew is prepared_model.py's business."""

from __future__ import annotations

from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher, Plan
from executor.layers.calls import KernelCall, plans_of
from executor.memory.workspace import Workspace
from executor.model.row_draws import RowDraws
from executor.model.token_launches import TokenLaunches


class TokenPlans:
    """Plans of the launches of a token. prompt: of one whose logits are not needed; whole: with head, argmax and advance;
    drawn: as whole, but that `draw_by` a call stands for argmax; dependent: as plans_of."""

    def __init__(self, launcher: Launcher, launches: TokenLaunches, *, dependent: bool) -> None:
        body, head, (argmax, advance) = (
            plans_of(launcher, calls, dependent=dependent)
            for calls in (
                (*launches.embed, *launches.layers),
                launches.head,
                (launches.argmax, launches.advance),
            )
        )
        self.launches = launches
        self.prompt = (*body, advance)
        self.whole = (*body, *head, argmax, advance)
        self.argmax = argmax
        self.drawn: tuple[Plan, ...] = ()
        self._choices: RowDraws | None = None
        self._whole_stream: tuple[Plan, ...] | None = None
        self._launcher, self._dependent = launcher, dependent
        self._device = launcher.device
        self._graphs: dict[tuple[bool, bool, bool], LaunchGraph] = {}  # by head, draw and stamped

    def draw_by(self, call: KernelCall) -> None:
        """Have the plans of a token that is followed by a drawn one, unless they are there."""
        if not self.drawn:
            drawn = plans_of(self._launcher, [call], dependent=self._dependent)
            *before, _, advance = self.whole
            self.drawn = (*before, *drawn, advance)

    def choices(self, workspace: Workspace) -> RowDraws:
        """What chooses the next token anew after all of them, with buffers of this workspace, if it is not there yet."""
        if self._choices is None:
            logits = self.launches.logits
            row = logits.view(0, (1, *logits.shape))
            self._choices = RowDraws(self._launcher, workspace, row, self.launches.token, dependent=self._dependent)
        return self._choices

    def complete_stream(self) -> None:
        """Have `launches.hidden` hold the residual stream of the token that has just run."""
        if self._whole_stream is None:
            self._whole_stream = plans_of(self._launcher, self.launches.whole_stream, dependent=False)
        for plan in self._whole_stream:
            plan()

    def graph(self, *, head: bool, stamped: bool, draw: bool = False) -> LaunchGraph:
        """One launch of all of them, captured unless it has been. stamped: as LaunchGraph."""
        graph = self._graphs.get((head, draw, stamped))
        if graph is None:
            plans = self.of(head=head, draw=draw)
            graph = self._graphs[head, draw, stamped] = LaunchGraph(self._device, plans, stamped=stamped)
        return graph

    def of(self, *, head: bool, draw: bool = False) -> tuple[Plan, ...]:
        """Those of a token with the head, or without; draw: with the head, and the next token is drawn."""
        if draw:
            return self.drawn
        return self.whole if head else self.prompt

    def run(self, *, head: bool, draw: bool = False) -> None:
        """Launch them one by one."""
        for plan in self.of(head=head, draw=draw):
            plan()

    @property
    def captures(self) -> int:
        """How many graphs were captured."""
        return len(self._graphs)

    def close(self) -> None:
        """Give the graphs back."""
        for graph in self._graphs.values():
            graph.close()
