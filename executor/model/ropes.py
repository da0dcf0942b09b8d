"""The rotation of a model's heads, as its file says it. Keys and defaults are those of llama.cpp (src/llama-model.cpp,
src/llama-context.cpp); a setting that is not computed is a ModelError with its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log
from typing import Final

from executor.layers.shape import RopeStyle
from executor.model.metadata import MAX_CONTEXT, Metadata
from executor.model.spec import RopeSpec
from ptxgen.kernels.rope.frequencies import Yarn

FACTORS: Final = "rope_freqs.weight"
SHORT_FACTORS: Final = "rope_factors_short.weight"
LONG_FACTORS: Final = "rope_factors_long.weight"
LARGEST_ALPHA: Final = 2.0**32
SCALINGS: Final = ("none", "linear", "yarn", "longrope")
YARN_KEYS: Final = {"yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0, "yarn_log_multiplier": 0.0}
"""Constants of YaRN, with the values with which it is computed for an architecture that does not read them."""


def rope(m: Metadata, style: RopeStyle, head_dim: int, *, default_dim: int | None = None, yarn_keys: bool = False) -> RopeSpec:
    """That of all heads of a file. default_dim: values of a head that are rotated where the file does not say it, the whole
    head unless told otherwise; yarn_keys: the architecture reads the constants of YaRN from the file."""
    dim = m.integer("rope.dimension_count", default_dim or head_dim, most=head_dim)
    if dim % 2:
        m.fail(f"{m.name('rope.dimension_count')} is {dim}; rotary embedding needs an even number")
    scaling = m.one_of("rope.scaling.type", SCALINGS, "linear")
    factor = 1.0 if scaling == "none" else _factor(m)
    original = original_context(m)
    base, magnitude = m.positive("rope.freq_base", 10000.0), m.positive("rope.scaling.attn_factor", 1.0)
    found = RopeSpec(style, dim, base, scale=1.0 / factor, magnitude=magnitude)
    _refuse_unread(m, scaling, yarn_keys)
    if scaling == "yarn":
        found = _with_yarn(m, found, factor, original, yarn_keys)
    if m.has(FACTORS):
        return replace(found, factors=FACTORS)
    if m.has(SHORT_FACTORS) or m.has(LONG_FACTORS):
        return replace(found, factors=SHORT_FACTORS, long_factors=LONG_FACTORS, original_context=original)
    return found


def _factor(m: Metadata) -> float:
    """By how much positions are closer together than those of training; older files have another key. 0 is none."""
    key = "rope.scaling.factor" if m.get("rope.scaling.factor") is not None else "rope.scale_linear"
    factor = m.number(key, 0.0)
    if factor < 0:
        m.fail(f"{m.name(key)} is {factor}; allowed: a positive number, or 0 for none")
    return factor or 1.0


def original_context(m: Metadata) -> int:
    """Tokens of a sequence that the frequencies were made for, before they were scaled."""
    trained = m.integer("context_length", most=MAX_CONTEXT)
    return m.integer("rope.scaling.original_context_length", trained, most=MAX_CONTEXT)


def enlarged(m: Metadata, rope: RopeSpec) -> RopeSpec:
    """NTK-aware scaling: with a base that is larger by alpha^(dim / (dim - 2)), where the file has an alpha above 0."""
    alpha = m.number("rope.scaling.alpha", 0.0)
    if alpha <= 0.0:
        return rope
    if rope.dim == 2 or alpha > LARGEST_ALPHA:
        m.fail(f"{m.name('rope.scaling.alpha')} is {alpha} for heads of {rope.dim} values; allowed: up to 2^32, for 4 or more")
    return replace(rope, base=rope.base * alpha ** (rope.dim / (rope.dim - 2)))


def not_rotated(rope: RopeSpec) -> RopeSpec:
    """For a layer whose heads are not rotated: a table that turns nothing."""
    return replace(rope, base=10000.0, scale=0.0, yarn=None, magnitude=1.0, factors=None, long_factors=None)


def no_rope(width: int) -> RopeSpec:
    """Of an architecture that rotates no head, all so wide."""
    return not_rotated(RopeSpec("neox", width, 10000.0))


def unscaled(rope: RopeSpec, base: float) -> RopeSpec:
    """For a layer with this base whose frequencies nothing scales, as layers with a window have it."""
    return replace(rope, base=base, scale=1.0, yarn=None, magnitude=1.0)


def has_sections(m: Metadata) -> bool:
    """Whether pairs of a head are dealt out to the axes of an image's positions."""
    sections = m.whole_numbers("rope.dimension_sections")
    return sections is not None and all(sections[:2])


def with_sections(m: Metadata, rope: RopeSpec, *, interleaved: bool = False) -> RopeSpec:
    """Where the pairs of a head are dealt out to time, height, width and a fourth axis of an image's positions, one section
    after the other or interleaved: a text's position is that of the first three, and 0 on the fourth."""
    sections = m.whole_numbers("rope.dimension_sections")
    if sections is None:
        m.required("rope.dimension_sections")
        return m.fail(f"{m.name('rope.dimension_sections')} is no array; allowed: three or four whole numbers")
    counts = [*sections, 0][:4]
    if len(sections) not in (3, 4) or min(counts) < 0 or not sum(counts):
        m.fail(f"{m.name('rope.dimension_sections')} is {list(sections)}; allowed: three or four whole numbers, not all 0")
    of_text = [_is_of_text(pair % sum(counts), counts, interleaved) for pair in range(rope.dim // 2)]
    return replace(rope, still=tuple(pair for pair, moves in enumerate(of_text) if not moves))


def _is_of_text(place: int, counts: Sequence[int], interleaved: bool) -> bool:
    return place < 3 * counts[place % 3] if interleaved else place < sum(counts[:3])


def _with_yarn(m: Metadata, rope: RopeSpec, factor: float, original: int, yarn_keys: bool) -> RopeSpec:
    """With the frequencies and the magnitude of YaRN: A * (1 + 0.1 ln factor), A of the file."""
    if not yarn_keys:
        return replace(rope, yarn=Yarn(original), magnitude=rope.magnitude * _attention_factor(factor))
    fast, slow = m.positive("rope.scaling.yarn_beta_fast", 32.0), m.positive("rope.scaling.yarn_beta_slow", 1.0)
    multiplier = m.number("rope.scaling.yarn_log_multiplier", 0.0)
    magnitude = rope.magnitude * _attention_factor(factor) / (_attention_factor(factor, multiplier) if multiplier else 1.0)
    return replace(rope, yarn=Yarn(original, fast, slow), magnitude=magnitude)


def _attention_factor(factor: float, multiplier: float = 1.0) -> float:
    return 1.0 if factor <= 1.0 else 1.0 + 0.1 * multiplier * log(factor)


def _refuse_unread(m: Metadata, scaling: str, yarn_keys: bool) -> None:
    """ModelError for a constant of YaRN that would change the rotation and is not computed."""
    computed = {"yarn_ext_factor": 1.0 if scaling == "yarn" else 0.0, "yarn_attn_factor": 1.0}
    if scaling == "yarn" and not yarn_keys:
        computed |= YARN_KEYS
    for key, value in computed.items():
        found = m.number(f"rope.scaling.{key}", value)
        if found not in (value, -1.0):
            name, scaled = m.name(f"rope.scaling.{key}"), f"{m.architecture} with the rotary scaling {scaling}"
            m.refuse(f"{name} is {found}, which is not computed for {scaled}; supported: {value}")
