"""The operator and the module for PyTorch, on the emulator: the bits of matmul, whole under torch.compile, no gradient, and
errors that name the tensor."""

from __future__ import annotations

import gc
import io
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from executor import CudaExecutor
from executor.base.errors import ModelError
from executor.gguf.gguf_file import GgufFile
from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS
from tests.synthetic import write_model

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")

from executor.torch import GgufLinear, gguf_linear  # noqa: E402

pytestmark = pytest.mark.usefixtures("shared_kernels")

N, K = 64, 256
UNIT = 2.0**-24


def blocks(format: str = "Q4_K") -> NDArray[np.uint8]:
    return FORMATS[format].random_blocks(np.random.default_rng(3), N, K)


def weight(format: str = "Q4_K") -> Any:
    return torch.from_numpy(blocks(format))


def values(*shape: int) -> Any:
    return torch.from_numpy(np.random.default_rng(4).standard_normal(shape).astype(np.float32))


@pytest.fixture(scope="module")
def executor() -> Any:
    with CudaExecutor("emulator") as made:
        yield made


@pytest.mark.parametrize("format", ["Q4_K", "Q6_K", "Q8_0", "F16", "F32"])
def test_the_operator_has_the_bits_of_matmul(executor: CudaExecutor, format: str) -> None:
    held = executor.load_weight(format, blocks(format), format, (N, K))
    x = values(3, K)
    made = gguf_linear(x, weight(format), format)
    assert (made.dtype, tuple(made.shape)) == (torch.float32, (3, N))
    np.testing.assert_array_equal(made.numpy(), executor.matmul(held, x.numpy()).to_numpy())
    exact = x.numpy().astype("f8") @ FORMATS[format].dequantize(blocks(format)).astype("f8").T
    assert np.linalg.norm(made.numpy() - exact) / np.linalg.norm(exact) < 1e-5


@pytest.mark.parametrize("shape", [(K,), (1, K), (2, 3, K), (0, K), (2, 0, K)])
def test_leading_axes_stay_and_no_rows_are_no_work(shape: tuple[int, ...]) -> None:
    x = values(*shape)
    made = gguf_linear(x, weight(), "Q4_K")
    assert tuple(made.shape) == (*shape[:-1], N)
    for row, expected in zip(x.reshape(-1, K), made.reshape(-1, N), strict=True):
        assert torch.equal(gguf_linear(row, weight(), "Q4_K"), expected)


def test_many_rows_go_in_steps_of_few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor.torch.linear.MOST_ROWS", 16)
    sizes: list[int] = []
    product = CudaExecutor.matmul

    def noted(executor: CudaExecutor, matrix: Any, x: Any, out: Any) -> Any:
        sizes.append(x.shape[0])
        return product(executor, matrix, x, out=out)

    monkeypatch.setattr(CudaExecutor, "matmul", noted)
    x = values(45, K)
    made = gguf_linear(x, weight(), "Q4_K")
    assert sizes == [16, 16, 8, 5]
    for row in (0, 15, 16, 44):
        assert torch.equal(made[row], gguf_linear(x[row], weight(), "Q4_K"))


@pytest.mark.parametrize(
    "x",
    [
        lambda: values(K, 3).T,
        lambda: values(3, 2 * K)[:, ::2],
        lambda: values(1, K).expand(3, K),
        lambda: values(3 * K + 1)[1:].reshape(3, K),  # starts at a multiple of 4 bytes only
    ],
    ids=["a transpose", "every other column", "one row three times", "not aligned"],
)
def test_activations_may_lie_in_any_way(x: Callable[[], Any]) -> None:
    assert torch.equal(
        gguf_linear(x(), weight(), "Q4_K"), gguf_linear(x().clone(memory_format=torch.contiguous_format), weight(), "Q4_K")
    )


def test_a_weight_that_is_changed_in_place_counts_from_then_on() -> None:
    one, x = weight(), values(K)
    before = gguf_linear(x, one, "Q4_K")
    one.copy_(one.flip(0))
    assert torch.equal(gguf_linear(x, one, "Q4_K"), before.flip(0))


