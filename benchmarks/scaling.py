"""A model of a step of several GPUs: what a step of one takes, part by part as it was measured, and what of it divides. It
measures nothing; benchmarks/scaling_report.py writes what it says into docs/scaling.md.

Tensor parallel by output rows: each GPU has an equal share of every matrix's rows, of the heads and of the cache, and a gather
gives all of them the whole of what attention, output projection, SwiGLU, down and the head have made. A product takes a time
for its launch, which does not divide, and one for its bytes, which does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.models import MODELS, Shape, q4_k_m_matrices
from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS

RESULTS: Final = Path(__file__).parent / "results"
STAMPS, PARTS, GATHERS = "step-launches-h200.json", "step-parts-8b-h200.json", "gather-two-h200.json"
DEPTHS: Final = "rows-llama-3.1-8b-accurate-h200.json"
FITTED: Final = ("llama-3.1-8b", "llama-3.2-1b")
"""The models of STAMPS, by whose launches the parts of a step of one row are told."""
VALUE: Final = 4
"""Bytes of an activation, and of a logit: f32."""
CACHE_VALUE: Final = 4
"""Bytes of a key's or value's number in what was measured: f32."""
FORMAT_NAMES: Final = ("Q4_K", "Q6_K")
AROUND: Final = ("embed", "output_norm", "argmax")
"""Once a step, before and behind the layers."""

Gather = Callable[[int, int], float]
"""Microseconds of a gather: by the bytes of one GPU's slice, and the number of GPUs."""


@dataclass(frozen=True)
class Products:
    """What products of a step of so many rows take: `launch` us each, and `per_byte` us for a byte of weights by format."""

    launch: float
    per_byte: Mapping[str, float]

    def microseconds(self, bytes_of: Mapping[str, float], *, beside: bool = False) -> float:
        """One launch that reads these bytes. beside: it runs beside another and only adds its bytes."""
        return (0.0 if beside else self.launch) + sum(self.per_byte[format] * size for format, size in bytes_of.items())


@dataclass(frozen=True)
class Costs:
    """What the parts of a step of `rows` rows were measured to take, us, in the shape `of`. `small`: launches that read no
    weights, by operation; `slopes`: what each takes more for a value of its width; `attention`: a layer's for more than one
    row, what does not divide of it and what does; `between`: what passes at each launch beside it."""

    rows: int
    of: Shape
    products: Products
    small: Mapping[str, float]
    slopes: Mapping[str, float]
    attention: tuple[float, float]
    between: float


@dataclass(frozen=True)
class Step:
    """A step's time by part, us."""

    products: float
    attention: float
    small: float
    gathers: float

    @property
    def total(self) -> float:
        """Of all parts, us."""
        return self.products + self.attention + self.small + self.gathers


def shape(model: str) -> Shape:
    """Of a model that benchmarks/models.py knows. ArgumentError for another."""
    if model not in MODELS:
        raise ArgumentError(f"no model is called {model!r}; known: {', '.join(MODELS)}")
    return MODELS[model]


def weight_bytes(s: Shape) -> float:
    """Of all weights that a step reads: the layers and the head (Q4_K_M)."""
    return sum(size for launch in launches(s) for size in launch.bytes_of.values())


def cache_bytes(s: Shape, positions: int) -> int:
    """Of keys and values of a sequence, as they were measured (f32)."""
    return s.layers * 2 * s.kv_heads * s.head_dim * positions * CACHE_VALUE


@dataclass(frozen=True)
class Launch:
    """A launch of products: what it reads by format, and whether another one, which is counted, hides its launch."""

    name: str
    bytes_of: Mapping[str, float]
    beside: bool = False


@cache
def launches(s: Shape) -> tuple[Launch, ...]:
    """The products of a step of one row, as they are joined: q, k and v if all are of one format, else v runs beside the other
    two; gate and up; the head last."""
    layers: dict[str, dict[str, tuple[str, float]]] = {}
    head: dict[str, float] = {}
    for name, (n, k), format in q4_k_m_matrices(s):
        size = n * k * FORMATS[format].block_bytes / FORMATS[format].block
        if name.startswith("blk."):
            _, layer, role, _ = name.split(".")
            layers.setdefault(layer, {})[role] = format, size
        elif name == "output.weight" or (s.tied and name == "token_embd.weight"):
            head = {format: size}
    return (*(launch for layer in layers.values() for launch in _joined(layer)), Launch("output", head))


def _joined(layer: Mapping[str, tuple[str, float]]) -> Iterator[Launch]:
    (format, q), (_, k), (other, v) = (layer[role] for role in ("attn_q", "attn_k", "attn_v"))
    if format == other:
        yield Launch("attn_q+attn_k+attn_v", {format: q + k + v})
    else:
        yield Launch("attn_q+attn_k", {format: q + k})
        yield Launch("attn_v", {other: v}, beside=True)
    (format, gate), (_, up) = layer["ffn_gate"], layer["ffn_up"]
    yield Launch("attn_output", dict([layer["attn_output"]]))
    yield Launch("ffn_gate+ffn_up", {format: gate + up})
    yield Launch("ffn_down", dict([layer["ffn_down"]]))


