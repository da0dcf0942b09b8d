"""Which settings of a GEMV on int8 planes are fastest: measured thresholds, and all that depends on the number of
multiprocessors. No bit of a result depends on anything here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any, Final, NamedTuple

from ptxgen.dsl.launch_config import PIPELINE_SHARED
from ptxgen.formats import Format, find
from ptxgen.kernels.gemv.blocks import Blocks
from ptxgen.kernels.gemv.shared_planes import chunks
from ptxgen.kernels.quantize.int8_planes import BLOCK
from ptxgen.kernels.suited import MULTIPROCESSORS
from ptxgen.target import WARP_SIZE

Settings = Mapping[str, Any]
"""Values of fields of HwDp4aGemv."""

NO_PIPELINE: Final[Settings] = {"stages": 0, "holds_next": False}
"""Of a kernel that has another geometry than the one that it is made of."""


def blocks_at_once(threads: int, resident_threads: int, multiprocessors: int = MULTIPROCESSORS) -> int:
    """Blocks of so many threads that the GPU holds, whose multiprocessors each hold `resident_threads`."""
    return multiprocessors * max(1, resident_threads // threads)


# Loads and launches


def loads_rows_first(blocks: Blocks, multiprocessors: int = MULTIPROCESSORS) -> bool:
    """Whether the assembler must leave the first loads of weights where they are written, before the activations are staged:
    where they are whole rows of all blocks of the (first) matrix, which the GPU holds at once, in one group. Else more in
    flight make others wait. In steps of one row on an H200: 13 us of 501 won by o and down of Qwen3-0.6B, 5 of 429 by q, k and
    v of the 1B, 83 of 1632 lost by all products of Qwen2.5-7B."""
    if blocks.tokens > 1:
        return False
    together = blocks_at_once(blocks.threads, blocks.threads_at_once, multiprocessors)
    return blocks.fragments.steps <= blocks.ahead and -(-blocks.n // blocks.block_rows) <= together


def late_from(multiprocessors: int = MULTIPROCESSORS) -> int:
    """The first block of a launch that finds no multiprocessor before the launch before it ends: attention of few positions
    leaves 100, gate and up fewer. The 139 KB that such a block of the output projection of the 8B asks for in Q8_0 were in the
    way of the end of attention, and of its activations. In steps of an H200: that one and down of Q8_0 2134 -> 2113 us, 8B
    1484 -> 1478, 7B 1468 -> 1457; of all blocks 2155 in Q8_0. With the copies of earlier blocks paced 13, 10 and 8 us less of
    2893, 1894 and 1860 (H100)."""
    return multiprocessors * 3 // 4


PIPELINE_ROOM: Final = 132 * 1024
"""LaunchConfig.shared_room of kernels with pipelines, which follow others that read weights through the L1 cache. In steps of
an H200 the 8B took 1573 us where the driver chose and 1513 with this, the 1.5B 692 and 659; with 164 KB the 8B lost 6 to 12 us,
with 196 the 7B 40. Where all kernels of a step asked for it, it was 1 us of the 8B in the same run."""

HOLDING: Final = PIPELINE_ROOM
"""Bytes of shared memory of a block with a pipeline, from which on it holds back a launch that has none and is no gather. The
head of the 8B, which began early behind a last product of 223 KB, took 140 us instead of 112 (H200): as it seems,
multiprocessors stay divided into L1 and shared memory as the product wanted it while blocks of one launch follow those of the
other. Launches with pipelines gain by beginning early: held back, those of the 7B cost 34 us of 1492."""

SIXTEEN_WARPS: Final = 16 * WARP_SIZE
THEIR_REGISTERS: Final = 80
"""Threads of a block, and the most registers of each that leave room on a multiprocessor for a block of 8 warps of 96, as those
that multiply by gate and up and copy ahead beside one of the output projection. With 88 a thread a step of the 8B took 1588 us
instead of 1537 (H200)."""


def most_registers(blocks: Blocks) -> int | None:
    """The most registers of a thread of a product that is added to the residual stream; None: as the assembler has it. With a
    pipeline that leaves half of the shared memory, 16 warps leave registers, too, for a block of what comes next."""
    leaves = blocks.stages and blocks.dynamic_shared <= PIPELINE_SHARED // 2 and blocks.threads == SIXTEEN_WARPS
    return THEIR_REGISTERS if leaves else None


# A product that leaves an RMSNorm

IDLE_WEIGHTS: Final = 100_000
"""Weights of a block of 32 rows, times the share of the multiprocessors that have none: from so many on blocks share groups, so
that each multiprocessor has as many rows. On an H100, in steps: 74,000 (k = 3072, n = 1024) won 56 us of 590 by whole groups,
92,000 (18944, 3584) 37 of 2128; 135,000 (8192, 2048) lost 8 of 500. On an H200 that won 7 of 394 by blocks of 16 rows, and
182,000 (8960, 1536) 30 of 726 by blocks of 12."""


def leaving_norm(blocks: Blocks, multiprocessors: int = MULTIPROCESSORS) -> Settings | None:
    """If there are whole groups of 32 rows. A block has such a group, since what the blocks of a group count each other by
    takes as long as a norm; but where that leaves many multiprocessors idle for long, several blocks share a group."""
    if blocks.n % BLOCK:
        return None
    idle_weights = (1 - blocks.n / BLOCK / multiprocessors) * BLOCK * blocks.k
    most = BLOCK // blocks.format.shared_bytes  # more of Q6_K would not fit the registers of 16 warps
    of_block = most if idle_weights <= IDLE_WEIGHTS else min(most, -(-blocks.n // multiprocessors))
    lane_groups = blocks.fragments.lane_groups
    rows = max(1, of_block // 16 // lane_groups)
    return {"num_warps": -(-of_block // (rows * lane_groups)), "rows_per_warp": rows, "row_groups": 1, **NO_PIPELINE}


# Gate and up with SwiGLU

WORTH_IT: Final = 0.8
"""The share of the multiprocessors that must be busy on average. On an H100, in steps: 448 groups (85 %) won 1.5 %, 280 (53 %)
lost 5 %, and with one plane 256 (97 %) lost 4 %."""

USUAL, FEWEST = 8, 4
WARPS: Final = (16, USUAL, FEWEST)
"""Of a block. Four for the 448 groups of a model of 8B, which eight have in two rounds, won 16 us of a step of 1650 (H200); for
the 592 of the 7B, whose blocks share groups, 34 of 1569."""

MOST_STEPS: Final = 8
"""Of a row: those of Q8_0_ALIGNED and 4096 values, of which this won 32 us of 2337 (H200)."""

TWO_PAIRS: Final = (find("Q8_0_ALIGNED"), 3)
"""Format and planes of which a lane has the registers for the loads of two pairs: other formats, and two planes, spill some."""


def _memory_bounds(blocks: Blocks) -> bool:
    """Whether a row is of more steps than are loaded ahead: of few weights a step, Q8_0's above all."""
    return blocks.fragments.steps > blocks.ahead


