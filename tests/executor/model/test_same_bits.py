"""A model has the same bits whatever GPU its profile is for: a token after the other at any depth, and with `batch_invariant`
several at once, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.base.environment import PRECISIONS
from executor.base.rules import RULES
from executor.choice.choice import GpuProfile
from executor.device import Device
from executor.device.gpu import EMULATOR, GpuModel
from executor.launch.launch import LaunchRecord
from executor.model.engine import Engine
from executor.model.generation import LanguageModel
from executor.model.step import Row
from ptxgen.target import Target
from tests.executor.model.ways import written
from tests.synthetic import FORMATS, Q, write_model

Way = Callable[[LanguageModel], list[bytes]]
CONTEXT, DEEP, TOKENS = 1024, 700, (1, 260, 42)
GPUS = (
    GpuModel("NVIDIA H200", "sm_90", 132),
    GpuModel("NVIDIA H100 80GB HBM3", "sm_90", 132),
    GpuModel("NVIDIA H20 of a later year", "sm_90", 78),
    GpuModel("NVIDIA L4", "sm_89", 58),
)
"""Two with a table, one that has those of its generation, one without."""
SHAPE: dict[str, Any] = {"layers": 1, "hidden": 256, "heads": 4, "kv_heads": 2, "ff": 512, "vocab": 272, "context": CONTEXT}
FEW_SIZES = {"kv_heads": 4, "ff": 256}
"""For every format: matrices of one size but for the head, so that few kernels are compiled."""


def profile_of(gpu: GpuModel, precision: str, rules: Sequence[str]) -> GpuProfile:
    return replace(GpuProfile.for_gpu(gpu, Target(int(gpu.target[3:]))), precision=precision).with_rules(*rules)


def q4_k_m(folder: Path) -> Path:
    """As llama.cpp makes them: Q6_K where it matters most."""
    types = {"": Q.Q4_K, **dict.fromkeys(("attn_v", "ffn_down", "token_embd"), Q.Q6_K)}
    return write_model(folder / "m.gguf", "llama", types, **SHAPE)


def one_by_one(model: LanguageModel) -> list[bytes]:
    """The logits after each token, of the last one in the depth."""
    found = [model.logits(TOKENS)]
    cache, rng = model.decoder.cache, np.random.default_rng(1)
    for layer in cache.layers:
        for rows in (layer.keys, layer.values):
            rows.upload(rng.standard_normal(rows.shape, np.float32))
    cache.advance(DEEP)
    model.decoder.step(TOKENS[-1])
    return [*map(np.ndarray.tobytes, found), model.decoder.logits().tobytes()]


def at_once(model: LanguageModel) -> list[bytes]:
    """The logits of a prompt's last token, and of eight sequences in one step."""
    model.decoder.reset()
    model.decoder.feed([at % 200 for at in range(40)])
    model.decoder.step(TOKENS[0])
    found = [model.decoder.logits().tobytes()]
    engine = Engine(model.decoder, slots=8, context=32)
    for slot in range(8):
        engine.set_table(slot, [slot])
    scores = engine.step([Row(slot, 3 + slot, 0, scored=True) for slot in range(8)])
    found += [scores.logits(row).tobytes() for row in range(8)]
    engine.free()
    return found


def require_the_same(
    path: Path,
    device: Device,
    *ways: Way,
    gpus: Sequence[GpuModel] = GPUS,
    precision: str = PRECISIONS[0],
    rules: Sequence[str] = (),
) -> None:
    """What the ways give with a profile without tables, as the emulator's, and with those of the GPUs; by no kernel that adds
    floats in an order that PTX leaves open, which would be the emulator's own here."""
    wanted = None
    of_gpus = {gpu.name: profile_of(gpu, precision, rules) for gpu in gpus}
    for name, profile in {EMULATOR: GpuProfile(precision).with_rules(*rules), **of_gpus}.items():
        with LanguageModel.load(path, device, context=CONTEXT, profile=profile) as model:
            launched: list[LaunchRecord] = []
            model.decoder.launcher.observers.append(launched.append)
            found = [way(model) for way in ways]
        assert launched
        assert {record.kernel.name for record in launched if not record.kernel.emulator_bits} == set(), name
        wanted = wanted or found
        assert found == wanted, name


def test_a_token_has_the_same_bits_on_an_h200_as_on_the_emulator_at_any_depth(tmp_path: Path, device: Device) -> None:
    require_the_same(q4_k_m(tmp_path), device, one_by_one, gpus=GPUS[:1])


SAME_BITS = [rule.name for rule in RULES.values() if rule.same_bits and rule.name != "persistent_layers"]
DESIGNS = ("plamo", "apertus", "cohere2", "deci", "gemma2", "gemma3", "granite", "minicpm", "olmo2", "phi2", "smollm3")
"""Architectures whose layers differ: norms shared by attention and the network, before and after both, and of heads; scales;
activations without a gate; layers without a part."""


@pytest.mark.parametrize("name", [DESIGNS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in DESIGNS[1:])])
def test_a_token_has_the_same_bits_by_all_rules_and_by_none(name: str, tmp_path: Path, device: Device) -> None:
    path, usual = written(name, tmp_path), GpuProfile.for_device(device)
    logits = []
    for profile in (usual.with_rules(*SAME_BITS), usual.without(*SAME_BITS)):
        with LanguageModel.load(path, device, profile=profile) as model:
            logits.append(model.logits(TOKENS).view(np.uint32))
    assert np.array_equal(logits[0], logits[1])


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_tokens_have_the_same_bits_on_every_gpu_one_by_one_and_if_batch_invariant_together(
    precision: str, tmp_path: Path, device: Device
) -> None:
    path = q4_k_m(tmp_path)
    require_the_same(path, device, one_by_one, precision=precision)
    require_the_same(path, device, at_once, one_by_one, precision=precision, rules=["batch_invariant"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_every_format_has_the_same_bits_on_every_gpu(kind: Any, tmp_path: Path, device: Device) -> None:
    path = write_model(tmp_path / "m.gguf", "llama", kind, **SHAPE | FEW_SIZES)
    require_the_same(path, device, one_by_one)
    require_the_same(path, device, at_once, rules=["batch_invariant"])
