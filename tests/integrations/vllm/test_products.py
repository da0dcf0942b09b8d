"""The two products on PyTorch's tensors of the CPU, where the emulator multiplies: their numbers, what they refuse, and in the
plugin's own code."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.base.errors import LaunchError
from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS
from ptxgen_vllm import install, uninstall
from ptxgen_vllm.quant_types import FORMAT_OF, NAMES
from tests.integrations.vllm import plugin

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")

from executor.torch import gguf_linear  # noqa: E402
from ptxgen_vllm.products import ggml_mul_mat_a8, ggml_mul_mat_vec_a8  # noqa: E402

pytestmark = pytest.mark.usefixtures("shared_kernels")

N, K = 64, 256
TYPE_OF = {name: number for number, name in FORMAT_OF.items()}
Q4_K = TYPE_OF["Q4_K"]
ROUNDING = {torch.float32: 1e-5, torch.float16: 2**-11, torch.bfloat16: 2**-8}
"""By which a result may be off, of the longest column: half a last place of its dtype, or what float32 sums lose."""


def blocks(name: str) -> Any:
    return FORMATS[name].random_blocks(np.random.default_rng(3), N, K)


def weight(name: str = "Q4_K") -> Any:
    return torch.from_numpy(blocks(name))


def values(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.from_numpy(np.random.default_rng(4).standard_normal(shape).astype(np.float32)).to(dtype)


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_the_result_has_the_dtype_of_the_activations_and_is_rounded_once(name: str, dtype: Any) -> None:
    x = values(3, K, dtype=dtype)
    few = ggml_mul_mat_vec_a8(weight(name), x, TYPE_OF[name], N)
    assert (few.dtype, tuple(few.shape)) == (dtype, (3, N))
    assert torch.equal(few, ggml_mul_mat_a8(weight(name), x, TYPE_OF[name], N))
    assert torch.equal(few, gguf_linear(x.float(), weight(name), name).to(dtype))
    exact = x.double().numpy() @ FORMATS[name].dequantize(blocks(name)).astype("f8").T
    assert np.abs(few.double().numpy() - exact).max() <= ROUNDING[dtype] * np.abs(exact).max() + 1e-5 * np.abs(exact).max()


@pytest.mark.parametrize("name", NAMES)
def test_every_type_is_multiplied(name: str) -> None:
    x = values(2, K)
    exact = x.double().numpy() @ FORMATS[name].dequantize(blocks(name)).astype("f8").T
    made = ggml_mul_mat_vec_a8(weight(name), x, TYPE_OF[name], N).numpy()
    assert np.linalg.norm(made - exact) / np.linalg.norm(exact) < 1e-5


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a type that is none": (
        lambda: ggml_mul_mat_vec_a8(weight(), values(1, K), 250, N),
        r"no kernel of ptxgen multiplies with weights of GGML type 250; allowed: Q4_0 \(2\), .*IQ4_XS \(23\)",
    ),
    "a type of the plugin": (
        lambda: ggml_mul_mat_a8(weight(), values(1, K), 16, N), r'GGML type 16; .*install\(others="plugin"\) leaves',
    ),
    "floats": (lambda: ggml_mul_mat_a8(weight(), values(1, K), 1, N), "GGML type 1; allowed"),
    "another type": (lambda: ggml_mul_mat_a8(weight(), values(1, K), TYPE_OF["Q6_K"], N), "of Q6_K has a multiple of 210"),
    "doubles": (
        lambda: ggml_mul_mat_a8(weight(), values(1, K).double(), Q4_K, N),
        "X is torch.float64; allowed: torch.float16, torch.bfloat16, torch.float32",
    ),
    "a vector": (lambda: ggml_mul_mat_vec_a8(weight(), values(K), Q4_K, N), r"X has the shape \[256\]; must be \[rows, k\]"),
    "a length": (lambda: ggml_mul_mat_vec_a8(weight(), values(1, 128), Q4_K, N), r"x has the shape \[1, 128\]; weight is"),
    "some rows": (lambda: ggml_mul_mat_vec_a8(weight(), values(1, K), Q4_K, 32), "row is 32, but W has 64 rows"),
    "a weight of floats": (lambda: ggml_mul_mat_a8(values(N, K), values(1, K), Q4_K, N), r"weight is torch.float32\[64, 256\]"),
    "a slice of columns": (
        lambda: ggml_mul_mat_a8(torch.cat([weight(), weight()], 1)[:, :144], values(1, K), Q4_K, N), "not row-major",
    ),
    "two devices": (lambda: ggml_mul_mat_a8(weight(), values(1, K).to("meta"), Q4_K, N), "x is on meta, weight on cpu"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_refused_by_name(what: str) -> None:
    with pytest.raises(ArgumentError, match=WRONG[what][1]):
        WRONG[what][0]()


def test_in_a_capture_it_is_said_how_vllm_is_started_without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    class OfGpu(torch.Tensor):  # type: ignore[misc]
        is_cuda = True

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(
        LaunchError, match=r"start it with --enforce-eager \(enforce_eager=True\), or with -O.cudagraph_mode=NONE"
    ):
        ggml_mul_mat_a8(weight(), values(1, K).as_subclass(OfGpu), Q4_K, N)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_installed_in_the_plugins_own_module_its_layers_multiply_with_them(wheel: Path, site: Path, dtype: Any) -> None:
    plugin.unpack(site, plugin.source(wheel, "ops.py"))
    ops = importlib.import_module(f"{plugin.PACKAGE}.ops")
    fused = plugin.fused_mul_mat(wheel, ops, torch)
    install()
    for rows in (0, 1, 17):
        x = values(rows, K, dtype=dtype)
        made = fused(x, weight(), Q4_K)
        assert (made.dtype, tuple(made.shape)) == (dtype, (rows, N))
        assert rows == 0 or torch.equal(made, ggml_mul_mat_a8(weight(), x, Q4_K, N))
    uninstall()
    assert ops.ggml_mul_mat_a8.__module__ == ops.__name__
