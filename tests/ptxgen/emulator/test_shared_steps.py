"""Code that is wanted soon: calls of steps, which all kernels share, that give the bits of optimised code."""

from __future__ import annotations

import re

import pytest

from ptxgen import emulator
from ptxgen.conformance.execution import emitted, emulate, inputs
from ptxgen.conformance.type_checks import smallest
from ptxgen.emulator import codegen
from ptxgen.emulator.jit import compile_kernel
from ptxgen.emulator.machine import Module
from ptxgen.emulator.parse import parse
from ptxgen.emulator.shared_steps import Step, shared
from ptxgen.kernels.registry import find

NAMES = ["rmsnorm", "argmax", "hw_dp4a_q4k_gemv", "mma_q4k_gemm", "rope_grouped_attention_indirect", "sample_token"]
"""Sums of floats, choices between lanes, dot products, matrix products, shared memory, atomics and halves."""


def rewritten(name: str) -> tuple[str, list[Step]]:
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


def test_kernels_share_their_steps() -> None:
    known = {step.name for name in NAMES[1:] for step in rewritten(name)[1]}
    steps = {step.name for step in rewritten(NAMES[0])[1]}
    assert len(steps & known) > len(steps) / 2
