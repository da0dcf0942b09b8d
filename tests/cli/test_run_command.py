"""`ptxgen run`: arguments from words, what the kernel did, what the sanitiser found."""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgen.commands.arguments import DTYPES, parse_argument
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.errors import PtxGenError
from ptxgen.kernels.registry import find
from ptxgen.toolchain.module import emit
from tests.cli.invoke import facts, invoke, refused
from tests.ptxgen.dsl.writing import text
from tests.ptxgen.emulator.ptx import FIRST_LINE, kernel

ADD = ("--arg", "f32[5]=1,2,3,4,5", "--arg", "f32[5]=10")


@pytest.fixture
def add(tmp_path: Path) -> Path:
    """PTX of x += delta on five elements, with the author's lines."""
    path = tmp_path / "add.ptx"
    path.write_text(emit(find("residual_add").make(n=5), lines=True).text)
    return path


def test_an_array_is_written_in_place_and_its_head_shown(add: Path) -> None:
    x, delta = facts("ptxgen", "run", add, "--block", "256", *ADD)["arguments"]
    assert x == {"name": "x", "dtype": "float32", "shape": [5], "head": [11.0, 12.0, 13.0, 14.0, 15.0]}
    assert delta["head"] == [10.0] * 5
    assert "11 12 13 14 15" in invoke("ptxgen", "run", add, "--block", "256", *ADD).stdout


@pytest.mark.parametrize("which", ["0", "x"])
def test_an_array_is_saved_by_index_or_name(add: Path, tmp_path: Path, which: str) -> None:
    words = ("run", add, "--block", "256", "--arg", "f32[5]=arange", "--arg", f"@{tmp_path}/delta.npy")
    np.save(tmp_path / "delta.npy", np.full(5, 0.5, np.float32))
    assert invoke("ptxgen", *words, "--save", f"{which}={tmp_path}/sum.npy").exit_code == 0
    saved = np.load(tmp_path / "sum.npy")
    assert saved.dtype == np.float32
    assert saved.tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]


def test_an_array_that_is_too_short_is_a_finding_with_the_authors_line_and_exit_code_1(add: Path) -> None:
    words = ("run", add, "--block", "256", "--arg", "f32[4]=zeros", "--arg", "f32[5]=ones")
    result = invoke("ptxgen", *words)
    assert result.exit_code == 1
    assert "out" in result.stdout
    assert "element.py:" in result.stdout
    assert facts("ptxgen", *words, exit_code=1)["findings"][0]["ptx_line"] > 0


@pytest.mark.parametrize("sanitize", ["--sanitize", "--no-sanitize"])
def test_a_kernel_that_cannot_finish_is_a_finding_with_or_without_the_sanitiser(tmp_path: Path, sanitize: str) -> None:
    path = tmp_path / "stuck.ptx"
    path.write_text(kernel("trap;"))
    result = invoke("ptxgen", "run", path, sanitize)
    assert (result.exit_code, result.stdout.splitlines()[0]) == (1, "trap: k, block (0,0,0) executes trap")
    (finding,) = facts("ptxgen", "run", path, sanitize, exit_code=1)["findings"]
    assert (finding["kind"], finding["ptx_line"]) == ("trap", FIRST_LINE)


@pytest.mark.parametrize("sanitize", ["--sanitize", "--no-sanitize"])
def test_an_endless_loop_is_told_when_its_time_is_over(tmp_path: Path, sanitize: str) -> None:
    path = tmp_path / "spin.ptx"
    path.write_text(kernel("ld.param.u64 %rd1, [p0];\nL1:\natom.global.cas.b32 %r3, [%rd1], 1, 2;\nbra L1;", "u64"))
    words = ("run", path, "--block", "1024", "--arg", "u32[1]=0", sanitize)
    started = time.monotonic()
    result = invoke("ptxgen", *words, "--timeout", "0.2")
    assert time.monotonic() - started < 60
    assert result.exit_code == 1
    assert result.stdout.startswith("timeout: k, block (0,0,0) was still running after 0.")
    assert result.stderr == "ptxgen: the launch was stopped after 0.2 seconds; --timeout allows more\n"


