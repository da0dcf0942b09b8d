"""The debug mode (GPU_DEBUG=1): after every launch, wait and look at what the kernel wrote. It says where a NaN or an infinity
first shows, not why."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from executor.base.environment import settings
from executor.base.errors import NumericalFault
from executor.device.protocol import KernelRunner
from executor.launch.launch import Launcher, LaunchRecord, LayerOperation
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.arguments import Array
from ptxgen.formats import Format

WEIGHTS: Final = "w"
"""The argument of every GEMV that holds its weights, u8[n, row bytes]."""

_log = logging.getLogger(__name__)


def watch(launcher: Launcher) -> None:
    """Check each launch of the launcher if the environment asks for it (GPU_DEBUG=1); else do nothing."""
    if settings().debug:
        _log.warning("GPU_DEBUG is on: every launch is waited for and checked, which is slow")
        launcher.observers.append(FiniteCheck(launcher))


@dataclass(frozen=True)
class Statistics:
    """Of some numbers: how many there are, are NaN, infinite and zero; least, largest, mean and root mean square of those that
    are finite, None where there are none."""

    size: int
    nan: int
    infinite: int
    zeros: int
    least: float | None
    largest: float | None
    mean: float | None
    rms: float | None

    @classmethod
    def of(cls, values: NDArray[Any]) -> Self:
        """Count and compute them, in f64."""
        nan, infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
        finite = values[np.isfinite(values)].astype(np.float64)
        zeros = int(np.count_nonzero(finite == 0))
        if not finite.size:
            return cls(values.size, nan, infinite, zeros, None, None, None, None)
        mean, rms = float(finite.mean()), float(np.sqrt(np.square(finite).mean()))
        return cls(values.size, nan, infinite, zeros, float(finite.min()), float(finite.max()), mean, rms)

    def __str__(self) -> str:
        counts = f"{self.size} numbers: {self.nan} NaN, {self.infinite} infinite, {self.zeros} zero"
        if self.mean is None:
            return counts
        return (
            f"{counts}; the finite ones from {self.least:.4g} to {self.largest:.4g}, mean {self.mean:.4g}, rms {self.rms:.4g}"
        )


class FiniteCheck:
    """An observer of `launcher` that raises NumericalFault for the first launch that writes a NaN or an infinity; a fault of
    the device is raised at the launch that caused it. Logs what each layer wrote last, at level DEBUG.

    Not checked: arrays that a kernel writes only in part (the next kernel's result shows it), integers and bf16.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._runner: KernelRunner = launcher.device
        self._last: tuple[LayerOperation, str, NDArray[Any]] | None = None

    def __call__(self, record: LaunchRecord) -> None:
        self._runner.synchronize()
        for name, buffer in _written(record):
            values = buffer.to_numpy()
            if not np.isfinite(values).all():
                raise _fault(record, name, buffer, values)
            if _log.isEnabledFor(logging.DEBUG):
                self._log_layer(record.place, f"{name} ({buffer})", values)

    def _log_layer(self, place: LayerOperation, result: str, values: NDArray[Any]) -> None:
        """Log the last result of the layer before when another layer begins."""
        if self._last is not None and self._last[0].layer != place.layer:
            before, last_result, last_values = self._last
            _log.debug("%s wrote %s: %s", before, last_result, Statistics.of(last_values))
        self._last = place, result, values


def _written(record: LaunchRecord) -> Iterator[tuple[str, GpuBuffer]]:
    """The arguments that the kernel writes whole and that hold floating-point numbers."""
    for name, argument in record.kernel.signature().items():
        if isinstance(argument, Array) and argument.direction != "in" and not argument.partial:
            buffer = record.arguments[name]
            assert isinstance(buffer, GpuBuffer)
            if _is_float(buffer):
                yield name, buffer


def _is_float(buffer: GpuBuffer) -> bool:
    return buffer.dtype.name in ("f16", "f32", "f64")


def _fault(record: LaunchRecord, name: str, buffer: GpuBuffer, values: NDArray[Any]) -> NumericalFault:
    bad = np.argwhere(~np.isfinite(values))
    index = tuple(int(i) for i in bad[0])
    where = f"{record.place}: " if str(record.place) else ""
    lines = [
        f"{where}{record.kernel} wrote {values[index]} to {name} ({buffer}) at {list(index)}, and {len(bad) - 1} more",
        f"  wrote {name}: {Statistics.of(values)}",
        *_inputs(record, index[-1] if record.kernel.family == "gemv" else None),
    ]
    return NumericalFault(
        "\n".join(lines),
        layer=record.place.layer,
        operation=record.place.operation,
        kernel=str(record.kernel),
        argument=name,
        index=index,
        count=len(bad),
    )


def _inputs(record: LaunchRecord, row: int | None) -> Iterator[str]:
    """A line for each thing that the kernel read; of a matrix of quantised weights only this row."""
    format = getattr(record.kernel, "format", None)
    for name, argument in record.kernel.signature().items():
        value = record.arguments[name]
        if not isinstance(argument, Array) or not isinstance(value, GpuBuffer):
            yield f"  read {name}: {value}"
        elif argument.direction == "in":
            content = "only a part" if argument.partial else _statistics(value, format, row if name == WEIGHTS else None)
            yield f"  read {name} ({value}){content and f': {content}'}"


def _statistics(buffer: GpuBuffer, format: Format | None, row: int | None) -> str:
    """Nothing for integers."""
    if row is not None and isinstance(format, Format):
        blocks = buffer.view(row * buffer.shape[1], (1, buffer.shape[1])).to_numpy()
        with np.errstate(invalid="ignore"):  # damaged weights are what is looked for
            return f"row {row} as {format.name}: {Statistics.of(format.dequantize(blocks))}"
    return str(Statistics.of(buffer.to_numpy())) if _is_float(buffer) else ""
