"""Tables of measurements as files: those that are shipped, those of a user, and what is refused in them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.base.environment import settings
from executor.choice.choice import GpuProfile
from executor.choice.store import add, load, own_table, shipped_for, shipped_tables, tables_for
from executor.choice.strategies import default_strategy
from executor.choice.table import TuningEntry, TuningTable
from executor.device.cuda import CudaDevice
from executor.device.emulated import EmulatedDevice
from executor.device.gpu import GpuModel
from executor.device.protocol import Device
from ptxgen.errors import ArgumentError
from ptxgen.formats import ALL, REPACKED
from ptxgen.kernels.gemm.f16_mma_gemm import HalfMmaGemm
from ptxgen.kernels.gemm.mma_gemm import MmaGemm
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.gemv.mwv import MwvGemv
from tests.executor.device.fake_driver import FakeDriver
from tests.executor.tune.measured import H200, HW, MWV, Q4_K, entry, profile

ALIGNED = REPACKED["Q6_K_ALIGNED"]


def test_shipped_tables_load_and_choose_what_every_device_uses() -> None:
    tables = shipped_tables()
    assert any(table.gpu == H200 and len(table.entries) > 30 for table in tables)
    for table in tables:
        for one in table.entries:
            format = next(f for f in ALL.values() if f.id == one.format)
            assert one.n is not None
            if one.rows > 1:
                continue
            kernel = GpuProfile(one.precision, tables=(table,)).choose(format, one.k, one.n).kernel
            usual = default_strategy(format, one.precision).make(one.k, one.n)
            assert replace(kernel, **{name: getattr(usual, name) for name in kernel.bit_free}) == usual


def test_a_shipped_table_decides_for_several_rows_unless_they_must_have_the_bits_of_one() -> None:
    several = entry(4096, 64, kernel="mma_q4k_gemm", seconds=1e-6, rows=8, error=1e-7, parameters={"digits": 3})
    chosen = profile(several, shipped=True)
    assert chosen.choose(Q4_K, 4096, 64, rows=5).kernel == MmaGemm(Q4_K, k=4096, n=64, m=5, digits=3)
    alike = chosen.with_rules("batch_invariant")
    for one_row in (chosen.choose(Q4_K, 4096, 64), alike.choose(Q4_K, 4096, 64, rows=5)):
        assert one_row.kernel == default_strategy(Q4_K, "accurate").make(4096, 64)


def test_weights_that_were_repacked_take_what_was_measured_of_the_blocks_of_files_until_they_are_measured() -> None:
    def q6k(kernel: str, rows: int, seconds: float, **parameters: int) -> TuningEntry:
        return replace(entry(4096, 64, kernel, rows=rows, seconds=seconds, parameters=parameters), format="q6k")

    native = (
        q6k("hw_dp4a_q6k_gemv", 1, 9e-6, digits=3, num_warps=4, rows_per_warp=1),
        q6k("mma_q6k_gemm", 8, 1e-6, digits=3),  # not registered for the other format
        q6k("half_mma_q6k_gemm", 8, 2e-6, parts=2, row_tiles=2, split=4, ahead=0),
    )
    chosen = profile(*native, shipped=True)
    one, several = (chosen.choose(ALIGNED, 4096, 64, rows=rows) for rows in (1, 5))
    assert one.kernel == HwDp4aGemv(ALIGNED, k=4096, n=64, digits=3, num_warps=4, rows_per_warp=1)
    assert several.kernel == HalfMmaGemm(ALIGNED, k=4096, n=64, m=5, parts=2, row_tiles=2, split=4, ahead=0)
    assert several.entry is not None
    assert (several.entry.rows, several.entry.seconds) == (8, None)
    assert "of Q6_K, whose kernels are taken for Q6_K_ALIGNED" in one.reason
    own = replace(native[0], format="q6k_aligned", kernel="hw_dp4a_q6k_aligned_gemv", parameters={"num_warps": 2})
    measured = profile(*native, own, shipped=True).choose(ALIGNED, 4096, 64)
    assert measured.kernel == HwDp4aGemv(ALIGNED, k=4096, n=64, digits=3, num_warps=2)
    assert measured.entry == own
    assert GpuProfile().choose(ALIGNED, 4096, 64).kernel == default_strategy(ALIGNED, "accurate").make(4096, 64)


def test_q8_0_that_was_repacked_has_the_kernels_of_q8_0_for_one_row_and_for_several() -> None:
    """So that its bits are those of Q8_0, whatever was measured of that."""
    made = REPACKED["Q8_0_ALIGNED"]
    native = tuple(
        replace(entry(4096, 64, kernel, rows=rows, seconds=2e-6, parameters=parameters), format="q8_0")
        for kernel, rows, parameters in (
            ("hw_dp4a_q8_0_gemv", 1, {"digits": 3, "num_warps": 4, "rows_per_warp": 1}),
            ("mma_q8_0_gemm", 8, {"digits": 3, "split": 2}),
        )
    )
    chosen = profile(*native, shipped=True)
    one, several = (chosen.choose(made, 4096, 64, rows=rows) for rows in (1, 5))
    assert one.kernel == HwDp4aGemv(made, k=4096, n=64, digits=3, num_warps=4, rows_per_warp=1)
    assert several.kernel == MmaGemm(made, k=4096, n=64, m=5, digits=3, split=2)
    assert "of Q8_0, whose kernels are taken for Q8_0_ALIGNED" in one.reason
    assert "of Q8_0, whose kernels are taken for Q8_0_ALIGNED" in several.reason
    alike = chosen.with_rules("batch_invariant")
    assert {alike.choose(made, 4096, 64, rows=rows).kernel.name for rows in (1, 5)} == {"hw_dp4a_q8_0_aligned_gemv"}


def test_one_measurement_of_repacked_weights_leaves_other_shapes_to_those_of_the_blocks_of_files() -> None:
    def of(format: str, k: int, warps: int) -> TuningEntry:
        return replace(entry(k, 64, f"hw_dp4a_{format}_gemv", parameters={"digits": 3, "num_warps": warps}), format=format)

    own = of("q6k_aligned", 4096, 2)
    chosen = profile(of("q6k", 14336, 16), own, shipped=True)
    assert chosen.choose(ALIGNED, 4096, 64).kernel == HwDp4aGemv(ALIGNED, k=4096, n=64, digits=3, num_warps=2)
    assert chosen.choose(ALIGNED, 14336, 64).kernel == HwDp4aGemv(ALIGNED, k=14336, n=64, digits=3, num_warps=16)
    alone = profile(own, shipped=True).choose(ALIGNED, 14336, 64)
    assert alone.kernel == HwDp4aGemv(ALIGNED, k=14336, n=64, digits=3, num_warps=2)


def test_a_gpu_without_a_table_takes_that_of_its_generation_and_none_of_another() -> None:
    of_generation = {table.gpu.name for table in shipped_tables() if table.gpu.target == "sm_90"}
    assert {table.gpu.name for table in shipped_for(GpuModel("NVIDIA GH200 480GB", "sm_90", 132))} == of_generation
    assert shipped_for(GpuModel("NVIDIA L4", "sm_89", 58)) == ()


def test_a_gpu_with_a_table_has_its_own_first_and_what_that_does_not_say_from_its_generation() -> None:
    own, *others = shipped_for(H200)
    assert own.gpu == H200
    assert others
    first, second, *_ = shipped_for(GpuModel("NVIDIA H100 80GB HBM3", "sm_90", 132))
    assert (first.gpu.name, second.gpu) == ("NVIDIA H100 80GB HBM3", H200)
    assert not any(entry.rows > 1 for entry in first.entries)
    assert any(entry.rows > 1 for entry in second.entries)


GOOD = {"precision": "accurate", "format": "q4k", "k": 4096, "n": 64, "kernel": HW, "parameters": {"num_warps": 4}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kernel": "hw_dp4a_q4k_gmv"}, "entry 2 no kernel is called 'hw_dp4a_q4k_gmv'; did you mean hw_dp4a_q4k_gemv"),
        ({"parameters": {"warps": 4}}, "entry 2 .* has no parameter 'warps'; it has k, n, digits, num_warps"),
        ({"parameters": {"num_warps": 99}}, r"entry 2 .*num_warps must be an integer, 1..32, got 99"),
        ({"parameters": {"num_warps": "4"}}, "entry 2 has parameters .*whole numbers, true or false"),
        ({"precision": "exact"}, "entry 2 has precision 'exact'; allowed: accurate, fast"),
        ({"format": "q9"}, "entry 2 has format 'q9'; allowed: f32, "),
        ({"format": "q6k"}, "entry 2 names hw_dp4a_q4k_gemv for Q6_K, but that is for Q4_K"),
        ({"k": 0}, "entry 2 has k 0; it must be a whole number of at least 1"),
        ({"n": "all"}, "entry 2 has n 'all'; it must be a whole number of at least 1, or any"),
        ({"seconds": -1.0}, "entry 2 has seconds -1.0; it must be a number of at least 0"),
        ({"clock": "sun"}, "entry 2 has clock 'sun'; allowed: device, host"),
        ({"rows": 0}, "entry 2 has rows 0; it must be a whole number of at least 1"),
        (
            {"rows": 4, "kernel": "dp4a_q4k_gemv", "parameters": {}},
            "entry 2 names dp4a_q4k_gemv for 4 rows, .*no form for several",
        ),
        ({"rows": 4, "parameters": {"m": 4}}, "entry 2 sets m; how many rows of activations there are is said by rows"),
        ({"rows": 9, "kernel": "batched_hw_dp4a_q4k_gemv"}, "entry 2 .*m must be an integer, 1..8, got 9"),
        ({"kernel": "batched_hw_dp4a_q4k_gemv"}, "entry 2 batched_hw_dp4a_q4k_gemv needs m"),
        ({"colour": 1}, "entry 2 has 'colour'; known: .*precision"),
    ],
)
def test_a_bad_entry_is_named_with_what_is_allowed(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "table.json"
    table = TuningTable("x", H200).to_json() | {"entries": [GOOD, GOOD | change]}
    path.write_text(json.dumps(table))
    with pytest.raises(ArgumentError, match=f"{path}: {said}"):
        load(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a tuning table"),
        ("[]", "must say format 'ptxgen tuning table'"),
        ('{"format": "ptxgen tuning table", "version": 7}', "has version 7 of a tuning table; known: 1"),
        ('{"format": "ptxgen tuning table", "version": 1, "gpu": "H200"}', "its gpu is 'H200'; it must have name"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(ArgumentError, match=said):
        load(tmp_path / "t.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"parameters": {"digits": 1}}, "sets digits, which changes the bits; allowed: num_warps, rows_per_warp"),
        ({"kernel": MWV}, "names mwv_q4k_gemv; a shipped table may only name what is used anyway, hw_dp4a_q4k_gemv"),
    ],
)
def test_a_shipped_table_that_would_change_bits_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    (tmp_path / "t.json").write_text(json.dumps(TuningTable("x", H200).to_json() | {"entries": [GOOD | change]}))
    load(tmp_path / "t.json")
    with pytest.raises(ArgumentError, match=said):
        load(tmp_path / "t.json", shipped=True)


def test_what_is_added_is_read_again_and_replaces_what_was_measured_before(tmp_path: Path) -> None:
    path = tmp_path / "new" / "t.json"
    add(path, H200, entry(4096, 64, seconds=2e-6, note="first"))
    add(path, H200, entry(4096, None))
    add(path, H200, entry(4096, 64, seconds=3e-6, rows=8))
    add(path, H200, entry(4096, 64, seconds=1e-6))
    several = entry(4096, 64, seconds=3e-6, rows=8)
    assert load(path).entries == (entry(4096, None), several, entry(4096, 64, seconds=1e-6))
    assert load(path).gpu == H200


def test_a_gpu_uses_the_users_table_of_its_name_from_the_cache_folder(driver: FakeDriver, own_cache: Path) -> None:
    with CudaDevice() as device:
        gpu = GpuModel.of(device)
        assert gpu.name in device.name
        assert GpuProfile.for_device(device).choose(Q4_K, 4096, 64).kernel.name == HW
        name = "".join(c if c.isalnum() else "-" for c in gpu.name.lower())
        add(own_cache / "tuning" / f"{name}.json", gpu, entry(4096, 64, MWV, parameters={}))
        chosen = GpuProfile.for_device(device)
    assert chosen.choose(Q4_K, 4096, 64).kernel == MwvGemv(Q4_K, k=4096, n=64)


def test_switched_off_no_table_is_used_and_the_rules_are_the_same(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    with CudaDevice() as device:
        with_tables = GpuProfile.for_device(device)
        assert with_tables.tables
        monkeypatch.setenv("PTXGEN_TUNING", "0")
        assert GpuProfile.for_device(device) == replace(with_tables, tables=())


def test_weights_are_repacked_attention_merged_products_fused_and_launches_early_but_on_the_emulator(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    def switches(device: Device) -> tuple[bool, bool, bool, bool]:
        allows = GpuProfile.for_device(device).allows
        reduces, starts, joins = map(allows, ("last_block_reduction", "dependent_launches", "horizontal_fusion"))
        return reduces, starts, joins, allows("repack")

    def rotates(device: Device) -> bool:
        return GpuProfile.for_device(device).allows("rope_fused_attention")

    with CudaDevice() as device, EmulatedDevice() as emulator:
        assert switches(device) == (True, True, True, True)
        assert switches(emulator) == (False, False, False, False)
        assert (rotates(device), rotates(emulator)) == (True, False)
        for value, allowed in (("0", False), ("1", True)):
            monkeypatch.setenv("PTXGEN_ROPE_FUSED_ATTENTION", value)
            assert (rotates(device), rotates(emulator)) == (allowed, allowed)
        monkeypatch.delenv("PTXGEN_ROPE_FUSED_ATTENTION")
        for table in shipped_tables():  # of no GPU before sm_90 is there one
            assert table.gpu.target == "sm_90"
        monkeypatch.setenv("PTXGEN_LAST_BLOCK_REDUCTION", "0")
        assert switches(device) == (False, True, True, True)
        monkeypatch.setenv("PTXGEN_DEPENDENT_LAUNCHES", "0")
        assert switches(device) == (False, False, True, True)
        monkeypatch.setenv("PTXGEN_HORIZONTAL_FUSION", "0")
        assert switches(device) == (False, False, False, True)
        monkeypatch.setenv("PTXGEN_GEMV_Q6K", "mwv_q6k_gemv")  # which is none for other blocks
        assert switches(device) == (False, False, False, False)
        monkeypatch.setenv("PTXGEN_REPACK", "1")
        with pytest.raises(ArgumentError, match="name one for 'q6k_aligned'"):
            GpuProfile.for_device(device)
        monkeypatch.delenv("PTXGEN_REPACK")
        monkeypatch.delenv("PTXGEN_GEMV_Q6K")
        assert switches(device) == (False, False, False, True)
        monkeypatch.setenv("PTXGEN_REPACK", "0")
        assert switches(device) == (False, False, False, False)


def test_the_emulator_uses_a_table_only_where_the_environment_names_it(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmulatedDevice() as device:
        gpu = GpuModel.of(device)
        add(own_cache / "tuning" / "emulator.json", gpu, entry(4096, 64, MWV, parameters={}))
        assert replace(GpuProfile.for_device(device), costs=None) == GpuProfile()
        monkeypatch.setenv("PTXGEN_TUNING", str(own_cache / "tuning" / "emulator.json"))
        assert GpuProfile.for_device(device).choose(Q4_K, 4096, 64).kernel.name == MWV
        add(tmp_path / "other.json", H200, entry(4096, 64))
        monkeypatch.setenv("PTXGEN_TUNING", str(tmp_path / "other.json"))
        with pytest.raises(ArgumentError, match=r"was measured on NVIDIA H200, and this is emulator"):
            GpuProfile.for_device(device)


def test_a_table_that_the_environment_names_and_that_is_not_there_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTXGEN_TUNING", str(tmp_path / "none.json"))
    with pytest.raises(ArgumentError, match=r"none.json: the tuning table cannot be read: No such file"):
        tables_for(H200, settings())


def test_a_new_table_goes_on_from_the_users_that_is_used_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = tmp_path / "used.json"
    add(used, H200, entry(4096, 64))
    monkeypatch.setenv("PTXGEN_TUNING", str(used))
    new = own_table(tmp_path / "new.json", H200, settings())
    assert (new.source, new.entries) == (str(tmp_path / "new.json"), (entry(4096, 64),))
    add(tmp_path / "new.json", H200, entry(4096, None))
    assert own_table(tmp_path / "new.json", H200, settings()).entries == (entry(4096, None),)
    monkeypatch.setenv("PTXGEN_TUNING", str(tmp_path / "none.json"))
    assert own_table(tmp_path / "none.json", H200, settings()).entries == ()
