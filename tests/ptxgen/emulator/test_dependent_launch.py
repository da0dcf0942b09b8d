"""A kernel that may start before the one before it has ended: what it touches before it waits is found."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgen.emulator import Finding, constant, run, settled, uninitialised
from tests.ptxgen.emulator.ptx import FIRST_LINE, kernel

WAIT = "griddepcontrol.wait;"
POINTERS = "ld.param.u64 %rd1, [p0];\nld.param.u64 %rd2, [p1];\nmov.u32 %r1, %tid.x;"
BODY = FIRST_LINE + 3


def findings(body: str, *, dependent: bool = True, grid: int = 2, block: int = 40, shared: str = "") -> list[Finding]:
    """p0 is written by the kernel, p1 are its weights."""
    x, w = np.zeros(4, np.uint32), np.arange(4, dtype=np.uint32)
    text = kernel(f"{POINTERS}\n{body}", "u64", "u64", shared=shared)
    return run(text, "k", grid, block, [x, constant(w)], dependent=dependent)


TOUCHES = {
    "a load": ("ld.global.u32 %r2, [%rd1];", "reads"),
    "a generic load": ("ld.u32 %r2, [%rd1];", "reads"),
    "a store": ("st.global.u32 [%rd1], 1;", "writes"),
    "an atomic": ("atom.global.add.u32 %r2, [%rd1], 1;", "writes"),
    "a copy": ("mov.u32 %r3, s;\ncp.async.ca.shared.global [%r3], [%rd1], 16;\ncp.async.wait_all;", "reads"),
    "a guarded copy": (
        "mov.u32 %r3, s;\nsetp.lt.u32 %p1, %r1, 40;\n@%p1 cp.async.ca.shared.global [%r3], [%rd1], 16;\ncp.async.wait_all;",
        "reads",
    ),
    "a copy of a part": ("mov.u32 %r3, s;\ncp.async.cg.shared.global [%r3], [%rd1], 16, 3;\ncp.async.wait_all;", "reads"),
    "a copy to nowhere": ("mov.u32 %r3, 4096;\ncp.async.ca.shared.global [%r3], [%rd1], 16;\ncp.async.wait_all;", "reads"),
}


@pytest.mark.parametrize("touch", TOUCHES)
def test_what_is_touched_before_the_wait_is_found(touch: str) -> None:
    body, verb = TOUCHES[touch]
    shared = ".shared .align 16 .b8 s[16];"
    found = [f for f in findings(f"{body}\n{WAIT}", shared=shared) if f.kind == "unordered"]
    assert len(found) == 1, found
    assert (found[0].thread, found[0].block, found[0].count) == ((0, 0, 0), (0, 0, 0), 80)
    assert f"{verb} 0x" in found[0].message
    assert "before it has waited for the kernels before it: byte 0 of the array of p0" in found[0].message
    assert "unordered" not in {f.kind for f in findings(f"{WAIT}\n{body}", shared=shared)}
    assert "unordered" not in {f.kind for f in findings(body, shared=shared, dependent=False)}


def test_weights_may_be_read_and_lines_fetched_before_the_wait() -> None:
    own = "mov.u32 %r3, s;\nst.shared.u32 [%r3], 1;"
    body = f"ld.global.nc.u32 %r2, [%rd2];\nprefetch.global.L2 [%rd1];\n{own}\n{WAIT}\nst.global.u32 [%rd1], %r2;"
    assert not findings(body, grid=1, block=1, shared=".shared .align 16 .b8 s[16];")


def test_a_store_to_weights_is_never_in_order() -> None:
    x, w = np.zeros(4, np.uint32), np.zeros(4, np.uint32)
    w.flags.writeable = False
    text = kernel(f"{POINTERS}\n{WAIT}\nst.global.u32 [%rd2], 1;", "u64", "u64")
    assert [f.kind for f in run(text, "k", 1, 1, [x, constant(w)], dependent=True)] == ["read-only"]
    assert [f.kind for f in run(text, "k", 1, 1, [x, constant(x.copy())], dependent=True)] == ["read-only"]


@pytest.mark.parametrize("touch", TOUCHES)
def test_what_is_settled_may_be_read_before_the_wait_and_not_be_written(touch: str) -> None:
    body, verb = TOUCHES[touch]
    text = kernel(f"{POINTERS}\n{body}\n{WAIT}", "u64", "u64", shared=".shared .align 16 .b8 s[16];")
    x, w = np.zeros(4, np.uint32), np.arange(4, dtype=np.uint32)
    found = run(text, "k", 2, 40, [settled(x), constant(w)], dependent=True)
    assert ("unordered" in {f.kind for f in found}) == (verb == "writes")


def test_what_is_settled_may_be_written_after_the_wait() -> None:
    text = kernel(f"{POINTERS}\nld.global.u32 %r2, [%rd1];\n{WAIT}\nst.global.u32 [%rd1+4], %r2;", "u64", "u64")
    assert not run(text, "k", 1, 1, [settled(np.zeros(4, np.uint32)), np.uint64(0)], dependent=True)


def test_what_another_thread_writes_of_it_may_not_be_read_before_the_wait_either() -> None:
    """Waiting for launches before orders no threads of this one."""
    body = f"ld.global.u32 %r2, [%rd1];\n{WAIT}\nsetp.eq.u32 %p1, %r1, 39;\n@%p1 st.global.u32 [%rd1], 1;"
    text = kernel(f"{POINTERS}\n{body}", "u64", "u64")
    found = run(text, "k", 1, 40, [settled(np.zeros(4, np.uint32)), np.uint64(0)], dependent=True)
    assert {f.kind for f in found} == {"race"}


def test_a_copy_that_takes_nothing_touches_nothing() -> None:
    """Lane i takes i mod 4 bytes."""
    body = f"""mov.u32 %r3, s;\nand.b32 %r2, %r1, 3;\ncp.async.ca.shared.global [%r3], [%rd1], 4, %r2;
    cp.async.wait_all;\n{WAIT}"""
    (f,) = [f for f in findings(body, grid=1, block=32, shared=".shared .align 16 .b8 s[16];") if f.kind == "unordered"]
    assert (f.thread, f.count) == ((1, 0, 0), 24)


def test_each_thread_waits_for_itself() -> None:
    """The threads that take the other branch, or whose guard is false, have not waited."""
    some = "setp.lt.u32 %p1, %r1, 3;\n"
    load = "\nld.global.u32 %r2, [%rd1];"
    for body in (f"{some}@!%p1 bra L1;\n{WAIT}\nL1:{load}", f"{some}@%p1 {WAIT}{load}"):
        (f,) = findings(body)
        assert (f.kind, f.thread, f.count) == ("unordered", (3, 0, 0), 2 * 37)


def test_a_block_does_not_inherit_the_wait_of_the_one_before() -> None:
    body = f"mov.u32 %r4, %ctaid.x;\nsetp.eq.u32 %p1, %r4, 1;\n@%p1 bra L1;\n{WAIT}\nL1:\nld.global.u32 %r2, [%rd1];"
    f, ended = findings(body)
    assert (f.kind, f.block, f.count) == ("unordered", (1, 0, 0), 40)
    assert "block (1,0,0) ends" in ended.message


def test_variables_of_the_module_may_have_been_written_too() -> None:
    variables = ".global .align 4 .b8 g[16]; .const .align 4 .b8 c[16];"
    (f,) = findings(f"ld.global.u32 %r2, [g];\nld.const.u32 %r3, [c];\n{WAIT}", shared=variables)
    assert (f.kind, f.ptx_line) == ("unordered", BODY)
    assert "byte 0 of the variable g" in f.message


def test_memory_that_nothing_wrote_is_found_beside_it() -> None:
    text = kernel(f"{POINTERS}\nld.global.u32 %r2, [%rd1];\n{WAIT}", "u64", "u64")
    found = run(text, "k", 1, 1, [uninitialised(np.zeros(4, np.uint32)), np.uint64(0)], dependent=True)
    assert sorted(f.kind for f in found) == ["uninitialised", "unordered"]


def test_a_block_that_ends_without_a_wait_is_found() -> None:
    (found,) = findings("")
    assert (
        str(found) == "unordered: k, block (0,0,0) ends, and none of its threads has waited for the kernels before it (2 times)"
    )
    assert not findings(WAIT)
    assert not findings(f"setp.eq.u32 %p1, %r1, 0;\n@!%p1 ret;\n{WAIT}", grid=1)


NC = "ld.global.nc.u32 %r2, [{}];"


def test_the_read_only_path_is_for_constant_memory_also_after_the_wait() -> None:
    (found,) = findings(f"{WAIT}\n{NC.format('%rd1')}")
    assert found.kind == "stale read"
    assert "through the read-only path, which is for constant memory: byte 0 of the array of p0" in found.message
    assert not findings(f"{WAIT}\n{NC.format('%rd2')}")


def test_a_load_through_the_read_only_path_of_what_the_launch_wrote_is_found_though_a_barrier_orders_the_two() -> None:
    write = "st.global.u32 [%rd1], 1;\nbar.sync 0;"
    guarded = f"setp.eq.u32 %p1, %r1, 0;\n@%p1 {write}"
    found = findings(f"{guarded}\n{NC.format('%rd1')}", dependent=False, grid=1)
    assert {f.kind for f in found} == {"stale read"}
    assert found[0].against is not None
    assert "st.global" in found[0].against.ptx_text
    assert not findings(f"{guarded}\nld.global.u32 %r2, [%rd1];", dependent=False, grid=1)
