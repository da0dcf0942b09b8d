"""The text of modules: what stands in it, that it is the same everywhere, and that assemblers and JSON take it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from ptxgen.conformance.dependent_launch import violations
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.errors import PtxGenError
from ptxgen.kernels.norm.rmsnorm import RmsNorm
from ptxgen.kernels.registry import find
from ptxgen.target import ALL, DEFAULT, Target
from ptxgen.toolchain.assemble import AssembleError, assemble
from ptxgen.toolchain.module import emit, module_text, ptx_version
from tests.ptxgen.dsl.writing import written

KERNEL = RmsNorm(hidden=576)


def test_the_header_is_the_version_the_target_and_the_kernel() -> None:
    text = emit(KERNEL).text
    head, _, _ = text.partition(".visible .entry")
    assert head == (
        "// Written by ptxgen.\n.version 6.3\n.target sm_75\n.address_size 64\n\n"
        "// y = gamma * x / sqrt(mean(x^2) + eps) of each row, and, if asked for, y as int8 planes or as f16 split.\n"
        "// rmsnorm(hidden=576)\n"
        "// y: f32[1, 576], out\n// x: f32[1, 576], in\n// gamma: f32[576], in\n// eps: f32\n"
    )


def test_pointers_say_what_they_point_at_and_registers_have_exact_types() -> None:
    text = emit(KERNEL).text
    assert "    .param .u64 .ptr .global .align 16 y,\n" in text
    assert "    .param .f32 eps\n)\n.maxntid 256, 1, 1\n{" in text
    assert re.search(r"\.reg \.f32 %f<\d+>;", text)
    assert re.search(r"\.reg \.pred %p<\d+>;", text)
    assert not re.search(r"\.reg \.b\d", text)
    assert ".shared .align 16 .b8 shared0[32];" in text


def test_a_declaration_covers_every_register_of_its_range() -> None:
    text = emit(KERNEL).text
    for prefix, count in re.findall(r"\.reg \.\w+ (%[a-z]+)<(\d+)>;", text):
        used = {int(n) for n in re.findall(rf"{prefix}(\d+)\b", text)}
        assert used == set(range(int(count)))


def test_the_same_type_gives_the_same_bytes_in_any_process() -> None:
    program = (
        "from ptxgen.kernels.norm.rmsnorm import RmsNorm\nfrom ptxgen.toolchain.module import emit\n"
        "print(emit(RmsNorm(hidden=576)).sha256, emit(RmsNorm(hidden=576), lines=True).sha256)"
    )
    command = [sys.executable, "-c", program]
    hashes = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        hashes.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    here = f"{emit(KERNEL).sha256} {emit(KERNEL, lines=True).sha256}\n"
    assert hashes == {here}


def test_the_text_does_not_depend_on_what_was_written_before() -> None:
    first = emit(KERNEL).text
    emit(RmsNorm(hidden=4096))
    assert emit(replace(KERNEL)).text == first


def test_every_target_assembles_and_names_its_own_ptx_version() -> None:
    for target in ALL:
        emitted = emit(KERNEL, target)
        major, minor = target.first_ptx
        assert f".version {major}.{minor}\n.target {target}\n" in emitted.text
        assemble(emitted.text, target)


def test_the_version_rises_with_an_instruction_that_needs_it() -> None:
    plain = written(lambda k: k.load(k.arg.x[0]))
    hinted = written(lambda k: k.load(k.arg.x[0], evict="L1::no_allocate"))
    assert ptx_version([plain], DEFAULT) == (6, 3)
    assert ptx_version([plain, hinted], DEFAULT) == (7, 4)


def test_lines_name_the_authors_file_and_line_of_every_instruction() -> None:
    plain, lined = emit(KERNEL), emit(KERNEL, lines=True)
    assert '.file 1 "ptxgen/kernels/norm/rmsnorm.py"\n' in lined.text
    without = [line for line in lined.text.splitlines() if not line.strip().startswith((".loc", ".file"))]
    assert without == plain.text.splitlines()
    for op in lined.function.ops:
        index = next(i for i, file in enumerate(re.findall(r'\.file \d+ "(.*)"', lined.text), 1) if file == op.where.file)
        assert f".loc {index} {op.where.line} 0" in lined.text
    assemble(lined.text, DEFAULT)


def test_an_assembler_error_names_the_authors_line() -> None:
    text = emit(KERNEL, lines=True).text.replace("sqrt.rn.f32", "sqrt.rn.f33", 1)
    with pytest.raises(AssembleError, match=r"ptx line \d+(.|\n)*ptxgen/mathlib\.py|ptxgen/kernels/norm/\w+\.py:\d+"):
        assemble(text, DEFAULT)


def test_a_manifest_is_json_with_what_a_launch_needs() -> None:
    emitted = emit(KERNEL, Target(90))
    facts = json.loads(json.dumps(emitted.manifest()))
    assert facts["entry"] == "rmsnorm"
    assert facts["shape"] == {"hidden": 576}
    assert facts["parameters"][0] == {
        "name": "y", "ptx_type": "u64", "dtype": "f32", "kind": "array", "shape": [1, 576], "direction": "out", "align": 16,
    }  # fmt: skip
    assert facts["parameters"][3] == {
        "name": "eps", "ptx_type": "f32", "dtype": "f32", "kind": "scalar", "low": 0.0, "high": None,
    }  # fmt: skip
    assert (facts["grid"], facts["block"], facts["shared_bytes"]) == ([1, 1, 1], [256, 1, 1], 32)
    assert (facts["dynamic_shared_bytes"], facts["cooperative"]) == (0, False)
    assert (facts["target"], facts["ptx_version"], facts["sha256"]) == ("sm_90", "7.8", emitted.sha256)


def test_a_module_of_two_entries_assembles_and_of_one_twice_is_refused() -> None:
    one, other = written(lambda k: k.barrier()), written(lambda k: [None for _ in k.strided(0, 4)])
    other.name = "other"
    assemble(module_text([one, other], DEFAULT), DEFAULT)
    with pytest.raises(PtxGenError, match="a module holds each entry once, probe is there 2 times"):
        module_text([one, one], DEFAULT)


def test_a_kernel_that_is_dependent_lets_the_next_start_and_waits_first() -> None:
    text = emit(KERNEL, Target(90), dependent=True, lines=True).text
    assert not violations(text, KERNEL.name, KERNEL.signature())
    lines, plain = (
        text.splitlines() for text in (emit(KERNEL, Target(90), dependent=True).text, emit(KERNEL, Target(90)).text)
    )
    first = lines.index("    griddepcontrol.launch_dependents;")
    assert lines[first + 1] == "    griddepcontrol.wait;"
    assert [line for line in lines if "griddepcontrol" not in line][3:] == plain[3:]  # but for the version of PTX
    by_itself = find("hw_dp4a_q4k_gemv").make(k=4096, n=16, pdl=True)
    assert emit(by_itself, Target(90), dependent=True).text == emit(by_itself, Target(90)).text
    with pytest.raises(PtxGenError, match=r"griddepcontrol.*sm_90"):
        emit(KERNEL, Target(80), dependent=True)


def test_remarks_stand_where_they_were_made() -> None:
    def body(k: KernelBuilder) -> None:
        k.remark("first")
        k.store(k.arg.y[0], k.f32(1.0))

    lines = [line.strip() for line in module_text([written(body)], DEFAULT).splitlines()]
    assert lines.index("// first") < lines.index("mov.f32 %f0, 0f3F800000;")
