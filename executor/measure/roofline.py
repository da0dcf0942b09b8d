"""A profiler's operations in the roofline model: operations a byte against operations a second, under what the device allows.
Times nothing. Needs matplotlib, which is optional."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

from executor.measure.profiler import Limit, TileLevel, TileProfiler
from executor.measure.tile_summary import TileSum, summed
from ptxgen.errors import ArgumentError, PtxGenError
from ptxgen.extras import install
from ptxgen.files import replacing
from ptxgen.gpus.gpu import newest_for
from ptxgen.isa.units import Unit
from ptxgen.target import Target

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY: Final = "#7f8790"
FAINT: Final = "#7f879055"
RED: Final = "#b0434b"
MARKS: Final = {
    TileLevel.MACRO: ("#2f81f7", "o"),
    TileLevel.MIDI: ("#d9822b", "s"),
    TileLevel.MICRO: ("#2da44e", "^"),
    TileLevel.OTHER: ("#9a6fe0", "D"),
}
"""Colour and shape of a level's points."""
TOGETHER: Final = 0.045
"""Part of an axis: points that lie nearer than this in both directions have one number."""
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
        raise NoPlotting(f"{what} needs matplotlib ({error}): {install('bench')}, or do without with {instead}") from error


def plot_roofline(profiler: TileProfiler, path: Path) -> None:
    """Write an SVG: a point an operation, by level in colour and shape, as large as its share of the step, and the two roofs of
    the profiler's limit, or where it has none those of a GPU that the device's kernels are written for, by its data sheet.
    Points that lie together have one number, and the list beside the plot says what they are. Operations that do no arithmetic
    have no point. ArgumentError if there is none with a time."""
    require_plotting()
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    rows = [row for row in summed(profiler.tiles, "operation", profiler.limit) if row.flops and row.seconds]
    if not rows:
        raise ArgumentError("no launch with arithmetic was timed, so there is no roofline to draw")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 4.8), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        axes.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="GFLOP/s")
        axes.set_title(f"{profiler.device.name}, {profiler.steps} steps; area: share of the step")
        for level, (colour, marker) in MARKS.items():
            chosen = [row for row in rows if row.level == level.value]
            if chosen:
                x, y, sizes = zip(*((row.intensity, row.gflops, 12 + 900 * row.share) for row in chosen), strict=True)
                axes.scatter(x, y, s=sizes, color=colour, marker=marker, alpha=0.6, linewidths=0)
                axes.plot([], [], color=colour, marker=marker, linestyle="none", label=level.value)
        limit = profiler.limit or sheet_limit(profiler.device.target)
        for label, corners, allowed, style in _roofs(limit, rows):
            axes.plot(corners, allowed, linewidth=1.2, label=label, **style)
        axes.grid(color=FAINT, linewidth=0.5)
        _name_clusters(figure, axes, _clusters(rows, axes.get_xlim(), axes.get_ylim()))
        beside: dict[str, Any] = {"frameon": False, "fontsize": 8, "alignment": "left", "title_fontsize": 7}
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right lower", title=fill(limit.source, 40), **beside)
        with replacing(path) as stream:
            figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})


def sheet_limit(target: Target) -> Limit:
    """The limit of a GPU of this generation, by its data sheet."""
    gpu = newest_for(target)
    flops = 2 * gpu.multiprocessor.rates[Unit.FMA] * gpu.multiprocessors * gpu.clock_mhz * 1e6
    return Limit(gpu.bandwidth_gbps * 1e9, flops, f"{gpu.title} by its data sheet, not the device that was timed")


def _roofs(limit: Limit, rows: Sequence[TileSum]) -> Iterator[tuple[str, Sequence[float], Sequence[float], dict[str, Any]]]:
    """What the memory and the arithmetic allow, over the rows and the ridge: a label, operations a byte, GFLOP/s, the style."""
    low, high = min(row.intensity for row in rows) / 2, max(row.intensity for row in rows) * 2
    ridge = limit.flops / limit.read_bytes if limit.flops else high
    memory = (min(low, ridge / 2), ridge)
    style = {"color": GREY, "linestyle": "-"}
    yield f"memory: {limit.read_bytes / 1e9:.0f} GB/s", memory, [x * limit.read_bytes / 1e9 for x in memory], style
    if limit.flops:
        style = {"color": RED, "linestyle": "--"}
        yield f"f32: {limit.flops / 1e12:.3g} TFLOP/s", (ridge, max(high, 2 * ridge)), [limit.flops / 1e9] * 2, style


def _clusters(rows: Sequence[TileSum], across: tuple[float, float], up: tuple[float, float]) -> list[list[TileSum]]:
    """The rows whose points lie together between these limits of the axes, what takes longest first."""
    clusters: list[list[TileSum]] = []
    for row in sorted(rows, key=lambda row: -row.share):
        for cluster in clusters:
            apart = (_apart(row.intensity, cluster[0].intensity, across), _apart(row.gflops, cluster[0].gflops, up))
            if max(apart) < TOGETHER:
                cluster.append(row)
                break
        else:
            clusters.append([row])
    return clusters


def _apart(one: float, other: float, limits: tuple[float, float]) -> float:
    """As part of a logarithmic axis."""
    return abs(log(one / other)) / log(limits[1] / limits[0])


def _name_clusters(figure: Figure, axes: Axes, clusters: Sequence[Sequence[TileSum]]) -> None:
    """A number at the first point of each cluster, and what it stands for beside the plot."""
    from matplotlib.lines import Line2D

    handles = []
    for number, rows in enumerate(clusters, 1):
        place = (rows[0].intensity, rows[0].gflops)
        axes.annotate(str(number), place, xytext=(5, 3), textcoords="offset points", fontsize=8, weight="bold")
        names = fill(", ".join(row.name for row in rows), 34)
        colour, _ = MARKS[TileLevel(rows[0].level)] if rows[0].level else (GREY, "")
        label = f"{names}  {sum(row.share for row in rows):.1%}"
        handles.append(Line2D([], [], color=colour, marker=f"${number}$", linestyle="none", label=label))
    figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=8)
