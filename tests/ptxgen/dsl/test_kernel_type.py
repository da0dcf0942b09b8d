"""The module that users import the parts of a kernel type from."""

from __future__ import annotations

from typing import Any

import pytest

from ptxgen.commands.shapes import parse_shape
from ptxgen.dsl import kernel_type
from ptxgen.dsl.parts import part_parameters, with_parameters
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.int8_planes import Int8Planes
from ptxgen.kernels.attention.paged_attention_reduce import PagedAttentionReduce
from ptxgen.kernels.registry import find

PUBLIC = {
    "EARLY_SM", "HIDDEN", "MOST_CODE", "RING_SHARED", "Argument", "Array", "Direction", "HalfForm", "KernelType",
    "LaunchConfig", "Scalar", "Signature", "Work", "addresses", "is_whole", "read", "update", "write",
}  # fmt: skip


def test_kernels_of_users_can_import_every_public_name_from_here() -> None:
    assert set(kernel_type.__all__) == PUBLIC <= vars(kernel_type).keys()


def test_the_fields_of_a_part_are_parameters_of_the_kernel() -> None:
    entry = find("paged_attention_reduce_digits")
    shape: dict[str, Any] = {"rows": 1, "heads": 2, "head_dim": 32, "max_len": 64}
    assert list(entry.parameters)[-1] == "digits"
    assert "output" not in entry.parameters
    kernel = entry.make(**shape, digits=2)
    assert kernel == PagedAttentionReduce(**shape, output=Int8Planes(2))
    assert kernel.parameters() == {**shape, "splits": 64, "least": 128, "digits": 2}
    assert part_parameters(kernel) == {"digits": 2}
    assert with_parameters(kernel, heads=4, digits=3) == entry.make(**{**shape, "heads": 4}, digits=3)
    assert parse_shape(entry, ["digits=3", "rows=2"]) == {"digits": 3, "rows": 2}


def test_a_missing_or_impossible_field_of_a_part_is_named_with_the_kernel() -> None:
    entry = find("paged_attention_reduce_digits")
    with pytest.raises(ArgumentError, match=r"^paged_attention_reduce_digits needs .*, digits$"):
        entry.make()
    with pytest.raises(ArgumentError, match=r"^paged_attention_reduce_digits: digits must be an integer, 1\.\.3, got 4"):
        entry.make(rows=1, heads=1, head_dim=32, max_len=32, digits=4)
