"""Every kind of finding, on a small kernel that deserves it and on the right one beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.emulator import Finding, run, uninitialised
from tests.ptxgen.emulator.ptx import FIRST_LINE, kernel

LOAD_POINTER = "ld.param.u64 %rd1, [p0];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\nadd.u64 %rd3, %rd1, %rd2;"
BODY = FIRST_LINE + 4  # the line after LOAD_POINTER
SHARED = ".shared .align 16 .b8 s[256];"


def findings(
    body: str, *args: Any, block: Any = 32, grid: int = 1, shared: str = "", params: tuple[str, ...] = ("u64",)
) -> list[Finding]:
    return run(kernel(LOAD_POINTER + "\n" + body, *params, shared=shared), "k", grid, block, list(args))


def only(found: list[Finding]) -> Finding:
    assert len(found) == 1, "\n".join(map(str, found))
    return found[0]


def array(n: int = 32) -> np.ndarray[Any, Any]:
    return np.zeros(n, np.uint32)


def test_a_store_past_the_end_names_thread_address_line_and_array() -> None:
    x = array(30)
    f = only(findings("\nst.global.u32 [%rd3], %r1;", x))
    assert (f.kind, f.ptx_line, f.thread, f.block, f.count) == ("out of bounds", BODY + 1, (30, 0, 0), (0, 0, 0), 2)
    assert f.address == x.ctypes.data + 120
    assert "0 bytes past the end of the array of p0 (120 bytes)" in str(f)
    assert "st.global.u32 [%rd3], %r1;" in str(f)
    assert x.tolist() == list(range(30))


def test_a_load_out_of_bounds_gives_poison_and_the_kernel_goes_on() -> None:
    x = array()
    f = only(findings("ld.global.u32 %r2, [%rd3+64];\nst.global.u32 [%rd3], %r2;", x))
    assert (f.kind, f.ptx_line, f.thread[0]) == ("out of bounds", BODY, 16)
    assert x[16] == 0xFFFFFFFF


def test_an_atomic_out_of_bounds_gives_poison_in_every_run() -> None:
    for _ in range(5):
        x, old = array(16), np.arange(32, dtype=np.uint32)
        body = "ld.param.u64 %rd4, [p1];\nmul.wide.u32 %rd5, %r1, 4;\nadd.u64 %rd5, %rd4, %rd5;\n"
        body += "atom.global.add.u32 %r2, [%rd3], 1;\nst.global.u32 [%rd5], %r2;"
        f = only(findings(body, x, old, params=("u64", "u64")))
        assert (f.kind, f.ptx_line, f.thread[0], f.count) == ("out of bounds", BODY + 3, 16, 16)
        assert x.tolist() == [1] * 16
        assert old.tolist() == [0] * 16 + [0xFFFFFFFF] * 16


def test_an_access_within_bounds_is_no_finding() -> None:
    assert not findings("st.global.u32 [%rd3], %r1;", array())


def test_a_misaligned_access_is_found_before_it_happens() -> None:
    f = only(findings("ld.global.u32 %r2, [%rd1+2];", array(), block=1))
    assert (f.kind, f.thread) == ("misaligned", (0, 0, 0))
    assert "not aligned to 4 bytes" in f.message


@pytest.mark.parametrize(("offset", "wrong"), [(0, False), (252, False), (256, True), (-4, True)])
def test_shared_memory_ends_where_the_block_said(offset: int, wrong: bool) -> None:
    found = findings(f"mov.u32 %r3, s;\nst.shared.u32 [%r3+{offset}], %r1;", array(), block=1, shared=SHARED)
    assert [f.kind for f in found] == (["out of bounds"] if wrong else [])
    if wrong:
        assert found[0].address == offset
        assert "the block has 256 bytes" in found[0].message


def test_local_memory_is_checked_for_each_thread() -> None:
    declared = ".local .align 4 .b8 l[16];\nmov.u32 %r3, l;\nst.local.u32 [%r3+{at}], %r1;"
    assert not findings(declared.format(at=12), array())
    f = only(findings(declared.format(at=16), array()))
    assert (f.kind, f.count) == ("out of bounds", 32)


def test_reading_global_memory_that_nobody_wrote() -> None:
    f = only(findings("ld.global.u32 %r2, [%rd3];", uninitialised(array())))
    assert (f.kind, f.count, f.ptx_line) == ("uninitialised", 32, BODY)
    assert not findings("st.global.u32 [%rd3], %r1;\nld.global.u32 %r2, [%rd3];", uninitialised(array()))


def test_reading_shared_memory_that_nobody_wrote() -> None:
    f = only(findings("mov.u32 %r3, s;\nld.shared.u32 %r2, [%r3+8];", array(), block=1, shared=SHARED))
    assert (f.kind, f.address) == ("uninitialised", 8)


def test_reading_local_memory_that_nobody_wrote() -> None:
    f = only(findings(".local .align 4 .b8 l[16];\nmov.u32 %r3, l;\nld.local.u32 %r2, [%r3+4];", array(), block=1))
    assert (f.kind, f.address) == ("uninitialised", 4)


EXCHANGE = """shl.b32 %r2, %r1, 2;\nmov.u32 %r3, s;\nadd.u32 %r4, %r3, %r2;\nxor.b32 %r5, %r2, {distance};
add.u32 %r5, %r3, %r5;
st.shared.u32 [%r4], %r1;\n{barrier}\nld.shared.u32 %r6, [%r5];\nst.global.u32 [%rd3], %r6;"""


@pytest.mark.parametrize("seed", [None, 3])
def test_a_read_of_another_warps_write_without_a_barrier_is_a_race(seed: int | None) -> None:
    text = kernel(LOAD_POINTER + "\n" + EXCHANGE.format(distance=128, barrier=""), "u64", shared=SHARED)
    found = run(text, "k", 1, 64, [array(64)], seed=seed)
    assert "race" in {f.kind for f in found}


def test_a_race_names_both_threads() -> None:
    f = next(f for f in findings(EXCHANGE.format(distance=4, barrier=""), array(), shared=SHARED) if f.kind == "race")
    assert (f.thread, f.ptx_line) == ((0, 0, 0), BODY + 7)
    assert (
        "thread (0,0,0) of block (0,0,0) reads shared[0x4..0x8) that thread (1,0,0) wrote since the last barrier" in f.message
    )


def test_a_block_barrier_ends_the_race() -> None:
    x = array(64)
    assert not findings(EXCHANGE.format(distance=128, barrier="bar.sync 0;"), x, block=64, shared=SHARED)
    assert x.tolist() == [i ^ 32 for i in range(64)]


def test_a_warp_barrier_orders_the_lanes_of_its_warp_and_no_others() -> None:
    within = EXCHANGE.format(distance=4, barrier="bar.warp.sync -1;")
    across = EXCHANGE.format(distance=128, barrier="bar.warp.sync -1;")
    assert not findings(within, array(), shared=SHARED)
    assert any(f.kind == "race" for f in findings(across, array(64), block=64, shared=SHARED))


def test_writing_what_another_thread_read_since_the_barrier_is_a_race() -> None:
    body = """mov.u32 %r3, s;\nshl.b32 %r2, %r1, 2;\nadd.u32 %r4, %r3, %r2;\nst.shared.u32 [%r4], %r1;\nbar.sync 0;
    ld.shared.u32 %r5, [%r3];\n{between}\nsetp.eq.u32 %p1, %r1, 33;\n@%p1 st.shared.u32 [%r3], %r5;"""
    f = only(findings(body.format(between=""), array(64), block=64, shared=SHARED))
    assert (f.kind, f.thread, f.ptx_line) == ("race", (33, 0, 0), BODY + 8)
    assert not findings(body.format(between="bar.sync 0;"), array(64), block=64, shared=SHARED)


def test_two_lanes_of_one_instruction_that_write_different_values_race() -> None:
    f = only(findings("mov.u32 %r3, s;\nst.shared.u32 [%r3], %r1;", array(), shared=SHARED))
    assert (f.kind, f.count) == ("race", 31)
    assert not findings("mov.u32 %r3, s;\nmov.u32 %r4, 7;\nst.shared.u32 [%r3], %r4;", array(), shared=SHARED)


def test_shared_atomics_do_not_race_with_each_other() -> None:
    body = "mov.u32 %r3, s;\nsetp.eq.u32 %p1, %r1, 0;\nmov.u32 %r2, 0;\n@%p1 st.shared.u32 [%r3], %r2;\n"
    body += "bar.sync 0;\natom.shared.add.u32 %r4, [%r3], 1;"
    assert not findings(body, array(), block=64, shared=SHARED)


def test_a_barrier_that_some_threads_have_left_behind() -> None:
    body = "setp.ge.u32 %p1, %r1, 40;\n@%p1 ret;\nbar.sync 0;"
    f = only(findings(body, array(64), block=64))
    assert (f.kind, f.ptx_line) == ("barrier", BODY + 2)
    assert "40 of 64 threads reach barrier 0" in f.message
    assert not findings("bar.sync 0;", array(64), block=64)


def test_a_barrier_in_diverged_code() -> None:
    body = "setp.ge.u32 %p1, %r1, 16;\n@%p1 bra L1;\nbar.sync 0;\nbra L2;\nL1:\nbar.sync 0;\nL2:"
    f = only(findings(body, array()))
    assert f.kind == "barrier"
    assert "another barrier instruction" in f.message


def test_a_deadlock_is_reported_and_ends() -> None:
    found = findings(
        "setp.ge.u32 %p1, %r1, 32;\n@%p1 bra L1;\nbar.sync 1, 64;\nbra L2;\nL1:\nbar.sync 2, 64;\nL2:", array(64), block=64
    )
    assert "deadlock" in {f.kind for f in found}


def test_a_shuffle_from_a_lane_that_is_not_there() -> None:
    body = "setp.ge.u32 %p1, %r1, 16;\n@%p1 ret;\nshfl.sync.{mode} %r2|%p2, %r1, {by}, 31, {mask};"
    f = only(findings(body.format(mode="bfly.b32", by=16, mask="0xffff"), array()))
    assert (f.kind, f.thread, f.ptx_line) == ("shuffle", (0, 0, 0), BODY + 2)
    assert "reads the register of lane 16" in f.message
    assert not findings(body.format(mode="bfly.b32", by=8, mask="0xffff"), array())


def test_a_shuffle_whose_mask_leaves_out_its_own_lane() -> None:
    f = only(findings("shfl.sync.idx.b32 %r2|%p2, %r1, 0, 31, 0xffff;", array()))
    assert (f.kind, f.thread, f.count) == ("shuffle", (16, 0, 0), 16)


def test_an_endless_loop_ends() -> None:
    found = findings("L1:\nld.global.u32 %r2, [%rd1];\nsetp.eq.u32 %p1, %r2, 0;\n@%p1 bra L1;", array(), block=1)
    f = only(found)
    assert (f.kind, f.ptx_line) == ("endless loop", BODY + 1)


def test_reading_an_asynchronous_copy_before_its_wait() -> None:
    body = """mov.u32 %r3, s;\nshl.b32 %r2, %r1, 2;\nadd.u32 %r4, %r3, %r2;
    cp.async.ca.shared.global [%r4], [%rd3], 4;\ncp.async.commit_group;
    {wait}\nld.shared.u32 %r5, [%r4];\nadd.u32 %r5, %r5, 1;\nst.global.u32 [%rd3], %r5;"""
    x = np.arange(32, dtype=np.uint32)
    f = only(findings(body.format(wait=""), x, shared=SHARED))
    assert (f.kind, f.ptx_line) == ("early read", BODY + 6)
    x = np.arange(32, dtype=np.uint32)
    assert not findings(body.format(wait="cp.async.wait_group 0;"), x, shared=SHARED)
    assert x.tolist() == list(range(1, 33))


COPY = "mov.u32 %r3, s;\ncp.async.ca.shared.global [%r3], [%rd1+{offset}], 16, {taken};\ncp.async.wait_all;"


@pytest.mark.parametrize(
    ("offset", "taken", "kind"),
    [
        (0, 16, None),
        (112, 8, None),
        (112, 12, None),
        (112, 13, "out of bounds"),  # the array has 124 bytes
        (128, 0, None),  # nothing is read
        (128, 1, "out of bounds"),
        (112, 1 << 31, "out of bounds"),  # no more than the copy's size
        (96, 1 << 31, None),
        (8, 8, "misaligned"),  # to the size of the copy, whatever it takes
        (8, 0, None),
    ],
)
def test_what_a_copy_takes_is_checked_and_no_more(offset: int, taken: int, kind: str | None) -> None:
    found = findings(COPY.format(offset=offset, taken=taken), array(31), block=1, shared=SHARED)
    assert [f.kind for f in found] == ([kind] if kind else [])


def test_each_lane_takes_its_own_share_of_a_copy() -> None:
    """Lane i of the array of 124 bytes takes i bytes from byte 96, or 112 where i is odd."""
    body = """and.b32 %r5, %r1, 1;\nmad.wide.u32 %rd4, %r5, 16, %rd1;\nmov.u32 %r3, s;\nmad.lo.u32 %r3, %r1, 16, %r3;
    cp.async.cg.shared.global [%r3], [%rd4+96], 16, %r1;\ncp.async.wait_all;"""
    f = only(findings(body, array(31), shared=".shared .align 16 .b8 s[512];"))
    assert (f.kind, f.thread, f.count, f.ptx_line) == ("out of bounds", (13, 0, 0), 10, BODY + 4)
    assert "reads" in f.message
    assert "(13 bytes)" in f.message


def test_bytes_that_a_copy_takes_have_been_written() -> None:
    body = "st.global.u32 [%rd1], %r1;\nst.global.u8 [%rd1+4], %r1;\n" + COPY
    for taken, wrong in ((4, False), (5, False), (6, True)):
        found = findings(body.format(offset=0, taken=taken), uninitialised(array()), block=1, shared=SHARED)
        assert [f.kind for f in found] == (["uninitialised"] if wrong else [])


@pytest.mark.parametrize("taken", ["", ", 16"])
def test_what_is_wrong_with_one_side_of_a_copy_hides_nothing_of_the_other(taken: str) -> None:
    x = uninitialised(array())
    body = f"mov.u32 %r3, s;\ncp.async.ca.shared.global [%r3+256], [%rd1], 16{taken};"
    assert [f.kind for f in findings(body, x, block=1, shared=SHARED)] == ["out of bounds", "uninitialised"]


def test_writing_a_read_only_array() -> None:
    x = array()
    x.flags.writeable = False
    f = only(findings("st.global.u32 [%rd3], %r1;", x))
    assert f.kind == "read-only"
    assert not x.any()
    assert not findings("ld.global.u32 %r2, [%rd3];", x)


def test_a_trap_is_a_finding() -> None:
    f = only(findings("setp.eq.u32 %p1, %r1, 5;\n@%p1 trap;", array()))
    assert (f.kind, f.ptx_line) == ("trap", BODY + 1)


def test_a_finding_names_the_authors_line(tmp_path: Any) -> None:
    source = tmp_path / "author.py"
    source.write_text("first\nk.load(partial[lane])\n")
    body = f'.file 1 "{source}"\n.loc 1 2 0\nld.global.u32 %r2, [%rd3+128];'
    f = only(findings(body, array(), block=1))
    assert f.location == f"{source}:2"
    assert "k.load(partial[lane])" in str(f)


def test_a_block_is_named_in_three_dimensions() -> None:
    text = kernel(
        LOAD_POINTER
        + "\nmov.u32 %r2, %ctaid.y;\nmul.wide.u32 %rd4, %r2, 128;\nadd.u64 %rd3, %rd3, %rd4;\nst.global.u32 [%rd3], %r1;",
        "u64",
    )
    f = only(run(text, "k", (1, 3), (8, 2, 2), [array(64)]))
    assert (f.block, f.thread) == ((0, 2, 0), (0, 0, 0))


ONE_READER = """mov.u32 %r3, s;\nsetp.eq.u32 %p1, %r1, {writer};\nsetp.eq.u32 %p2, %r1, {reader};\n{before}
{barrier}\n@%p2 ld.shared.u32 %r4, [%r3];\n{between}\n@%p1 st.shared.u32 [%r3], %r1;"""


@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("crowd", ["", "ld.shared.u32 %r5, [%r3];\nbar.warp.sync -1;"])
def test_a_race_with_one_reader_is_found_in_any_order(seed: int | None, crowd: str) -> None:
    """Whoever else has read the place before, in whatever order the warps run."""
    fill = "setp.eq.u32 %p3, %r1, 40;\n@%p3 st.shared.u32 [%r3], %r1;\nbar.sync 0;"
    for writer, reader in ((0, 32), (32, 0), (33, 95), (5, 4)):
        shown = ONE_READER.format(writer=writer, reader=reader, before=fill, barrier=crowd, between="")
        text = kernel(LOAD_POINTER + "\n" + shown, "u64", shared=SHARED)
        assert {f.kind for f in run(text, "k", 1, 96, [array(96)], seed=seed)} == {"race"}, (writer, reader)
        right = ONE_READER.format(writer=writer, reader=reader, before=fill, barrier=crowd, between="bar.sync 0;")
        assert not run(kernel(LOAD_POINTER + "\n" + right, "u64", shared=SHARED), "k", 1, 96, [array(96)], seed=seed)


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_a_shared_race_shows_both_lines(seed: int | None) -> None:
    body = "mov.u32 %r3, s;\nsetp.lt.u32 %p1, %r1, 32;\n@%p1 st.shared.u32 [%r3], 1;\n@!%p1 st.shared.u32 [%r3], 1;"
    (f,) = run(kernel(LOAD_POINTER + "\n" + body, "u64", shared=SHARED), "k", 1, 64, [array(64)], seed=seed)
    assert f.against is not None
    assert {f.ptx_line, f.against.ptx_line} == {BODY + 2, BODY + 3}


def test_generic_addresses_of_shared_memory_are_checked_as_such() -> None:
    body = (
        "mov.u32 %r3, s;\ncvt.u64.u32 %rd4, %r3;\ncvta.shared.u64 %rd5, %rd4;\nst.u32 [%rd5+{at}], %r1;\nld.u32 %r4, [%rd5+8];"
    )
    f = only(findings(body.format(at=0), array(), block=1, shared=SHARED))
    assert (f.kind, f.address) == ("uninitialised", 8)
    assert not findings(body.format(at=8), array(), block=1, shared=SHARED)
    assert {f.kind for f in findings(body.format(at=8), array(), block=64, shared=SHARED)} == {"race"}


@pytest.mark.parametrize(("at", "wrong"), [(0, False), (12, False), (16, True), (-4, True)])
@pytest.mark.parametrize("generic", [False, True])
def test_a_thread_has_its_own_local_memory_and_no_more(at: int, wrong: bool, generic: bool) -> None:
    body = f".local .align 4 .b8 l[16];\nmov.u32 %r3, l;\nst.local.u32 [%r3+{at}], %r1;"
    if generic:
        body = f".local .align 4 .b8 l[16];\nmov.u64 %rd4, l;\ncvta.local.u64 %rd5, %rd4;\nst.u32 [%rd5+{at}], %r1;"
    assert {f.kind for f in findings(body, array(), block=1)} == ({"out of bounds"} if wrong else set())


@pytest.mark.parametrize(("count", "late", "wrong"), [(64, 64, False), (64, 63, True), (96, 96, False)])
def test_a_barrier_waits_for_as_many_threads_as_it_names(count: int, late: int, wrong: bool) -> None:
    body = f"setp.ge.u32 %p1, %r1, {late};\n@%p1 ret;\nbar.sync 3, {count};"
    found = findings(body, array(96), block=96)
    assert {f.kind for f in found} == ({"deadlock"} if wrong else set())


@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3])
@pytest.mark.parametrize(
    ("thread", "between"), [(0, ""), (33, ""), (33, "bar.warp.sync -1;"), (0, "bar.sync 0;"), (33, "bar.sync 0;")]
)
def test_a_plain_store_among_atomics_is_a_race_in_any_order(seed: int | None, thread: int, between: str) -> None:
    """The storing thread's own atomic does not hide its store."""
    body = f"""mov.u32 %r3, s;\nmov.u32 %r4, 0;\nsetp.eq.u32 %p1, %r1, {thread};\n@%p1 st.shared.u32 [%r3], %r4;\n{between}
    atom.shared.add.u32 %r5, [%r3], 1;"""
    found = run(kernel(LOAD_POINTER + "\n" + body, "u64", shared=SHARED), "k", 1, 64, [array(64)], seed=seed)
    assert ("race" in {f.kind for f in found}) == ("bar.sync" not in between)
