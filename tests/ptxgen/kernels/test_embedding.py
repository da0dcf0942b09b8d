"""embedding_lookup: a token that is read from a buffer, and one that the table does not have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.formats import find
from ptxgen.kernels.token.argmax import ArgMax
from ptxgen.kernels.token.embedding_lookup import EmbeddingLookup
from tests.ptxgen.kernels.checking import check, run


def lookup(format: str, *, indirect: bool = True) -> EmbeddingLookup:
    """A table of five rows, each a block longer than a step of four warps."""
    known = find(format)
    return EmbeddingLookup(format=known, rows=5, k=known.block * (32 // known.columns * 4 + 1), indirect=indirect)


def at(kernel: EmbeddingLookup, token: int, seed: int = 1) -> dict[str, Any]:
    value = np.array([token], np.uint32)
    return kernel.inputs(np.random.default_rng(seed)) | {"token": value if kernel.indirect else value[0]}


@pytest.mark.parametrize("format", ["Q4_K", "Q6_K", "Q8_0", "F32"])
@pytest.mark.parametrize("token", [0, 4])
def test_a_token_from_a_buffer_gives_the_same_bits(format: str, token: int) -> None:
    direct, indirect = lookup(format, indirect=False), lookup(format)
    assert run(direct, at(direct, token))["y"].tobytes() == check(indirect, at(indirect, token))["y"].tobytes()


@pytest.mark.parametrize("format", ["Q4_K", "Q6_K", "Q8_0", "F32"])
@pytest.mark.parametrize("token", [5, 6, 2**31, 2**32 - 1])
def test_a_token_that_the_table_does_not_have_gives_nan_and_reads_nothing_outside(format: str, token: int) -> None:
    kernel = lookup(format)
    assert np.isnan(check(kernel, at(kernel, token))["y"]).all()


def test_logits_with_a_nan_give_an_embedding_of_nan() -> None:
    kernel = lookup("Q4_0")
    logits = np.array([1.0, 2.0, np.nan, 4.0, 5.0], np.float32)
    token = run(ArgMax(n=kernel.rows), {"out": np.zeros(1, np.uint32), "x": logits})["out"]
    assert np.isnan(run(kernel, at(kernel, 0) | {"token": token})["y"]).all()
