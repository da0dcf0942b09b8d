"""NVIDIA's own sanitiser over the catalogue: bounds and alignment, shared-memory races, uninitialised memory, barriers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from tests.paths import ROOT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        shutil.which("compute-sanitizer") is None, reason="needs compute-sanitizer, which is in the CUDA toolkit"
    ),
]
FOUND = 77  # the exit code that compute-sanitizer is told to give


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_every_kernel_is_clean(tool: str) -> None:
    watch(tool)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_kernels_for_many_rows_are_clean_at_all_their_shapes(tool: str) -> None:
    watch(tool, "many-rows")


def watch(tool: str, *which: str) -> None:
    """Run `tests.gpu.every_kernel` under a tool, which must find nothing."""
    watched = [sys.executable, "-m", "tests.gpu.every_kernel", *which]
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "20", *watched]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if "Device not supported" in said:
        pytest.skip("compute-sanitizer does not support this machine's GPU")
    assert done.returncode == 0, said[-6000:]
    assert re.search(r"SUMMARY: 0 (errors|hazards)", said), said[-6000:]
    assert "launched " in said
