"""Profiles decoding: the same steps once as they are and once with every launch stamped. What is done with the times is up to
the caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from executor.base.arguments import token as checked_token
from executor.base.arguments import whole
from executor.device.protocol import Device
from executor.launch.launch import Launcher
from executor.measure.bandwidth import bandwidth
from executor.measure.profiler import Limit, TileProfiler
from executor.model.decoder import Decoder
from ptxgen.errors import ArgumentError
from ptxgen.gpus.gpu import newest_for
from ptxgen.isa.units import Unit

WARM_UP: Final = 2
"""Steps of each kind that are not counted: the first of a graph uploads it, and clocks rise."""


@dataclass(frozen=True)
class DecodeProfile:
    """tiles: of the timed steps. step_seconds: device time of a step without the profiler, the mean of as many steps at the
    same positions; what it differs by from the span of a profiled step is what the stamps cost, and the start of a graph."""

    tiles: TileProfiler
    step_seconds: float


def limit_of(device: Device) -> Limit | None:
    """What a GPU's memory was measured to read (now, if it has not been before) and what its multiprocessors multiply and add
    in f32 at their highest clock; None for the emulator, of which nothing is claimed."""
    if device.kind != "cuda":
        return None
    facts = device.describe()
    lanes = newest_for(device.target).multiprocessor.rates[Unit.FMA]
    flops = 2 * lanes * facts["multiprocessors"] * facts["clock_mhz"] * 1e6
    reads = bandwidth(device)
    return Limit(
        reads, flops, f"memory reads {reads / 1e9:.0f} GB/s (measured), {flops / 1e12:.0f} f32 TFLOP/s (highest clock)"
    )


def require_unwatched(launcher: Launcher) -> None:
    """ArgumentError if an observer, such as that of the debug mode, waits for every launch."""
    if launcher.observers:
        raise ArgumentError("launches are watched one by one (GPU_DEBUG?), so their times would mean nothing; switch that off")


def profile_decoding(
    decoder: Decoder, token: int, steps: int, *, limit: Limit | None = None, progress: Callable[[int, int], None] | None = None
) -> DecodeProfile:
    """Decode from `token` on, greedily, `steps` tokens without and as many with a profiler; the decoder is afterwards at the
    position where it was. Raises ArgumentError if the context has no room for them, or if something watches every launch (the
    debug mode), which waits for each."""
    require_unwatched(decoder.launcher)
    steps = whole("the number of steps to profile", steps, 1)
    token = checked_token("the token", token, decoder.spec.vocab)
    start, room = decoder.position, decoder.context - decoder.position
    if room < WARM_UP + steps:
        raise ArgumentError(f"{steps} steps and {WARM_UP} to warm up need room for {WARM_UP + steps} tokens; {room} are left")
    if WARM_UP + steps > decoder.cache.step:
        raise ArgumentError(f"at most {decoder.cache.step - WARM_UP} steps can be profiled: layers with a window forget others")
    device = decoder.device
    report = progress or (lambda done, total: None)

    def run(count: int, done: int) -> None:
        for number in range(count):
            decoder.step(token if decoder.position == start else None)
            report(done + number + 1, 2 * (WARM_UP + steps))

    tiles, others = TileProfiler(device, limit), decoder.profiler
    decoder.profiler = None
    try:
        run(WARM_UP, 0)
        before = device.record()
        run(steps, WARM_UP)
        elapsed = device.elapsed(before, device.record())
        decoder.cache.truncate(start)
        decoder.profiler = tiles
        run(WARM_UP, WARM_UP + steps)
        tiles.clear()
        run(steps, 2 * WARM_UP + steps)
    finally:
        decoder.profiler = others
        decoder.cache.truncate(min(start, decoder.position))
    return DecodeProfile(tiles, elapsed / steps)
