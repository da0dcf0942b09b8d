"""The dimensions of models that people decode, as their makers published them, and the shapes that these give a kernel: what
`ptxgen check --models` assembles, and a part of that in CI. Shapes for the emulator are each kernel's own (`cases`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.kernels.registry import KernelEntry


@dataclass(frozen=True)
class Dimensions:
    """Of a decoder: values of the stream and of the feed-forward network, heads of queries and of keys, values of a head,
    tokens of the vocabulary."""

    hidden: int
    ff: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    def matrices(self) -> tuple[tuple[int, int], ...]:
        """(K, N) of every weight matrix: Q, K and V, output, gate and up, down, head."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        hidden, ff = self.hidden, self.ff
        return (hidden, q), (hidden, kv), (q, hidden), (hidden, ff), (ff, hidden), (hidden, self.vocab)

    def joined(self) -> tuple[tuple[int, ...], ...]:
        """N of the matrices of `hidden` values that are multiplied by the same activations: Q and K, these and V, gate and
        up."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return (q, kv), (q, kv, kv), (self.ff, self.ff)


KNOWN_MODELS: Final = {
    "smollm2-135m": Dimensions(576, 1536, 9, 3, 64, 49152),
    "smollm2-360m": Dimensions(960, 2560, 15, 5, 64, 49152),
    "smollm2-1.7b": Dimensions(2048, 8192, 32, 32, 64, 49152),
    "tinyllama-1.1b": Dimensions(2048, 5632, 32, 4, 64, 32000),
    "llama-2-13b": Dimensions(5120, 13824, 40, 40, 128, 32000),
    "llama-3.2-1b": Dimensions(2048, 8192, 32, 8, 64, 128256),
    "llama-3.2-3b": Dimensions(3072, 8192, 24, 8, 128, 128256),
    "llama-3.1-8b": Dimensions(4096, 14336, 32, 8, 128, 128256),
    "llama-3.1-70b": Dimensions(8192, 28672, 64, 8, 128, 128256),
    "mistral-7b-v0.3": Dimensions(4096, 14336, 32, 8, 128, 32768),
    "mistral-small-24b": Dimensions(5120, 32768, 32, 8, 128, 131072),
    "qwen2.5-0.5b": Dimensions(896, 4864, 14, 2, 64, 151936),
    "qwen2.5-1.5b": Dimensions(1536, 8960, 12, 2, 128, 151936),
    "qwen2.5-3b": Dimensions(2048, 11008, 16, 2, 128, 151936),
    "qwen2.5-7b": Dimensions(3584, 18944, 28, 4, 128, 152064),
    "qwen2.5-32b": Dimensions(5120, 27648, 40, 8, 128, 152064),
    "qwen2.5-72b": Dimensions(8192, 29568, 64, 8, 128, 152064),
    "qwen3-0.6b": Dimensions(1024, 3072, 16, 8, 128, 151936),
    "qwen3-4b": Dimensions(2560, 9728, 32, 8, 128, 151936),
    "qwen3-8b": Dimensions(4096, 12288, 32, 8, 128, 151936),
    "qwen3-14b": Dimensions(5120, 17408, 40, 8, 128, 151936),
    "qwen3-32b": Dimensions(5120, 25600, 64, 8, 128, 151936),
}

# Parameters that a kernel may have besides K and N, and what known uses give them.
_FURTHER: Final = {"digits": (3, 2, 1), "m": tuple(range(1, 9))}


def matrices() -> dict[int, int]:
    """The Ks of all known models, each with the largest N it comes with. The text of a kernel with default settings does not
    depend on N: its blocks of threads take 16 rows at most, which divide every N of the table."""
    largest: dict[int, int] = {}
    for k, n in (matrix for model in KNOWN_MODELS.values() for matrix in model.matrices()):
        largest[k] = max(n, largest.get(k, 0))
    return dict(sorted(largest.items()))


def kernels(entry: KernelEntry) -> Iterator[KernelType]:
    """A registered matrix-vector kernel at the K of every known model, with its default settings but for every number of planes
    and of rows of activations (1 to 8). Nothing for other kernels, nor for a K that the kernel refuses."""
    names = [name for name in _FURTHER if name in entry.parameters]
    if not {"k", "n"} <= set(entry.parameters):
        return
    for (k, n), values in product(matrices().items(), product(*(_FURTHER[name] for name in names))):
        try:
            yield entry.make(k=k, n=n, **dict(zip(names, values, strict=True)))
        except ArgumentError:  # a K that is no multiple of the format's block
            continue