def swiglu(gate: Blocks, multiprocessors: int = MULTIPROCESSORS) -> Settings | None:
    """Of gate and up in one launch, of which the blocks of gate alone are given; None where two launches are faster: with one
    plane, which memory alone bounds; rows of many steps; and groups of 32 results, a block each, which leave many
    multiprocessors idle. A block has as many warps as let all groups be there at once. Where there are too many groups for
    that, blocks share them, so that each of those that are there at once has as many rows. Where memory bounds the product,
    there are not too many, and registers are enough (TWO_PAIRS), eight warps of two pairs, in two rounds: with what is asked
    for ahead (l2_prefetch.py) they won 53 us of 2844 of the 8B in Q8_0 and 8 of 618 of the 1B (H100), without 9 of 2213 (H200);
    the 592 groups of the 7B lost 13 of 2703."""
    groups, lane_groups = gate.n // BLOCK, gate.fragments.lane_groups

    def at_once(warps: int) -> int:
        return blocks_at_once(warps * WARP_SIZE, gate.threads_at_once, multiprocessors)

    idle = at_once(USUAL) < groups < WORTH_IT * at_once(FEWEST)
    if gate.n % BLOCK or gate.digits == 1 or gate.fragments.steps > MOST_STEPS or idle:
        return None
    fitting = (warps for warps in WARPS if groups <= at_once(warps) and warps * WARP_SIZE <= gate.threads_at_once)
    warps = min(next(fitting, FEWEST), BLOCK // lane_groups)
    rows = BLOCK if groups <= at_once(FEWEST) else -(-gate.n // at_once(FEWEST))
    pairs = 1
    if _memory_bounds(gate) and (gate.format, gate.digits) == TWO_PAIRS and groups <= at_once(FEWEST):
        warps, pairs = USUAL, 2
    row_groups = max(1, -(-rows // (warps * lane_groups * pairs)))
    if row_groups * lane_groups * pairs > WARP_SIZE:
        return None
    return {"num_warps": warps, "rows_per_warp": 2 * pairs, "row_groups": row_groups, **NO_PIPELINE}


# Several matrices

MOST_ROUNDS: Final = 2.5
"""Of blocks of matrices of two formats, of MIXED_RESIDENT threads a multiprocessor: those of the last matrix, the slowest,
begin last. In steps of an H200 1.5 rounds won 3 us of 433, 2.9 lost 8 of 1644."""

MIXED_RESIDENT: Final = 512


def last_rows_per_warp(rows_per_warp: int, format: Format) -> int:
    """Of the last matrix, of another format: with the registers of the first format's rows."""
    return max(1, rows_per_warp // format.shared_bytes)


def mixes(blocks: int, threads: int, multiprocessors: int = MULTIPROCESSORS) -> bool:
    """Whether so many blocks of so many threads, for matrices of two formats, are fast together."""
    return blocks <= MOST_ROUNDS * blocks_at_once(threads, MIXED_RESIDENT, multiprocessors)


# The multistage pipeline of weights


class PipelineForm(NamedTuple):
    """A form to try: settings of its geometry, and its stages, as many as fit from `least` to `most`."""

    settings: Settings
    most: int
    least: int = 2


def pipeline_of_residual(blocks: Blocks, multiprocessors: int = MULTIPROCESSORS) -> PipelineForm | None:
    """Of a product that is added to the residual stream. By blocks of 16 warps of a row or two, one a multiprocessor, as those
    that leave a norm have them; of more rows only where activations come in pieces else (43 -> 18 us of 18944 x 3584, H200). A
    third stage of a row, of down of half of the 8B, won 22 us of a step of 1415 (two H100s)."""
    for rows in (1, 2):
        if replace(blocks, num_warps=16, rows_per_warp=rows, row_groups=1, stages=0).count <= multiprocessors:
            return PipelineForm({"num_warps": 16, "rows_per_warp": rows, "row_groups": 1, "pdl": False, **NO_PIPELINE}, most=3)
    in_pieces = len(chunks(blocks.format, blocks.k, 1, blocks.digits)) > 1
    return PipelineForm({}, most=2) if in_pieces else None


def pipeline_of_leaving_norm(rows_per_warp: int) -> PipelineForm:
    """Of a product that leaves a norm. In steps of an H200 3 stages instead of 2 won 28 us of 1537 by down of the 8B (two rows
    a warp), and lost 7 of 652 by that of the 1.5B (one)."""
    return PipelineForm({}, most=3 if rows_per_warp > 1 else 2)


def pipeline_of_swiglu(blocks: Blocks, multiprocessors: int = MULTIPROCESSORS) -> PipelineForm | None:
    """Of gate and up. Two blocks of four warps become one, whose pipelines have the room of the
    activations of the second. Where memory bounds the product, loads into registers are faster (Q8_0, H200: 33 us for 36). A
    third stage won 4 to 8 us of a step of the 7B and the 8B, and lost 4 of the 1B's, whose rows come in one part."""
    if _memory_bounds(blocks):
        return None
    wider = replace(blocks, num_warps=max(USUAL, blocks.num_warps), stages=0)
    fits = wider.count <= blocks_at_once(wider.threads, wider.threads_at_once, multiprocessors)
    settings = {"num_warps": USUAL, **NO_PIPELINE} if blocks.num_warps < USUAL and fits else {}
    return PipelineForm(settings, most=3 if blocks.pipeline_layout.parts > 1 else 2)


LEAST_RINGED: Final = 6 << 20
"""Bytes of weights of several matrices from which on a pipeline is faster. In steps of an H200 q, k and v of the 7B (9.3 MB)
and the 8B (14.2) won 1.5 us a layer; those of the 1B (3.5), the 1.5B and Qwen3-0.6B lost 0.2 to 0.5."""

MOST_ROWS: Final = 3
"""Of a warp with a pipeline."""

ROUNDS: Final = (1.0, 1.0)
MIXED_ROUNDS: Final = (1.0, 1.1)
"""Of blocks with a pipeline that are there at once on a large GPU, in which it has all of several matrices. The last blocks of
two formats are small: 278, of which 264 are there at once, won 15 us of a step of 1502 of the 8B (H200)."""


def pipelines_of_several(weight_bytes: int, *, mixed: bool) -> list[tuple[float, PipelineForm]]:
    """Of several matrices of so many bytes, what to try, in this order, each with the rounds that its blocks may take: by eight
    warps a block, of as few rows as let all blocks be there at once, or nearly all."""
    if weight_bytes < LEAST_RINGED:
        return []
    found = []
    for rounds, rows, stages in product(MIXED_ROUNDS if mixed else ROUNDS, range(1, MOST_ROWS + 1), (2, 1)):
        geometry = {"num_warps": 8, "rows_per_warp": rows, "row_groups": 1, "pdl": False, **NO_PIPELINE}
        if mixed:
            geometry["last_rows_per_warp"] = min(rows, 2)  # blocks of the last format are larger
        found.append((rounds, PipelineForm(geometry, stages, stages)))
    return found


def in_rounds(count: int, rounds: float, blocks: Blocks, multiprocessors: int = MULTIPROCESSORS) -> bool:
    """Whether so many blocks of this kind are there in so many rounds."""
    return count <= rounds * blocks_at_once(blocks.threads, blocks.threads_at_once, multiprocessors)


# Rows of the next kernel's weights that are prefetched into L2

PREFETCHED: Final = 8 << 20
"""Bytes that are prefetched: what DRAM delivers in the 2 us that it is idle in the output projection of an 8B. On an H100,
in steps of Q8_0: 4 MB won 24 us of 2928, 6 MB 40, 8 MB 43, 10 MB 42, 12 MB 38; on an H200 8 MB won 7 of 2142, and 12 MB lost
2. A prefetch that is too late or too large delays the other launch's activations."""

MOST_OF: Final = 8
"""Of so many rows one at most is prefetched: the 1B lost 1 us of 614 by a quarter of its rows and won 4 by an eighth."""


def prefetches(gate: Blocks) -> Settings:
    """Of gate and up without a pipeline, which begin when the kernel before has ended: the first rows of their first warps, of
    as many as make PREFETCHED bytes."""
    every = gate.warp_results
    rows = min(PREFETCHED // (len(gate.weights) * gate.format.row_bytes(gate.k)), gate.n // max(every, MOST_OF))
    return {"prefetches": rows, "prefetch_every": every, "prefetch_rows": gate.n}