@cache
def record(name: str) -> Mapping[str, Any]:
    """A file of benchmarks/results."""
    found: Mapping[str, Any] = json.loads((RESULTS / name).read_text())
    return found


def fitted(observed: Sequence[tuple[float, Mapping[str, float], float]]) -> Products:
    """The products that come nearest to all of (number of launches, bytes by format, us), by squares of relative errors."""
    rows = np.array([[count, *(of.get(format, 0.0) for format in FORMAT_NAMES)] for count, of, _ in observed])
    times = np.array([time for *_, time in observed])
    launch, *rates = np.linalg.lstsq(rows / times[:, None], np.ones(len(times)), rcond=None)[0]
    return Products(float(launch), dict(zip(FORMAT_NAMES, map(float, rates), strict=True)))


@cache
def costs(rows: int) -> Costs:
    """Of a step of so many rows. ArgumentError for a number that was not measured."""
    return _one_row() if rows == 1 else _many_rows(rows)


def _stamped(model: str) -> list[Mapping[str, Any]]:
    return [one for one in record(STAMPS)["results"] if one["model"] == model and one["joined_products"]]


def observed_launches() -> list[tuple[str, str, Mapping[str, float], float]]:
    """Of each product of STAMPS that has a launch of its own: model, operation, bytes by format, us that it adds to a step."""
    found = []
    for model in FITTED:
        bytes_of = {(one.name, *one.bytes_of): one.bytes_of for one in launches(shape(model)) if not one.beside}
        for one in _stamped(model):
            key = (one["operation"], "Q6_K" if "q6k" in one["kernel"] else "Q4_K")
            if key in bytes_of:
                found.append((model, one["operation"], bytes_of[key], float(one["ends"])))
    return found


def _one_row() -> Costs:
    """By stamps of two models: between them a launch's time goes by its width."""
    products = fitted([(1, of, time) for _, _, of, time in observed_launches()])
    ends = {model: {one["operation"]: float(one["ends"]) for one in _stamped(model)} for model in FITTED}
    large, small = map(shape, FITTED)
    slopes = {
        name: (ends[FITTED[0]][name] - ends[FITTED[1]][name]) / (width(large) - width(small)) for name, width in WIDTHS.items()
    }
    own = {name: ends[FITTED[0]][name] for name in (*WIDTHS, *AROUND)}
    return Costs(1, large, products, own, slopes, (0.0, 0.0), 0.0)


WIDTHS: Final[Mapping[str, Callable[[Shape], int]]] = {
    "attn_norm": lambda s: s.hidden, "ffn_norm": lambda s: s.hidden, "ffn_swiglu": lambda s: s.ff,
    "rope_scatter": lambda s: s.heads * s.head_dim, "attention": lambda s: s.heads * s.head_dim,
}  # fmt: skip
"""Once a layer: the launches that read no weights, by the values that they work on."""


def _many_rows(rows: int) -> Costs:
    """By parts of the 8B, each timed by itself; what takes longer for wider models does so as for one row."""
    measured = [one for one in record(PARTS)["results"] if one["rows"] == rows]
    times = {one["operation"]: (float(one["microseconds"]), int(one["launches"])) for one in measured}
    if rows == 1 or "ffn_gate+ffn_up" not in times or "attention" not in times:
        known = sorted({one["rows"] for one in record(PARTS)["results"] if one["operation"] == "attention"})
        raise ArgumentError(f"no step of {rows} rows has parts in {PARTS}; measured: {', '.join(map(str, known))}")
    of = shape(FITTED[0])
    observed = []
    for operation, bytes_of in _by_operation(of).items():
        time, count = times[operation]
        observed.append((float(count), bytes_of, time))
    one, base = costs(1), {entry["operation"]: entry for entry in record(PARTS)["results"] if entry["rows"] == 1}
    layers, still = of.layers, float(base["attention"]["microseconds"]) / of.layers
    small = {name: times[name][0] / times[name][1] for name in (*WIDTHS, *AROUND) if name != "attention"}
    whole, count = times.pop("step")
    between = max(0.0, whole - sum(time for time, _ in times.values())) / count
    attention = times["attention"][0] / layers
    return Costs(rows, of, fitted(observed), small, one.slopes, (still, max(0.0, attention - still)), between)


def _by_operation(s: Shape) -> dict[str, dict[str, float]]:
    """The bytes of all launches of an operation, by format."""
    found: dict[str, dict[str, float]] = {}
    for one in launches(s):
        of = found.setdefault(one.name, {})
        for format, size in one.bytes_of.items():
            of[format] = of.get(format, 0.0) + size
    return found


@cache
def cache_rate() -> float:
    """Bytes of keys and values that attention reads in a us: how much longer a step at depth 8192 takes than one at 0."""
    speeds = {
        one["depth"]: float(one["tokens_per_second"]["median"]) for one in record(DEPTHS)["results"] if one["kind"] == "depth"
    }
    deep = max(speeds)
    return cache_bytes(shape(FITTED[0]), deep) / (1e6 / speeds[deep] - 1e6 / speeds[0])


