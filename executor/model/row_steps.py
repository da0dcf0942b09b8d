"""Runs rows through a model: the launches of each size of step, planned when it first comes, and the graphs of them. Where the
rows stand and whose they are is for others to say (engine.py, decoder.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from executor.base.arguments import whole
from executor.base.errors import ModelError
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher, Plan
from executor.launch.modules import Modules
from executor.layers.calls import KernelCall
from executor.memory.workspace import Workspace
from executor.model.step import Row
from executor.model.step_launches import INPUTS, StepBody, StepHead, StepModel, width

MOST_ROWS = 512
"""Rows of the largest step."""

NOWHERE = 2**32 - 1
"""A position or an index of no row."""


class StepSize(NamedTuple):
    """What steps of one graph have in common: room for rows and for scored ones, each a power of two or 0, and whether these
    must be gathered from among the others."""

    rows: int
    scored: int
    gathered: bool

    @classmethod
    def of(cls, rows: int, scored: int, least: int = 1) -> Self:
        """The smallest that has room, for at least so many rows."""
        size = padded(max(rows, least))
        return cls(size, size if scored == rows else padded(scored), 0 < scored < rows)


def padded(rows: int) -> int:
    """The next power of two, and 0 for none: the sizes of steps."""
    return 1 << (rows - 1).bit_length() if rows else 0


class RowSteps:
    """The steps of one model over one cache. A step of m rows launches kernels for the next power of two; the rows above m are
    idle. Its launches are one graph, captured when a step of that size first comes; while the launcher has observers (the debug
    mode) they are launched one by one, with the same bits."""

    def __init__(self, launcher: Launcher, modules: Modules) -> None:
        self.captures = 0
        """How many graphs were captured so far."""
        self.count = 0
        """How many steps there have been."""
        self._launcher = launcher
        self._modules = modules
        self._model: StepModel
        self._made_of: object = None
        self._bodies: dict[int, _Body] = {}
        self._heads: dict[StepSize, _Head] = {}
        self._graphs: dict[StepSize, LaunchGraph] = {}

    def use(self, dependencies: object, model: Callable[[], StepModel]) -> None:
        """The steps from now on are of this model. dependencies: what plans and graphs depend on; they are made anew when it is
        not equal to what it was."""
        if self._made_of != dependencies:
            self.drop()
            self._model, self._made_of = model(), dependencies

    def run(self, rows: Sequence[Row], least: int = 1) -> StepScores:
        """Run rows, which must be good: at least one, of slots, tokens and positions that there are. least: the size of the
        step, if it is larger than they need: few sizes have few kernels."""
        self.count += 1
        scored = [number for number, row in enumerate(rows) if row.scored]
        size = StepSize.of(len(rows), len(scored), least)
        body, head = self._body(size.rows), self._head(size)
        body.launches.inputs.upload(_inputs(rows, scored, size.rows))
        if self._launcher.observers:
            for plan in (*body.plans, *(head.plans if head else ())):
                plan()
        else:
            self._graph(size).replay()
        return StepScores(self, len(scored), head.launches if head else None)

    def calls(self, rows: int) -> tuple[KernelCall, ...]:
        """What a step of so many rows launches before its head."""
        return self._body(padded(rows)).launches.calls

    def drop(self) -> None:
        """Give plans, graphs and their memory back."""
        for graph in self._graphs.values():
            graph.close()
        for workspace in (
            *(head.workspace for head in self._heads.values()),
            *(body.workspace for body in self._bodies.values()),
        ):
            workspace.free()
        self._graphs, self._heads, self._bodies = {}, {}, {}
        self._made_of = None

    def _body(self, rows: int) -> _Body:
        if rows not in self._bodies:
            workspace = Workspace(self._launcher.device)
            launches = StepBody.build(self._model, workspace, rows)
            self._bodies[rows] = _Body(workspace, launches, self._plans(launches.calls))
        return self._bodies[rows]

    def _head(self, size: StepSize) -> _Head | None:
        if size.scored and size not in self._heads:
            workspace, body = Workspace(self._launcher.device), self._body(size.rows)
            launches = StepHead.build(self._model, workspace, body.launches, size.scored, gathered=size.gathered)
            self._heads[size] = _Head(workspace, launches, self._plans(launches.calls))
        return self._heads.get(size)

    def _plans(self, calls: Sequence[KernelCall]) -> tuple[Plan, ...]:
        self._modules.preload(list(dict.fromkeys(call.kernel for call in calls)))
        return tuple(self._launcher.prepare(call.kernel, call.place, **call.arguments) for call in calls)

    def _graph(self, size: StepSize) -> LaunchGraph:
        if size not in self._graphs:
            head = self._head(size)
            plans = (*self._body(size.rows).plans, *(head.plans if head else ()))
            self._graphs[size] = LaunchGraph(self._launcher.device, plans)
            self.captures += 1
        return self._graphs[size]


class StepScores:
    """What came out of the scored rows of a step, in their order, until the next step."""

    def __init__(self, steps: RowSteps, scored: int, head: StepHead | None) -> None:
        self._steps = steps
        self._step = steps.count
        self._scored = scored
        self._head = head

    def greedy(self) -> list[int]:
        """The likeliest token after each, the lowest id among equals; NOT_A_NUMBER where the logits hold NaN."""
        head = self._valid()
        return [] if head is None else [int(token) for token in head.likeliest.to_numpy()[: self._scored]]

    def logits(self, index: int) -> NDArray[np.float32]:
        """f32[vocab] of one of them, counted from 0. ArgumentError if there is no such one."""
        head = self._valid()
        index = whole("the scored row", index, 0, self._scored - 1)
        assert head is not None
        vocab = head.logits.shape[-1]
        return head.logits.view(index * head.logits.nbytes // head.scored, (vocab,)).to_numpy()

    def _valid(self) -> StepHead | None:
        if self._step != self._steps.count:
            raise ModelError("these scores are of an earlier step; read them before the next one")
        return self._head


@dataclass(frozen=True)
class _Body:
    workspace: Workspace
    launches: StepBody
    plans: tuple[Plan, ...]


@dataclass(frozen=True)
class _Head:
    workspace: Workspace
    launches: StepHead
    plans: tuple[Plan, ...]


def _inputs(rows: Sequence[Row], scored: Sequence[int], size: int) -> NDArray[np.uint32]:
    """What the host says of each row, as StepBody.inputs. Idle rows have no position."""
    inputs = np.zeros((len(INPUTS), width(size)), np.uint32)
    inputs[INPUTS.index("position")] = NOWHERE
    inputs[INPUTS.index("index")] = NOWHERE
    for number, row in enumerate(rows):
        inputs[:-1, number] = row.token, row.slot, row.position
    inputs[-1, : len(scored)] = scored
    return inputs
