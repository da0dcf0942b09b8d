"""Matrix products of a warpgroup (four warps in a row) on sm_90a: descriptors of operands in shared memory, and the product in
place. What goes around it (fences, groups, waits) are instructions of the table, which are methods as they are."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.cooperation import Cooperation
from ptxgen.dsl.memory import Element, SharedPart, SharedView
from ptxgen.dsl.mistakes import no_element
from ptxgen.dsl.value import Value
from ptxgen.errors import AuthorError, TypeMismatch
from ptxgen.isa.operands import Symbol
from ptxgen.target import WARPGROUP_SIZE
from ptxgen.types import F16, F32, PRED, U32, U64, DType

_ADDRESS_BITS = 18
_UNIT = 16  # bytes: what addresses and offsets in a descriptor count
_SWIZZLES = {0: 0, 128: 1, 64: 2, 32: 3}  # bytes: how a descriptor spells them


class Warpgroup(Cooperation):
    """The products of warpgroups of KernelBuilder."""

    @property
    def warpgroup(self) -> Value:
        """The warpgroup in its block, which must be one-dimensional."""
        return self._once("warpgroup", "shr", [self.warp, (WARPGROUP_SIZE // 32).bit_length() - 1], {}, U32)

    def matrix_descriptor(
        self, start: Element | SharedView | SharedPart, *, stride: int, leading: int | None = None, swizzle: int = 0
    ) -> Value:
        """u64: the descriptor of a K-major matrix [n, 16] of 16-bit elements that starts at `start` in shared memory, on a
        16-byte boundary.

        It is made of core matrices, 8 rows of 16 bytes (8 values of k). Without swizzle each is 128 bytes in a row; `leading`
        bytes lie between the one of k 0..7 and that of k 8..15 of the same rows. With a swizzle of 32, 64 or 128 bytes rows are
        as many bytes apart, k 8..15 follows k 0..7, and the 16 bytes at x (from a multiple of 8 rows on) are kept at
        x ^ (x / 128 mod swizzle / 16) * 16. In both cases `stride` bytes lie between rows 0..7 and 8..15, and so on (PTX ISA
        9.7.15.5.1.2). That of a matrix which starts `s` bytes further on is `descriptor + s // 16`."""
        if swizzle not in _SWIZZLES:
            raise AuthorError(f"swizzle must be {', '.join(map(str, _SWIZZLES))} bytes, got {swizzle}", self.where())
        if (leading is None) != (swizzle > 0):
            raise AuthorError("a matrix has a leading offset or a swizzle, one of the two", self.where())
        end = 1 << _ADDRESS_BITS
        first = _UNIT if leading is None else leading  # which the hardware does not look at with a swizzle
        for name, offset in (("leading", first), ("stride", stride)):
            if not 0 <= offset < end or offset % _UNIT:
                raise AuthorError(f"{name} must be a multiple of {_UNIT} below {end}, got {offset}", self.where())
        low = self.op("bfe", self._shared_address(start), 4, _ADDRESS_BITS - 4, type="u32")
        low = self.op("or", low, first // _UNIT << 16) if first else low
        high = stride // _UNIT | _SWIZZLES[swizzle] << 30
        return self.op("mov", (low, self._once(f"descriptor {high}", "mov", [high], {"type": "u32"}, U32)), result=U64)

    def _shared_address(self, start: Element | SharedView | SharedPart) -> Value:
        """u32: where it lies in the shared window."""
        if isinstance(start, SharedView):
            start = start.start()
        if isinstance(start, SharedPart):
            start = start[0]
        if not isinstance(start, Element):
            raise no_element("k.matrix_descriptor", start, self.where)
        if start.space != "shared":
            raise AuthorError(f"a descriptor is of shared memory, this element is in {start.space} memory", self.where())
        base = self.symbol_address(start.base.name) if isinstance(start.base, Symbol) else Value(self, start.base)
        return base + start.offset if start.offset else base

    def wgmma(
        self, accumulators: Sequence[Value], a: Sequence[Value], b: Value, type: DType = F16, *, accumulate: Value | bool = True
    ) -> None:
        """Begin accumulators = a b + accumulators, or a b where `accumulate` is false, in place.

        accumulators: n / 2 registers of f32 for n columns, the warp's rows 16 (w mod 4) ... + 15 in fragments of mma m16n8k16,
        columns 8 j to 8 j + 7 in the four from 4 j on; a: the four registers of that instruction's a, `type` f16 or bf16; b: a
        descriptor of [n, 16]. None of these registers may be touched until k.wgmma_wait_group has waited for the group
        (k.wgmma_commit_group) of the product; k.wgmma_fence() must stand between what wrote them and the product."""
        if any(one.type != F32 for one in accumulators):
            raise TypeMismatch(f"accumulators are f32, got {', '.join(str(one) for one in accumulators)}", self.where())
        forms = {"shape": f"m64n{2 * len(accumulators)}k16", "a_type": type.name, "b_type": type.name}
        scale_d = self._truth(accumulate) if isinstance(accumulate, bool) else accumulate
        self.write("wgmma_mma_async", [tuple(accumulators), tuple(a), b, scale_d, 1, 1, 0], forms)

    def _truth(self, holds: bool) -> Value:
        return self._once(f"always {holds}", "setp", [int(holds), 0], {"cmp": "ne", "type": "u32"}, PRED)
