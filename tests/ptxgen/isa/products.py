"""Kernels that multiply by products of a warpgroup (wgmma), with operands to match: what the emulator and a GPU are asked. No
test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.ir import Function
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.value import Value
from ptxgen.isa.instructions import named
from ptxgen.kernels.accuracy import UNIT
from ptxgen.target import HOPPER, WARP_SIZE, WARPGROUP_SIZE
from ptxgen.toolchain.module import module_text
from ptxgen.types import B32, BY_NAME, F32
from ptxgen.verify.verify import verify

Array = NDArray[Any]

ENTRY = "products"
ROWS, DEPTH = 64, 16  # of a product: rows of a, values of k
CORE_WORDS = 32  # of a core matrix: 8 rows of 16 bytes

SHAPES = next(slot.values for slot in named("wgmma_mma_async")[0].modifiers if slot.name == "shape")
WIDTHS = tuple(int(shape[len("m64n") : -len("k16")]) for shape in SHAPES)


@dataclass(frozen=True)
class Products:
    """y = sum over `steps` of a[step] b[step]^T, by one warpgroup a block.

    y: f32[blocks, 64, n]; a: [blocks, steps, 64, 16], b: [blocks, steps, n, 16] of `type`. In shared memory the core matrices
    of b lie `leading` (along k) and `stride` (along n) bytes apart, or are swizzled, the next step's behind them, all after
    `skipped` bytes."""

    n: int
    type: str = "f16"
    steps: int = 1
    leading: int = 128
    stride: int = 256
    skipped: int = 0
    swizzle: int = 0

    @property
    def step_bytes(self) -> int:
        """Shared memory of one step."""
        last = 8 * self.swizzle if self.swizzle else self.leading + 4 * CORE_WORDS
        return self.stride * (self.n // 8 - 1) + last

    def place(self, i: Value, start: int) -> Value:
        """Where word i of b, in the order of `cores_of`, has its word in shared memory, if b starts at this byte."""
        core, row, word = i // CORE_WORDS, i // 4 % 8, i % 4
        group, half = core // 2, core % 2
        if not self.swizzle:
            return group * (self.stride // 4) + half * (self.leading // 4) + row * 4 + word + start // 4
        at = group * self.stride + row * self.swizzle + half * 16 + word * 4 + start
        return (at ^ (((at >> 7) & (self.swizzle // 16 - 1)) << 4)) >> 2

    def signature(self, blocks: int) -> Signature:
        """y as the registers of threads, a as `fragments_of`, b as `cores_of`."""
        return {
            "y": write(F32, blocks, WARPGROUP_SIZE, self.n // 2),
            "a": read(B32, blocks, self.steps, WARPGROUP_SIZE, 4),
            "b": read(B32, blocks, self.steps, self.n * DEPTH // 2),
        }

    def function(self, blocks: int) -> Function:
        """The kernel, not verified."""
        words = self.n * DEPTH // 2
        k = KernelBuilder(ENTRY, self.signature(blocks), LaunchConfig(blocks, WARPGROUP_SIZE), HOPPER)
        thread, block = k.tid.x, k.ctaid.x
        shared = k.shared(B32, (self.skipped + self.steps * self.step_bytes) // 4, align=1024)
        for step in range(self.steps):
            for i in k.strided(thread, words, step=WARPGROUP_SIZE):
                place = self.place(i, self.skipped + step * self.step_bytes)
                k.store(shared[place], k.load(k.arg.b[block, step, i]))
        k.fence_proxy(proxy="async.shared::cta")
        k.barrier()
        accumulators = [k.variable(0.0, F32) for _ in range(self.n // 2)]
        a = [k.load_vector(k.arg.a[block, step, thread, 0], 4) for step in range(self.steps)]
        k.wgmma_fence()
        leading = None if self.swizzle else self.leading
        first = shared.start().at(self.skipped // 4)
        start = k.matrix_descriptor(first, leading=leading, stride=self.stride, swizzle=self.swizzle)
        for step in range(self.steps):
            b = start + step * self.step_bytes // 16 if step else start
            k.wgmma(accumulators, a[step], b, BY_NAME[self.type], accumulate=step > 0)
        k.wgmma_commit_group()
        k.wgmma_wait_group(0)
        for j in range(0, len(accumulators), 4):
            k.store(k.arg.y[block, thread, j], accumulators[j : j + 4])
        return k.finish()

    def text(self, blocks: int = 1) -> str:
        """The module, verified."""
        function = self.function(blocks)
        verify(function, HOPPER)
        return module_text([function], HOPPER)

    def operands(self, blocks: int, seed: int = 0) -> tuple[Array, Array]:
        """a and b as bits, uint16: numbers of many sizes and both signs, subnormal ones and zeros among them; neither infinity
        nor NaN. Of f16 from 2^-24 to 4, of bf16 from 2^-133 to 4."""
        rng = np.random.default_rng(seed)
        fraction_bits, largest = (10, 17) if self.type == "f16" else (7, 129)
        shapes = ((blocks, self.steps, rows, DEPTH) for rows in (ROWS, self.n))
        a, b = (
            rng.integers(0, (largest << fraction_bits) - 1, shape, np.uint16)
            | rng.integers(0, 2, shape, np.uint16) << np.uint16(15)
            for shape in shapes
        )
        return a, b

    def numbers(self, bits: Array) -> Array:
        """Operands as float64."""
        if self.type == "f16":
            return bits.view(np.float16).astype(np.float64)
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)

    def reference(self, a: Array, b: Array) -> tuple[Array, Array]:
        """y in float64, and how far an f32 sum may lie from it, [blocks, 64, n].

        In units of 2^-24 times the sum of all magnitudes, which no partial sum exceeds: a GPU cuts the 17 terms of a product at
        2^-24 of the largest or finer, and the sum to f32 (an ulp, 2 units); whoever adds one by one rounds 16 times by half
        an ulp. So 3 * 16 for each step. Of subnormal numbers an f32 has the last bit 2^-149, at most one for each term."""
        x, w = self.numbers(a), self.numbers(b).swapaxes(2, 3)
        magnitude = (np.abs(x) @ np.abs(w)).sum(axis=1)
        terms = 3 * DEPTH * self.steps
        return (x @ w).sum(axis=1), terms * (UNIT * magnitude + 2.0**-149)


PIPELINE_STEPS, _WORDS = 5, 64  # of b: 8 rows of 16 values each
PIPELINE_SIGNATURE: Signature = {
    "y": write(F32, WARPGROUP_SIZE, 4),
    "a": read(B32, WARPGROUP_SIZE, 4),
    "b": read(B32, PIPELINE_STEPS, _WORDS),
}


def pipelined(fault: str = "") -> str:
    """y = a times the sum of b[step]^T, where cp.async brings each b into one of two buffers while the product before it runs.
    `fault`: what is wrong with it."""
    k = KernelBuilder(ENTRY, PIPELINE_SIGNATURE, LaunchConfig(1, WARPGROUP_SIZE), HOPPER)
    thread = k.tid.x
    buffers = k.shared(B32, 2, _WORDS, align=128)
    descriptor = k.matrix_descriptor(buffers, leading=128, stride=256)

    def fetch(step: Value | int) -> None:
        with k.when(thread < _WORDS // 4):
            source = k.arg.b[step, thread * 4].address
            k.cp_async(buffers[k.u32(step) & 1, thread * 4].address, source, 16, cache="cg")
        k.cp_async_commit_group()

    def fence() -> None:
        k.fence_proxy(proxy="async")

    totals = [k.variable(0.0, F32) for _ in range(4)]
    a = k.load_vector(k.arg.a[thread, 0], 4)
    fetch(0)
    k.wgmma_fence()
    for step in k.strided(0, PIPELINE_STEPS):
        if fault == "fenced before the copy is there":
            fence()
        k.cp_async_wait_group(0)
        if not fault.startswith("fenced"):
            fence()
        k.barrier()
        k.wgmma(totals, a, descriptor + k.u64((step & 1) * (4 * _WORDS // 16)))
        k.wgmma_commit_group()
        k.wgmma_wait_group(2 if fault == "waits for too few" else 1)
        if fault != "no barrier after the wait":
            k.barrier()
        with k.when(step + 1 < PIPELINE_STEPS):
            fetch(step + 1)
    k.wgmma_wait_group(0)
    k.store(k.arg.y[thread, 0], totals)
    function = k.finish()
    verify(function, HOPPER)
    return module_text([function], HOPPER)


def pipeline_operands() -> tuple[Array, Array]:
    """a: uint16[64, 16], b: [steps, 8, 16] for `pipelined`, as bits of f16."""
    a, b = Products(8, steps=PIPELINE_STEPS).operands(1)
    return a[0, 0], b[0]


def pipeline_reference(a: Array, b: Array) -> tuple[Array, Array]:
    """y, [64, 8], in float64, and how far an f32 sum may lie from it."""
    repeated = np.broadcast_to(a, (1, PIPELINE_STEPS, *a.shape))
    expected, allowed = Products(8, steps=PIPELINE_STEPS).reference(repeated, b[None])
    return expected[0], allowed[0]


def fragments_of(a: Array) -> Array:
    """The registers of a for the threads of a warpgroup: uint32[..., 128, 4] of uint16[..., 64, 16]."""
    lane = np.arange(WARPGROUP_SIZE) % WARP_SIZE
    row = 16 * (np.arange(WARPGROUP_SIZE) // WARP_SIZE) + lane // 4
    words = np.ascontiguousarray(a).view(np.uint32)
    registers = [words[..., row + 8 * (i % 2), lane % 4 + 4 * (i // 2)] for i in range(4)]
    return np.ascontiguousarray(np.stack(registers, axis=-1))


def cores_of(b: Array) -> Array:
    """b as core matrices, the two of 8 rows side by side: uint32[..., n * 8] of uint16[..., n, 16]."""
    words = np.ascontiguousarray(b).view(np.uint32)
    cores = words.reshape(*b.shape[:-2], b.shape[-2] // 8, 8, 2, 4).swapaxes(-3, -2)
    return np.ascontiguousarray(cores).reshape(*b.shape[:-2], -1)


def matrix_of(y: Array) -> Array:
    """The results of a warpgroup's threads as a matrix: [..., 64, n] of [..., 128, n / 2]."""
    lane = np.arange(WARPGROUP_SIZE) % WARP_SIZE
    row = 16 * (np.arange(WARPGROUP_SIZE) // WARP_SIZE) + lane // 4
    full = np.zeros((*y.shape[:-2], ROWS, 2 * y.shape[-1]), y.dtype)
    for i in range(y.shape[-1]):
        full[..., row + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2] = y[..., i]
    return full
