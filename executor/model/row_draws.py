"""Draws tokens after the scored rows of a step, where their logits are: each by the sampler of its own sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from executor.launch.launch import Launcher, LayerOperation, Plan
from executor.memory.buffers import GpuBuffer
from executor.memory.workspace import Workspace
from executor.model.step import Draw
from executor.model.step_launches import StepHead
from ptxgen.kernels.token.sample_token import BatchedSampleToken
from ptxgen.types import U32, U64


def drawing_kernel(vocab: int, scored: int) -> BatchedSampleToken:
    """What draws after so many rows."""
    return BatchedSampleToken(n=vocab, m=scored)


@dataclass(frozen=True)
class RowDraws:
    """What draws after rows of a head: settings, u32[scored, 4], random, u64[scored, 2], and out, u32[scored], are as in
    batched_sample_token."""

    settings: GpuBuffer
    random: GpuBuffer
    out: GpuBuffer
    plan: Plan

    @classmethod
    def of(cls, launcher: Launcher, workspace: Workspace, head: StepHead, *, early: bool) -> RowDraws:
        """For a head, with buffers of its workspace. early: as Launcher.prepare_early."""
        kernel = drawing_kernel(head.logits.shape[-1], head.scored)
        settings = workspace.buffer("settings of draws", (head.scored, 4), U32)
        random = workspace.buffer("random numbers of draws", (head.scored, 2), U64)
        out = workspace.buffer("drawn", (head.scored,), U32)
        prepare = launcher.prepare_early if early else launcher.prepare
        logits = head.logits.view(0, (head.scored, kernel.n))
        place = LayerOperation(None, "sample")
        return cls(settings, random, out, prepare(kernel, place, out=out, x=logits, settings=settings, random=random))

    def draw(self, draws: Mapping[int, Draw]) -> dict[int, int]:
        """The tokens after these rows, counted among the scored ones; NOT_A_NUMBER where one cannot be drawn."""
        settings = np.zeros(self.settings.shape, np.uint32)  # which leaves rows out
        random = np.zeros(self.random.shape, np.uint64)
        for row, draw in draws.items():
            settings[row] = draw.settings
            random[row] = draw.key, draw.number
        self.settings.upload(settings)
        self.random.upload(random)
        self.plan()
        drawn: NDArray[np.uint32] = self.out.to_numpy()
        return {row: int(drawn[row]) for row in draws}
