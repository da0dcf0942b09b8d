"""What a dense GGUF model computes, in float64 NumPy on gguf-py's reader and dequantisation: the oracle for whole models.

Shares nothing with the packages under test: its own reading of the metadata, its own formulas. What an architecture does is a
row of tests/reference/architectures.py; `python -m tests.reference` compares with llama.cpp's logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.reference.activations import ACTIVATIONS, capped, normalised, xielu
from tests.reference.architectures import ARCHITECTURES
from tests.reference.metadata import Metadata
from tests.reference.positions import rotation, slopes, windows

F64 = NDArray[np.float64]


class ReferenceModel:
    """Logits of a token list by full attention, with no cache. Weights are dequantised anew for each call, to bound memory.

    context: the tokens that the cache of a session holds, which choose longrope's factors; the file's length by default.
    """

    def __init__(self, path: str | Path, context: int | None = None) -> None:
        reader = gguf.GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.keys = keys = Metadata(reader)
        self.arch = arch = ARCHITECTURES[keys.architecture]
        self.layers = keys.layers
        self.heads = [int(count) for count in keys.each_layer("attention.head_count")]
        self.kv_heads = [int(count) for count in keys.each_layer("attention.head_count_kv", self.heads)]
        shared = int(keys("embedding_length")) // max(self.heads[0], 1)
        self.head_dim = int(keys("attention.key_length", shared))
        self.value_dim = int(keys("attention.value_length", shared))
        self.eps = float(keys(f"attention.layer_norm{'_rms' if arch.kind == 'rms' else ''}_epsilon", arch.eps))
        self.divisor = arch.divisor(keys) if arch.divisor else np.sqrt(self.head_dim)
        self.window, self.windowed = windows(keys, arch)
        self.rotated = arch.rotated(keys, self.windowed) if arch.pairs else [False] * self.layers
        self.context = int(keys("context_length")) if context is None else context

    def has(self, name: str) -> bool:
        """Whether the file has a tensor that its architecture uses."""
        return name in self.tensors and name.split(".", 2)[-1] not in self.arch.unused and name not in self.arch.unused

    def weight(self, name: str) -> F64:
        """A tensor as float64, rows first."""
        tensor = self.tensors[name]
        values: F64 = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        return values

    def linear(self, x: F64, name: str) -> F64:
        """x [tokens, k] through a matrix [n, k], with its scale and its bias if there are any."""
        y: F64 = x @ self.weight(name + ".weight").T
        y = y * self.weight(name + ".scale") if self.has(name + ".scale") else y
        return y + self.weight(name + ".bias") if self.has(name + ".bias") else y

    def norm(self, x: F64, name: str, eps: float | None = None) -> F64:
        """The architecture's norm over the last axis; "" leaves x as it is."""
        if not name:
            return x
        scaled = normalised(x, self.arch.kind, self.eps if eps is None else eps)
        if self.arch.weighted:
            scaled = scaled * self.weight(name if name in self.tensors else name + ".weight")
        return scaled + self.weight(name + ".bias") if self.has(name + ".bias") else scaled

    def rope(self, x: F64, layer: int) -> F64:
        """Rotate x [tokens, heads, head_dim] by position, if the layer does."""
        if not self.rotated[layer]:
            return x
        trained = int(self.keys("rope.scaling.original_context_length", self.keys("context_length")))
        of_context = f"rope_factors_{'long' if self.context > trained else 'short'}.weight"
        name = next((name for name in ("rope_freqs.weight", of_context) if self.has(name)), None)
        factors = None if name is None else self.weight(name)
        return rotation(self.keys, self.arch, self.head_dim, self.windowed[layer], factors)(x)

    def projections(self, x: F64, layer: int) -> tuple[F64, F64, F64]:
        """Queries, keys and values, [tokens, heads * width] each, of one matrix or of three."""
        block = f"blk.{layer}."
        if self.has(block + "attn_qkv.weight"):
            kv, names = self.kv_heads[layer], [block + f"attn_{part}.bias" for part in "qkv"]
            joined = self.linear(x, block + "attn_qkv")
            if all(map(self.has, names)) and not self.has(block + "attn_qkv.bias"):
                joined = joined + np.concatenate([self.weight(name) for name in names])
            q, k, v = np.split(joined, np.cumsum([self.heads[layer] * self.head_dim, kv * self.head_dim]), axis=-1)
        else:
            q, k, v = (self.linear(x, block + f"attn_{part}") for part in "qkv")
        limit = float(self.keys("attention.clamp_kqv", 0.0)) if self.arch.clamped else 0.0
        if limit > 0:
            q, k, v = (np.clip(part, -limit, limit) for part in (q, k, v))
        return q, k, v

    def attention(self, x: F64, layer: int) -> F64:
        block, arch = f"blk.{layer}.", self.arch
        heads, kv_heads, tokens = self.heads[layer], self.kv_heads[layer], len(x)
        if not kv_heads:  # deci's linear layers, which have no bias
            return x @ self.weight(block + "attn_output.weight").T
        normed = self.has(block + "attn_q_norm.weight")
        q, k, v = self.projections(x, layer)
        if normed and arch.wide_norm:
            q, k = self.head_norms(q, k, block)
        q, k = q.reshape(tokens, heads, self.head_dim), k.reshape(tokens, kv_heads, self.head_dim)
        v = v.reshape(tokens, kv_heads, self.value_dim)
        if normed and not arch.wide_norm and not arch.late_norm:
            q, k = self.head_norms(q, k, block)
        q, k = self.rope(q, layer), self.rope(k, layer)
        if normed and arch.late_norm:
            q, k = self.head_norms(q, k, block)
        q = q * self.temperature(tokens)[:, None, None]
        group = heads // kv_heads
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = capped(np.einsum("qhd,khd->hqk", q, k) / self.divisor, arch.score_cap(self.keys))
        distance = np.arange(tokens)[:, None] - np.arange(tokens)
        if largest := arch.alibi(self.keys):
            scores = scores - slopes(heads, largest)[:, None, None] * distance
        hidden = distance < 0 if arch.causal else np.zeros_like(distance, bool)
        if self.windowed[layer]:
            hidden = hidden | (distance >= self.window)
        scores[:, hidden] = -np.inf
        mixed = np.einsum("hqk,khd->qhd", self.softmax(scores, block), v).reshape(tokens, -1)
        if self.has(block + "attn_gate.weight"):
            gate = self.linear(x, block + "attn_gate")  # of each value, or of each head
            mixed = (mixed.reshape(*gate.shape, -1) / (1 + np.exp(-gate))[..., None]).reshape(tokens, -1)
        if self.has(block + "attn_sub_norm.weight"):
            mixed = self.norm(mixed, block + "attn_sub_norm")
        return self.linear(mixed, block + "attn_output")

    def softmax(self, scores: F64, block: str) -> F64:
        """The weights of scores [heads, queries, keys]; a head's sink takes a part that no key gets."""
        name, largest = block + "attn_sinks.weight", scores.max(axis=-1, keepdims=True)
        sink = self.weight(name)[:, None, None] if self.has(name) else np.float64(-np.inf)
        largest = np.maximum(largest, sink)
        scores = np.exp(scores - largest)
        weights: F64 = scores / (scores.sum(axis=-1, keepdims=True) + np.exp(sink - largest))
        return weights

    def head_norms(self, q: F64, k: F64, block: str) -> tuple[F64, F64]:
        """Q and K normalised over their last axis."""
        if self.arch.bare_key_norm:
            weight = self.weight(block + "attn_q_norm.weight")
            return normalised(q, self.arch.kind, self.eps) * weight, normalised(k, self.arch.kind, self.eps)
        return self.norm(q, block + "attn_q_norm"), self.norm(k, block + "attn_k_norm")

    def temperature(self, tokens: int) -> F64:
        """What multiplies the queries of each position: more, the longer the context is than that of training."""
        beta = float(self.keys("attention.temperature_scale", 0.0)) if self.arch.temperature else 0.0
        trained = int(self.keys("rope.scaling.original_context_length", self.keys("context_length")))
        longer: F64 = 1 + beta * np.log(np.floor(np.arange(tokens) / trained) + 1)
        return longer

    def feed_forward(self, x: F64, layer: int) -> F64:
        block = f"blk.{layer}."
        activate = xielu(self.keys, layer) if self.arch.activation == "xielu" else ACTIVATIONS[self.arch.activation]
        up = self.linear(x, block + "ffn_up")
        if not self.arch.gated:
            inner = activate(up)
        elif self.has(block + "ffn_gate.weight"):
            inner = activate(self.linear(x, block + "ffn_gate")) * up
        else:
            gate, up = np.split(up, 2, axis=-1)
            inner = activate(gate) * up
        if self.has(block + "ffn.act.scales"):
            inner = inner / self.weight(block + "ffn.act.scales")
        if self.has(block + "ffn_sub_norm.weight"):
            inner = self.norm(inner, block + "ffn_sub_norm")
        return self.linear(inner, block + "ffn_down")

    def layer(self, x: F64, layer: int) -> F64:
        """The stream [tokens, width] after a layer."""
        arch, block = self.arch, f"blk.{layer}."
        if not self.keys.each_layer("feed_forward_length")[layer]:
            return x  # llama.cpp drops such a layer's attention too
        names = [arch.instead.get(name, name) if not self.has(f"{block}{name}.weight") else name for name in arch.norms]
        before, after, ff_before, ff_after = (block + name if name else "" for name in names)
        parallel = arch.parallel(self.keys) or before == ff_before != ""
        scale = arch.residual_scale(self.keys) or 1.0
        y = x
        if self.heads[layer]:
            y = x + scale * self.norm(self.attention(self.norm(x, before), layer), after, arch.post_eps)
        added = self.feed_forward(self.norm(x if parallel else y, ff_before), layer)
        return y + scale * self.norm(added, ff_after, arch.post_eps)

    def embedding(self, tokens: Sequence[int]) -> F64:
        """The stream [tokens, width] before the first layer."""
        table = "token_embd.weight" if self.has("token_embd.weight") else "output.weight"
        x = self.weight(table)[list(tokens)] * (self.arch.embedding_scale(self.keys) or 1.0)
        if self.arch.embedding_norm is not None:
            name = self.arch.embedding_norm
            x = self.norm(x, name) if name else normalised(x, "rms", self.eps)
        return x + self.weight("position_embd.weight")[: len(x)] if self.has("position_embd.weight") else x

    def stream(self, tokens: Sequence[int]) -> F64:
        """The stream [tokens, width] after the last layer."""
        first = x = self.embedding(tokens)
        rounds = int(self.keys("num_loops", 1)) if self.arch.loops else 1
        for index in range(rounds):
            if index and not self.keys("skip_loop_final_norm", False):
                x = self.norm(x, "output_norm")
            for layer in range(self.layers):
                x = self.layer(x, layer)
                if self.arch.skip:
                    x = x + first * self.weight(f"blk.{layer}.layer_output_scale.weight")
        return x

    def states(self, tokens: Sequence[int]) -> F64:
        """f64[len(tokens), width]: what the output matrix reads, and pooling."""
        return self.norm(self.stream(tokens), "output_norm")

    def logits(self, tokens: Sequence[int]) -> F64:
        """f64[len(tokens), vocab]: the logits after each token."""
        head = "output" if self.has("output.weight") and not self.arch.tied else "token_embd"
        y = self.linear(self.states(tokens), head)
        if head != "output" and self.has("output.bias"):
            y = y + self.weight("output.bias")
        return capped(y * self.arch.logit_scale(self.keys), self.arch.logit_cap(self.keys))
