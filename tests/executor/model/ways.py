"""A small model of an architecture by each way that a token goes, against float64. The GPU tests do this there; for distances
on the emulator: python -m tests.executor.model.ways [ARCHITECTURE...]."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from executor.choice.choice import GpuProfile
from executor.device import open_device
from executor.device.protocol import Device
from executor.model.architectures import ARCHITECTURES
from executor.model.generation import LanguageModel
from executor.model.scheduling.prompt_lookup import PromptLookup
from executor.model.step import Row
from tests.reference_model import ReferenceModel
from tests.synthetic import Q, write_model

SIZES: Final[dict[str, Any]] = {"layers": 2, "hidden": 256, "heads": 4, "kv_heads": 2, "ff": 512, "context": 128}
TYPES: Final = {"": Q.Q4_K, "attn_v": Q.Q6_K, "ffn_down": Q.Q6_K, "token_embd": Q.Q8_0, "output": Q.Q6_K}
"""As in the Q4_K_M files of people."""
TEXT: Final = tuple(int(token) for token in np.random.default_rng(4).integers(3, 500, 90))
"""Longer than windows and original contexts are in such a file."""
ONCE: Final[dict[str, dict[str, object]]] = {"nanbeige": {"nanbeige.num_loops": 1}}
"""Layers that run several times are not computed."""


def written(name: str, folder: Path) -> Path:
    """A file with all that those of the architecture may have."""
    return write_model(folder / "m.gguf", name, TYPES, full=True, **SIZES, metadata=ONCE.get(name))


def farthest(path: Path, device: Device) -> float:
    """The largest distance of a logit from float64's, over the standard deviation of all: one by one, a prompt in one step and
    in two, two sequences in a step, after rewinds. AssertionError where drafts, right and wrong, change an answer."""
    with LanguageModel.load(path, device) as model:
        exact = ReferenceModel(path, context=model.context).logits(list(TEXT))
        found = [np.abs(model.logits(TEXT) - exact).max()]
        engine = model.engine(slots=2, context=128, rows=96)
        pages = engine.pages // 2
        engine.set_table(0, range(pages))
        engine.set_table(1, range(pages, 2 * pages))

        def step(*parts: tuple[int, range]) -> None:
            rows = [Row(slot, TEXT[at], at, True) for slot, positions in parts for at in positions]
            scores = engine.step(rows)
            made = np.array([scores.logits(index) for index in range(len(rows))])
            found.append(np.abs(made - exact[[row.position for row in rows]]).max())

        step((0, range(90)))
        step((1, range(40)))
        step((0, range(70, 71)), (1, range(40, 75)))
        step((0, range(71, 72)), (1, range(75, 76)))
        step((0, range(30, 60)), (1, range(76, 90)))
        engine.free()
    with LanguageModel.load(path, device, profile=GpuProfile.for_device(device).with_rules("batch_invariant")) as model:
        prompt = [*TEXT[:20], *TEXT[:20]]
        alone = model.generate(prompt, max_tokens=24, stop_tokens=()).tokens
        with model.scheduler(slots=2, context=128, draft=PromptLookup) as running:
            request = running.submit(prompt, max_tokens=24, stop_tokens=())
            running.run()
        assert list(request.tokens) == list(alone)
    return float(max(found) / exact.std())


if __name__ == "__main__":
    with open_device("emulator") as emulator, TemporaryDirectory() as folder:
        for name in sys.argv[1:] or ARCHITECTURES:
            print(f"{name:16} {farthest(written(name, Path(folder)), emulator):.1e}", flush=True)
