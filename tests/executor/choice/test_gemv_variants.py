"""The profile names another GEMV: it is used for its format, or refused because it is not one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from executor.choice.choice import GpuProfile
from executor.device.emulated import EmulatedDevice
from executor.layers.projection import bind
from executor.memory.buffers import GpuBuffer
from executor.memory.weights import LoadedWeight
from executor.model.generation import LanguageModel
from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS
from ptxgen.kernels import registry
from ptxgen.kernels.gemv.basic import Gemv
from ptxgen.types import U8
from tests.synthetic import Q, write_model


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as opened:
        yield opened


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a registered GEMV for Q8_0 that is another class than the basic one."""
    monkeypatch.setattr(registry, "_entries", dict(registry.entries()))

    @registry.register(format=[FORMATS["Q8_0"]])
    @dataclass(frozen=True)
    class Mine(Gemv):
        """The basic one under another name."""

        name = "mine"

    return "mine"


def weight(device: EmulatedDevice, name: str, *, k: int, n: int) -> LoadedWeight:
    format = FORMATS[name]
    return LoadedWeight("blk.0.ffn_up.weight", GpuBuffer.empty(device, U8, (n, format.row_bytes(k))), format, n, k)


@pytest.mark.parametrize(
    ("format", "precision", "chosen"),
    [
        ("Q8_0", "accurate", "hw_dp4a_q8_0_gemv(k=256, n=3, digits=3"),
        ("Q8_0", "fast", "hw_dp4a_q8_0_gemv(k=256, n=3, digits=1"),
        ("F16", "fast", "mwv_f16_gemv(k=256, n=3"),
    ],
)
def test_without_a_name_the_precision_decides(device: EmulatedDevice, format: str, precision: str, chosen: str) -> None:
    kernel = bind(weight(device, format, k=256, n=3), GpuProfile(precision)).kernel
    assert str(kernel).startswith(chosen)


def test_an_input_with_an_outlier_gets_an_accurate_kernel_whatever_the_precision(device: EmulatedDevice) -> None:
    kernel = bind(weight(device, "Q4_K", k=256, n=3), GpuProfile("fast"), accurate=True).kernel
    assert str(kernel).startswith("hw_dp4a_q4k_gemv(k=256, n=3, digits=3")


@pytest.mark.parametrize(
    ("named", "chosen"),
    [
        ("mwv_q4k_gemv", "mwv_q4k_gemv"),
        ("hw_dp4a_q4k_gemv:digits=2", "hw_dp4a_q4k_gemv(k=256, n=3, digits=2"),
        ("hw_dp4a_q4k_gemv:digits=1", "hw_dp4a_q4k_gemv(k=256, n=3, digits=3"),
    ],
)
def test_a_named_kernel_gives_way_to_an_outlier_only_if_it_reads_one_digit(
    device: EmulatedDevice, named: str, chosen: str
) -> None:
    profile = GpuProfile("fast", gemv={"q4k": named})
    assert str(bind(weight(device, "Q4_K", k=256, n=3), profile, accurate=True).kernel).startswith(chosen)


@pytest.mark.parametrize(
    ("format", "named", "said"),
    [
        ("Q4_0", "q4k_gemv", "^q4k_gemv is for Q4_K; the profile names it for Q4_0$"),
        ("Q4_0", "silu", "silu has no parameter 'k'"),
        ("Q4_0", "q4_0_gmv", "no kernel is called 'q4_0_gmv'; did you mean q4_0_gemv"),
        ("F16", "f16_dequant_f16", "cannot multiply blk.0.ffn_up.weight: it takes .*, the executor gives w: u8.*y: f32"),
    ],
)
def test_a_kernel_that_does_not_fit_is_refused_with_the_reason(
    device: EmulatedDevice, format: str, named: str, said: str
) -> None:
    profile = GpuProfile(gemv={FORMATS[format].id: named})
    with pytest.raises(ArgumentError, match=said):
        bind(weight(device, format, k=256, n=3), profile)


@pytest.mark.parametrize("k", [256, 288])
@pytest.mark.parametrize("named", ["q4k_gemv", "hw_dp4a_q4k_gemv:digits=2", "tiled_q4k_gemv:outputs_per_block=99"])
def test_a_kernel_of_another_format_is_refused_for_its_format_whatever_else_does_not_fit(
    device: EmulatedDevice, named: str, k: int
) -> None:
    with pytest.raises(ArgumentError, match=r"^\w*q4k_gemv is for Q4_K; the profile names it for Q4_1$"):
        bind(weight(device, "Q4_1", k=k, n=3), GpuProfile(gemv={"q4_1": named}))


@pytest.mark.slow
def test_a_model_runs_through_the_kernel_that_the_profile_names(device: EmulatedDevice, mine: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", types=Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=8)
    plain = LanguageModel.load(path, device, profile=GpuProfile(gemv={"q8_0": "q8_0_gemv"}))
    other = LanguageModel.load(path, device, profile=GpuProfile(gemv={"q8_0": mine}))
    names = [{plan.kernel.name for plan in model.decoder.prepare().whole} for model in (plain, other)]
    assert names[0] - names[1] == {"q8_0_gemv"}
    assert names[1] - names[0] == {mine}
    assert np.array_equal(plain.logits([1, 2]), other.logits([1, 2]))
