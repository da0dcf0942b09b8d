"""examples/my_variant, installed as a stranger would install it: its tests pass, and a model runs through its kernels."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.synthetic import Q, write_model

EXAMPLE = ROOT / "examples" / "my_variant"
CHAPTER = ROOT / "docs" / "new_kernel.md"
LINES = 80

GENERATE = """
import json, sys
from executor.device import open_device
from executor.model.generation import LanguageModel
from executor.choice.choice import GpuProfile
with open_device("emulator") as device:
    models = [LanguageModel.load(sys.argv[1], device, profile=p) for p in (GpuProfile(), GpuProfile.from_environment())]
    logits = [model.logits([5, 6, 7]) for model in models]
    print(json.dumps({"kernels": sorted({plan.kernel.name for plan in models[1].decoder.prepare().whole}),
                      "off": float(abs(logits[0] - logits[1]).max()), "size": float(abs(logits[0]).max())}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that pip installed the package into; the source stays as it is."""
    folder = tmp_path_factory.mktemp("stranger")
    shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("*.egg-info", "build", "__pycache__"))
    words = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--target", folder / "site"]
    done = run("-m", "pip", "install", *words, folder / "source")
    assert done.returncode == 0, done.stderr
    return folder


def run(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    given = [sys.executable, *map(str, words)]
    return subprocess.run(given, capture_output=True, text=True, check=False, env={**os.environ, **environment}, cwd=ROOT)


@pytest.mark.slow
def test_its_tests_pass(installed: Path) -> None:
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, installed / "source" / "tests",
               PYTHONPATH=f"{installed / 'site'}:{ROOT}")  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d\d passed", done.stdout), done.stdout


@pytest.mark.slow
def test_its_kernels_are_listed(installed: Path) -> None:
    code = "from ptxgen.kernels.registry import broken, find; print(broken(), find('my_q4k_gemv').summary)"
    done = run("-c", code, PYTHONPATH=f"{installed / 'site'}:{ROOT}")
    assert done.stdout.startswith("() y = W x, two rows a warp."), done.stderr


@pytest.mark.slow
def test_a_model_runs_through_the_kernels_that_the_environment_names(installed: Path, tmp_path: Path) -> None:
    types = {"": Q.Q4_K, "ffn_down": Q.Q8_0}
    model = write_model(tmp_path / "m.gguf", types=types, layers=1, hidden=256, heads=4, kv_heads=2, ff=512, context=8)
    names = {"PTXGEN_GEMV_Q4K": "my_q4k_gemv", "PTXGEN_GEMV_Q8_0": "my_cuda_q8_0_gemv"}
    done = run("-c", GENERATE, model, PYTHONPATH=f"{installed / 'site'}:{ROOT}", **names)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert {"my_q4k_gemv", "my_cuda_q8_0_gemv"} < set(facts["kernels"])
    assert not {"q4k_gemv", "q8_0_gemv"} & set(facts["kernels"])
    assert facts["off"] < 1e-4 * facts["size"]


def test_the_chapters_code_is_the_examples_code() -> None:
    chapter = CHAPTER.read_text()
    shown = re.findall(r"^`examples/my_variant/(\S+)`:\n\n```\w*\n(.*?)^```", chapter, re.MULTILINE | re.DOTALL)
    assert {name for name, _ in shown} == {"pyproject.toml", "src/my_variant/two_rows.py", "tests/test_my_variant.py"}
    for name, code in shown:
        assert code == (EXAMPLE / name).read_text(), name


def test_a_variant_its_test_and_its_benchmark_are_under_eighty_lines() -> None:
    files = ("src/my_variant/two_rows.py", "tests/test_my_variant.py", "benchmark.py")
    lines = [line for name in files for line in (EXAMPLE / name).read_text().splitlines() if line.strip()]
    assert len(lines) < LINES