def test_the_files_that_a_text_names_are_read_only_where_their_lines_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("the first line\n")
    path = tmp_path / "k.ptx"
    path.write_text(kernel(".loc 1 1 0\ntrap;", shared=f'.file 1 "{tmp_path}/secret"'))
    assert invoke("ptxgen", "run", path).stdout.splitlines()[-1] == f"  {tmp_path}/secret:1"
    assert facts("ptxgen", "run", path, exit_code=1)["findings"][0]["source"] == ""
    assert "the first line" in invoke("ptxgen", "run", path, "--source").stdout


def test_reading_memory_that_nothing_wrote_is_a_finding(add: Path) -> None:
    assert invoke("ptxgen", "run", add, "--block", "256", "--arg", "f32[5]=out", "--arg", "f32[5]=ones").exit_code == 1


def test_without_the_sanitiser_nothing_is_found(add: Path) -> None:
    words = ("run", add, "--block", "256", "--arg", "f32[5]=out", "--arg", "f32[5]=ones", "--no-sanitize")
    assert facts("ptxgen", *words)["arguments"][0]["head"] == [1.0] * 5


def test_values_that_json_has_no_word_for_are_text(add: Path) -> None:
    words = ("run", add, "--block", "256", "--arg", "f32[5]=nan,inf,-inf,1,2", "--arg", "f32[5]=0")
    assert facts("ptxgen", *words)["arguments"][0]["head"] == ["nan", "inf", "-inf", 1.0, 2.0]


def test_a_warp_order_does_not_change_a_right_kernel(add: Path) -> None:
    heads = [facts("ptxgen", "run", add, "--block", "256", *ADD, "--seed", seed)["arguments"][0]["head"] for seed in (1, 2)]
    assert heads[0] == heads[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--entry", "sub"), "there is no entry 'sub'; the file has residual_add"),
        (("--arg", "f32[5]"), "--arg f32[5]: neither TYPE:VALUE nor TYPE[SHAPE]=SOURCE nor {FIELD;FIELD} nor @FILE.npy"),
        (("--arg", "float[5]=ones"), "--arg float[5]=ones: unknown type 'float'; known: u8, u16, u32"),
        (("--arg", "f32[0]=ones"), "the shape is '0'"),
        (("--arg", "f32[-3]=ones"), "the shape is '-3'"),
        (("--arg", "f32[5]=one"), "'one' is not a number; a source is zeros, ones, arange"),
        (("--arg", "f32[5]=random:x"), "the seed is 'x'; it must be a whole number"),
        (("--arg", "f32[5]=1,2"), "2 values for a shape of 5 elements"),
        (("--arg", "f32[9999999999999999999]=ones"), "--arg f32[9999999999999999999]=ones: "),
        (("--arg", f"f32[{'9' * 5000}]=ones"), "whole numbers from 1 to 9999999999999999999"),
        (("--arg", f"u32:{'9' * 5000}"), "is not a whole number that fits"),
        (("--arg", f"u32:0x{'9' * 5000}"), "does not fit; allowed: 0 to 4294967295"),
        (("--arg", f"u32[5]=random:{'9' * 5000}"), "it must be a whole number of up to 100 digits"),
        (("--save", f"{'9' * 5000}=y.npy", *ADD), "there are 0 to 1, or x, delta"),
        (("--arg", "u8:256"), "--arg u8:256: 256 does not fit; allowed: 0 to 255"),
        (("--arg", "u32:1.5"), "'1.5' is not a whole number"),
        (("--arg", "@nowhere.npy"), "nowhere.npy: No such file or directory"),
        (("--save", "y=y.npy", *ADD), "no argument 'y'; there are 0 to 1, or x, delta"),
        (("--save", "0", *ADD), "--save 0 is not of the form ARG=FILE.npy"),
        (("--arg", "f32[5]=ones"), "residual_add"),
        ((*ADD, "--arg", "u32:1"), "residual_add"),
        ((*ADD, "--block", "2048"), "2048"),
    ],
)
def test_wrong_words_are_one_clear_line(add: Path, words: tuple[str, ...], said: str) -> None:
    assert said in refused("ptxgen", "run", add, *words)


