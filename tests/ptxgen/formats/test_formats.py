"""What the formats say of themselves, against gguf-py."""

from __future__ import annotations

import pickle

import gguf
import numpy as np
import pytest

from ptxgen.errors import ArgumentError
from ptxgen.formats import ALL, FORMATS, Format, find, of_type

every_format = pytest.mark.parametrize("format", ALL.values(), ids=str)


@pytest.mark.parametrize("format", FORMATS.values(), ids=str)
def test_block_size_and_type_id_are_those_of_gguf(format: Format) -> None:
    kind = gguf.GGMLQuantizationType[format.name]
    assert kind.value == format.ggml_type
    assert gguf.GGML_QUANT_SIZES[kind] == (format.block, format.block_bytes)


@every_format
def test_groups_columns_and_depth_make_a_block(format: Format) -> None:
    assert format.groups * format.columns * format.depth == format.block


@every_format
def test_random_blocks_have_finite_weights_of_the_usual_spread(format: Format) -> None:
    k = 2048
    raw = format.random_blocks(np.random.default_rng(0), 40, k)
    weights = format.dequantize(raw)
    assert raw.shape == (40, format.row_bytes(k))
    assert weights.shape == (40, k)
    assert np.isfinite(weights).all()
    assert 0.7 < weights.std() * k**0.5 < 1.5


@pytest.mark.parametrize(
    ("name", "codes"), [("Q4_0", 16), ("Q4_1", 16), ("Q5_0", 32), ("Q5_1", 32), ("Q8_0", 256), ("IQ4_NL", 16)]
)
def test_every_code_occurs_in_random_blocks(name: str, codes: int) -> None:
    format = find(name)
    blocks = format.random_blocks(np.random.default_rng(0), 1000, 32)
    for scale in format.scales:  # d = 1 and m = 0 make the weights the codes
        blocks[:, scale.offset : scale.offset + 2] = np.float16(scale.offset == 0).reshape(1).view(np.uint8)
    assert len(np.unique(format.dequantize(blocks))) == codes


def test_q1_0_is_d_where_the_bit_of_a_value_is_set_and_else_minus_d() -> None:
    """gguf-py does not decode it."""
    block = np.zeros(18, np.uint8)
    block[:2], block[2], block[17] = np.float16(0.5).reshape(1).view(np.uint8), 0b101, 0x80
    assert np.flatnonzero(find("Q1_0").dequantize(block) == 0.5).tolist() == [0, 2, 127]
    assert (np.abs(find("Q1_0").dequantize(block)) == 0.5).all()


def test_format_is_found_by_name_in_any_case_and_by_type_id() -> None:
    assert find("q4_k") is FORMATS["Q4_K"] is of_type(12) is find(FORMATS["Q4_K"])


def test_unknown_names_and_types_name_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match=r"'Q4K'; did you mean Q4_K.*known formats: F32, F16, Q4_0.*Q6_K_ALIGNED"):
        find("Q4K")
    with pytest.raises(ArgumentError, match=r"GGML type 250 has no format here; known types: F32 \(0\), F16 \(1\)"):
        of_type(250)


def test_row_that_is_not_whole_blocks_is_refused() -> None:
    with pytest.raises(ArgumentError, match="Q4_K rows have a positive multiple of 256 values, got 576"):
        find("Q4_K").row_bytes(576)


@every_format
def test_a_copied_format_is_the_same_object(format: Format) -> None:
    assert pickle.loads(pickle.dumps(format)) is format
