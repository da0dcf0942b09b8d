"""Random sequences that come and go through a scheduler over real kernels, in a cache that is too small for them: each must
answer as it does alone, every row that was scored must have the bits of its lone run, and no page and no byte may stay.

python -m benchmarks.soak_scheduler --sequences 1000 --device cuda:0
"""

from __future__ import annotations

import json
import random
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click

from benchmarks.models import write_q4_k_m
from executor.choice.choice import GpuProfile
from executor.device import open_device
from executor.model.engine import PAGE_LEN, Engine
from executor.model.generation import LanguageModel
from executor.model.row_steps import StepScores
from executor.model.sampling import Sampler
from executor.model.scheduling.prompt_lookup import PromptLookup
from executor.model.scheduling.request import Request
from executor.model.scheduling.scheduler import Scheduler
from executor.model.scheduling.token_sequence import Stopped
from executor.model.step import Row

CONTEXT: Final = 3 * PAGE_LEN
SHARED: Final = (0, PAGE_LEN - 6, 0, PAGE_LEN + 4, 2 * PAGE_LEN - 3)
"""Tokens that a prompt begins with, as others do."""
OWN: Final = (30, 1, 5, 2, 11)
"""Tokens of its own behind them."""
ALIVE: Final = 12
"""Most sequences at a time, so that some are queued."""
EACH: Final = 20
"""How often each prompt is asked if they are many: its lone run counts for all."""


class BrokenCallback(Exception):
    """What the callbacks of some sequences raise."""


