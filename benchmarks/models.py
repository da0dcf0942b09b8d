"""Synthetic GGUF models, with the shapes and types of real ones and random weights, for timing where no weights can be had."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from benchmarks.vocabulary import add_vocabulary
from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS
from ptxgen.kernels.known_models import KNOWN_MODELS

Q4_K, Q6_K, F32 = "Q4_K", "Q6_K", "F32"


@dataclass(frozen=True)
class Shape:
    """The dimensions of a model as its makers published them."""

    architecture: str
    layers: int
    hidden: int
    ff: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    rope_base: float
    rope_factor: float  # Llama-3 long-context scaling; 0 for none
    eps: float
    tied: bool
    context: int = 131072


def _shape(name: str, layers: int, rope_factor: float, *, tied: bool) -> Shape:
    dimensions = vars(KNOWN_MODELS[name])
    return Shape("llama", layers, **dimensions, rope_base=5e5, rope_factor=rope_factor, eps=1e-5, tied=tied)


MODELS = {
    "llama-3.2-1b": _shape("llama-3.2-1b", 16, 32.0, tied=True),
    "llama-3.1-8b": _shape("llama-3.1-8b", 32, 8.0, tied=False),
    "tiny": Shape("llama", 1, 256, 256, 4, 2, 64, 512, rope_base=1e4, rope_factor=0.0, eps=1e-5, tied=True, context=4096),
}
"""Also one of nobody, `tiny`: every kind of kernel in a step of moments."""


def write_q4_k_m(name: str, path: Path, seed: int = 1, *, vocabulary: bool = False) -> None:
    """Write the model `name` with llama.cpp's Q4_K_M mix: attn_v and ffn_down are Q6_K in half of the layers, so is the output
    head (or the embedding table that stands for it); norms are F32; all other matrices Q4_K. vocabulary: with a byte-level
    BPE vocabulary of the model's size, which costs as much to read as a real one; its texts mean nothing."""
    if name not in MODELS:
        raise ArgumentError(f"no synthetic model is called {name!r}; known: {', '.join(MODELS)}")
    s = MODELS[name]
    rng = np.random.Generator(np.random.SFC64(seed))
    writer = gguf.GGUFWriter(path, s.architecture)
    writer.add_name(f"synthetic {name}")
    writer.add_block_count(s.layers)
    writer.add_context_length(s.context)
    writer.add_embedding_length(s.hidden)
    writer.add_feed_forward_length(s.ff)
    writer.add_head_count(s.heads)
    writer.add_head_count_kv(s.kv_heads)
    writer.add_key_length(s.head_dim)
    writer.add_value_length(s.head_dim)
    writer.add_rope_dimension_count(s.head_dim)
    writer.add_rope_freq_base(s.rope_base)
    writer.add_layer_norm_rms_eps(s.eps)
    writer.add_vocab_size(s.vocab)
    if vocabulary:
        add_vocabulary(writer, s.vocab)
    else:
        writer.add_tokenizer_model("none")
    for tensor, shape, type in _tensors(s):
        if type == F32:
            writer.add_tensor(tensor, _vector(tensor, shape[0], s, rng))
        else:
            blocks = FORMATS[type].random_blocks(rng, shape[0], shape[1])
            writer.add_tensor(tensor, blocks, raw_dtype=gguf.GGMLQuantizationType[type])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(s: Shape) -> Iterator[tuple[str, tuple[int, ...], str]]:
    yield "token_embd.weight", (s.vocab, s.hidden), Q6_K if s.tied else Q4_K
    yield "output_norm.weight", (s.hidden,), F32
    if s.rope_factor:
        yield "rope_freqs.weight", (s.head_dim // 2,), F32
    if not s.tied:
        yield "output.weight", (s.vocab, s.hidden), Q6_K
    for i in range(s.layers):
        more_bits = i < s.layers // 8 or i >= 7 * s.layers // 8 or (i - s.layers // 8) % 3 == 2
        big = Q6_K if more_bits else Q4_K
        for role, shape, type in (
            ("attn_norm", (s.hidden,), F32),
            ("attn_q", (s.heads * s.head_dim, s.hidden), Q4_K),
            ("attn_k", (s.kv_heads * s.head_dim, s.hidden), Q4_K),
            ("attn_v", (s.kv_heads * s.head_dim, s.hidden), big),
            ("attn_output", (s.hidden, s.heads * s.head_dim), Q4_K),
            ("ffn_norm", (s.hidden,), F32),
            ("ffn_gate", (s.ff, s.hidden), Q4_K),
            ("ffn_up", (s.ff, s.hidden), Q4_K),
            ("ffn_down", (s.hidden, s.ff), big),
        ):
            yield f"blk.{i}.{role}.weight", shape, type


def _vector(tensor: str, n: int, s: Shape, rng: np.random.Generator) -> NDArray[np.float32]:
    if tensor != "rope_freqs.weight":
        return (1 + 0.05 * rng.standard_normal(n)).astype(np.float32)
    # Llama-3: low-frequency factor 1, high-frequency factor 4, original context 8192.
    wavelength = 2 * np.pi * s.rope_base ** (np.arange(n) / n)
    smooth = (8192 / wavelength - 1) / 3
    blended = 1 / ((1 - smooth) / s.rope_factor + smooth)
    factors = np.where(wavelength < 8192 / 4, 1.0, np.where(wavelength > 8192, s.rope_factor, blended))
    return factors.astype(np.float32)
