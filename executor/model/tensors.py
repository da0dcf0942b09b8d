"""The tensors that a model of a spec needs, by name with their shapes, rows first. A tensor of several matrices stands under
the names of these (fused_tensors.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from executor.model.spec import Attention, Block, Dense, ModelSpec, NormSpec

Shape: TypeAlias = "tuple[int, ...]"
Shapes: TypeAlias = "Mapping[str, Shape]"
"""By tensor, its shape, rows first."""


def expected_tensors(spec: ModelSpec) -> Shapes:
    """All of them."""
    shapes = dict(_outer(spec))
    for layer, block in enumerate(spec.blocks):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in _of_block(block, spec.hidden).items()}
    return shapes


def matrices_of(mixer: Attention, ffn: Dense, hidden: int) -> Shapes:
    """By role, those of a layer that multiply."""
    shapes: dict[str, Shape] = {}
    if mixer.kv_heads:
        shapes |= {"attn_q": (mixer.q_dim, hidden), "attn_k": (mixer.k_dim, hidden), "attn_v": (mixer.v_dim, hidden)}
    if mixer.heads:
        shapes["attn_output"] = (hidden, mixer.attended_dim if mixer.kv_heads else hidden)
    if ffn.ff:
        shapes |= {"ffn_up": (ffn.ff, hidden), "ffn_down": (hidden, ffn.ff)}
    shapes |= {"ffn_gate": (ffn.ff, hidden)} if ffn.ff and ffn.gated else {}
    return shapes | ({"attn_gate": (mixer.attended_dim, hidden)} if mixer.gated else {})


def _outer(spec: ModelSpec) -> Shapes:
    """Embeddings, head, and divisors of rotations."""
    shapes: dict[str, Shape] = {"token_embd.weight": (spec.vocab, spec.hidden)}
    shapes |= _of_norm("output_norm", spec.norm, spec.hidden)
    if spec.embedding_norm is not None:
        shapes |= _of_norm("token_embd_norm", spec.embedding_norm, spec.hidden)
    if spec.learned_positions:
        shapes["position_embd.weight"] = (spec.context_length, spec.hidden)
    if not spec.tied:
        shapes["output.weight"] = (spec.vocab, spec.hidden)
    if spec.head_bias:
        shapes["output.bias"] = (spec.vocab,)
    if spec.head_scale:
        shapes["output.scale"] = (1,)
    if spec.labels:
        shapes["cls.output.weight"] = (spec.labels, spec.hidden)
    return shapes | {name: (rope.dim // 2,) for rope in spec.ropes for name in rope.tensors}


def _of_block(block: Block, hidden: int) -> Shapes:
    mixer, norms = block.mixer, block.norms
    matrices = matrices_of(mixer, block.ffn, hidden)
    shapes: dict[str, Shape] = {f"{role}.weight": shape for role, shape in matrices.items()}
    shapes |= {f"{role}.bias": matrices[role][:1] for role in block.biases}
    shapes |= {f"{role}.scale": (1,) for role in block.scales}
    for norm in norms.at.tensors:
        shapes |= _of_norm(norm, norms.norm, hidden)
    for sub_norm, width in ((norms.at.attended, mixer.attended_dim), (norms.at.activated, block.ffn.ff)):
        shapes |= {} if sub_norm is None else _of_norm(sub_norm, replace(norms.norm, bias=False), width)
    if block.ffn.scaled:
        shapes["ffn.act.scales"] = (block.ffn.ff,)
    if mixer.qk_norm is not None:
        for role, heads in (("q", mixer.heads), ("k", mixer.kv_heads)):
            of = {"row": (heads * mixer.head_dim,), "rows": (heads, mixer.head_dim)}.get(mixer.qk_norm_of, (mixer.head_dim,))
            shapes |= _of_norm(f"attn_{role}_norm", mixer.qk_norm, *of)
    return shapes


def _of_norm(name: str, norm: NormSpec, *shape: int) -> Shapes:
    """Those of a norm."""
    return {f"{name}.{kind}": shape for kind, there in (("weight", norm.weighted), ("bias", norm.bias)) if there}
