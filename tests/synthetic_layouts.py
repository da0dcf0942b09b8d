"""Which tensors and keys a synthetic file of each architecture has, beside those that all have and those of its norms.

Names are llama.cpp's. What an architecture computes of them is in tests/reference/architectures.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True)
class Sizes:
    """Of a model that is written; heads and ff are those of each layer."""

    layers: int
    hidden: int
    heads: Sequence[int]
    kv_heads: Sequence[int]
    ff: Sequence[int]
    head_dim: int
    value_dim: int
    vocab: int
    context: int


Value = Any
"""Of a key: a value, or a function of Sizes."""
Shape = Callable[[Sizes, int], tuple[int, ...]]


@dataclass(frozen=True)
class Layout:
    """What all files of an architecture have, and what only full ones do; biases by the names of their matrices."""

    fused: str = ""
    """Of "qkv up": which matrices are one."""
    biases: str = ""
    optional: str = "attn_qkv"
    """attn_qkv stands for those of Q, K and V, fused or not."""
    norm_biases: str = ""
    """Of the norms of the stream: "always", "full", or none."""
    head_norms: str = ""
    """Of Q and K: head (a weight for all heads), rows (for each), wide (over all heads), one (a number for each of Q's)."""
    head_norms_always: bool = True
    head_norms_from: int = 0
    """The number of layers from which on a model has them."""
    head_norm_biases: bool = False
    needs_output: bool = False
    rope_freqs: bool = False
    """Whether full files have them."""
    longrope: bool = False
    """Whether full files have its two lists of factors."""
    bare_names: bool = False
    """Whether post norms are stored without ".weight"."""
    keys: Mapping[str, Value] = field(default_factory=dict)
    """Under the architecture's prefix, or under none with a leading dot."""
    full_keys: Mapping[str, Value] = field(default_factory=dict)
    extra: Mapping[str, Shape] = field(default_factory=dict)
    """Further tensors of a layer, or of the model if the name says so with a leading dot."""
    full_extra: Mapping[str, Shape] = field(default_factory=dict)


def _part_of_head(numerator: int, denominator: int) -> dict[str, Value]:
    return {"rope.dimension_count": lambda sizes: sizes.head_dim * numerator // denominator}


def _sections(sizes: Sizes) -> list[int]:
    """Time, height and width of an image share the pairs of a head; a text needs no more."""
    third = sizes.head_dim // 2 // 3
    return [sizes.head_dim // 2 - 2 * third, third, third, 0]


YARN: Final[dict[str, Value]] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
LONGROPE: Final[dict[str, Value]] = {
    "rope.scaling.type": "longrope",
    "rope.scaling.original_context_length": lambda sizes: sizes.context // 2,
    "rope.scaling.attn_factor": 1.19,
}
WINDOW: Final[dict[str, Value]] = {"attention.sliding_window": 4, "attention.sliding_window_pattern": 2}
GRANITE: Final[dict[str, Value]] = {"embedding_scale": 12.0, "residual_scale": 0.22, "attention.scale": 0.0625}
SECTIONS: Final[dict[str, Value]] = {"rope.dimension_sections": _sections}
GPT: Final = "attn_qkv attn_output ffn_up ffn_down"
LLAMA: Final = "attn_qkv attn_output ffn_gate ffn_up ffn_down"


def _positions(sizes: Sizes, _: int) -> tuple[int, ...]:
    return sizes.context, sizes.hidden


def _width(sizes: Sizes, _: int) -> tuple[int, ...]:
    return (sizes.hidden,)


def _attended(sizes: Sizes, layer: int) -> tuple[int, ...]:
    return (sizes.heads[layer] * sizes.value_dim,)


def _inner(sizes: Sizes, layer: int) -> tuple[int, ...]:
    return (sizes.ff[layer],)


def _matrix(rows: str, width: str) -> Shape:
    """The shape of a matrix from one of the widths of a layer (ff, attended, qkv, hidden) to another."""

    def shape(sizes: Sizes, layer: int) -> tuple[int, ...]:
        attended = sizes.heads[layer] * sizes.head_dim
        widths = {"hidden": sizes.hidden, "ff": sizes.ff[layer], "attended": attended, "qkv": 3 * attended}
        return widths[rows], widths[width]

    return shape


EXPERT_OF_IMAGES: Final[dict[str, Shape]] = {
    "vis_attn_qkv": _matrix("qkv", "hidden"),
    "vis_attn_output": _matrix("hidden", "attended"),
    "vis_gate": _matrix("ff", "hidden"),
    "vis_up": _matrix("ff", "hidden"),
    "vis_down": _matrix("hidden", "ff"),
}
"""Of cogvlm: tensors that a text does not use."""

LAYOUTS: Final[Mapping[str, Layout]] = {
    "llama": Layout(optional=LLAMA, rope_freqs=True),
    "mistral3": Layout(
        optional=LLAMA,
        full_keys=YARN
        | {
            "rope.scaling.yarn_beta_fast": 16.0,
            "rope.scaling.yarn_beta_slow": 0.5,
            "rope.scaling.yarn_log_multiplier": 0.5,
            "rope.scaling.original_context_length": 4,
            "attention.temperature_scale": 0.1,
        },
    ),
    "qwen2": Layout(biases="attn_qkv", optional="output", full_keys=YARN),
    "qwen3": Layout(head_norms="head", full_keys=YARN),
    "qwen": Layout("qkv", "attn_qkv", "", needs_output=True, keys={"feed_forward_length": lambda sizes: 2 * sizes.ff[0]}),
    "qwen2vl": Layout(biases="attn_qkv", optional="output", keys=SECTIONS),
    "qwen3vl": Layout(head_norms="head", keys=SECTIONS),
    "qwen3tts": Layout(head_norms="head", keys=SECTIONS),
    "gemma": Layout(),
    "gemma2": Layout(full_keys=WINDOW | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3": Layout(
        head_norms="head",
        full_keys=WINDOW
        | {
            "rope.freq_base": 1000000.0,
            "rope.freq_base_swa": 5000.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "phi2": Layout("qkv", GPT + " output", "", norm_biases="always", needs_output=True, keys=_part_of_head(1, 2)),
    "phi3": Layout(
        "qkv up",
        keys=_part_of_head(3, 4),
        full_keys=LONGROPE,
        longrope=True,
    ),
    "smollm3": Layout(),
    "olmo": Layout(full_keys={"attention.clamp_kqv": 0.5}),
    "olmo2": Layout(head_norms="wide", needs_output=True, full_keys=YARN | WINDOW | {"rope.scaling.attn_factor": 1.2}),
    "granite": Layout(
        optional=LLAMA,
        rope_freqs=True,
        keys={"logit_scale": 4.0},
        full_keys=GRANITE,
    ),
    "granitemoe": Layout(optional=LLAMA, keys={"logit_scale": 4.0}, full_keys=GRANITE),
    "granite_swa": Layout(
        optional=LLAMA,
        keys={
            "logit_scale": 4.0,
            "attention.sliding_window": 4,
            "attention.sliding_window_pattern": lambda sizes: [layer % 2 == 0 for layer in range(sizes.layers)],
        },
        full_keys=GRANITE | {"attention.rope_pattern": lambda sizes: [layer % 4 != 3 for layer in range(sizes.layers)]},
        extra={"attn_sinks": lambda sizes, layer: (sizes.heads[layer],)},
    ),
    "llada": Layout(optional=LLAMA, rope_freqs=True),
    "dream": Layout(optional="attn_qkv output"),
    "cogvlm": Layout("qkv", optional="", rope_freqs=True, extra=EXPERT_OF_IMAGES),
    "pockettts": Layout(norm_biases="always"),
    "exaone": Layout(rope_freqs=True),
    "exaone4": Layout(head_norms="head", rope_freqs=True, full_keys={"attention.sliding_window": 4}),
    "glm4": Layout("up", keys=_part_of_head(1, 2)),
    "chatglm": Layout("qkv up", keys=_part_of_head(1, 2)),
    "seed_oss": Layout(biases="attn_qkv"),
    "command-r": Layout(head_norms="rows", head_norms_from=64, full_keys={"logit_scale": 0.25}),
    "cohere2": Layout(
        keys={"attention.sliding_window": 4, "logit_scale": 0.25}, full_keys={"attention.sliding_window_pattern": 2}
    ),
    "internlm2": Layout(needs_output=True),
    "nemotron": Layout(optional=GPT, norm_biases="always", needs_output=True, keys=_part_of_head(1, 2)),
    "stablelm": Layout(
        norm_biases="always", head_norms="rows", head_norms_always=False, needs_output=True, keys=_part_of_head(1, 4)
    ),
    "starcoder2": Layout("", GPT, norm_biases="always"),
    "ernie4_5": Layout(optional="attn_qkv attn_output", full_keys=SECTIONS),
    "paddleocr": Layout(keys=SECTIONS),
    "hunyuan-dense": Layout(head_norms="head", full_keys={"rope.scaling.alpha": 3.0}),
    "hunyuan_vl": Layout(head_norms="head", full_keys=SECTIONS),
    "minicpm": Layout(
        optional=LLAMA,
        longrope=True,
        full_keys=LONGROPE | {"embedding_scale": 10.0, "residual_scale": 0.7, "logit_scale": 3.0},
    ),
    "deci": Layout(optional=LLAMA, rope_freqs=True),
    "arcee": Layout(rope_freqs=True),
    "gpt2": Layout("qkv", GPT, "", norm_biases="always", extra={".position_embd": _positions}),
    "starcoder": Layout("qkv", GPT, "", norm_biases="always", extra={".position_embd": _positions}),
    "bloom": Layout("qkv", GPT, "", norm_biases="always", extra={".token_embd_norm": _width, ".token_embd_norm.bias": _width}),
    "mpt": Layout(
        "qkv",
        optional=GPT,
        norm_biases="full",
        head_norms="wide",
        head_norms_always=False,
        head_norm_biases=True,
        keys={"attention.max_alibi_bias": 8.0},
        full_keys={"attention.clamp_kqv": 0.5},
        full_extra={".position_embd": _positions, "ffn.act.scales": _inner},
    ),
    "jais": Layout("qkv", LLAMA, "", norm_biases="always", needs_output=True, keys={"attention.max_alibi_bias": 8.0}),
    "jais2": Layout(biases="attn_output ffn_up ffn_down", norm_biases="always"),
    "falcon": Layout("qkv", "", "", norm_biases="always", full_extra={"attn_norm_2": _width, "attn_norm_2.bias": _width}),
    "gptneox": Layout(
        "qkv", GPT, "", norm_biases="always", needs_output=True, keys=_part_of_head(1, 4) | {"use_parallel_residual": True}
    ),
    "codeshell": Layout("qkv", GPT, "", norm_biases="always", needs_output=True),
    "baichuan": Layout(needs_output=True),
    "orion": Layout(norm_biases="always", needs_output=True),
    "xverse": Layout(needs_output=True),
    "refact": Layout(optional=LLAMA, rope_freqs=True),
    "muse-glimmer": Layout(
        head_norms="head",
        needs_output=True,
        keys={"attention.sliding_window": 4, "logit_scale": 0.5},
        full_keys={"attention.sliding_window_pattern": 2, "final_logit_softcapping": 3.0, "rope.freq_base_swa": 5000.0},
        extra={"attn_gate": _matrix("attended", "hidden")},
    ),
    "spark2_5": Layout(
        keys={
            "attention.sliding_window": 4,
            "attention.sliding_window_pattern": lambda sizes: [layer % 2 == 0 for layer in range(sizes.layers)],
        },
        full_keys={"rope.freq_base_swa": 5000.0},
        extra={"attn_gate": lambda sizes, layer: (sizes.heads[layer], sizes.hidden)},
    ),
    "plamo": Layout(needs_output=True),
    "plamo3": Layout(
        "qkv up", optional="", head_norms="head", bare_names=True, full_keys=WINDOW | {"rope.freq_base_swa": 5000.0}
    ),
    "openelm": Layout("qkv", optional="", head_norms="head"),
    "bitnet": Layout(optional="", extra={"attn_sub_norm": _attended, "ffn_sub_norm": _inner}),
    "apertus": Layout(
        optional="attn_qkv attn_output",
        head_norms="head",
        head_norm_biases=True,
        needs_output=True,
        rope_freqs=True,
        keys={
            f".xielu.{name}": lambda sizes, value=value: [value + 0.1 * layer for layer in range(sizes.layers)]
            for name, value in {"alpha_n": 0.4, "alpha_p": 0.6, "beta": 0.5, "eps": -1e-6}.items()
        },
    ),
    "maincoder": Layout(head_norms="head"),
    "pangu-embedded": Layout(biases="attn_output", rope_freqs=True),
    "nanbeige": Layout(rope_freqs=True, full_keys={"num_loops": 2}),
    "talkie": Layout(
        head_norms="one", needs_output=True, keys={"logit_scale": 0.5}, extra={"layer_output_scale": lambda sizes, layer: (1,)}
    ),
}
"""A missing row is that of a llama file without options."""
