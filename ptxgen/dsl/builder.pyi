# Written by `python -m tests.ptxgen.dsl.builder_stub` from builder.py and the table in ptxgen/isa; do not edit.

"`KernelBuilder`: what a kernel author writes in."

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

from ptxgen.dsl.arguments import Signature
from ptxgen.dsl.core import Core
from ptxgen.dsl.ir import Parameter
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import GlobalArray, PeerArrays
from ptxgen.dsl.printing import Printing
from ptxgen.dsl.value import Value
from ptxgen.dsl.warpgroup import Warpgroup
from ptxgen.isa.operands import Address, LabelRef, Symbol
from ptxgen.target import DEFAULT, Target
from ptxgen.types import DType

class KernelBuilder(Warpgroup, Printing):
    """Writes one kernel. `k.arg.NAME` are its arguments; `k.tid.x`, `k.ctaid.x`, `k.lane`, `k.warp` say which thread runs.

    Every row of the instruction table is a method: `k.fma(a, b, c)`, `k.dp4a(a, b, c)`, `k.lop3(...)` (`and`, `or`, `not`
    are the operators & | ~). Operand types pick the form; modifiers are keywords (`k.add(a, b, rnd="rz")`)."""

    signature: Signature
    waited: bool
    "Whether the kernel said where it waits."
    freed: bool
    "Whether it said where it lets the next launch start."
    arg: _Arguments
    tid: _Axes
    ctaid: _Axes

    def __init__(
        self,
        name: str,
        signature: Signature,
        launch: LaunchConfig,
        target: Target = DEFAULT,
        summary: str = "",
        *,
        dependent: bool = False,
    ) -> None: ...
    def argument(self, name: str) -> Value | GlobalArray | PeerArrays:
        """The argument called `name`: an array for a pointer, a register for a scalar, arrays for addresses of arrays."""

    def wait_for_launch_before(self) -> None:
        """From here on the kernel may touch what launches before it write; before, it may read constant and settled arguments.
        All threads must call it, or another one of these. It does nothing where the kernel is not dependent. For kernels
        that are `waits_inside`."""

    def let_next_launch_start(self) -> None:
        """The next launch may start when all blocks have called it or ended. It does nothing where the kernel does not start
        early. For kernels that say `frees_next_inside`."""
    def abs(
        self,
        a: Value | float,
        /,
        *,
        ftz: Literal["ftz"] = ...,
        type: Literal["bf16", "bf16x2", "f16", "f16x2", "s16", "s32", "s64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """a without its sign; of a NaN the canonical one (as GPUs do; the ISA leaves it open). (PTX ISA 9.7.3.9)"""
    def activemask(self, *, result: DType | None = ...) -> Value:
        """The lanes that execute this instruction together. (PTX ISA 9.7.13.11)"""
    def add(
        self,
        a: Value | float,
        b: Value | float,
        /,
        *,
        rnd: Literal["rn", "rz", "rm", "rp"] = ...,
        ftz: Literal["ftz"] = ...,
        sat: Literal["sat"] = ...,
        type: Literal["bf16", "bf16x2", "f16", "f16x2", "u16", "u32", "u64", "s16", "s32", "s64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """d = a + b, rounded by `rnd`; without it ptxas may contract it with a product. (PTX ISA 9.7.3.3)"""
    def add_cc(
        self, a: Value | int, b: Value | int, /, *, type: Literal["u32", "s32", "u64", "s64"] = ..., result: DType | None = ...
    ) -> Value:
        """d = a + b; the carry flag gets the carry. (PTX ISA 9.7.2.1)"""
    def addc(
        self,
        a: Value | int,
        b: Value | int,
        /,
        *,
        cc: Literal["cc"] = ...,
        type: Literal["u32", "s32", "u64", "s64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """d = a + b + carry flag; with `cc` the flag gets the new carry. (PTX ISA 9.7.2.2)"""
    def and_(
        self, a: Value | int, b: Value | int, /, *, type: Literal["pred", "b16", "b32", "b64"] = ..., result: DType | None = ...
    ) -> Value:
        """d = a & b. (PTX ISA 9.7.8.1)"""
    def atom(
        self,
        a: Address,
        b: Value | float,
        /,
        *,
        order: Literal["relaxed", "acquire", "release", "acq_rel"] = ...,
        scope: Literal["cta", "cluster", "gpu", "sys"] = ...,
        space: Literal["global", "shared", "shared::cta"] = ...,
        op: Literal["add", "min", "max", "inc", "dec", "and", "or", "xor", "exch"],
        type: Literal["u32", "s32", "u64", "s64", "b32", "b64", "f32", "f64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """Memory becomes `memory op b` in one step; d is what was there. (PTX ISA 9.7.13.5)"""
    def atom_add_half(
        self,
        a: Address,
        b: Value,
        /,
        *,
        order: Literal["relaxed", "acquire", "release", "acq_rel"] = ...,
        scope: Literal["cta", "cluster", "gpu", "sys"] = ...,
        space: Literal["global", "shared", "shared::cta"] = ...,
        type: Literal["f16", "f16x2", "bf16", "bf16x2"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """Memory becomes `memory + b`, each half in one step; d is what was there. (PTX ISA 9.7.13.5)"""
    def atom_cas(
        self,
        a: Address,
        b: Value | int,
        c: Value | int,
        /,
        *,
        order: Literal["relaxed", "acquire", "release", "acq_rel"] = ...,
        scope: Literal["cta", "cluster", "gpu", "sys"] = ...,
        space: Literal["global", "shared", "shared::cta"] = ...,
        type: Literal["b16", "b32", "b64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """Memory becomes c if it holds b, in one step; d is what was there. (PTX ISA 9.7.13.5)"""
    @overload
    def bar_red(self, a: Value | int, c: Value, /, *, op: Literal["popc", "and", "or"], result: DType | None = ...) -> Value:
        """As `bar.sync`, then d is in how many of the threads c holds, or whether in all (and) or any (or). (PTX ISA
        9.7.13.1)"""
    @overload
    def bar_red(
        self, a: Value | int, b: Value | int, c: Value, /, *, op: Literal["popc", "and", "or"], result: DType | None = ...
    ) -> Value:
        """As `bar.sync`, then d is in how many of the threads c holds, or whether in all (and) or any (or). (PTX ISA
        9.7.13.1)"""
    def bar_sync(self, a: Value | int, b: Value | int = ..., /) -> None:
        """Wait at barrier a (0..15) for the whole block, or for b threads (a multiple of 32). (PTX ISA 9.7.13.1)"""
    def bar_warp_sync(self, mask: Value | int, /) -> None:
        """Wait for the lanes of the mask. (PTX ISA 9.7.13.2)"""
    @overload
    def barrier_red(
        self,
        a: Value | int,
        c: Value,
        /,
        *,
        op: Literal["popc", "and", "or"],
        aligned: Literal["aligned"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """As `bar.sync`, then d is in how many of the threads c holds, or whether in all (and) or any (or). (PTX ISA
        9.7.13.1)"""
    @overload
    def barrier_red(
        self,
        a: Value | int,
        b: Value | int,
        c: Value,
        /,
        *,
        op: Literal["popc", "and", "or"],
        aligned: Literal["aligned"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """As `bar.sync`, then d is in how many of the threads c holds, or whether in all (and) or any (or). (PTX ISA
        9.7.13.1)"""
    def barrier_sync(self, a: Value | int, b: Value | int = ..., /, *, aligned: Literal["aligned"] = ...) -> None:
        """Wait at barrier a (0..15) for the whole block, or for b threads (a multiple of 32). (PTX ISA 9.7.13.1)"""
    def bfe(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "u64", "s32", "s64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """The c bits of a from bit b on, extended by their sign for signed types; b and c are 0..255. (PTX ISA 9.7.1.19)"""
    def bfi(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        e: Value | int,
        /,
        *,
        type: Literal["b32", "b64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """b with its e bits from bit c on replaced by the low bits of a; c and e are 0..255. (PTX ISA 9.7.1.20)"""
    def bfind(
        self,
        a: Value | int,
        /,
        *,
        shiftamt: Literal["shiftamt"] = ...,
        type: Literal["u32", "u64", "s32", "s64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """The place of the highest bit that is not sign; with `shiftamt`, the shift that brings it to the top; all ones if
        none. (PTX ISA 9.7.1.16)"""
    def bmsk(self, a: Value | int, b: Value | int, /, *, mode: Literal["clamp", "wrap"], result: DType | None = ...) -> Value:
        """A mask of b ones that starts at bit a; both cut at 32, or taken modulo 32. (PTX ISA 9.7.1.22)"""
    def bra(self, target: LabelRef, /, *, uni: Literal["uni"] = ...) -> None:
        """Go on at the label. (PTX ISA 9.7.12.3)"""
    def brev(self, a: Value | int, /, *, type: Literal["b32", "b64"] = ..., result: DType | None = ...) -> Value:
        """The bits in the opposite order. (PTX ISA 9.7.1.18)"""
    def brx_idx(self, index: Value | int, targets: LabelRef, /, *, uni: Literal["uni"] = ...) -> None:
        """Go on at the label that stands at `index` in the list (.branchtargets) named. (PTX ISA 9.7.12.4)"""
    def call(self, function: Symbol, /, *, uni: Literal["uni"] = ...) -> None:
        """Call a device function; in the text results precede its name, arguments follow it. (PTX ISA 9.7.12.5)"""
    def clz(self, a: Value | int, /, *, type: Literal["b32", "b64"] = ..., result: DType | None = ...) -> Value:
        """How many bits above the highest 1; the width for 0. (PTX ISA 9.7.1.15)"""
    def cnot(self, a: Value | int, /, *, type: Literal["b16", "b32", "b64"] = ..., result: DType | None = ...) -> Value:
        """d = 1 where a is 0, else 0. (PTX ISA 9.7.8.5)"""
    def copysign(
        self, a: Value | float, b: Value | float, /, *, type: Literal["f32", "f64"] = ..., result: DType | None = ...
    ) -> Value:
        """b with the sign of a. (PTX ISA 9.7.3.2)"""
    def cos_approx(self, a: Value | float, /, *, ftz: Literal["ftz"] = ..., result: DType | None = ...) -> Value:
        """cos(a), within 2^-20.5 for |a| <= 2 pi. (PTX ISA 9.7.3.19)"""
    def cp_async(
        self,
        a: Address,
        b: Address,
        size: int,
        taken: Value | int = ...,
        /,
        *,
        cache: Literal["ca", "cg"],
        space: Literal["shared", "shared::cta"] = ...,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] = ...,
    ) -> None:
        """Start to copy `size` bytes (4, 8 or 16; only 16 with `cg`, which passes the L1 cache by) from [b] to shared memory
        [a]; bytes past `taken` become 0. (PTX ISA 9.7.9.25.3.1)"""
    def cp_async_bulk(
        self, a: Address, b: Address, size: Value | int, barrier: Address, /, *, to: Literal["shared::cluster"] = ...
    ) -> None:
        """Start to copy `size` bytes, a multiple of 16, from [b] to shared memory [a], both at multiples of 16. Completion
        counts the bytes at the mbarrier [barrier]. (PTX ISA 9.7.9.25.4.1)"""
    def cp_async_commit_group(self) -> None:
        """Make a group of the thread's copies since the last one. (PTX ISA 9.7.9.25.3.2)"""
    def cp_async_wait_all(self) -> None:
        """Wait for all copies of the thread. (PTX ISA 9.7.9.25.3.3)"""
    def cp_async_wait_group(self, pending: int, /) -> None:
        """Wait until at most the last `pending` groups are still under way. (PTX ISA 9.7.9.25.3.3)"""
    @overload
    def cvt(
        self,
        a: Value | float,
        /,
        *,
        sat: Literal["sat", "satfinite"] = ...,
        to: Literal[
            "u8",
            "u16",
            "u32",
            "u64",
            "s8",
            "s16",
            "s32",
            "s64",
            "f16",
            "f32",
            "f64",
            "bf16",
            "tf32",
            "e4m3x2",
            "e5m2x2",
            "f16x2",
        ] = ...,
        of: Literal[
            "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f16", "f32", "f64", "bf16", "f16x2", "e4m3x2", "e5m2x2"
        ] = ...,
        rnd: Literal["rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "rna"] = ...,
        ftz: Literal["ftz"] = ...,
        relu: Literal["relu"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """Integer to integer: the low bits, or the nearest value with `sat`; extended by the sign of the source. (PTX ISA
        9.7.9.21)"""
    @overload
    def cvt(
        self,
        a: Value | float,
        b: Value | float,
        /,
        *,
        rnd: Literal["rn", "rz"] = ...,
        relu: Literal["relu"] = ...,
        to: Literal["f16x2", "bf16x2", "e4m3x2", "e5m2x2"] = ...,
        sat: Literal["satfinite"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """Two f32 to a packed pair: a to the high half, b to the low half. (PTX ISA 9.7.9.21)"""
    def cvta(
        self,
        a: Value | int,
        /,
        *,
        to: Literal["to"] = ...,
        space: Literal["const", "global", "local", "shared", "shared::cta", "param", "param::entry"],
        type: Literal["u64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """The generic address of an address in a state space (of a variable, too); with `to`, the other way round. (PTX ISA
        9.7.9.20)"""
    def div(
        self,
        a: Value | float,
        b: Value | float,
        /,
        *,
        rnd: Literal["rn", "rz", "rm", "rp"] = ...,
        ftz: Literal["ftz"] = ...,
        type: Literal["u16", "u32", "u64", "s16", "s32", "s64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """d = a / b, rounded as `rnd` says. (PTX ISA 9.7.3.8)"""
    def div_approx(
        self, a: Value | float, b: Value | float, /, *, ftz: Literal["ftz"] = ..., result: DType | None = ...
    ) -> Value:
        """a / b within 2 ulp; for 2^126 < |b| the result is 0 (NaN if a is infinite). (PTX ISA 9.7.3.8)"""
    def div_full(
        self, a: Value | float, b: Value | float, /, *, ftz: Literal["ftz"] = ..., result: DType | None = ...
    ) -> Value:
        """a / b within 2 ulp over the whole range. (PTX ISA 9.7.3.8)"""
    def dp2a(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        half: Literal["lo", "hi"],
        a_type: Literal["u32", "s32"],
        b_type: Literal["u32", "s32"],
        result: DType | None = ...,
    ) -> Value:
        """Add to c the products of the two halves of a with two bytes of b, the low or the high two. (PTX ISA 9.7.1.24)"""
    def dp4a(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        a_type: Literal["u32", "s32"],
        b_type: Literal["u32", "s32"],
        result: DType | None = ...,
    ) -> Value:
        """Add the four byte products of a and b to c. (PTX ISA 9.7.1.23)"""
    def elect(self, mask: Value | int, /, *, result: DType | None = ...) -> tuple[Value, Value]:
        """The number of one lane of the mask (the lowest), and whether this is it. (PTX ISA 9.7.13.14)"""
    def ex2_approx(
        self,
        a: Value | float,
        /,
        *,
        ftz: Literal["ftz"] = ...,
        type: Literal["bf16", "bf16x2", "f16", "f16x2"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """2 ** a within 2 ulp. (PTX ISA 9.7.3.21)"""
    def exit(self) -> None:
        """End the thread. (PTX ISA 9.7.12.7)"""
    def fence(self, *, sem: Literal["sc", "acq_rel"] = ..., scope: Literal["cta", "cluster", "gpu", "sys"]) -> None:
        """Earlier accesses are seen before later ones by the threads of the scope. (PTX ISA 9.7.13.4)"""
    def fence_mbarrier_init(self) -> None:
        """Let bulk copies see the mbarriers that the thread has made before. (PTX ISA 9.7.13.4)"""
    def fence_proxy(self, *, proxy: Literal["async", "async.global", "async.shared::cta"]) -> None:
        """Let asynchronous products and bulk copies see what ordinary instructions have written, and overwrite what they have
        read, earlier in causality order: a barrier before it includes other threads' accesses, one after it their products and
        copies. (PTX ISA 9.7.13.4)"""
    def fma(
        self,
        a: Value | float,
        b: Value | float,
        c: Value | float,
        /,
        *,
        rnd: Literal["rn", "rz", "rm", "rp"] = ...,
        ftz: Literal["ftz"] = ...,
        sat: Literal["sat"] = ...,
        relu: Literal["relu"] = ...,
        type: Literal["bf16", "bf16x2", "f16", "f16x2"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """d = a * b + c with one rounding. (PTX ISA 9.7.3.6)"""
    def fns(self, a: Value | int, b: Value | int, c: Value | int, /, *, result: DType | None = ...) -> Value:
        """The place of the c-th set bit of a from place b (0..31) on, downwards for negative c; for c = 0, b if its bit is set.
        All ones if there is none. (PTX ISA 9.7.1.17)"""
    def griddepcontrol(self, *, action: Literal["launch_dependents", "wait"]) -> None:
        """Let the next grid start early, or wait until earlier grids have finished and their writes are visible. (PTX ISA
        9.7.13.13)"""
    def isspacep(
        self,
        a: Value | int,
        /,
        *,
        space: Literal["const", "global", "local", "shared", "shared::cta"],
        result: DType | None = ...,
    ) -> Value:
        """Whether a generic address falls in the window of a state space. (PTX ISA 9.7.9.19)"""
    @overload
    def ld(
        self,
        a: Address,
        /,
        *,
        order: Literal["weak", "volatile", "relaxed", "acquire"] = ...,
        space: Literal["global", "local", "param", "const", "param::entry", "param::func", "shared", "shared::cta"] = ...,
        cop: Literal["ca", "cg", "cs", "lu", "cv"] = ...,
        evict: Literal["L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"] = ...,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] = ...,
        type: Literal["b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64"] = ...,
        scope: Literal["cta", "cluster", "gpu", "sys"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """Load from global memory, or from wherever a generic address points. (PTX ISA 9.7.9.8)"""
    @overload
    def ld(
        self,
        a: Address,
        /,
        *,
        vec: Literal["v2"],
        order: Literal["weak", "volatile", "relaxed", "acquire"] = ...,
        space: Literal["global", "local", "param", "const", "param::entry", "param::func", "shared", "shared::cta"] = ...,
        cop: Literal["ca", "cg", "cs", "lu", "cv"] = ...,
        evict: Literal["L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"] = ...,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] = ...,
        type: Literal["b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64"] = ...,
        scope: Literal["cta", "cluster", "gpu", "sys"] = ...,
        result: DType | None = ...,
    ) -> tuple[Value, Value]:
        """Load from global memory, or from wherever a generic address points. (PTX ISA 9.7.9.8)"""
    @overload
    def ld(
        self,
        a: Address,
        /,
        *,
        vec: Literal["v4"],
        order: Literal["weak", "volatile", "relaxed", "acquire"] = ...,
        space: Literal["global", "local", "param", "const", "param::entry", "param::func", "shared", "shared::cta"] = ...,
        cop: Literal["ca", "cg", "cs", "lu", "cv"] = ...,
        evict: Literal["L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"] = ...,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] = ...,
        type: Literal["b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64"] = ...,
        scope: Literal["cta", "cluster", "gpu", "sys"] = ...,
        result: DType | None = ...,
    ) -> tuple[Value, Value, Value, Value]:
        """Load from global memory, or from wherever a generic address points. (PTX ISA 9.7.9.8)"""
    @overload
    def ld(
        self,
        a: Address,
        /,
        *,
        vec: Literal["v8"],
        order: Literal["weak", "volatile"] = ...,
        space: Literal["global"] = ...,
        cop: Literal["ca", "cg", "cs", "lu", "cv"] = ...,
        evict: Literal["L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"] = ...,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] = ...,
        type: Literal["b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64"] = ...,
        result: DType | None = ...,
    ) -> tuple[Value, Value, Value, Value, Value, Value, Value, Value]:
        """Load from global memory, or from wherever a generic address points. (PTX ISA 9.7.9.8)"""
    @overload
    def ld_nc(
        self,
        a: Address,
        /,
        *,
        cop: Literal["ca", "cg", "cs"] = ...,
        evict: Literal["L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"] = ...,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] = ...,
        type: Literal["b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """Load through the read-only path memory that is not written while the kernel runs. (PTX ISA 9.7.9.9)"""
    @overload
    def ld_nc(
        self,
        a: Address,
        /,
        *,
        vec: Literal["v2"],
        cop: Literal["ca", "cg", "cs"] = ...,
        evict: Literal["L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"] = ...,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] = ...,
        type: Literal["b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64"] = ...,
        result: DType | None = ...,
    ) -> tuple[Value, Value]:
        """Load through the read-only path memory that is not written while the kernel runs. (PTX ISA 9.7.9.9)"""
    @overload
    def ld_nc(
        self,
        a: Address,
        /,
        *,
        vec: Literal["v4"],
        cop: Literal["ca", "cg", "cs"] = ...,
        evict: Literal["L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"] = ...,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] = ...,
        type: Literal["b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64"] = ...,
        result: DType | None = ...,
    ) -> tuple[Value, Value, Value, Value]:
        """Load through the read-only path memory that is not written while the kernel runs. (PTX ISA 9.7.9.9)"""
    @overload
    def ld_nc(
        self,
        a: Address,
        /,
        *,
        vec: Literal["v8"],
        cop: Literal["ca", "cg", "cs"] = ...,
        evict: Literal["L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"] = ...,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B"] = ...,
        type: Literal["b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64"] = ...,
        result: DType | None = ...,
    ) -> tuple[Value, Value, Value, Value, Value, Value, Value, Value]:
        """Load through the read-only path memory that is not written while the kernel runs. (PTX ISA 9.7.9.9)"""
    @overload
    def ldmatrix(
        self,
        a: Address,
        /,
        *,
        num: Literal["x1"],
        trans: Literal["trans"] = ...,
        space: Literal["shared", "shared::cta"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """Load 8x8 matrices of 16-bit elements; lane 8 m + r gives the address of row r of matrix m. Lane l gets elements 2 (l
        mod 4) and the next of row l / 4 (of column l / 4 with `trans`). (PTX ISA 9.7.14.5.15)"""
    @overload
    def ldmatrix(
        self,
        a: Address,
        /,
        *,
        num: Literal["x2"],
        trans: Literal["trans"] = ...,
        space: Literal["shared", "shared::cta"] = ...,
        result: DType | None = ...,
    ) -> tuple[Value, Value]:
        """Load 8x8 matrices of 16-bit elements; lane 8 m + r gives the address of row r of matrix m. Lane l gets elements 2 (l
        mod 4) and the next of row l / 4 (of column l / 4 with `trans`). (PTX ISA 9.7.14.5.15)"""
    @overload
    def ldmatrix(
        self,
        a: Address,
        /,
        *,
        num: Literal["x4"],
        trans: Literal["trans"] = ...,
        space: Literal["shared", "shared::cta"] = ...,
        result: DType | None = ...,
    ) -> tuple[Value, Value, Value, Value]:
        """Load 8x8 matrices of 16-bit elements; lane 8 m + r gives the address of row r of matrix m. Lane l gets elements 2 (l
        mod 4) and the next of row l / 4 (of column l / 4 with `trans`). (PTX ISA 9.7.14.5.15)"""
    @overload
    def ldu(
        self,
        a: Address,
        /,
        *,
        space: Literal["global"] = ...,
        type: Literal["b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """Load memory that is not written while the kernel runs, from one address for all threads of the warp. (PTX ISA
        9.7.9.10)"""
    @overload
    def ldu(
        self,
        a: Address,
        /,
        *,
        vec: Literal["v2"],
        space: Literal["global"] = ...,
        type: Literal["b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64"] = ...,
        result: DType | None = ...,
    ) -> tuple[Value, Value]:
        """Load memory that is not written while the kernel runs, from one address for all threads of the warp. (PTX ISA
        9.7.9.10)"""
    @overload
    def ldu(
        self,
        a: Address,
        /,
        *,
        vec: Literal["v4"],
        space: Literal["global"] = ...,
        type: Literal["b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64"] = ...,
        result: DType | None = ...,
    ) -> tuple[Value, Value, Value, Value]:
        """Load memory that is not written while the kernel runs, from one address for all threads of the warp. (PTX ISA
        9.7.9.10)"""
    def lg2_approx(self, a: Value | float, /, *, ftz: Literal["ftz"] = ..., result: DType | None = ...) -> Value:
        """log2(a), within 2^-22 (absolute between 0.5 and 2, relative elsewhere). (PTX ISA 9.7.3.20)"""
    def lop3(self, a: Value | int, b: Value | int, c: Value | int, table: int, /, *, result: DType | None = ...) -> Value:
        """Any logic function of three inputs: bit i of `table` is the result where (a, b, c) spell i, a highest. (PTX ISA
        9.7.8.6)"""
    def mad(
        self,
        a: Value | float,
        b: Value | float,
        c: Value | float,
        /,
        *,
        rnd: Literal["rn", "rz", "rm", "rp"] = ...,
        ftz: Literal["ftz"] = ...,
        sat: Literal["sat"] = ...,
        type: Literal["u16", "u32", "u64", "s16", "s32", "s64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """d = a * b + c with one rounding. (PTX ISA 9.7.3.7)"""
    def mad24(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        half: Literal["lo", "hi"] = ...,
        type: Literal["u32", "s32"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """mul24, plus c. (PTX ISA 9.7.1.6)"""
    def mad_cc(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        half: Literal["lo", "hi"],
        type: Literal["u32", "s32", "u64", "s64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """Half of a * b, plus c; the carry flag gets the carry of the addition. (PTX ISA 9.7.2.5)"""
    def mad_hi(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u16", "u32", "u64", "s16", "s32", "s64"] = ...,
        sat: Literal["sat"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """The high half of a * b, plus c. (PTX ISA 9.7.1.4)"""
    def mad_wide(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u16", "u32", "s16", "s32"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """a * b + c in twice the width of a and b. (PTX ISA 9.7.1.4)"""
    def madc(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        half: Literal["lo", "hi"],
        cc: Literal["cc"] = ...,
        type: Literal["u32", "s32", "u64", "s64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """Half of a * b, plus c, plus the carry flag; with `cc` the flag gets the carry of the addition. (PTX ISA 9.7.2.6)"""
    def match(
        self,
        a: Value | int,
        mask: Value | int,
        /,
        *,
        mode: Literal["any", "all"],
        type: Literal["b32", "b64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """The lanes of the mask that hold the same value as this one. (PTX ISA 9.7.13.10)"""
    def max(
        self,
        a: Value | float,
        b: Value | float,
        /,
        *,
        ftz: Literal["ftz"] = ...,
        nan: Literal["NaN"] = ...,
        xorsign: Literal["xorsign.abs"] = ...,
        type: Literal["bf16", "bf16x2", "f16", "f16x2", "u16", "u32", "u64", "s16", "s32", "s64"] = ...,
        relu: Literal["relu"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """The larger; -0 < +0; a NaN loses unless `NaN` is asked for. (PTX ISA 9.7.3.12)"""
    def mbarrier_arrive_expect_tx(
        self, a: Address, tx: Value | int, /, *, space: Literal["shared", "shared::cta"] = ..., result: DType | None = ...
    ) -> Value:
        """Make the phase of the mbarrier [a] expect `tx` more bytes of bulk copies, then arrive; d is the state before. (PTX
        ISA 9.7.13.15.13)"""
    def mbarrier_init(self, a: Address, count: Value | int, /, *, space: Literal["shared", "shared::cta"] = ...) -> None:
        """Make an mbarrier of the 8 bytes at [a], each of whose phases waits for `count` arrivals. (PTX ISA 9.7.13.15.9)"""
    def mbarrier_try_wait_parity(
        self, a: Address, parity: Value | int, /, *, space: Literal["shared", "shared::cta"] = ..., result: DType | None = ...
    ) -> Value:
        """Whether the phase of this parity, the current or the last one, is complete at the mbarrier [a]: what arrived and was
        copied may then be read. It waits for a limited time, so call it in a loop. (PTX ISA 9.7.13.15.16)"""
    def membar(self, *, level: Literal["cta", "gl", "sys"]) -> None:
        """Earlier accesses are seen before later ones. (PTX ISA 9.7.13.4)"""
    def min(
        self,
        a: Value | float,
        b: Value | float,
        /,
        *,
        ftz: Literal["ftz"] = ...,
        nan: Literal["NaN"] = ...,
        xorsign: Literal["xorsign.abs"] = ...,
        type: Literal["bf16", "bf16x2", "f16", "f16x2", "u16", "u32", "u64", "s16", "s32", "s64"] = ...,
        relu: Literal["relu"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """The smaller; -0 < +0; a NaN loses unless `NaN` is asked for. (PTX ISA 9.7.3.11)"""
    def mma(
        self,
        a: Sequence[Value],
        b: Sequence[Value],
        c: Sequence[Value],
        /,
        *,
        a_type: Literal["tf32", "f16", "bf16", "u8", "s8"] = ...,
        b_type: Literal["tf32", "f16", "bf16", "u8", "s8"] = ...,
        satfinite: Literal["satfinite"] = ...,
        result: DType | None = ...,
    ) -> tuple[Value, ...]:
        """d = a b + c over the warp, summed in f32 in the order of k; a GPU sums in another (tests/ptxgen/isa/fragments.py).
        (PTX ISA 9.7.14.5.14)"""
    @overload
    def mov(
        self,
        a: Value | float,
        /,
        *,
        type: Literal["pred", "b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64"] = ...,
        result: DType | None = ...,
    ) -> Any:
        """Copy a register, a constant, a special register or the address of a variable. (PTX ISA 9.7.9.3)"""
    @overload
    def mov(self, a: Sequence[Value], /, *, result: DType | None = ...) -> Value:
        """Put two registers side by side, the first lowest. (PTX ISA 9.7.9.4)"""
    def mul(
        self,
        a: Value | float,
        b: Value | float,
        /,
        *,
        rnd: Literal["rn", "rz", "rm", "rp"] = ...,
        ftz: Literal["ftz"] = ...,
        sat: Literal["sat"] = ...,
        type: Literal["bf16", "bf16x2", "f16", "f16x2", "u16", "u32", "u64", "s16", "s32", "s64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """d = a * b, rounded by `rnd`; without it ptxas may contract it with a sum. (PTX ISA 9.7.3.5)"""
    def mul24(
        self,
        a: Value | int,
        b: Value | int,
        /,
        *,
        half: Literal["lo", "hi"] = ...,
        type: Literal["u32", "s32"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """The low or high 32 bits of the 48-bit product of two 24-bit numbers. (PTX ISA 9.7.1.5)"""
    def mul_hi(
        self,
        a: Value | int,
        b: Value | int,
        /,
        *,
        type: Literal["u16", "u32", "u64", "s16", "s32", "s64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """The high half of a * b. (PTX ISA 9.7.1.3)"""
    def mul_wide(
        self, a: Value | int, b: Value | int, /, *, type: Literal["u16", "u32", "s16", "s32"] = ..., result: DType | None = ...
    ) -> Value:
        """a * b in twice the width. (PTX ISA 9.7.1.3)"""
    def nanosleep(self, a: Value | int, /) -> None:
        """Sleep for up to twice a nanoseconds. (PTX ISA 9.7.19.2)"""
    def neg(
        self,
        a: Value | float,
        /,
        *,
        ftz: Literal["ftz"] = ...,
        type: Literal["bf16", "bf16x2", "f16", "f16x2", "s16", "s32", "s64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """a with its sign turned; of a NaN the canonical one (as GPUs do; the ISA leaves it open). (PTX ISA 9.7.3.10)"""
    def not_(self, a: Value | int, /, *, type: Literal["pred", "b16", "b32", "b64"] = ..., result: DType | None = ...) -> Value:
        """d = ~a. (PTX ISA 9.7.8.4)"""
    def or_(
        self, a: Value | int, b: Value | int, /, *, type: Literal["pred", "b16", "b32", "b64"] = ..., result: DType | None = ...
    ) -> Value:
        """d = a | b. (PTX ISA 9.7.8.2)"""
    def popc(self, a: Value | int, /, *, type: Literal["b32", "b64"] = ..., result: DType | None = ...) -> Value:
        """How many bits are 1. (PTX ISA 9.7.1.14)"""
    def prefetch(
        self,
        a: Address,
        /,
        *,
        level: Literal["L2::evict_last", "L2::evict_normal", "L1", "L2"],
        space: Literal["global", "local"] = ...,
    ) -> None:
        """Bring the cache line of the address nearer. (PTX ISA 9.7.9.15)"""
    def prefetchu(self, a: Address, /, *, level: Literal["L1"]) -> None:
        """Bring the cache line of the address nearer. (PTX ISA 9.7.9.15)"""
    def prmt(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        mode: Literal["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """Each byte of d is the byte of {b, a} that a nibble of c names, or its sign replicated if the nibble's top bit is set.
        (PTX ISA 9.7.9.7)"""
    def rcp(
        self,
        a: Value | float,
        /,
        *,
        rnd: Literal["rn", "rz", "rm", "rp"] = ...,
        ftz: Literal["ftz"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """d = 1 / a, rounded as `rnd` says. (PTX ISA 9.7.3.13)"""
    def rcp_approx(self, a: Value | float, /, *, ftz: Literal["ftz"] = ..., result: DType | None = ...) -> Value:
        """1 / a within 1 ulp. (PTX ISA 9.7.3.13)"""
    def rcp_approx_ftz(self, a: Value | float, /, *, result: DType | None = ...) -> Value:
        """1 / a of the upper 32 bits of a, in those of d, whose others are 0; on a GPU within about 2^-20. Subnormals are zero.
        (PTX ISA 9.7.3.14)"""
    def red(
        self,
        a: Address,
        b: Value | float,
        /,
        *,
        order: Literal["relaxed", "release"] = ...,
        scope: Literal["cta", "cluster", "gpu", "sys"] = ...,
        space: Literal["global", "shared", "shared::cta"] = ...,
        op: Literal["add", "min", "max", "inc", "dec", "and", "or", "xor"],
        type: Literal["u32", "s32", "u64", "s64", "b32", "b64", "f32", "f64"] = ...,
    ) -> None:
        """Memory becomes `memory op b` in one step. (PTX ISA 9.7.13.6)"""
    def red_add_half(
        self,
        a: Address,
        b: Value,
        /,
        *,
        order: Literal["relaxed", "release"] = ...,
        scope: Literal["cta", "cluster", "gpu", "sys"] = ...,
        space: Literal["global", "shared", "shared::cta"] = ...,
        type: Literal["f16", "f16x2", "bf16", "bf16x2"] = ...,
    ) -> None:
        """Memory becomes `memory + b`, each half in one step. (PTX ISA 9.7.13.6)"""
    def redux(
        self,
        a: Value | int,
        mask: Value | int,
        /,
        *,
        op: Literal["and", "or", "xor", "add", "min", "max"],
        type: Literal["b32", "u32", "s32"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """The sum, least, greatest, and, or, xor of a over the lanes of the mask. (PTX ISA 9.7.13.12)"""
    def rem(
        self,
        a: Value | int,
        b: Value | int,
        /,
        *,
        type: Literal["u16", "u32", "u64", "s16", "s32", "s64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """The remainder, with the sign of a. By zero all ones, as `div` (as GPUs do; the ISA leaves it open). (PTX ISA
        9.7.1.9)"""
    def ret(self, *, uni: Literal["uni"] = ...) -> None:
        """Return to the caller; in a kernel, end the thread. (PTX ISA 9.7.12.6)"""
    def rsqrt_approx(self, a: Value | float, /, *, ftz: Literal["ftz"] = ..., result: DType | None = ...) -> Value:
        """1 / sqrt(a) within a relative error of 2^-22.9. (PTX ISA 9.7.3.16)"""
    def rsqrt_approx_ftz(self, a: Value | float, /, *, result: DType | None = ...) -> Value:
        """1 / sqrt(a) of the upper 32 bits of a, in those of d, whose others are 0; on a GPU within about 2^-20. Subnormal
        operands are zero. (PTX ISA 9.7.3.17)"""
    def sad(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u16", "u32", "u64", "s16", "s32", "s64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """c + |a - b|. (PTX ISA 9.7.1.7)"""
    def selp(
        self,
        a: Value | float,
        b: Value | float,
        c: Value,
        /,
        *,
        type: Literal["u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64", "b16", "b32", "b64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """a where the predicate c holds, else b. (PTX ISA 9.7.6.3)"""
    @overload
    def set(
        self,
        a: Value | float,
        b: Value | float,
        c: Value,
        /,
        *,
        cmp: Literal[
            "eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan", "lo", "ls", "hi", "hs"
        ],
        bool: Literal["and", "or", "xor"],
        ftz: Literal["ftz"] = ...,
        to: Literal["u32", "s32", "f32"] = ...,
        of: Literal["f32", "f64", "s16", "s32", "s64", "u16", "u32", "u64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """Compare, giving all ones (1.0 for f32) or zero. (PTX ISA 9.7.6.1)"""
    @overload
    def set(
        self,
        a: Value | float,
        b: Value | float,
        /,
        *,
        cmp: Literal[
            "eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan", "lo", "ls", "hi", "hs"
        ],
        to: Literal["u32", "s32", "f32", "f16", "f16x2", "bf16", "bf16x2"] = ...,
        of: Literal[
            "b16", "b32", "b64", "f32", "f64", "s16", "s32", "s64", "u16", "u32", "u64", "f16", "f16x2", "bf16", "bf16x2"
        ] = ...,
        ftz: Literal["ftz"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """Compare, giving all ones (1.0 for f32) or zero. (PTX ISA 9.7.6.1)"""
    def setmaxnreg(self, count: int, /, *, action: Literal["inc", "dec"]) -> None:
        """Take more registers a thread, or give some back: `count`, 24 to 256, a multiple of 8, by all four warps. (PTX ISA
        9.7.19.5)"""
    @overload
    def setp(
        self,
        a: Value | float,
        b: Value | float,
        c: Value,
        /,
        *,
        cmp: Literal[
            "eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan", "lo", "ls", "hi", "hs"
        ],
        bool: Literal["and", "or", "xor"],
        type: Literal["b16", "b32", "b64", "f32", "f64", "s16", "s32", "s64", "u16", "u32", "u64", "f16", "bf16"] = ...,
        ftz: Literal["ftz"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """Compare; the second destination gets the opposite. With a third operand both are combined with it. (PTX ISA
        9.7.6.2)"""
    @overload
    def setp(
        self,
        a: Value | float,
        b: Value | float,
        /,
        *,
        cmp: Literal[
            "eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan", "lo", "ls", "hi", "hs"
        ],
        type: Literal[
            "b16", "b32", "b64", "f32", "f64", "s16", "s32", "s64", "u16", "u32", "u64", "f16", "bf16", "f16x2", "bf16x2"
        ] = ...,
        ftz: Literal["ftz"] = ...,
        result: DType | None = ...,
    ) -> Any:
        """Compare; the second destination gets the opposite. With a third operand both are combined with it. (PTX ISA
        9.7.6.2)"""
    def shf(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        direction: Literal["l", "r"],
        mode: Literal["clamp", "wrap"],
        result: DType | None = ...,
    ) -> Value:
        """Shift the 64 bits {b, a} by c (up to 32, or modulo 32); the high half of a left shift, the low half of a right one.
        (PTX ISA 9.7.8.7)"""
    def shfl(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        mask: Value | int,
        /,
        *,
        mode: Literal["up", "down", "bfly", "idx"],
        result: DType | None = ...,
    ) -> Value:
        """The value of a in another lane: b lanes up or down, lane ^ b, or lane b. c: the last lane (bits 0-4), the mask of a
        segment (bits 8-12). Out of range, a lane keeps its own value and the predicate is false. (PTX ISA 9.7.9.6)"""
    def shl(
        self, a: Value | int, b: Value | int, /, *, type: Literal["b16", "b32", "b64"] = ..., result: DType | None = ...
    ) -> Value:
        """d = a << b; a count of the width or more gives 0. (PTX ISA 9.7.8.8)"""
    def shr(
        self,
        a: Value | int,
        b: Value | int,
        /,
        *,
        type: Literal["u16", "u32", "u64", "s16", "s32", "s64", "b16", "b32", "b64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """d = a >> b, filled with the sign for signed types; a count of the width or more gives all fill. (PTX ISA 9.7.8.9)"""
    def sin_approx(self, a: Value | float, /, *, ftz: Literal["ftz"] = ..., result: DType | None = ...) -> Value:
        """sin(a), within 2^-20.5 for |a| <= 2 pi. (PTX ISA 9.7.3.18)"""
    def slct(
        self,
        a: Value | float,
        b: Value | float,
        c: Value | float,
        /,
        *,
        ftz: Literal["ftz"] = ...,
        type: Literal["u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64", "b16", "b32", "b64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """a where c >= 0 (-0 is, NaN is not), else b. (PTX ISA 9.7.6.4)"""
    def sqrt(
        self,
        a: Value | float,
        /,
        *,
        rnd: Literal["rn", "rz", "rm", "rp"] = ...,
        ftz: Literal["ftz"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """The square root, rounded as `rnd` says. (PTX ISA 9.7.3.15)"""
    def sqrt_approx(self, a: Value | float, /, *, ftz: Literal["ftz"] = ..., result: DType | None = ...) -> Value:
        """The square root within a relative error of 2^-23. (PTX ISA 9.7.3.15)"""
    @overload
    def st(
        self,
        a: Address,
        b: Value | float,
        /,
        *,
        order: Literal["weak", "volatile", "relaxed", "release"] = ...,
        space: Literal["global", "local", "param", "param::func", "shared", "shared::cta"] = ...,
        cop: Literal["wb", "cg", "cs", "wt"] = ...,
        evict: Literal["L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"] = ...,
        type: Literal["b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64"] = ...,
        scope: Literal["cta", "cluster", "gpu", "sys"] = ...,
    ) -> None:
        """Store to global memory, or to wherever a generic address points. (PTX ISA 9.7.9.11)"""
    @overload
    def st(
        self,
        a: Address,
        b: Sequence[Value],
        /,
        *,
        vec: Literal["v2", "v4", "v8"],
        order: Literal["weak", "volatile"] = ...,
        space: Literal["global"] = ...,
        cop: Literal["wb", "cg", "cs", "wt"] = ...,
        evict: Literal["L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"] = ...,
        type: Literal["b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64"] = ...,
    ) -> None:
        """Store to global memory, or to wherever a generic address points. (PTX ISA 9.7.9.11)"""
    @overload
    def st(
        self,
        a: Address,
        b: Sequence[Value],
        /,
        *,
        vec: Literal["v2", "v4"],
        space: Literal["local", "param", "param::func", "shared", "shared::cta", "global"] = ...,
        type: Literal["b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64"] = ...,
        order: Literal["weak", "volatile", "relaxed", "release"] = ...,
        scope: Literal["cta", "cluster", "gpu", "sys"] = ...,
        evict: Literal["L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"] = ...,
    ) -> None:
        """Store to the named state space; to a parameter only for a call. (PTX ISA 9.7.9.11)"""
    def stmatrix(
        self,
        a: Address,
        b: Sequence[Value],
        /,
        *,
        num: Literal["x1", "x2", "x4"],
        trans: Literal["trans"] = ...,
        space: Literal["shared", "shared::cta"] = ...,
    ) -> None:
        """The inverse of ldmatrix. (PTX ISA 9.7.14.5.16)"""
    def sub(
        self,
        a: Value | float,
        b: Value | float,
        /,
        *,
        rnd: Literal["rn", "rz", "rm", "rp"] = ...,
        ftz: Literal["ftz"] = ...,
        sat: Literal["sat"] = ...,
        type: Literal["bf16", "bf16x2", "f16", "f16x2", "u16", "u32", "u64", "s16", "s32", "s64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """d = a - b, rounded by `rnd`; without it ptxas may contract it with a product. (PTX ISA 9.7.3.4)"""
    def sub_cc(
        self, a: Value | int, b: Value | int, /, *, type: Literal["u32", "s32", "u64", "s64"] = ..., result: DType | None = ...
    ) -> Value:
        """d = a - b; the carry flag becomes 1 if there is no borrow. (PTX ISA 9.7.2.3)"""
    def subc(
        self,
        a: Value | int,
        b: Value | int,
        /,
        *,
        cc: Literal["cc"] = ...,
        type: Literal["u32", "s32", "u64", "s64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """d = a - b, less 1 if the carry flag is 0; with `cc` the flag becomes 1 if there is no borrow. (PTX ISA 9.7.2.4)"""
    def szext(
        self,
        a: Value | int,
        b: Value | int,
        /,
        *,
        mode: Literal["clamp", "wrap"],
        type: Literal["u32", "s32"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """The low b bits of a, extended by their sign or by zeros; b is cut at 32, or taken modulo 32. (PTX ISA 9.7.1.21)"""
    def tanh_approx(
        self, a: Value | float, /, *, type: Literal["f16", "f16x2", "bf16", "bf16x2"] = ..., result: DType | None = ...
    ) -> Value:
        """tanh(a) within a relative error of 2^-11. (PTX ISA 9.7.3.22)"""
    def testp(
        self,
        a: Value | float,
        /,
        *,
        test: Literal["finite", "infinite", "number", "notanumber", "normal", "subnormal"],
        type: Literal["f32", "f64"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """Whether a is of a kind: zero is `normal` and not `subnormal`, infinity neither; `number` is anything but NaN. (PTX
        ISA 9.7.3.1)"""
    def trap(self) -> None:
        """End the kernel with an error. (PTX ISA 9.7.19.4)"""
    def vabsdiff2(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        sat: Literal["sat"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """|a - b|, by halves, which a_type and b_type extend; with `sat` clamped to halves of d. c (for masks) is not used.
        (PTX ISA 9.7.18.2.1)"""
    def vabsdiff2_add(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """|a - b|, by halves, which a_type and b_type extend; d is their sum and c. (PTX ISA 9.7.18.2.1)"""
    def vabsdiff4(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        sat: Literal["sat"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """|a - b|, by bytes, which a_type and b_type extend; with `sat` clamped to bytes of d. c (for masks) is not used. (PTX
        ISA 9.7.18.2.3)"""
    def vabsdiff4_add(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """|a - b|, by bytes, which a_type and b_type extend; d is their sum and c. (PTX ISA 9.7.18.2.3)"""
    def vadd2(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        sat: Literal["sat"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """a + b, by halves, which a_type and b_type extend; with `sat` clamped to halves of d. c (for masks) is not used. (PTX
        ISA 9.7.18.2.1)"""
    def vadd2_add(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """a + b, by halves, which a_type and b_type extend; d is their sum and c. (PTX ISA 9.7.18.2.1)"""
    def vadd4(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        sat: Literal["sat"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """a + b, by bytes, which a_type and b_type extend; with `sat` clamped to bytes of d. c (for masks) is not used. (PTX
        ISA 9.7.18.2.3)"""
    def vadd4_add(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """a + b, by bytes, which a_type and b_type extend; d is their sum and c. (PTX ISA 9.7.18.2.3)"""
    def vavrg2(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        sat: Literal["sat"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """(a + b) / 2, a half rounded away from zero, by halves, which a_type and b_type extend; with `sat` clamped to halves
        of d. c (for masks) is not used. (PTX ISA 9.7.18.2.1)"""
    def vavrg2_add(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """(a + b) / 2, a half rounded away from zero, by halves, which a_type and b_type extend; d is their sum and c. (PTX ISA
        9.7.18.2.1)"""
    def vavrg4(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        sat: Literal["sat"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """(a + b) / 2, a half rounded away from zero, by bytes, which a_type and b_type extend; with `sat` clamped to bytes of
        d. c (for masks) is not used. (PTX ISA 9.7.18.2.3)"""
    def vavrg4_add(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """(a + b) / 2, a half rounded away from zero, by bytes, which a_type and b_type extend; d is their sum and c. (PTX ISA
        9.7.18.2.3)"""
    def vmax2(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        sat: Literal["sat"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """The larger of a and b, by halves, which a_type and b_type extend; with `sat` clamped to halves of d. c (for masks) is
        not used. (PTX ISA 9.7.18.2.1)"""
    def vmax2_add(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """The larger of a and b, by halves, which a_type and b_type extend; d is their sum and c. (PTX ISA 9.7.18.2.1)"""
    def vmax4(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        sat: Literal["sat"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """The larger of a and b, by bytes, which a_type and b_type extend; with `sat` clamped to bytes of d. c (for masks) is
        not used. (PTX ISA 9.7.18.2.3)"""
    def vmax4_add(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """The larger of a and b, by bytes, which a_type and b_type extend; d is their sum and c. (PTX ISA 9.7.18.2.3)"""
    def vmin2(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        sat: Literal["sat"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """The smaller of a and b, by halves, which a_type and b_type extend; with `sat` clamped to halves of d. c (for masks)
        is not used. (PTX ISA 9.7.18.2.1)"""
    def vmin2_add(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """The smaller of a and b, by halves, which a_type and b_type extend; d is their sum and c. (PTX ISA 9.7.18.2.1)"""
    def vmin4(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        sat: Literal["sat"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """The smaller of a and b, by bytes, which a_type and b_type extend; with `sat` clamped to bytes of d. c (for masks) is
        not used. (PTX ISA 9.7.18.2.3)"""
    def vmin4_add(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """The smaller of a and b, by bytes, which a_type and b_type extend; d is their sum and c. (PTX ISA 9.7.18.2.3)"""
    def vote(
        self, a: Value, mask: Value | int, /, *, mode: Literal["all", "any", "uni", "ballot"], result: DType | None = ...
    ) -> Value:
        """Whether the predicate holds in all, in any, or in all or none of the lanes of the mask. (PTX ISA 9.7.13.9)"""
    def vset2(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge"],
        result: DType | None = ...,
    ) -> Value:
        """Compare the halves, which a_type and b_type extend; 1 or 0 in those of d. c (for masks) is not used. (PTX ISA
        9.7.18.2.2)"""
    def vset2_add(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge"],
        result: DType | None = ...,
    ) -> Value:
        """Compare the halves, which a_type and b_type extend; d is c and how many hold. (PTX ISA 9.7.18.2.2)"""
    def vset4(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge"],
        result: DType | None = ...,
    ) -> Value:
        """Compare the bytes, which a_type and b_type extend; 1 or 0 in those of d. c (for masks) is not used. (PTX ISA
        9.7.18.2.4)"""
    def vset4_add(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge"],
        result: DType | None = ...,
    ) -> Value:
        """Compare the bytes, which a_type and b_type extend; d is c and how many hold. (PTX ISA 9.7.18.2.4)"""
    def vsub2(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        sat: Literal["sat"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """a - b, by halves, which a_type and b_type extend; with `sat` clamped to halves of d. c (for masks) is not used. (PTX
        ISA 9.7.18.2.1)"""
    def vsub2_add(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """a - b, by halves, which a_type and b_type extend; d is their sum and c. (PTX ISA 9.7.18.2.1)"""
    def vsub4(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        sat: Literal["sat"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """a - b, by bytes, which a_type and b_type extend; with `sat` clamped to bytes of d. c (for masks) is not used. (PTX
        ISA 9.7.18.2.3)"""
    def vsub4_add(
        self,
        a: Value | int,
        b: Value | int,
        c: Value | int,
        /,
        *,
        type: Literal["u32", "s32"] = ...,
        a_type: Literal["u32", "s32"] = ...,
        b_type: Literal["u32", "s32"] = ...,
        result: DType | None = ...,
    ) -> Value:
        """a - b, by bytes, which a_type and b_type extend; d is their sum and c. (PTX ISA 9.7.18.2.3)"""
    def wgmma_commit_group(self) -> None:
        """Make a group of the warpgroup's products since the last one. (PTX ISA 9.7.15.7.2)"""
    def wgmma_fence(self) -> None:
        """Let later products see registers written before: before the first one, and after others than products of the same
        shape wrote accumulators, or read or wrote a. (PTX ISA 9.7.15.7.1)"""
    def wgmma_mma_async(
        self,
        c: Sequence[Value],
        a: Sequence[Value],
        b: Value | int,
        scale_d: Value,
        scale_a: int,
        scale_b: int,
        trans_b: int,
        /,
        *,
        shape: Literal[
            "m64n8k16",
            "m64n16k16",
            "m64n24k16",
            "m64n32k16",
            "m64n48k16",
            "m64n64k16",
            "m64n96k16",
            "m64n128k16",
            "m64n192k16",
            "m64n256k16",
        ],
        a_type: Literal["f16", "bf16"] = ...,
        b_type: Literal["f16", "bf16"],
    ) -> None:
        """c = a b + c, or a b where scale_d is false; done when its group was waited for. Warp w has rows 16 w to 16 w + 15 of
        a [64, 16] and c [64, n], in the fragments of mma m16n8k16; b, [n, 16] and K-major, is in shared memory
        (`matrix_descriptor`). scale_a, scale_b: 1, or -1 to negate; trans_b: 0. Summed in f32 in the order of k; a GPU sums in
        another. (PTX ISA 9.7.15.5.2)"""
    def wgmma_wait_group(self, pending: int, /) -> None:
        """Wait until at most the last `pending` groups (0 to 7) are still under way. (PTX ISA 9.7.15.7.3)"""
    def xor(
        self, a: Value | int, b: Value | int, /, *, type: Literal["pred", "b16", "b32", "b64"] = ..., result: DType | None = ...
    ) -> Value:
        """d = a ^ b. (PTX ISA 9.7.8.3)"""

class _Axes:
    """Reads %name.x, .y, .z on first use."""

    x: Value
    y: Value
    z: Value

    def __init__(self, k: Core, name: str) -> None: ...
    def __repr__(self) -> str: ...

class _Arguments:
    """`k.arg.NAME`."""

    def __init__(self, k: KernelBuilder) -> None: ...
    def __getattr__(self, name: str) -> Any: ...

def parameters(signature: Signature) -> tuple[Parameter, ...]:
    """The entry's parameters for these arguments."""
