"""What a dense GGUF model computes, in float64 NumPy on gguf-py's reader and dequantisation: the oracle for whole models.

Shares nothing with the packages under test: its own reading of the metadata, its own formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


class ReferenceModel:
    """Logits of a token list by full attention, with no cache. Weights are dequantised anew for each call, to bound memory."""

    def __init__(self, path: str | Path) -> None:
        reader = gguf.GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        fields = reader.fields
        arch = fields["general.architecture"].contents()

        def key(name: str, default: float | None = None) -> float:
            field = fields.get(f"{arch}.{name}")
            return default if field is None and default is not None else field.contents()

        self.layers = int(key("block_count"))
        hidden = int(key("embedding_length"))
        self.heads = int(key("attention.head_count"))
        self.kv_heads = int(key("attention.head_count_kv", self.heads))
        self.head_dim = int(key("attention.key_length", hidden // self.heads))
        self.eps = float(key("attention.layer_norm_rms_epsilon"))
        self.rope_base = float(key("rope.freq_base", 10000.0))
        self.adjacent = arch == "llama"

    def weight(self, name: str) -> F64:
        """A tensor as float64, rows first."""
        tensor = self.tensors[name]
        values: F64 = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        return values

    def linear(self, x: F64, name: str) -> F64:
        """x [tokens, k] through a matrix [n, k], with its bias if there is one."""
        y: F64 = x @ self.weight(name + ".weight").T
        return y + self.weight(name + ".bias") if name + ".bias" in self.tensors else y

    def norm(self, x: F64, name: str) -> F64:
        """RMS norm over the last axis."""
        scaled: F64 = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps) * self.weight(name + ".weight")
        return scaled

    def rope(self, x: F64) -> F64:
        """Rotate x [tokens, heads, head_dim] by position: adjacent pairs, or split halves."""
        half = self.head_dim // 2
        frequency = self.rope_base ** (-2.0 * np.arange(half) / self.head_dim)
        if "rope_freqs.weight" in self.tensors:
            frequency = frequency / self.weight("rope_freqs.weight")
        angle = np.arange(len(x))[:, None] * frequency
        turn = np.exp(1j * angle)[:, None, :]
        pairs = x[..., 0::2] + 1j * x[..., 1::2] if self.adjacent else x[..., :half] + 1j * x[..., half:]
        turned = pairs * turn
        if self.adjacent:
            return np.stack((turned.real, turned.imag), axis=-1).reshape(x.shape)
        return np.concatenate((turned.real, turned.imag), axis=-1)

    def attention(self, x: F64, block: str) -> F64:
        tokens = len(x)
        q = self.linear(x, block + "attn_q").reshape(tokens, self.heads, self.head_dim)
        k = self.linear(x, block + "attn_k").reshape(tokens, self.kv_heads, self.head_dim)
        v = self.linear(x, block + "attn_v").reshape(tokens, self.kv_heads, self.head_dim)
        if block + "attn_q_norm.weight" in self.tensors:
            q, k = self.norm(q, block + "attn_q_norm"), self.norm(k, block + "attn_k_norm")
        q, k = self.rope(q), self.rope(k)
        group = self.heads // self.kv_heads
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(self.head_dim)
        scores[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", scores / scores.sum(axis=-1, keepdims=True), v)
        return self.linear(mixed.reshape(tokens, -1), block + "attn_output")

    def feed_forward(self, x: F64, block: str) -> F64:
        gate = self.linear(x, block + "ffn_gate")
        return self.linear(gate / (1.0 + np.exp(-gate)) * self.linear(x, block + "ffn_up"), block + "ffn_down")

    def logits(self, tokens: Sequence[int]) -> F64:
        """f64[len(tokens), vocab]: the logits after each token."""
        x = self.weight("token_embd.weight")[list(tokens)]
        for layer in range(self.layers):
            block = f"blk.{layer}."
            x = x + self.attention(self.norm(x, block + "attn_norm"), block)
            x = x + self.feed_forward(self.norm(x, block + "ffn_norm"), block)
        head = "output" if "output.weight" in self.tensors else "token_embd"
        return self.linear(self.norm(x, "output_norm"), head)
