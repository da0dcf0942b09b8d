"""The parameters of an entry: where they lie, and what each takes by its declared type."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgen.arrays import NUMPY
from ptxgen.emulator import run, uninitialised
from ptxgen.emulator.parse import parse
from ptxgen.errors import ArgumentError, ParseError
from ptxgen.target import Target
from ptxgen.toolchain.assemble import AssembleError, assemble
from ptxgen.types import BY_NAME, DType, Kind
from tests.ptxgen.emulator.elf import section

SCALARS = [f"{letter}{bits}" for bits in (8, 16, 32, 64) for letter in "usb"] + ["f16", "f32", "f64"]
STRUCTS = st.builds(
    lambda size, align: f".align {align} .b8 NAME[{size}]", st.integers(1, 64), st.sampled_from([1, 2, 4, 8, 16])
)
ARRAYS = st.builds(lambda type, count: f".{type} NAME[{count}]", st.sampled_from(SCALARS), st.integers(1, 8))
DECLARED = st.one_of(STRUCTS, STRUCTS, ARRAYS, st.sampled_from(SCALARS).map(".{} NAME".format), st.just(".b128 NAME"))


def entry(declared: list[str], body: str = "") -> str:
    parameters = ", ".join(f".param {one.replace('NAME', f's{i}')}" for i, one in enumerate(declared))
    return f".version 8.8\n.target sm_90\n.address_size 64\n.visible .entry k({parameters}) {{\n{body}\nret; }}\n"


def laid_out_by_the_assembler(text: str) -> list[tuple[int, int]]:
    """(offset, size) of each parameter: the attribute EIATTR_KPARAM_INFO of the machine code."""
    info, found, at = section(assemble(text, Target(90)).cubin, ".nv.info.k"), {}, 0
    while at < len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        if (form, attribute) == (4, 0x17):
            ordinal, offset, flags = struct.unpack_from("<HHI", info, at + 8)
            found[ordinal] = (offset, flags >> 18)
        at += 4 + (size if form == 4 else 0)
    return [found[ordinal] for ordinal in sorted(found)]


@settings(max_examples=20, deadline=None)
@given(st.lists(DECLARED, min_size=1, max_size=12))
def test_a_parameter_lies_where_the_assembler_puts_it(declared: list[str]) -> None:
    text = entry(declared)
    assert [(p.offset, p.size) for p in parse(text).functions["k"].parameters] == laid_out_by_the_assembler(text)


def test_the_alignment_after_ptr_is_of_the_memory_and_not_of_the_parameter() -> None:
    text = entry([".u64 .ptr .global .align 16 NAME", ".u8 NAME", ".u64 .ptr .global .align 16 NAME", ".align 1 .u32 NAME"])
    assert [(p.offset, p.size) for p in parse(text).functions["k"].parameters] == [(0, 8), (8, 1), (16, 8), (24, 4)]
    assert laid_out_by_the_assembler(text) == [(0, 8), (8, 1), (16, 8), (24, 4)]


@pytest.mark.parametrize(
    "declared", [".v4 .f32 s0", ".b8 s0[2][3]", ".b8 s0[]", ".f16x2 s0", ".pred s0", ".bf16 s0", ".b8 s0[0]"]
)
def test_a_parameter_that_no_entry_has_is_refused(declared: str) -> None:
    with pytest.raises(ParseError, match=r"s0|bf16|at least one"):
        parse(entry([declared]))
    with pytest.raises(AssembleError):
        assemble(entry([declared]), Target(90))


def value_of(type: DType, generator: np.random.Generator) -> np.generic:
    """A NumPy scalar with random bits that a parameter of this type takes."""
    scalar: np.generic = np.frombuffer(generator.bytes(type.bytes), NUMPY[type])[0]
    return scalar


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.lists(st.one_of(STRUCTS, st.sampled_from(SCALARS).map(".{} NAME".format)), min_size=1, max_size=6), st.integers(0, 9))
def test_a_kernel_gets_the_bytes_of_every_argument(declared: list[str], seed: int) -> None:
    generator = np.random.default_rng(seed)
    args: list[Any] = []
    for one in declared:
        size = re.search(r"\[(\d+)\]", one)
        if size is None:
            args.append(value_of(BY_NAME[one.split()[0][1:]], generator))
        else:
            data = generator.bytes(int(size[1]))
            forms = (data, np.frombuffer(data, np.uint8), np.void(data), np.frombuffer(data, f"V{len(data)}")[0])
            args.append(forms[seed % 4])
    wanted = b"".join(one if isinstance(one, bytes) else one.tobytes() for one in args)
    copies, at = [], 0
    for i, one in enumerate(args):
        for offset in range(len(one) if isinstance(one, bytes) else one.nbytes):
            copies.append(f"ld.param.u8 %r, [s{i}+{offset}]; st.global.u8 [%d+{at}], %r;")
            at += 1
    body = ".reg .b64 %d; .reg .b32 %r; ld.param.u64 %d, [s{}];\n{}".format(len(args), "\n".join(copies))
    out = np.zeros(len(wanted), np.uint8)
    assert not run(entry([*declared, ".u64 NAME"], body), "k", 1, 1, [*args, out])
    assert out.tobytes() == wanted


@pytest.mark.parametrize("name", SCALARS)
def test_a_scalar_takes_numbers_of_its_size_and_kind_alone(name: str) -> None:
    type, text = BY_NAME[name], entry([f".{name} NAME"])
    numbers = [np.zeros(1, d)[0] for d in ("u1", "i1", "?", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8", "V8", "c8")]
    for number in numbers:
        same_size = number.dtype.itemsize == type.bytes
        suits = {"f": type.is_float, "V": False, "c": False}.get(number.dtype.kind, not type.is_float)
        if same_size and (suits or type.kind is Kind.BITS):
            run(text, "k", 1, 1, [number])
        else:
            with pytest.raises(ArgumentError, match=rf"k: s0 is \.{name}, {type.bytes} bytes; got {number.dtype}"):
                run(text, "k", 1, 1, [number])
    if type.bits < 64 or type.is_float:
        with pytest.raises(ArgumentError, match=rf"k: s0 is \.{name} and got an array"):
            run(text, "k", 1, 1, [np.zeros(1, NUMPY[type])])


PAIR = np.dtype([("x", np.float32), ("n", np.int64)], align=True)


@pytest.mark.parametrize(
    ("declared", "argument", "message"),
    [
        (
            ".b8 NAME[8]",
            np.zeros(3, np.uint32),
            "s0 is .b8[8], which is passed by value and has 8 bytes; got 12 bytes",
        ),
        (".b8 NAME[8]", np.zeros((), PAIR)[()], "got 16 bytes of a struct"),
        (".b8 NAME[8]", b"1234567", "got 7 bytes"),
        (".b8 NAME[8]", 7, "got int, allowed are bytes, NumPy arrays and NumPy scalars"),
        (".b8 NAME[8]", uninitialised(np.zeros(8, np.uint8)), "so nothing is to be said of its memory"),
        (".b8 NAME[8]", np.zeros((8, 2), np.uint8)[:, 0], "not C-contiguous"),
        (".b8 NAME[8]", np.zeros(1, ">u8"), "stand the other way round"),
        (".u64 NAME", np.array([None]), "an array of Python objects"),
        (".u64 NAME", 7, "s0 is .u64 and got int; NumPy arrays and NumPy scalars are allowed"),
        (".u32 NAME", 7, "s0 is .u32 and got int; NumPy scalars are allowed"),
        (".u64 NAME[1]", np.uint32(1), "s0 is .u64[1], which is passed by value and has 8 bytes; got 4 bytes of uint32"),
    ],
)
def test_an_argument_that_does_not_suit_its_parameter_is_refused_by_name(declared: str, argument: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        run(entry([declared]), "k", 1, 1, [argument])


def test_a_struct_of_8_bytes_is_no_address_and_an_array_behind_one_is_written() -> None:
    body = """.reg .b64 %d; .reg .f32 %f<3>; ld.param.u64 %d, [s1]; ld.param.v2.f32 {%f0, %f1}, [s0]; add.f32 %f2, %f0, %f1;
    st.global.f32 [%d], %f2;"""
    for pair in (np.array([3, 4], np.float32), np.array((3, 4), "f4,f4")[()], np.array([3, 4], "f4").tobytes()):
        out = np.zeros(1, np.float32)
        assert not run(entry([".align 8 .b8 NAME[8]", ".s64 NAME"], body), "k", 1, 1, [pair, out])
        assert out[0] == 7
