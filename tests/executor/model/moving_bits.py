"""Runs a model the same way again and again and says how often its bits differ from those of a calm run, in which launches wait
for each other and copy nothing ahead: a bit that moves is a race. tests/gpu/test_races_gpu.py runs it where there are races."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Final

import numpy as np

from executor.choice.choice import GpuProfile
from executor.device.protocol import Device
from executor.launch.modules import Modules
from executor.model.engine import PAGE_LEN, Engine
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler
from executor.model.step import Row

CONTEXT: Final = 4 * PAGE_LEN
TEXT: Final = 40
"""Tokens whose logits are compared, one after another, and that an answer of as many follows."""
POSITIONS: Final = 6
"""Steps of several sequences."""

Way = Callable[[LanguageModel, int], Iterator[bytes]]
"""Runs a model so many times, and gives the bits of each."""


def calm(profile: GpuProfile) -> GpuProfile:
    """The same kernels' results by launches that begin when the one before has ended, and read weights where they lie."""
    return profile.without("dependent_launches", "weight_pipelines", "persistent_layers")


def ids(model: LanguageModel, count: int) -> list[int]:
    """Tokens by chance, the same each time."""
    return [int(token) for token in np.random.default_rng(7).integers(model.spec.vocab, size=count)]


def logits(model: LanguageModel, times: int) -> Iterator[bytes]:
    """Of one sequence, token by token."""
    for _ in range(times):
        yield model.logits(ids(model, TEXT)).tobytes()


def answers(model: LanguageModel, times: int) -> Iterator[bytes]:
    """Of a prompt that is read at once and a greedy answer, whose steps are started ahead."""
    for _ in range(times):
        model.forget()
        answer = model.generate(ids(model, TEXT), max_tokens=TEXT, sampler=Sampler(), stop_tokens=())
        yield np.array(answer.tokens).tobytes()


def sequences(count: int) -> Way:
    """So many at a time, a token of each in a step."""

    def way(model: LanguageModel, times: int) -> Iterator[bytes]:
        tokens = np.array(ids(model, count * POSITIONS)).reshape(POSITIONS, count)
        with _engine(model, count, 1) as engine:
            for _ in range(times):
                yield b"".join(
                    _step(engine, [Row(slot, int(token), position, True) for slot, token in enumerate(row)])
                    for position, row in enumerate(tokens)
                )

    return way


def prompt(model: LanguageModel, times: int) -> Iterator[bytes]:
    """All tokens of a sequence in one step, of which the last four are scored."""
    tokens = ids(model, CONTEXT)
    with _engine(model, 1, CONTEXT // PAGE_LEN) as engine:
        for _ in range(times):
            yield _step(engine, [Row(0, token, at, at >= CONTEXT - 4) for at, token in enumerate(tokens)])


WAYS: Final[dict[str, Way]] = {
    "logits": logits,
    "answers": answers,
    "8 sequences": sequences(8),
    "32 sequences": sequences(32),
    "a prompt": prompt,
}
ALONE: Final = ("logits", "answers")


def moving(
    path: Path, device: Device, profile: GpuProfile, times: int, ways: Collection[str] = tuple(WAYS), *,
    quiet: Device | None = None, modules: Modules | None = None,
) -> dict[str, str]:  # fmt: skip
    """By way, how many of so many runs have other bits than the calm run has, where any do. quiet: where that runs, if not on
    the same device, whose kernels `modules` has."""
    at_rest = _bits(path, quiet or device, calm(profile), 1, ways, modules)
    found = _bits(path, device, profile, times, ways, modules if quiet is None else None)
    different = {way: sum(bits != at_rest[way][0] for bits in runs) for way, runs in found.items()}
    return {way: f"{count} of {times} runs differ" for way, count in different.items() if count}


def _bits(
    path: Path, device: Device, profile: GpuProfile, times: int, ways: Collection[str], modules: Modules | None
) -> dict[str, list[bytes]]:  # fmt: skip
    with LanguageModel.load(path, device, context=CONTEXT, profile=profile, modules=modules) as model:
        return {way: [blake2b(bits, digest_size=16).digest() for bits in WAYS[way](model, times)] for way in ways}


@contextmanager
def _engine(model: LanguageModel, slots: int, pages: int) -> Iterator[Engine]:
    """With so many pages for each slot."""
    rows = max(slots, pages * PAGE_LEN if slots == 1 else 0)
    engine = Engine(model.decoder, slots=slots, pages=slots * pages, context=pages * PAGE_LEN, rows=rows)
    try:
        for slot in range(slots):
            engine.set_table(slot, range(slot * pages, (slot + 1) * pages))
        yield engine
    finally:
        engine.free()


def _step(engine: Engine, rows: list[Row]) -> bytes:
    scores = engine.step(rows)
    return b"".join(scores.logits(number).tobytes() for number in range(sum(row.scored for row in rows)))
