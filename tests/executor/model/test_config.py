"""Metadata to a configuration, and the tensors that must go with it."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import gguf
import pytest

from executor.base.errors import ModelError
from executor.gguf.gguf_file import GgufFile
from executor.model.kernel_limits import runnable_spec
from executor.model.model_file import read_spec
from executor.model.spec import Attention, Block, Dense, ModelSpec, Norms, RopeSpec
from executor.model.tensors import expected_tensors
from ptxgen.kernels.rope.frequencies import Yarn
from tests.real_models import smollm2_path
from tests.synthetic import FORMATS, Q, write_model


def load(path: Path) -> ModelSpec:
    with GgufFile.open(path) as file:
        return runnable_spec(file)


def with_metadata(file: GgufFile, changed: Mapping[str, object]) -> GgufFile:
    """The file with other values of keys; None stands for a key that it lacks."""
    metadata = {key: value for key, value in {**file.metadata, **changed}.items() if value is not None}
    return cast(GgufFile, SimpleNamespace(path=file.path, tensors=file.tensors, metadata=metadata))


def renamed(path: Path, old: str, new: str) -> Path:
    """The file with one name changed, in place: both must be equally long."""
    assert len(old) == len(new)
    content = path.read_bytes()
    assert struct.pack("<Q", len(old)) + old.encode() in content
    path.write_bytes(content.replace(struct.pack("<Q", len(old)) + old.encode(), struct.pack("<Q", len(new)) + new.encode()))
    return path


def test_smollm2() -> None:
    spec = load(smollm2_path())
    assert (spec.layers, spec.hidden, spec.vocab, spec.tied) == (30, 576, 49152, True)
    assert spec.norm.eps == pytest.approx(1e-5)
    rope = RopeSpec("adjacent", 64, 100000.0)
    assert set(spec.blocks) == {Block(Attention(9, 3, 64, rope), Dense(1536), Norms(spec.norm))}
    assert (spec.layer.q_dim, spec.layer.k_dim) == (576, 192)


@pytest.mark.parametrize(
    ("arch", "style", "bias", "norm"),
    [("llama", "adjacent", False, False), ("qwen2", "neox", True, False), ("qwen3", "neox", False, True)],
)
def test_each_architecture_has_its_variants(arch: str, style: str, bias: bool, norm: bool, tmp_path: Path) -> None:
    spec = load(write_model(tmp_path / "m.gguf", arch, layers=1, tied=False, rope_freqs=True))
    (block,) = spec.blocks
    (rope,) = spec.ropes
    assert (rope.style, bool(block.biases), block.mixer.qk_norm) == (style, bias, spec.norm if norm else None)
    assert (spec.tied, rope.factors, rope.dim) == (False, "rope_freqs.weight", 64)
    assert ("blk.0.attn_q.bias" in expected_tensors(spec)) is bias
    assert ("blk.0.attn_k_norm.weight" in expected_tensors(spec)) is norm


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_every_weight_format_is_taken(kind: Q, tmp_path: Path) -> None:
    load(write_model(tmp_path / "m.gguf", types=kind, layers=1))


def test_missing_optional_keys_have_llama_cpp_defaults(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", layers=1, kv_heads=8)
    for key in ("attention.head_count_kv", "rope.freq_base", "attention.key_length", "attention.value_length"):
        renamed(path, f"llama.{key}", f"other.{key}")
    spec = load(path)
    assert (spec.layer.kv_heads, spec.layer.head_dim, spec.ropes[0].base) == (8, 64, 10000.0)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "gemma9"}, "'gemma9' is not supported; nearest that runs: Gemma 3 270M"),
        ({"llama.block_count": 0}, r"block_count is 0; allowed: one whole number, 1 to"),
        ({"llama.block_count": 4_000_000_000}, "block_count is 4000000000"),
        ({"llama.block_count": 1000}, "cannot make so many layers"),
        ({"llama.block_count": 1.5}, r"block_count is 1\.5"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "rms_epsilon is nan; allowed: a positive finite number"),
        ({"llama.attention.layer_norm_rms_epsilon": -1e-5}, "rms_epsilon is -"),
        ({"llama.attention.layer_norm_rms_epsilon": 5.0}, r"rms_epsilon is 5\.0; allowed: above 0, below 1"),
        ({"llama.rope.freq_base": float("inf")}, "freq_base is inf"),
        ({"llama.attention.head_count_kv": 3}, "8, which 3 key-value heads do not divide"),
        ({"llama.attention.key_length": 63, "llama.attention.value_length": 63}, "key_length is 63; rotary embedding needs"),
        ({"llama.attention.value_length": 32}, r"attn_v.weight has shape \[128, 512\]; the metadata needs \[64, 512\]"),
        ({"llama.rope.dimension_count": 66}, "dimension_count is 66; allowed: one whole number, 1 to 64"),
        ({"llama.rope.dimension_count": 31}, "dimension_count is 31; rotary embedding needs an even number"),
        ({"llama.rope.scaling.type": "su"}, "rope.scaling.type is 'su', which is not supported; supported: none, linear, yarn"),
        ({"llama.rope.scaling.factor": -4.0}, r"rope.scaling.factor is -4\.0; allowed: a positive number, or 0"),
        ({"llama.rope.scaling.yarn_ext_factor": 1.0}, r"yarn_ext_factor is 1\.0, which is not computed for llama"),
        (
            {"llama.attention.head_count_kv": [2, 4, 2]},
            "head_count_kv is an array of 3; allowed: .* each of the 2 layers",
        ),
        ({"llama.attention.head_count_kv": [2, 0]}, r"head_count_kv is 0 for layer 1; allowed: a whole number, 1 to"),
        ({"llama.attention.head_count": [8, 0]}, r"head_count is 0 for layer 1; allowed: a whole number, 1 to"),
        ({"llama.feed_forward_length": [1024, 512]}, r"blk.1.ffn_up.weight has shape .*; the metadata needs \[512, 512\]"),
        ({"llama.expert_count": 8}, "expert_count is 8, which is not supported; supported: 0"),
        ({"llama.embedding_length": 1 << 31}, "embedding_length is 2147483648"),
        ({"llama.embedding_length": 256}, r"token_embd.weight has shape \[512, 512\]; the metadata needs \[512, 256\]"),
        ({"llama.context_length": True}, "context_length is True"),
        ({"tokenizer.ggml.tokens": "x"}, "holds no tokens"),
    ],
)
def test_metadata_that_cannot_be(metadata: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        load(write_model(tmp_path / "m.gguf", layers=2, metadata=metadata))


def test_an_array_with_the_same_number_for_every_layer_is_that_number(tmp_path: Path) -> None:
    keys = {"attention.head_count": 8, "attention.head_count_kv": 2, "feed_forward_length": 1024}
    arrays = {f"llama.{key}": [number] * 3 for key, number in keys.items()}
    whole = load(write_model(tmp_path / "w.gguf", layers=3))
    assert load(write_model(tmp_path / "a.gguf", layers=3, metadata=arrays)) == whole


ROPE: Final = RopeSpec("adjacent", 32, 10000.0, "rope_freqs.weight")
YARN: Final = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128}
A_QUARTER_MORE_LOG: Final = 1 + 0.1 * math.log(4)


@pytest.mark.parametrize(
    ("keys", "changes"),
    [
        ({}, {}),
        ({"rope.scaling.factor": 4.0}, {"scale": 0.25}),
        ({"rope.scaling.type": "linear", "rope.scale_linear": 2.0}, {"scale": 0.5}),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {}),
        ({"rope.scaling.attn_factor": 1.5}, {"magnitude": 1.5}),
        (YARN, {"scale": 0.25, "yarn": Yarn(128), "magnitude": A_QUARTER_MORE_LOG}),
        (
            YARN | {"rope.scaling.attn_factor": 2.0, "rope.scaling.yarn_ext_factor": 1.0},
            {"scale": 0.25, "yarn": Yarn(128), "magnitude": 2 * A_QUARTER_MORE_LOG},
        ),
        ({"rope.dimension_count": 16}, {"dim": 16}),
    ],
)
def test_a_rotation_is_what_the_file_says(keys: dict[str, object], changes: dict[str, Any], tmp_path: Path) -> None:
    metadata = {f"llama.{key}": value for key, value in keys.items()}
    path = write_model(tmp_path / "m.gguf", layers=1, hidden=64, heads=2, ff=64, rope_freqs=True, metadata=metadata)
    assert read_spec(GgufFile.open(path)).ropes == (replace(ROPE, **changes),)


SCALING = {key.removeprefix("{arch}.") for key in vars(gguf.Keys.Rope).values() if ".rope.scaling." in str(key)}
HARMLESS = {"rope.scaling.type", "rope.scaling.finetuned", "rope.scaling.alpha"}
CONSTANTS = {key for key in SCALING if key.startswith("rope.scaling.yarn_")}
"""Of YaRN, which this architecture does not read."""


def test_no_key_of_a_scaled_rope_is_ignored(tmp_path: Path) -> None:
    """It changes the rotation, or is refused by name; with a type of scaling, of which they are constants."""
    file = GgufFile.open(write_model(tmp_path / "m.gguf", layers=1, hidden=64, heads=2, ff=64, context=512))
    yarn = with_metadata(file, {f"llama.{key}": value for key, value in YARN.items()})
    for key in sorted(SCALING - HARMLESS):
        value = 2048 if key.endswith("original_context_length") else 0.75
        scaled = with_metadata(yarn, {f"llama.{key}": value})
        with pytest.raises(ModelError, match=rf"llama\.{key} is {value}") if key in CONSTANTS else nullcontext():
            assert read_spec(scaled) != read_spec(yarn)


def test_a_long_array_where_a_word_should_be_is_told_of_in_one_short_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        load(write_model(tmp_path / "m.gguf", layers=1, metadata={"general.architecture": list(range(20_000))}))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_neutral_settings_are_taken(tmp_path: Path) -> None:
    neutral = {"rope.scaling.type": "none", "rope.scaling.factor": 8.0, "expert_count": 0, "logit_scale": 1.0}
    unscaled = {"factor": 1.0, "attn_factor": 1.0, "original_context_length": 512, "finetuned": False, "yarn_ext_factor": -1.0}
    written = {f"llama.rope.scaling.{key}": value for key, value in unscaled.items()}
    load(write_model(tmp_path / "u.gguf", layers=1, metadata=written))
    load(write_model(tmp_path / "m.gguf", layers=1, metadata={f"llama.{key}": value for key, value in neutral.items()}))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("blk.0.attn_k.weight", "xxx.0.attn_k.weight", r"blk\.0\.attn_k\.weight is missing.*\[128, 512\]"),
        ("output_norm.weight", "output_norm.wei---", "output_norm.weight is missing"),
        ("output.weight", "outpux.weight", None),
        ("rope_freqs.weight", "rope_factors_long", "rope_factors_long is not part of a llama model"),
        ("rope_freqs.weight", "blk.0.ffn_up.bias", r"blk.0.ffn_up.bias has shape \[32\]; the metadata needs"),
        ("rope_freqs.weight", "blk.0.ffn_up_exps", "not computed: experts; nearest that runs: Mistral 7B"),
        ("rope_freqs.weight", "blk.0.ffn_u.scale", "blk.0.ffn_u.scale is not part of a llama model"),
        ("llama.feed_forward_length", "other.feed_forward_length", "llama.feed_forward_length is missing"),
    ],
)
def test_tensors_and_keys_under_other_names(old: str, new: str, message: str | None, tmp_path: Path) -> None:
    path = renamed(write_model(tmp_path / "m.gguf", layers=1, tied=False, rope_freqs=True), old, new)
    if message is None:
        assert load(path).tied  # a tensor that no model knows is not used, and without an output head the embedding is it
    else:
        with pytest.raises(ModelError, match=message):
            load(path)


def test_norms_must_be_f32_and_matrices_of_a_known_format(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", layers=1, types=Q.F16)
    content = path.read_bytes()
    norm = b"output_norm.weight" + struct.pack("<IQI", 1, 512, 0)
    (tmp_path / "norm.gguf").write_bytes(content.replace(norm, norm[:-4] + struct.pack("<I", Q.F16)))
    with pytest.raises(ModelError, match=r"output_norm\.weight has type F16; norms, biases and factors must be F32"):
        load(tmp_path / "norm.gguf")
    matrix = b"blk.0.ffn_up.weight" + struct.pack("<IQQI", 2, 512, 1024, Q.F16)
    assert matrix in content
    (tmp_path / "matrix.gguf").write_bytes(content.replace(matrix, matrix[:-4] + struct.pack("<I", Q.I8)))
    with pytest.raises(ModelError, match=r"ffn_up\.weight has type I8, which is not supported; supported: F32, F16, Q4_0"):
        load(tmp_path / "matrix.gguf")
