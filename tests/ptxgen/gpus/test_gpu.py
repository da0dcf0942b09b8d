"""Known GPUs by name, their tensor units beside the peaks of their data sheets, and how many blocks fit."""

from __future__ import annotations

import pytest

from ptxgen.errors import ArgumentError
from ptxgen.gpus.gpu import GPUS, find_gpu, newest_for
from ptxgen.gpus.multiprocessor import MULTIPROCESSORS, multiprocessor_of
from ptxgen.gpus.occupancy import occupancy
from ptxgen.target import ALL, Target


@pytest.mark.parametrize(
    ("sm", "threads", "registers", "shared_bytes", "blocks", "limit"),
    [  # as NVIDIA's occupancy calculator has them
        (90, 256, 32, 0, 8, "threads"),
        (90, 256, 64, 0, 4, "registers"),
        (90, 128, 40, 0, 12, "registers"),
        (90, 32, 16, 0, 32, "blocks"),
        (86, 32, 16, 0, 16, "blocks"),
        (90, 128, 32, 48 * 1024, 4, "shared memory"),
        (75, 128, 32, 16 * 1024, 4, "shared memory"),
        (89, 1024, 32, 0, 1, "threads"),
    ],
)
def test_occupancy(sm: int, threads: int, registers: int, shared_bytes: int, blocks: int, limit: str) -> None:
    found = occupancy(MULTIPROCESSORS[sm], threads, registers, shared_bytes)
    assert (found.blocks, found.limit) == (blocks, limit)
    assert found.warps == blocks * threads // 32


def test_a_gpu_is_found_in_any_spelling_and_an_unknown_one_lists_the_known() -> None:
    assert find_gpu("RTX 4090").multiprocessors == 128
    with pytest.raises(ArgumentError, match=r"unknown GPU 'rtx4091'; did you mean rtx4090.*\? known: t4, a100"):
        find_gpu("rtx4091")


def test_every_target_has_a_gpu_that_runs_it() -> None:
    for target in ALL:
        assert newest_for(target).sm == target.sm
    assert newest_for(Target(88)).sm == 89
    assert all(gpu.sm in MULTIPROCESSORS and gpu.source for gpu in GPUS.values())
    assert len({gpu.product for gpu in GPUS.values()}) == len(GPUS)


def test_a_block_never_has_more_shared_memory_than_its_multiprocessor() -> None:
    for sm, multiprocessor in MULTIPROCESSORS.items():
        taken = multiprocessor.shared_block_bytes + multiprocessor.shared_reserved_bytes
        assert taken == multiprocessor.shared_bytes, sm


def test_a_generation_that_is_newer_than_the_known_is_taken_for_the_newest() -> None:
    assert multiprocessor_of(88) == MULTIPROCESSORS[87]
    assert multiprocessor_of(200) == MULTIPROCESSORS[max(MULTIPROCESSORS)]


@pytest.mark.parametrize(
    ("name", "clock_mhz", "f16", "int8"),
    [  # the clock of the peaks where it is not the highest; dense, in 1e12 operations a second
        ("t4", 1590, 65, 130),
        ("a100", 1410, 312, 624),
        ("a10", 1695, 125, 250),
        ("rtx3090", 1695, 71, 284),
        ("orin", 1300, 42.5, 85),
        ("l4", 2040, 121, 242),
        ("l40s", 2520, 366, 733),
        ("rtx4090", 2520, 165.2, 660.6),
        ("h100", 1830, 989, 1979),
        ("b200", 1850, 2250, 4500),
        ("b300", 1850, 2250, 140),
        ("thor", 1575, 258, 517),
        ("rtx5090", 2407, 209.5, 838),
        ("rtx5070", 2512, 61.7, 246.9),
        ("rtxpro6000", 2617, 503.8, 1007.6),
    ],
)
def test_tensor_units_reach_the_peaks_of_the_data_sheet(name: str, clock_mhz: int, f16: float, int8: float) -> None:
    gpu = GPUS[name]
    rates = gpu.multiprocessor.warpgroup or gpu.multiprocessor.mma
    for rate, peak in ((rates.f16, f16), (rates.int8, int8)):
        assert 2 * rate * gpu.multiprocessors * clock_mhz * 1e6 == pytest.approx(peak * 1e12, rel=0.015)
