"""A file that does not run: its error names what is missing, and what runs in its place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from executor.base.errors import ModelError, UnsupportedModel
from executor.gguf.gguf_file import GgufFile
from executor.model.architectures import ARCHITECTURES
from executor.model.families import FAMILIES, QWEN3, what_runs
from executor.model.kernel_limits import runnable_spec
from executor.model.missing_parts import ALWAYS, PARTS
from tests.synthetic import Q, write_model

LONGEST = 300
"""Characters of an error, without the path."""


def stand_in(architecture: str, keys: Mapping[str, object], tensors: Mapping[str, tuple[int, ...]] | None = None) -> GgufFile:
    """A file of this architecture, with keys without its name, and tensors by their shapes."""
    metadata = {"general.architecture": architecture, **{f"{architecture}.{key}": value for key, value in keys.items()}}
    shapes = {"blk.0.attn_norm.weight": (64,)} if tensors is None else tensors
    infos = {name: SimpleNamespace(shape=shape) for name, shape in shapes.items()}
    return cast(GgufFile, SimpleNamespace(path=Path("m.gguf"), metadata=metadata, tensors=infos))


def refusal(file: GgufFile) -> str:
    """What is said of a file, without its path."""
    with pytest.raises(ModelError) as caught:
        runnable_spec(file)
    said = str(caught.value).removeprefix(f"{file.path}: ")
    assert "\n" not in said
    assert len(said) < LONGEST
    return said


@pytest.mark.parametrize(
    ("architecture", "keys", "billions", "said"),
    [
        ("qwen3moe", {"expert_count": 128}, 30.5, "experts; nearest that runs: Qwen3 32B"),
        ("qwen35", {"ssm.state_size": 128}, 9, "recurrent layers; nearest that runs: Qwen3 8B"),
        ("gemma4", {"embedding_length_per_layer_input": 256}, 7.5, "embeddings of each layer; nearest that runs: Gemma 3 12B"),
        (
            "deepseek2",
            {"expert_count": 64, "attention.kv_lora_rank": 512},
            15.7,
            "experts, latent attention; nearest that runs: ",
        ),
        ("phimoe", {"expert_count": 16}, 42, "experts; nearest that runs: Phi-4 14B"),
        ("jamba", {"ssm.state_size": 16}, 7.1, "recurrent layers; of about its size runs: Qwen3 8B"),
        (
            "nomic-bert",
            {"attention.causal": False},
            0.14,
            "attention in both directions; nearest that runs: Qwen3 Embedding 0.6B",
        ),
    ],
)
def test_an_unknown_architecture_names_the_parts_and_the_nearest_model_of_its_family(
    architecture: str, keys: dict[str, object], billions: float, said: str
) -> None:
    file = stand_in(architecture, keys, {"blk.0.attn_q.weight": (int(billions * 1e6), 1000)})
    assert f"architecture '{architecture}' is not supported; not computed: {said}" in refusal(file)


@pytest.mark.parametrize("part", [part for part in PARTS if part.key], ids=lambda part: part.key)
def test_each_part_is_found_by_its_key(part: object) -> None:
    name, key, _, without = cast("tuple[str, str, str, object]", part)
    other = {0: 8, True: False, None: 0}[cast("int | None", without)]
    assert f"not computed: {name};" in refusal(stand_in("other", {key: other}))
    assert "not computed" not in refusal(stand_in("other", {} if without is None else {key: without}))


@pytest.mark.parametrize(
    ("tensor", "name"),
    [
        ("blk.3.ffn_gate_up_exps.weight", "experts"),
        ("blk.0.ssm_a", "recurrent layers"),
        ("blk.0.attn_sinks.weight", "attention sinks"),
        ("blk.0.attn_qkv.scale", "scales of several NVFP4 matrices in one"),
        ("enc.blk.0.attn_q.weight", "an encoder"),
        ("altup_proj.weight", "several residual streams"),
    ],
)
def test_parts_are_found_by_their_tensors(tensor: str, name: str) -> None:
    assert f"not computed: {name};" in refusal(stand_in("other", {}, {"blk.0.attn_norm.weight": (64,), tensor: (64,)}))


@pytest.mark.parametrize(("architecture", "part"), ALWAYS.items())
def test_a_part_without_a_key_is_known_by_an_architecture_that_does_not_run(architecture: str, part: str) -> None:
    assert architecture not in ARCHITECTURES
    assert f"not computed: {part};" in refusal(stand_in(architecture, {}))


def test_a_known_architecture_with_experts_names_them_and_what_runs(tmp_path: Path) -> None:
    said = refusal(GgufFile.open(write_model(tmp_path / "m.gguf", layers=1, metadata={"llama.expert_count": 8})))
    assert said == (
        "llama.expert_count is 8, which is not supported; supported: 0; not computed: experts; nearest that runs: Mistral 7B"
    )


def test_a_wrong_file_of_a_known_architecture_names_no_other_model(tmp_path: Path) -> None:
    said = refusal(GgufFile.open(write_model(tmp_path / "m.gguf", layers=1, metadata={"llama.block_count": 0})))
    assert said.startswith("llama.block_count is 0;")
    assert "runs" not in said


def test_a_size_that_no_kernel_takes_names_what_runs(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", layers=1, head_dim=66, types=Q.F16)
    assert refusal(GgufFile.open(path)).endswith("; nearest that runs: Mistral 7B")


@pytest.mark.parametrize(
    ("architecture", "kind", "tensors", "said"),
    [
        ("clip", "mmproj", ["v.blk.0.attn_q.weight"], "a projector for images; load the file of the language model"),
        ("llama", "adapter", ["blk.0.attn_q.weight.lora_a"], "an adapter (LoRA); load the model that it was made for"),
        ("qwen35", "model", ["blk.32.nextn.eh_proj.weight"], "only layers for drafts (there is no blk.0); load the file of"),
    ],
)
def test_a_file_that_holds_no_language_model_says_what_to_load(
    architecture: str, kind: str, tensors: list[str], said: str
) -> None:
    file = stand_in(architecture, {}, dict.fromkeys(tensors, (64,)))
    cast("dict[str, object]", file.metadata)["general.type"] = kind
    assert refusal(file).startswith(f"the file holds {said}")


def test_a_name_of_any_length_makes_a_short_error() -> None:
    everything = {part.key: False if part.without is True else 8 for part in PARTS if part.key}
    assert len(refusal(stand_in("x" * 10_000, {}))) < LONGEST
    assert "experts, latent attention, recurrent layers, short convolutions and 5 more;" in refusal(
        stand_in("deepseek2", everything)
    )


def test_every_family_is_of_an_architecture_that_runs_and_its_sizes_rise() -> None:
    for family in FAMILIES.values():
        assert family.architecture in ARCHITECTURES
        assert [family.nearest(10.0**power) for power in (-9, 9)] == [family.names[0], family.names[-1]]


def test_nearest_is_by_ratio() -> None:
    assert QWEN3.nearest(math.sqrt(8 * 14) - 0.1) == "Qwen3 8B"
    assert QWEN3.nearest(math.sqrt(8 * 14) + 0.1) == "Qwen3 14B"
    assert what_runs(stand_in("qwen3", {}, {}), "qwen3").endswith("Qwen3 0.6B")


def test_it_is_a_model_error() -> None:
    assert issubclass(UnsupportedModel, ModelError)
