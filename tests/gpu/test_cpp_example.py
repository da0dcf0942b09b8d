"""The C++ example on a GPU, from PTX and from machine code."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from executor.device import open_device
from tests.examples.cpp_example import KERNEL, build, bundle

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")]


@pytest.mark.parametrize("cubin", [True, False], ids=["machine code", "ptx"])
def test_the_example_computes_on_the_gpu(tmp_path: Path, cubin: bool) -> None:
    with open_device("cuda:0") as device:
        folder = bundle(tmp_path, device.target, cubin=cubin)
    result = subprocess.run([str(build(tmp_path)), str(folder), KERNEL], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "96 sums, all right" in result.stdout
