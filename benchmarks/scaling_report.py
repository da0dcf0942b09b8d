"""What benchmarks/scaling.py says, as the tables of docs/scaling.md. It measures nothing.

python -m benchmarks.scaling_report
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import click

from benchmarks import scaling
from benchmarks.report import DOCS, replaced, table_row
from benchmarks.scaling import VALUE, gpu_hours, shape, step
from ptxgen.errors import ArgumentError

PAGE: Final = DOCS / "scaling.md"
NAMES: Final = {
    "llama-3.2-1b": "Llama-3.2-1B", "llama-3.1-8b": "Llama-3.1-8B", "llama-3.1-70b": "Llama-3.1-70B",
    "qwen3-0.6b": "Qwen3-0.6B",
}  # fmt: skip
MODELS: Final = ("llama-3.2-1b", "llama-3.1-8b", "llama-3.1-70b")
GPUS: Final = (1, 2, 4, 8)
MUST: Final = {"llama-3.1-8b": 1.2, "llama-3.1-70b": 1.6}
"""How many times one GPU's speed two should make."""
DEEP: Final = 8192
MANY: Final = 32
HOP: Final = 20.0
"""Us from one stage of a pipeline to the next; nobody has measured it here."""
ONE: Final = "decode-switches-h200.json"
VARIANT: Final = "repack, joined_products"
LATEST: Final = {"several-{}-two-h200.json": None, "several-{}-digits-two-h100.json": "several-{}-llama-cpp-two-h100.json"}
"""Our newest measurement of two GPUs of a kind, and llama.cpp's."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join([table_row(head), table_row(["---"] * len(head)), *map(table_row, rows)])


def check() -> str:
    """What was measured on one GPU beside what the model says, and how far that is off."""
    rows = []
    for one in scaling.record(ONE)["results"]:
        if one["variant"] == VARIANT and one["model"] in NAMES:
            rows.append((NAMES[one["model"]], 1, one["accurate"]["median"]))
    for one in scaling.record(scaling.DEPTHS)["results"]:
        if one["kind"] == "batch":
            rows.append((NAMES["llama-3.1-8b"], one["sequences"], one["tokens_per_second"]["median"]))
    models = {name: model for model, name in NAMES.items()}
    cells = []
    for name, count, measured in rows:
        said = count * 1e6 / step(shape(models[name]), rows=count).total
        cells.append((name, str(count), rounded(measured), rounded(said), f"{said / measured - 1:+.1%}"))
    return table(["model", "sequences", "measured, tokens/s", "by the model", "off by"], cells)


def by_now() -> str:
    """The newest of one sequence on one GPU and on two, `accurate`, of each kind of GPU, beside what llama.cpp gains."""
    cells = []
    for file, peer in LATEST.items():
        for model in MUST:
            name = file.format(model)
            found = scaling.record(name)
            one, two = ({run["gpus"]: run for run in found["results"] if run["way"] == "accurate"}[gpus] for gpus in (1, 2))
            if not (two["same_tokens"] and two["same_logits"]):
                raise ArgumentError(f"{name}: two GPUs have other bits than one")
            speeds = [rounded(of["tokens_per_second"]["median"]) for of in (one, two)]
            product = found["machine"]["product"].removeprefix("NVIDIA ").split()[0]
            theirs = "" if peer is None else f"{_best_of_two(peer.format(model)):.2f}"
            cells.append([product, NAMES[model], *speeds, f"{two['x']:.2f}", str(MUST[model]), theirs])
    return table(["two", "model", "one, tokens/s", "two", "x", "x must be", "x of llama.cpp"], cells)


def _best_of_two(name: str) -> float:
    """How many times one GPU's speed llama.cpp makes on two, by the faster of its splits."""
    return max(float(one["x"]) for one in scaling.record(name)["results"] if one["gpus"] == 2 and "x" in one)


def one_sequence() -> str:
    """Of each model and number of GPUs: a step of one row. Not of the smallest model, which is slower on several."""
    cells = []
    for model in MODELS[1:]:
        s = shape(model)
        for gpus in GPUS:
            found = step(s, ranks=gpus)
            speed, ratio = 1e6 / found.total, step(s).total / found.total
            deep = rounded(1e6 / step(s, ranks=gpus, depth=DEEP).total)
            cells.append([NAMES[model], str(gpus), rounded(speed), f"{ratio:.2f}", deep, f"{gpu_hours(speed, gpus):.3g}"])
    head = ["model", "GPUs", "tokens/s", "x", f"at {DEEP}", "GPU-hours a million"]
    return table(head, cells)


