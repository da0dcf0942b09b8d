"""Forms of a kernel are found by its fields, also those of kernels that are not ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest

from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS
from ptxgen.kernels.compose import add_residual, as_dependent, for_rows
from ptxgen.kernels.gemv.basic import Gemv
from ptxgen.kernels.gemv.dp4a import Dp4aGemv
from ptxgen.kernels.gemv.mwv import FOR_SEVERAL, MwvGemv

Q4_K = FORMATS["Q4_K"]


@dataclass(frozen=True)
class Own(Gemv):
    m: int | None = field(default=None, kw_only=True)
    residual: bool = field(default=False, kw_only=True)
    ahead: bool = field(default=False, kw_only=True)
    dependent_form: ClassVar[Mapping[str, Any]] = {"ahead": True}


OWN = Own(Q4_K, k=256, n=3)


def test_a_field_m_is_the_number_of_rows_of_the_form_for_several() -> None:
    assert for_rows(OWN, 5) == (replace(OWN, m=5),)
    assert for_rows(replace(OWN, m=5), 5) == ()


def test_any_other_strategy_for_f32_activations_has_the_form_of_mwv() -> None:
    several = MwvGemv(Q4_K, k=256, n=3, m=5, resident_threads=FOR_SEVERAL)
    assert several.name == "batched_q4k_gemv"
    assert for_rows(Gemv(Q4_K, k=256, n=3), 5) == (several,)
    assert for_rows(MwvGemv(Q4_K, k=256, n=3, num_warps=8, rows_per_block=1), 5) == (replace(several, num_warps=8),)
    assert for_rows(Dp4aGemv(Q4_K, k=256, n=3), 5) == ()  # reads no f32
    with pytest.raises(ArgumentError, match="m must be"):
        for_rows(Gemv(Q4_K, k=256, n=3), 10**9)


def test_a_field_residual_and_the_fields_of_a_dependent_form_are_set() -> None:
    assert add_residual(OWN) == replace(OWN, residual=True)
    assert add_residual(replace(OWN, residual=True)) is None
    assert add_residual(Gemv(Q4_K, k=256, n=3)) is None
    assert as_dependent(OWN) == replace(OWN, ahead=True)
    assert as_dependent(Gemv(Q4_K, k=256, n=3)) == Gemv(Q4_K, k=256, n=3)
