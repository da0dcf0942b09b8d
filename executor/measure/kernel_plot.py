"""Times of kernels as a picture. Times nothing. Needs matplotlib, which is optional."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Final

from executor.measure.kernel_speed import KernelSpeed
from executor.measure.roofline import FAINT, STYLE
from executor.measure.speed_plot import DOTS_AN_INCH, require_speed_plot
from ptxgen.files import replacing

LINES: Final = (("#2f81f7", "o"), ("#d9822b", "s"), ("#2da44e", "^"), ("#9a6fe0", "D"), ("#b0434b", "v"), ("#7f8790", "P"))
"""Colour and marker of each kernel's line."""


def plot_kernels(speeds: Sequence[KernelSpeed], title: str, path: Path) -> None:
    """Write a PNG or SVG, as the name ends: the time of each replay, a line a kernel, and dotted the kernel's own roofline
    where the device's limit is known."""
    require_speed_plot(path)
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "kernels"}):
        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        axes = figure.subplots()
        for one, (colour, marker) in zip(speeds, cycle(LINES), strict=False):
            times = [seconds * 1e6 for seconds in one.seconds]
            axes.plot(range(1, len(times) + 1), times, color=colour, marker=marker, markersize=4, label=str(one.kernel))
            if one.least_possible is not None:
                label = f"roofline of {one.kernel.name}"
                axes.axhline(one.least_possible * 1e6, color=colour, linestyle=":", linewidth=1, label=label)
        axes.set(title=title, xlabel="replay", ylabel="us a launch")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(color=FAINT, linewidth=0.5)
        figure.legend(frameon=False, fontsize=8, loc="outside lower center")
        with replacing(path) as stream:
            if path.suffix.lower() == ".svg":
                figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
            else:
                figure.savefig(stream, format="png", dpi=DOTS_AN_INCH, facecolor="white")
