"""Runs rows through a model: the launches of each size of step, planned when it first comes, and the graphs of them. Where the
rows stand and whose they are is for others to say (engine.py, decoder.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from executor.base.arguments import whole
from executor.base.errors import ModelError
from executor.base.progress import Progress
from executor.choice.attention import AttentionChoice
from executor.device.protocol import Device, Fetch
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher, Plan
from executor.launch.modules import Modules
from executor.layers.calls import KernelCall, kernels_of, plans_of
from executor.memory.buffers import GpuBuffer
from executor.memory.workspace import Workspace
from executor.model.row_draws import RowDraws, drawing_kernel
from executor.model.step import Allowed, Draw, Row
from executor.model.step_launches import INPUTS, StepBody, StepHead, StepModel, lines_of, width
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.flash_attention import run_starts, tiles_of

MOST_ROWS = 4096
"""Rows of the largest step."""

CHUNK = 512
"""Rows of a step of a prompt, unless told otherwise."""

NOWHERE = 2**32 - 1
"""A position or an index of no row."""


class GraphSize(NamedTuple):
    """What steps of one graph have in common: room for rows, a power of two; for scored ones, whether these must be gathered
    from among the others; how many of the first rows attend on their own: all, a power of four that is less, of two if none
    of four is, or 0. Gathered ones are a power of four or 0, too: sizes are captured one by one, and steps with prompts would
    have too many."""

    rows: int
    scored: int
    gathered: bool
    lone: int

    @classmethod
    def of(cls, rows: int, scored: int, least: int = 1, lone: int | None = None) -> Self:
        """The smallest that has room, for at least so many rows. lone: how many of the first rows attend on their own, None for
        all."""
        size = padded(max(rows, least))
        room = () if lone is None else (_coarse(lone), padded(lone))
        alone = next((count for count in room if count < size), size)
        return cls(size, size if scored == rows else min(_coarse(scored), size), 0 < scored < rows, alone)


def padded(rows: int) -> int:
    """The next power of two, and 0 for none: the sizes of steps."""
    return 1 << (rows - 1).bit_length() if rows else 0


def _coarse(rows: int) -> int:
    """The next power of four, and 0 for none."""
    return 1 << -(-(rows - 1).bit_length() // 2) * 2 if rows else 0


def likely_sizes(rows: int, slots: int, attention: AttentionChoice) -> list[GraphSize]:
    """Those that a scheduler of so many slots runs again and again, the largest first: the tokens of those who decode; and
    beside them prompts, of which at least one ends unless they fill the step. rows: most of a step."""
    largest = padded(rows)
    sizes = [GraphSize(largest, 0, False, 0 if attention.tiled(largest) else largest)]
    for size in reversed(_powers(largest, 2)):
        few = [count for count in _powers(_coarse(slots), 4) if count < size]
        if attention.tiled(size):
            ends = {0: (1, 4)} | {lone: (lone, 4 * lone) for lone in few}
            sizes += [GraphSize(size, one, True, lone) for lone, scored in ends.items() for one in scored if one in few]
        else:
            sizes += [GraphSize(size, scored, True, size) for scored in few]
        if size <= padded(slots):
            sizes.append(GraphSize(size, size, False, size))
    return sizes


def _powers(most: int, base: int) -> list[int]:
    """1, base, ... up to `most`."""
    return [base**power for power in range(most.bit_length()) if base**power <= most]


class RowSteps:
    """The steps of one model over one cache. A step of m rows launches kernels for the next power of two; the rows above m are
    idle. Its launches are one graph, captured when a step of that size first comes; while the launcher has observers (the debug
    mode) they are launched one by one, with the same bits."""

    def __init__(self, launcher: Launcher, modules: Modules) -> None:
        self.captures = 0
        """How many graphs were captured so far."""
        self.count = 0
        """How many steps there have been."""
        self.replayed: LaunchGraph | None = None
        """What the last step replayed, until plans are given back; None if it launched them one by one."""
        self.device = launcher.device
        self._launcher = launcher
        self._modules = modules
        self._model: StepModel
        self._made_of: object = None
        self._bodies: dict[tuple[int, int], _Body] = {}  # by rows and lone ones
        self._common: dict[int, Workspace] = {}  # of bodies, by rows
        self._head_memory: dict[int, Workspace] = {}  # by scored rows; one step runs at a time
        self._heads: dict[GraphSize, _Head] = {}
        self._graphs: dict[GraphSize, LaunchGraph] = {}
        self._last: tuple[Sequence[Row], StepScores] | None = None

    def use(self, dependencies: object, model: Callable[[], StepModel]) -> None:
        """The steps from now on are of this model. dependencies: what plans and graphs depend on; they are made anew when it is
        not equal to what it was."""
        if self._made_of != dependencies:
            self.drop()
            self._model, self._made_of = model(), dependencies

    @property
    def next_rows(self) -> list[Row]:
        """The rows that `run_next` would run, with any token. ArgumentError where there was no step, where a row of it was not
        scored, or where two were of one slot."""
        rows = () if self._last is None else self._last[0]
        if not rows or not all(row.scored for row in rows) or len({row.slot for row in rows}) < len(rows):
            raise ArgumentError("a step ahead follows one whose rows were all scored, each of another slot; run that first")
        return [Row(row.slot, 0, row.position + 1, True) for row in rows]

    def run_next(self) -> StepScores:
        """Run `next_rows`, each with the token that was chosen after the row of the last step; the device hands these over.
        Their numbers are on the way to the host from now on."""
        rows = self.next_rows
        assert self._last is not None
        before = self._last[1]
        return self.run(rows, tokens=before.fetch())

    def run(self, rows: Sequence[Row], least: int = 1, tokens: GpuBuffer | None = None) -> StepScores:
        """Run rows, which must be good: at least one, of slots, tokens and positions that there are. least: the size of the
        step, if it is larger than they need: few sizes have few kernels. tokens: u32[rows] on the device that count in the
        place of the rows' own."""
        if self._last is not None:
            self._last[1].end()
            self._last = None
        self.count += 1
        size, inputs = self._sized(rows, least)
        body, head = self._body(size.rows, size.lone), self._head(size)
        body.launches.inputs.upload(inputs.for_body(body.launches))
        if tokens is not None:
            self.device.copy(body.launches.tokens.pointer, tokens.pointer, tokens.nbytes)
        self.replayed = None
        try:
            if self._launcher.observers:
                for plan in (*body.plans, *(head.plans if head else ())):
                    plan()
            else:
                self.replayed = self.graph(size)
                self.replayed.replay()
        except BaseException:
            for memory in (*body.memory, *((head.workspace,) if head else ())):
                memory.settle()
            raise
        scores = StepScores(self.device, inputs.scored, head)
        self._last = tuple(rows), scores
        return scores

    def prepare(self, sizes: Sequence[GraphSize], progress: Progress | None = None) -> None:
        """Plan and capture steps of these sizes, where that was not done, so that nobody waits for it later."""
        vocab, dependent = self._model.graph.spec.vocab, self._dependent
        self._modules.preload(
            [drawing_kernel(vocab, n) for n in sorted({size.scored for size in sizes} - {0})], dependent=dependent
        )
        for done, size in enumerate(sizes, 1):
            self.graph(size)
            if head := self._head(size):
                head.draws.prepare()
            if progress is not None:
                progress("preparing steps", done, len(sizes))

    def calls(self, rows: int, lone: int | None = None) -> tuple[KernelCall, ...]:
        """What a step of so many rows launches before its head, of which so many attend on their own; all unless told
        otherwise."""
        size = GraphSize.of(rows, 0, lone=lone)
        return self._body(size.rows, size.lone).launches.calls

    def graph_of(self, rows: Sequence[Row], least: int = 1) -> LaunchGraph:
        """What `run` would replay for these rows, captured now unless that has been done."""
        return self.graph(self._sized(rows, least)[0])

    def graph(self, size: GraphSize) -> LaunchGraph:
        """That of steps of a size, captured now unless that has been done."""
        if size not in self._graphs:
            head = self._head(size)
            plans = (*self._body(size.rows, size.lone).plans, *(head.plans if head else ()))
            self._graphs[size] = LaunchGraph(self._launcher.device, plans)
            self.captures += 1
        return self._graphs[size]

    def drop(self) -> None:
        """Give plans, graphs and their memory back."""
        self.replayed = self._last = None
        for graph in self._graphs.values():
            graph.close()
        for memory in (
            *self._head_memory.values(), *self._common.values(), *(body.memory[0] for body in self._bodies.values())
        ):  # fmt: skip
            memory.free()
        self._common, self._head_memory = {}, {}
        self._graphs, self._heads, self._bodies = {}, {}, {}
        self._made_of = None

    def _sized(self, rows: Sequence[Row], least: int) -> tuple[GraphSize, _Inputs]:
        """The size of a step of these rows, and what the host says of them."""
        scored = [number for number, row in enumerate(rows) if row.scored]
        inputs = _Inputs.of(rows, scored, self._model.attention)
        size = GraphSize.of(len(rows), len(scored), least, inputs.lone)
        return size, inputs.all_alone() if size.lone == size.rows else inputs

    @property
    def _dependent(self) -> bool:
        return self._model.graph.profile.has_dependent_launches(self.device.target)

    def _body(self, rows: int, lone: int) -> _Body:
        if (rows, lone) not in self._bodies:
            own, common = Workspace(self.device), self._common.setdefault(rows, Workspace(self.device))
            launches = StepBody.build(self._model, own, rows, lone, common)
            self._bodies[rows, lone] = _Body((own, common), launches, self._plans(launches.calls))
        return self._bodies[rows, lone]

    def _head(self, size: GraphSize) -> _Head | None:
        if size.scored and size not in self._heads:
            workspace = self._head_memory.setdefault(size.scored, Workspace(self.device))
            body = self._body(size.rows, size.lone)
            launches = StepHead.build(self._model, workspace, body.launches, size.scored, gathered=size.gathered)
            logits = launches.logits.view(0, (size.scored, launches.logits.shape[-1]))
            chosen = launches.chosen.view(0, (size.scored,))
            draws = RowDraws(self._launcher, workspace, logits, chosen, dependent=self._dependent)
            self._heads[size] = _Head(workspace, launches, self._plans(launches.calls), draws)
        return self._heads.get(size)

    def _plans(self, calls: Sequence[KernelCall]) -> tuple[Plan, ...]:
        dependent = self._dependent
        self._modules.preload(kernels_of(calls, self._modules.device.target, dependent=dependent), dependent=dependent)
        return plans_of(self._launcher, calls, dependent=dependent)


