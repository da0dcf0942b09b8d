"""Synthetic GGUF models, with the shapes and types of real ones and random weights, for timing where no weights can be had."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from benchmarks.vocabulary import add_vocabulary
from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS
from ptxgen.kernels.known_models import KNOWN_MODELS

Q4_K, Q6_K, Q8_0, F32 = "Q4_K", "Q6_K", "Q8_0", "F32"


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
    rope_factor: float = 0.0  # Llama-3 long-context scaling; 0 for none
    eps: float = 1e-5
    tied: bool = False
    context: int = 131072
    window: int = 0
    """What five layers of six see; 0: they see all."""
    linear: float = 0.0
    """The factor by which positions of the others are divided; 0 for none."""


def _llama(name: str, layers: int, rope_factor: float, *, tied: bool) -> Shape:
    dimensions = vars(KNOWN_MODELS[name])
    return Shape("llama", layers, **dimensions, rope_base=5e5, rope_factor=rope_factor, tied=tied)


def _qwen(name: str, context: int, *, tied: bool) -> Shape:
    """All of these have 28 layers. Those of Qwen2 have biases of q, k and v, those of Qwen3 norms of the heads of q and k."""
    dimensions = vars(KNOWN_MODELS[name])
    architecture = "qwen3" if name.startswith("qwen3") else "qwen2"
    return Shape(architecture, 28, **dimensions, rope_base=1e6, eps=1e-6, tied=tied, context=context)


MODELS = {
    "llama-3.2-1b": _llama("llama-3.2-1b", 16, 32.0, tied=True),
    "llama-3.1-8b": _llama("llama-3.1-8b", 32, 8.0, tied=False),
    "llama-3.1-70b": Shape("llama", 80, 8192, 28672, 64, 8, 128, 128256, rope_base=5e5, rope_factor=8.0),
    "qwen2.5-1.5b": _qwen("qwen2.5-1.5b", 32768, tied=True),
    "qwen2.5-7b": _qwen("qwen2.5-7b", 32768, tied=False),
    "qwen3-0.6b": _qwen("qwen3-0.6b", 40960, tied=True),
    "gemma-3-4b": Shape("gemma3", 34, 2560, 10240, 8, 4, 256, 262144, 1e6, eps=1e-6, tied=True, window=1024, linear=8.0),
    "mistral-small-24b": Shape("llama", 40, **vars(KNOWN_MODELS["mistral-small-24b"]), rope_base=1e8, context=32768),
    "phi-4-14b": Shape("phi3", 40, 5120, 17920, 40, 10, 128, 100352, rope_base=2.5e5, context=16384),
    "tiny": Shape("llama", 1, 256, 256, 4, 2, 64, 512, rope_base=1e4, tied=True, context=4096),
}
"""Also one of nobody, `tiny`: every kind of kernel in a step of moments."""


Mix = Callable[[str, int, Shape], str]
"""The format of a matrix, by its role, its layer (-1 outside of them) and the model's shape."""


def write_q4_k_m(name: str, path: Path, seed: int = 1, *, vocabulary: bool = False, distinct: int | None = None) -> None:
    """Write the model `name` with llama.cpp's Q4_K_M mix: attn_v and ffn_down are Q6_K in half of the layers, so is the output
    head (or the embedding table that stands for it); norms are F32; all other matrices Q4_K. vocabulary: with a byte-level
    BPE vocabulary of the model's size, which costs as much to read as a real one; its texts mean nothing. distinct: of a role
    and format so many tensors are random, and those of later layers are these over and over, which spares most of the minutes
    and of the memory that a model of 70B takes to write; None: all are."""
    write_shape(_named(name), path, "q4_k_m", seed, name=name, vocabulary=vocabulary, distinct=distinct)


def q4_k_m_matrices(s: Shape) -> list[tuple[str, tuple[int, int], str]]:
    """Name, (N, K) and format of every matrix of a model with that mix."""
    return [(name, (shape[0], shape[1]), format) for name, shape, format in _tensors(s, MIXES["q4_k_m"]) if len(shape) == 2]


def write_q8_0(name: str, path: Path, seed: int = 1, *, vocabulary: bool = False) -> None:
    """As write_q4_k_m, with all matrices in Q8_0."""
    write_shape(_named(name), path, "q8_0", seed, name=name, vocabulary=vocabulary)


