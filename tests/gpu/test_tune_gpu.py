"""Tuning on a GPU: bandwidth, times, what a table changes and what it does not. `pytest -m gpu tests/gpu/test_tune_gpu.py`"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Q

from executor.choice.choice import GpuProfile
from executor.choice.strategies import bit_free, default_strategy
from executor.choice.table import TuningTable
from executor.device import open_device
from executor.device.gpu import GpuModel
from executor.device.protocol import Device
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.measure.bandwidth import bandwidth, known_bandwidth
from executor.measure.timing import fresh_weights, time_gemv
from executor.memory.buffers import GpuBuffer
from executor.model.generation import LanguageModel
from executor.model.step_times import step_times
from executor.tune.candidates import candidates
from executor.tune.keep import Gain
from executor.tune.tune import tune, winners
from ptxgen.formats import FORMATS, Format
from ptxgen.kernels.registry import find
from ptxgen.types import F32
from tests.synthetic import write_model

pytestmark = pytest.mark.gpu

Q4_K, Q6_K = FORMATS["Q4_K"], FORMATS["Q6_K"]
TOKENS = [5, 6, 7, 8]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(tmp_path / "cache"))


def test_bandwidth_is_measured_and_kept(gpu: Device) -> None:
    assert known_bandwidth(gpu) is None
    before = gpu.memory().allocated
    measured = bandwidth(gpu)
    assert 5e10 < measured < 2e13  # between the slowest GPU that is supported and twice the fastest one there is
    assert known_bandwidth(gpu) == measured
    assert gpu.memory().allocated == before


def test_a_kernel_on_fresh_weights_is_not_faster_than_the_memory(gpu: Device) -> None:
    """33 MB would fit the cache of an H200: a chain that came back to the same weights at once would read them faster."""
    kernel = find("hw_dp4a_q4k_gemv").make(k=4096, n=14336, digits=1)
    with fresh_weights(gpu, kernel) as weights:
        time = time_gemv(Launcher(gpu, Modules(gpu)), kernel, weights, runs=9)
    assert time.least <= time.median <= time.most
    assert time.most < 1.5 * time.least
    assert weights.buffers[0].nbytes / time.median < 1.1 * bandwidth(gpu)


@pytest.mark.parametrize("format", [Q4_K, Q6_K], ids=str)
def test_parameters_free_of_bits_give_the_same_bits(format: Format, gpu: Device) -> None:
    strategy = default_strategy(format, "accurate")
    launcher = Launcher(gpu, Modules(gpu))
    kernel = strategy.make(4096, 1000)
    given = kernel.inputs(np.random.default_rng(0))
    made = {name: GpuBuffer.from_numpy(gpu, given[name]) for name in kernel.signature() if name != "y"}
    settings: list[dict[str, Any]] = [
        {},
        {"num_warps": 4, "rows_per_warp": 1},
        {"rows_per_warp": 4, "ahead": 3, "resident_threads": 256},
        {"pdl": True, "num_warps": 2},
    ]
    results = []
    for free in settings:
        assert set(free) <= set(bit_free(strategy.kernel))
        y = GpuBuffer.zeros(gpu, F32, (1000,))
        launcher(strategy.make(4096, 1000, **free), y=y, **made)
        results.append(y.to_numpy())
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_weights_smaller_than_the_cache_are_read_from_memory_too(gpu: Device) -> None:
    """192 rows of 576 weights are 62 KB: without scratch, 256 copies of them would stay in the cache and be read faster."""
    kernel = find("hw_dp4a_q4_0_gemv").make(k=576, n=192, digits=1)
    launcher = Launcher(gpu, Modules(gpu))
    with fresh_weights(gpu, kernel) as weights:
        assert weights.scratch is not None
        fresh = time_gemv(launcher, kernel, weights, runs=9)
        cached = time_gemv(launcher, kernel, replace(weights, scratch=None), runs=9)
    assert cached.median < fresh.median


def test_tuning_chooses_something_at_least_as_fast_as_the_default(gpu: Device, tmp_path: Path) -> None:
    shapes = [(Q4_K, 2048, 8192), (Q6_K, 2048, 2048)]
    for precision in ("accurate", "fast"):
        done = tune(gpu, shapes, precision, tmp_path / "t.json")
        assert done.left_out == ()
        found = winners(done.table, shapes, precision)
        assert [shape for shape, _ in found] == shapes
        for (format, k, n), entry in found:
            usual = default_strategy(format, precision).make(k, n)
            measured = {
                one.make(n): one.seconds for one in done.table.entries if (one.precision, one.k, one.n) == (precision, k, n)
            }
            assert entry.seconds is not None
            default = measured[usual]
            assert default is not None
            assert entry.seconds <= default
            assert entry.clock == "device"
        assert tune(gpu, shapes, precision, tmp_path / "t.json").measured == 0


def test_every_candidate_is_right_on_this_gpu(gpu: Device, tmp_path: Path) -> None:
    shapes = [(FORMATS[name], 1024, 96) for name in ("Q4_0", "Q6_K", "MXFP4", "F16")]
    done = tune(gpu, shapes, "accurate", tmp_path / "t.json", runs=1)
    assert done.left_out == ()
    assert done.measured == sum(len(candidates(*shape, "accurate")) for shape in shapes)


def test_the_shipped_table_and_the_emulator_give_the_same_logits(gpu: Device, tmp_path: Path) -> None:
    types = {"": Q.Q4_K, "ffn_down": Q.Q6_K}
    path = write_model(tmp_path / "m.gguf", types=types, layers=2, hidden=512, heads=8, kv_heads=2, ff=1024, context=16)
    profile = GpuProfile.for_device(gpu)
    if not profile.tables:
        pytest.skip(f"no table is shipped for {GpuModel.of(gpu).name} or its generation")
    tuned = LanguageModel.load(path, gpu, profile=profile)
    plain = LanguageModel.load(path, gpu, profile=GpuProfile())
    with open_device("emulator") as emulator:
        expected = LanguageModel.load(path, emulator).logits(TOKENS)
    kernels = [{str(plan.kernel) for plan in model.decoder.prepare().whole} for model in (tuned, plain)]
    assert kernels[0] != kernels[1]  # else this shows nothing
    np.testing.assert_array_equal(tuned.logits(TOKENS), expected)
    np.testing.assert_array_equal(plain.logits(TOKENS), expected)


def test_a_profile_set_anew_takes_its_table_at_the_next_step(gpu: Device, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", types=Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=16)
    done = tune(gpu, [(FORMATS["Q8_0"], 64, 96)], "accurate", tmp_path / "t.json", pattern="q8_0_gemv")
    model = LanguageModel.load(path, gpu, profile=GpuProfile())
    before = model.logits(TOKENS)
    captures = model.decoder.captures
    model.decoder.profile = replace(model.decoder.profile, tables=(TuningTable("here", GpuModel.of(gpu), done.table.entries),))
    after = model.logits(TOKENS)
    assert model.decoder.captures > captures
    assert any(plan.kernel.name == "q8_0_gemv" for plan in model.decoder.prepare().whole)
    np.testing.assert_allclose(after, before, atol=1e-3 * float(np.abs(before).max()))


@pytest.mark.parametrize("rows", [1, 8, 128])
def test_two_tables_that_choose_the_same_differ_by_no_more_than_the_noise_often(rows: int, gpu: Device, tmp_path: Path) -> None:
    """Of ten comparisons of a step with itself at most two are taken for a gain."""
    types = {"": Q.Q4_K, "ffn_down": Q.Q6_K}
    path = write_model(tmp_path / "m.gguf", types=types, layers=4, hidden=1024, heads=8, kv_heads=2, ff=2048, context=128)
    profile = GpuProfile.for_device(gpu)
    with LanguageModel.load(path, gpu, profile=profile) as model:
        gains = [Gain.of(rows, *step_times(model.decoder, rows, (profile, profile), 9)) for _ in range(10)]
        allocated = gpu.memory().allocated
        step_times(model.decoder, rows, (profile, profile), 1)
        assert gpu.memory().allocated == allocated
    assert all(0 < gain.before < 0.1 for gain in gains)
    assert sum(gain.faster for gain in gains) <= 2


def test_a_table_that_makes_steps_slower_is_told_from_the_shipped_one(gpu: Device, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", types=Q.Q4_K, layers=4, hidden=2048, heads=16, kv_heads=4, ff=8192, context=64)
    profile = GpuProfile.for_device(gpu)
    slow = replace(profile, gemv={"q4k": "q4k_gemv"})
    with LanguageModel.load(path, gpu, profile=profile) as model:
        assert Gain.of(1, *step_times(model.decoder, 1, (profile, slow), 9)).slower
        assert Gain.of(1, *step_times(model.decoder, 1, (slow, profile), 9)).faster
