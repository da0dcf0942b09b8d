"""`ptxrun bench KERNEL` on the emulator, and how launches of a kernel are timed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from executor.device import Device, open_device
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher, Plan
from executor.launch.modules import Modules
from executor.measure import kernel_speed
from executor.measure.kernel_plot import LINES
from executor.measure.kernel_speed import time_kernels
from executor.measure.profiler import Limit
from ptxgen.kernels.registry import find
from tests.cli.invoke import facts, invoke, refused

EMULATOR = ("--device", "emulator", "--rounds", "3")
GEMV = ("bench", "q4k_gemv", "--set", "k=256", "--set", "n=8", *EMULATOR)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for all tests here, which time the same kernels."""
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "timed-kernels"))


def test_json_has_times_rates_and_the_ratio_of_each_kernel() -> None:
    said = facts("ptxrun", *GEMV, "--against", "mwv_q4k_gemv")
    ours, other = said["results"]
    assert (ours["kernel"], other["kernel"]) == ("q4k_gemv", "mwv_q4k_gemv")
    assert (ours["shape"]["k"], other["shape"]["n"]) == (256, 8)
    work = find("q4k_gemv").make(k=256, n=8).work()
    times = ours["microseconds"]
    assert 0 < times["least"] <= times["median"] <= times["most"]
    assert times["rounds"] == 3
    assert (ours["bytes"], ours["flops"]) == (work.bytes, work.flops)
    assert ours["gbytes_per_second"] == pytest.approx(work.bytes / times["median"] / 1e3)
    assert (ours["times_as_fast"], other["times_as_fast"]) == (1, times["median"] / other["microseconds"]["median"])
    assert said["limit"] is ours["share_of_roofline"] is None
    assert said["machine"]["kind"] == "emulator"


def test_the_table_fits_and_says_that_times_of_the_emulator_mean_nothing() -> None:
    result = invoke("ptxrun", *GEMV)
    assert result.exit_code == 0, result.output
    head, row = result.stdout.rstrip("\n").split("\n")
    assert head.split() == ["kernel", "us", "least", "most", "GB/s", "GFLOP/s"]
    assert row.startswith("q4k_gemv(k=256, n=8)")
    assert "times of the emulator are the CPU's and say nothing about a GPU" in result.stderr


def test_the_plot_has_a_line_a_kernel(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = invoke("ptxrun", *GEMV, "--against", "mwv_q4k_gemv", "--plot", tmp_path / "times.svg")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "times.svg").read_text()
    assert "q4k_gemv(k=256, n=8)" in text
    assert "mwv_q4k_gemv(k=256" in text
    assert len({colour for colour, _ in LINES}) == len({marker for _, marker in LINES}) == len(LINES)


def test_without_matplotlib_a_plot_is_refused_before_anything_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = refused("ptxrun", *GEMV, "--plot", tmp_path / "times.svg")
    assert 'pip install "matplotlib' in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("q4kgemv",), "no kernel is called 'q4kgemv'; did you mean q4k_gemv"),
        (("q4k_gemv", "--set", "k=256"), "q4k_gemv"),
        (("q4k_gemv", "--depth", "4"), "--depth is for models, and q4k_gemv is a kernel"),
        (("model.gguf", "--set", "k=256"), "--set is for kernels, and model.gguf is a model"),
        (("./q4k_gemv",), "q4k_gemv: there is no such file"),
        (("q4k_gemv", "--set", "k=256", "--set", "n=8", "--plot", "x.pdf"), "--plot x.pdf: a picture ends in .png or .svg"),
    ],
)
def test_what_cannot_be_timed_is_refused(words: tuple[str, ...], said: str) -> None:
    assert refused("ptxrun", "bench", *words).startswith(said)


def test_launches_on_a_gpu_take_arguments_in_turn_which_are_no_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = find("residual_add").make(n=512)  # two arrays, 4 kB
    launched: list[tuple[int, ...]] = []

    class Recorded(LaunchGraph):
        def __init__(self, device: Device, plans: Sequence[Plan]) -> None:
            launched.extend(tuple(plan.arguments[name].pointer for name in kernel.signature()) for plan in plans)
            assert all(one.to_numpy().all() for plan in plans for one in plan.arguments.values())
            super().__init__(device, plans)

    monkeypatch.setattr(kernel_speed, "FRESH_BYTES", 4 * 4096)
    monkeypatch.setattr(kernel_speed, "LaunchGraph", Recorded)
    with open_device("emulator") as device:
        launcher = Launcher(device, Modules(device))
        monkeypatch.setattr(type(device), "kind", "cuda")
        (speed,) = time_kernels(launcher, [kernel], 2, limit=Limit(1e9, 1e12))
    assert len(launched) == 2 * len(set(launched)) == 8  # as many as one graph has at least
    assert (speed.copies, len(speed.seconds)) == (4, 2)
    assert speed.least_possible == pytest.approx(kernel.work().bytes / 1e9)
    assert speed.share == pytest.approx(kernel.work().bytes / 1e9 / speed.median)


@pytest.mark.gpu
def test_a_gpu_times_every_launch_on_fresh_arguments() -> None:
    said = facts(
        "ptxrun", "bench", "q4k_gemv", "--set", "k=4096", "--set", "n=4096", "--against", "mwv_q4k_gemv", "--device", "cuda"
    )
    for one in said["results"]:
        assert one["copies"] * one["bytes"] >= 256 << 20
        assert 0.1 < one["share_of_roofline"] < 1.1


def test_a_kernel_of_several_devices_is_refused() -> None:
    said = refused("ptxrun", "bench", "all_gather", "--set", "n=64", "--set", "ranks=2", *EMULATOR)
    assert "all_gather(n=64, ranks=2, m=1) waits for its launches on 2 devices; this times one device" in said
