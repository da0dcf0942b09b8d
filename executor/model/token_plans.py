"""The launches of one token, checked, and the graphs of them. When they must be made anew is decoder.py's business."""

from __future__ import annotations

from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher, Plan
from executor.layers.calls import plans_of
from executor.model.token_launches import TokenLaunches


class TokenPlans:
    """Plans of the launches of a token. prompt: of one whose logits are not needed; whole: with head, argmax and advance;
    early: as plans_of."""

    def __init__(self, launcher: Launcher, launches: TokenLaunches, *, early: bool) -> None:
        body, head, (argmax, advance) = (
            plans_of(launcher, calls, early=early)
            for calls in (
                (launches.embed, *(call for layer in launches.layers for call in layer)),
                launches.head,
                (launches.argmax, launches.advance),
            )
        )
        self.launches = launches
        self.prompt = (*body, advance)
        self.whole = (*body, *head, argmax, advance)
        self._device = launcher.device
        self._graphs: dict[tuple[bool, bool], LaunchGraph] = {}  # by whether with the head, and whether stamped

    def graph(self, *, head: bool, stamped: bool) -> LaunchGraph:
        """One launch of all of them, captured unless it has been. stamped: as LaunchGraph."""
        graph = self._graphs.get((head, stamped))
        if graph is None:
            graph = self._graphs[head, stamped] = LaunchGraph(self._device, self.of(head=head), stamped=stamped)
        return graph

    def of(self, *, head: bool) -> tuple[Plan, ...]:
        """Those of a token with the head, or without."""
        return self.whole if head else self.prompt

    def run(self, *, head: bool) -> None:
        """Launch them one by one."""
        for plan in self.of(head=head):
            plan()

    @property
    def captures(self) -> int:
        """How many graphs were captured."""
        return len(self._graphs)

    def close(self) -> None:
        """Give the graphs back."""
        for graph in self._graphs.values():
            graph.close()