@dataclass(frozen=True)
class Wish:
    """What is asked of a scheduler. sampled: by a sampler with the wish's seed, else greedily."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampled: bool
    seed: int

    def submit(self, scheduler: Scheduler, **options: Any) -> Request:
        """Ask it."""
        sampler = Sampler(temperature=1.0, seed=self.seed) if self.sampled else Sampler()
        return scheduler.submit(self.prompt, max_tokens=self.max_tokens, sampler=sampler, stop_tokens=(), **options)


def wishes(count: int, vocab: int, chance: random.Random) -> list[Wish]:
    """Prompts of all lengths, many with equal beginnings; some answers fill the context, or pages that others then lack."""
    start = [chance.randrange(vocab) for _ in range(CONTEXT)]
    made = []
    for seed in range(count):
        common, own = SHARED[seed % len(SHARED)], OWN[seed // len(SHARED) % len(OWN)]
        prompt = (start[:common] + chance.choices(range(vocab), k=own))[:CONTEXT]
        fills_a_page = PAGE_LEN - 16 < len(prompt) <= PAGE_LEN
        most = CONTEXT if len(prompt) > CONTEXT - 8 else 16 if fills_a_page else chance.randint(1, 3)
        sampled = chance.random() < (0.8 if fills_a_page else 0.3)  # what is drafted is soon over, so nobody lacks a page
        made.append(Wish(tuple(prompt), most, sampled, seed))
    return made


class WatchedEngine(Engine):
    """An engine that knows which tokens each page was written from, so which text each scored row stands behind: rows behind
    equal texts must have equal logits, in whatever step and pages."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.compared = 0
        """Scored rows behind a text that was there before."""
        self.different = 0
        """Those of them with other bits than the first one had."""
        self._bits: dict[bytes, bytes] = {}
        self._tables: dict[int, tuple[int, ...]] = {}
        self._tokens: dict[tuple[int, int], int] = {}

    def set_table(self, slot: int, pages: Sequence[int], window: Sequence[int | None] | None = None) -> None:
        super().set_table(slot, pages, window)
        self._tables[slot] = tuple(pages)

    def step(self, rows: Sequence[Row]) -> StepScores:
        scores = super().step(rows)
        for row in rows:
            self._tokens[self._place(row.slot, row.position)] = row.token
        for index, row in enumerate(row for row in rows if row.scored):
            text = array("L", (self._tokens[self._place(row.slot, at)] for at in range(row.position + 1)))
            bits = blake2b(scores.logits(index).tobytes(), digest_size=16).digest()
            first = self._bits.setdefault(blake2b(text.tobytes(), digest_size=16).digest(), bits)
            self.compared += first is not bits
            self.different += first != bits
        return scores

    def _place(self, slot: int, position: int) -> tuple[int, int]:
        return self._tables[slot][position // self.page_len], position % self.page_len


def soak(model: LanguageModel, sequences: int, *, slots: int, pages: int, rows: int, seed: int = 1) -> dict[str, Any]:
    """Run so many sequences, and say what became of them. pages: of PAGE_LEN positions; `wrong` is empty if all is well."""
    chance = random.Random(seed)
    model.decoder.rest()  # as an engine would have it
    model.device.synchronize()
    before = model.device.memory().allocated
    engine = WatchedEngine(model.decoder, slots=slots, pages=pages, context=CONTEXT, rows=rows)
    try:
        asked = wishes(max(sequences // EACH, len(SHARED) * len(OWN)), engine.vocab, chance)
        start = time.perf_counter()
        expected = {wish: _alone(engine, model, wish) for wish in asked}
        lone_seconds, compared = time.perf_counter() - start, engine.compared
        found = _together(engine, model, [chance.choice(asked) for _ in range(sequences)], expected, chance)
        found["lone_seconds"], found["lone_sequences"] = lone_seconds, len(asked)
        found["rows_compared"], found["rows_of_other_bits"] = engine.compared - compared, engine.different
    finally:
        engine.free()
    model.device.synchronize()
    found["bytes_left"] = model.device.memory().allocated - before
    found["wrong"] = [name for name in WRONG if found[name]]
    return found


WRONG: Final = ("answers_not_alike", "rows_of_other_bits", "pages_left", "bytes_left", "bytes_grown")
"""What must be 0."""


def _alone(engine: Engine, model: LanguageModel, wish: Wish) -> tuple[tuple[int, ...], Stopped]:
    with Scheduler(engine, model.tokenizer, owner=model.device.owner) as scheduler:
        answer = wish.submit(scheduler).result()
    return answer.tokens, answer.stopped


def _together(
    engine: Engine,
    model: LanguageModel,
    asked: Sequence[Wish],
    expected: dict[Wish, tuple[tuple[int, ...], Stopped]],
    chance: random.Random,
) -> dict[str, Any]:
    """All of them, as they come; some are cancelled, and the callbacks of some fail."""
    start, coming = time.perf_counter(), list(asked)[::-1]
    requests: list[tuple[Wish, Request]] = []
    alive: list[Request] = []
    grown, captures, allocated = 0, -1, 0
    with Scheduler(engine, model.tokenizer, draft=PromptLookup, owner=model.device.owner) as scheduler:
        while coming or alive:
            for _ in range(min(chance.choice((0, 1, 2, 4)), len(coming), ALIVE - len(alive))):
                wish = coming.pop()
                alive.append(wish.submit(scheduler, on_token=_broken if chance.random() < 0.02 else None))
                requests.append((wish, alive[-1]))
            if alive and chance.random() < 0.01:
                chance.choice(alive).cancel()
            scheduler.step()
            alive = [request for request in alive if request.state != "finished"]
            known, allocated = allocated, model.device.memory().allocated
            grown += max(0, allocated - known) if captures == engine.steps.captures else 0
            captures = engine.steps.captures
        status = scheduler.status()
    return {
        "sequences": len(requests),
        "finished": status.finished,
        "answers_not_alike": sum(not _is_alike(request, *expected[wish]) for wish, request in requests),
        "pages_left": status.pages_held,
        "bytes_grown": grown,  # by steps of a size that was there before
        "steps": status.steps,
        "rows": status.rows,
        "preemptions": status.preemptions,
        "cached_prompt_tokens": sum(request.usage.cached_prompt_tokens for _, request in requests),
        "drafted_tokens": status.drafted_tokens,
        "accepted_tokens": status.accepted_tokens,
        "seconds": time.perf_counter() - start,
    }


def _broken(token: int) -> None:
    raise BrokenCallback


def _is_alike(request: Request, tokens: tuple[int, ...], stopped: Stopped) -> bool:
    """Whether an answer is that of the lone run, or the beginning of it if it was cut short."""
    if request.stopped == "failed":
        return isinstance(request.error, BrokenCallback) and tuple(request.tokens) == tokens[:1]
    if request.stopped == "cancelled":
        return tuple(request.tokens) == tokens[: len(request.tokens)]
    return (tuple(request.tokens), request.stopped) == (tokens, stopped)


@click.command()
@click.option("--sequences", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option("--device", default="auto", show_default=True)
@click.option(
    "--model", "path", type=click.Path(path_type=Path, exists=True), help="A GGUF file (default: tiny, random weights)."
)
@click.option("--precision", type=click.Choice(("accurate", "fast")), default="accurate", show_default=True)
@click.option("--slots", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--pages", type=click.IntRange(min=4), default=6, show_default=True, help=f"Of {PAGE_LEN} positions.")
@click.option("--rows", type=click.IntRange(min=1), default=16, show_default=True, help="Most of a step.")
@click.option("--seed", default=1, show_default=True)
def main(sequences: int, device: str, path: Path | None, precision: str, slots: int, pages: int, rows: int, seed: int) -> None:
    """Print one line of JSON; the exit code is 1 if something was wrong."""
    profile = GpuProfile(precision).with_rules("batch_invariant")
    with TemporaryDirectory() as folder, open_device(device) as opened:
        if path is None:
            path = Path(folder) / "tiny.gguf"
            write_q4_k_m("tiny", path)
        with LanguageModel.load(path, opened, context=CONTEXT, profile=profile) as model:
            found = soak(model, sequences, slots=slots, pages=pages, rows=rows, seed=seed)
        found |= {"model": path.name, "device": opened.name, "precision": precision, "kernels": "batch invariant"}
    click.echo(json.dumps(found))
    sys.exit(bool(found["wrong"]))


if __name__ == "__main__":
    main()
