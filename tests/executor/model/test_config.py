"""Metadata to a configuration, and the tensors that must go with it."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import gguf
import pytest

from executor.base.errors import ModelError
from executor.gguf.gguf_file import GgufFile
from executor.model.config import ModelConfig, check_tensors, expected_tensors
from tests.smollm2 import smollm2_path
from tests.synthetic import FORMATS, Q, write_model


def load(path: Path) -> ModelConfig:
    file = GgufFile.open(path)
    config = ModelConfig.from_gguf(file)
    check_tensors(file, config)
    return config


def renamed(path: Path, old: str, new: str) -> Path:
    """The file with one name changed, in place: both must be equally long."""
    assert len(old) == len(new)
    content = path.read_bytes()
    assert struct.pack("<Q", len(old)) + old.encode() in content
    path.write_bytes(content.replace(struct.pack("<Q", len(old)) + old.encode(), struct.pack("<Q", len(new)) + new.encode()))
    return path


def test_smollm2() -> None:
    config = load(smollm2_path())
    assert (config.layers, config.hidden, config.ff, config.vocab) == (30, 576, 1536, 49152)
    assert (config.heads, config.kv_heads, config.head_dim, config.layer.q_dim, config.layer.kv_dim) == (9, 3, 64, 576, 192)
    assert config.rope_base == 100000.0
    assert config.rms_eps == pytest.approx(1e-5)
    assert (config.tied, config.qkv_bias, config.qk_norm, config.rope_freqs) == (True, False, False, False)


@pytest.mark.parametrize(
    ("arch", "style", "bias", "norm"),
    [("llama", "adjacent", False, False), ("qwen2", "neox", True, False), ("qwen3", "neox", False, True)],
)
def test_each_architecture_has_its_variants(arch: str, style: str, bias: bool, norm: bool, tmp_path: Path) -> None:
    config = load(write_model(tmp_path / "m.gguf", arch, layers=1, tied=False, rope_freqs=True))
    assert (config.rope_style, config.qkv_bias, config.qk_norm) == (style, bias, norm)
    assert (config.tied, config.rope_freqs, config.rope_dim) == (False, True, 64)
    assert ("blk.0.attn_q.bias" in expected_tensors(config)) is bias
    assert ("blk.0.attn_k_norm.weight" in expected_tensors(config)) is norm


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_every_weight_format_is_taken(kind: Q, tmp_path: Path) -> None:
    load(write_model(tmp_path / "m.gguf", types=kind, layers=1))


def test_missing_optional_keys_have_llama_cpp_defaults(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", layers=1, kv_heads=8)
    for key in ("attention.head_count_kv", "rope.freq_base", "attention.key_length", "attention.value_length"):
        renamed(path, f"llama.{key}", f"other.{key}")
    config = load(path)
    assert (config.kv_heads, config.head_dim, config.rope_base) == (8, 64, 10000.0)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "gemma3"}, "'gemma3' is not supported; supported: llama, qwen2, qwen3"),
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
        ({"llama.attention.value_length": 32}, "keys of 64 and values of 32"),
        ({"llama.rope.dimension_count": 32}, "dimension_count is 32; only the whole head of 64"),
        ({"llama.rope.scaling.type": "yarn"}, "rope.scaling.type is 'yarn', which is not supported"),
        ({"llama.rope.scaling.factor": 4.0}, r"rope.scaling.factor is 4\.0, which is not supported"),
        (
            {"llama.attention.head_count_kv": [2, 4, 2]},
            "head_count_kv is an array of 3; allowed: .* each of the 2 layers",
        ),
        ({"llama.attention.head_count_kv": [2, 0]}, r"head_count_kv is 0 for layer 1; allowed: a whole number, 1 to"),
        (
            {"llama.attention.head_count_kv": [2, 4]},
            "head_count_kv differs between layers.* is 2 in layers 0; 4 in layers 1",
        ),
        ({"llama.attention.head_count": [8, 4]}, "head_count differs between layers.*: it is 8 in layers 0; 4 in layers 1"),
        ({"llama.feed_forward_length": [1024, 512]}, "feed_forward_length differs between layers, .* 1024 in layers 0; 512 in"),
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


SCALING = sorted(
    key.removeprefix("{arch}.rope.scaling.")
    for key in vars(gguf.Keys.Rope).values()
    if isinstance(key, str) and ".rope.scaling." in key and not key.endswith(".type")
)


def test_a_key_of_a_scaled_rope_that_no_type_uses_is_an_error(tmp_path: Path) -> None:
    file = GgufFile.open(write_model(tmp_path / "m.gguf", layers=1, hidden=64, heads=2, ff=64))
    assert {"yarn_ext_factor", "yarn_attn_factor", "original_context_length", "finetuned", "factor"} <= set(SCALING)
    for key in [*SCALING, "of_tomorrow"]:
        value = key == "finetuned" or (2048 if key == "original_context_length" else 0.75)
        for kind in (None, "linear", "none"):
            scaling = {f"llama.rope.scaling.{key}": value} | ({} if kind is None else {"llama.rope.scaling.type": kind})
            scaled = SimpleNamespace(path=file.path, tensors=file.tensors, metadata={**file.metadata, **scaling})
            if kind == "none" and key not in ("attn_factor", "yarn_attn_factor"):
                ModelConfig.from_gguf(cast(GgufFile, scaled))  # switched off
                continue
            said = rf"{file.path}: llama\.rope\.scaling\.{key} is {value}, which is not supported.*; supported: "
            with pytest.raises(ModelError, match=said):
                ModelConfig.from_gguf(cast(GgufFile, scaled))


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
        ("rope_freqs.weight", "rope_factors_long", "rope_factors_long is not part of a llama model.*long and short rotary"),
        ("rope_freqs.weight", "blk.0.ffn_up.bias", "blk.0.ffn_up.bias is not part.*only the biases of Q, K and V"),
        ("rope_freqs.weight", "blk.0.ffn_up_exps", "mixtures of experts"),
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
    path = write_model(tmp_path / "m.gguf", layers=1, types=Q.Q4_0)
    content = path.read_bytes()
    norm = b"output_norm.weight" + struct.pack("<IQI", 1, 512, 0)
    (tmp_path / "norm.gguf").write_bytes(content.replace(norm, norm[:-4] + struct.pack("<I", Q.F16)))
    with pytest.raises(ModelError, match=r"output_norm\.weight has type F16; norms, biases and factors must be F32"):
        load(tmp_path / "norm.gguf")
    matrix = b"blk.0.ffn_up.weight" + struct.pack("<IQQI", 2, 512, 1024, Q.Q4_0)
    assert matrix in content
    (tmp_path / "matrix.gguf").write_bytes(content.replace(matrix, matrix[:-4] + struct.pack("<I", Q.TQ2_0)))
    with pytest.raises(ModelError, match=r"ffn_up\.weight has type TQ2_0, which is not supported; supported: F32, F16, Q4_0"):
        load(tmp_path / "matrix.gguf")
