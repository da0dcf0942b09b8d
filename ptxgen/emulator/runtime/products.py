"""The product of a warpgroup, a warp's 16 rows of it: what the kernel's own code calls for each wgmma.mma_async."""

from __future__ import annotations

from functools import cache

from ptxgen.emulator.runtime.builder import Builder, IrValue, RuntimeFunction
from ptxgen.emulator.runtime.function import runtime_function
from ptxgen.target import WARP_SIZE

DEPTH = 16  # values of k
CHUNK = 8  # of 16 bits: what lies together of a row of b, and how many rows have a core matrix
_FLOATS = f"<{WARP_SIZE} x float>"


def chunk_offset(b: Builder, descriptor: IrValue, group: IrValue, row: IrValue, half: IrValue) -> IrValue:
    """Where in the shared window the 16 bytes of b lie that hold k from 8 `half` on of row 8 `group` + `row`, as the matrix
    descriptor says (PTX ISA 9.7.15.5.1.2, K-major). All i64, or all vectors of it."""

    def field(at: int, bits: int) -> IrValue:
        return descriptor >> at & (1 << bits) - 1

    mode = field(62, 2)  # no swizzle, or of 128, 64, 32 bytes
    swizzle = b.number(4, "i64").splat() - mode & 3 if descriptor.type != "i64" else b.number(4, "i64") - mode & 3
    between = (mode == 0).select(field(16, 14) << 4, 1 << 4)
    one = b.number(1, "i64") if descriptor.type == "i64" else b.number(1, "i64").splat()
    offset = (field(0, 14) << 4) + group * (field(32, 14) << 4) + (row << 4 << swizzle) + half * between
    return offset ^ (offset >> 7 & (one << swizzle) - 1) << 4


@cache
def multiplier(type: str) -> RuntimeFunction:
    """(vectors of accumulators, the four registers of a, descriptor, address of the shared window, groups of 8 columns, whether
    to begin with the accumulators) -> nothing. `type` f16 or bf16."""
    name = f"product.{type}"

    def widened(b: Builder, words: IrValue, count: int) -> IrValue:
        """Elements (i16) as floats."""
        if type == "f16":
            halves = b.emit(f"<{count} x half>", f"bitcast {words} to <{count} x half>")
            return b.emit(f"<{count} x float>", f"fpext {halves} to <{count} x float>")
        bits = words.resized(f"<{count} x i32>") << 16
        return b.emit(f"<{count} x float>", f"bitcast {bits} to <{count} x float>")

    def left(b: Builder, a: IrValue) -> list[list[IrValue]]:
        """By k and half of the rows (lane / 4, and 8 further on): what each lane multiplies by."""
        factors: list[list[IrValue]] = [[] for _ in range(DEPTH)]
        for register in range(4):
            words = a.at(register, f"<{WARP_SIZE} x i32>").load(f"<{WARP_SIZE} x i32>", align=64)
            halves = [widened(b, (words >> 16 * i).resized(f"<{WARP_SIZE} x i16>"), WARP_SIZE) for i in range(2)]
            for k in range(CHUNK):
                order = [(lane & ~3) + k // 2 for lane in range(WARP_SIZE)]
                factors[CHUNK * (register // 2) + k].append(halves[k % 2].shuffled(order))
        return factors

    def right(b: Builder, shared: IrValue, descriptor: IrValue, group: IrValue) -> list[list[IrValue]]:
        """By k and column (2 (lane mod 4), and the next) of the group: what each lane multiplies with."""
        factors: list[list[IrValue]] = []
        for half in range(2):
            rows = []
            for row in range(CHUNK):
                at = chunk_offset(b, descriptor, group, b.number(row, "i64"), b.number(half, "i64"))
                rows.append(widened(b, (shared + at).as_pointer().load(f"<{CHUNK} x i16>", align=1), CHUNK))
            columns = []
            for u in range(2):
                pairs = [rows[u + i].shuffled(range(2 * CHUNK), rows[u + i + 2]) for i in (0, 4)]
                columns.append(pairs[0].shuffled([CHUNK * m + k for k in range(CHUNK) for m in range(4)], pairs[1]))
            for k in range(CHUNK):
                factors.append([four.shuffled([4 * k + lane % 4 for lane in range(WARP_SIZE)]) for four in columns])
        return factors

    @runtime_function(
        "void",
        name=name,
        part=name,
        is_hot=True,
        accumulators="ptr",
        a="ptr",
        descriptor="i64",
        shared="i64",
        groups="i64",
        keeps="i1",
    )
    def multiply(
        b: Builder, accumulators: IrValue, a: IrValue, descriptor: IrValue, shared: IrValue, groups: IrValue, keeps: IrValue
    ) -> None:
        rows = left(b, a)
        zero = b.emit(_FLOATS, f"bitcast {b.number(0).splat()} to {_FLOATS}")
        with b.loop(groups) as (group, _):
            columns = right(b, shared, descriptor, group)
            for i in range(2):
                for u in range(2):
                    place = accumulators.at(group * 4 + (2 * i + u), _FLOATS)
                    total = b.emit(_FLOATS, f"select {keeps}, {place.load(_FLOATS, align=64)}, {zero}")
                    for k in range(DEPTH):
                        total = b.intrinsic("llvm.fma.v32f32", _FLOATS, rows[k][i], columns[k][u], total)
                    place.store(total, align=64)

    return multiply
