"""Which parts of a GEMV on int8 planes go together, and what they add up to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ptxgen.errors import ArgumentError
from ptxgen.formats import ALL
from ptxgen.kernels.compose import fuse_swiglu
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.gemv.matrices import Fused, FusedWithAnother, GateAndUp
from ptxgen.kernels.gemv.planes import Planes
from ptxgen.kernels.gemv.residual import AddResidual
from ptxgen.kernels.gemv.swiglu import SwiGlu
from ptxgen.kernels.gemv.tokens import Batch
from tests.ptxgen.kernels import gemvs

Q4, Q6 = ALL["Q4_K"], ALL["Q6_K"]
PLAIN = HwDp4aGemv(Q4, k=512, n=32, digits=3)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"tokens": Batch(2), "epilogue": (AddResidual(),)}, "epilogues are for one token and one result"),
        ({"segments": Fused(8), "epilogue": (AddResidual(),)}, "epilogues are for one token and one result"),
        ({"segments": GateAndUp()}, "gate and up need SwiGLU"),
        ({"epilogue": (SwiGlu(), Planes(3))}, "gate and up need SwiGLU"),
        ({"epilogue": (Planes(3), AddResidual())}, "int8 planes must be the last"),
        ({"segments": FusedWithAnother(8, 8)}, "needs `last`"),
        ({"last": Q6}, "has matrices of one format, got a last one of Q6_K"),
    ],
    ids=str,
)
def test_parts_that_do_not_go_together_are_refused(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        replace(PLAIN, **parts)


def test_names_are_spelt_from_parts() -> None:
    assert replace(PLAIN, segments=Fused(8)).name == "joined_hw_dp4a_q4k_gemv"
    assert replace(PLAIN, epilogue=(AddResidual(), Planes(3))).name == "hw_dp4a_q4k_gemv_residual_planes"
    assert gemvs.swiglu(Q4, k=512, n=32, out_digits=3).name == "gated_hw_dp4a_q4k_gemv"
    wide = replace(PLAIN, k=4096, n=14336)
    geglu = fuse_swiglu(wide, wide, 3, "gelu")
    assert geglu is not None
    assert geglu.name == "gated_hw_dp4a_q4k_gemv_geglu"
    assert replace(PLAIN, last=Q6, segments=FusedWithAnother(8, 8)).name == "mixed_hw_dp4a_q4k_q6k_gemv"


@pytest.mark.parametrize("row_parts", [1, 4])
def test_fused_matrices_cost_the_sum_of_each_with_activations_read_once(row_parts: int) -> None:
    one = replace(PLAIN, row_parts=row_parts)
    both = gemvs.fused(Q4, k=512, n=32, n2=32, digits=3, row_parts=row_parts)
    assert both.work().flops == 2 * one.work().flops
    assert both.work().bytes == 2 * one.work().bytes - one.source.bytes