def many_sequences() -> str:
    """Of each number of GPUs: MANY sequences together, and each GPU as a copy of the model with as many. Not of models smaller
    than that whose rows were measured."""
    cells = []
    for model in MODELS[1:]:
        s = shape(model)
        alone = MANY * 1e6 / step(s, rows=MANY).total
        for gpus in GPUS:
            speed = MANY * 1e6 / step(s, rows=MANY, ranks=gpus).total
            cells.append([
                NAMES[model], str(gpus), rounded(speed), f"{gpu_hours(speed, gpus):.3g}", rounded(gpus * alone)
            ])  # fmt: skip
    head = ["model", "GPUs", "tokens/s", "GPU-hours a million", "tokens/s as copies"]
    return table(head, cells)


def pipeline() -> str:
    """MANY sequences of the 70B in a pipeline, beside the same GPUs as one tensor-parallel group and as copies."""
    s, cells = shape("llama-3.1-70b"), []
    for stages in GPUS[1:]:
        token, speed = scaling.pipelined(s, stages, MANY // stages, HOP)
        together = MANY * 1e6 / step(s, rows=MANY, ranks=stages).total
        copies = MANY * 1e6 / step(s, rows=MANY // stages).total
        waits = [f"{scaling.idle(stages, groups):.0%}" for groups in (1, stages)]
        cells.append([str(stages), rounded(1e6 / token), rounded(speed), rounded(together), rounded(copies), *waits])
    head = ["GPUs", "tokens/s of each", "of all", "tensor parallel", "copies", "a stage waits: 1 part", "as many as stages"]
    return table(head, cells)


def hosts() -> str:
    """What tensor parallel over two hosts would take of the 70B, in words."""
    s = shape("llama-3.1-70b")
    alone, two = step(s), step(s, ranks=2)
    count = 4 * s.layers + 1
    saved = alone.total - (two.total - two.gathers)
    return "\n".join([
        f"A step of Llama-3.1-70B has {count} gathers. Over two hosts each may take {saved / count:.0f} us at most for the",
        f"pair to be as fast as one GPU: sharing saves {saved / 1e3:.1f} ms of {alone.total / 1e3:.1f}. A stage of a pipeline",
        f"sends {s.hidden * VALUE // 1024} KiB a row, once.",
    ])  # fmt: skip


def experts() -> str:
    """How many of a layer's experts a step reads."""
    counts = (1, 4, 16, 32, 128)
    cells = [
        [f"{chosen} of {experts}", *(f"{scaling.touched(experts, chosen, rows):.0%}" for rows in counts)]
        for experts, chosen in ((8, 2), (128, 8), (256, 8))
    ]
    return table(["experts of a row", *(f"{rows} row{'s' * (rows > 1)}" for rows in counts)], cells)


def memory() -> str:
    """What a model and its sequences take of the GPUs' memory."""
    cells = []
    for model in MODELS:
        s = shape(model)
        cache = scaling.cache_bytes(s, 1) / 2  # f16
        room = 0.9 * HELD - scaling.weight_bytes(s)
        words = [f"{scaling.weight_bytes(s) / 1e9:.1f}", f"{cache / 1024:.0f}", f"{room / cache / 1e6:.2f}"]
        cells.append([NAMES[model], *words])
    return table(
        ["model, Q4_K_M", "weights of a step, GB", "cache a token in f16, KiB", "million tokens beside them on one H200"], cells
    )


HELD: Final = float(scaling.record(scaling.PARTS)["machine"]["memory_bytes"])


def rounded(speed: float) -> str:
    """Three digits, or all before the point."""
    return f"{speed:.0f}" if speed >= 100 else f"{speed:.3g}"


SECTIONS: Final[dict[str, Callable[[], str]]] = {
    "check": check,
    "by now": by_now,
    "one sequence": one_sequence,
    "many sequences": many_sequences,
    "memory": memory,
    "pipeline": pipeline,
    "hosts": hosts,
    "experts": experts,
}


def markers(name: str) -> tuple[str, str]:
    """The lines of the page that a table stands between."""
    return f"<!-- {name}: written by benchmarks/scaling_report.py -->", f"<!-- end of {name} -->"


def written(page: str) -> str:
    """The page with all tables as they are now. ArgumentError unless it has the markers of each."""
    for name, make in SECTIONS.items():
        page = replaced(page, make(), *markers(name))
    return page


@click.command()
@click.option("--page", type=click.Path(exists=True, path_type=Path), default=PAGE, help="Gets the tables.")
def main(page: Path) -> None:
    """Write the tables of the model of benchmarks/scaling.py."""
    page.write_text(written(page.read_text()))


if __name__ == "__main__":
    main()
