"""Every kernel type that can be made to be dependent waits in time; and the same kernels without their wait, or with a load of
what the kernel before writes moved before it, are found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import pytest

from ptxgen import emulator
from ptxgen.conformance import check
from ptxgen.conformance.dependent_launch import violations
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.rope_source import RopeFused
from ptxgen.kernels.compose import as_dependent
from ptxgen.kernels.registry import KernelEntry
from ptxgen.target import Target
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels.catalogue import ENTRIES
from tests.ptxgen.kernels.running import inputs

TARGET = Target(90)
WAIT = "griddepcontrol.wait;"


def dependent(entry: KernelEntry) -> Iterator[KernelType]:
    """The sample shapes as kernels that start dependent: as they are, or with a switch of theirs set."""
    for kernel in entry.cases():
        if kernel.launch().dependent:
            yield kernel
        for switch in fields(kernel):
            if switch.init and isinstance(getattr(kernel, switch.name), bool):
                try:
                    other = replace(kernel, **{switch.name: not getattr(kernel, switch.name)})
                except ArgumentError:
                    continue
                if other.launch().dependent:
                    yield other


EARLY = {entry.name: kernels for entry in ENTRIES if (kernels := list(dependent(entry)))}
OTHERS = {entry.name: entry for entry in ENTRIES if entry.name not in EARLY and entry.type.family not in ("gemv", "dequant")}
"""Without the strategies for matrices, which are many and alike."""
ALONE = {name: kernels for name, kernels in EARLY.items() if kernels[0].launch().ranks == 1}
"""Others are those of one rank, which send what these keep, behind all waits."""
COMPOSITIONS = {entry.name: entry.composition for entry in ENTRIES}
_LAST_OF_EACH = {COMPOSITIONS[name]: name for name in sorted(ALONE, key=lambda name: ("q4k" in name, name))}
ONE_OF_EACH = {name: ALONE[name] for name in _LAST_OF_EACH.values()}
"""A format of each composition, for what takes time."""


def text_of(kernel: KernelType) -> str:
    return emit(kernel, TARGET, lines=True).text


def unordered(kernel: KernelType, text: str) -> list[str]:
    """What the emulator finds touched before the wait. Beside it there may be races with what was moved there, and no more:
    other findings are those of a launch that is not the kernel's own."""
    arguments, launch = inputs(kernel), kernel.launch()
    passed = [
        emulator.Marked(arguments[name], constant=argument.constant, settled=argument.settled)
        if isinstance(argument, Array)
        else arguments[name]
        for name, argument in kernel.signature().items()
    ]
    findings = emulator.run(
        text, kernel.name, launch.grid, launch.block, passed, shared=launch.dynamic_shared, dependent=True,
        cooperative=launch.cooperative,
    )  # fmt: skip
    assert {finding.kind for finding in findings} <= {"unordered", "race"}, findings
    return [finding.message for finding in findings if finding.kind == "unordered"]


def test_there_are_kernels_that_are_dependent() -> None:
    assert {COMPOSITIONS[name] for name in ONE_OF_EACH} == {COMPOSITIONS[name] for name in ALONE}
    assert all(name.startswith("gated_") and name.endswith("_sent") for name in set(EARLY) - set(ALONE))
    assert set(ONE_OF_EACH) >= {"hw_dp4a_q4k_gemv", "hw_dp4a_q4k_gemv_residual", "batched_hw_dp4a_q4k_gemv"}


@pytest.mark.parametrize("name", EARLY)
def test_a_kernel_that_is_dependent_waits_on_every_way(name: str) -> None:
    kernel = min(EARLY[name], key=lambda kernel: kernel.work().bytes)
    assert not violations(text_of(kernel), kernel.name, kernel.signature())


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_kernel_of_a_step_can_be_dependent_and_waits_before_all_else_or_where_it_says(name: str) -> None:
    kernel = min(OTHERS[name].cases(), key=lambda kernel: kernel.work().bytes)
    assert as_dependent(kernel) is kernel
    text = emit(kernel, TARGET, lines=True, dependent=True).text
    assert text.count(WAIT) == (
        3 if isinstance(getattr(kernel, "source", None), RopeFused) else 1
    )  # which goes one of three ways
    before = text[: text.index(WAIT)]
    assert ("ld.global" in before or "cp.async" in before) == kernel.waits_inside
    assert not violations(text, kernel.name, kernel.signature())
    if kernel.waits_inside and kernel.launch().ranks == 1:  # conformance runs it as it is launched otherwise
        assert not unordered(kernel, text)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_a_kernel_that_is_dependent_conforms_in_every_sample_shape(kind: str) -> None:
    smallest, *others = sorted(ONE_OF_EACH[kind], key=lambda kernel: kernel.work().bytes)
    report = check(smallest)
    assert report.passed, str(report)
    for kernel in others:
        assert not violations(text_of(kernel), kernel.name, kernel.signature())


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_without_its_wait_it_is_found(kind: str) -> None:
    kernel = min(ONE_OF_EACH[kind], key=lambda kernel: kernel.work().bytes)
    text = text_of(kernel)
    assert text.count(WAIT) == (2 if kind.startswith("mixed_") else 1)  # its blocks go one of two ways
    mutant = text.replace(WAIT, "")
    found = violations(mutant, kernel.name, kernel.signature())
    touched = {one.split(" is touched")[0] for one in found if "is touched before the wait" in one}
    written = {name for name, argument in kernel.signature().items() if not argument.constant}  # type: ignore[union-attr]
    assert touched == written - ({"sums"} if "q8_0" in kind else set())  # whose blocks have no minimum
    packed = "halves" if kernel.activation_f16_split else "digits"
    assert any(f"the array of {packed}" in message for message in unordered(kernel, mutant))


def test_a_residual_that_is_loaded_before_the_wait_is_found() -> None:
    (kernel, *_) = EARLY["hw_dp4a_q4k_gemv_residual"]
    lines = text_of(kernel).splitlines()
    wait = next(i for i, line in enumerate(lines) if line.strip() == WAIT)
    pointer = next(line for line in lines if "ld.param.u64" in line and "[y]" in line).split()[1].rstrip(",")
    early_load = [*lines[:wait], f"    {{ .reg .f32 %early; ld.global.f32 %early, [{pointer}]; }}", *lines[wait:]]
    assert not violations("\n".join(lines), kernel.name, kernel.signature())
    (one,) = violations("\n".join(early_load), kernel.name, kernel.signature())
    assert one.startswith(f"y is touched before the wait\n  ptx line {wait + 1} ")
    (message,) = unordered(kernel, "\n".join(early_load))
    assert "the array of y" in message


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_a_wait_of_one_warp_alone_is_found(kind: str) -> None:
    of_some_warps = [kernel for kernel in ONE_OF_EACH[kind] if kernel.launch().threads > 32]
    kernel = min(of_some_warps, key=lambda kernel: kernel.work().bytes)
    some = f".reg .pred %some; .reg .b32 %thread; mov.u32 %thread, %tid.x; setp.lt.u32 %some, %thread, 32; @%some {WAIT}"
    mutant = text_of(kernel).replace(WAIT, f"{{ {some} }}")
    assert any("is touched before the wait" in one for one in violations(mutant, kernel.name, kernel.signature()))
    if not kind.startswith("batched_"):  # whose text takes long to compile, and is the same here
        assert "thread (32,0,0)" in unordered(kernel, mutant)[0]
