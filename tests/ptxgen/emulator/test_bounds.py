"""Where memory ends: parameters, arrays that lie side by side, constants, a thread's local memory. And barriers that there are
not. Each beside the access that is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.emulator import Finding, run, uninitialised
from ptxgen.errors import ParseError
from tests.ptxgen.emulator.ptx import FIRST_LINE, kernel

POINTERS = "ld.param.u64 %rd1, [p0];\nld.param.u64 %rd2, [p1];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd3, %r1, 4;"
BODY = FIRST_LINE + 4  # the line after POINTERS


def only(found: list[Finding]) -> Finding:
    assert len(found) == 1, "\n".join(map(str, found))
    return found[0]


def array(n: int = 64) -> np.ndarray[Any, Any]:
    return np.zeros(n, np.uint32)


# Parameters
@pytest.mark.parametrize("offset", [8, 16, 64, -8, 9999999999999])
def test_a_load_beyond_a_parameter_is_found_and_reads_nothing(offset: int) -> None:
    x = np.full(1, 7, np.uint64)
    body = f"ld.param.u64 %rd1, [p0];\nld.param.u64 %rd2, [p1+{offset}];\nst.global.u64 [%rd1], %rd2;"
    f = only(run(kernel(body, "u64", "u64", "u64"), "k", 1, 1, [x, np.uint64(1), np.uint64(2)]))
    assert (f.kind, f.ptx_line, f.address) == ("out of bounds", FIRST_LINE + 1, 8 + offset)
    assert "outside of the parameter that it names" in f.message
    assert x[0] == (1 << 64) - 1  # neither the parameter behind nor the host's memory


@pytest.mark.parametrize("offset", [8, 64, 9999999999999])
def test_without_the_sanitiser_a_load_beyond_a_parameter_is_refused(offset: int) -> None:
    text = kernel(f"ld.param.u64 %rd2, [p0+{offset}];", "u64", "u64")
    with pytest.raises(ParseError, match=rf"p0 has 8 bytes; 8 bytes at {offset} are not among them") as caught:
        run(text, "k", 1, 1, [np.uint64(1), np.uint64(2)], sanitize=False)
    assert f"line {FIRST_LINE}" in str(caught.value)


@pytest.mark.parametrize("sanitize", [False, True])
def test_a_part_of_a_parameter_may_be_loaded(sanitize: bool) -> None:
    x = array(1)
    body = "ld.param.u64 %rd1, [p0];\nld.param.u32 %r1, [p1+4];\nst.global.u32 [%rd1], %r1;"
    assert not run(kernel(body, "u64", "u64"), "k", 1, 1, [x, np.uint64(5 << 32 | 6)], sanitize=sanitize)
    assert x[0] == 5


def test_an_address_in_a_register_stays_among_the_parameters() -> None:
    x = array(2)
    body = "ld.param.u64 %rd1, [p0];\nmov.b64 %rd2, p0;\nld.param.u32 %r1, [%rd2+{}];\nst.global.u32 [%rd1], %r1;"
    assert not run(kernel(body.format(8), "u64", "u32"), "k", 1, 1, [x, np.uint32(3)])
    assert x[0] == 3
    f = only(run(kernel(body.format(12), "u64", "u32"), "k", 1, 1, [x, np.uint32(3)]))
    assert (f.kind, f.address, f.ptx_line) == ("out of bounds", 12, FIRST_LINE + 2)


# Arrays side by side
def neighbours(n: int = 64) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Two arrays with no byte between them."""
    both = array(2 * n)
    return both[:n], both[n:]


def test_a_store_past_an_array_into_its_neighbour_is_found_and_not_done() -> None:
    x, y = neighbours()
    body = f"{POINTERS}\nadd.u64 %rd4, %rd1, %rd3;\nst.global.u32 [%rd4+4], %r1;"
    f = only(run(kernel(body, "u64", "u64"), "k", 1, 64, [x, y]))
    assert (f.kind, f.ptx_line, f.thread, f.address) == ("out of bounds", BODY + 1, (63, 0, 0), x.ctypes.data + 256)
    assert "0 bytes past the end of the array of p0 (256 bytes)" in f.message
    assert x.tolist() == [0, *range(63)]
    assert not y.any()


def test_a_load_before_an_array_from_its_neighbour_is_found() -> None:
    x, y = neighbours()
    f = only(run(kernel(f"{POINTERS}\nld.global.u32 %r2, [%rd2+-4];", "u64", "u64"), "k", 1, 1, [x, y]))
    assert (f.kind, f.address) == ("out of bounds", y.ctypes.data - 4)
    assert "before the start of the array of p1" in f.message


