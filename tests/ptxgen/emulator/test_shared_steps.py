"""Code that is wanted soon: calls of steps, which all kernels share, that give the bits of optimised code."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ptxgen import emulator
from ptxgen.conformance.execution import emitted, emulate, inputs
from ptxgen.conformance.type_checks import smallest
from ptxgen.emulator import codegen
from ptxgen.emulator.jit import compile_kernel
from ptxgen.emulator.machine import Module
from ptxgen.emulator.parse import parse
from ptxgen.emulator.shared_steps import SharedStep, shared
from ptxgen.kernels.registry import find
from tests.ptxgen.emulator.ptx import kernel as ptx

NAMES = ["rmsnorm", "argmax", "hw_dp4a_q4k_gemv", "mma_q4k_gemm", "rope_grouped_attention_indirect", "sample_token"]
"""Sums of floats, choices between lanes, dot products, matrix products, shared memory, atomics and halves."""


def rewritten(name: str) -> tuple[str, list[SharedStep]]:
    text = emitted(smallest(find(name)), lines=True)
    return shared(compile_kernel(parse(text.text), text.entry, sanitize=True).text)


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_has_the_bits_of_optimised_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = smallest(find(name))
    bits = []
    for quickly in (False, True):
        monkeypatch.setattr(Module, "quickly", quickly)
        emulator._module.cache_clear()
        results, _ = emulate(kernel, inputs(kernel), sanitize=False)
        bits.append({output: values.tobytes() for output, values in results.items()})
    emulator._module.cache_clear()
    assert bits[0] == bits[1]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_left_of_a_kernel_is_code_without_data(name: str) -> None:
    code = codegen.build(rewritten(name)[0], quickly=True, small=True)
    assert not re.search(rb"\.(ro)?data|\.eh_frame|\.lrodata|\.ldata|\.bss", code)


LANES = """
ld.param.u64 %rd1, [p0]; mov.u32 %r1, %laneid; cvt.u64.u32 %rd2, %r1; shl.b64 %rd2, %rd2, 3; add.u64 %rd1, %rd1, %rd2;
ld.global.u32 %r2, [%rd1];
setp.lt.u32 %p1, %r1, 3; setp.ne.u32 %p2, %r2, 0; and.pred %p3, %p1, %p2; or.pred %p4, %p2, %p1; xor.pred %p5, %p1, %p2;
not.pred %p6, %p1;
selp.u32 %r3, 1, 0, %p3; selp.u32 %r4, 2, 0, %p4; selp.u32 %r5, 4, 0, %p5; selp.u32 %r6, 8, 0, %p6;
or.b32 %r3, %r3, %r4; or.b32 %r5, %r5, %r6; or.b32 %r3, %r3, %r5;
@%p3 atom.global.add.u32 %r7, [%rd1], 16;
@%p3 add.u32 %r3, %r3, %r7;
st.global.u32 [%rd1+4], %r3;
"""


@pytest.mark.parametrize("sanitize", [False, True])
def test_predicates_that_are_known_meet_those_that_are_not(sanitize: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Module, "quickly", True)
    emulator._module.cache_clear()
    memory = np.zeros((32, 2), np.uint32)
    memory[::2, 0] = 7
    assert not emulator.run(ptx(LANES, "u64"), "k", 1, 32, [memory], sanitize=sanitize)
    emulator._module.cache_clear()
    lane = np.arange(32)
    low, even = lane < 3, lane % 2 == 0
    bits = (low & even) + 2 * (low | even) + 4 * (low ^ even) + 8 * ~low
    assert (memory[:, 1] == bits + np.where(low & even, 7, 0)).all()
    assert (memory[:, 0] == np.where(even, 7, 0) + np.where(low & even, 16, 0)).all()


def test_kernels_share_their_steps() -> None:
    known = {step.name for name in NAMES[1:] for step in rewritten(name)[1]}
    steps = {step.name for step in rewritten(NAMES[0])[1]}
    assert len(steps & known) > len(steps) / 2
