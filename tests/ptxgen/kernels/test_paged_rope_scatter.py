"""The rotation of the rows of a step together with their write into a paged cache: the bits of each row are those of the kernel
of one row, and the cache holds what they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.paged_rope_scatter import PagedRopeScatter
from tests.ptxgen.kernels.checking import check, run

FORMS = [(False, False), (False, True), (True, False), (True, True)]


def made(*, neox: bool, bias: bool, kv_type: str, rows: int = 4, **shape: int) -> PagedRopeScatter:
    sizes = {"heads": 6, "kv_heads": 2, "head_dim": 64, "page_len": 32, "pages": 7, "slots": 3, "max_len": 96, **shape}
    return PagedRopeScatter(rows=rows, kv_type=kv_type, neox=neox, bias=bias, **sizes)


def at(kernel: PagedRopeScatter, slots: list[int], positions: list[int]) -> dict[str, Any]:
    """Random arguments of rows in these places. Each slot has pages of its own; what is in the cache is no number."""
    arguments = kernel.inputs(np.random.default_rng(4))
    entries = kernel.slots * kernel.max_len // kernel.page_len
    tables = np.random.default_rng(5).permutation(max(entries, kernel.pages))[:entries].astype(np.uint32)
    arguments |= {"tables": tables.reshape(kernel.slots, -1) % kernel.pages}
    arguments |= {"slot": np.array(slots, np.uint32), "position": np.array(positions, np.uint32)}
    for name in kernel.caches("inout"):
        arguments[name][:] = 99 if arguments[name].dtype == np.int8 else np.nan
    return arguments


def places(kernel: PagedRopeScatter, arguments: dict[str, Any]) -> list[NDArray[np.int64]]:
    """The page and the place in it of each row."""
    return [kernel.standing(arguments, row)[-1] for row in range(kernel.rows)]


@pytest.mark.parametrize(("neox", "bias"), FORMS)
@pytest.mark.parametrize(
    ("kv_type", "shape"),
    [("f32", {"rotary_dim": 24}), ("f16", {}), ("q8_0", {"head_dim": 96, "rotary_dim": 42})],
    ids=["f32", "f16", "q8_0"],
)
def test_a_row_has_the_bits_of_the_kernel_of_one_row_and_the_cache_what_they_stand_for(
    neox: bool, bias: bool, kv_type: str, shape: dict[str, int]
) -> None:
    kernel = made(neox=neox, bias=bias, kv_type=kv_type, pages=9, **shape)
    arguments = at(kernel, [2, 0, 0, 1], [31, 63, 64, 0])
    results = check(kernel, arguments)
    single = kernel.single
    for row, (page, place) in enumerate(places(kernel, arguments)):
        given = single.inputs(np.random.default_rng(1))
        given |= {name: arguments[name] for name in given if name == "table" or name.endswith("_bias")}
        given |= {name: arguments[name][row] for name in ("q", "k", "v")}
        alone = run(single, given | {"position": arguments["position"][row : row + 1]})
        for name in set(alone) & {"q", "k", "v"}:
            assert results[name][row].tobytes() == alone[name].tobytes(), name
        for tensor, values in (("k", alone["k"]), ("v", alone.get("v", arguments["v"][row]))):
            for part, encoded in zip(kernel.kv.parts, kernel.kv.encode(values), strict=True):
                assert results[f"{tensor}_{part.suffix}"][page, :, place].tobytes() == encoded.tobytes()


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize(
    ("name", "place", "value"), [("position", 1, 96), ("position", 1, 2**32 - 1), ("slot", 1, 3), ("tables", (0, 1), 9)]
)
def test_an_idle_row_changes_nothing(kv_type: str, name: str, place: Any, value: int) -> None:
    kernel = made(neox=False, bias=True, kv_type=kv_type, pages=9)
    arguments = at(kernel, [2, 0, 0, 1], [31, 63, 64, 0])
    page, _ = places(kernel, arguments)[1]
    arguments[name][place] = value
    for tensor, result in check(kernel, arguments).items():
        changed = page if tensor in kernel.caches("inout") else 1
        assert result[changed].tobytes() == arguments[tensor][changed].tobytes(), tensor


def test_nothing_but_the_rows_own_places_is_written() -> None:
    kernel = made(neox=True, bias=False, kv_type="q8_0")
    arguments = at(kernel, [0, 1, 2, 1], [5, 5, 40, 6])
    results = run(kernel, arguments)
    for name in kernel.caches("inout"):
        untouched = results[name].copy()
        for page, place in places(kernel, arguments):
            untouched[page, :, place] = arguments[name][page, :, place]
        assert untouched.tobytes() == arguments[name].tobytes()


def test_values_that_need_care_are_quantised_as_numpy_does_it() -> None:
    """Halves at a scale of 1, zeros, values too small for a scale, infinity, NaN, and a scale too large for f16."""
    kernel = made(neox=False, bias=False, kv_type="q8_0", rows=1, heads=6, kv_heads=6, head_dim=32, slots=1, pages=3)
    arguments = at(kernel, [0], [33])
    v = arguments["v"][0]
    v[0], v[1], v[2], v[3, 7], v[4, 8], v[5, 9] = [0.5, -0.5, 1.5, -2.5, 127.0, *range(27)], 0.0, 1e-40, np.inf, np.nan, 1e9
    results = run(kernel, arguments)
    ((page, place),) = places(kernel, arguments)
    codes, scales = kernel.kv.encode(v)
    assert results["v_cache"][page, :, place].tobytes() == codes.tobytes()
    assert np.array_equal(results["v_scales"][page, :, place], scales, equal_nan=True)
    assert np.isinf(scales[[3, 5]]).all()


def test_an_impossible_rotation_is_refused_by_name() -> None:
    with pytest.raises(ArgumentError, match=r"^paged_rope_scatter: rotary_dim must be a multiple of 2, 2\.\.64, got 66"):
        made(neox=False, bias=False, kv_type="f16", rotary_dim=66)
