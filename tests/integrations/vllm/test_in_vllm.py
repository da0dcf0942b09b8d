"""The adapter in vLLM's own code, where vLLM and the plugin are installed, on tensors of the CPU, where the emulator
multiplies. CI has neither."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ptxgen_vllm
from ptxgen.formats import FORMATS
from ptxgen_vllm.installation import OPS, REPLACED, VERSION

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")
plugins: Any = pytest.importorskip("vllm.plugins", reason="vLLM is not installed")
ops: Any = pytest.importorskip(OPS, reason="vLLM's GGUF plugin is not installed")
linear: Any = pytest.importorskip("vllm_gguf_plugin.quantization.linear", reason="vLLM's GGUF plugin is not installed")

pytestmark = pytest.mark.usefixtures("shared_kernels")

N, K = 64, 256
Q4_K, Q6_K = 12, 14


@pytest.fixture
def with_ours() -> Iterator[None]:
    assert metadata.version("vllm-gguf-plugin") == VERSION
    ptxgen_vllm.install()
    yield
    ptxgen_vllm.uninstall()


def blocks(name: str, seed: int = 3) -> Any:
    return torch.from_numpy(FORMATS[name].random_blocks(np.random.default_rng(seed), N, K))


def exact(x: Any, name: str, weight: Any) -> Any:
    return x.double() @ torch.from_numpy(FORMATS[name].dequantize(weight.numpy())).double().T


def off(made: Any, wanted: Any) -> float:
    return float((made.double() - wanted).norm() / wanted.norm())


def test_vllm_finds_the_package_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    if not metadata.entry_points(group="vllm.general_plugins", name="ptxgen_gguf"):
        pytest.skip("ptxgen-vllm is not installed: pip install --no-deps integrations/vllm")
    monkeypatch.setenv("VLLM_PLUGINS", "ptxgen_gguf")
    monkeypatch.setattr(plugins, "plugins_loaded", False)
    theirs = [getattr(ops, name) for name in REPLACED]
    plugins.load_general_plugins()
    assert ptxgen_vllm.installed()
    ptxgen_vllm.uninstall()
    assert [getattr(ops, name) for name in REPLACED] == theirs


@pytest.mark.usefixtures("with_ours")
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 5e-4), (torch.bfloat16, 4e-3), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("rows", [1, 17])
def test_vllms_operator_multiplies_with_ours(dtype: Any, bound: float, rows: int) -> None:
    weight, x = blocks("Q4_K"), torch.randn(rows, K).to(dtype)
    made = linear.fused_mul_mat_gguf(x, weight, Q4_K)
    assert (made.dtype, tuple(made.shape)) == (dtype, (rows, N))
    assert off(made, exact(x, "Q4_K", weight)) < bound


@pytest.mark.usefixtures("with_ours")
def test_it_is_one_operator_for_torch_compile() -> None:
    weight, x = blocks("Q4_K"), torch.randn(3, K)

    def function(x: Any) -> Any:
        return torch.relu(linear.fused_mul_mat_gguf(x, weight, Q4_K))

    assert torch.equal(torch.compile(function, fullgraph=True, backend="aot_eager")(x), function(x))


@pytest.mark.usefixtures("with_ours")
def test_a_layer_of_q_k_and_v_in_two_types_has_each_multiplied_by_its_own() -> None:
    names = {"q": "Q4_K", "k": "Q4_K", "v": "Q6_K"}
    parts = {role: blocks(name, seed) for seed, (role, name) in enumerate(names.items())}
    widest = max(part.shape[1] for part in parts.values())
    padded = torch.cat([torch.nn.functional.pad(part, (0, widest - part.shape[1])) for part in parts.values()])
    weight = torch.nn.Parameter(padded, requires_grad=False)
    weight.shard_id = list(parts)
    weight.shard_offset_map = {role: (i * N, (i + 1) * N, part.shape[1]) for i, (role, part) in enumerate(parts.items())}
    types = {role: Q6_K if name == "Q6_K" else Q4_K for role, name in names.items()}
    layer = SimpleNamespace(qweight=weight, qweight_type=SimpleNamespace(weight_type=Q4_K, shard_weight_type=types))
    x, bias = torch.randn(2, K), torch.randn(3 * N)
    made = linear.GGUFLinearMethod(None).apply(layer, x, bias)
    wanted = torch.cat([exact(x, names[role], part) for role, part in parts.items()], 1) + bias.double()
    assert off(made, wanted) < 1e-5
