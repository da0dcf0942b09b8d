"""Speeds of a model as curves: over the depth of one sequence, and over the number of sequences. Times nothing. Needs
matplotlib, which is optional."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from executor.measure.roofline import FAINT, GREY, STYLE, require_plotting
from executor.measure.speed import Kind, Measured
from ptxgen.errors import ArgumentError
from ptxgen.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES: Final = (".png", ".svg")
OURS: Final = "#2f81f7"
THEIRS: Final = "#d9822b"
DOTS_AN_INCH: Final = 150


def require_speed_plot(path: Path) -> None:
    """For before the work: ArgumentError for a file that is no picture, NoPlotting where none can be drawn."""
    if path.suffix.lower() not in SUFFIXES:
        raise ArgumentError(f"--plot {path}: a picture ends in {' or '.join(SUFFIXES)}")
    require_plotting("--plot", "no --plot")


def plot_speeds(measured: Sequence[Measured], title: str, path: Path) -> None:
    """Write a PNG or SVG, as the name ends: tokens a second at each depth and with each number of sequences, ours and the
    peer's, and where the memory limits them. ArgumentError if there is neither a depth nor a batch."""
    require_speed_plot(path)
    import matplotlib
    from matplotlib.figure import Figure

    kinds: list[Kind] = [kind for kind in _AXES if any(one.case.kind == kind for one in measured)]
    if not kinds:
        raise ArgumentError("no depth and no batch was measured, so there is nothing to plot")
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "speed"}):
        figure = Figure(figsize=(4.6 * len(kinds), 3.6), layout="constrained")
        figure.suptitle(title, fontsize=10, color=GREY)
        for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
            rows = sorted((one for one in measured if one.case.kind == kind), key=_x)
            _curves(axes, rows)
            axes.set(**_AXES[kind])
            if kind == "batch":
                axes.set_xticks([_x(one) for one in rows], [str(_x(one)) for one in rows], minor=False)
                axes.minorticks_off()
            else:
                axes.set_ylim(bottom=0)
        with replacing(path) as stream:
            if path.suffix.lower() == ".svg":
                figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
            else:
                figure.savefig(stream, format="png", dpi=DOTS_AN_INCH, facecolor="white")


_AXES: Final[dict[Kind, dict[str, str]]] = {
    "depth": {"xlabel": "positions in the cache of one sequence", "ylabel": "tokens/s"},
    "batch": {"xlabel": "sequences", "ylabel": "tokens/s of all", "xscale": "log", "yscale": "log"},
}


def _x(one: Measured) -> int:
    return one.case.depth if one.case.kind == "depth" else one.case.sequences


def _curves(axes: Axes, rows: Sequence[Measured]) -> None:
    x = [_x(one) for one in rows]
    axes.plot(x, [one.speed.median for one in rows], marker="o", color=OURS, label="ptxgen")
    if all(one.peer is not None for one in rows):
        axes.plot(x, [one.peer.median for one in rows if one.peer is not None], marker="s", color=THEIRS, label="llama.cpp")
    limits = [one.speed.median / one.share for one in rows if one.share is not None]
    if len(limits) == len(rows):
        axes.plot(x, limits, linestyle=":", color=GREY, label="limit of reading")
    axes.grid(color=FAINT, linewidth=0.5)
    axes.legend(frameon=False, fontsize=8)
