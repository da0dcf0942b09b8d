"""Kernels that a graph makes dependent, on a GPU: the bits of launching them one by one, again and again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executor.device import Device
from ptxgen.formats import FORMATS
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from tests.executor.launch.dependent_chain import results
from tests.executor.model.test_dependent_launches import CONTEXT, decoded
from tests.ptxgen.kernels import gemvs
from tests.synthetic import Q, write_model

Make = Callable[..., HwDp4aGemv]

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("format", ["Q4_K", "Q6_K", "Q8_0"])
@pytest.mark.parametrize("kind", [HwDp4aGemv, gemvs.residual, gemvs.batched], ids=lambda kind: kind.__name__)
def test_kernels_that_are_dependent_give_the_bits_of_those_that_do_not(kind: Make, format: str, gpu: Device) -> None:
    if gpu.target.sm < 90:
        pytest.skip("programmatic dependent launch needs sm_90")
    more: dict[str, Any] = {"m": 2} if kind is gemvs.batched else {}
    kernel = kind(format=FORMATS[format], k=4096, n=4097, **more)
    one_by_one, dependent = (results(gpu, kernel, dependent=dependent, replays=20) for dependent in (False, True))
    assert dependent == one_by_one


@pytest.mark.parametrize("layers", [2, 12])
def test_steps_whose_launches_are_dependent_give_the_bits_of_those_that_do_not(
    layers: int, gpu: Device, tmp_path: Path
) -> None:
    if gpu.target.sm < 90:
        pytest.skip("programmatic dependent launch needs sm_90")
    path = write_model(
        tmp_path / "m.gguf", "llama", Q.Q4_K, layers=layers, hidden=256, heads=4, kv_heads=2, ff=256, context=CONTEXT
    )
    waiting, dependent = (decoded(path, gpu, dependent=dependent, rounds=20)[0] for dependent in (False, True))
    assert dependent == waiting