@pytest.mark.parametrize(
    "words",
    [
        ("--grid", "0x4"),
        ("--grid", "9" * 5000),
        ("--grid", "1,2,3,4"),
        ("--block", ""),
        ("--shared", "-1"),
        ("--seed", "-1"),
        ("--timeout", "0"),
    ],
)
def test_wrong_numbers_are_usage_errors(add: Path, words: tuple[str, ...]) -> None:
    assert invoke("ptxgen", "run", add, *ADD, *words).exit_code == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "k.ptx"),
        (b"\xff\xfe", "k.ptx: not PTX: byte 0 is not ASCII"),
        (b".version 7.8\n.target sm_90\n.address_size 64\nnonsense\n", "k.ptx: ptx line 4"),
        (b".version 7.8\n.target sm_90\n.address_size 64\n", "k.ptx: name the kernel with --entry; the file has none"),
    ],
)
def test_a_file_that_is_no_ptx_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "k.ptx").write_bytes(content)
    assert said in refused("ptxgen", "run", tmp_path / "k.ptx")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert refused("ptxgen", "run", tmp_path / "k.ptx") == f"{tmp_path}/k.ptx: No such file or directory"


def test_a_file_of_another_type_or_kind_is_refused(add: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "doubles.npy", np.zeros(5))
    np.savez(tmp_path / "several.npz", a=np.zeros(5))
    np.save(tmp_path / "objects.npy", np.array([None]), allow_pickle=True)
    (tmp_path / "empty.npy").write_bytes(b"")
    assert "the file holds float64, not float32" in refused("ptxgen", "run", add, "--arg", f"f32[5]=@{tmp_path}/doubles.npy")
    assert "holds several arrays" in refused("ptxgen", "run", add, "--arg", f"@{tmp_path}/several.npz")
    assert "not a .npy file of numbers" in refused("ptxgen", "run", add, "--arg", f"@{tmp_path}/objects.npy")
    assert "not a .npy file of numbers" in refused("ptxgen", "run", add, "--arg", f"@{tmp_path}/empty.npy")


@given(
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.sampled_from(("zeros", "random:3", "arange")),
)
def test_an_array_has_the_type_and_shape_that_its_word_says(name: str, shape: list[int], source: str) -> None:
    value = parse_argument(f"{name}[{','.join(map(str, shape))}]={source}").value
    assert (value.dtype, value.shape) == (DTYPES[name], tuple(shape))
    assert value.dtype.itemsize * 8 == int(name[1:])
    assert value.size == math.prod(shape)


@given(st.text(max_size=30))
def test_any_word_is_an_argument_or_an_error_of_the_package(word: str) -> None:
    with contextlib.suppress(PtxGenError):
        parse_argument(word)


def test_blocks_may_wait_for_each_other_if_told_so(tmp_path: Path) -> None:
    """Block 0 waits for block 1."""
    path = tmp_path / "waits.ptx"
    path.write_text(
        kernel(
            "ld.param.u64 %rd1, [p0];\nmov.u32 %r2, %ctaid.x;\nsetp.eq.u32 %p1, %r2, 0;\n@%p1 bra WAITS;\n"
            "st.relaxed.gpu.u32 [%rd1], 7;\nret;\nWAITS:\nnanosleep.u32 20;\nld.relaxed.gpu.u32 %r4, [%rd1];\n"
            "setp.eq.u32 %p2, %r4, 0;\n@%p2 bra WAITS;",
            "u64",
        )
    )
    words = ("ptxgen", "run", path, "--grid", "2", "--arg", "u32[1]=zeros")
    assert facts(*words, "--cooperative")["arguments"][0]["head"] == [7]
    assert "makes no progress" in invoke(*words).stdout


@pytest.mark.parametrize("as_json", [False, True])
def test_what_a_kernel_prints_comes_first_and_beside_json_on_stderr(tmp_path: Path, as_json: bool) -> None:
    path = tmp_path / "prints.ptx"
    path.write_text(text(prints, block=1))
    words = [word for name in ("f32", "u32", "f32") for word in ("--arg", f"{name}[256]=zeros")]
    result = invoke("ptxgen", "run", path, "--grid", "2", "--block", "1", *words, *(["--json"] if as_json else []))
    assert result.exit_code == 0, result.output
    assert (result.stderr if as_json else result.stdout).startswith("block 0\nblock 1\n")
    assert as_json == (result.stdout[0] == "{")


