"""The plugin that ptxgen-vllm is for: its wheel, and as much of it as runs without vLLM and Triton. No test."""

from __future__ import annotations

import ast
import hashlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import gguf

from ptxgen_vllm.installation import PLUGIN, VERSION

SHA256 = "e795779830ad8907cb0e51bf661dd7784ebaf244b0b324af07a8d3925b6a9739"
"""Of the wheel: what was read when the adapter was written."""
PACKAGE = "vllm_gguf_plugin"
NAMELESS = "def __getattr__(name):\n    return name\n"
"""A module that has every name, which is all that ops.py wants of the plugin's Triton kernels when it is imported."""


def wheel(folder: Path) -> Path:
    """The wheel, in this folder; from the package index if it is not there yet. AssertionError if it is another one."""
    if not list(folder.glob("*.whl")):
        words = ["--no-deps", "--only-binary", ":all:", "--python-version", "3.12", "--platform", "manylinux_2_28_x86_64"]
        command = [sys.executable, "-m", "pip", "download", "-q", *words, "-d", str(folder), f"{PLUGIN}=={VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    assert hashlib.sha256(found.read_bytes()).hexdigest() == SHA256
    return found


def source(wheel: Path, path: str) -> str:
    """A file of the plugin."""
    with ZipFile(wheel) as archive:
        return archive.read(f"{PACKAGE}/{path}").decode()


def entry_points(wheel: Path) -> str:
    """What the plugin registers itself by."""
    with ZipFile(wheel) as archive:
        return archive.read(f"{PACKAGE}-{VERSION}.dist-info/entry_points.txt").decode()


def functions(text: str) -> dict[str, ast.FunctionDef]:
    """The functions of a module, by name."""
    return {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


def signature(function: ast.FunctionDef) -> tuple[list[str], str]:
    """Parameters with their types and defaults, and the type of the result, as they are written."""
    return [ast.unparse(function.args)], ast.unparse(function.returns) if function.returns else ""


def type_sets(wheel: Path) -> dict[str, set[Any]]:
    """The sets of GGML types by which the plugin chooses what multiplies."""
    names: dict[str, Any] = {"WeightType": gguf.GGMLQuantizationType}
    for node in ast.parse(source(wheel, "quantization/utils.py")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith("_TYPES"):
            exec(ast.unparse(node), names)
    return {name: value for name, value in names.items() if name.endswith("_TYPES")}


def fused_mul_mat(wheel: Path, ops: Any, torch: Any) -> Any:
    """The plugin's function that every quantised linear layer goes through, on this module `ops`."""
    function = functions(source(wheel, "quantization/linear.py"))["_fused_mul_mat_gguf"]
    names: dict[str, Any] = {
        **type_sets(wheel), "ops": ops, "torch": torch, "gguf": gguf, "WeightType": gguf.GGMLQuantizationType,
    }  # fmt: skip
    exec(f"from __future__ import annotations\n{ast.unparse(function)}", names)
    return names[function.name]


def unpack(folder: Path, ops: str, version: str = VERSION) -> None:
    """A package of the plugin's name with this module `ops`, and what installing it leaves for importlib.metadata."""
    modules = ("dequantize/interface", "fused_moe/interface", "fused_moe/utils", "gemm/interface", "gemm/utils")
    files = {"__init__": "", "ops": ops, "triton/__init__": ""}
    for module in modules:
        files |= {f"triton/{module.split('/')[0]}/__init__": "", f"triton/{module}": NAMELESS}
    for name, text in files.items():
        path = folder / PACKAGE / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    facts = folder / f"{PACKAGE}-{version}.dist-info" / "METADATA"
    facts.parent.mkdir()
    facts.write_text(f"Metadata-Version: 2.4\nName: {PLUGIN}\nVersion: {version}\n")


def rows(count: int, length: int) -> SimpleNamespace:
    """What has a tensor's shape and no more."""
    return SimpleNamespace(shape=(count, length), dtype="float16", device="cuda:0")
