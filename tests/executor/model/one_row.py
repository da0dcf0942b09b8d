"""What a token gives and launches, by `generate`'s steps and by an engine's step of one row. No test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from executor.choice.choice import GpuProfile
from executor.device import open_devices
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Plan
from executor.model.engine import Engine
from executor.model.generation import LanguageModel
from executor.model.step import Row


def logits_and_plans(
    path: Path, profile: GpuProfile, tokens: Sequence[int], context: int, *, sanitize: bool, ranks: int = 1
) -> tuple[bytes, list[tuple[Plan, ...]]]:
    """The logits after each token, and those of the first as the one row of an engine's step, on the emulator; the plans of a
    token and of that row. ranks: so many devices share the model."""
    logits = []
    with (
        open_devices(["emulator"] * ranks, sanitize=sanitize) as device,
        LanguageModel.load(path, device, context=context, profile=profile) as model,
    ):
        engine = Engine(model.decoder, slots=1)
        engine.set_table(0, range(engine.pages))
        for token in tokens:
            model.decoder.step(token)
            logits.append(model.decoder.logits())
        logits.append(engine.step([Row(0, tokens[0], 0, True)]).logits(0))
        graph = engine.steps.replayed
        assert isinstance(graph, LaunchGraph)
        plans = [model.decoder.prepare().whole, graph.plans]
        engine.free()
    return np.array(logits).tobytes(), plans