def test_neighbours_are_read_and_written_as_ever() -> None:
    x, y = neighbours()
    y[:] = range(64)
    body = f"{POINTERS}\nadd.u64 %rd4, %rd1, %rd3;\nadd.u64 %rd5, %rd2, %rd3;\nld.global.u32 %r2, [%rd5];"
    text = kernel(f"{body}\nst.global.u32 [%rd4], %r2;", "u64", "u64")
    y.flags.writeable = False
    assert not run(text, "k", 1, 64, [uninitialised(x), y])
    assert x.tolist() == list(range(64))
    f = only(run(kernel(f"{body}\nst.global.u32 [%rd5], %r2;", "u64", "u64"), "k", 1, 64, [x, y]))
    assert (f.kind, f.address) == ("read-only", y.ctypes.data)


def test_arrays_that_share_memory_share_it_still() -> None:
    both = array(128)
    x, y, other = both[:64], both[32:96], both[96:]
    body = f"{POINTERS}\nst.global.u32 [%rd1+128], %r1;\nld.global.u32 %r2, [%rd2];\nadd.u32 %r2, %r2, 7;"
    body += "\nst.global.u32 [%rd2], %r2;"
    assert not run(kernel(body, "u64", "u64", "u64"), "k", 1, 1, [x, y, other])
    assert both.tolist() == [0] * 32 + [7] + [0] * 95


def test_a_store_past_a_variable_into_the_next_one_is_found() -> None:
    variables = ".global .align 4 .b8 a[16];\n.global .align 4 .b8 b[16];"
    body = "mov.u64 %rd1, a;\nst.global.u32 [%rd1+{}], 1;"
    assert not run(kernel(body.format(12), shared=variables.replace("\n", " ")), "k", 1, 1, [])
    f = only(run(kernel(body.format(16), shared=variables.replace("\n", " ")), "k", 1, 1, []))
    assert f.kind == "out of bounds"
    assert "0 bytes past the end of the variable a (16 bytes)" in f.message


def test_a_generic_store_to_constant_memory_is_found() -> None:
    variables = ".const .align 4 .b8 c[16] = {1, 2, 3, 4}; .global .align 4 .b8 g[16];"
    body = "mov.u64 %rd1, {0};\ncvta.{1}.u64 %rd2, %rd1;\nld.u32 %r1, [%rd2];\n{2}"
    assert not run(kernel(body.format("c", "const", ""), shared=variables), "k", 1, 1, [])
    assert not run(kernel(body.format("g", "global", "st.u32 [%rd2], %r1;"), shared=variables), "k", 1, 1, [])
    for write in ("st.u32 [%rd2], %r1;", "atom.add.u32 %r2, [%rd2], 1;"):
        f = only(run(kernel(body.format("c", "const", write), shared=variables), "k", 1, 1, []))
        assert (f.kind, f.ptx_line) == ("read-only", FIRST_LINE + 3)
        assert "the variable c" in f.message


# Local memory
@pytest.mark.parametrize(("offset", "space"), [(16, "local"), (20, "local"), (-4, "local")])
def test_offsets_in_local_memory_are_those_of_the_thread(offset: int, space: str) -> None:
    body = f".local .align 16 .b8 l[16];\nmov.u32 %r3, l;\nmov.u32 %r2, 1;\nst.{space}.u32 [%r3+{offset}], %r2;"
    f = only(run(kernel(body), "k", 1, 64, []))
    assert (f.kind, f.address, f.count) == ("out of bounds", offset, 64)
    assert f"writes local[{offset:#x}..{offset + 4:#x}): the thread has 16 bytes" in f.message


def test_a_generic_address_of_local_memory_is_reported_as_local() -> None:
    body = ".local .align 16 .b8 l[16];\nmov.u64 %rd1, l;\ncvta.local.u64 %rd2, %rd1;\nld.u32 %r1, [%rd2+8];"
    f = only(run(kernel(f"setp.eq.u32 %p1, 0, 0;\nmov.u32 %r2, %tid.x;\n{body}"), "k", 1, 40, []))
    assert (f.kind, f.address) == ("uninitialised", 8)
    assert "reads local[0x8..0xc), which nothing wrote" in f.message


# Barriers
@pytest.mark.parametrize(
    ("barrier", "message"),
    [
        ("barrier.sync %r5", "waits at barrier 4294967295; a block has barriers 0 to 15"),
        ("barrier.sync.aligned 1, %r6", "waits for 63 threads; a barrier takes whole warps, multiples of 32"),
    ],
)
def test_a_barrier_that_no_block_has(barrier: str, message: str) -> None:
    body = f"mov.u32 %r5, -1;\nmov.u32 %r6, %ntid.x;\nsub.u32 %r6, %r6, 1;\n{barrier};"
    found = run(kernel(body), "k", 1, 64, [])
    f = only([one for one in found if message in one.message])
    assert (f.kind, f.ptx_line, f.count) == ("barrier", FIRST_LINE + 3, 64)


@pytest.mark.parametrize("operands", ["15", "1, 64", "%r5, %r6"])
def test_the_barriers_that_there_are(operands: str) -> None:
    body = f"mov.u32 %r5, 15;\nmov.u32 %r6, %ntid.x;\nbar.sync {operands};"
    assert not run(kernel(body), "k", 1, 64, [])
