"""What a model is, read from GGUF metadata: shapes and variants of the dense architectures. Holds no weights and runs nothing.

Keys and defaults are those of llama.cpp (src/llama-model.cpp). A setting that would change the logits and is not computed
here is an error, never ignored.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

import numpy as np

from executor.base.errors import ModelError, quoted
from executor.gguf.directory import GgmlType, Value
from executor.gguf.gguf_file import GgufFile
from executor.layers.shape import LayerShape, RopeStyle
from ptxgen.formats import FORMATS

ARCHITECTURES: Final[dict[str, RopeStyle]] = {"llama": "adjacent", "qwen2": "neox", "qwen3": "neox"}
WEIGHT_TYPES: Final = tuple(GgmlType(weight_format.ggml_type) for weight_format in FORMATS.values())
TENSORS_PER_LAYER: Final = 9  # two norms, q, k, v, output, gate, up, down
MAX_DIMENSION: Final = 1 << 24  # values; the widest released model has under 2^15, the largest vocabulary under 2^19
MAX_CONTEXT: Final = 1 << 31  # tokens: positions are signed 32-bit
MOST_TOLD: Final = 8  # layers, and values of them, that an error names

# Settings that other families use, with the values that leave a dense Llama or Qwen model as it is.
_NEUTRAL: Final[dict[str, tuple[Value, ...]]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "rope.scale_linear": (0.0, 1.0),
    "use_parallel_residual": (False,),
}
# Those of a scaled rope, with what they are where nothing is scaled; tools that write all keys write them so.
_SCALING: Final = "rope.scaling."
_UNSCALED: Final[dict[str, tuple[Value, ...]]] = {
    "alpha": (0.0, 1.0),
    "attn_factor": (1.0,),
    "factor": (0.0, 1.0),
    "finetuned": (False,),
    "yarn_attn_factor": (-1.0, 1.0),
    "yarn_beta_fast": (-1.0, 0.0, 32.0),
    "yarn_beta_slow": (-1.0, 0.0, 1.0),
    "yarn_ext_factor": (-1.0, 0.0),
    "yarn_log_multiplier": (0.0,),
}
_ALWAYS_APPLIED: Final = ("attn_factor", "yarn_attn_factor")  # llama.cpp multiplies by them whatever the type is
# The parts of a model whose tensors take part in the result: a stranger among them means another model than we compute.
_MODEL_PARTS: Final = re.compile(r"(blk|output|token_embd|rope|position_embd|token_types|cls|enc|dec|per_layer|altup|v|mm)[._]")
_HARMLESS: Final = re.compile(r"blk\.\d+\.(attn_rot_embd|attn_rot_freqs)\.weight|.*rope_inv_freq")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a dense decoder. Sizes are counts of values, layers, heads or tokens.

    rope_style: pairs (2i, 2i+1) for "adjacent", (i, i + head_dim/2) for "neox". rope_freqs: the file has divisors for the
    rotary frequencies (Llama-3). tied: the output head is the embedding table. context_length: tokens it was trained on.
    pooling_type: how a text becomes one vector, by llama.cpp's numbers (embedding.py); 0 where the file does not say it.
    ranks: how many devices share it (split.py); the sizes are those of the whole.
    """

    architecture: str
    layers: int
    hidden: int
    ff: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context_length: int
    rms_eps: float
    rope_base: float
    rope_style: RopeStyle
    rope_dim: int
    rope_freqs: bool
    qkv_bias: bool
    qk_norm: bool
    tied: bool
    pooling_type: int
    ranks: int = 1

    @property
    def layer(self) -> LayerShape:
        """The dimensions of every layer."""
        return LayerShape(
            hidden=self.hidden,
            ff=self.ff,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            rms_eps=self.rms_eps,
            rope_style=self.rope_style,
            rope_dim=self.rope_dim,
            ranks=self.ranks,
        )

    @classmethod
    def from_gguf(cls, file: GgufFile) -> ModelConfig:
        """Read and check the metadata of a file. ModelError names the key, its value and what is allowed. What kernels take of
        it is kernel_limits.py's business."""
        return _Metadata(file).config()


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that the model needs, with its shape, rows first."""
    c, s = config, config.layer
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (c.vocab, c.hidden), "output_norm.weight": (c.hidden,)}
    if not c.tied:
        shapes["output.weight"] = (c.vocab, c.hidden)
    if c.rope_freqs:
        shapes["rope_freqs.weight"] = (c.rope_dim // 2,)
    for layer in range(c.layers):
        block = f"blk.{layer}."
        shapes |= {
            block + "attn_norm.weight": (c.hidden,),
            block + "attn_q.weight": (s.q_dim, c.hidden),
            block + "attn_k.weight": (s.kv_dim, c.hidden),
            block + "attn_v.weight": (s.kv_dim, c.hidden),
            block + "attn_output.weight": (c.hidden, s.q_dim),
            block + "ffn_norm.weight": (c.hidden,),
            block + "ffn_gate.weight": (c.ff, c.hidden),
            block + "ffn_up.weight": (c.ff, c.hidden),
            block + "ffn_down.weight": (c.hidden, c.ff),
        }
        if c.qkv_bias:
            shapes |= {block + f"attn_{x}.bias": (n,) for x, n in (("q", s.q_dim), ("k", s.kv_dim), ("v", s.kv_dim))}
        if c.qk_norm:
            shapes |= {block + f"attn_{x}_norm.weight": (c.head_dim,) for x in "qk"}
    return shapes


def check_tensors(file: GgufFile, config: ModelConfig) -> None:
    """Every tensor is there with its shape and a type that we compute with, and none is there that would change the result.

    Matrices: one of WEIGHT_TYPES. Norms, biases and rope_freqs: F32. ModelError names the tensor.
    """

    def fail(message: str) -> NoReturn:
        raise ModelError(f"tensor {message}", file.path)

    expected = expected_tensors(config)
    allowed = ", ".join(kind.name for kind in WEIGHT_TYPES)
    for name, shape in expected.items():
        tensor = file.tensors.get(name)
        if tensor is None:
            fail(f"{name} is missing; a {config.architecture} model needs it with shape {list(shape)}")
        if tensor.shape != shape:
            fail(f"{name} has shape {list(tensor.shape)}; the metadata needs {list(shape)}")
        if len(shape) == 1 and tensor.ggml_type is not GgmlType.F32:
            fail(f"{name} has type {tensor.ggml_type.name}; norms, biases and factors must be F32")
        if len(shape) > 1 and tensor.ggml_type not in WEIGHT_TYPES:
            fail(f"{name} has type {tensor.ggml_type.name}, which is not supported; supported: {allowed}")
    for name in file.tensors.keys() - expected.keys():
        if _MODEL_PARTS.match(name) and not _HARMLESS.fullmatch(name):
            why = _reason(name)
            fail(f"{name[:80]} is not part of a {config.architecture} model as it is computed here{why}")
        _log.info("%s: tensor %s is not used", file.path, name)
    if config.rope_freqs:
        factors = file.data("rope_freqs.weight").view(np.float32)
        if not bool(np.all(np.isfinite(factors) & (factors > 0))):
            fail("rope_freqs.weight holds a value that is not a positive finite number")


def _reason(name: str) -> str:
    if "exp" in name:
        return ": mixtures of experts are not supported"
    if name.startswith("rope_factors"):
        return ": long and short rotary factors are not supported"
    if name.endswith(".bias"):
        return ": only the biases of Q, K and V are supported"
    return ""


class _Metadata:
    """Typed access to the keys of one file; every failure names the key."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.arch = ""

    def fail(self, message: str) -> NoReturn:
        raise ModelError(message, self.file.path)

    def get(self, key: str) -> Value | None:
        return self.file.metadata.get(f"{self.arch}.{key}")

    def required(self, key: str) -> Value:
        value = self.get(key)
        if value is None:
            self.fail(f"metadata key {self.arch}.{key} is missing")
        return value

    def integer(self, key: str, default: int | None = None, most: int = MAX_DIMENSION) -> int:
        value = self.required(key) if default is None else self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            self.fail(f"{self.arch}.{key} is {quoted(value)}; allowed: one whole number, 1 to {most}")
        return value

    def same_in_all(self, key: str, layers: int, default: int | None = None) -> int:
        """A whole number, or an array with one for each layer, which must all be equal here."""
        value = self.get(key)
        if not isinstance(value, list | np.ndarray):
            return self.integer(key, default)
        numbers: list[Value] = list(value) if isinstance(value, list) else value.tolist()
        name = f"{self.arch}.{key}"
        if len(numbers) != layers:
            self.fail(
                f"{name} is an array of {len(numbers)}; allowed: one whole number, or one for each of the {layers} layers"
            )
        by_value: dict[int, list[int]] = {}
        for layer, number in enumerate(numbers):
            if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAX_DIMENSION:
                self.fail(f"{name} is {quoted(number)} for layer {layer}; allowed: a whole number, 1 to {MAX_DIMENSION}")
            by_value.setdefault(number, []).append(layer)
        if len(by_value) > 1:
            told = "; ".join(f"{number} in layers {_some(own)}" for number, own in list(by_value.items())[:MOST_TOLD])
            self.fail(f"{name} differs between layers, which is not supported; it must be the same in all: it is {told}")
        (number,) = by_value
        return number

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.required(key) if default is None else self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            self.fail(f"{self.arch}.{key} is {quoted(value)}; allowed: a positive finite number")
        return float(value)

    def config(self) -> ModelConfig:
        arch = self.file.metadata.get("general.architecture")
        known = ", ".join(ARCHITECTURES)
        if arch is None:
            self.fail("metadata key general.architecture is missing")
        if not isinstance(arch, str) or arch not in ARCHITECTURES:
            self.fail(f"architecture {quoted(arch)} is not supported; supported: {known}")
        self.arch = arch
        self.refuse_other_models()
        layers, hidden = self.layers(), self.integer("embedding_length")
        heads = self.same_in_all("attention.head_count", layers)
        kv_heads = self.same_in_all("attention.head_count_kv", layers, heads)
        if heads % kv_heads:
            self.fail(f"{arch}.attention.head_count is {heads}, which {kv_heads} key-value heads do not divide")
        head_dim = self.head_dim(hidden, heads)
        tensors = self.file.tensors
        return ModelConfig(
            architecture=arch,
            layers=layers,
            hidden=hidden,
            ff=self.same_in_all("feed_forward_length", layers),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocab=self.vocab(),
            context_length=self.integer("context_length", most=MAX_CONTEXT),
            rms_eps=self.epsilon(),
            rope_base=self.positive("rope.freq_base", 10000.0),
            rope_style=ARCHITECTURES[arch],
            rope_dim=self.rope_dim(head_dim),
            rope_freqs="rope_freqs.weight" in tensors,
            # llama.cpp lets any of these models have them; Qwen2 cannot be without.
            qkv_bias=arch == "qwen2" or "blk.0.attn_q.bias" in tensors,
            qk_norm=arch == "qwen3",
            tied="output.weight" not in tensors,
            pooling_type=self.pooling_type(),
        )

    def refuse_other_models(self) -> None:
        for key, neutral in _NEUTRAL.items():
            self.require_neutral(key, neutral)
        self.refuse_scaling()

    def require_neutral(self, key: str, neutral: Sequence[Value], when: str = "") -> None:
        value = self.get(key)
        if value is not None and not any(_equal(value, allowed) for allowed in neutral):
            allowed_text = " or ".join(map(str, neutral)) or "none"
            self.fail(f"{self.arch}.{key} is {quoted(value)}, which is not supported{when}; supported: {allowed_text}")

    def refuse_scaling(self) -> None:
        """Every key of a scaled rope: one that no type of scaling in the file uses is an error, too."""
        scaling = self.get(f"{_SCALING}type")
        if scaling is not None and not (isinstance(scaling, str) and scaling in ("none", "linear")):
            self.fail(
                f"{self.arch}.rope.scaling.type is {quoted(scaling)}, which is not supported; supported: none, or linear "
                "with a factor of 1"
            )
        unscaled: dict[str, tuple[Value, ...]] = _UNSCALED | {
            "type": ("none", "linear"),
            "original_context_length": self.trained_on(),
        }
        for name in sorted(self.file.metadata):
            key = name.removeprefix(f"{self.arch}.{_SCALING}")
            if key == name or (scaling == "none" and key not in _ALWAYS_APPLIED):
                continue
            self.require_neutral(f"{_SCALING}{key}", unscaled.get(key, ()), "" if scaling else " without a rope.scaling.type")

    def trained_on(self) -> tuple[Value, ...]:
        """Values of original_context_length that scale nothing: any where the file has its own divisors (Llama-3)."""
        key = f"{_SCALING}original_context_length"
        values = (0, self.get("context_length"), self.get(key) if "rope_freqs.weight" in self.file.tensors else None)
        return tuple(value for value in values if value is not None)

    def layers(self) -> int:
        layers = self.integer("block_count")
        # Bounds the work below before any list of names is made.
        if layers * TENSORS_PER_LAYER > len(self.file.tensors):
            self.fail(
                f"{self.arch}.block_count is {layers}, and the {len(self.file.tensors)} tensors cannot make so many layers"
            )
        return layers

    def head_dim(self, hidden: int, heads: int) -> int:
        if self.get("attention.key_length") is None and hidden % heads:
            self.fail(f"{self.arch}.embedding_length is {hidden}, which {heads} heads do not divide")
        key_length = self.integer("attention.key_length", hidden // heads or None)
        value_length = self.integer("attention.value_length", hidden // heads or None)
        if key_length != value_length:
            self.fail(f"{self.arch}: keys of {key_length} and values of {value_length} are not supported; they must be equal")
        if key_length % 2:
            self.fail(f"{self.arch}.attention.key_length is {key_length}; rotary embedding needs an even number")
        return key_length

    def rope_dim(self, head_dim: int) -> int:
        rotated = self.integer("rope.dimension_count", head_dim)
        if rotated != head_dim:
            self.fail(f"{self.arch}.rope.dimension_count is {rotated}; only the whole head of {head_dim} can be rotated")
        return rotated

    def epsilon(self) -> float:
        eps = self.positive("attention.layer_norm_rms_epsilon")
        if eps >= 1:
            self.fail(f"{self.arch}.attention.layer_norm_rms_epsilon is {eps}; allowed: above 0, below 1")
        return eps

    def pooling_type(self) -> int:
        """Any number: who makes no vectors of texts need not know it."""
        value = self.get("pooling_type")
        if isinstance(value, bool) or not isinstance(value, int | None):
            self.fail(f"{self.arch}.pooling_type is {quoted(value)}; allowed: one whole number")
        return value or 0

    def vocab(self) -> int:
        """As llama.cpp: the tokens count, and the key where the file has no tokens."""
        tokens = self.file.metadata.get("tokenizer.ggml.tokens")
        if tokens is None:
            return self.integer("vocab_size")
        if not isinstance(tokens, list) or not 1 <= len(tokens) <= MAX_DIMENSION:
            self.fail("tokenizer.ggml.tokens holds no tokens")
        return len(tokens)


def _some(layers: Sequence[int]) -> str:
    """Numbers of layers, not all of many."""
    told = ", ".join(map(str, layers[:MOST_TOLD]))
    return told if len(layers) <= MOST_TOLD else f"{told}, ... ({len(layers)} layers)"


def _equal(value: Value, allowed: Value) -> bool:
    """Equal, and of one kind: True is not 1."""
    if isinstance(value, str):
        return value == allowed
    return isinstance(value, (bool, int, float)) and isinstance(value, bool) == isinstance(allowed, bool) and value == allowed
