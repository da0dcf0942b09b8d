"""Attention of one token in one launch: a short sequence has the bits of incremental_attention, of a long one the last block
puts the parts together, in every order of the blocks, and leaves the counters zeros."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.contiguous_attention import ContiguousAttention
from ptxgen.kernels.attention.int8_planes import Int8PlanesOutput
from ptxgen.kernels.attention.suited import splits_for
from ptxgen.kernels.attention.token_split import LastBlock, OneBlock
from ptxgen.kernels.quantize.int8_planes import quantize
from ptxgen.kernels.registry import find
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels.checking import check, run

SHORT = 64


def made(max_len: int = 230, **shape: int) -> ContiguousAttention:
    sizes = {"heads": 3, "kv_heads": 1, "head_dim": 64, "splits": 4, "least": 32, "short": SHORT, "digits": 2, **shape}
    kernel = find("grouped_attention_digits_indirect").make(max_len=max_len, **sizes)
    assert isinstance(kernel, ContiguousAttention)
    return kernel


def at(kernel: ContiguousAttention, length: int) -> dict[str, Any]:
    """Random arguments; what is past the length is NaN."""
    rng = np.random.default_rng(length)
    arguments = kernel.inputs(rng)
    for name in ("k_cache", "v_cache"):
        arguments[name] = rng.normal(size=arguments[name].shape).astype(np.float32)
        arguments[name][:, length:] = np.nan
    return arguments | {"length": np.array([length], np.uint32)}


@pytest.mark.parametrize("length", [65, 96, 128, 129, 230])
def test_a_long_sequence_is_attended_to_in_any_order_of_the_blocks(length: int) -> None:
    kernel = made()
    arguments = at(kernel, length)
    usual = check(kernel, arguments)
    assert not usual["counters"].any()
    assert all(usual[name].tobytes() == array.tobytes() for name, array in run(kernel, arguments, seed=length).items())
    expected = quantize(usual["out"].reshape(1, -1), 2)
    assert all(usual[name].tobytes() == array.tobytes() for name, array in expected._asdict().items())


@pytest.mark.parametrize("shape", [{"heads": 2, "kv_heads": 2, "head_dim": 96}, {"heads": 5, "head_dim": 256}], ids=str)
def test_every_layout_uses_all_values_of_all_heads(shape: dict[str, int]) -> None:
    kernel = made(**shape)
    check(kernel, at(kernel, 230))


@pytest.mark.parametrize("length", [1, 33, SHORT])
def test_a_short_sequence_has_the_bits_of_incremental_attention(length: int) -> None:
    kernel = made()
    arguments, plain = at(kernel, length), replace(kernel, split=OneBlock())
    wanted = run(plain, {name: arguments[name] for name in plain.signature()})
    found = run(kernel, arguments)
    assert all(found[name].tobytes() == array.tobytes() for name, array in wanted.items())
    assert all(found[name].tobytes() == arguments[name].tobytes() for name in ("weighted", "counters"))


@pytest.mark.parametrize("length", [0, 231, 2**32 - 1])
def test_a_length_out_of_range_writes_nothing(length: int) -> None:
    arguments = at(kernel := made(), 100) | {"length": np.array([length], np.uint32)}
    assert all(array.tobytes() == arguments[name].tobytes() for name, array in run(kernel, arguments).items())


def test_blocks_fill_a_gpu_and_a_row_has_two_parts_at_least() -> None:
    assert [splits_for(heads) for heads in (1, 3, 8, 32, 128)] == [132, 44, 16, 4, 2]
    assert splits_for(8, resident=2) == 33


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"splits": 1}, r"splits must be an integer, 2\.\.256, got 1"),
        ({"least": 48}, r"least must be one of \(32, 64, 128, 256\), got 48"),
        ({"short": 31}, r"short must be at least least \(32\), got 31"),
    ],
    ids=str,
)
def test_an_impossible_shape_is_refused_by_name(shape: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=f"^grouped_attention_digits_indirect: {message}"):
        made(**shape)


@pytest.mark.parametrize("heads", [4, 8])
def test_heads_of_256_values_fit_shared_memory_as_a_model_has_them(heads: int) -> None:
    split = LastBlock(splits_for(LastBlock.blocks(heads, 256)))
    kernel = ContiguousAttention(True, heads, 1, 256, max_len=4096, split=split, output=Int8PlanesOutput(3))
    assert emit(kernel).text  # which verifies what a block takes
