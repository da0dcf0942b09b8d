"""What the kernels on int8 planes of activations, and the quantising kernels, promise beyond the catalogue's tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgen.conformance.execution import emitted, emulate, inputs
from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS
from ptxgen.kernels.accuracy import OUTLIER
from ptxgen.kernels.gemv import emission
from ptxgen.kernels.gemv.chunks import loops
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.gemv.plane_gemv_type import PACKED
from ptxgen.kernels.gemv.shared_planes import MOST_SHARED, Layout, chunks, dynamic_bytes, padding, rows_at_once
from ptxgen.kernels.quantize.int8_planes import LARGEST, quantize, values
from ptxgen.kernels.registry import find
from ptxgen.target import MAX_STATIC_SHARED, Target
from ptxgen.toolchain.assemble import assemble
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels import gemvs

every_strategy = pytest.mark.parametrize("strategy", ["dp4a", "mwv_dp4a", "hw_dp4a"])
all_digits = pytest.mark.parametrize("digits", [1, 2, 3])


@pytest.mark.parametrize(("digits", "bound"), [(1, 0.51 / 127), (2, 0.51 / 32639), (3, 0.751 / 8355711)])
@given(x=st.lists(st.floats(-65504, 65504, width=32, allow_subnormal=False), min_size=32, max_size=32))
def test_quantised_values_are_within_the_step_of_the_block_that_is_promised(digits: int, bound: float, x: list[float]) -> None:
    block = np.array([x], np.float32)
    made = quantize(block, digits)
    assert np.abs(values(made.digits, made.scales) - block).max() <= bound * np.abs(block).max() + 1e-37


@all_digits
def test_the_sum_of_a_block_of_the_largest_f16_is_exact(digits: int) -> None:
    kernel = find(f"q{8 * digits}_quantize").make(n=64)
    arguments = inputs(kernel)
    arguments["x"][:] = 65504.0
    arguments["x"][0, 32:] = -65504.0
    results, findings = emulate(kernel, arguments)
    assert not findings
    assert results["sums"].tolist() == [[32 * LARGEST[digits], -32 * LARGEST[digits]]]
    assert np.array_equal(results["digits"], np.repeat([[[127, -127]]] * digits, 32, axis=2).reshape(1, digits, 64))


@all_digits
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_reaches_the_result_of_its_own_block_only(digits: int, bad: float) -> None:
    kernel = find(f"q{8 * digits}_quantize").make(n=64)
    arguments = inputs(kernel)
    arguments["x"][0, 5] = bad
    results, _ = emulate(kernel, arguments)
    assert not np.isfinite(results["scales"][0, 0])
    assert np.isfinite(results["scales"][0, 1])
    assert not results["digits"][..., :32].any()


@all_digits
def test_subnormal_blocks_stay_in_the_range_of_their_planes(digits: int) -> None:
    kernel = find(f"q{8 * digits}_quantize").make(n=32)
    arguments = inputs(kernel)
    arguments["x"][:] = np.linspace(-190e-45, 190e-45, 32, dtype=np.float32)
    results, _ = emulate(kernel, arguments)
    assert np.array_equal(results["digits"], quantize(arguments["x"], digits).digits)
    assert results["digits"].min() >= -128


@pytest.mark.parametrize("id", PACKED)
@pytest.mark.parametrize(("position", "digits"), [(0, 2), (17, 2), (31, 3), (32, 2), (127, 2), (128, 3), (255, 2), (511, 2)])
def test_each_weight_meets_its_own_activation(id: str, position: int, digits: int) -> None:
    kernel = find(f"hw_dp4a_{id}_gemv").make(k=512, n=3, num_warps=1, digits=digits)
    arguments = inputs(kernel)
    x = np.zeros((1, 512), np.float32)
    x[0, position] = 1
    arguments |= quantize(x, digits)._asdict()
    results, _ = emulate(kernel, arguments, sanitize=False)
    wanted = PACKED[id].dequantize(arguments["w"])[:, position].astype("f8")
    # The activation is LARGEST / LARGEST, up to one rounding; a minimum cancels in f32.
    allowed = 2.0**-21 * (np.abs(wanted) + PACKED[id].largest_minima(arguments["w"])[:, position])
    assert (np.abs(results["y"] - wanted) <= allowed).all()


@every_strategy
@pytest.mark.parametrize("id", [id for id, format in PACKED.items() if format.common])
def test_the_text_has_real_dp4a_for_every_four_weights_of_a_lane(strategy: str, id: str) -> None:
    kernel = find(f"{strategy}_{id}_gemv").make(k=512, n=2, digits=1)
    format = PACKED[id]
    text = emit(kernel).text
    assert text.count("dp4a.") >= format.fragment_values // 4
    assert "fma.rn.f32" in text
    assert ".approx" not in text


@every_strategy
@pytest.mark.parametrize("digits", [2, 3])
def test_each_plane_is_a_dp4a_where_there_was_one(strategy: str, digits: int) -> None:
    one, more = (emit(find(f"{strategy}_q4k_gemv").make(k=2048, n=2, digits=count)).text for count in (1, digits))
    assert more.count("dp4a.") == digits * one.count("dp4a.")


@pytest.mark.parametrize("warps", [1, 3, 8])
def test_num_warps_is_honoured(warps: int) -> None:
    mwv = find("mwv_dp4a_q4k_gemv").make(k=8192, n=5, num_warps=warps)
    fast = find("hw_dp4a_q4k_gemv").make(k=2048, n=5, num_warps=warps, rows_per_warp=1)
    assert f".maxntid {32 * warps}, 1, 1" in emit(mwv).text
    assert mwv.launch().grid == (5, 1, 1)
    assert f".maxntid {32 * warps}, 1, 1" in emit(fast).text
    assert fast.launch().grid == (-(-5 // warps), 1, 1)


@pytest.mark.parametrize(("warps", "threads", "line"), [(8, 512, ".minnctapersm 2"), (2, 512, ".minnctapersm 8"), (8, 256, "")])
@pytest.mark.parametrize(("id", "times"), [("q5k", 1), ("q6k", 2)])  # Q6_K takes twice the registers
def test_registers_are_bounded_so_that_enough_threads_are_resident(
    warps: int, threads: int, line: str, id: str, times: int
) -> None:
    kernel = find(f"hw_dp4a_{id}_gemv").make(k=4096, n=16, num_warps=warps, resident_threads=threads * times)
    text = emit(kernel, Target(90)).text
    assert line in text if line else ".minnctapersm" not in text
    assert assemble(text, Target(90)).registers <= 65536 // threads


@pytest.mark.parametrize("id", ["q4k", "q5k", "q6k", "q8_0"])
@pytest.mark.parametrize("k", [4096, 14336])
def test_three_planes_spill_no_register_at_the_shapes_of_an_8b(id: str, k: int) -> None:
    text = emit(find(f"hw_dp4a_{id}_gemv").make(k=k, n=4096, digits=3), Target(90)).text
    assert assemble(text, Target(90)).spill_stores == 0


def test_the_fast_path_loads_weights_16_bytes_at_a_time_before_it_touches_activations() -> None:
    for n in (16, 14336):
        lines = emit(find("hw_dp4a_q4k_gemv").make(k=4096, n=n, rows_per_warp=2)).text.splitlines()
        weights = [i for i, line in enumerate(lines) if "L2::128B.v4.u32" in line]
        assert len(weights) == 2 * 2 * 3  # rows, steps, loads a fragment
        assert max(weights) < min(i for i, line in enumerate(lines) if "ld.global.v4" in line or "bar.sync" in line)
        movable = ["ld.global.nc" in lines[i] for i in weights]
        assert set(movable) == {n == 14336}, "blocks that a GPU has at once keep the loads where they are written"


def test_the_programmatic_launch_waits_after_the_first_weights_and_before_the_activations() -> None:
    kernel = find("hw_dp4a_q4k_gemv").make(k=4096, n=16, pdl=True)
    lines = emit(kernel, Target(90)).text.splitlines()
    wait = next(i for i, line in enumerate(lines) if "griddepcontrol.wait" in line)
    assert max(i for i, line in enumerate(lines) if "L2::128B" in line) < wait
    assert wait < min(i for i, line in enumerate(lines) if "ld.global.v4" in line)
    assert "griddepcontrol" not in emit(replace(kernel, pdl=False), Target(90)).text  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("id", "m", "k", "digits"),
    [
        *((id, *shape) for id in ("q4k", "q6k", "q8_0") for shape in ((2, 2048, 2), (5, 2816, 3), (8, 3072, 2))),
        ("q4k", 8, 2304, 3),  # two turns of four rows
    ],
)
@pytest.mark.slow
def test_a_row_of_a_batch_has_the_bits_of_the_single_kernel(id: str, m: int, k: int, digits: int) -> None:
    batched = gemvs.batched(format=PACKED[id], m=m, k=k, n=5, num_warps=2, digits=digits)
    arguments = inputs(batched)
    together, _ = emulate(batched, arguments, sanitize=False)
    single = HwDp4aGemv(format=PACKED[id], k=k, n=5, num_warps=4, rows_per_warp=2, digits=digits)
    for i in range(m):
        row = {name: arguments[name][i : i + 1] for name in ("digits", "scales", "sums")}
        alone, _ = emulate(single, {"y": np.zeros(5, np.float32), "w": arguments["w"], **row}, sanitize=False)
        assert together["y"][i].tobytes() == alone["y"].tobytes()


LOOPED = [
    gemvs.residual(PACKED["q3k"], k=4864, n=3, digits=3, num_warps=2, rows_per_warp=1, pdl=True),  # one chunk
    gemvs.batched(PACKED["q8_0"], m=7, k=2816, n=3, digits=3, num_warps=2),  # two of several steps, the last one partial
]


@pytest.mark.parametrize("kernel", LOOPED, ids=str)
def test_a_loop_over_a_row_has_the_bits_of_the_row_written_out(kernel: HwDp4aGemv, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = inputs(kernel)
    target = Target(90) if kernel.pdl else Target(75)
    assert loops(
        kernel.blocks[0], chunks(kernel.format, kernel.k, rows_at_once(kernel.format, kernel.k, kernel.activation_rows, 3), 3)
    )
    loop, _ = emulate(kernel, arguments, target=target, sanitize=False)
    monkeypatch.setattr(emission, "loops", lambda *_: False)
    emitted.cache_clear()
    written_out, _ = emulate(kernel, arguments, target=target, sanitize=False)
    emitted.cache_clear()
    assert loop["y"].tobytes() == written_out["y"].tobytes()


def test_the_length_of_a_batch_s_text_does_not_grow_with_the_row() -> None:
    short, long = (emit(find("batched_hw_dp4a_q6k_gemv").make(m=8, k=k, n=8, digits=3)).text for k in (4096, 32768))
    assert len(long) < 1.02 * len(short)


def test_the_looped_programmatic_launch_waits_after_the_first_weights_and_before_the_activations() -> None:
    lines = emit(HwDp4aGemv(PACKED["q3k"], k=18944, n=16, digits=3, pdl=True), Target(90)).text.splitlines()
    wait = next(i for i, line in enumerate(lines) if "griddepcontrol.wait" in line)
    assert any("ld.global.nc" in line for line in lines[:wait])
    assert not any("ld.global.v4" in line for line in lines[:wait])
    assert sum("griddepcontrol.wait" in line for line in lines) == 1
    assert not any(line.startswith("$") for line in lines[:wait])  # it stands before the loop


@pytest.mark.parametrize(("m", "digits"), [(2, 2), (8, 2), (8, 3)])
def test_a_batch_loads_weights_once(m: int, digits: int) -> None:
    texts = [emit(find("batched_hw_dp4a_q4k_gemv").make(m=rows, k=2048, n=8, digits=digits)).text for rows in (1, m)]
    assert texts[0].count("L2::128B") == texts[1].count("L2::128B") > 0
    assert texts[1].count("dp4a.") == m * texts[0].count("dp4a.")


@every_strategy
@pytest.mark.parametrize("id", ["q4k", "q6k"])
def test_two_planes_cost_no_accuracy_even_with_a_massive_channel(strategy: str, id: str) -> None:
    shape = {"k": 4096, "n": 8}
    one, two = (
        find(f"{strategy}_{id}_gemv").make(digits=digits, **shape).accuracy(np.random.default_rng(0)) for digits in (1, 2)
    )
    assert set(one) == {"normal activations", "one channel at 26 x rms"}
    for what in one:
        assert 1e-4 < one[what] < 0.05
        assert two[what] < one[what] / 100


@pytest.mark.parametrize("id", ["q4k", "q6k", "q8_0", "q4_1"])
def test_three_planes_are_as_accurate_as_f32(id: str) -> None:
    three = find(f"hw_dp4a_{id}_gemv").make(digits=3, k=4096, n=8).accuracy(np.random.default_rng(0))
    # A block's values have errors of up to 1.5 * 2^-24 of its peak, which 4096 random ones of either sign average out.
    assert set(three) == {"normal activations", "one channel at 26 x rms"}
    assert all(0 < error < 1e-6 for error in three.values())


@every_strategy
@pytest.mark.parametrize("id", ["q4k", "q6k", "q8_0", "q4_1"])
@pytest.mark.parametrize("channel", [1.0, OUTLIER])
def test_a_product_with_three_planes_is_within_1e_6_of_the_one_with_f32_activations(
    strategy: str, id: str, channel: float
) -> None:  # fmt: skip
    kernel = find(f"{strategy}_{id}_gemv").make(digits=3, k=2048, n=16)
    arguments = inputs(kernel)
    x = np.random.default_rng(1).standard_normal((1, 2048)).astype(np.float32)
    x[0, 408] = channel
    results, _ = emulate(kernel, arguments | quantize(x, 3)._asdict(), sanitize=False)
    exact = PACKED[id].dequantize(arguments["w"]).astype("f8") @ x[0].astype("f8")
    assert np.sqrt(np.mean((results["y"] - exact) ** 2) / np.mean(exact**2)) < 1e-6


@every_strategy
@pytest.mark.parametrize("digits", [2, 3])
@pytest.mark.parametrize(("id", "header", "code"), [("q8_0", 2, 127), ("q8_0", 2, 0x80), ("q4k", 16, 0xFF), ("q5k", 16, 0xFF)])
def test_integers_at_their_extremes_do_not_overflow(strategy: str, digits: int, id: str, header: int, code: int) -> None:
    kernel = find(f"{strategy}_{id}_gemv").make(k=512, n=1, digits=digits)
    arguments = inputs(kernel)
    format = PACKED[id]
    arguments["w"].reshape(-1, format.block_bytes)[:, header:] = code
    for peak in (-65504.0, 65504.0):
        arguments |= quantize(np.full((1, 512), peak, np.float32), digits)._asdict()
        results, _ = emulate(kernel, arguments)
        wanted, allowed = kernel.reference(**arguments)["y"], kernel.tolerance(**arguments)["y"]
        assert (np.abs(results["y"] - wanted) <= allowed).all()


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_quantised_integers_are_those_of_their_planes(digits: int) -> None:
    largest = LARGEST[digits]
    x = np.random.default_rng(0).uniform(-largest, largest, (3, 1024)).astype(np.float32)
    x[0, :2] = largest, -largest  # so the scale is 1, and all digits of the two are 127 and -127
    made = quantize(x, digits)
    integers = np.tensordot(made.digits.astype("i8"), [256 ** (digits - 1 - digit) for digit in range(digits)], (1, 0))
    assert integers[0, :2].tolist() == [largest, -largest]
    assert np.array_equal(integers.reshape(3, 32, 32).sum(axis=2), made.sums)
    assert len(np.unique(made.digits[:, -1])) == (255 if digits == 1 else 256)


@settings(deadline=None)
@given(id=st.sampled_from(sorted(PACKED)), rows=st.integers(1, 8), blocks=st.integers(1, 130), digits=st.integers(1, 3))
def test_chunks_cover_a_row_once_and_fit_shared_memory(id: str, rows: int, blocks: int, digits: int) -> None:
    format = PACKED[id]
    k = blocks * max(format.block, 32)
    together = rows_at_once(format, k, rows, digits)
    assert together == rows or together * 2 >= rows  # two turns at most
    parts = chunks(format, k, together, digits)
    step = 32 // format.fragments * format.block
    assert [first for first, _ in parts] == [sum(count for _, count in parts[:i]) for i in range(len(parts))]
    assert sum(count for _, count in parts) == -(-k // step)
    longest = min(k, parts[0][1] * step)
    dynamic_shared = dynamic_bytes(format, k, rows, digits)
    assert Layout(format, longest, together, digits).bytes <= max(MAX_STATIC_SHARED, dynamic_shared)
    assert dynamic_shared <= MOST_SHARED
    assert not dynamic_shared or len(parts) == rows == 1


@pytest.mark.parametrize("id", sorted(PACKED))
def test_14336_activations_are_there_at_once(id: str) -> None:
    assert len(chunks(PACKED[id], 14336, 1, max(LARGEST))) == 1


@pytest.mark.parametrize("id", ["q4k", "q5k", "q6k", "q4_0", "q8_0"])
def test_lanes_read_staged_activations_without_bank_conflicts(id: str) -> None:
    from ptxgen.kernels.gemv.fragments import Fragments

    format = PACKED[id]
    pad, width = padding(format), min(16, format.packed_width)
    firsts = [Fragments(format, format.block).first_value(lane) for lane in range(32)]
    for start in range(0, 32, 128 // width):
        together = firsts[start : start + 128 // width]
        banks = {(first + first // 128 * pad) // 4 % 32 + i for first in together for i in range(width // 4)}
        assert len(banks) == len(together) * width // 4


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("hw_dp4a_q4k_gemv", {"k": 576, "n": 4}, "hw_dp4a_q4k_gemv: k must be a multiple of 256, 1 or more, got 576"),
        ("dp4a_q4k_gemv", {"k": 512, "n": 4, "digits": 4}, "dp4a_q4k_gemv: digits must be an integer, 1..3, got 4"),
        ("batched_hw_dp4a_q4k_gemv", {"k": 512, "n": 4, "m": 9}, "batched_hw_dp4a_q4k_gemv: m must be an integer, 1..8, got 9"),
        ("q8_quantize", {"n": 33}, "q8_quantize: n must be a multiple of 32, 1 or more, got 33"),
    ],
)
def test_an_impossible_shape_says_what_is_allowed(name: str, shape: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        find(name).make(**shape)


def test_a_format_without_packed_codes_says_which_have_them() -> None:
    with pytest.raises(ArgumentError, match=r"F32 has no packed 8-bit codes; formats that have: .*q4k"):
        HwDp4aGemv(format=FORMATS["F32"], k=512, n=1)
