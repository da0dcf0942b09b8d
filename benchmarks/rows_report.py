"""The figures of benchmarks/many_rows.py as a reader wants them: a table in docs/performance.md and curves beside it. It
measures nothing.

python -m benchmarks.rows_report benchmarks/results/rows-llama-3.1-8b-*-h200.json    # needs the extra `bench`
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from benchmarks.record import machine
from benchmarks.report import DOCS, replaced, table_row
from executor.measure.speed import Kind
from executor.measure.speed_plot import OURS, THEIRS, Curve, abscissa, draw

BEGIN, END = "<!-- rows figures: written by benchmarks/rows_report.py -->", "<!-- end of rows figures -->"
STYLES: Final = {"accurate": (OURS, "o"), "fast": ("#2da44e", "^"), "llama.cpp": (THEIRS, "s")}
"""Colour and marker of a curve."""
KINDS: Final[tuple[Kind, ...]] = ("prompt", "depth", "batch")

Record = Mapping[str, Any]


class Case(NamedTuple):
    """What was timed, as executor/measure/speed.py has it."""

    kind: Kind
    tokens: int
    depth: int
    sequences: int

    def __str__(self) -> str:
        if self.kind == "prompt":
            return f"prompt of {self.tokens}"
        if self.kind == "depth":
            return f"one sequence at depth {self.depth}"
        return f"{self.sequences} sequence{'s' * (self.sequences > 1)}, depth {self.depth}"


class Cell(NamedTuple):
    """Tokens a second: median, least, most."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        """With least and most where rounds differ."""
        spread = "" if self.least == self.most else f" ({_rounded(self.least)} to {_rounded(self.most)})"
        return f"{_rounded(self.median)}{spread}"


def cells(records: Iterable[Record]) -> dict[str, dict[Case, Cell]]:
    """By column, `accurate`, `fast` and `llama.cpp`: of llama.cpp the faster of what it did beside each precision.
    ClickException for a precision twice, or records of several models or GPUs."""
    columns: dict[str, dict[Case, Cell]] = {}
    theirs: dict[Case, Cell] = {}
    of: set[tuple[str, str]] = set()
    for record in records:
        of.add((record["model"], machine(record)))
        if record["precision"] in columns or len(of) > 1:
            raise click.ClickException("a table is for one model on one GPU, with one file for each precision")
        ours = columns[record["precision"]] = {}
        for result in record["results"]:
            case = _case(result)
            ours[case] = _cell(result["tokens_per_second"])
            if result["llama_cpp_tokens_per_second"] is not None:
                other = _cell(result["llama_cpp_tokens_per_second"])
                theirs[case] = max(other, theirs.get(case, other))
    return columns | ({"llama.cpp": theirs} if theirs else {})


def _cell(speed: Mapping[str, float]) -> Cell:
    return Cell(speed["median"], speed["least"], speed["most"])


def markdown(records: Sequence[Record]) -> str:
    """Cases down, precisions and llama.cpp across, with the ratio to llama.cpp and the share of the read limit; below it the
    model, the GPU, the commits and our commands. The records have llama.cpp's commands."""
    columns = cells(records)
    theirs = columns.get("llama.cpp", {})
    precisions = [name for name in columns if name != "llama.cpp"]
    shares = {
        (record["precision"], _case(result)): result["share_of_read_limit"]
        for record in records
        for result in record["results"]
    }
    head = ["tokens/s", *(part for name in precisions for part in (f"`{name}`", "of limit", "x"))] + ["llama.cpp"] * bool(
        theirs
    )
    lines = [table_row(head), table_row(["---"] * len(head))]
    for case in sorted({case for column in columns.values() for case in column}, key=lambda c: (KINDS.index(c.kind), c)):
        row = [str(case)]
        for name in precisions:
            ours, other, share = columns[name].get(case), theirs.get(case), shares.get((name, case))
            row += ["" if ours is None else str(ours), "" if share is None else f"{share:.0%}"]
            row.append("" if ours is None or other is None else f"{ours.median / other.median:.2f}")
        lines.append(table_row([*row, *([str(theirs.get(case, ""))] if theirs else [])]))
    return "\n".join([*lines, "", *_footnotes(records)])


def _footnotes(records: Sequence[Record]) -> list[str]:
    """What all figures are of, a line for each record."""
    rounds = min(result["tokens_per_second"]["rounds"] for record in records for result in record["results"])
    said = "one round" if rounds == 1 else f"medians of {rounds} rounds (least to most)"
    notes = [
        f"{records[0]['model']}; {machine(records[0])}; {said}. x: times llama.cpp's speed; of limit: of the speed at which a "
        f"step only reads weights and cache.",
        "",
    ]
    for record in records:
        peer = record["llama_cpp"]
        commits = f"commit {record['commit'][:7]}"
        if peer is not None:
            commits += f", llama.cpp {peer.get('build_commit', '')} (cache in {peer.get('type_k', '')})"
        notes.append(f"* `{record['precision']}`: cache in {record['kv_type']}, {commits}, `{record['command']}`")
    return notes


def _case(result: Mapping[str, Any]) -> Case:
    return Case(result["kind"], result["tokens"], result["depth"], result["sequences"])


def _rounded(speed: float) -> str:
    return f"{speed:.0f}" if speed >= 100 else f"{speed:.3g}"


def panels(records: Sequence[Record]) -> dict[Kind, list[Curve]]:
    """The curves of each kind of case: both precisions, llama.cpp, and the limit of reading (of the first record)."""
    columns = cells(records)
    drawn: dict[Kind, list[Curve]] = {}
    for kind in KINDS:
        curves = []
        for name, column in columns.items():
            points = {abscissa(*case): cell.median for case, cell in column.items() if case.kind == kind}
            if points:
                curves.append(Curve(name, points, *STYLES[name]))
        limits = {
            abscissa(*_case(result)): result["tokens_per_second"]["median"] / result["share_of_read_limit"]
            for result in records[0]["results"]
            if result["kind"] == kind and result["share_of_read_limit"]
        }
        if limits:
            curves.append(Curve("limit of reading", limits, "#7f8790"))
        if curves:
            drawn[kind] = curves
    return drawn


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--page", type=click.Path(exists=True, path_type=Path), default=DOCS / "performance.md", help="Gets the table.")
@click.option("--plot", "picture", type=click.Path(path_type=Path), default=DOCS / "rows.svg", help="Gets the curves.")
def main(results: tuple[Path, ...], page: Path, picture: Path) -> None:
    """Write the table and the curves of these RESULTS of benchmarks/many_rows.py."""
    records = [json.loads(path.read_text()) for path in results]
    text = replaced(page.read_text(), section(records, picture.name), BEGIN, END)
    draw(panels(records), f"{records[0]['model']}; {machine(records[0])}", picture)
    page.write_text(text)


def section(records: Sequence[Record], picture: str) -> str:
    """All that stands between the markers."""
    words = "Tokens a second over the length of prompts, depth, and sequences, beside llama.cpp"
    return f"![{words}]({picture})\n\n{markdown(records)}"


if __name__ == "__main__":
    main()
