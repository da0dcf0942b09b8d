"""Small, whole and valid GGUF models with random weights: one per architecture, weight format and kind of vocabulary.

Written with gguf-py, so that the reader under test is checked against another writer. Blocks are random bytes, so every code,
sub-scale and sub-minimum takes all its values; only the f16 super-scales are chosen, for weights of std 1/sqrt(K).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from tests.reference.architectures import ARCHITECTURES
from tests.synthetic_layouts import LAYOUTS, Layout, Sizes
from tests.synthetic_tensors import Plan

Q = GGMLQuantizationType

# Where a block keeps its super-scale, the std of its values with a super-scale of 1, and where and how large (in
# super-scales) the offset is that makes their mean zero, if the format has one.
_SCALES: Final[dict[GGMLQuantizationType, tuple[int, float, tuple[int, float] | None]]] = {
    Q.Q4_0: (0, 4.61, None),
    Q.Q4_1: (0, 4.61, (2, -7.5)),
    Q.Q5_0: (0, 9.23, None),
    Q.Q5_1: (0, 9.23, (2, -15.5)),
    Q.Q8_0: (0, 73.9, None),
    Q.Q4_K: (0, 258.0, (2, 7.5)),
    Q.Q5_K: (0, 528.0, (2, 15.5)),
    Q.Q6_K: (208, 1365.0, None),
    Q.Q2_K: (80, 13.9, (82, 1.5)),
    Q.Q3_K: (108, 43.3, None),
    Q.IQ4_NL: (0, 67.4, None),
    Q.IQ4_XS: (0, 1246.0, None),
}
FORMATS: Final = (Q.F32, Q.F16, Q.BF16, *_SCALES, Q.MXFP4)
"""Those of which there is a variant of a whole model."""

_OTHER_SCALES: Final[dict[GGMLQuantizationType, tuple[int, float, None]]] = {
    Q.IQ3_XXS: (0, 142.0, None),
    Q.IQ3_S: (0, 140.0, None),
    Q.IQ2_XXS: (0, 53.1, None),
    Q.IQ2_XS: (0, 55.7, None),
    Q.IQ2_S: (0, 56.5, None),
    Q.IQ1_S: (0, 7.21, None),
    Q.TQ1_0: (52, 0.817, None),
    Q.TQ2_0: (64, 1.22, None),
    Q.Q1_0: (0, 1.0, None),
}

# The std of MXFP4's levels, which are twice the e2m1 values.
_MXFP4_UNIT: Final = 5.85

_WORDS: Final = (" t", "th", "the", " a", "in", "er", "on", " the", "he")
_BPE_MERGES: Final = (
    (" ", "t"),
    ("t", "h"),
    ("th", "e"),
    (" ", "a"),
    ("i", "n"),
    ("e", "r"),
    ("o", "n"),
    (" t", "he"),
    ("h", "e"),
)
_SPECIAL: Final = ("<|begin|>", "<|im_end|>", "<|im_start|>")
_CHAT: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def fitting(wanted: GGMLQuantizationType, k: int) -> GGMLQuantizationType:
    """The wanted type, or what llama.cpp takes for rows of k values that its blocks do not divide."""
    if k % GGML_QUANT_SIZES[wanted][0] == 0:
        return wanted
    small = dict.fromkeys(
        (Q.Q2_K, Q.Q3_K, Q.IQ4_XS, Q.IQ3_XXS, Q.IQ3_S, Q.IQ2_XXS, Q.IQ2_XS, Q.IQ2_S, Q.IQ1_S, Q.IQ1_M), Q.IQ4_NL
    )
    fallback = (small | {Q.Q4_K: Q.Q5_0, Q.Q5_K: Q.Q5_1, Q.Q6_K: Q.Q8_0}).get(wanted, Q.F16)
    return fallback if k % GGML_QUANT_SIZES[fallback][0] == 0 else Q.F16


def random_rows(rng: np.random.Generator, kind: GGMLQuantizationType, shape: tuple[int, ...], std: float) -> NDArray[np.uint8]:
    """Random weights of a type: u8[rows, bytes of a row], std about `std`, mean about 0. Super-scales take both signs."""
    if kind in (Q.F32, Q.F16, Q.BF16):
        values = rng.standard_normal(shape, dtype=np.float32) * np.float32(std)
        return np.ascontiguousarray(gguf.quants.quantize(values, kind)).view(np.uint8)
    per_block, size = GGML_QUANT_SIZES[kind]
    blocks = math.prod(shape) // per_block
    raw = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
    if kind == Q.MXFP4:
        # Of the powers of two around it, the larger so often that the mean square is right.
        wanted = std / _MXFP4_UNIT
        exponent = math.floor(math.log2(wanted))
        raw[:, 0] = 128 + exponent + (rng.random(blocks) < ((wanted / 2.0**exponent) ** 2 - 1) / 3)
        return raw.reshape(*shape[:-1], -1)
    if kind == Q.NVFP4:
        scales = 2 * std / _MXFP4_UNIT * rng.uniform(0.75, 1.25, (blocks, 4))
        raw[:, :4] = gguf.quants.NVFP4.fp32_to_ue4m3(scales.astype(np.float32))
        return raw.reshape(*shape[:-1], -1)
    at, unit, offset = (_SCALES | _OTHER_SCALES)[Q.IQ1_S if kind == Q.IQ1_M else kind]
    scale = std / unit * rng.uniform(0.75, 1.25, blocks) * rng.choice((-1.0, 1.0), blocks)
    if kind == Q.IQ1_M:  # a nibble of the super-scale in the top of each u16 of scales
        nibbles = scale.astype(np.float16).view(np.uint16)[:, None] >> np.arange(0, 16, 4, dtype=np.uint16) & 0xF
        raw[:, 49::2] = raw[:, 49::2] & 0xF | nibbles << 4
        return raw.reshape(*shape[:-1], -1)
    raw[:, at : at + 2] = scale.astype(np.float16).view(np.uint8).reshape(blocks, 2)
    if offset is not None:
        where, multiple = offset
        raw[:, where : where + 2] = (scale * multiple).astype(np.float16).view(np.uint8).reshape(blocks, 2)
    return raw.reshape(*shape[:-1], -1)


def write_model(
    path: Path,
    arch: str = "llama",
    types: GGMLQuantizationType | Mapping[str, GGMLQuantizationType] = Q.Q4_K,
    *,
    full: bool = False,
    omit: Collection[str] = (),
    layers: int = 4,
    hidden: int = 512,
    heads: int | Sequence[int] = 8,
    kv_heads: int | Sequence[int] = 2,
    head_dim: int | None = None,
    value_dim: int | None = None,
    ff: int | Sequence[int] = 1024,
    vocab: int = 512,
    context: int = 512,
    tied: bool = True,
    rope_freqs: bool = False,
    rope_base: float = 10000.0,
    tokenizer: str = "gpt2",
    pre: str | None = None,
    metadata: Mapping[str, object] | None = None,
    tensors_a_file: int = 0,
    labels: int = 0,
    scales: bool = False,
    seed: int = 1,
) -> Path:
    """Write a model of random weights and return its path (of its first file); the bytes depend on the arguments alone.

    types: one GGML type for every matrix, or a type by role ("token_embd", "attn_q", ..., and "" for the others). A type
    whose blocks do not divide the rows gives way to llama.cpp's fallback. full: with all tensors and keys that the
    architecture may have, scalings, windows and caps included, of a size that shows in a few tokens; omit: tensors of a layer
    to leave out ("ffn_norm"). heads, kv_heads, ff: for all layers, or for each. tied: without an output matrix, where the
    architecture allows it. tokenizer: "gpt2", "llama" or "none"; pre: its pre-tokenizer (llama-bpe for llama, qwen2 for the
    others). metadata: further keys (int, float, bool, str, or lists of them), or other values. tensors_a_file: in several
    files, of so many tensors each. labels: of a classifier, if there is one. scales:
    whether each matrix that multiplies has one.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    wanted = types if isinstance(types, Mapping) else {"": types}
    q, kv, inner = ([n] * layers if isinstance(n, int) else n for n in (heads, kv_heads, ff))
    head_dim = head_dim or hidden // q[0]
    sizes = Sizes(layers, hidden, q, kv, inner, head_dim, value_dim or head_dim, vocab, context)
    family, layout = ARCHITECTURES.get(arch, ARCHITECTURES["llama"]), LAYOUTS.get(arch, Layout())
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=tensors_a_file)
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(ff)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(sizes.head_dim)
    writer.add_value_length(sizes.value_dim)
    if family.kind == "layer":
        writer.add_layer_norm_eps(1e-5)
    else:
        writer.add_layer_norm_rms_eps(1e-5 if arch == "llama" else 1e-6)
    writer.add_rope_freq_base(rope_base)
    writer.add_vocab_size(vocab)
    _add_tokenizer(writer, tokenizer, pre or ("llama-bpe" if arch == "llama" else "qwen2"), vocab)
    for key, value in {**layout.keys, **(layout.full_keys if full else {})}.items():
        _add_value(writer, key[1:] if key[0] == "." else f"{arch}.{key}", value(sizes) if callable(value) else value)
    for key, value in (metadata or {}).items():
        _add_value(writer, key, value)

    plan = Plan(family, layout, sizes, full, family.tied or (tied and not layout.needs_output), rope_freqs)
    for tensor in plan.tensors():
        k = tensor.shape[-1]
        if tensor.role in omit:
            continue
        if tensor.kind == "matrix":
            kind = fitting(wanted.get(tensor.role, wanted.get("", Q.F32)), k)
            writer.add_tensor(tensor.name, random_rows(rng, kind, tensor.shape, 1 / math.sqrt(k)), raw_dtype=kind)
        elif tensor.kind == "factors":
            largest = 2.0 if "short" in tensor.name else 32.0
            writer.add_tensor(tensor.name, np.geomspace(1.0, largest, k).astype(np.float32))
        else:
            mean = 1.0 if tensor.kind == "norm" else 0.0
            writer.add_tensor(tensor.name, (mean + 0.1 * rng.standard_normal(tensor.shape)).astype(np.float32))
    matrices = [tensor for tensor in plan.tensors() if tensor.kind == "matrix" and tensor.role not in ("token_embd", *omit)]
    for tensor in matrices if scales else ():
        writer.add_tensor(f"{tensor.name.removesuffix('.weight')}.scale", rng.uniform(0.5, 2.0, 1).astype(np.float32))
    if labels:
        writer.add_tensor("cls.output.weight", rng.standard_normal((labels, hidden)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else next(path.parent.glob(f"{path.stem}-00001-of-*{path.suffix}"))


def byte_characters() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(rest)}


def _add_tokenizer(writer: gguf.GGUFWriter, model: str, pre: str, vocab: int) -> None:
    writer.add_tokenizer_model(model)
    if model == "none":
        return
    if model == "gpt2":
        character = byte_characters()

        def spelt(text: str) -> str:
            return "".join(character[byte] for byte in text.encode())

        tokens = [character[byte] for byte in range(256)] + [spelt(word) for word in _WORDS]
        kinds = [gguf.TokenType.NORMAL] * len(tokens)
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges([f"{spelt(left)} {spelt(right)}" for left, right in _BPE_MERGES])
        scores = None
    else:
        words = [" ", *"abcdefghijklmnopqrstuvwxyz", *_WORDS]
        tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *(word.replace(" ", "\u2581") for word in words)]
        kinds = [gguf.TokenType.UNKNOWN] + [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * len(words)
        scores = [0.0] * 257 + [-float(index) for index in range(len(words))]
        writer.add_unk_token_id(0)
    fillers = vocab - len(tokens) - len(_SPECIAL)
    if fillers < 0:
        raise ValueError(f"vocab must be at least {len(tokens) + len(_SPECIAL)}, got {vocab}")
    first = len(tokens) + fillers
    tokens += [f"filler{index}" for index in range(fillers)] + list(_SPECIAL)
    kinds += [gguf.TokenType.NORMAL] * fillers + [gguf.TokenType.CONTROL] * len(_SPECIAL)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    if scores is not None:
        writer.add_token_scores(scores + [-1e6] * (vocab - len(scores)))
    writer.add_bos_token_id(first)
    writer.add_eos_token_id(first + 1)
    writer.add_chat_template(_CHAT)


def _add_value(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    """Replace or add a key with the GGUF type that its Python type names (a NumPy scalar or array keeps its own)."""
    kind = gguf.GGUFValueType.get_type(value) if not isinstance(value, (float, np.floating)) else gguf.GGUFValueType.FLOAT32
    if isinstance(value, int) and not isinstance(value, bool):
        kind = gguf.GGUFValueType.UINT32 if 0 <= value < 1 << 32 else gguf.GGUFValueType.INT64
    for data in writer.kv_data:
        data.pop(key, None)
    writer.add_key_value(key, value, kind)
