"""The figures of benchmarks/one_sequence.py as a reader wants them: a table in docs/performance.md and a picture beside it. It
measures nothing.

python -m benchmarks.one_sequence_report benchmarks/results/one-sequence-*h200.json    # needs the extra `bench`
python -m benchmarks.one_sequence_report --of h100 benchmarks/results/one-sequence-h100.json
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.one_sequence import SIX
from benchmarks.record import machine
from benchmarks.report import DOCS, replaced, table_row
from executor.base.environment import PRECISIONS
from executor.measure.roofline import FAINT, GREY, STYLE
from executor.measure.speed_plot import OURS, THEIRS
from ptxgen.files import replacing

USUAL: Final = "h200"
"""The GPU whose figures are meant where none is named."""
COLOURS: Final = {"accurate": OURS, "fast": "#2da44e"}
MUST: Final = "#cf4a55"
WIDTH: Final = 0.36
"""Of a bar; models are 1 apart."""

Record = Mapping[str, Any]


def markers(of: str) -> tuple[str, str]:
    """What stands before and after the figures of a GPU."""
    which = "" if of == USUAL else f" of {of}"
    return (
        f"<!-- one sequence figures{which}: written by benchmarks/one_sequence_report.py -->",
        f"<!-- end of one sequence figures{which} -->",
    )


def picture_of(of: str) -> Path:
    """Where the bars of a GPU are drawn."""
    return DOCS / ("one-sequence.svg" if of == USUAL else f"one-sequence-{of}.svg")


@dataclass(frozen=True)
class Figure:
    """Of one model, tokens a second: ours by precision and the faster way of llama.cpp, each as JSON has it (median, least,
    most); limit: at which a step would only read weights and cache, None where the device's is not known; must: how many times
    llama.cpp's speed is wanted."""

    model: str
    ours: Mapping[str, Mapping[str, float]]
    theirs: Mapping[str, float]
    their_way: str
    limit: float | None
    must: float

    def ratio(self, precision: str) -> float:
        """Times llama.cpp's speed."""
        return self.ours[precision]["median"] / self.theirs["median"]

    def share(self, precision: str) -> float | None:
        """Of the limit."""
        return None if self.limit is None else self.ours[precision]["median"] / self.limit


def figures(records: Sequence[Record]) -> list[Figure]:
    """In the order of SIX. ClickException for a model twice, one that is none of them, and records of several machines or of
    answers of several lengths."""
    if len({(machine(record), record["tokens"]) for record in records}) > 1:
        raise click.ClickException("a table is for one GPU and driver, and answers of one length")
    found = [_figure(record, result) for record in records for result in record["results"]]
    order = [subject.name for subject in SIX.values()]
    names = [figure.model for figure in found]
    if len(set(names)) < len(names):
        raise click.ClickException(f"{next(name for name in names if names.count(name) > 1)} is there twice")
    return sorted(found, key=lambda figure: order.index(figure.model))


def _figure(record: Record, result: Mapping[str, Any]) -> Figure:
    must = next((subject.must for subject in SIX.values() if subject.name == result["model"]), None)
    if must is None:
        raise click.ClickException(f"{result['model']} is none of {', '.join(subject.name for subject in SIX.values())}")
    reads, step = record["read_limit_bytes_per_second"], result["weight_bytes_a_step"] + result["cache_bytes_a_step"]
    way, theirs = max(result["llama_cpp"].items(), key=lambda one: float(one[1]["median"]))
    return Figure(result["model"], result["tokens_per_second"], theirs, way, None if reads is None else reads / step, must)


def markdown(records: Sequence[Record]) -> str:
    """Models down; for each precision tokens a second, times llama.cpp's and the share of the read limit; below it what the
    figures are of, and how llama.cpp was run."""
    head = [
        "tokens/s",
        *(part for name in PRECISIONS for part in (f"`{name}`", "x", "of limit")),
        "limit",
        "llama.cpp",
        "x must be",
    ]
    lines = [table_row(head), table_row(["---"] * len(head))]
    for one in figures(records):
        cells = [one.model]
        for name in PRECISIONS:
            share = one.share(name)
            cells += [_spread(one.ours[name]), f"{one.ratio(name):.2f}", "" if share is None else f"{share:.0%}"]
        limit = "" if one.limit is None else _rounded(one.limit)
        lines.append(table_row([*cells, limit, f"{_spread(one.theirs)}, {one.their_way}", f"{one.must:.1f}"]))
    return "\n".join([*lines, "", *_footnotes(records)])


