"""The machine code of matrix-vector kernels at the shapes of known models: what conformance asks of sample shapes, for a part
of all shapes, numbers of digits and of rows. `ptxgen check --models --target all` takes all of them."""

from __future__ import annotations

import hashlib

import pytest

from executor.base.disk_cache import DiskCache
from executor.base.environment import settings
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.gemv.plane_gemv_type import PACKED
from ptxgen.kernels.known_models import KNOWN_MODELS, kernels, matrices
from ptxgen.kernels.registry import find
from ptxgen.target import ALL, Target
from ptxgen.toolchain.assemble import assemble, toolchain
from ptxgen.toolchain.machine_code import faults
from ptxgen.toolchain.module import emit

CACHE_BYTES = 1 << 24

NUMBERED = list(enumerate(sorted(PACKED, key=lambda id: not PACKED[id].common)))
"""Formats, those that are not common last."""

SPILLED = [
    *(("batched_hw_dp4a_q4k_gemv", {"k": k, "m": m}) for k, m in ((14336, 2), (18944, 2), (18944, 8))),
    *((f"batched_hw_dp4a_{id}_gemv", {"k": 14336, "m": 8}) for id in ("q5k", "q3k")),
    *(("hw_dp4a_q3k_gemv", {"k": k}) for k in (8960, 18944, 28672)),
    ("batched_hw_dp4a_q6k_gemv", {"k": 18944, "m": 8}),  # 234 KB
]
"""With three digits, before long rows were loops."""


def some(number: int, id: str) -> list[KernelType]:
    """Of a format, number `number`: the residual kernel at every other K, and a batch of 1 to 8 rows at 8 of them, with digits
    in turns, so that the formats together have every K with every number of digits and of rows; three of these of one that
    is not common."""
    ks = list(matrices())
    singles, batches = [], []
    for kernel in kernels(find(f"hw_dp4a_{id}_gemv_residual")):
        assert isinstance(kernel, HwDp4aGemv)
        at = ks.index(kernel.k)
        if at % 2 == number % 2 and kernel.digits == (3, 2, 3, 1)[(at // 2 + number) % 4]:
            singles.append(kernel)
    batched = [kernel for kernel in kernels(find(f"batched_hw_dp4a_{id}_gemv")) if isinstance(kernel, HwDp4aGemv)]
    ks = [k for k in ks if any(kernel.k == k for kernel in batched)]  # rows are whole blocks
    for kernel in batched:
        if (
            kernel.k == ks[-(1 + (kernel.activation_rows + number) % 16)]
            and kernel.digits == (kernel.activation_rows + number) % 3 + 1
        ):
            batches.append(kernel)
    assert len(singles) > 8
    assert len(batches) == 8
    return [*singles, *batches] if PACKED[id].common else [singles[-1], *batches[-2:]]


def verdict(kernel: KernelType, target: Target) -> str:
    """What is wrong with the machine code, kept on disk by the text."""
    folder = settings().cache_dir
    cache = DiskCache(folder / "verdicts", CACHE_BYTES) if folder is not None else None
    text = emit(kernel, target).text
    key = f"{toolchain()} {target} {hashlib.sha256(text.encode()).hexdigest()}"
    held = cache.get(key) if cache is not None else None
    if held is None:
        held = "; ".join(faults(assemble(text, target), kernel.launch().threads)).encode()
        if cache is not None:
            cache.put(key, held)
    return held.decode()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "id"), NUMBERED, ids=[id for _, id in NUMBERED])
def test_kernels_at_the_shapes_of_known_models_neither_spill_nor_grow(number: int, id: str) -> None:
    wrong = {str(kernel): verdict(kernel, Target(90)) for kernel in some(number, id)}
    assert not {kernel: said for kernel, said in wrong.items() if said}


@pytest.mark.parametrize(("name", "shape"), SPILLED, ids=str)
def test_what_spilled_with_three_planes_does_no_more(name: str, shape: dict[str, int]) -> None:
    kernel = find(name).make(n=4096, digits=3, **shape)
    for target in ALL if shape["k"] == 18944 else (Target(90),):
        assert verdict(kernel, target) == ""


def test_the_ks_of_known_models_are_those_of_their_matrices() -> None:
    assert KNOWN_MODELS["qwen3-0.6b"].matrices()[2] == (2048, 1024)
    assert set(matrices()) >= {576, 896, 4096, 14336, 18944, 28672}
    assert all(n % 16 == 0 for model in KNOWN_MODELS.values() for _, n in model.matrices())
