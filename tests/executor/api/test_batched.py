"""What m rows go through together: each has the bits that it has alone, as a graph too; and what is refused, before anything is
launched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from executor import CudaExecutor, GpuBuffer, GpuProfile, ValidatedLayerWeights
from executor.base.errors import LaunchError
from executor.choice.table import TuningEntry, TuningTable
from executor.device.gpu import GpuModel
from executor.launch.launch import LaunchRecord
from executor.layers.graph.operations import Norm
from executor.layers.graph.products import project
from executor.layers.graph.rules import perform
from executor.layers.graph.values import StepValue
from ptxgen.errors import ArgumentError, PtxGenError
from ptxgen.formats import FORMATS
from ptxgen.kernels.activation.elementwise import AddInPlace
from ptxgen.kernels.norm.per_head_rmsnorm import PerHeadRmsNorm
from ptxgen.kernels.rope.rope import Rope
from ptxgen.types import U32
from tests.synthetic import Q, write_model

pytestmark = pytest.mark.usefixtures("shared_kernels")

N, K = 128, 256
TYPES = ("Q4_K", "Q6_K", "Q8_0", "F16")
LAYERS, HIDDEN, FF, HEADS, KV_HEADS, HEAD_DIM, ROOM = 1, 256, 256, 4, 2, 64, 8
Q_DIM, KV_DIM, EPS = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, 1e-6
Values = NDArray[np.float32]


@pytest.fixture(scope="module")
def shared(kernels: Path) -> Iterator[CudaExecutor]:
    """One for all tests of products, so that a kernel is loaded once."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PTXGEN_CACHE_DIR", str(kernels))
        made = CudaExecutor("emulator", profile=GpuProfile())
    with made:
        for type in TYPES:
            made.load_weight(type, FORMATS[type].random_blocks(np.random.default_rng(3), N, K), type, (N, K))
        yield made


@pytest.fixture
def executor(shared: CudaExecutor) -> Iterator[CudaExecutor]:
    shared.profile = GpuProfile()
    yield shared
    shared.launcher.observers.clear()


def values(*shape: int, seed: int = 4) -> Values:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def seen(executor: CudaExecutor) -> list[LaunchRecord]:
    records: list[LaunchRecord] = []
    executor.launcher.observers.append(records.append)
    return records


def alone(executor: CudaExecutor, type: str, x: Values) -> Values:
    """Each row by gemv_dispatch."""
    made = np.empty((len(x), N), np.float32)
    for row, y in zip(x, made, strict=True):
        executor.gemv_dispatch(type, type, row, y, N, K)
    return made


