"""A model from a bundle on a GPU: machine code or text, nothing emitted, the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Q

from executor import CudaExecutor
from executor.bundle.write import write_bundle
from tests.synthetic import write_model

pytestmark = pytest.mark.gpu
TOKENS = (5, 300, 7)


@pytest.mark.parametrize("cubin", [True, False], ids=["machine code", "ptx"])
def test_a_gpu_runs_a_bundle_and_gives_the_bits_of_emitted_kernels(tmp_path: Path, cubin: bool) -> None:
    model = write_model(tmp_path / "m.gguf", types=Q.Q4_K, layers=2, hidden=256, heads=4, kv_heads=2, ff=512, context=64)
    with CudaExecutor("cuda:0") as executor:
        expected = executor.load_model(model).logits(TOKENS)
        target = executor.device.target
    write_bundle(model, tmp_path / "bundle", target, cubin=cubin)
    with CudaExecutor("cuda:0", bundle=tmp_path / "bundle") as executor:
        np.testing.assert_array_equal(executor.load_model(model).logits(TOKENS), expected)
        assert executor.modules.counts.emissions == 0
        assert (executor.modules.counts.bundle_hits > 0) == cubin