def test_nothing_is_kept_of_the_tensors() -> None:
    arrays = [values(2, K).numpy(), blocks()]
    kept = [weakref.ref(array) for array in arrays]
    made = gguf_linear(*map(torch.from_numpy, arrays), "Q4_K")
    del arrays
    gc.collect()
    assert [array() for array in kept] == [None, None]
    assert torch.isfinite(made).all()


def test_the_room_called_torch_imports_pytorch() -> None:
    assert vars(sys.modules["executor.torch.linear"])["torch"] is torch is sys.modules["torch"]


def linear(x: Any, blocks: Any, format: str = "Q4_K") -> Any:
    return gguf_linear(x, blocks, format)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "halves": (lambda: linear(values(K).half(), weight()), r"x is torch.float16; must be torch.float32, which x.float\(\)"),
    "doubles": (lambda: linear(values(K).double(), weight()), "x is torch.float64; must be torch.float32"),
    "a length": (lambda: linear(values(3, 128), weight()), r"x has the shape \[3, 128\]; weight is 64 x 256"),
    "a number": (lambda: linear(values(1)[0], weight()), r"x has the shape \[\]; weight is"),
    "a format": (lambda: linear(values(K), weight(), "Q4_9"), "no format is called 'Q4_9'"),
    "another format": (lambda: linear(values(K), weight(), "Q6_K"), "144 bytes; a row of Q6_K has a multiple of 210"),
    "numbers": (lambda: linear(values(K), values(N, K)), r"weight is torch.float32\[64, 256\]; must be row-major"),
    "a flat weight": (lambda: linear(values(K), weight().reshape(-1)), r"weight is torch.uint8\[9216\]; must be"),
    "a transposed weight": (lambda: linear(values(K), weight().T), r"weight is torch.uint8\[144, 64\], not row-major"),
    "no rows": (lambda: linear(values(K), weight()[:0]), "weight has 0 rows of 144 bytes"),
    "two devices": (lambda: linear(values(K).to("meta"), weight()), "x is on meta, weight on cpu; must be on one"),
    "a bias": (
        lambda: GgufLinear(weight(), "Q4_K", torch.zeros(63)),
        r"bias is torch.float32\[63\]; must be torch.float32\[64\]",
    ),
    "half a bias": (lambda: GgufLinear(weight(), "Q4_K", torch.zeros(N).half()), r"bias is torch.float16\[64\]; must be"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_refused_by_name(what: str) -> None:
    with pytest.raises(ArgumentError, match=WRONG[what][1]):
        WRONG[what][0]()


class TestGradients:
    def test_going_backward_says_that_there_is_no_gradient(self) -> None:
        x = values(2, K).requires_grad_()
        made = GgufLinear(weight(), "Q4_K")(x)
        assert made.requires_grad
        with pytest.raises(ArgumentError, match=r"has no gradient: .* call it under torch.no_grad\(\), or with x.detach\(\)"):
            made.sum().backward()
        assert x.grad is None

    def test_without_gradients_nothing_is_recorded(self) -> None:
        layer, x = GgufLinear(weight(), "Q4_K"), values(2, K).requires_grad_()
        with torch.no_grad():
            assert torch.equal(layer(x), layer(x.detach()))
        assert not layer(x.detach()).requires_grad
        assert list(layer.parameters()) == []


class TestCompiled:
    """Under torch.compile the operator stays one: fullgraph=True allows no break."""

    @pytest.mark.parametrize("dynamic", [False, True])
    def test_a_compiled_function_has_the_bits_of_the_eager_one(self, dynamic: bool) -> None:
        layer = GgufLinear(weight(), "Q4_K", values(N))

        def function(x: Any) -> Any:
            return torch.relu(layer(x * 2)) + 1

        compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
        for rows in (1, 3, 5):
            assert torch.equal(compiled(values(rows, K)), function(values(rows, K)))

    @pytest.mark.slow
    def test_inductor_takes_it_too(self) -> None:
        layer = GgufLinear(weight(), "Q4_K")
        compiled = torch.compile(lambda x: torch.relu(layer(x)) * 2, fullgraph=True)
        try:
            made = compiled(values(3, K))
        except torch._inductor.exc.InductorError as error:
            pytest.skip(f"PyTorch has no compiler here: {error}")
        assert torch.equal(made, torch.relu(layer(values(3, K))) * 2)

    def test_it_is_exported_as_one_operator(self) -> None:
        exported = torch.export.export(GgufLinear(weight(), "Q4_K"), (values(3, K),))
        called = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
        assert called == ["ptxgen.gguf_linear.default"]

    def test_pytorch_finds_the_operator_sound(self) -> None:
        for x in (values(K), values(2, 3, K)):
            told = torch.library.opcheck(gguf_linear, (x, weight(), "Q4_K"))
            assert set(told.values()) == {"SUCCESS"}

    def test_what_does_not_fit_is_told_when_it_is_compiled(self) -> None:
        compiled = torch.compile(GgufLinear(weight(), "Q4_K"), fullgraph=True, backend="eager")
        with pytest.raises(Exception, match=r"x has the shape \[3, 128\]; weight is 64 x 256"):
            compiled(values(3, 128))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_model(folder / "m.gguf", "qwen2", layers=1, hidden=K, heads=4, ff=256, context=16)


class TestModule:
    def test_it_is_made_of_a_tensor_of_a_file(self, path: Path) -> None:
        name, bias = "blk.0.attn_q.weight", "blk.0.attn_q.bias"
        with GgufFile.open(path) as file:
            info = file.tensors[name]
            kind = FORMATS[info.ggml_type.name]
            rows, added = file.data(name).reshape(info.shape[0], -1), file.data(bias).view("<f4")
            layer = GgufLinear.from_gguf(file, name, bias=bias)
        same = GgufLinear.from_gguf(path, name)
        x = values(2, K)
        assert (layer.in_features, layer.out_features, layer.format) == (K, info.shape[0], kind.name)
        assert torch.equal(layer(x), same(x) + torch.from_numpy(added))
        exact = x.numpy().astype("f8") @ kind.dequantize(rows).astype("f8").T
        assert np.linalg.norm(same(x).numpy() - exact) / np.linalg.norm(exact) < 1e-5
        assert str(layer) == f"GgufLinear(in_features={K}, out_features={info.shape[0]}, format={kind.name}, bias=True)"

    @pytest.mark.parametrize(
        ("name", "bias", "words"),
        [
            ("blk.0.attn_q.wieght", None, r"no tensor blk.0.attn_q.wieght; near: blk.0.attn_q.weight"),
            (
                "blk.0.attn_norm.weight",
                None,
                r"tensor blk.0.attn_norm.weight has the shape \[256\]; a linear layer takes a matrix",
            ),
            ("blk.0.attn_q.weight", "blk.0.attn_k.weight", "a bias is a vector of F32"),
        ],
    )
    def test_what_is_no_linear_layer_is_refused(self, path: Path, name: str, bias: str | None, words: str) -> None:
        with pytest.raises(ModelError, match=words):
            GgufLinear.from_gguf(path, name, bias=bias)

    def test_its_state_has_the_format_and_is_loaded_only_where_that_is_the_same(self) -> None:
        layer, other = GgufLinear(weight("Q4_0"), "Q4_0"), GgufLinear(torch.zeros_like(weight("Q4_0")), "Q4_0")
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file, weights_only=True))
        assert torch.equal(other(values(K)), layer(values(K)))
        alike = GgufLinear(weight("Q4_K"), "Q4_K")  # of as many bytes: 256 values in 8 blocks of 18 or one of 144
        assert alike.weight.shape == layer.weight.shape
        with pytest.raises(ArgumentError, match="the state is of 'Q4_0', this layer of Q4_K"):
            alike.load_state_dict(layer.state_dict())

    def test_casting_a_model_leaves_the_blocks_alone(self) -> None:
        model = torch.nn.Sequential(GgufLinear(weight(), "Q4_K"), torch.nn.ReLU()).half()
        assert model[0].weight.dtype == torch.uint8
        assert torch.equal(model(values(K)), torch.relu(gguf_linear(values(K), weight(), "Q4_K")))


def test_each_thread_has_an_executor_of_its_own() -> None:
    x, expected = values(2, K), gguf_linear(values(2, K), weight(), "Q4_K")
    made: list[Any] = []

    def run() -> None:
        made.extend(gguf_linear(x, weight(), "Q4_K") for _ in range(3))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 9
    assert all(torch.equal(one, expected) for one in made)