def _named(name: str) -> Shape:
    if name not in MODELS:
        raise ArgumentError(f"no synthetic model is called {name!r}; known: {', '.join(MODELS)}")
    return MODELS[name]


def write_shape(
    s: Shape, path: Path, mix: str | Mix, seed: int = 1, *, name: str = "model", vocabulary: bool = False,
    distinct: int | None = None
) -> None:  # fmt: skip
    """Write a model of these dimensions in one of MIXES or another mix; `vocabulary` and `distinct` as write_q4_k_m."""
    writer = gguf.GGUFWriter(path, s.architecture)
    _add_metadata(writer, s, name, vocabulary=vocabulary)
    tensors = list(_tensors(s, MIXES[mix] if isinstance(mix, str) else mix))

    def values(number: int) -> NDArray[np.generic]:
        """Of a tensor, from random numbers of its own, so that all processors can make them."""
        tensor, shape, type = tensors[number]
        rng = np.random.Generator(np.random.SFC64((seed, number)))
        return _vector(tensor, shape[0], s, rng) if type == F32 else FORMATS[type].random_blocks(rng, shape[0], shape[1])

    sources = _sources(tensors, distinct)
    with ThreadPoolExecutor() as pool:
        made = {number: pool.submit(values, number) for number in dict.fromkeys(sources)}
        for (tensor, _, type), source in zip(tensors, sources, strict=True):
            raw_dtype = None if type == F32 else gguf.GGMLQuantizationType[type]
            writer.add_tensor(tensor, made[source].result(), raw_dtype=raw_dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_hollow(s: Shape, path: Path, mix: str, *, name: str = "model") -> None:
    """As write_shape, with matrices of zeros, which take no room on a file system that keeps holes as holes: for looking at
    what a model launches, without its weights."""
    writer = gguf.GGUFWriter(path, s.architecture)
    _add_metadata(writer, s, name, vocabulary=False)
    rng = np.random.default_rng(0)
    nbytes, vectors = 0, {}
    for tensor, shape, type in _tensors(s, MIXES[mix]):
        size = 4 * shape[0] if type == F32 else shape[0] * FORMATS[type].row_bytes(shape[1])
        if type == F32:
            vectors[nbytes] = _vector(tensor, shape[0], s, rng)
        writer.add_tensor_info(tensor, shape, np.dtype(np.float32), size, raw_dtype=gguf.GGMLQuantizationType[type])
        nbytes += -(-size // writer.data_alignment) * writer.data_alignment
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        start = -(-end // writer.data_alignment) * writer.data_alignment
        file.truncate(start + nbytes)
        for place, vector in vectors.items():
            file.seek(start + place)
            file.write(vector.tobytes())


def _add_metadata(writer: gguf.GGUFWriter, s: Shape, name: str, *, vocabulary: bool) -> None:
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
    if s.window:
        writer.add_sliding_window(s.window)
    if s.linear:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(s.linear)
    writer.add_vocab_size(s.vocab)
    if vocabulary:
        add_vocabulary(writer, s.vocab)
    else:
        writer.add_tokenizer_model("none")


def _sources(tensors: Sequence[tuple[str, tuple[int, ...], str]], distinct: int | None) -> list[int]:
    """For each tensor the number of the one whose values it has: its own, or that of an earlier one of its role and format."""
    kinds: dict[tuple[str, str], list[int]] = {}
    sources = []
    for number, (tensor, _, type) in enumerate(tensors):
        kind = kinds.setdefault((re.sub(r"^blk\.\d+\.", "", tensor), type), [])
        kind.append(number if distinct is None or len(kind) < distinct else kind[len(kind) - distinct])
        sources.append(kind[-1])
    return sources


def _mixed(plain: str, better: str, role: str, layer: int, s: Shape) -> str:
    """llama.cpp's mixes: the head, and in half of the layers attn_v and ffn_down, have more bits."""
    if layer < 0:
        return Q6_K if s.tied or role == "output" else plain
    if role == "attn_qkv":
        return MORE.get(plain, plain)
    more_bits = layer < s.layers // 8 or layer >= 7 * s.layers // 8 or (layer - s.layers // 8) % 3 == 2
    return better if more_bits and role in ("attn_v", "ffn_down") else plain


MORE = {Q4_K: "Q5_K", "Q5_K": Q6_K}
"""What these mixes have for Q, K and V in one tensor."""

MIXES: Mapping[str, Mix] = {
    "q4_k_m": partial(_mixed, Q4_K, Q6_K),
    "q5_k_m": partial(_mixed, "Q5_K", Q6_K),
    "q4_0": partial(_mixed, "Q4_0", "Q4_0"),
    "q6_k": lambda role, layer, s: Q6_K,
    "q8_0": lambda role, layer, s: Q8_0,
}
"""What llama.cpp gives the matrices of a model for the file types of these names."""


def layers_of(format: str) -> Mix:
    """Every matrix of a layer in this format, those outside of layers in Q6_K."""
    return lambda role, layer, s: format if layer >= 0 else Q6_K


FITTING = {Q4_K: "Q5_0", "Q5_K": "Q5_1", Q6_K: Q8_0}
"""What it takes instead for rows that are no whole blocks."""


def _fitting(type: str, shape: tuple[int, ...]) -> str:
    return type if shape[-1] % FORMATS[type].block == 0 else FITTING[type]


def _tensors(s: Shape, mix: Mix) -> Iterator[tuple[str, tuple[int, ...], str]]:
    def matrix(role: str, layer: int, shape: tuple[int, ...]) -> str:
        return _fitting(mix(role, layer, s), shape)

    yield "token_embd.weight", (s.vocab, s.hidden), matrix("token_embd", -1, (s.vocab, s.hidden))
    yield "output_norm.weight", (s.hidden,), F32
    if s.rope_factor:
        yield "rope_freqs.weight", (s.head_dim // 2,), F32
    if not s.tied:
        yield "output.weight", (s.vocab, s.hidden), matrix("output", -1, (s.vocab, s.hidden))
    for i in range(s.layers):
        for name, shape in _layer(s):
            yield f"blk.{i}.{name}", shape, F32 if len(shape) == 1 else matrix(name.removesuffix(".weight"), i, shape)


def _layer(s: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors of a layer."""
    q, kv, fused = s.heads * s.head_dim, s.kv_heads * s.head_dim, s.architecture == "phi3"
    yield "attn_norm.weight", (s.hidden,)
    for role, n in {"attn_qkv": q + 2 * kv}.items() if fused else {"attn_q": q, "attn_k": kv, "attn_v": kv}.items():
        yield f"{role}.weight", (n, s.hidden)
    yield "attn_output.weight", (s.hidden, q)
    yield "ffn_norm.weight", (s.hidden,)
    for role, n in {"ffn_up": 2 * s.ff}.items() if fused else {"ffn_gate": s.ff, "ffn_up": s.ff}.items():
        yield f"{role}.weight", (n, s.hidden)
    yield "ffn_down.weight", (s.hidden, s.ff)
    if s.architecture == "qwen2":
        yield from (("attn_q.bias", (q,)), ("attn_k.bias", (kv,)), ("attn_v.bias", (kv,)))
    if s.architecture in ("qwen3", "gemma3"):
        yield from (("attn_q_norm.weight", (s.head_dim,)), ("attn_k_norm.weight", (s.head_dim,)))
    if s.architecture == "gemma3":
        yield from (("post_attention_norm.weight", (s.hidden,)), ("post_ffw_norm.weight", (s.hidden,)))


def _vector(tensor: str, n: int, s: Shape, rng: np.random.Generator) -> NDArray[np.float32]:
    if tensor.endswith(".bias"):
        return (0.05 * rng.standard_normal(n)).astype(np.float32)
    if tensor != "rope_freqs.weight":
        return (1 + 0.05 * rng.standard_normal(n)).astype(np.float32)
    # Llama-3: low-frequency factor 1, high-frequency factor 4, original context 8192.
    wavelength = 2 * np.pi * s.rope_base ** (np.arange(n) / n)
    smooth = (8192 / wavelength - 1) / 3
    blended = 1 / ((1 - smooth) / s.rope_factor + smooth)
    factors = np.where(wavelength < 8192 / 4, 1.0, np.where(wavelength > 8192, s.rope_factor, blended))
    return factors.astype(np.float32)
