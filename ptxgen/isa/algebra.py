"""The operations that an instruction's meaning may use. The emulator implements them on LLVM vectors, a warp at a time.

A `Number` holds one number a lane and knows its PTX type. Its operators act lane by lane on two values of one type (a Python
number takes the type of the other side):

    + - *        integers wrap; floats round to nearest even, keep subnormals, never contract
    /            floats only, correctly rounded; for integers see `div` and `rem`
    & | ^ ~      integers, bits and predicates
    << >>        by a value of any integer type; a count of the width or more gives 0 (or the sign), as PTX clamps
    == != < <= > >=   predicates; bits compare as unsigned; on floats false if either side is NaN (`!=` too: use `isnan` for
                      the unordered forms)
    unary -      floats flip the sign bit, NaN included
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ptxgen.isa.operands import Address
from ptxgen.types import DType


class Number(Protocol):
    """One number a lane."""

    @property
    def type(self) -> DType:
        """The PTX type."""

    def __add__(self, other: Number | float) -> Number: ...
    def __radd__(self, other: float) -> Number: ...
    def __sub__(self, other: Number | float) -> Number: ...
    def __rsub__(self, other: float) -> Number: ...
    def __mul__(self, other: Number | float) -> Number: ...
    def __rmul__(self, other: float) -> Number: ...
    def __truediv__(self, other: Number | float) -> Number: ...
    def __rtruediv__(self, other: float) -> Number: ...
    def __and__(self, other: Number | int) -> Number: ...
    def __or__(self, other: Number | int) -> Number: ...
    def __xor__(self, other: Number | int) -> Number: ...
    def __invert__(self) -> Number: ...
    def __neg__(self) -> Number: ...
    def __lshift__(self, other: Number | int) -> Number: ...
    def __rshift__(self, other: Number | int) -> Number: ...
    def __eq__(self, other: object) -> Number: ...  # type: ignore[override]
    def __ne__(self, other: object) -> Number: ...  # type: ignore[override]
    def __lt__(self, other: Number | float) -> Number: ...
    def __le__(self, other: Number | float) -> Number: ...
    def __gt__(self, other: Number | float) -> Number: ...
    def __ge__(self, other: Number | float) -> Number: ...


class Algebra(Protocol):
    """What `v` can do in a meaning, besides the operators of its values."""

    # Values
    def const(self, value: float, type: DType) -> Number:
        """The same number in every lane."""

    def bits(self, a: Number, type: DType) -> Number:
        """The same bits seen as another type of the same size."""

    def convert(self, a: Number, type: DType) -> Number:
        """The number as another type. Integer to integer truncates or extends by the source's sign; integer to float and
        float to float round to nearest even; float to integer truncates toward zero, clamps, and NaN gives 0. Every pair
        of f16, bf16, f32, f64 and the integers works, and e4m3/e5m2 are not types here."""

    def select(self, p: Number, a: Number, b: Number) -> Number:
        """a where the predicate p holds, else b."""

    def lanes_of(self, a: Number) -> tuple[Number, Number]:
        """The low and high half of a packed pair (f16x2, bf16x2), or of a 32/64-bit integer or bits value, as its half type."""

    def join(self, low: Number, high: Number, type: DType) -> Number:
        """The inverse of `lanes_of`."""

    def byte(self, a: Number, index: int, type: DType) -> Number:
        """Byte `index` (0 lowest) of a 32-bit value, extended by the sign of `type` (u32 or s32) to that type."""

    # Arithmetic beyond the operators
    def div(self, a: Number, b: Number) -> Number:
        """Integer quotient toward zero; by zero gives all ones (what the hardware gives; PTX leaves it open)."""

    def rem(self, a: Number, b: Number) -> Number:
        """What the quotient leaves, with the sign of a; by zero all ones."""

    def mul_hi(self, a: Number, b: Number) -> Number:
        """The high half of the product of two integers."""

    def min(self, a: Number, b: Number) -> Number:
        """Floats: a NaN loses, -0 < +0."""

    def max(self, a: Number, b: Number) -> Number:
        """As `min`, the larger."""

    def abs(self, a: Number) -> Number:
        """The magnitude; the least integer gives itself, a float loses its sign."""

    def fma(self, a: Number, b: Number, c: Number) -> Number:
        """One rounding, to nearest even."""

    def sqrt(self, a: Number) -> Number:
        """Correctly rounded, of a float."""

    def isnan(self, a: Number) -> Number:
        """A predicate."""

    def canonical(self, a: Number) -> Number:
        """Any NaN becomes the hardware's (0x7fffffff for f32, 0x7fff for f16 and bf16). May be put off until somebody looks at
        the bits (`bits`, a store, a wider use), since arithmetic gives NaN for any NaN. That of f64 stays what it is."""

    def rounded(self, mode: str, work: Callable[..., Number], *operands: Number) -> Number:
        """`work(*operands)` with every float rounding in it done in `mode`: rn, rz, rm (down) or rp (up)."""

    def to_integral(self, a: Number, mode: str) -> Number:
        """A float rounded to a whole number, still a float: rni, rzi, rmi, rpi."""

    def flush(self, a: Number) -> Number:
        """Subnormal f32 or f16 become zero of the same sign (`.ftz`)."""

    def approx(self, function: str, a: Number) -> Number:
        """ex2, lg2, sin, cos, tanh, rcp, rsqrt, sqrt of f32: the right result within the error that the PTX ISA gives, not the
        hardware's bits. Default kernels never use it."""

    def popc(self, a: Number) -> Number:
        """How many bits are 1, in the type of a."""

    def clz(self, a: Number) -> Number:
        """How many bits above the highest 1, in the type of a; its width for 0."""

    def brev(self, a: Number) -> Number:
        """The bits in the opposite order."""

    # The warp
    def lane(self) -> Number:
        """The lane number, u32."""

    def active(self) -> Number:
        """Which lanes execute this instruction, a predicate."""

    def from_lane(self, a: Number, source: Number | Sequence[int]) -> Number:
        """In each lane, the value that lane `source` (u32, 0..31) holds; or 32 lane numbers known in advance."""

    def ballot(self, p: Number) -> Number:
        """u32 with bit i set where lane i is active and p holds; the same in every lane."""

    def check_shuffle(self, sources: Number, valid: Number, member_mask: Number) -> None:
        """Tell the sanitiser where a lane reads from, so that it can report an inactive source."""

    # The carry flag, one bit a lane (PTX ISA 9.7.2)
    def carry(self) -> Number:
        """A predicate."""

    def set_carry(self, p: Number) -> None:
        """The flag becomes p."""

    # Memory. `space` is global, shared, local, param, const or generic. An address is the operand, or a number that
    # `address_of` gave and arithmetic changed.
    def load(self, space: str, address: Address | Number, type: DType, count: int = 1) -> tuple[Number, ...]:
        """`count` consecutive elements a lane."""

    def store(self, space: str, address: Address | Number, values: Sequence[Number], type: DType) -> None:
        """Consecutive elements a lane."""

    def atomic(self, space: str, address: Address, type: DType, update: Callable[..., Number], *operands: Number) -> Number:
        """For each active lane in turn: old = memory; memory = update(old, *operands). Returns old."""

    def address_of(self, address: Address) -> Number:
        """The address as a number (u64, or u32 in the shared window)."""

    def to_generic(self, space: str, a: Number) -> Number:
        """The generic address (u64) of an address in the space."""

    def from_generic(self, space: str, a: Number) -> Number:
        """The address in the space of a generic address."""

    def is_space(self, space: str, a: Number) -> Number:
        """Whether a generic address falls into the space, a predicate."""

    def copy_async(self, destination: Address, source: Address, size: int, bytes_read: Number | None) -> None:
        """Global to shared, done at the wait that covers its group and not before; bytes past `bytes_read` become 0."""

    def commit_async(self) -> None:
        """Make a group of the copies since the last one."""

    def wait_async(self, pending: int) -> None:
        """Complete all but the last `pending` groups."""

    # Bulk copies and mbarriers (PTX ISA 9.7.9.25.4, 9.7.13.15)
    def make_mbarrier(self, address: Address, count: Number) -> None:
        """The 8 bytes of shared memory become an mbarrier of `count` arrivals a phase."""

    def arrive_expecting(self, address: Address, bytes: Number) -> Number:
        """The phase at hand waits for so many bytes more and for one arrival less; gives its state before, b64."""

    def try_wait(self, address: Address, parity: Number) -> Number:
        """Whether the phase at hand is of another parity, once the copies that it waits for are done; a predicate."""

    def copy_bulk(self, destination: Address, source: Address, size: Number, barrier: Address) -> None:
        """Global to shared, done at the wait that covers it and not before."""

    # Asynchronous products of a warpgroup (PTX ISA 9.7.15)
    def product(
        self, c: Sequence[Number], a: Sequence[Number], b: Number, scale_d: Number, type: str, *, negative: bool
    ) -> tuple[Number, ...]:
        """The warp's 16 rows of c + a b (a b where scale_d is false), f32, or of c - a b; b [n, 16] of f16 or bf16 (`type`)
        lies in shared memory as the descriptor b says."""

    def product_fence(self) -> None:
        """Registers that were written before may be read by products that follow."""

    def commit_products(self) -> None:
        """Make a group of the products since the last one."""

    def wait_products(self, pending: int) -> None:
        """Complete all but the last `pending` groups."""

    def proxy_fence(self, proxy: str) -> None:
        """What the threads have read and written before in the memory of a proxy comes before what it does from now on."""

    # Control
    def barrier(self, kind: str, *operands: Number) -> None:
        """kind: `block` (bar.sync, barrier.sync) with the barrier's number and, if given, thread count; `warp` with a mask;
        `grid` waits for the grids before this one."""

    def barrier_count(self, p: Number, *operands: Number) -> Number:
        """Wait at a barrier of the block, as `barrier("block", ...)` says; u32: for how many of the threads that waited the
        predicate p holds."""

    def trap(self) -> None:
        """End the kernel with an error."""

    def no_effect(self) -> None:
        """For rows whose effect no emulated machine can show: prefetches, fences, cache policies, nanosleep."""
