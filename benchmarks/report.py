"""The GEMV figures as a reader wants them: a table in docs/performance.md and a plot beside it, from the JSON of
benchmarks/gemv.py. It measures nothing.

python -m benchmarks.report benchmarks/results/gemv-h200.json    # needs the extra: pip install -e ".[bench]"
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import click
import numpy as np

from benchmarks.floor import READ_LIMIT, chain_microseconds
from ptxgen.errors import ArgumentError

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- gemv figures: written by benchmarks/report.py -->", "<!-- end of gemv figures -->"
FORMATS = {"q4k": "Q4_K", "q6k": "Q6_K"}
SHOWN: Final = ((2048, 2048), (4096, 4096), (4096, 14336), (14336, 4096), (4096, 128256))
"""K and N of the shapes in the table; the plot shows every shape."""
KERNEL = re.compile(rf"(?:(?P<strategy>\w+)_)?(?P<format>{'|'.join(FORMATS)})_gemv")


@dataclass(frozen=True)
class Figure:
    """The time of one kernel for one shape: the best of the parameters that were tried."""

    format: str
    strategy: str
    digits: int
    """int8 planes of an activation; 0: it is an f32."""
    k: int
    n: int
    nbytes: int
    microseconds: float

    @property
    def row(self) -> str:
        return self.strategy if not self.digits else f"{self.strategy}, {self.digits} digit{'s' * (self.digits > 1)}"

    @property
    def terabytes_per_second(self) -> float:
        return self.nbytes / self.microseconds / 1e6

    @property
    def share_of_floor(self) -> float:
        return chain_microseconds(self.nbytes) / self.microseconds


def figures(results: Iterable[dict[str, Any]]) -> list[Figure]:
    """What `results` of benchmarks/gemv.py say of Q4_K and Q6_K, sorted by format, strategy, digits, bytes and K."""
    best: dict[tuple[str, str, int, int, int], Figure] = {}
    for result in results:
        name = KERNEL.fullmatch(result["kernel"])
        if name is None:
            continue
        parameters = result["parameters"]
        figure = Figure(
            FORMATS[name["format"]], name["strategy"] or "basic", int(parameters.get("digits", 0)), int(parameters["k"]),
            int(parameters["n"]), int(result["weight_bytes"]), float(result["microseconds"]["median"]),
        )  # fmt: skip
        key = (figure.format, figure.strategy, figure.digits, figure.k, figure.n)
        if key not in best or figure.microseconds < best[key].microseconds:
            best[key] = figure
    return sorted(best.values(), key=lambda f: (f.format, f.strategy, f.digits, f.nbytes, f.k))


def rows(measured: Sequence[Figure]) -> list[list[Figure]]:
    """One list a strategy and number of digits, the slowest first by the mean share of the floor."""
    grouped: dict[str, list[Figure]] = {}
    for figure in measured:
        grouped.setdefault(figure.row, []).append(figure)
    return sorted(grouped.values(), key=lambda row: (fmean(figure.share_of_floor for figure in row), row[0].row))


def markdown(measured: Sequence[Figure]) -> str:
    """A table a format: strategies down, the K x N of SHOWN across, the best time of a shape in bold."""
    parts = []
    shown = [figure for figure in measured if (figure.k, figure.n) in SHOWN]
    for format in sorted({figure.format for figure in shown}):
        chosen = [figure for figure in shown if figure.format == format]
        sizes = {(f.k, f.n): f.nbytes for f in sorted(chosen, key=lambda f: (f.nbytes, f.k))}
        least = {size: min(f.microseconds for f in chosen if (f.k, f.n) == size) for size in sizes}
        lines = [
            table_row([format, *(f"{k} x {n}" for k, n in sizes)]),
            table_row(["---"] * (1 + len(sizes))),
            table_row(["MB; floor us", *(f"{size / 1e6:.1f}; {chain_microseconds(size):.2f}" for size in sizes.values())]),
        ]
        for row in rows(chosen):
            of_size = {(figure.k, figure.n): figure for figure in row}
            cells = (_cell(of_size[size], least[size]) if size in of_size else "" for size in sizes)
            lines.append(table_row([row[0].row, *cells]))
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def table_row(cells: Sequence[str]) -> str:
    """One line of a table in Markdown, whose cells touch their bars; every report writes its lines here."""
    return f"|{'|'.join(cells)}|"


def _cell(figure: Figure, least: float) -> str:
    time = f"{figure.microseconds:.3g}"
    time = f"**{time}**" if figure.microseconds == least else time
    return f"{time}; {figure.share_of_floor:.0%}"


def replaced(document: str, text: str, begin: str = BEGIN, end: str = END) -> str:
    """The document with `text` between the two markers. ArgumentError if it has not each of them once, in this order."""
    before, _, rest = document.partition(begin)
    _, found, after = rest.partition(end)
    if not found or document.count(begin) != 1 or document.count(end) != 1:
        raise ArgumentError(f"the document needs the line {begin} and below it the line {end}, each once")
    return f"{before}{begin}\n{text}\n{end}{after}"


def plot(measured: Sequence[Figure], path: Path) -> None:
    """Bytes of weights against TB/s, a panel a format; greys and colours that can be read on white and on black."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    grey, faint = "#7f8790", "#7f879055"
    colours = ("#2f81f7", "#d9822b", "#2da44e", "#cf4a55", "#9a6fe0", "#b07d2b", "#d6609c", "#1b9e9e", "#8a8f2a", "#6b7fd7")
    strategies = sorted({figure.strategy for figure in measured})
    formats = sorted({figure.format for figure in measured})
    style = {
        "svg.hashsalt": "gemv", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9, "text.color": grey,
        "axes.edgecolor": grey, "axes.labelcolor": grey, "xtick.color": grey, "ytick.color": grey, "axes.titlesize": 10,
    }  # fmt: skip
    with matplotlib.rc_context(style):
        canvas = Canvas(figsize=(4.9 * len(formats), 5.4), layout="constrained")
        FigureCanvasSVG(canvas)
        panels = canvas.subplots(1, len(formats), squeeze=False, sharex=True, sharey=True)[0]
        sizes = np.geomspace(min(f.nbytes for f in measured) * 0.8, max(f.nbytes for f in measured) * 1.25, 200)
        floor = [size / chain_microseconds(int(size)) / 1e6 for size in sizes]
        for panel, format in zip(panels, formats, strict=True):
            chosen = [figure for figure in measured if figure.format == format]
            panel.axhline(READ_LIMIT / 1e12, color=grey, linewidth=1, linestyle=":", label="read limit")
            panel.plot(sizes / 1e6, floor, color=grey, linewidth=1.4, label="floor of a chain of reads")
            for row in reversed(rows(chosen)):
                panel.plot(
                    [figure.nbytes / 1e6 for figure in row], [figure.terabytes_per_second for figure in row], label=row[0].row,
                    color=colours[strategies.index(row[0].strategy) % len(colours)], linewidth=1.2, markersize=4,
                    marker="o" if row[0].digits != 1 else "^", linestyle="-" if row[0].digits != 1 else "--",
                )  # fmt: skip
            panel.set(xscale="log", yscale="log", xlabel="weights, MB", title=f"{format} matrix times vector")
            for axis in (panel.xaxis, panel.yaxis):
                axis.set_major_formatter(ScalarFormatter())
                axis.set_minor_formatter(NullFormatter())
            panel.set_yticks([0.1, 0.2, 0.5, 1, 2, 5])
            panel.set_xticks([2, 5, 10, 20, 50, 100, 200, 400])
            panel.set_xlim(sizes[0] / 1e6, sizes[-1] / 1e6)
            panel.set_ylim(0.9 * min(f.terabytes_per_second for f in measured), 1.15 * READ_LIMIT / 1e12)
            panel.grid(color=faint, linewidth=0.5)
            panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, frameon=False, fontsize=8)
        panels[0].set_ylabel("TB/s")
        canvas.savefig(path, format="svg", transparent=True, metadata={"Date": None, "Creator": None})


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--page", type=click.Path(exists=True, path_type=Path), default=DOCS / "performance.md", help="Gets the table.")
@click.option("--plot", "picture", type=click.Path(path_type=Path), default=DOCS / "gemv.svg", help="Gets the plot.")
def main(results: tuple[Path, ...], page: Path, picture: Path) -> None:
    """Write the table and the plot of these RESULTS of benchmarks/gemv.py."""
    records = [json.loads(path.read_text()) for path in results]
    measured = figures(result for record in records for result in record["results"])
    if not measured:
        raise click.ClickException(f"no results of {' or '.join(FORMATS.values())} kernels in {', '.join(map(str, results))}")
    table = markdown(measured)
    if not table:
        shapes = ", ".join(f"{k} x {n}" for k, n in SHOWN)
        raise click.ClickException(f"no results for any shape of the table ({shapes}) in {', '.join(map(str, results))}")
    text = replaced(page.read_text(), table)
    plot(measured, picture)
    page.write_text(text)


if __name__ == "__main__":
    main()
