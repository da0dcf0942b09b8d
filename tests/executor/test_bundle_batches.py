"""Which batched kernels a bundle holds for several sequences, and which launches they do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Q
from numpy.typing import NDArray

from executor.bundle.write import write_bundle
from ptxgen.builder import KernelBuilder
from ptxgen.errors import ArgumentError
from ptxgen.kernels import registry
from ptxgen.kernels.kernel_type import KernelType, Launch, Signature, Work, read, write
from ptxgen.target import Target
from ptxgen.types import F32, U8
from tests.synthetic import write_model

FORMAT = "f32"
NAME = f"batched_{FORMAT}_gemv"


@dataclass(frozen=True)
class BatchedGemv(KernelType):
    """The shape of a batched GEMV; computes nothing."""

    m: int
    k: int
    n: int

    name = NAME
    family = "gemv"

    def __post_init__(self) -> None:
        if self.m > 8:
            raise ArgumentError(f"{NAME}: m is {self.m}; must be from 1 to 8")

    def signature(self) -> Signature:
        return {"y": write(F32, self.m, self.n), "w": read(U8, self.n, 4 * self.k), "x": read(F32, self.m, self.k)}

    def launch(self) -> Launch:
        return Launch(grid=self.n, block=32)

    def emit(self, k: KernelBuilder) -> None:
        k.store(k.arg.y[0, k.ctaid.x], k.f32(0.0))

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return {"y": np.zeros((self.m, self.n))}

    def work(self) -> Work:
        return Work(0, 0)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(2, 32, 1)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        return {"y": 0.0}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """One layer, with biases."""
    return write_model(tmp_path / "m.gguf", "qwen2", Q.F32, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=64)


def catalogue(monkeypatch: pytest.MonkeyPatch, *, with_gemv: bool) -> None:
    """The real kernels, with the GEMV above or without one."""
    known = {name: entry for name, entry in registry.entries().items() if name != NAME}
    if with_gemv:
        known[NAME] = registry.Entry(NAME, BatchedGemv)
    monkeypatch.setattr(registry, "_entries", known)


def test_each_launch_that_has_a_batched_form_names_it_and_the_others_run_once_a_sequence(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue(monkeypatch, with_gemv=True)
    write_bundle(model, tmp_path / "bundle", Target(90), batches=(1, 4))
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert list(manifest["batches"]) == ["4"]
    form = {number: use["kernel"] for use in manifest["batches"]["4"] for number in use["launches"]}
    batched = {
        launch["kernel"].split("(")[0] + (" of a tensor" if "tensor" in launch["arguments"].get("delta", {}) else ""): form.get(
            i
        )
        for i, launch in enumerate(manifest["launches"])
    }
    assert {single: name and name.split("(")[0] for single, name in batched.items()} == {
        "embedding_lookup": None,
        "rmsnorm": "batched_rmsnorm",
        "f32_gemv": "batched_f32_gemv",
        "residual_add of a tensor": "batched_bias_broadcast_add",
        "residual_add": "batched_residual_add",
        "rope_neox_indirect": "batched_rope_neox",
        "kv_cache_scatter_indirect": None,
        "incremental_attention_indirect": None,
        "fused_swiglu": "batched_fused_swiglu",
        "argmax": None,
    }
    for name in set(form.values()):
        facts = manifest["kernels"][name]
        assert facts["shape"]["m"] == 4
        assert (tmp_path / "bundle" / facts["ptx"]["path"]).exists()
    assert manifest["kernels"]["batched_f32_gemv(m=4, k=64, n=96)"]["parameters"][0]["formula"] == ["m", "ff"]


def test_a_batch_that_a_kernel_cannot_do_is_refused(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue(monkeypatch, with_gemv=True)
    with pytest.raises(ArgumentError, match="m is 9; must be from 1 to 8"):
        write_bundle(model, tmp_path / "bundle", Target(90), batches=(9,))


def test_a_matrix_without_a_batched_gemv_is_named(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue(monkeypatch, with_gemv=False)
    said = "batch of 2 is not possible: blk.0.attn_q.weight is multiplied by f32_gemv, and no kernel is called batched_f32_gemv"
    with pytest.raises(ArgumentError, match=said):
        write_bundle(model, tmp_path / "bundle", Target(90), batches=(2,))
    assert not (tmp_path / "bundle").exists()
