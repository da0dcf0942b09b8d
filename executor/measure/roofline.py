"""A profiler's operations in the roofline model: operations a byte against operations a second, under what the device allows.
Times nothing. Needs matplotlib, which is optional."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from executor.measure.profiler import Limit, TileLevel, TileProfiler
from executor.measure.tile_summary import TileSum, summed
from ptxgen.errors import ArgumentError, PtxGenError
from ptxgen.files import replacing

GREY: Final = "#7f8790"
FAINT: Final = "#7f879055"
COLOURS: Final = {TileLevel.MACRO: "#2f81f7", TileLevel.MIDI: "#d9822b", TileLevel.MICRO: "#2da44e", TileLevel.OTHER: "#9a6fe0"}
NAMED_FROM: Final = 0.01
"""Share of the step from which an operation's name stands at its point: the small ones lie on each other."""
STYLE: Final = {
    "svg.hashsalt": "roofline", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9, "text.color": GREY,
    "axes.edgecolor": GREY, "axes.labelcolor": GREY, "xtick.color": GREY, "ytick.color": GREY, "axes.titlesize": 10,
}  # fmt: skip


class NoPlotting(PtxGenError):
    """matplotlib is not installed."""


def require_plotting(what: str = "the roofline plot", instead: str = "--no-plot") -> None:
    """Raise NoPlotting, with what to install, unless a plot can be made. For before the work whose result is to be plotted: so
    all that plotting imports is imported now, as what is found need not load. instead: the option of a command without it."""
    try:
        import matplotlib.backends.backend_agg
        import matplotlib.backends.backend_svg
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise NoPlotting(
            f"{what} needs matplotlib ({error}): pip install 'ptxgen[bench]', or do without with {instead}"
        ) from error


def plot_roofline(profiler: TileProfiler, path: Path) -> None:
    """Write an SVG: a point an operation, coloured by level, as large as its share of the step, and the device's roof where its
    limit is known. Operations that do no arithmetic have no point. ArgumentError if there is none with a time."""
    require_plotting()
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    rows = [row for row in summed(profiler.tiles, "operation", profiler.limit) if row.flops and row.seconds]
    if not rows:
        raise ArgumentError("no launch with arithmetic was timed, so there is no roofline to draw")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.8), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        axes.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="GFLOP/s")
        axes.set_title(f"{profiler.device.name}, {profiler.steps} steps; area: share of the step")
        for level, colour in COLOURS.items():
            chosen = [row for row in rows if row.level == level.value]
            x, y = [row.intensity for row in chosen], [row.gflops for row in chosen]
            if chosen:
                sizes = [12 + 900 * row.share for row in chosen]
                axes.scatter(x, y, s=sizes, color=colour, alpha=0.6, linewidths=0, label=level.value)
        for row in (row for row in rows if row.share >= NAMED_FROM):
            axes.annotate(row.name, (row.intensity, row.gflops), xytext=(5, 3), textcoords="offset points", fontsize=7)
        if profiler.limit is not None:
            x, y = _roof(profiler.limit, rows)
            axes.plot(x, y, color=GREY, linewidth=1.2, label=profiler.limit.source or "limit")
        axes.grid(color=FAINT, linewidth=0.5)
        axes.legend(frameon=False, fontsize=8)
        with replacing(path) as stream:
            figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})


def _roof(limit: Limit, rows: Sequence[TileSum]) -> tuple[list[float], list[float]]:
    """Operations a byte and GFLOP/s of the corners of the roof, over the rows and its ridge."""
    intensities = [row.intensity for row in rows]
    corners = [min(intensities) / 2, max(intensities) * 2]
    if limit.flops:
        ridge = limit.flops / limit.read_bytes
        corners = sorted([*corners, ridge, ridge * 2])
    allowed = [min(x * limit.read_bytes, limit.flops or float("inf")) for x in corners]
    return corners, [flops / 1e9 for flops in allowed]
