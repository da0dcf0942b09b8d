"""What kernels print on the emulator: as the C library does, from the threads that come there, to whoever listens."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import numpy as np
import pytest

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.emulator import compile_module, run
from ptxgen.emulator.printing import formatted
from ptxgen.errors import ArgumentError, ParseError
from ptxgen.isa.printf import Conversion, pieces
from tests.ptxgen.dsl.writing import text

WHOLE = ("%d", "%i", "%5d|", "%-5d|", "%05d", "%+d", "% d", "%.3d", "%8.3d", "%08.3d", "%.0d", "%u", "%+u", "%x", "%#x",
         "%#010x", "%X", "%#X", "%o", "%#o", "%#.5o", "%#08o", "%-#8o|", "%hd", "%hhx", "%c", "%3c")  # fmt: skip
LONG = ("%lld", "%ld", "%llu", "%llx", "%20lld", "%-20llu|", "%#llo", "%+lld")
FLOAT = ("%f", "%F", "%e", "%E", "%g", "%G", "%.2f", "%10.3e", "%-12g|", "%+f", "% f", "%012.4f", "%.0f", "%#.0f", "%#g")


@pytest.mark.parametrize("form", WHOLE)
def test_whole_numbers_are_as_the_c_library_has_them(form: str) -> None:
    for value in (0, 1, -1, 65, 255, 12345, -12345, 2**31 - 1, -(2**31)):
        if "h" not in form and not (form.endswith("c") and not 0 < value < 128):
            assert as_here(form, struct.pack("<i", value)) == by_c(form, ctypes.c_int(value))


@pytest.mark.parametrize("form", LONG)
def test_long_numbers_are_as_the_c_library_has_them(form: str) -> None:
    for value in (0, 7, -7, 2**40, -(2**40), 2**63 - 1, -(2**63)):
        assert as_here(form, struct.pack("<q", value)) == by_c(form, ctypes.c_longlong(value))


@pytest.mark.parametrize("form", FLOAT)
def test_floats_are_as_the_c_library_has_them(form: str) -> None:
    for value in (0.0, -0.0, 1.0, -1.5, 0.1, 1e-7, 123456.789, 1e20, -1e300, float("inf"), float("-inf"), float("nan")):
        assert as_here(form, struct.pack("<d", value)) == by_c(form, ctypes.c_double(value))


def as_here(form: str, data: bytes) -> str:
    return "".join(formatted(part, data) if isinstance(part, Conversion) else part for part in pieces(form))


def by_c(form: str, value: object) -> str:
    buffer = ctypes.create_string_buffer(512)
    ctypes.CDLL(None).snprintf(buffer, ctypes.c_size_t(512), form.encode(), value)
    return buffer.value.decode()


def printed(ptx: str, *, block: int = 64, grid: int = 1, sanitize: bool = True) -> list[str]:
    """What each call of each thread prints."""
    texts: list[str] = []
    arrays = [np.arange(256, dtype=np.float32), np.zeros(256, np.uint32), np.zeros(256, np.float32)]
    assert run(ptx, "probe", grid, block, arrays, sanitize=sanitize, prints=texts.append) == []
    return texts


@pytest.mark.parametrize("sanitize", [True, False])
def test_the_threads_that_come_there_print_and_no_others(sanitize: bool) -> None:
    def body(k: KernelBuilder) -> None:
        i = k.tid.x
        with k.when((i & 15) == 3):
            k.print("%u: %.1f of %d\n", i, k.load(k.arg.x[i]), i > 20)
        with k.otherwise(), k.when(i == 40):
            k.print("forty\n")

    assert printed(text(body), sanitize=sanitize) == [
        "3: 3.0 of 0\n",
        "19: 19.0 of 0\n",
        "35: 35.0 of 1\n",
        "51: 51.0 of 1\n",
        "forty\n",
    ]


def test_a_loop_prints_in_each_pass_of_the_lanes_that_are_left() -> None:
    def body(k: KernelBuilder) -> None:
        for i in k.strided(k.tid.x, 3):
            k.print("%u at %u\n", k.tid.x, i)

    assert sorted(printed(text(body))) == ["0 at 0\n", "0 at 1\n", "0 at 2\n", "1 at 1\n", "1 at 2\n", "2 at 2\n"]


def test_blocks_print_one_after_the_other() -> None:
    def body(k: KernelBuilder) -> None:
        with k.when(k.tid.x == 0):
            k.print("%u", k.ctaid.x)

    assert "".join(printed(text(body), grid=9, sanitize=False)) == "012345678"


PREDICATED = """
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 status) vprintf (.param .b64 format, .param .b64 values);
.global .align 1 .b8 form[4] = {37, 117, 10, 0};
.func said(.param .b32 number)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    .local .align 8 .b8 values[8];
    .param .b64 a;
    .param .b64 b;
    .param .b32 c;
    ld.param.b32 %r0, [number];
    st.local.b32 [values], %r0;
    mov.u64 %rd0, form;
    cvta.global.u64 %rd1, %rd0;
    st.param.b64 [a], %rd1;
    mov.u64 %rd0, values;
    cvta.local.u64 %rd2, %rd0;
    st.param.b64 [b], %rd2;
    call (c), vprintf, (a, b);
    ret;
}
.visible .entry probe(.param .u64 x, .param .u64 n, .param .u64 y)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    .reg .pred %p<2>;
    .local .align 8 .b8 values[8];
    .param .b32 p0;
    .param .b64 a;
    .param .b64 b;
    .param .b32 c;
    mov.u32 %r0, %tid.x;
    st.param.b32 [p0], %r0;
    setp.eq.u32 %p0, %r0, 7;
    @%p0 call said, (p0);
    st.local.b32 [values], %r0;
    mov.u64 %rd0, form;
    cvta.global.u64 %rd1, %rd0;
    st.param.b64 [a], %rd1;
    mov.u64 %rd0, values;
    cvta.local.u64 %rd2, %rd0;
    st.param.b64 [b], %rd2;
    setp.gt.u32 %p1, %r0, 30;
    @!%p1 bra DONE;
    @%p1 call (c), vprintf, (a, b);
    ld.param.b32 %r1, [c];
    ld.param.u64 %rd3, [n];
    st.global.u32 [%rd3], %r1;
