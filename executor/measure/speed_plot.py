"""Speeds of a model as curves: over the length of prompts, the depth of one sequence, and the number of sequences. Times
nothing. Needs matplotlib, which is optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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


@dataclass(frozen=True)
class Curve:
    """Tokens a second by tokens of the prompt, positions, or sequences. marker: matplotlib's letter; none for a limit."""

    label: str
    points: Mapping[int, float]
    colour: str
    marker: str = ""


def require_speed_plot(path: Path) -> None:
    """For before the work: ArgumentError for a file that is no picture, NoPlotting where none can be drawn."""
    if path.suffix.lower() not in SUFFIXES:
        raise ArgumentError(f"--plot {path}: a picture ends in {' or '.join(SUFFIXES)}")
    require_plotting("--plot", "no --plot")


def plot_speeds(measured: Sequence[Measured], title: str, path: Path) -> None:
    """Write a PNG or SVG, as the name ends: tokens a second of prompts where there are several, at each depth and with each
    number of sequences, ours and the peer's, and where the memory limits them. ArgumentError if there is no depth and no
    batch."""
    kinds = [kind for kind in _AXES if len([one for one in measured if one.case.kind == kind]) > (kind == "prompt")]
    draw({kind: _curves([one for one in measured if one.case.kind == kind]) for kind in kinds}, title, path)


def draw(panels: Mapping[Kind, Sequence[Curve]], title: str, path: Path) -> None:
    """Write a PNG or SVG with these panels side by side. ArgumentError if there is none."""
    require_speed_plot(path)
    import matplotlib
    from matplotlib.figure import Figure

    if not panels:
        raise ArgumentError("no depth and no batch was measured, so there is nothing to plot")
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "speed"}):
        figure = Figure(figsize=(4.6 * len(panels), 3.6), layout="constrained")
        figure.suptitle(title, fontsize=10, color=GREY)
        for axes, (kind, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
            _draw_panel(axes, kind, curves)
        with replacing(path) as stream:
            if path.suffix.lower() == ".svg":
                figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
            else:
                figure.savefig(stream, format="png", dpi=DOTS_AN_INCH, facecolor="white")


_AXES: Final[dict[Kind, dict[str, Any]]] = {
    "prompt": {"xlabel": "tokens of a prompt", "ylabel": "tokens/s", "xscale": "log"},
    "depth": {"xlabel": "positions in the cache of one sequence", "ylabel": "tokens/s"},
    "batch": {"xlabel": "sequences", "ylabel": "tokens/s of all", "xscale": "log", "yscale": "log"},
}


def abscissa(kind: str, tokens: int, depth: int, sequences: int) -> int:
    """Where a case stands in its panel."""
    return {"prompt": tokens, "depth": depth, "batch": sequences}[kind]


def _curves(rows: Sequence[Measured]) -> list[Curve]:
    """Of one kind of case."""
    placed = {abscissa(one.case.kind, one.case.tokens, one.case.depth, one.case.sequences): one for one in rows}
    curves = [Curve("ptxgen", {x: one.speed.median for x, one in placed.items()}, OURS, "o")]
    if all(one.peer is not None for one in rows):
        theirs = {x: one.peer.median for x, one in placed.items() if one.peer is not None}
        curves.append(Curve("llama.cpp", theirs, THEIRS, "s"))
    limits = {x: one.speed.median / one.share for x, one in placed.items() if one.share is not None}
    if len(limits) == len(placed):
        curves.append(Curve("limit of reading", limits, GREY))
    return curves


def _draw_panel(axes: Axes, kind: Kind, curves: Sequence[Curve]) -> None:
    for curve in curves:
        x = sorted(curve.points)
        style: dict[str, Any] = {"marker": curve.marker} if curve.marker else {"linestyle": ":"}
        axes.plot(x, [curve.points[at] for at in x], color=curve.colour, label=curve.label, **style)
    axes.set(**_AXES[kind])
    if "xscale" in _AXES[kind]:
        places = sorted({x for curve in curves for x in curve.points})
        axes.set_xticks(places, [str(x) for x in places], minor=False)
        axes.minorticks_off()
    if "yscale" not in _AXES[kind]:
        axes.set_ylim(bottom=0)
    axes.grid(color=FAINT, linewidth=0.5)
    axes.legend(frameon=False, fontsize=8)
