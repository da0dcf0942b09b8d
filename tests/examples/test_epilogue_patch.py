"""The example of docs/architecture.md: a new epilogue is one file, and a line that names the composition. The patch is applied
to a copy of the package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

PATCH = Path(__file__).with_name("scale_rows.patch")
PAGE = ROOT / "docs" / "architecture.md"

CHECK = """
import json
from dataclasses import replace
from ptxgen.conformance import check
from ptxgen.kernels.gemv.residual import AddResidual
from ptxgen.kernels.registry import find
scaled = next(find("hw_dp4a_q4k_gemv_scaled").cases())
onto = replace(scaled, epilogue=(*scaled.epilogue, AddResidual()))
reports = [check(kernel) for kernel in (scaled, onto)]
print(json.dumps([[kernel.name, report.passed, str(report)] for kernel, report in zip((scaled, onto), reports)]))
"""


@pytest.mark.slow
def test_an_epilogue_of_one_file_and_one_line_agrees_with_numpy_alone_and_in_a_chain(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "ptxgen", tmp_path / "ptxgen", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "apply", str(PATCH)], cwd=tmp_path, check=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", CHECK], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert [name for name, _, _ in found] == ["hw_dp4a_q4k_gemv_scaled", "hw_dp4a_q4k_gemv_scaled_residual"]
    assert all(passed for _, passed, _ in found), found


def test_the_patch_is_the_example_of_the_page() -> None:
    section = PAGE.read_text().partition("## Add an epilogue\n")[2].partition("\n## ")[0]
    added = [line[1:] for line in PATCH.read_text().splitlines() if line.startswith("+") and not line.startswith("+++")]
    blocks = [block.partition("\n")[2].rstrip().splitlines() for block in section.split("```")[1::2]]
    assert len(blocks) == 2
    for block in blocks:
        assert "\n".join(block) in "\n".join(added)
