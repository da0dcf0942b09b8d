"""What the registers of an instruction hold is what its text says: over all rows, and every type of the right width."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.errors import TypeMismatch
from ptxgen.isa.instructions import ROWS
from ptxgen.isa.operand_spec import OperandKind, element_of
from ptxgen.isa.operands import Address, AnyOperand, Immediate, LabelRef, Register, Symbol, Vector
from ptxgen.isa.table import Instruction, OperandPlace
from ptxgen.target import HOPPER, Target
from ptxgen.types import ALL, B32, BF16X2, BY_NAME, F16, F16X2, F32, S32, TF32, U32, U64, DType, Kind
from tests.ptxgen.dsl.writing import lines_of, written
from tests.ptxgen.isa.combinations import sensible

OTHERS: dict[OperandKind, AnyOperand] = {
    OperandKind.ADDRESS: Address(Register("%a", U64)), OperandKind.LABEL: LabelRef("there"),
    OperandKind.SYMBOL: Symbol("name"), OperandKind.CONSTANT: Immediate(1, S32),
}  # fmt: skip


def filled(row: Instruction, modifiers: Mapping[str, str]) -> dict[str, AnyOperand]:
    """Operands that the row takes: of each place the first type that is allowed, plain bits included."""
    operands: dict[str, AnyOperand] = {}
    for place in row.operands:
        if place.spec.kind is not OperandKind.VALUE:
            operands[place.name] = OTHERS[place.spec.kind]
        elif place.spec.like:
            operands[place.name] = operands[place.spec.like]
        else:
            operands[place.name] = of_type(place, modifiers, place.spec.allowed(modifiers)[0])
    return operands


def of_type(place: OperandPlace, modifiers: Mapping[str, str], type: DType) -> AnyOperand:
    elements = tuple(Register(f"%{place.name}{i}", type) for i in range(place.spec.length(modifiers)))
    return Vector(elements) if place.spec.in_braces(modifiers) else elements[0]


def is_named(type: DType, place: OperandPlace, modifiers: Mapping[str, str], words: set[str]) -> bool:
    """Whether the text says what the register holds: its type, that of its elements, or bits of no type. Bytes are in any
    integer; which they are the author says."""
    if type.kind is Kind.BITS or type.name in words or element_of(type) in words:
        return True
    if place.spec.holds:
        return type.is_integer and BY_NAME[modifiers.get(place.spec.holds_modifier, place.spec.holds)].is_integer
    return any(bits.name in words for bits in ALL if bits.kind is Kind.BITS)


def places() -> Iterator[tuple[Instruction, Mapping[str, str], OperandPlace]]:
    """Every place for values of every row, with each combination of modifiers that makes another place of it."""
    seen = set()
    for row in ROWS:
        for modifiers in sensible(row):
            for place in row.operands:
                spec = place.spec
                if spec.kind is not OperandKind.VALUE or spec.like:
                    continue
                key = (id(row), place.name, spec.allowed(modifiers), spec.held(modifiers), spec.length(modifiers))
                if key not in seen:
                    seen.add(key)
                    yield row, modifiers, place


@pytest.mark.slow
def test_registers_of_every_row_are_named_by_its_text_or_refused_by_both_types() -> None:
    checked = 0
    for row, modifiers, place in places():
        operands, allowed, opcode = filled(row, modifiers), place.spec.allowed(modifiers), row.opcode(modifiers)
        assert row.problems(modifiers, operands, strict=True) == []
        like = [other.name for other in row.operands if other.spec.like == place.name]
        for type in ALL:
            least = min(want.bits for want in allowed)
            if type in allowed or not (type.bits == least or (place.spec.wider and type.bits > least)):
                continue
            given = dict.fromkeys((place.name, *like), of_type(place, modifiers, type))
            problems = row.problems(modifiers, {**operands, **given}, strict=True)
            checked += 1
            if not problems and type.bits > least:
                assert not type.is_float, f"{opcode}: {place.name} takes {type}"
            elif not problems:
                assert is_named(type, place, modifiers, set(opcode.split("."))), f"{opcode}: {place.name} takes {type} unnamed"
            else:
                assert f"got {type}" in problems[0], (opcode, problems)
                assert any(str(one) in problems[0] for one in allowed), (opcode, problems)
    assert checked > 5000


@pytest.mark.parametrize(
    ("type", "a", "b", "text"),
    [
        (F16X2, 4, 2, "m16n8k16.row.col.f32.f16.f16.f32"), (BF16X2, 4, 2, "m16n8k16.row.col.f32.bf16.bf16.f32"),
        (TF32, 4, 2, "m16n8k8.row.col.f32.tf32.tf32.f32"), (F16X2, 2, 1, "m16n8k8.row.col.f32.f16.f16.f32"),
        (BF16X2, 2, 1, "m16n8k8.row.col.f32.bf16.bf16.f32"), (TF32, 2, 1, "m16n8k4.row.col.f32.tf32.tf32.f32"),
    ],
)  # fmt: skip
def test_registers_choose_the_product(type: DType, a: int, b: int, text: str) -> None:
    assert product(type, a, b).endswith(f"{text} ")


def product(type: DType, a: int = 4, b: int = 2, *, b_register: DType | None = None, **modifiers: Any) -> str:
    """The opcode of a product of registers of these types, with the blank after it."""

    def body(k: KernelBuilder) -> None:
        left, right = (k.bits(k.tid.x, one) for one in (type, b_register or type))
        k.mma([left] * a, [right] * b, [k.f32(0.0)] * 4, **modifiers)

    (text,) = (line for line in lines_of(body, target=Target(80)) if line.startswith("mma"))
    return text[: text.index(" ") + 1]


@pytest.mark.parametrize(
    ("registers", "modifiers", "said"),
    [
        (
            (B32,),
            {},
            "mma does not take (4 x b32, 2 x b32, 4 x f32): needs a_type=, one of f16, bf16, tf32, u8, s8; needs b_type=",
        ),
        ((U32,), {"a_type": "f16", "b_type": "f16"}, "operand a holds f16, so it must be f16x2 or b32, got u32"),
        ((F32,), {"a_type": "tf32", "b_type": "tf32"}, "operand a holds tf32, so it must be tf32 or b32, got f32"),
        ((BF16X2,), {"a_type": "f16", "b_type": "f16"}, "operand a holds f16, so it must be f16x2 or b32, got bf16x2"),
        ((F16X2, BF16X2), {}, "a and b are of one type, not f16 and bf16"),
        ((F16X2,), {"a_type": "s8", "b_type": "s8"}, "operand a holds s8, so it must be u32 or s32 or b32, got f16x2"),
    ],
)
def test_registers_that_choose_no_product_are_refused(
    registers: tuple[DType, ...], modifiers: dict[str, Any], said: str
) -> None:
    with pytest.raises(TypeMismatch, match=re.escape(said)):
        product(registers[0], b_register=registers[-1], **modifiers)


def test_plain_bits_are_what_the_author_says() -> None:
    assert ".bf16.bf16." in product(B32, a_type="bf16", b_type="bf16")
    assert ".bf16.bf16." in product(BF16X2, b_register=B32, b_type="bf16")


def test_a_product_of_a_warpgroup_takes_registers_of_its_type_alone() -> None:
    def body(k: KernelBuilder) -> None:
        a = k.bits(k.tid.x, BF16X2)
        k.wgmma([k.f32(0.0)] * 4, [a] * 4, k.u64(0), F16)

    with pytest.raises(TypeMismatch, match="operand a holds f16, so it must be f16x2 or b32, got bf16x2"):
        written(body, target=HOPPER)


def test_a_number_becomes_tf32_by_its_type() -> None:
    def body(k: KernelBuilder) -> None:
        assert k.convert(k.load(k.arg.x[0]), TF32).type == TF32

    assert any(line.startswith("cvt.rna.tf32.f32 ") for line in lines_of(body, target=Target(80)))
