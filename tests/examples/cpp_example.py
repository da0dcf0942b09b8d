"""Builds examples/cpp/launch.cpp with the headers of a package, and a bundle for it to launch from. No test."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

from gguf.constants import GGMLQuantizationType as Q

from executor.bundle.write import write_bundle
from ptxgen.target import Target
from tests.paths import ROOT
from tests.synthetic import write_model

SOURCE = ROOT / "examples" / "cpp" / "launch.cpp"
KERNEL = "residual_add(n=96)"


def build(folder: Path) -> Path:
    """The compiled example. CalledProcessError, with the compiler's words, if it does not compile without a warning."""
    program = folder / "launch"
    words = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{headers()}", str(SOURCE), "-ldl", "-o", str(program)]
    subprocess.run(words, check=True)
    return program


def headers() -> Path:
    """Where the package nvidia-cuda-runtime keeps cuda.h."""
    found = importlib.util.find_spec("nvidia")
    assert found is not None
    folders = [Path(place) / "cu13" / "include" for place in found.submodule_search_locations or ()]
    return next(folder for folder in folders if (folder / "cuda.h").exists())


def bundle(folder: Path, target: Target, *, cubin: bool) -> Path:
    """A bundle of a small model with KERNEL in it."""
    model = write_model(
        folder / "model.gguf", types=Q.Q8_0, layers=1, hidden=96, heads=3, kv_heads=1, ff=96, context=64, tokenizer="none"
    )
    write_bundle(model, folder / "bundle", target, cubin=cubin)
    return folder / "bundle"
