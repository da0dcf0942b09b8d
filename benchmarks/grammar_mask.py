"""What a grammar costs: the step of greedy answers that a JSON schema holds to its form, and of as many free ones, of one
sequence and of several in a scheduler; and what the host does for a step, which is done beside the GPU.

python -m benchmarks.grammar_mask --synthetic llama-3.1-8b --device cuda:0 -o benchmarks/results/grammar-mask-8b-h200.json
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.given_model import given_model
from benchmarks.models import MODELS
from benchmarks.record import write
from executor.api.load import load_model
from executor.model.engine import PAGE_LEN
from executor.model.generation import LanguageModel
from executor.model.row_steps import CHUNK
from executor.model.sampling import Sampler
from executor.model.scheduling.scheduler import Scheduler
from executor.text.grammar import Grammar, GrammarGuide, compute_together
from ptxgen.commands.options import whole_numbers

TARGET: Final = 0.05
"""Of a step that a grammar may cost."""
PERSON: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["person", "animal", "thing"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}
SCHEMA: Final = {"type": "array", "items": PERSON, "minItems": 1000}
"""More than an answer has room for, so that none ends before the others."""
PROMPT: Final = 16

Row = dict[str, Any]


@click.command()
@click.option("--model", type=click.Path(path_type=Path), help="A GGUF file.")
@click.option("--synthetic", type=click.Choice(sorted(MODELS)), help="A model with random weights and a vocabulary instead.")
@click.option("--device", default="auto")
@click.option(
    "--sequences", default="1,8,32", show_default=True, help="Numbers of sequences in a scheduler; one alone comes first."
)
@click.option("--tokens", default=128, type=click.IntRange(3), show_default=True, help="Of an answer.")
@click.option("--rounds", default=5, type=click.IntRange(1), show_default=True, help="Of each, in turn, after one for nothing.")
@click.option("--commit", help="What was timed; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def main(
    model: Path | None, synthetic: str | None, device: str, sequences: str, tokens: int, rounds: int, commit: str | None,
    output: Path,
) -> None:  # fmt: skip
    """Time steps with a grammar and without one, and write the result as JSON."""
    counts = whole_numbers("--sequences", sequences, "numbers of sequences", "1,8,32", low=1)
    with given_model(model, synthetic) as path:
        context = -(-(PROMPT + tokens) // PAGE_LEN) * PAGE_LEN
        with load_model(path, device, context=context) as loaded:
            grammar = Grammar.json_schema(SCHEMA)
            results = [timed(loaded, grammar, count, tokens, rounds) for count in (0, *counts)]
            machine = loaded.device.describe()
    record = {
        "what": "a step of greedy answers that a JSON schema holds to its form, and of free ones; share: what the first takes "
        "longer; mask and accept: what the host does for the grammars of a step, beside the GPU",
        "unit": f"us a step, the median of {rounds} rounds, each the mean of its steps; mask, accept: over all steps",
        "model": synthetic or path.name,
        "synthetic_weights": synthetic is not None,
        "prompt_tokens": PROMPT,
        "answer_tokens": tokens,
        "host_cpus": len(os.sched_getaffinity(0)),
        "target": TARGET,
        "results": results,
    }
    write(output, record, machine, commit)
    for result in results:
        click.echo(
            f"{result['way']}: {result['free_us']} us a step, with a grammar {result['bound_us']} us: {result['share']:+.1%}, "
            f"at most {TARGET:.0%}; host: mask {result['mask_us']['median']} us, accept {result['accept_us']['median']} us"
        )


def timed(model: LanguageModel, grammar: Grammar, count: int, tokens: int, rounds: int) -> Row:
    """So many sequences in a scheduler, 0 for one without; both kinds in turn, since a GPU's clock may move."""
    draw = random.Random(count)
    prompts = [[draw.randrange(256) for _ in range(PROMPT)] for _ in range(count or 1)]
    ways: dict[str, Grammar | None] = {"free": None, "bound": grammar}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    said: list[list[int]] = []
    several = model.scheduler(slots=count, context=model.context, rows=max(CHUNK, PROMPT * count)) if count else None
    with several or nullcontext():
        for _ in range(rounds + 1):
            for way, rules in ways.items():
                step, said = _several(several, prompts, rules, tokens) if several else _alone(model, prompts[0], rules, tokens)
                seconds[way].append(step)
    free, bound = (statistics.median(seconds[way][1:]) for way in ways)
    return {
        "way": f"scheduler, {count} sequences" if count else "one sequence",
        "sequences": count or 1,
        "free_us": _us(free),
        "bound_us": _us(bound),
        "share": round(bound / free - 1, 4),
        **_host(model, grammar, said),
        "answer": model.tokenizer.decode(said[0])[:100],
    }


def _alone(model: LanguageModel, prompt: list[int], grammar: Grammar | None, tokens: int) -> tuple[float, list[list[int]]]:
    """Seconds of a step after the first, and the answer."""
    model.forget()
    made = model.generate(prompt, max_tokens=tokens, sampler=Sampler(), stop_tokens=(), grammar=grammar)
    return made.decode_seconds / (len(made.tokens) - 1), [made.tokens]


def _several(
    scheduler: Scheduler, prompts: Sequence[list[int]], grammar: Grammar | None, tokens: int
) -> tuple[float, list[list[int]]]:  # fmt: skip
    """Seconds of a step in which all decode, and the answers."""
    requests = [scheduler.submit(each, max_tokens=tokens, stop_tokens=(), grammar=grammar) for each in prompts]
    while not all(request.tokens for request in requests):
        scheduler.step()
    start, before = time.perf_counter(), scheduler.status().steps
    scheduler.run()
    return (time.perf_counter() - start) / (scheduler.status().steps - before), [request.tokens for request in requests]


def _host(model: LanguageModel, grammar: Grammar, answers: Sequence[Sequence[int]]) -> Row:
    """What the host does for these answers, a step: find out what is allowed, and go on with the tokens that were chosen."""
    guides = [GrammarGuide(grammar, model.tokenizer, ()) for _ in answers]
    taken: dict[str, list[float]] = {"mask_us": [], "accept_us": []}
    for step in zip(*answers, strict=True):
        start = time.perf_counter()
        compute_together(guides)
        for guide in guides:
            guide.allowed(model.spec.vocab)
        found = time.perf_counter()
        for guide, token in zip(guides, step, strict=True):
            guide.accept(token)
        taken["mask_us"].append(found - start)
        taken["accept_us"].append(time.perf_counter() - found)
    return {
        name: {"median": _us(statistics.median(all_steps)), "mean": _us(statistics.fmean(all_steps))}
        for name, all_steps in taken.items()
    }


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)


if __name__ == "__main__":
    main()