def one_shot(slice_bytes: int, ranks: int) -> float:
    """A gather of ours. Two GPUs were measured; of more it is taken that a GPU sends its slice to one peer after another, so
    that it takes what so many bytes to one peer take."""
    return _interpolated("one_shot", slice_bytes * (ranks - 1))


def nccl(slice_bytes: int, ranks: int) -> float:
    """An all-gather of NCCL in a CUDA graph; of more than two GPUs it is taken to go by the bytes of all."""
    return _interpolated("nccl_all_gather", slice_bytes * ranks)


def quicker(slice_bytes: int, ranks: int) -> float:
    """Ours or NCCL's, whichever takes less: with many rows NCCL's, far beyond the sizes that were measured of either."""
    return min(one_shot(slice_bytes, ranks), nccl(slice_bytes, ranks))


@cache
def _table(way: str) -> tuple[tuple[int, float], ...]:
    return tuple((one["bytes"], one["microseconds"]) for one in record(GATHERS)["results"] if one["way"] == way)


def _interpolated(way: str, size: int) -> float:
    """Between the sizes that were measured; below them as the least, above them as the last two go on."""
    points = _table(way)
    (at, time), (last, most) = points[-2:]
    if size > last:
        return most + (most - time) / (last - at) * (size - last)
    return float(np.interp(size, [at for at, _ in points], [time for _, time in points]))


def gathered(s: Shape) -> tuple[int, int, int, int]:
    """Values of a row that each layer gathers: attention's, the output projection's, SwiGLU's, down's."""
    return s.heads * s.head_dim, s.hidden, s.ff, s.hidden


def step(
    s: Shape, *, rows: int = 1, ranks: int = 1, depth: int = 0, gather: Gather = quicker, attention_split: bool = True
) -> Step:
    """A step of `rows` sequences, a token of each, at this depth (0: that of the measurement, up to 128), on so many GPUs.
    attention_split: False for a layer's attention with all its matrices whole on every GPU, which saves two of its gathers.
    ArgumentError for a number of GPUs that heads, rows of matrices or the vocabulary do not divide by."""
    parts = {"heads": s.kv_heads, "values of the stream": s.hidden, "values of the ffn": s.ff, "tokens": s.vocab}
    for what, number in parts.items():
        if ranks < 1 or number % ranks:
            raise ArgumentError(f"{number} {what} cannot be split over {ranks} GPUs")
    c = costs(rows)
    own = ranks if attention_split else 1  # among how many attention's matrices, heads and cache are shared out
    products = 0.0
    for one in launches(s):
        share = own if one.name.startswith("attn_") else ranks
        bytes_of = {format: size / share for format, size in one.bytes_of.items()}
        products += c.products.microseconds(bytes_of, beside=one.beside and rows == 1)
    count = len(launches(s)) + s.layers * len(WIDTHS) + len(AROUND)
    shares = {"ffn_swiglu": ranks, "rope_scatter": own}  # norms have all values on every GPU
    each = sum(_small(c, name, s, shares.get(name, 1)) for name in WIDTHS if name != "attention")
    others = s.layers * each + sum(c.small[name] for name in AROUND) + count * c.between
    attention = s.layers * _attention(c, s, own) + rows * cache_bytes(s, depth) / cache_rate() / own
    values = [*gathered(s)[0 if attention_split else 2 :]] * s.layers + [s.vocab]
    gathers = sum(gather(number * VALUE * rows // ranks, ranks) for number in values) if ranks > 1 else 0.0
    return Step(products, attention, others, gathers)


def _small(c: Costs, name: str, s: Shape, share: int) -> float:
    width = WIDTHS[name]
    return c.small[name] + c.slopes[name] * (width(s) / share - width(c.of))


def _attention(c: Costs, s: Shape, share: int) -> float:
    """Of a layer: for one row by its width, for more what they take beyond one row."""
    if c.rows == 1:
        return _small(c, "attention", s, share)
    still, more = c.attention
    return still + more / share * WIDTHS["attention"](s) / WIDTHS["attention"](c.of)


def gpu_hours(tokens_per_second: float, gpus: int) -> float:
    """Hours of one GPU for a million tokens: times the price of an hour, what they cost."""
    return gpus * 1e6 / tokens_per_second / 3600


def pipelined(s: Shape, stages: int, rows: int, hop: float) -> tuple[float, float]:
    """Layers one GPU after another: (us a token of a sequence, tokens a second of all) with a group of `rows` sequences for
    each stage, so that all stages always work. hop: us from one GPU to the next."""
    microseconds = step(s, rows=rows).total + stages * hop
    return microseconds, stages * rows / microseconds * 1e6


def idle(stages: int, groups: int) -> float:
    """The share of its time that a stage of a pipeline waits when `groups` pass through it once, as parts of a prompt do."""
    return (stages - 1) / (groups + stages - 1)


def touched(experts: int, chosen: int, rows: int) -> float:
    """The share of a layer's experts that a step reads, if each row chooses `chosen` of them evenly and by itself."""
    return 1 - (1 - chosen / experts) ** rows