def prints(k: KernelBuilder) -> None:
    k.print("block %u\n", k.ctaid.x)


BY_VALUE = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out, .param .align 8 .b8 s[32], .param .f16 h) {
.reg .b64 %d, %b; .reg .b16 %h;
ld.param.u64 %d, [out]; ld.param.b64 %b, [s]; st.global.b64 [%d], %b; ld.param.b64 %b, [s+8]; st.global.b64 [%d+8], %b;
ld.param.b64 %b, [s+16]; st.global.b64 [%d+16], %b; ld.param.b64 %b, [s+24]; st.global.b64 [%d+24], %b;
ld.param.b16 %h, [h]; st.global.b16 [%d+32], %h; ret; }
"""
IN_C = bytes.fromhex("070000000000c03f0000000000000000feffffffffffffff0900010002000000")
"""{uint8_t 7; float[2] 1.5, 0; int64_t -2; uint16_t[3] 9, 1, 2}"""


@pytest.mark.parametrize(
    "struct",
    [
        f"b8[32]=hex:{IN_C.hex()}",
        "{u8:7;f32[2]=1.5,0;s64:-2;u16[3]=9,1,2}",
        "{ u8:7; {f32:1.5; f32:0}; s64:-2; {u16:9; u16[2]=1,2} }",
        "u64[4]=0x3fc0000000000007,0,0xfffffffffffffffe,0x200010009",
        "@FOLDER/struct.npy",
    ],
)
def test_a_struct_by_value_is_given_by_bytes_fields_or_an_array_of_its_size(struct: str, tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(BY_VALUE)
    np.save(tmp_path / "struct.npy", np.frombuffer(IN_C, np.uint32))
    words = ("--arg", "u16[17]=zeros", "--arg", struct.replace("FOLDER", str(tmp_path)), "--arg", "f16:1")
    assert invoke("ptxgen", "run", tmp_path / "k.ptx", *words, "--save", f"0={tmp_path}/out.npy").exit_code == 0
    assert np.load(tmp_path / "out.npy").tobytes() == IN_C + bytes.fromhex("003c")


@pytest.mark.parametrize(
    ("struct", "said"),
    [
        ("{u32:3;f32:1}", "k: s is .b8[32], which is passed by value and has 32 bytes; got 8 bytes of a struct"),
        ("u64[5]=zeros", "has 32 bytes; got 40 bytes of uint64"),
        ("b8[32]=out", "so nothing is to be said of its memory"),
        ("b8[32]=hex:00", "1 bytes for an array of 32 bytes"),
        ("b8[1]=hex:0x1", "after hex: stand two hexadecimal digits for each byte"),
        ("{u32:3;}", "a struct is written {FIELD;FIELD}, such as {u32:3;f32[2]=1,2}"),
        ("{u32:3}}", "a struct is written {FIELD;FIELD}"),
        ("{u32[2]=out}", "u32[2]=out: a field has a value"),
        ("{" * 5000, "a struct is written {FIELD;FIELD}"),
        ("{u32:x}", "'x' is not a whole number"),
    ],
)
def test_a_struct_of_another_size_or_without_its_fields_is_refused(struct: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(BY_VALUE)
    assert said in refused("ptxgen", "run", tmp_path / "k.ptx", "--arg", "u16[17]=zeros", "--arg", struct, "--arg", "f16:1")


def test_a_struct_is_shown_by_its_fields(tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(BY_VALUE)
    words = ("--arg", "u16[17]=zeros", "--arg", "{u8:7;f32[2]=1.5,0;s64:-2;u16[3]=9,1,2}", "--arg", "f16:1")
    struct = facts("ptxgen", "run", tmp_path / "k.ptx", *words)["arguments"][1]
    assert struct == {"name": "s", "dtype": "struct of 32 bytes", "shape": [], "head": [7, 1.5, 0, -2, 9, 1, 2]}