def same_bits(made: Values, expected: Values) -> None:
    np.testing.assert_array_equal(made.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize(("type", "m"), [*(("Q4_K", m) for m in (1, 2, 8, 9)), ("Q6_K", 2), ("Q8_0", 2), ("F16", 9)])
def test_rows_have_the_bits_of_single_ones(type: str, m: int, executor: CudaExecutor) -> None:
    x = values(m, K)
    expected = alone(executor, type, x)
    for product in (executor.batched_gemv_with_fallback, executor.batched_gemv_or_gemm):
        y = executor.zeros(m, N)
        product(type, type, executor.buffer(x), y, m, N, K)
        same_bits(y.to_numpy(), expected)


def test_a_kernel_without_a_form_for_rows_runs_once_a_row_where_that_was_asked_for(executor: CudaExecutor) -> None:
    executor.profile = GpuProfile(gemv={"q4k": "dp4a_q4k_gemv"})
    x, y = values(3, K), executor.zeros(3, N)
    expected = alone(executor, "Q4_K", x)
    records = seen(executor)
    executor.batched_gemv_with_fallback("Q4_K", "Q4_K", executor.buffer(x), y, 3, N, K)
    same_bits(y.to_numpy(), expected)
    assert [record.kernel.name for record in records] == ["q16_quantize", "dp4a_q4k_gemv"] * 3
    with pytest.raises(ArgumentError, match=r"dp4a_q4k_gemv.* has no form for 3 rows; there are batched_"):
        executor.batched_gemv_or_gemm("Q4_K", "Q4_K", executor.buffer(x), y, 3, N, K)


def test_a_form_with_other_bits_is_no_form(executor: CudaExecutor) -> None:
    executor.profile = GpuProfile(gemv={"q4k": "q4k_gemv"})
    x, y = values(2, K), executor.zeros(2, N)
    expected = alone(executor, "Q4_K", x)
    executor.batched_gemv_with_fallback("Q4_K", "Q4_K", executor.buffer(x), y, 2, N, K)
    same_bits(y.to_numpy(), expected)


def measured(kernel: str, rows: int, **parameters: int) -> GpuProfile:
    entry = TuningEntry("accurate", "q4k", K, N, kernel, parameters, seconds=1e-6, error=1e-7, rows=rows)
    return GpuProfile(tables=(TuningTable("a table", GpuModel("any GPU", "sm_90", 1), (entry,)),))


def test_what_was_measured_for_so_many_rows_is_used_and_not_where_bits_must_not_depend_on_them(executor: CudaExecutor) -> None:
    x, y = values(2, K), executor.zeros(2, N)
    expected = alone(executor, "Q4_K", x)
    executor.profile = measured("mma_q4k_gemm", rows=4, digits=3, tile=8, warps=1)
    records = seen(executor)
    executor.batched_gemv_or_gemm("Q4_K", "Q4_K", executor.buffer(x), y, 2, N, K)
    kernel = records[-1].kernel
    assert (kernel.name, kernel.parameters()["m"]) == ("mma_q4k_gemm", 2)
    assert np.abs(y.to_numpy() - expected).max() <= 1e-5 * expected.std()
    executor.profile = executor.profile.with_rules("batch_invariant")
    executor.batched_gemv_or_gemm("Q4_K", "Q4_K", executor.buffer(x), y, 2, N, K)
    same_bits(y.to_numpy(), expected)


@pytest.mark.parametrize(("m", "digits"), [(1, 1), (2, None)])
def test_queries_keys_and_values_are_made_from_planes_that_are_made_once(
    m: int, digits: int | None, executor: CudaExecutor
) -> None:
    executor.profile = GpuProfile(gemv={"q4k": "mwv_q4k_gemv"})
    rng, x = np.random.default_rng(8), values(m, K)
    dims, sizes = {"q_dim": 2 * N, "kv_dim": N, "hidden_dim": K}, {"q": 2 * N, "k": N, "v": N}
    for role, n in sizes.items():
        executor.load_weight(role, FORMATS["Q4_K"].random_blocks(rng, n, K), "Q4_K", (n, K))
    outputs: dict[str, Any] = {role: executor.zeros(m, n) for role, n in sizes.items()}
    records = seen(executor)
    executor.batched_qkv_dp4a_q4k_gemv_into("q", "k", "v", executor.buffer(x), **outputs, m=m, **dims, digits=digits)
    assert sum(record.kernel.family == "quantize" for record in records) == 1
    for role, n in sizes.items():
        for row, made in zip(x, outputs[role].to_numpy(), strict=True):
            y = np.empty(n, np.float32)
            executor.hw_dp4a_q4k_gemv_into(role, row, y, n, K, digits=digits)
            same_bits(made, y)


def test_sizes_that_the_weights_know_may_be_left_out(executor: CudaExecutor) -> None:
    x = executor.buffer(values(2, K))
    for product in (executor.batched_gemv_with_fallback, executor.batched_gemv_or_gemm):
        told, known = executor.zeros(2, N), executor.zeros(2, N)
        product("F16", "F16", x, told, 2, N, K)
        product("F16", "F16", x, known, 2)
        same_bits(known.to_numpy(), told.to_numpy())
    rng, sizes = np.random.default_rng(5), {"q": N, "k": 4, "v": 8}
    outputs: dict[str, Any] = {name: executor.zeros(2, n) for name, n in sizes.items()}
    for name, n in sizes.items():
        executor.load_weight(name, FORMATS["Q4_K"].random_blocks(rng, n, K), "Q4_K", (n, K))
    executor.batched_qkv_dp4a_q4k_gemv_into("q", "k", "v", x, **outputs, m=2)
    for name, made in outputs.items():
        same_bits(made.to_numpy(), executor.matmul(name, x).to_numpy())


def test_a_bias_is_added_to_every_row(executor: CudaExecutor) -> None:
    x, bias = values(9, 5), values(5, seed=6)
    packed = executor.buffer(x)
    executor.batched_bias_broadcast_add(packed, executor.buffer(bias), dim=5, m=9)
    same_bits(packed.to_numpy(), x + bias)


def test_products_and_biases_are_captured(executor: CudaExecutor) -> None:
    x, y, bias = executor.buffer(values(2, K)), executor.zeros(2, N), values(N, seed=6)
    added = executor.buffer(bias)
    with executor.capture() as graph:
        executor.batched_gemv_with_fallback("F16", "F16", x, y, 2, N, K)
        executor.batched_bias_broadcast_add(y, added, N, 2)
    assert not y.to_numpy().any()
    for seed in (4, 5):
        x.upload(values(2, K, seed=seed))
        graph.replay()
        same_bits(y.to_numpy(), alone(executor, "F16", values(2, K, seed=seed)) + bias)


@dataclass
class Phase:
    """A layer of an executor, what batched_qkv_rope_phase gets for m rows, and what each row of it is by itself."""

    executor: CudaExecutor
    layer: ValidatedLayerWeights
    m: int

    def __post_init__(self) -> None:
        self.x = values(self.m, HIDDEN)
        self.sizes = {"hidden_buf": HIDDEN, "q": Q_DIM, "k": KV_DIM, "v": KV_DIM}
        self.out = {name: self.executor.zeros(self.m, n) for name, n in self.sizes.items()}
        self.input = self.executor.buffer(self.x)

    def arguments(self, positions: Any) -> dict[str, Any]:
        dims = {"hidden_dim": HIDDEN, "q_dim": Q_DIM, "kv_dim": KV_DIM, "epsilon": EPS}
        return {"input": self.input, **self.out, "layer_weights": self.layer, "m": self.m, "positions": positions, **dims}

    def run(self, positions: Any) -> None:
        self.executor.batched_qkv_rope_phase(**self.arguments(positions))

    def alone(self, x: Values, position: int) -> dict[str, GpuBuffer]:
        """The steps of one token, one by one. Digits of a norm are none of its f32 values (RmsNorm)."""
        executor, w = self.executor, self.layer
        out = {name: executor.zeros(n) for name, n in self.sizes.items()}
        read = StepValue.of(out["hidden_buf"])
        assert w.attn_norm is not None
        norm = Norm(name="norm", x=StepValue.of(executor.buffer(x)), y=read, gamma=w.attn_norm, eps=EPS)
        matrices = [(role, w.projections[f"attn_{role}"]) for role in "qkv"]
        with executor._session.launches() as launch:
            launch.fused = False
            perform(launch, [norm, *(project(role, one, read, StepValue.of(out[role])) for role, one in matrices)])
        for role, bias in (("q", w.attn_q_bias), ("k", w.attn_k_bias), ("v", w.attn_v_bias)):
            if bias is not None:
                executor.launcher(AddInPlace(n=bias.shape[0]), x=out[role], delta=bias)
        at = executor.buffer(np.array([position], np.uint32))
        for role, count, gamma in (("q", HEADS, w.attn_q_norm), ("k", KV_HEADS, w.attn_k_norm)):
            heads = out[role].view(0, (count, HEAD_DIM))
            if gamma is not None:
                executor.launcher(PerHeadRmsNorm(count, HEAD_DIM), x=heads, gamma=gamma, eps=EPS)
            rope = Rope(executor.sequence.rope_style == "neox", True, count, HEAD_DIM, ROOM)
            executor.launcher(rope, x=heads, table=executor.sequence.rope_table, position=at)
        return out

    def check(self, positions: list[int]) -> None:
        """Each row is what it is alone."""
        same_bits(self.input.to_numpy(), self.x)
        for row, (x, position) in enumerate(zip(self.x, positions, strict=True)):
            for name, expected in self.alone(x, position).items():
                same_bits(self.out[name].to_numpy()[row], expected.to_numpy())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """llama rotates neighbours; qwen2 has biases, qwen3 norms of heads, and both rotate halves."""
    folder, packed, plain = tmp_path_factory.mktemp("models"), {"": Q.Q4_K, "attn_v": Q.Q6_K}, {"": Q.F16}
    types = {"llama": packed, "qwen2": plain, "qwen3": plain}
    shape = {"layers": LAYERS, "hidden": HIDDEN, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "ff": FF}
    return {arch: write_model(folder / arch, arch, types[arch], **shape) for arch in types}  # type: ignore[arg-type]


@pytest.fixture
def phase(models: dict[str, Path]) -> Iterator[Callable[..., Phase]]:
    opened: list[CudaExecutor] = []

    def make(arch: str = "llama", m: int = 2) -> Phase:
        executor = CudaExecutor("emulator", profile=GpuProfile())
        opened.append(executor)
        executor.load_weights(models[arch])
        style: Any = "adjacent" if arch == "llama" else "neox"
        executor.init_kv_cache(LAYERS, HEADS, KV_HEADS, HEAD_DIM, ROOM, rope_style=style)
        return Phase(executor, executor.build_indexed_weights(LAYERS, HIDDEN, FF)[0], m)

    yield make
    for executor in opened:
        executor.close()


@pytest.mark.parametrize(("arch", "m"), [("llama", 2), ("qwen2", 9), ("qwen3", 1)])
def test_each_row_is_what_it_is_alone_at_its_own_position(arch: str, m: int, phase: Callable[..., Phase]) -> None:
    made = phase(arch, m)
    positions = [5 * row % ROOM for row in range(m)]
    made.run(positions)
    made.check(positions)
    assert made.executor.sequence.lengths == [0]


def test_a_replay_serves_the_positions_that_the_device_holds_then(phase: Callable[..., Phase]) -> None:
    made = phase("qwen2", 2)
    positions = made.executor.zeros(2, dtype=U32)
    with made.executor.capture() as graph:
        made.run(positions)
    for now in ([0, 7], [3, 1]):
        positions.upload(np.array(now, np.uint32))
        graph.replay()
        made.check(now)


def test_a_row_of_the_device_beyond_the_cache_is_not_rotated(phase: Callable[..., Phase]) -> None:
    made = phase("qwen2", 2)
    made.run(made.executor.buffer(np.array([ROOM, 3], np.uint32)))
    unrotated = made.alone(made.x[0], 0)  # the rotation of position 0 turns nothing
    for name, expected in unrotated.items():
        same_bits(made.out[name].to_numpy()[0], expected.to_numpy())


def test_a_cache_that_grew_has_room_for_later_positions(phase: Callable[..., Phase]) -> None:
    made = phase("qwen2", 1)
    made.executor.sequence.grow(2 * ROOM)
    made.run([ROOM])
    rotated = made.out["q"].to_numpy()
    made.run([0])
    assert np.any(rotated != made.out["q"].to_numpy())


def test_a_phase_uses_what_was_measured_for_so_many_rows(phase: Callable[..., Phase]) -> None:
    made = phase("llama", 2)
    entries = [
        TuningEntry("accurate", "q4k", HIDDEN, None, "batched_q4k_gemv", {}, seconds=1e-6, error=1e-7, rows=2),
        TuningEntry("accurate", "q4k", HIDDEN, None, "wide_q4k_gemv", {}, seconds=1e-6, error=1e-7),
    ]
    table = TuningTable("a table", GpuModel("any GPU", "sm_90", 1), tuple(entries))
    made.executor.profile = GpuProfile(tables=(table,))
    records = seen(made.executor)
    made.run([0, 1])
    assert [record.kernel.name for record in records if record.kernel.family == "gemv"] == [
        "batched_q4k_gemv",
        "batched_q4k_gemv",
        "batched_hw_dp4a_q6k_gemv",
    ]


REFUSED_POSITIONS = {
    "one too few": ([1], r"positions are int64\[1\]; must be 2 whole numbers, one a row, or a GpuBuffer u32\[2\]"),
    "one beyond the cache": ([0, ROOM], "position 8 of row 1 does not fit; the cache has room for 0 to 7"),
    "one below": ([-1, 0], "position -1 of row 0 does not fit"),
    "fractions": ([0.0, 1.0], "positions are float64"),
    "truth": ([True, False], "positions are bool"),
    "a number": (1, r"positions are int64\[\]; must be 2"),
    "huge": ([0, 1 << 80], "positions are object"),
    "nothing": (None, "positions are object"),
}


class TestWhatIsRefused:
    """None of it reaches a launch or changes anything."""

    @pytest.fixture(autouse=True)
    def watched(self, phase: Callable[..., Phase]) -> Iterator[None]:
        self.phase = phase("qwen2", 2)
        self.executor = self.phase.executor
        self.x, self.y = self.executor.zeros(2, K), self.executor.zeros(2, N)
        raw = FORMATS["Q4_K"].random_blocks(np.random.default_rng(3), N, K)
        self.executor.load_weight("w", raw, "Q4_K", (N, K))
        records = seen(self.executor)
        yield
        assert records == []
        assert not any(buffer.to_numpy().any() for buffer in (self.y, *self.phase.out.values()) if buffer.alive)

    def refused(self, match: str, **change: Any) -> None:
        with pytest.raises(PtxGenError, match=match):
            self.executor.batched_qkv_rope_phase(**self.phase.arguments([0, 1]) | change)

    @pytest.mark.parametrize("what", REFUSED_POSITIONS)
    def test_positions(self, what: str) -> None:
        positions, said = REFUSED_POSITIONS[what]
        self.refused(said, positions=positions)

    def test_positions_of_the_device(self) -> None:
        self.refused(r"positions is u32\[3\]; must be u32\[2\]", positions=self.executor.zeros(3, dtype=U32))
        self.refused(r"positions is f32\[2\]; must be u32\[2\]", positions=self.executor.zeros(2))
        freed = self.executor.zeros(2, dtype=U32)
        freed.free()
        self.refused(r"positions .* was freed", positions=freed)

    def test_positions_of_the_host_in_a_capture(self) -> None:
        with pytest.raises(LaunchError, match="nothing was launched"), self.executor.capture():
            self.refused(r"positions .* cannot be captured; give a GpuBuffer u32\[2\]")

    @pytest.mark.parametrize("name", ["input", "hidden_buf", "q", "k", "v"])
    def test_rows_of_another_size_or_freed(self, name: str) -> None:
        self.refused(rf"{name} is f32\[3, 256\]; must be f32\[2, \d+\]", **{name: self.executor.zeros(3, 256)})
        freed = self.executor.zeros(2, self.phase.sizes.get(name, HIDDEN))
        freed.free()
        self.refused(rf"{name} .* was freed", **{name: freed})

    def test_rows_that_overlap(self) -> None:
        self.refused(r"hidden_buf .* overlaps input", hidden_buf=self.phase.input)
        self.refused(r"k .* overlaps v", v=self.phase.out["k"])
        self.refused(r"q .* overlaps positions", positions=self.phase.out["q"].view(0, (2,), U32))

    def test_dimensions_that_are_not_the_caches_or_the_weights(self) -> None:
        self.refused("q_dim is 128; the KV cache is of 4 heads of 64 values, 256", q_dim=128)
        self.refused("kv_dim is 256; the KV cache is of 2 heads of 64 values, 128", kv_dim=256)
        wide = {name: self.executor.zeros(2, 512) for name in ("input", "hidden_buf")}
        self.refused(r"blk\.0\.attn_q\.weight is 256 x 256; the call says 256 x 512", hidden_dim=512, **wide)
        self.refused("epsilon is -1; allowed: a finite number of at least 0", epsilon=-1)
        self.refused("m is 0; allowed: a whole number of at least 1", m=0)

    def test_weights_that_are_none_or_were_replaced(self) -> None:
        self.refused("layer_weights is None; allowed: a ValidatedLayerWeights", layer_weights=None)
        for name in ("attn_v.weight", "attn_k.bias", "attn_norm.weight"):
            weight = self.executor.weights[f"blk.0.{name}"]
            shape = (weight.n, weight.k) if name == "attn_v.weight" else (weight.k,)
            self.executor.load_weight(f"blk.0.{name}", weight.buffer.to_numpy(), weight.format, shape)
            self.refused("was freed")
            self.phase.layer = self.executor.build_indexed_weights(LAYERS, HIDDEN, FF)[0]

    def test_a_phase_without_a_cache(self) -> None:
        with CudaExecutor("emulator", profile=GpuProfile()) as other, pytest.raises(ArgumentError, match="no KV cache yet"):
            other.batched_qkv_rope_phase(**self.phase.arguments([0, 1]))

    @pytest.mark.parametrize("method", ["batched_gemv_with_fallback", "batched_gemv_or_gemm"])
    def test_products(self, method: str) -> None:
        product = getattr(self.executor, method)
        for match, change in (
            (r"packed_input is f32\[2, 256\]; must be f32\[3, 256\]", {"m": 3}),
            (r"packed_output is f32\[7\]; must be f32\[2, 128\]", {"packed_output": self.executor.zeros(7)}),
            (r"packed_output \(.*\) overlaps packed_input", {"packed_output": self.x.view(1024, (2, N))}),
            ("w is Q4_K; the call says Q6_K", {"type": "Q6_K"}),
            ("w is 128 x 256; the call says 9 x 256", {"n": 9}),
            ("w is 128 x 256; the call says n = 9$", {"n": 9, "k": None}),
            ("m is 0", {"m": 0}),
            ("no weight is called v", {"weight": "v"}),
        ):
            good = {"type": "Q4_K", "weight": "w", "packed_input": self.x, "packed_output": self.y, "m": 2, "n": N, "k": K}
            with pytest.raises(PtxGenError, match=match):
                product(**good | change)

    def test_a_loop_over_rows_that_overlap_each_other_s_results(self) -> None:
        self.executor.profile = GpuProfile(gemv={"q4k": "dp4a_q4k_gemv"})
        with pytest.raises(LaunchError, match=r"packed_output .* overlaps packed_input"):
            self.executor.batched_gemv_with_fallback("Q4_K", "w", self.x, self.x.view(4 * K, (2, N)), 2, N, K)

    def test_a_loop_over_rows_that_do_not_start_where_a_kernel_may(self) -> None:
        self.executor.profile = GpuProfile(gemv={"q4k": "dp4a_q4k_gemv"})
        raw = FORMATS["Q4_K"].random_blocks(np.random.default_rng(3), 6, K)
        self.executor.load_weight("six", raw, "Q4_K", (6, K))
        with pytest.raises(LaunchError, match=r"argument y starts at .*; must be on a 16-byte boundary"):
            self.executor.batched_gemv_with_fallback("Q4_K", "six", self.x, self.executor.zeros(2, 6), 2, 6, K)

    def test_three_products(self) -> None:
        self.executor.load_weight("wide", FORMATS["Q4_K"].random_blocks(np.random.default_rng(3), N, 512), "Q4_K", (N, 512))
        y: dict[str, Any] = {"q": self.y, "k": self.executor.zeros(2, N), "v": self.executor.zeros(2, N)}
        dims = {"m": 2, "q_dim": N, "kv_dim": N, "hidden_dim": K}
        good = {"q_weight": "w", "k_weight": "w", "v_weight": "w", "packed_input": self.x, **y, **dims}
        for match, change in (
            (r"q \(.*\) overlaps k", {"k": self.y}),
            (r"v \(.*\) overlaps packed_input", {"v": self.x.view(0, (2, N))}),
            (r"blk.0.attn_v.weight is F16; the call says Q4_K", {"v_weight": "blk.0.attn_v.weight"}),
            (r"w is 128 x 256; the call says 4 x 256", {"q_dim": 4}),
            (r"wide has rows of 512 values, w of 256; they read one input", {"v_weight": "wide", "hidden_dim": None}),
            (r"digits is 4; allowed", {"digits": 4}),
        ):
            with pytest.raises(PtxGenError, match=match):
                self.executor.batched_qkv_dp4a_q4k_gemv_into(**good | change)

    def test_a_bias(self) -> None:
        with pytest.raises(ArgumentError, match=r"bias is f32\[7\]; must be f32\[128\]"):
            self.executor.batched_bias_broadcast_add(self.y, self.executor.zeros(7), N, 2)
        with pytest.raises(LaunchError, match=r"packed \(.*\) overlaps bias"):
            self.executor.batched_bias_broadcast_add(self.y, self.y.view(0, (N,)), N, 2)