def _footnotes(records: Sequence[Record]) -> list[str]:
    rounds = min(record["rounds"] for record in records)
    notes = [
        f"Random weights; {machine(records[0])}; answers of {records[0]['tokens']} tokens, medians of {rounds} rounds (least "
        f"to most). x: times llama.cpp's speed, of its two ways the faster; limit: a step only reads weights and cache.",
        "",
    ]
    for record in records:
        build = record["results"][0]["llama_cpp_facts"].get("build_commit", "")
        notes.append(f"* commit {record['commit'][:7]}, llama.cpp {build}, `{record['command']}`")
    return notes


def _spread(speed: Mapping[str, float]) -> str:
    return f"{_rounded(speed['median'])} ({_rounded(speed['least'])} to {_rounded(speed['most'])})"


def _rounded(speed: float) -> str:
    """Four digits or all before the point."""
    return f"{speed:.0f}" if speed >= 1000 else f"{speed:.4g}"


def draw(records: Sequence[Record], path: Path) -> None:
    """Write an SVG: for each model a bar a precision as high as times llama.cpp's speed, with tokens a second on it; a line at
    llama.cpp's, a line a model at the read limit, and a mark where it must be."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    drawn = figures(records)
    places = range(len(drawn))
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "one sequence"}):
        canvas = Canvas(figsize=(1.7 * len(drawn) + 1.2, 3.8), layout="constrained")
        axes = canvas.subplots()
        axes.set_title(f"One sequence, random weights; {machine(records[0])}")
        for side, (name, colour) in zip((-0.5, 0.5), COLOURS.items(), strict=True):
            heights = [figure.ratio(name) for figure in drawn]
            bars = axes.bar([at + side * WIDTH for at in places], heights, WIDTH, color=colour, label=f"{name}, tokens/s")
            axes.bar_label(bars, [_rounded(figure.ours[name]["median"]) for figure in drawn], padding=2, fontsize=8)
        axes.axhline(1, color=THEIRS, linewidth=1.4, label="llama.cpp")
        top = 1.3 * max(max(*map(figure.ratio, PRECISIONS), figure.must) for figure in drawn)
        limits = {at: figure.limit / figure.theirs["median"] for at, figure in enumerate(drawn) if figure.limit is not None}
        seen = [at for at, limit in limits.items() if limit <= top]
        ends = {"xmin": [at - 0.45 for at in seen], "xmax": [at + 0.45 for at in seen]}
        axes.hlines([limits[at] for at in seen], **ends, color=GREY, linestyle=":", label="limit of reading")
        for at in limits.keys() - set(seen):  # a small model's step does not only read, and the bars would be low
            axes.text(at, 0.97 * top, f"limit of reading at {limits[at]:.1f}", ha="center", va="top", fontsize=8)
        axes.set_ylim(0, top)
        axes.plot(places, [figure.must for figure in drawn], "D", color=MUST, markersize=4, label="must be")
        names = [f"{figure.model}\n{_rounded(figure.theirs['median'])} by llama.cpp" for figure in drawn]
        axes.set_xticks(places, names, fontsize=8)
        axes.set_ylabel("times llama.cpp")
        axes.grid(axis="y", color=FAINT, linewidth=0.5)
        axes.set_axisbelow(True)
        axes.legend(frameon=False, fontsize=8, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.16))
        with replacing(path) as stream:
            canvas.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})


def section(records: Sequence[Record], picture: str) -> str:
    """All that stands between the markers."""
    return f"![Tokens a second of one sequence, beside llama.cpp and the limit of reading]({picture})\n\n{markdown(records)}"


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--of", default=USUAL, show_default=True, help="The GPU, as its section of the page is called.")
@click.option("--page", type=click.Path(exists=True, path_type=Path), default=DOCS / "performance.md", help="Gets the table.")
@click.option("--plot", "picture", type=click.Path(path_type=Path), help="Gets the bars (default: beside the page's others).")
def main(results: tuple[Path, ...], of: str, page: Path, picture: Path | None) -> None:
    """Write the table and the picture of these RESULTS of benchmarks/one_sequence.py."""
    records = [json.loads(path.read_text()) for path in results]
    picture = picture or picture_of(of)
    text = replaced(page.read_text(), section(records, picture.name), *markers(of))
    draw(records, picture)
    page.write_text(text)


if __name__ == "__main__":
    main()