DONE:
    ret;
}
"""


@pytest.mark.parametrize("sanitize", [True, False])
def test_a_guarded_call_and_one_in_a_function_print_and_return_the_number_of_values(sanitize: bool) -> None:
    texts: list[str] = []
    arrays = [np.zeros(256, np.float32), np.zeros(256, np.uint32), np.zeros(256, np.float32)]
    run(PREDICATED, "probe", 1, 32, arrays, sanitize=sanitize, prints=texts.append)
    assert texts == ["7\n", "31\n"]
    assert arrays[1][0] == 1


def test_without_a_listener_it_is_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    arrays = [np.zeros(256, np.float32), np.zeros(256, np.uint32), np.zeros(256, np.float32)]
    run(text(lambda k: k.print("%c", 97)), "probe", 1, 32, arrays)
    assert capsys.readouterr().out == "a" * 32


def test_a_kernel_from_the_disk_prints_as_well(tmp_path: Path) -> None:
    for from_cache in (False, True):
        kernel = compile_module(text(lambda k: k.print("x")), cache_dir=tmp_path).kernel("probe")
        texts: list[str] = []
        kernel.launch(1, 3, bytes(24), prints=texts.append)
        assert (kernel.from_cache, texts) == (from_cache, ["x"] * 3)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_while_it_prints_ends_the_launch(error: type[BaseException]) -> None:
    def body(k: KernelBuilder) -> None:
        with k.loop() as loop:
            k.print("again\n")
            loop.break_if(k.tid.x > 99)

    def interrupted(said: str) -> None:
        raise error

    kernel = compile_module(text(body)).kernel("probe")
    with pytest.raises(error):
        kernel.launch(1, 32, bytes(24), prints=interrupted)
    texts: list[str] = []
    with pytest.raises(ValueError, match="enough"):
        kernel.launch(1, 32, bytes(24), prints=lambda said: texts.append(said) if len(texts) < 40 else stop())
    assert len(texts) == 40


def stop() -> None:
    raise ValueError("enough")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("st.param.b64 [a], %rd1;", "st.param.b64 [a], 4096;", "a string at 0x1000, where no variable"),
        ("st.param.b64 [b], %rd2;", "st.param.b64 [b], %rd1;", "which is no local memory"),
        ("{37, 117, 10, 0}", "{37, 110, 10, 0}", "a format that is not emulated: '%n'"),
    ],
    ids=["format", "values", "conversion"],
)
def test_what_a_strange_kernel_gives_vprintf_is_looked_at_first(old: str, new: str, said: str) -> None:
    arrays = [np.zeros(256, np.float32), np.zeros(256, np.uint32), np.zeros(256, np.float32)]
    with pytest.raises(ArgumentError, match=said):
        run(PREDICATED.replace(old, new), "probe", 1, 32, arrays, sanitize=False, prints=print)


def test_a_call_with_other_operands_is_refused_when_it_is_read() -> None:
    with pytest.raises(ParseError, match=r"vprintf takes two \.param variables"):
        compile_module(PREDICATED.replace("vprintf, (a, b);", "vprintf, (a);")).kernel("probe")
