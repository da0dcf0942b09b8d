"""Matrix products of few rows whose activations stay in registers: they have the bits of half_mma, slices of k are added by the
last block, weights come by asynchronous copies, and what fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.formats import Format
from ptxgen.formats import find as find_format
from ptxgen.kernels.compose import add_residual, as_dependent, fuse_horizontally
from ptxgen.kernels.gemm import suited
from ptxgen.kernels.gemm.f16_mma_gemm import HalfMmaGemm
from ptxgen.kernels.gemm.staged_weights import IN_PIECES
from ptxgen.kernels.gemm.stationary_gemm import StationaryGemm
from ptxgen.kernels.registry import find
from ptxgen.target import Target
from ptxgen.toolchain.assemble import assemble
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels.running import assert_matches_reference, emulate, inputs

Q4_K = find_format("Q4_K")


def made(m: int, *, k: int = 1280, n: int = 37, **settings: Any) -> StationaryGemm:
    """A small kernel with awkward sizes: a part of a tile of weights at the end, and warps with fewer windows than others."""
    return StationaryGemm(Q4_K, m=m, k=k, n=n, resident_threads=256, **{"split": 3, **settings})


@pytest.mark.parametrize(
    ("m", "settings"),
    [
        (3, {"row_tiles": 2, "stages": 2}),
        (9, {"row_tiles": 3, "columns": 16, "parts": 1}),
        (17, {"row_tiles": 1, "columns": 8, "chains": 2}),
    ],
)
def test_it_has_the_bits_of_half_mma_with_the_same_split_and_chains(m: int, settings: dict[str, int]) -> None:
    kernel = made(m, **settings)
    arguments = inputs(kernel)
    result, findings = emulate(kernel, arguments, target=Target(80), sanitize=True)
    assert not findings
    same = HalfMmaGemm(Q4_K, m=m, k=kernel.k, n=kernel.n, parts=kernel.parts, split=3, chains=kernel.chains, ahead=0)
    expected, _ = emulate(same, arguments, target=Target(80), sanitize=False)
    assert result["y"].tobytes() == expected["y"].tobytes()


@pytest.mark.parametrize("slices", [2, 3, 5])
def test_blocks_that_share_k_leave_their_sums_and_the_last_adds_them(slices: int) -> None:
    kernel = made(9, slices=slices, columns=8)
    arguments = inputs(kernel)
    for _ in range(2):  # the second launch finds the counters as the first has left them
        results, findings = emulate(kernel, arguments, target=Target(80), sanitize=True)
        assert not findings
        assert_matches_reference(kernel, arguments, results)
        arguments["counters"] = results["counters"]


def test_a_last_slice_may_have_no_window() -> None:
    kernel = made(1, k=1024, slices=3, split=1)  # two windows each, and the third has none
    arguments = inputs(kernel)
    results, findings = emulate(kernel, arguments, target=Target(80), sanitize=True)
    assert not findings
    assert_matches_reference(kernel, arguments, results)


def test_a_row_has_the_same_bits_whatever_m_and_the_tiles_are() -> None:
    kernel = made(9, columns=16, parts=1, slices=2)
    arguments = inputs(kernel)
    together, _ = emulate(kernel, arguments, target=Target(80), sanitize=False)
    alone = replace(kernel, m=1, columns=8, row_tiles=1)
    last = {"halves": arguments["halves"][1:], "scales": arguments["scales"][8:], "w": arguments["w"]}
    single, _ = emulate(alone, inputs(alone) | last, target=Target(80), sanitize=False)
    assert single["y"].tobytes() == together["y"][8:].tobytes()


@pytest.mark.parametrize("format", IN_PIECES, ids=lambda format: format.id)
@pytest.mark.parametrize("m", [1, 2, 4])
def test_parts_abreast_have_sums_of_their_own_in_half_as_many_products(format: Format, m: int) -> None:
    """The sums of both parts apart are those of kernels with one part: of the activations with their second part only, and with
    their first, where the weights have no low registers."""
    kernel = StationaryGemm(format, m=m, k=1280, n=37, split=3, chains=2, abreast=True, resident_threads=256)
    arguments = inputs(kernel)
    results, findings = emulate(kernel, arguments, target=Target(80), sanitize=True)
    assert not findings
    assert_matches_reference(kernel, arguments, results)
    after = replace(kernel, abreast=False)
    assert 2 * emit(kernel, Target(80)).text.count("mma.sync") <= emit(after, Target(80)).text.count("mma.sync") + 16
    if format.name == "Q6_K_ALIGNED":
        return
    of_part = []
    for part in range(2):
        one = replace(after, parts=1)
        own = arguments | {"halves": np.ascontiguousarray(arguments["halves"][:, :, :, part : part + 1])}
        of_part.append(emulate(one, inputs(one) | own, target=Target(80), sanitize=False)[0]["y"])
    assert results["y"].tobytes() == (of_part[0] + of_part[1]).tobytes()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"m": 5}, "m must be an integer, 1..4, got 5"),
        ({"m": 2, "parts": 1}, "what stands abreast are two parts in 8 columns, got parts=1, columns=8"),
        ({"m": 2, "columns": 16}, "what stands abreast are two parts in 8 columns, got parts=2, columns=16"),
    ],
)
def test_only_two_parts_of_up_to_four_rows_stand_abreast(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        StationaryGemm(Q4_K, k=512, n=16, abreast=True, **settings)


def test_a_residual_is_added_with_the_bits_of_the_product_and_an_addition() -> None:
    kernel = made(3, slices=2)
    arguments = inputs(kernel)
    onto = add_residual(kernel)
    assert onto is not None
    assert add_residual(onto) is None
    stream = np.random.default_rng(3).standard_normal((3, kernel.n)).astype(np.float32)
    product, _ = emulate(kernel, arguments, target=Target(80), sanitize=False)
    added, _ = emulate(onto, arguments | {"y": stream}, target=Target(80), sanitize=False)
    assert added["y"].tobytes() == (stream + product["y"]).tobytes()


@pytest.mark.parametrize("slices", [1, 2])
def test_matrices_of_one_launch_have_the_bits_that_they_have_alone(slices: int) -> None:
    first, second, third = (made(9, columns=16, parts=1, n=n, slices=slices) for n in (37, 5, 64))
    together = fuse_horizontally(first, [second, third])
    assert together is not None
    arguments = inputs(together)
    results, findings = emulate(together, arguments, target=Target(80), sanitize=True)
    assert not findings
    for number, one in (("", first), ("2", second), ("3", third)):
        own = {name: arguments[name] for name in ("halves", "scales")} | {"w": arguments[f"w{number}"]}
        alone, _ = emulate(one, inputs(one) | own, target=Target(80), sanitize=False)
        assert alone["y"].tobytes() == results[f"y{number}"].tobytes()


def test_only_kernels_for_the_same_activations_are_fused() -> None:
    one = made(9, columns=16)
    assert fuse_horizontally(one, [made(9, n=5)]) == made(9, columns=16, n2=5)
    others: tuple[KernelType, ...] = (made(8), made(9, parts=1), made(9, k=256), HalfMmaGemm(Q4_K, m=9, k=1280, n=5))
    for other in (*others, made(9, n2=3), StationaryGemm(find_format("Q5_K"), m=9, k=1280, n=5)):
        assert fuse_horizontally(one, [other]) is None
    assert fuse_horizontally(one, []) is None
    assert fuse_horizontally(one, [made(9)] * 3) is None
    assert fuse_horizontally(HalfMmaGemm(Q4_K, m=9, k=1280, n=5), [one]) is None


def test_a_fused_launch_fills_a_gpu_and_fits() -> None:
    q, k = (suited.stationary(Q4_K, k=4096, n=n, m=8, parts=2) for n in (4096, 1024))
    attention, gate = fuse_horizontally(q, [k, k]), suited.stationary(Q4_K, k=4096, n=14336, m=8, parts=2)
    assert isinstance(attention, StationaryGemm)
    assert (attention.row_tiles, attention.blocks.groups) == (3, 86 + 22 + 22)
    both = fuse_horizontally(gate, [gate])
    assert isinstance(both, StationaryGemm)
    assert (both.row_tiles, both.blocks.groups) == (14, 128)


def test_weights_are_copied_and_activations_are_loaded_once_for_all_tiles() -> None:
    few, many = (emit(find("stationary_q4k_gemm").make(k=2048, n=1024, m=8, row_tiles=t), Target(90)).text for t in (2, 8))
    for text in (few, many):
        assert "ld.global.nc" not in text
        assert text.count("ld.global.L1::evict_last.b32") == 17 * 2 * 2
        assert text.count("mma.sync") == 17 * 2
        assert text.count("cp.async.cg") == 5 * 3  # 16 rows of 9 pieces, to 2 stages before the loop


def test_the_programmatic_launch_waits_after_the_first_copies_and_before_the_activations() -> None:
    kernel = StationaryGemm(Q4_K, m=8, k=2048, n=64, pdl=True)
    lines = emit(kernel, Target(90)).text.splitlines()
    wait = next(i for i, line in enumerate(lines) if "griddepcontrol.wait" in line)
    assert any("cp.async" in line for line in lines[:wait])
    assert not any("ld.global" in line for line in lines[:wait])
    assert kernel.least_sm == 90


@pytest.mark.parametrize("m", [2, 8, 16])
def test_of_blocks_that_are_dependent_a_multiprocessor_holds_one(m: int) -> None:
    reserved, there = 1024, 228 * 1024  # bytes: for each block, and in all (CUDA C++ Programming Guide, compute capability 9.0)
    for k, n in ((4096, 1024), (14336, 4096)):
        usual = suited.stationary(Q4_K, k=k, n=n, m=m, parts=2)
        dependent = as_dependent(usual)
        assert dependent.launch().dependent
        assert 2 * (dependent.launch().dynamic_shared + reserved) > there
        assert usual.launch().dynamic_shared == usual.dynamic_shared
        assert 2 * (usual.dynamic_shared + reserved) <= there  # so it is not the weights that keep a second block out


SHAPES = ((4096, 4096), (4096, 1024), (4096, 14336), (14336, 4096), (4096, 128256), (1536, 256), (256, 1))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("m", [1, 8, 9, 32, 64])
def test_suited_settings_fit_for_every_format(m: int, parts: int) -> None:
    for format in IN_PIECES:
        for k, n in SHAPES:
            kernel = suited.stationary(format, k=k, n=n, m=m, parts=parts)
            assert kernel.launch().threads <= 512
            assert kernel.windows > (kernel.slices - 1) * kernel.blocks.slice_windows  # every slice has one


@pytest.mark.parametrize(("m", "parts"), [(8, 2), (16, 2), (8, 1), (16, 1), (32, 1)])
def test_suited_settings_spill_no_register(m: int, parts: int) -> None:
    for format in IN_PIECES:
        kernel = suited.stationary(format, k=14336, n=4096, m=m, parts=parts)
        assert assemble(emit(kernel, Target(90)).text, Target(90)).spill_stores == 0


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"k": 300, "n": 4, "m": 1}, "stationary_q4k_gemm: k must be a multiple of 256, 1 or more, got 300"),
        ({"k": 512, "n": 4, "m": 1, "columns": 24}, "columns must be a multiple of 8, 1..16, got 24"),
        ({"k": 512, "n": 4, "m": 1, "slices": 3}, "slices must be an integer, 1..2, got 3"),
        ({"k": 512, "n": 4, "m": 1, "stages": 1}, "stages must be an integer, 2..8, got 1"),
        ({"k": 512, "n": 4, "m": 1, "split": 32, "row_tiles": 8}, r"take 352256 bytes of shared memory, and 232448 are"),
    ],
)
def test_an_impossible_shape_says_what_is_allowed(shape: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        find("stationary_q4k_gemm").make(**shape)


@pytest.mark.parametrize("format", ["Q6_K", "Q8_0_ALIGNED"])
def test_a_format_whose_blocks_are_not_aligned_or_not_in_pieces_is_refused(format: str) -> None:
    said = f"{format} has blocks that are not made of aligned pieces for lanes; formats whose are: Q4_K, Q5_K, Q6_K_ALIGNED$"
    with pytest.raises(ArgumentError, match=said):
        StationaryGemm(find_format(format), m=1, k=256, n=1)
