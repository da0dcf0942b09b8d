"""What each dense architecture computes, as data: the steps are tests/reference_model.py's, the keys the file's.

Tensors are applied when the file has them (biases, QK norms, frequency factors), but for those that llama.cpp loads and does
not use (`unused`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tests.reference.metadata import Metadata

Norms = tuple[str, str, str, str]
"""The norms of a layer: before attention, after it, before the FFN, after it; "" where there is none."""
PRE: Final[Norms] = ("attn_norm", "", "ffn_norm", "")
PRE_POST: Final[Norms] = ("attn_norm", "", "post_attention_norm", "")
SANDWICH: Final[Norms] = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
POST: Final[Norms] = ("", "post_attention_norm", "", "post_ffw_norm")
PARALLEL: Final[Norms] = ("attn_norm", "", "attn_norm", "")

Scale = Callable[[Metadata], float]
Rotated = Callable[[Metadata, Sequence[bool]], Sequence[bool]]


@dataclass(frozen=True)
class Window:
    """Which layers see only the last keys: all but every `pattern`-th, if the file or `default` gives a width."""

    pattern: int
    default: int = 0
    only_layers: int = 0
    """The number of layers of the only model that has a window; 0: any."""
    base: float | None = None
    """The base of their rotation without the key freq_base_swa; None: that of the other layers."""
    keyed: bool = True
    """Whether the key freq_base_swa counts."""
    scaled: bool = False
    """Whether the factor of the other layers' scaling counts."""
    plain: bool = False
    """Whether they have none of the other layers' scaling, magnitude included."""


def every_layer(_: Metadata, windowed: Sequence[bool]) -> Sequence[bool]:
    return [True] * len(windowed)


def windowed_layers(_: Metadata, windowed: Sequence[bool]) -> Sequence[bool]:
    """Windowed layers are rotated; all are where none is windowed."""
    return windowed if any(windowed) else [True] * len(windowed)


def all_but_fourth(_: Metadata, windowed: Sequence[bool]) -> Sequence[bool]:
    return [index % 4 != 3 for index in range(len(windowed))]


def unless_switched_off(keys: Metadata, windowed: Sequence[bool]) -> Sequence[bool]:
    return [bool(keys("rope.scaling.finetuned", True))] * len(windowed)


def of_32_layers(_: Metadata, windowed: Sequence[bool]) -> Sequence[bool]:
    return [len(windowed) == 32] * len(windowed)


def by_pattern(keys: Metadata, windowed: Sequence[bool]) -> Sequence[bool]:
    pattern = keys("attention.rope_pattern", True)
    return [bool(turned) for turned in pattern[: len(windowed)]] if isinstance(pattern, list) else [True] * len(windowed)


@dataclass(frozen=True)
class Architecture:
    norms: Norms = PRE
    kind: str = "rms"
    """Of its norms: rms or layer (LayerNorm)."""
    weighted: bool = True
    """Whether the norms have weights."""
    eps: float | None = None
    """The epsilon of a file without the key, if it may lack it."""
    post_eps: float | None = None
    """The epsilon of the norms after attention and FFN, if it is not the file's."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """Which norm stands in for one that a layer does not have."""
    parallel: Scale = lambda keys: 0.0
    """Whether attention and FFN read the same stream, as they do where both read the same norm."""
    unused: frozenset[str] = frozenset()
    """Tensors that llama.cpp loads and does not use."""

    pairs: str = "neox"
    """Of the rotation: adjacent, neox, or "" for none. Sections over two axes make them neox."""
    sections: str = ""
    """How rope.dimension_sections share the pairs: blocks, or interleaved; "" if the key does not count."""
    rotated: Rotated = every_layer
    whole_head: bool = False
    """Whether the whole head is rotated, whatever the key says."""
    window: Window | None = None
    yarn_keys: bool = False
    """Whether the file's YaRN betas and magnitude count."""
    alpha: bool = False
    """Whether rope.scaling.alpha enlarges the base."""
    temperature: bool = False
    """Whether attention.temperature_scale makes queries longer with the position."""
    alibi: Scale = lambda keys: 0.0

    causal: bool = True
    divisor: Scale | None = None
    """Of the scores, if it is not the square root of the keys' width."""
    wide_norm: bool = False
    """Whether Q and K are normalised over all heads at once."""
    late_norm: bool = False
    """Whether Q and K are normalised after the rotation."""
    bare_key_norm: bool = False
    """Whether the norm of K has no weight."""
    score_cap: Scale = lambda keys: 0.0
    clamped: bool = False
    """Whether attention.clamp_kqv counts."""

    activation: str = "silu"
    gated: bool = True
    embedding_norm: str | None = None
    """Of the embeddings: a tensor's name, or "" for an RMS norm without weight."""
    embedding_scale: Scale = lambda keys: 0.0
    residual_scale: Scale = lambda keys: 0.0
    """Of what attention and FFN add; 0: none."""
    logit_scale: Scale = lambda keys: 1.0
    """Multiplies the logits."""
    logit_cap: Scale = lambda keys: 0.0
    tied: bool = False
    """Whether output.weight is never read."""
    skip: bool = False
    """Whether each layer adds the embeddings again, times its layer_output_scale."""
    loops: bool = False
    """Whether num_loops runs the layers several times, output_norm between."""


