"""Chooses tokens after rows of logits otherwise than argmax does in their step: drawn, each by the sampler of its own sequence,
and among those that a grammar allows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from executor.launch.launch import Launcher, LayerOperation, Plan
from executor.memory.buffers import GpuBuffer
from executor.memory.workspace import Workspace
from executor.model.step import Allowed, Draw
from ptxgen.kernels.token.allowed import words
from ptxgen.kernels.token.argmax import ArgMax
from ptxgen.kernels.token.sample_token import SampleToken
from ptxgen.types import U32, U64

ALL = 0xFFFFFFFF
"""A word of bits of which all are allowed."""


def drawing_kernel(vocab: int, scored: int) -> SampleToken:
    """What draws after so many rows."""
    return SampleToken(n=vocab, m=scored)


class RowDraws:
    """What chooses after rows of logits, f32[scored, vocab], and leaves the tokens in `chosen`, u32[scored], where argmax has
    left the likeliest. All its buffers are taken from a workspace at once, so that no later step needs memory; its plans are
    made when they are first needed."""

    def __init__(
        self, launcher: Launcher, workspace: Workspace, logits: GpuBuffer, chosen: GpuBuffer, *, dependent: bool
    ) -> None:  # fmt: skip
        """dependent: as Launcher.prepare_dependent. DeviceError when memory is full."""
        self._scored, self._vocab = logits.shape
        self._workspace, self._logits, self._chosen = workspace, logits, chosen
        self._prepare = launcher.prepare_dependent if dependent else launcher.prepare
        self._settings = workspace.buffer("settings of draws", (self._scored, 4), U32)
        self._random = workspace.buffer("random numbers of draws", (self._scored, 2), U64)
        self._allowed = workspace.buffer("allowed tokens", (self._scored, words(self._vocab)), U32)
        self._argmax = ArgMax(n=self._vocab, m=self._scored, allowed=True)
        self._scratch = workspace.arrays(self._argmax, "choice among allowed", self._argmax.scratch)

    def draw(self, draws: Mapping[int, Draw], allowed: Mapping[int, Allowed]) -> None:
        """As Scores.draw, for these rows, counted among the scored ones."""
        try:
            self._choose(draws, allowed)
        except BaseException:
            self._workspace.settle()
            raise

    def _choose(self, draws: Mapping[int, Draw], allowed: Mapping[int, Allowed]) -> None:
        if allowed:
            bits = np.full(self._allowed.shape, ALL, np.uint32)
            for row, of_row in allowed.items():
                bits[row] = of_row
            self._allowed.upload(bits)
            if allowed.keys() - draws.keys():
                self._likeliest()
        if draws:
            settings = np.zeros(self._settings.shape, np.uint32)  # which leaves rows out
            random = np.zeros(self._random.shape, np.uint64)
            for row, draw in draws.items():
                settings[row] = draw.settings
                random[row] = draw.key, draw.number
            self._settings.upload(settings)
            self._random.upload(random)
            (self._drawn_of_allowed if allowed.keys() & draws.keys() else self._drawn)()

    def prepare(self) -> None:
        """Make what draws among all tokens, so that nobody waits for it. What grammars need is made when the first one comes:
        where there is none, its kernels would be compiled for nobody."""
        _ = self._drawn

    @cached_property
    def _drawn(self) -> Plan:
        return self._drawing(drawing_kernel(self._vocab, self._scored))

    @cached_property
    def _drawn_of_allowed(self) -> Plan:
        return self._drawing(SampleToken(n=self._vocab, m=self._scored, allowed=True), allowed=self._allowed)

    @cached_property
    def _likeliest(self) -> Plan:
        return self._plan("argmax", self._argmax, allowed=self._allowed, **self._scratch)

    def _drawing(self, kernel: SampleToken, **allowed: GpuBuffer) -> Plan:
        return self._plan("sample", kernel, settings=self._settings, random=self._random, **allowed)

    def _plan(self, operation: str, kernel: SampleToken | ArgMax, **arguments: GpuBuffer) -> Plan:
        return self._prepare(kernel, LayerOperation(None, operation), out=self._chosen, x=self._logits, **arguments)
