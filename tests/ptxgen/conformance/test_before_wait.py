"""What a kernel touches before its wait is taken from its text, and is for every kernel no more than its signature promises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import pytest

from ptxgen.conformance.before_wait import before_wait
from ptxgen.dsl.arguments import update
from ptxgen.dsl.dependent_launch import BeforeWait, NextStarts, promised
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.kernels.compose import as_dependent, pipeline_weights
from ptxgen.kernels.registry import KernelEntry, find
from ptxgen.target import Target
from ptxgen.toolchain.module import emit
from ptxgen.types import U32
from tests.ptxgen.emulator.ptx import kernel as ptx
from tests.ptxgen.kernels.catalogue import ENTRIES

TARGET = Target(90)
WAIT = "griddepcontrol.wait;"
FREE = "griddepcontrol.launch_dependents;"
POINTERS = "ld.param.u64 %rd1, [p0];\nld.param.u64 %rd2, [p1];\nmov.u32 %r1, %tid.x;\nmov.u32 %r3, s;\nsetp.lt.u32 %p1, %r1, 9;"


def facts(body: str) -> BeforeWait:
    text = ptx(f"{POINTERS}\n{body}", "u64", "u64", shared=".shared .align 16 .b8 s[64];")
    text = text.replace(".visible", ".global .u32 table[2] = {1, 2};\n.global .u32 empty[2];\n.visible", 1)
    return before_wait(text, "k", {"p0": update(U32, 4), "p1": update(U32, 4)})


def names(*of: str) -> frozenset[str]:
    return frozenset(of)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("ld.global.u32 %r2, [%rd1];", BeforeWait(reads=names("p0"))),
        ("st.global.u32 [%rd2], 1;", BeforeWait(writes=names("p1"))),
        ("atom.global.add.u32 %r2, [%rd1], 1;", BeforeWait(reads=names("p0"), writes=names("p0"))),
        ("prefetch.global.L2 [%rd1];", BeforeWait(prefetches=names("p0"))),
        ("cp.async.ca.shared.global [%r3], [%rd1], 16;", BeforeWait(reads=names("p0"), copies=names("p0"))),
        ("ld.global.nc.u32 %r2, [%rd1];", BeforeWait(reads=names("p0"), read_only=names("p0"))),
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd1], 16, [%r3];",
            BeforeWait(reads=names("p0"), copies=names("p0")),
        ),
        ("st.shared.u32 [%r3], 1;", BeforeWait()),
        ("@%p1 bra L;\nst.global.u32 [%rd1], 1;\nL:", BeforeWait(writes=names("p0"))),  # on one path
        (f"@%p1 {WAIT}\nst.global.u32 [%rd1], 1;", BeforeWait(writes=names("p0"))),  # of some threads only
        ("add.u64 %rd3, %rd1, %rd2;\nst.global.u32 [%rd3], 1;", BeforeWait(writes=names("p0", "p1"))),
        ("ld.global.u64 %rd3, [%rd1];\nst.global.u32 [%rd3], 1;", BeforeWait(reads=names("p0"), anywhere=True)),
        ("mov.u64 %rd3, table;\nld.global.nc.u32 %r2, [%rd3];", BeforeWait()),  # nothing writes it
        (
            "mov.u64 %rd3, table;\nld.global.u32 %r2, [%rd3];\nst.global.u32 [%rd3], 1;",
            BeforeWait(reads=names("table"), writes=names("table")),
        ),
        ("mov.u64 %rd3, empty;\nld.global.u32 %r2, [%rd3];", BeforeWait(reads=names("empty"))),
        ("@%p1 ret;", BeforeWait(waits=False)),
        (FREE, BeforeWait(next_starts=NextStarts.BEFORE_THE_WAIT)),
    ],
)
def test_what_is_touched_before_the_wait_is_found_on_every_path(body: str, found: BeforeWait) -> None:
    after = f"{WAIT}\nld.global.u32 %r2, [%rd2];\nst.global.u32 [%rd1], 1;"
    assert facts(f"{body}\n{after}") == found


def test_after_the_wait_only_the_read_only_path_counts_and_when_the_next_launch_may_start() -> None:
    assert facts(f"{WAIT}\nst.global.u32 [%rd1], 1;\n{FREE}") == BeforeWait(next_starts=NextStarts.AFTER_THE_WAIT)
    assert facts(f"{WAIT}\nld.global.nc.u32 %r2, [%rd2];") == BeforeWait(read_only=names("p1"))


def early_forms(entry: KernelEntry) -> Iterator[KernelType]:
    """The sample shapes that are dependent by themselves, or wait inside: as they are, with a switch set, with a weight
    ring."""
    for sample in entry.cases():
        kernels = [sample, as_dependent(sample), pipeline_weights(sample)]
        for switch in fields(sample):
            if switch.init and isinstance(getattr(sample, switch.name), bool):
                try:
                    kernels.append(replace(sample, **{switch.name: not getattr(sample, switch.name)}))
                except ArgumentError:
                    continue
        for kernel in dict.fromkeys(kernels):
            if kernel is not None and kernel.runs_on(TARGET) and (kernel.launch().dependent or kernel.waits_inside):
                yield kernel


FORMS = {entry.name: sorted(early_forms(entry), key=lambda kernel: kernel.work().bytes) for entry in ENTRIES}
EARLY = [name for name, forms in FORMS.items() if forms]


def test_kernels_of_all_families_are_dependent() -> None:
    assert len(EARLY) > 40
    assert {find(name).type.family for name in EARLY} >= {"gemv", "gemm", "attention", "layer", "collective"}


@pytest.mark.parametrize(
    "name", [name if name == "hw_dp4a_q8_0_gemv" else pytest.param(name, marks=pytest.mark.slow) for name in EARLY]
)
def test_a_kernel_touches_before_its_wait_no_more_than_its_signature_promises(name: str) -> None:
    kinds = {(type(kernel), kernel.launch().dependent, kernel.waits_inside): kernel for kernel in reversed(FORMS[name])}
    for kernel in kinds.values():  # the smallest of each
        found = before_wait(emit(kernel, TARGET, dependent=True).text, kernel.name, kernel.signature())
        promise = promised(kernel, kernel.signature(), dependent=True, of_itself=kernel.launch().dependent)
        assert found.waits, kernel
        assert not found.anywhere, kernel
        assert not found.writes, kernel
        assert found.reads <= promise.reads, kernel
        assert found.read_only <= {n for n, a in kernel.signature().items() if getattr(a, "constant", False)}, kernel
        assert found.next_starts >= promise.next_starts, kernel