def _key(name: str, default: float | None = None) -> Scale:
    return lambda keys: float(keys(name, default))


def _root_of_width(keys: Metadata) -> float:
    return math.sqrt(keys("embedding_length"))


def _wide_at(layers: int) -> Scale:
    """The square root of D/H instead of the keys' width in the one model of so many layers."""

    def divisor(keys: Metadata) -> float:
        shared = int(keys("embedding_length")) // int(keys.each_layer("attention.head_count")[0])
        return math.sqrt(shared if keys.layers == layers else keys("attention.key_length", shared))

    return divisor


def _granite_divisor(keys: Metadata) -> float:
    scale, shared = float(keys("attention.scale", 0.0)), keys("embedding_length") // keys("attention.head_count")
    return 1.0 / scale if scale else math.sqrt(keys("attention.key_length", shared))


LLAMA: Final = Architecture(pairs="adjacent")
QWEN: Final = Architecture()
UNUSED_BIASES: Final = frozenset({"attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"})
LAYER_NORM: Final = Architecture(kind="layer")
GPT: Final = Architecture(kind="layer", pairs="", activation="gelu", gated=False)
GEMMA: Final = Architecture(activation="gelu", embedding_scale=_root_of_width, tied=True)
COHERE: Final = Architecture(kind="layer", pairs="adjacent", norms=PARALLEL, tied=True)
GRANITE: Final = replace(
    LLAMA,
    rotated=unless_switched_off,
    divisor=_granite_divisor,
    embedding_scale=_key("embedding_scale", 0.0),
    residual_scale=_key("residual_scale", 0.0),
    logit_scale=lambda keys: 1.0 / float(keys("logit_scale")),
)

ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "llama": LLAMA,
    "mistral3": replace(LLAMA, yarn_keys=True, temperature=True),
    "qwen2": QWEN,
    "qwen3": QWEN,
    "qwen": QWEN,
    "qwen2vl": replace(QWEN, sections="blocks", eps=0.0, unused=frozenset({"output.bias"})),
    "qwen3vl": replace(QWEN, sections="interleaved"),
    "qwen3tts": replace(QWEN, sections="interleaved"),
    "gemma": GEMMA,
    "gemma2": replace(
        GEMMA,
        norms=SANDWICH,
        window=Window(2, default=4096, scaled=True),
        divisor=_wide_at(46),
        score_cap=_key("attn_logit_softcapping", 50.0),
        logit_cap=_key("final_logit_softcapping", 30.0),
    ),
    "gemma3": replace(
        GEMMA,
        norms=SANDWICH,
        window=Window(6, base=10000.0),
        divisor=_wide_at(62),
        logit_cap=_key("final_logit_softcapping", 0.0),
        tied=False,
    ),
    "phi2": replace(LAYER_NORM, norms=PARALLEL, activation="gelu", gated=False),
    "phi3": QWEN,
    "smollm3": replace(LLAMA, rotated=all_but_fourth),
    "olmo": Architecture(kind="layer", weighted=False, pairs="adjacent", clamped=True),
    "olmo2": Architecture(norms=POST, wide_norm=True, window=Window(4, plain=True, keyed=False)),
    "granite": GRANITE,
    "exaone": QWEN,
    "exaone4": Architecture(
        norms=POST, rotated=windowed_layers, window=Window(4, default=4096, only_layers=64, keyed=False, scaled=True)
    ),
    "glm4": replace(LLAMA, norms=SANDWICH, sections="blocks"),
    "chatglm": LLAMA,
    "seed_oss": replace(QWEN, norms=PRE_POST),
    "command-r": replace(COHERE, logit_scale=lambda keys: float(keys("logit_scale", 0.0)) or 1.0),
    "cohere2": replace(
        COHERE, rotated=windowed_layers, window=Window(4, keyed=False, scaled=True), logit_scale=_key("logit_scale")
    ),
    "internlm2": LLAMA,
    "nemotron": replace(LAYER_NORM, activation="relu2", gated=False),
    "stablelm": replace(LAYER_NORM, instead={"ffn_norm": "attn_norm"}),
    "starcoder2": replace(LAYER_NORM, activation="gelu", gated=False),
    "ernie4_5": replace(LLAMA, unused=frozenset({"attn_output.bias"})),
    "paddleocr": replace(QWEN, sections="blocks"),
    "hunyuan-dense": replace(QWEN, late_norm=True, alpha=True),
    "hunyuan_vl": replace(QWEN, late_norm=True, alpha=True, sections="blocks"),
    "minicpm": replace(
        GRANITE,
        rotated=every_layer,
        divisor=None,
        embedding_scale=_key("embedding_scale", 12.0),
        residual_scale=lambda keys: float(keys("residual_scale", 1.4 / math.sqrt(keys.layers))),
        logit_scale=lambda keys: 1.0 / float(keys("logit_scale", 256.0 / keys("embedding_length"))),
    ),
    "deci": LLAMA,
    "arcee": replace(LLAMA, activation="relu2", gated=False),
    "gpt2": GPT,
    "starcoder": GPT,
    "bloom": replace(GPT, embedding_norm="token_embd_norm", alibi=lambda keys: 8.0),
    "mpt": replace(GPT, wide_norm=True, clamped=True, alibi=_key("attention.max_alibi_bias", 0.0)),
    "jais": replace(
        GPT,
        activation="silu",
        gated=True,
        alibi=_key("attention.max_alibi_bias", 0.0),
        divisor=lambda keys: float(keys("embedding_length") // keys("attention.head_count")),
    ),
    "jais2": replace(LAYER_NORM, activation="relu2", gated=False),
    "falcon": replace(
        LAYER_NORM,
        norms=("attn_norm_2", "", "attn_norm", ""),
        instead={"attn_norm_2": "attn_norm"},
        parallel=lambda keys: 1.0,
        activation="gelu",
        gated=False,
    ),
    "gptneox": replace(LAYER_NORM, parallel=_key("use_parallel_residual"), activation="gelu", gated=False),
    "codeshell": replace(LAYER_NORM, activation="gelu", gated=False),
    "baichuan": replace(LLAMA, rotated=of_32_layers, alibi=lambda keys: 8.0 if keys.layers == 40 else 0.0),
    "orion": LAYER_NORM,
    "xverse": LLAMA,
    "refact": replace(
        LLAMA,
        pairs="",
        alibi=lambda keys: 8.0,
        unused=UNUSED_BIASES | {"rope_freqs.weight"},
    ),
    "muse-glimmer": replace(
        LLAMA,
        norms=SANDWICH,
        post_eps=1e-8,
        rotated=windowed_layers,
        window=Window(4),
        embedding_norm="",
        logit_scale=_key("logit_scale"),
        logit_cap=_key("final_logit_softcapping", 30.0),
    ),
    "spark2_5": Architecture(activation="gelu", window=Window(1, scaled=True)),
    "plamo": replace(QWEN, norms=PARALLEL, whole_head=True),
    "plamo3": replace(QWEN, norms=SANDWICH, window=Window(8, base=10000.0)),
    "openelm": replace(QWEN, tied=True),
    "bitnet": replace(QWEN, tied=True),
    "apertus": replace(QWEN, activation="xielu", gated=False, unused=frozenset({"attn_q_norm.bias", "attn_k_norm.bias"})),
    "maincoder": replace(LLAMA, late_norm=True),
    "pangu-embedded": replace(QWEN, unused=frozenset({"rope_freqs.weight"})),
    "granitemoe": replace(GRANITE, rotated=every_layer),
    "granite_swa": replace(GRANITE, rotated=by_pattern, window=Window(1, scaled=True, keyed=False)),
    "llada": replace(LLAMA, causal=False, unused=UNUSED_BIASES | {"rope_freqs.weight"}),
    "dream": replace(QWEN, causal=False, unused=frozenset({"output.bias"})),
    "cogvlm": replace(QWEN, unused=frozenset({"rope_freqs.weight"})),
    "pockettts": replace(LAYER_NORM, pairs="adjacent", activation="gelu", gated=False, tied=True),
    "nanbeige": replace(LLAMA, loops=True),
    "talkie": Architecture(
        weighted=False, late_norm=True, bare_key_norm=True, embedding_norm="", skip=True, logit_scale=_key("logit_scale")
    ),
}