class StepScores:
    """What came out of the scored rows of a step, in their order, until the next step; the chosen tokens for as long as they
    are held, if they are fetched before that."""

    def __init__(self, device: Device, scored: int, head: _Head | None) -> None:
        self._device = device
        self._scored = scored
        self._head = head
        self._ended = False
        self._coming: Fetch | None = None

    def end(self) -> None:
        """The next step begins."""
        self._ended = True

    def fetch(self) -> GpuBuffer:
        """Have the chosen tokens on their way to the host, where at least one row was scored: `chosen` waits for this step
        alone then. Returns where they are on the device, u32[scored rows]."""
        head = self._valid()
        assert head is not None
        chosen = head.launches.chosen.view(0, (self._scored,))
        self._coming = self._device.fetch(chosen.pointer, np.empty(chosen.shape, np.uint32))
        return chosen

    def chosen(self) -> list[int]:
        """As Scores.chosen."""
        if self._coming is not None:
            return [int(token) for token in self._coming.to_numpy()]
        head = self._valid()
        return [] if head is None else [int(token) for token in head.launches.chosen.to_numpy()[: self._scored]]

    def logits(self, index: int) -> NDArray[np.float32]:
        """f32[vocab] of one of them, counted from 0. ArgumentError if there is no such one."""
        head = self._valid()
        index = whole("the scored row", index, 0, self._scored - 1)
        assert head is not None
        logits = head.launches.logits
        return logits.view(index * logits.nbytes // head.launches.scored, logits.shape[-1:]).to_numpy()

    def draw(self, draws: Mapping[int, Draw], allowed: Mapping[int, Allowed]) -> None:
        """As Scores.draw. ArgumentError for a row that was not scored, and where the tokens are on their way already."""
        head = self._valid()
        for row in (*draws, *allowed):
            whole("the scored row", row, 0, self._scored - 1)
        if self._coming is not None:
            raise ArgumentError("the chosen tokens are on their way to the host; draw before that")
        if head is not None and (draws or allowed):
            head.draws.draw(draws, allowed)

    def _valid(self) -> _Head | None:
        if self._ended:
            raise ModelError("these scores are of an earlier step; read them before the next one")
        return self._head


@dataclass(frozen=True)
class _Body:
    """memory: its own, and what it has in common with bodies of as many rows."""

    memory: tuple[Workspace, Workspace]
    launches: StepBody
    plans: tuple[Plan, ...]


@dataclass(frozen=True)
class _Head:
    workspace: Workspace
    launches: StepHead
    plans: tuple[Plan, ...]
    draws: RowDraws


@dataclass(frozen=True)
class _Inputs:
    """What the host says of the rows of a step. lines: u32[INPUTS, rows]; tiles: u32[tiles, 2], those of the rows that do not
    attend on their own; lone: how many of the first rows do, None for all; scored: how many rows are."""

    lines: NDArray[np.uint32]
    tiles: NDArray[np.uint32]
    lone: int | None
    scored: int

    @classmethod
    def of(cls, rows: Sequence[Row], scored: Sequence[int], attention: AttentionChoice) -> Self:
        lines = np.full((len(INPUTS), len(rows)), NOWHERE, np.uint32)
        lines[:3] = np.array([(row.token, row.slot, row.position) for row in rows], np.uint32).T
        lines[INPUTS.index("index"), : len(scored)] = scored
        slot, position = lines[INPUTS.index("slot")], lines[INPUTS.index("position")]
        if not attention.tiled(len(rows)):
            lines[INPUTS.index("lone")] = position
            return cls(lines, np.zeros((0, 2), np.uint32), None, len(scored))
        lone = lone_rows(slot, position, attention.least_run)
        lines[INPUTS.index("lone"), :lone] = position[:lone]
        tiles = tiles_of(slot[lone:], position[lone:], attention.tile_rows)
        tiles[:, 0] += lone
        return cls(lines, tiles, None if lone == len(rows) else lone, len(scored))

    def all_alone(self) -> _Inputs:
        """As if there were no tiles."""
        lines = self.lines.copy()
        lines[INPUTS.index("lone")] = lines[INPUTS.index("position")]
        return _Inputs(lines, np.zeros((0, 2), np.uint32), None, self.scored)

    def for_body(self, body: StepBody) -> NDArray[np.uint32]:
        """As StepBody.inputs. Idle rows have no position, and idle tiles no rows."""
        inputs = np.zeros((lines_of(body.rows, body.tiles), width(body.rows)), np.uint32)
        for name in ("position", "index", "lone"):
            inputs[INPUTS.index(name)] = NOWHERE
        inputs[: len(INPUTS), : self.lines.shape[1]] = self.lines
        inputs[len(INPUTS) :].reshape(-1)[: self.tiles.size] = self.tiles.reshape(-1)
        return inputs


def lone_rows(slot: NDArray[np.uint32], position: NDArray[np.uint32], least_run: int) -> int:
    """How many of the first rows of a step attend on their own: all up to the last run of fewer than `least_run` rows. A run
    are rows of one slot at positions one after another."""
    starts = run_starts(slot, position)
    lengths = np.diff([*starts, len(slot)])
    short = np.flatnonzero(lengths < least_run)
    return int(starts[short[-1]] + lengths[short[-1]]) if len(short) else 0
