"""Settings that suit a GPU fit it: no kernel asks for more shared memory than its target has, in whatever form."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ptxgen.errors import ArgumentError
from ptxgen.kernels.compose import as_dependent, fuse_horizontally
from ptxgen.kernels.gemm.f16_gemm_type import IN_HALVES
from ptxgen.kernels.gemm.mma_gemm import MmaGemm
from ptxgen.kernels.gemm.staged_weights import IN_PIECES
from ptxgen.kernels.gemm.stationary_gemm import StationaryGemm
from ptxgen.kernels.gemm.suited import SUITED, suited_for
from ptxgen.kernels.gemm.wgmma_gemm import WgmmaGemm
from ptxgen.kernels.suited import Limits
from ptxgen.target import ALL, DEPENDENT_SM, HOPPER, Target

FORMATS = [IN_HALVES[name] for name in ("q4k", "q5k", "q6k", "q6k_aligned")]


@given(
    kind=st.sampled_from(list(SUITED)),
    format=st.sampled_from(FORMATS),
    target=st.sampled_from(ALL),
    k=st.integers(1, 64).map(lambda windows: 256 * windows),
    n=st.integers(1, 40000),
    m=st.integers(2, 600),
    few=st.booleans(),
    multiprocessors=st.integers(8, 192),
)
def test_what_suits_fits_in_each_form_or_is_refused(
    kind: type, format: object, target: Target, k: int, n: int, m: int, few: bool, multiprocessors: int
) -> None:
    limits = Limits(target, multiprocessors)
    rounding = {"digits": 1 if few else 3} if kind is MmaGemm else {"parts": 1 if few else 2}
    try:
        kernel = suited_for(kind, format, k=k, n=n, m=m, rounding=rounding, limits=limits)  # type: ignore[arg-type]
    except ArgumentError:
        assert target.sm < 80 or kind in (WgmmaGemm, StationaryGemm)
        assert kind is not StationaryGemm or target.sm < 80 or format not in IN_PIECES
        assert kind is not WgmmaGemm or target.sm != HOPPER.sm
        return
    several = fuse_horizontally(kernel, [kernel])
    for one in (kernel,) if several is None else (kernel, several):
        assert one.fits(target)
        assert target.sm < DEPENDENT_SM or as_dependent(one, target).fits(target)


def test_a_dependent_block_of_a_table_fits_a_smaller_gpu_than_it_was_planned_for() -> None:
    kernel = StationaryGemm(IN_HALVES["q4k"], k=4096, n=4096, m=8)
    assert not as_dependent(kernel).fits(Target(120))
    assert as_dependent(kernel, Target(120)).fits(Target(120))


def test_a_large_gpu_is_what_is_planned_for_where_none_is_named() -> None:
    for kind, suited in SUITED.items():
        rounding = {"digits": 3} if kind is MmaGemm else {"parts": 2}
        made = suited_for(kind, IN_HALVES["q4k"], k=4096, n=14336, m=32, rounding=rounding)
        assert made == suited(IN_HALVES["q4k"], k=4096, n=14336, m=32, **rounding)
        assert "room" not in made.parameters()
