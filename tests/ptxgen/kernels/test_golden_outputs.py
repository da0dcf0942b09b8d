"""The comparison with golden/outputs finds a kernel, a reference or a tolerance that changed, and says how much and where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import Nonconformity
from ptxgen.kernels.activation.elementwise import AddInPlace
from ptxgen.kernels.registry import find
from tests.ptxgen.kernels.golden_outputs import check, chosen, record, save

KERNEL = AddInPlace(n=33)


def test_what_was_recorded_passes_also_from_the_file(tmp_path: Path) -> None:
    for kernel in (KERNEL, chosen(find("q4k_gemv")), chosen(find("argmax"))):
        save(tmp_path / "a.npz", record(kernel))
        with np.load(tmp_path / "a.npz", allow_pickle=False) as held:
            check(kernel, dict(held))


def test_the_same_kernel_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(tmp_path / name / "f.npz", record(KERNEL))
    assert (tmp_path / "a" / "f.npz").read_bytes() == (tmp_path / "b" / "f.npz").read_bytes()


@dataclass(frozen=True)
class OtherText(AddInPlace):
    def emit(self, k: KernelBuilder) -> None:
        i = k.ctaid.x * 256 + k.tid.x
        with k.when(i < self.n):
            k.store(k.arg.x[i], k.load(k.arg.x[i]) + k.load(k.arg.delta[i]) * 1.5)


@dataclass(frozen=True)
class OtherReference(AddInPlace):
    def reference(self, **arguments: Any) -> Any:
        right = AddInPlace.reference(self, **arguments)["x"].copy()
        right[5] += 0.25
        return {"x": right}


@dataclass(frozen=True)
class OtherTolerance(AddInPlace):
    def tolerance(self, **arguments: Any) -> Any:
        return {"x": np.full(self.n, 0.5)}


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (OtherText(n=33), r"the kernel is no longer what the golden file holds: 33 of 33 values of x are off by up to"),
        (OtherReference(n=33), r"the reference is no longer what .*: 1 of 33 values of x are off by up to 0.25; first x\[5\]"),
        (OtherTolerance(n=33), r"the tolerance of x grew, by up to 0.5"),
        (AddInPlace(n=34), r"the golden file is of residual_add\(n=33\), the small shape is now residual_add\(n=34\)"),
    ],
)
def test_what_changed_is_named_with_how_much_and_where(kernel: KernelType, said: str) -> None:
    with pytest.raises(Nonconformity, match=said):
        check(kernel, record(KERNEL))
