"""A kernel that is composed of parts: their fields are its parameters, by every way in which users set them."""

from __future__ import annotations

from typing import Any

import pytest

from ptxgen.commands.shapes import parse_shape
from ptxgen.dsl.parts import with_parameters
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.int8_planes import Int8PlanesOutput
from ptxgen.kernels.attention.paged_attention_reduce import PagedAttentionReduce
from ptxgen.kernels.registry import find

NAME = "paged_attention_reduce_digits"
SHAPE: dict[str, Any] = {"rows": 1, "heads": 2, "head_dim": 32, "max_len": 64}


def test_the_fields_of_a_part_are_parameters_of_the_kernel() -> None:
    entry = find(NAME)
    assert list(entry.parameters) == [*SHAPE, "splits", "least", "digits", "window", "softcap", "scale", "alibi"]
    kernel = entry.make(**SHAPE, digits=2)
    assert kernel == PagedAttentionReduce(**SHAPE, output=Int8PlanesOutput(2))
    assert kernel.parameters() == {**SHAPE, "splits": 64, "least": 128, "digits": 2}
    assert with_parameters(kernel, heads=4, digits=3) == entry.make(**{**SHAPE, "heads": 4}, digits=3)
    assert parse_shape(entry, ["digits=3", "rows=2"]) == {"digits": 3, "rows": 2}


def test_a_number_that_may_be_none_is_read_as_a_number() -> None:
    assert parse_shape(find("incremental_attention"), ["window=512", "scale=0.25"]) == {"window": 512, "scale": 0.25}
    assert parse_shape(find("batched_rope"), ["m=3"]) == {"m": 3}


def test_a_missing_or_impossible_field_of_a_part_is_named_with_the_kernel() -> None:
    with pytest.raises(ArgumentError, match=rf"^{NAME} needs .*, digits$"):
        find(NAME).make()
    with pytest.raises(ArgumentError, match=rf"^{NAME}: digits must be an integer, 1\.\.3, got 4"):
        find(NAME).make(**SHAPE, digits=4)
