"""The steps of a layer one by one: right within the bounds of their kernels, with the same bits in a graph, and a layer made of
them has the bits of the library's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from executor import CudaExecutor, GpuBuffer, GpuProfile
from executor.base.errors import LaunchError, ModelError
from executor.device.protocol import Node
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError, PtxGenError
from ptxgen.formats import FORMATS
from ptxgen.kernels.activation.bias import BiasAdd
from ptxgen.kernels.activation.elementwise import AddInPlace, ElementwiseMul, Gelu, Silu
from ptxgen.kernels.activation.swiglu import FusedSwiglu
from ptxgen.kernels.norm.per_head_rmsnorm import PerHeadRmsNorm
from ptxgen.kernels.norm.rmsnorm import RmsNorm
from ptxgen.kernels.rope.rope import Rope
from ptxgen.kernels.rope.table import rope_table
from ptxgen.kernels.token.argmax import ArgMax
from tests.executor.api.five_ways import FiveWays, Rows
from tests.executor.api.layer_model import EPS as EPS_OF
from tests.executor.api.layer_model import FF, HIDDEN, inputs, opened, written
from tests.executor.launch.kernels import Scale

pytestmark = pytest.mark.usefixtures("shared_kernels")

N, EPS = 64, 1e-5
ROOM, HEAD, TURNED = 8, 32, 16
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Block:
    """A step: its arguments by their names in the kernel, of rows ("x") or shared by them ("gamma"), what it computes of them
    in float64, and the kernel for m rows, which knows by how much it may be off."""

    names: tuple[str, ...]
    call: Callable[..., GpuBuffer | None]
    exact: Callable[..., Any]
    kernel: Callable[[int], KernelType]

    def arrays(self, m: int) -> list[NDArray[np.float32]]:
        rng = np.random.default_rng(len(self.names))
        return [rng.standard_normal(N if name in ("gamma", "bias") else (m, N)).astype(np.float32) for name in self.names]

    def run(self, executor: CudaExecutor, given: Sequence[GpuBuffer]) -> GpuBuffer:
        """The result, which is the first argument if that is changed in place."""
        made = self.call(executor, *given)
        return given[0] if made is None else made


def normalised(x: Doubles, gamma: Doubles) -> Any:
    return gamma * x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)


def silu(x: Doubles) -> Any:
    return x / (1 + np.exp(-x))


def gelu(x: Doubles) -> Any:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


BLOCKS = {
    "rmsnorm": Block(("x", "gamma"), lambda e, x, g: e.rmsnorm(x, g, EPS), normalised, lambda m: RmsNorm(N, m=m)),
    "per_head_rmsnorm": Block(
        ("x", "gamma"), lambda e, x, g: e.per_head_rmsnorm(x, g, EPS), normalised, lambda m: PerHeadRmsNorm(m, N)
    ),
    "silu": Block(("x",), CudaExecutor.silu, silu, lambda m: Silu(N, m=m)),
    "gelu": Block(("x",), CudaExecutor.gelu, gelu, lambda m: Gelu(N, m=m)),
    "swiglu": Block(("gate", "up"), CudaExecutor.swiglu, lambda gate, up: silu(gate) * up, lambda m: FusedSwiglu(N, m=m)),
    "multiply": Block(("a", "b"), CudaExecutor.multiply, np.multiply, lambda m: ElementwiseMul(N, m=m)),
    "residual_add": Block(("x", "delta"), CudaExecutor.residual_add, np.add, lambda m: AddInPlace(N, m=m)),
    "a bias": Block(("x", "bias"), CudaExecutor.residual_add, np.add, lambda m: BiasAdd(N, m)),
    "argmax": Block(("x",), CudaExecutor.argmax, lambda x: x.argmax(-1), lambda m: ArgMax(N, m=m)),
}


@pytest.fixture(scope="module")
def shared() -> Iterator[CudaExecutor]:
    with CudaExecutor("emulator", profile=GpuProfile()) as made:
        made.init_kv_cache(2, 4, 2, HEAD, ROOM, rope_style="neox", rope_dim=TURNED)
        yield made


@pytest.fixture
def executor(shared: CudaExecutor) -> CudaExecutor:
    shared.sequence.reset()
    return shared


def random(*shape: int, seed: int = 7) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("m", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_a_block_is_right_within_its_kernels_bound_and_a_graph_has_its_bits(
    executor: CudaExecutor, block: Block, m: int
) -> None:
    arrays = block.arrays(m)
    made = block.run(executor, [executor.buffer(array) for array in arrays]).to_numpy()
    (bound,) = block.kernel(m).tolerance(**dict(zip(block.names, arrays, strict=True)), eps=EPS).values()
    exact = block.exact(*(array.astype(np.float64) for array in arrays))
    assert made.shape == exact.shape
    assert (np.abs(made - exact) <= bound).all()
    given = [executor.buffer(array) for array in arrays]
    with executor.capture() as graph:
        later = block.run(executor, given)
    graph.replay()
    np.testing.assert_array_equal(later.to_numpy(), made)


@pytest.mark.parametrize("name", ["rmsnorm", "silu", "gelu", "swiglu", "multiply", "argmax"])
def test_a_vector_has_the_bits_of_a_row_and_out_gets_them(executor: CudaExecutor, name: str) -> None:
    block = BLOCKS[name]
    rows = block.run(executor, [executor.buffer(array) for array in block.arrays(3)]).to_numpy()
    arrays = [array if array.ndim == 1 else array[1] for array in block.arrays(3)]
    out = executor.zeros(rows[1].shape or 1, dtype=rows.dtype)
    epsilon = (EPS,) if name == "rmsnorm" else ()
    assert getattr(executor, name)(*map(executor.buffer, arrays), *epsilon, out=out) is out
    np.testing.assert_array_equal(out.to_numpy().reshape(rows[1].shape), rows[1])


def test_arrays_of_other_libraries_are_used_where_they_are(executor: CudaExecutor) -> None:
    x, theirs = random(3, N), np.zeros((3, N), np.float32)
    executor.silu(x, out=theirs)
    np.testing.assert_array_equal(theirs, executor.silu(executor.buffer(x)).to_numpy())
    executor.residual_add(theirs, x)
    np.testing.assert_allclose(theirs, silu(x.astype("f8")) + x, rtol=1e-5)


WRONG: dict[str, tuple[Callable[[CudaExecutor], object], str]] = {
    "two shapes": (lambda e: e.swiglu(e.zeros(4), e.zeros(5)), r"up is f32\[5\]; must be f32\[4\]"),
    "a type": (lambda e: e.silu(e.zeros(4, dtype="f16")), r"x is f16\[4\]; must be f32\[4\]"),
    "no array": (lambda e: e.gelu(3), r"x is 3; allowed: a GpuBuffer, or an array"),
    "no dimensions": (lambda e: e.silu(np.float32(3)), r"x has the shape \[\]; must be \[n\] or \[\.\.\., n\], n at least 1"),
    "a gamma of another length": (lambda e: e.rmsnorm(e.zeros(2, 4), e.zeros(5), EPS), r"gamma is f32\[5\]; must be f32\[4\]"),
    "a negative epsilon": (lambda e: e.rmsnorm(e.zeros(4), e.zeros(4), -1.0), r"epsilon is -1\.0; allowed: .* at least 0"),
    "no heads": (lambda e: e.per_head_rmsnorm(e.zeros(65), e.zeros(32), EPS), r"no heads of 32 values"),
    "a gamma of rows": (lambda e: e.per_head_rmsnorm(e.zeros(64), e.zeros(2, 32), EPS), r"gamma has the shape \[2, 32\]"),
    "a delta that is no row": (lambda e: e.residual_add(e.zeros(2, 4), e.zeros(2)), r"delta is f32\[2\]; must be f32\[2, 4\]"),
    "an out of another shape": (lambda e: e.silu(e.zeros(4), out=e.zeros(2, 4)), r"out is f32\[2, 4\]; must be f32\[4\]"),
    "an out of another type": (lambda e: e.argmax(e.zeros(4), out=e.zeros(1)), r"out is f32\[1\]; must be u32\[1\]"),
    "heads of another size": (lambda e: e.rope(e.zeros(33), 0), r"x has the shape \[33\]; must be heads of 32 values"),
    "rows that no positions have": (lambda e: e.rope(e.zeros(2, 64), [0, 1, 2]), "as many for each of 3 positions"),
    "no room for a position": (lambda e: e.rope(e.zeros(32), ROOM), "position is 8; allowed: a whole number from 0 to 7"),
    "no room for one of many": (lambda e: e.rope(e.zeros(2, 32), [0, 8]), "position 8 of row 1 does not fit"),
    "a position that is none": (lambda e: e.rope(e.zeros(32), 1.0), r"positions are float64\[\]; must be m whole numbers"),
    "positions of another type": (lambda e: e.rope(e.zeros(32), e.zeros(1)), r"positions is f32\[1\]; must be u32\[1\]"),
    "a gap": (lambda e: attend(e, 0, position=1), "position 1 of layer 0 must be from 0 to 0"),
    "no such layer": (lambda e: attend(e, 2, position=0), "no layer 2; the KV cache has layers 0 to 1"),
    "keys for each query": (
        lambda e: e.attention(0, e.zeros(4, HEAD), e.zeros(4, HEAD), e.zeros(2, HEAD), 0),
        r"k is f32\[4, 32\]; must be f32\[2, 32\]",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_refused_before_anything_is_launched(executor: CudaExecutor, what: str) -> None:
    launched: list[object] = []
    with executor.launcher.observed_by(launched.append), pytest.raises(ArgumentError, match=WRONG[what][1]):
        WRONG[what][0](executor)
    assert launched == []
    assert executor.sequence.lengths == [0, 0]


def test_a_result_may_not_overlap_what_it_is_made_from_nor_be_freed(executor: CudaExecutor) -> None:
    x = executor.buffer(random(N))
    with pytest.raises(LaunchError, match="overlap"):
        executor.silu(x, out=x)
    with pytest.raises(LaunchError, match="overlap"):
        executor.residual_add(x, x)
    x.free()
    with pytest.raises(LaunchError, match="was freed"):
        executor.silu(x)


class TestEmbedding:
    ROWS = 5

    @pytest.fixture
    def table(self, executor: CudaExecutor) -> NDArray[np.float32]:
        """Its values; it is loaded as `table`."""
        blocks = FORMATS["Q4_K"].random_blocks(np.random.default_rng(9), self.ROWS, 256)
        executor.load_weight("table", blocks, "Q4_K", (self.ROWS, 256))
        return FORMATS["Q4_K"].dequantize(blocks)

    def test_tokens_get_their_rows(self, executor: CudaExecutor, table: NDArray[np.float32]) -> None:
        np.testing.assert_array_equal(executor.embedding("table", 3).to_numpy(), table[3])
        for tokens in ([4], [2, 0, 2]):
            made = executor.embedding(executor.weights["table"], executor.buffer(np.array(tokens, np.uint32)))
            np.testing.assert_array_equal(made.to_numpy(), table[tokens[0] if len(tokens) == 1 else tokens])

    def test_a_replay_reads_the_token_that_the_one_before_left(
        self, executor: CudaExecutor, table: NDArray[np.float32]
    ) -> None:
        token = executor.buffer(np.array([1], np.uint32))
        with executor.capture() as graph:
            row = executor.embedding("table", token)
            executor.argmax(row.view(0, self.ROWS), out=token)
        expected = 1
        for _ in range(4):
            graph.replay()
            np.testing.assert_array_equal(row.to_numpy(), table[expected])
            expected = int(table[expected][: self.ROWS].argmax())
        refused = pytest.raises(LaunchError, match="token 3 would be the same in every replay, which cannot be captured")
        with refused, executor.capture():
            executor.embedding("table", 3)

    @pytest.mark.usefixtures("table")
    def test_what_is_no_token_is_refused_on_the_host_and_gives_nan_on_the_device(self, executor: CudaExecutor) -> None:
        for wrong, words in (
            (self.ROWS, "token is 5; allowed: a whole number from 0 to 4"),
            (-1, "token is -1"),
            (1.5, "token"),
        ):
            with pytest.raises(ArgumentError, match=words):
                executor.embedding("table", wrong)
        with pytest.raises(ArgumentError, match=r"token is f32\[1\]; must be u32\[1\]"):
            executor.embedding("table", executor.zeros(1))
        made = executor.embedding("table", executor.buffer(np.array([self.ROWS, 0], np.uint32))).to_numpy()
        assert np.isnan(made).all(axis=1).tolist() == [True, False]


def test_loaded_vectors_go_by_name(executor: CudaExecutor) -> None:
    gamma, x = random(N), executor.buffer(random(3, N))
    held = executor.load_weight("gamma", gamma, "F32", (N,))
    expected = executor.rmsnorm(x, executor.buffer(gamma), EPS).to_numpy()
    for given in ("gamma", held, held.buffer):
        np.testing.assert_array_equal(executor.rmsnorm(x, given, EPS).to_numpy(), expected)
    executor.residual_add(x, "gamma")
    np.testing.assert_array_equal(x.to_numpy(), random(3, N) + gamma)
    with pytest.raises(ModelError, match="no weight is called gama; near: gamma"):
        executor.rmsnorm(x, "gama", EPS)


class TestRope:
    POSITIONS = (5, 0, 7)

    @pytest.fixture
    def table(self) -> NDArray[np.float32]:
        return rope_table(ROOM, TURNED, 10000.0)

    def test_rows_are_turned_by_their_positions_from_host_or_device(
        self, executor: CudaExecutor, table: NDArray[np.float32]
    ) -> None:
        x = random(3, 4 * HEAD)
        on_device = executor.buffer(np.array(self.POSITIONS, np.uint32))
        made = []
        for positions in (list(self.POSITIONS), np.array(self.POSITIONS), on_device):
            made.append(executor.buffer(x))
            executor.rope(made[-1], positions)
        kernel = Rope(True, True, 4, HEAD, ROOM, TURNED, m=3)
        heads: dict[str, Any] = {"x": x.reshape(3, 4, HEAD), "table": table, "positions": self.POSITIONS}
        angles = np.array(self.POSITIONS)[:, None] * 10000.0 ** (-2 * np.arange(TURNED // 2) / TURNED)
        first, second = (heads["x"][..., at : at + TURNED // 2].astype("f8") for at in (0, TURNED // 2))
        cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
        exact = heads["x"].astype("f8")
        exact[..., :TURNED] = np.concatenate([first * cosine - second * sine, first * sine + second * cosine], -1)
        table_off = 2.0**-24 * (np.abs(first) + np.abs(second))  # cosine and sine are rounded once
        bound = kernel.tolerance(**heads)["x"] + np.pad(np.tile(table_off, 2), [(0, 0), (0, 0), (0, HEAD - TURNED)])
        assert (np.abs(made[0].to_numpy().reshape(exact.shape) - exact) <= bound).all()
        for other in made[1:]:
            np.testing.assert_array_equal(other.to_numpy(), made[0].to_numpy())
        for row, position in enumerate(self.POSITIONS):  # a number turns one row to the same bits
            alone = executor.buffer(x[row])
            executor.rope(alone, position)
            np.testing.assert_array_equal(alone.to_numpy(), made[0].to_numpy()[row])

    def test_a_capture_reads_the_positions_of_the_device_at_each_replay(self, executor: CudaExecutor) -> None:
        x, positions = executor.zeros(2, 2 * HEAD), executor.zeros(2, dtype="u32")
        with executor.capture() as graph:
            executor.rope(x, positions)
        for given in ([1, 2], [7, 0]):
            x.upload(random(2, 2 * HEAD))
            positions.upload(np.array(given, np.uint32))
            graph.replay()
            eager = executor.buffer(random(2, 2 * HEAD))
            executor.rope(eager, given)
            np.testing.assert_array_equal(x.to_numpy(), eager.to_numpy())
        for fixed in (3, [3, 4]):
            with pytest.raises(LaunchError, match="which cannot be captured"), executor.capture():
                executor.rope(x, fixed)

    def test_the_current_position_is_what_replay_is_told(self, executor: CudaExecutor) -> None:
        x, values = executor.zeros(HEAD), random(HEAD)
        with executor.capture() as graph:
            executor.rope(x, executor.sequence.position)
        with pytest.raises(ArgumentError, match="needs the position of its token, got None"):
            graph.replay()
        for position in (6, 2):
            x.upload(values)
            graph.replay(position=position)
            eager = executor.buffer(values)
            executor.rope(eager, position)
            np.testing.assert_array_equal(x.to_numpy(), eager.to_numpy())


def token(executor: CudaExecutor, seed: int) -> tuple[GpuBuffer, GpuBuffer, GpuBuffer]:
    """Its query, key and value."""
    key, value = random(2, 2, HEAD, seed=seed + 100)
    return executor.buffer(random(4, HEAD, seed=seed)), executor.buffer(key), executor.buffer(value)


def attend(executor: CudaExecutor, layer: int, position: int, seed: int = 0) -> GpuBuffer:
    return executor.attention(layer, *token(executor, seed), position)


class TestAttention:
    """Against incremental_attention_async, which tests/executor/api/test_layers.py compares with float64."""

    def expected(self, executor: CudaExecutor, count: int) -> list[NDArray[np.float32]]:
        made = []
        for position in range(count):
            made.append(executor.incremental_attention_async(1, *token(executor, position))[0].to_numpy())
        executor.sequence.reset()
        return made

    def test_each_token_attends_to_those_before_it(self, executor: CudaExecutor) -> None:
        expected, flat = self.expected(executor, 3), executor.zeros(4 * HEAD)
        for position, row in enumerate(expected):
            np.testing.assert_array_equal(attend(executor, 1, position, seed=position).to_numpy(), row)
        assert executor.sequence.lengths == [0, 3]
        np.testing.assert_array_equal(attend(executor, 1, 1, seed=1).to_numpy(), expected[1])  # again: it forgets position 2
        assert executor.sequence.lengths == [0, 2]
        q, k, v = token(executor, 1)
        assert executor.attention(1, q.view(0, 4 * HEAD), k, v, 1, out=flat) is flat
        np.testing.assert_array_equal(flat.to_numpy(), expected[1].reshape(-1))

    def test_a_graph_serves_every_position(self, executor: CudaExecutor) -> None:
        expected = self.expected(executor, 3)
        q, k, v, out = executor.zeros(4, HEAD), executor.zeros(2, HEAD), executor.zeros(2, HEAD), executor.zeros(4, HEAD)
        with executor.capture() as graph:
            executor.attention(1, q, k, v, executor.sequence.position, out=out)
        for position, row in enumerate(expected):
            for buffer, given in zip((q, k, v), token(executor, position), strict=True):
                buffer.upload(given.to_numpy())
            graph.replay(position=position)
            np.testing.assert_array_equal(out.to_numpy(), row)
        assert executor.sequence.lengths == [0, 3]
        with pytest.raises(ArgumentError, match="position 5 of layer 1 must be from 0 to 3"):
            graph.replay(position=5)

    def test_a_position_that_would_be_fixed_in_a_graph_is_refused(self, executor: CudaExecutor) -> None:
        q, kv = executor.zeros(4, HEAD), executor.zeros(2, HEAD)
        for fixed in (0, executor.zeros(1, dtype="u32")):
            with pytest.raises(LaunchError, match=r"in a capture give sequence\.position"), executor.capture():
                executor.attention(0, q, kv, kv, fixed)

    def test_what_fails_leaves_the_lengths_and_no_memory(self, executor: CudaExecutor) -> None:
        attend(executor, 0, 0)
        taken = executor.device.memory().allocated
        q, kv = executor.buffer(random(4, HEAD)), executor.zeros(2, HEAD)
        with pytest.raises(PtxGenError):
            executor.attention(0, q, kv, kv, 5)
        del q, kv
        assert executor.device.memory().allocated == taken
        assert executor.sequence.lengths == [1, 0]

    def test_without_a_cache_it_says_what_makes_one(self) -> None:
        with CudaExecutor("emulator") as bare:
            for call in (lambda: bare.rope(bare.zeros(32), 0), lambda: attend(bare, 0, 0)):
                with pytest.raises(ArgumentError, match="there is no KV cache yet; init_kv_cache"):
                    call()


def own_layer(executor: CudaExecutor, layer: int, hidden: GpuBuffer, position: Any, eps: float) -> None:
    """A layer of llama, qwen2 or qwen3, as their users write one."""

    def weight(role: str) -> str:
        return f"blk.{layer}.{role}.weight"

    x = executor.rmsnorm(hidden, weight("attn_norm"), eps)
    q, k, v = (executor.matmul(weight(f"attn_{role}"), x) for role in "qkv")
    for role, made in (("q", q), ("k", k), ("v", v)):
        if (bias := f"blk.{layer}.attn_{role}.bias") in executor.weights:
            executor.residual_add(made, bias)
        if (norm := weight(f"attn_{role}_norm")) in executor.weights:
            executor.per_head_rmsnorm(made, norm, eps)
    executor.rope(q, position)
    executor.rope(k, position)
    attended = executor.attention(layer, q, k, v, position)
    executor.residual_add(hidden, executor.matmul(weight("attn_output"), attended))
    x = executor.rmsnorm(hidden, weight("ffn_norm"), eps)
    activated = executor.swiglu(executor.matmul(weight("ffn_gate"), x), executor.matmul(weight("ffn_up"), x))
    executor.residual_add(hidden, executor.matmul(weight("ffn_down"), activated))


def rounding(expected: Rows) -> float:
    """A norm's digits are those of its values before they are rounded (RmsNorm), which a block's products do not see: 32
    units of the largest result, for the two norms and the seven products that follow them in each layer."""
    return float(32 * 2.0**-23 * np.abs(expected).max())


class TestLayersOfOnesOwn:
    def own(self, ways: FiveWays, given: Sequence[NDArray[np.float32]], captured: bool) -> Rows:
        executor, made = ways.executor, []
        hidden = executor.zeros(HIDDEN)

        def layers(position: int | GpuBuffer) -> None:
            for layer in range(ways.layers):
                own_layer(executor, layer, hidden, position, ways.eps)

        if captured:
            with executor.capture() as graph:
                layers(executor.sequence.position)
        for position, x in enumerate(given):
            hidden.upload(x)
            graph.replay(position) if captured else layers(position)
            made.append(hidden.to_numpy())
        return made

    @pytest.mark.slow
    @pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
    def test_a_llama_layer_of_blocks_is_the_librarys_but_for_rounding(self, ways: FiveWays, captured: bool) -> None:
        given = inputs(3)
        expected = ways.in_workspace(given)
        ways.executor.sequence.reset()
        np.testing.assert_allclose(self.own(ways, given, captured), expected, rtol=0, atol=rounding(expected))

    @pytest.mark.slow
    @pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
    def test_biases_and_norms_of_heads_are_the_librarys_but_for_rounding(
        self, arch: str, tmp_path: Path, kernels: Path
    ) -> None:
        with opened(written(tmp_path, arch), arch, kernels) as executor:
            ways = FiveWays(executor, 1, HIDDEN, FF, EPS_OF[arch])
            expected = ways.in_workspace(inputs(2))
            executor.sequence.reset()
            np.testing.assert_allclose(self.own(ways, inputs(2), captured=False), expected, rtol=0, atol=rounding(expected))

    def test_a_kernel_of_ones_own_waits_in_a_graph_for_what_it_reads_and_no_more(
        self, layered: CudaExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        executor, nodes = layered, list[Node]()
        make_graph = executor.device.make_graph

        def noted(given: Sequence[Node]) -> Any:
            nodes.extend(given)
            return make_graph(given)

        monkeypatch.setattr(executor.device, "make_graph", noted)
        x, y, doubled = executor.buffer(random(HIDDEN)), executor.zeros(HIDDEN), executor.zeros(HIDDEN)
        other, sum_ = executor.buffer(random(HIDDEN)), executor.zeros(HIDDEN)
        with executor.capture() as graph:
            executor.silu(x, out=y)  # 0
            executor.launcher(Scale(n=HIDDEN), y=doubled, x=y, factor=2.0, offset=0)  # 1 reads what 0 writes
            executor.gelu(other, out=sum_)  # 2 has nothing to do with either
            executor.residual_add(sum_, doubled)  # 3 reads what 1 and 2 write
            executor.launcher(Scale(n=HIDDEN), y=y, x=x, factor=0.0, offset=3)  # 4 overwrites what 1 reads
            product = executor.matmul("blk.0.attn_q.weight", doubled)  # 5 (and its digits) reads what 1 writes
        assert [node.after for node in nodes[:5]] == [(), (0,), (), (1, 2), (1,)]
        assert nodes[5].after == (1,)
        for _ in range(2):
            graph.replay()
            np.testing.assert_array_equal(y.to_numpy(), [3] * HIDDEN)
            executor.silu(x, out=y)
            np.testing.assert_array_equal(doubled.to_numpy(), 2 * y.to_numpy())
        np.testing.assert_array_equal(product.to_numpy(), executor.matmul("blk.0.attn_q.weight", doubled).to_numpy())
