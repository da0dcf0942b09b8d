"""The tensors of a synthetic model in the order of its file: names, shapes and kinds, without values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.reference.architectures import Architecture
from tests.synthetic_layouts import Layout, Sizes


@dataclass(frozen=True)
class Tensor:
    """shape: rows first; kind: matrix, norm, bias or factors (of frequencies)."""

    name: str
    shape: tuple[int, ...]
    kind: str

    @property
    def role(self) -> str:
        """attn_q of blk.0.attn_q.weight and of its bias."""
        name = self.name.split(".", 2)[2] if self.name.startswith("blk.") else self.name
        return name.removesuffix(".weight").removesuffix(".bias")


@dataclass(frozen=True)
class Plan:
    """One model's choices; biased: the matrices that have a bias."""

    arch: Architecture
    layout: Layout
    sizes: Sizes
    full: bool
    tied: bool
    rope_freqs: bool

    @property
    def biased(self) -> frozenset[str]:
        names = self.layout.biases + " " + (self.layout.optional if self.full else "")
        return frozenset(names.split())

    def tensors(self) -> Iterator[Tensor]:
        layout, sizes = self.layout, self.sizes
        yield Tensor("token_embd.weight", (sizes.vocab, sizes.hidden), "matrix")
        turned = layout.keys.get("rope.dimension_count")
        pairs = (turned(sizes) if turned else sizes.head_dim) // 2
        if self.rope_freqs or (self.full and layout.rope_freqs):
            yield Tensor("rope_freqs.weight", (pairs,), "factors")
        if self.full and layout.longrope:
            yield Tensor("rope_factors_long.weight", (pairs,), "factors")
            yield Tensor("rope_factors_short.weight", (pairs,), "factors")
        yield from self.extra(0, "")
        for layer in range(sizes.layers):
            yield from self.layer(layer)
        yield from self.norm("output_norm")
        if not self.tied:
            yield from self.product("output", sizes.vocab, sizes.hidden)
        elif "output" in self.biased:
            yield Tensor("output.bias", (sizes.vocab,), "bias")

    def layer(self, layer: int) -> Iterator[Tensor]:
        block, sizes, fused = f"blk.{layer}.", self.sizes, self.layout.fused.split()
        before, after, ff_before, ff_after = self.arch.norms
        heads, kv_heads, ff = sizes.heads[layer], sizes.kv_heads[layer], sizes.ff[layer]
        if heads:
            if before not in self.layout.full_extra:
                yield from self.norm(before, block)
            if kv_heads:
                rows = (heads * sizes.head_dim, kv_heads * sizes.head_dim, kv_heads * sizes.value_dim)
                if "qkv" in fused:
                    yield from self.product(block + "attn_qkv", sum(rows), sizes.hidden)
                else:
                    for part, count in zip("qkv", rows, strict=True):
                        yield from self.product(block + f"attn_{part}", count, sizes.hidden)
                yield from self.head_norms(layer)
                yield from self.product(block + "attn_output", sizes.hidden, heads * sizes.value_dim)
            else:
                yield Tensor(block + "attn_output.weight", (sizes.hidden, sizes.hidden), "matrix")
            yield from self.norm(after, block, bare=self.layout.bare_names)
        if not ff:
            return
        if ff_before != before:
            yield from self.norm(ff_before, block)
        if self.arch.gated and "up" not in fused:
            yield from self.product(block + "ffn_gate", ff, sizes.hidden)
        yield from self.product(block + "ffn_up", ff * (2 if "up" in fused else 1), sizes.hidden)
        yield from self.product(block + "ffn_down", sizes.hidden, ff)
        yield from self.norm(ff_after, block, bare=self.layout.bare_names)
        yield from self.extra(layer, block)

    def product(self, name: str, rows: int, k: int) -> Iterator[Tensor]:
        """A matrix, and its bias."""
        yield Tensor(name + ".weight", (rows, k), "matrix")
        role = name.rsplit(".", 1)[-1]
        if ("attn_qkv" if role in ("attn_q", "attn_k", "attn_v") else role) in self.biased:
            yield Tensor(name + ".bias", (rows,), "bias")

    def norm(self, name: str, block: str = "", bare: bool = False) -> Iterator[Tensor]:
        """A norm of the stream, if the architecture has it; bare: without ".weight" in its name."""
        if not name or not self.arch.weighted:
            return
        yield Tensor(block + name + ("" if bare else ".weight"), (self.sizes.hidden,), "norm")
        if self.layout.norm_biases == "always" or (self.full and self.layout.norm_biases == "full"):
            yield Tensor(block + name + ".bias", (self.sizes.hidden,), "bias")

    def head_norms(self, layer: int) -> Iterator[Tensor]:
        layout, sizes = self.layout, self.sizes
        if not (layout.head_norms_always or self.full) or sizes.layers < layout.head_norms_from:
            return
        for part, heads in (("q", sizes.heads[layer]), ("k", sizes.kv_heads[layer])):
            shapes = {
                "head": (sizes.head_dim,),
                "rows": (heads, sizes.head_dim),
                "wide": (heads * sizes.head_dim,),
                "one": (heads, 1) if part == "q" else None,
            }
            shape = shapes.get(layout.head_norms)
            if shape is not None:
                yield Tensor(f"blk.{layer}.attn_{part}_norm.weight", shape, "norm")
                if self.full and layout.head_norm_biases:
                    yield Tensor(f"blk.{layer}.attn_{part}_norm.bias", shape, "bias")

    def extra(self, layer: int, block: str) -> Iterator[Tensor]:
        """Those of the layout that are of a layer, or of none if block is ""."""
        more = {**self.layout.extra, **(self.layout.full_extra if self.full else {})}
        for name, shape in more.items():
            if name.startswith(".") != (not block):
                continue
            whole = block + name.removeprefix(".")
            rows = shape(self.sizes, layer)
            kind = "bias" if name.endswith(".bias") or name == ".position_embd" else "matrix" if len(rows) > 1 else "norm"
            yield Tensor(whole if name.endswith((".bias", ".scales")) else whole + ".weight", rows, kind)
