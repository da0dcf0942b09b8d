"""Draws tokens after the scored rows of a step, where their logits are: each by the sampler of its own sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

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
    """What draws after rows of a head, and leaves the token where argmax has left the likeliest: settings, u32[scored, 4], and
    random, u64[scored, 2], are as in batched_sample_token."""

    settings: GpuBuffer
    random: GpuBuffer
    plan: Plan

    @classmethod
    def of(cls, launcher: Launcher, workspace: Workspace, head: StepHead, *, early: bool) -> RowDraws:
        """For a head, with buffers of its workspace. early: as Launcher.prepare_early."""
        kernel = drawing_kernel(head.logits.shape[-1], head.scored)
        settings = workspace.buffer("settings of draws", (head.scored, 4), U32)
        random = workspace.buffer("random numbers of draws", (head.scored, 2), U64)
        prepare = launcher.prepare_early if early else launcher.prepare
        logits = head.logits.view(0, (head.scored, kernel.n))
        place = LayerOperation(None, "sample")
        chosen = head.chosen.view(0, (head.scored,))
        return cls(settings, random, prepare(kernel, place, out=chosen, x=logits, settings=settings, random=random))

    def draw(self, draws: Mapping[int, Draw]) -> None:
        """Launch it for these rows, counted among the scored ones."""
        settings = np.zeros(self.settings.shape, np.uint32)  # which leaves rows out
        random = np.zeros(self.random.shape, np.uint64)
        for row, draw in draws.items():
            settings[row] = draw.settings
            random[row] = draw.key, draw.number
        self.settings.upload(settings)
        self.random.upload(random)
        self.plan()
