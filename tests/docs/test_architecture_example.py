"""The architecture that docs/architecture.md adds is one file, and its models run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.model.architectures import ARCHITECTURES
from tests.docs.pages import blocks
from tests.paths import ROOT
from tests.reference_model import ReferenceModel
from tests.synthetic import Q, write_model

TOKENS = [1, 300, 7, 7, 42]
RUN = f"""
import sys
import numpy as np
from executor.device import open_device
from executor.model.generation import LanguageModel

with open_device("emulator") as device, LanguageModel.load(sys.argv[1], device) as model:
    np.save(sys.argv[2], model.logits({TOKENS}))
"""


@pytest.fixture(scope="module")
def patch() -> str:
    page = blocks(ROOT / "docs/architecture.md")
    (block,) = (block for block in page if block.language == "diff" and Path(__file__).name in block.above)
    return block.text


def test_the_patch_adds_one_file_and_changes_none(patch: str) -> None:
    (name,) = re.findall(r"^\+\+\+ b/executor/model/architectures/(\w+)\.py$", patch, re.MULTILINE)
    assert re.findall("^---.*", patch, re.MULTILINE) == ["--- /dev/null"]
    assert name not in ARCHITECTURES


@pytest.mark.slow
def test_a_model_of_it_has_the_logits_of_the_reference(patch: str, environment: dict[str, str], tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 2, "kv_heads": 1, "ff": 96, "context": 64}
    path = write_model(tmp_path / "m.gguf", "pangu-embedded", Q.Q8_0, tied=False, tokenizer="llama", **sizes)
    shutil.copytree(ROOT / "executor", tmp_path / "executor", ignore=shutil.ignore_patterns("__pycache__"))
    copied = environment | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-c", RUN, str(path), str(tmp_path / "logits.npy")]
        return subprocess.run(command, env=copied, cwd=tmp_path, capture_output=True, text=True)

    assert "architecture 'pangu-embedded' is not supported" in run().stderr
    subprocess.run(["git", "apply"], input=patch, env=copied, cwd=tmp_path, text=True, check=True)
    done = run()
    assert not done.returncode, done.stderr
    exact = ReferenceModel(path).logits(TOKENS)
    assert np.abs(np.load(tmp_path / "logits.npy") - exact).max() <= 1e-4 * exact.std()
