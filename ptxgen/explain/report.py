"""An explanation in words and figures, for the command line, JSON and the page alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ptxgen.dsl.arguments import Array
from ptxgen.explain.bounds import Mix
from ptxgen.explain.explanation import Explanation, InnerLoop
from ptxgen.isa.units import Unit


def facts(explanation: Explanation) -> dict[str, Any]:
    """Everything that the command says, ready for JSON. Sizes in bytes, times in seconds."""
    e, occupancy = explanation, explanation.occupancy
    work = e.kernel.work()
    return {
        **e.emitted.manifest(),
        "doc": e.doc,
        "gpu": {"name": e.gpu.name, "title": e.gpu.title, "source": e.gpu.source},
        "work": {"operations": work.flops, "bytes": work.bytes},
        "assembler": e.assembler,
        "registers": e.assembled.registers,
        "spill_stores": e.assembled.spill_stores,
        "spill_loads": e.assembled.spill_loads,
        "stack_bytes": e.assembled.stack,
        "occupancy": {
            "blocks": occupancy.blocks,
            "warps": occupancy.warps,
            "share": occupancy.share,
            "limit": occupancy.limit,
            "waves": e.waves,
        },
        "inner_loops": [
            {
                "ptx_lines": [loop.first, loop.last],
                "passes": loop.passes,
                "exact": loop.exact,
                "sass_instructions": loop.sass,
                "instructions": _named(loop.mix.instructions),
                "global_bytes": loop.mix.global_bytes,
                "shared_bytes": loop.mix.shared_bytes,
            }
            for loop in e.inner_loops
        ],
        "instructions": _named(e.mix.instructions),
        "all_passes_known": e.all_passes_known,
        "bounds": [
            {"unit": bound.unit, "clocks_per_pass": bound.clocks, "seconds": bound.seconds, "share": bound.share}
            for bound in e.bounds
        ],
        "accuracy": dict(e.accuracy),
        "lines": [
            {"file": where.file, "line": where.line, "source": where.source, "ptx_lines": numbers}
            for where, numbers in e.by_author.items()
        ],
    }


def _named(instructions: dict[Unit, int]) -> dict[str, int]:
    return {unit.value: count for unit, count in instructions.items()}


def summary(explanation: Explanation) -> list[tuple[str, str]]:
    """The facts that take a line each, by their labels."""
    e, occupancy, launch, work = explanation, explanation.occupancy, explanation.kernel.launch(), explanation.kernel.work()
    spilled = e.assembled.spill_stores + e.assembled.spill_loads
    return [
        ("launch", f"{_product(launch.grid)} block{'s' * (launch.grid != (1, 1, 1))} of {_product(launch.block)} threads"),
        ("work", f"{_scaled(work.bytes, 'B')} moved at least, {_scaled(work.flops, 'op')}: {work.flops / work.bytes:.2f} op/B"),
        (
            "code",
            f"{e.assembled.registers} registers, {spilled} B spilled, {e.shared_bytes} B shared memory, "
            f"{e.assembled.stack} B stack",
        ),
        ("assembler", f"{e.assembler} for {e.emitted.target}"),
        (
            "GPU",
            f"{e.gpu.title}: {e.gpu.multiprocessors} multiprocessors, {e.gpu.clock_mhz} MHz, {e.gpu.bandwidth_gbps} GB/s "
            f"({e.gpu.source})",
        ),
        (
            "occupancy",
            f"{occupancy.warps} of {occupancy.most_warps} warps ({occupancy.share:.0%}): {occupancy.blocks} blocks a "
            f"multiprocessor, limited by {occupancy.limit}; {_waves(e.waves)}",
        ),
    ]


def _waves(count: float) -> str:
    number = f"{count:.2g}"
    return f"{number} wave{'' if number == '1' else 's'}"


def mixes(explanation: Explanation) -> list[tuple[str, Mix]]:
    """The instructions of one pass of each inner loop, or of the whole thread where there is no loop, under a title each."""
    e = explanation
    if e.inner_loops:
        return [(loop_title(loop), loop.mix) for loop in e.inner_loops]
    machine = sum(line.address >= 0 for line in e.sass)
    return [(f"no loop, {e.mix.total} PTX instructions" + (f", {machine} SASS instructions" if machine else ""), e.mix)]


def loop_title(loop: InnerLoop) -> str:
    """Where a loop is, how often it runs, and what a pass of it has."""
    passes = "passes known at launch only" if loop.passes is None else f"{'' if loop.exact else 'up to '}{loop.passes} passes"
    machine = "" if loop.sass is None else f", {loop.sass} SASS instructions"
    return f"inner loop, PTX lines {loop.first}-{loop.last}, {passes}, {loop.mix.total} PTX instructions{machine}"


def argument_rows(explanation: Explanation) -> list[tuple[str, str, str, str]]:
    """Of each argument: name, type, direction and bytes."""
    return [
        (name, str(argument), argument.direction, f"{argument.nbytes:,}")
        if isinstance(argument, Array)
        else (name, str(argument), "in", "")
        for name, argument in explanation.kernel.signature().items()
    ]


def accuracy_rows(explanation: Explanation) -> list[tuple[str, str]]:
    """The kernel's own approximations: the situation, and the error in it."""
    return [(situation, f"{error:.2e}") for situation, error in explanation.accuracy.items()]


def bound_rows(explanation: Explanation) -> list[tuple[str, str, str, str]]:
    """Of each bound: unit, clocks of a pass, microseconds and share of the tightest."""
    return [
        (b.unit, "" if b.clocks is None else f"{b.clocks:.1f}", f"{b.seconds * 1e6:.3g}", f"{b.share:.0%}")
        for b in explanation.bounds
    ]


def caveat(explanation: Explanation) -> str:
    """What the bounds leave out."""
    unknown = "" if explanation.all_passes_known else "Loops whose passes are known at launch only count as one pass. "
    return (
        f"{unknown}Clocks of a multiprocessor for one warp and one pass of the inner loop (without one, of it all); least "
        "times of the launch with even work, coalesced loads and no bank conflicts. Counted in PTX, of which the assembler "
        "merges and splits some."
    )


def listing(explanation: Explanation) -> Iterator[str]:
    """The PTX in its own order, under the Python lines that wrote it."""
    before = None
    for number, op in explanation.lines.items():
        if op.where != before:
            before = op.where
            yield f"{op.where.file}:{op.where.line}  {op.where.source}"
        yield f"{number:8}  {op}"


def _product(size: Iterable[int]) -> str:
    kept = list(size)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return " x ".join(map(str, kept))


def _scaled(value: float, unit: str) -> str:
    for prefix in ("", "k", "M", "G"):
        if value < 1000 or prefix == "G":
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    raise ValueError(value)
