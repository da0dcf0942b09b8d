"""The stub builder.pyi is what builder.py and the instruction table say, and what type checkers make of it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.isa.instructions import ROWS
from tests.paths import ROOT
from tests.ptxgen.dsl import builder_stub

KERNELS = """
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.value import Value
from ptxgen.types import F32, U32

def right(k: KernelBuilder, a: Value, words: list[Value]) -> Value:
    total = k.fma(a, 2.0, k.load(k.arg.x[k.tid.x]))
    total @= k.add(total, a, rnd="rz") + k.max(a, 0.0)
    first, second = k.ld(k.arg.x[0].address, vec="v2", type="f32")
    k.st(k.arg.y[0].address, (first, second), vec="v2")
    k.store(k.arg.y[1], k.select(k.vote(a < 1.0, -1, mode="any"), a, total))
    c0, c1, c2, c3 = k.mma(words, words[:2], [a] * 4, a_type="s8", b_type="s8")
    k.bar_sync(0)
    k.membar(level="gl")
    return k.lop3(k.and_(words[0], 255), words[1], words[2], 0xE8, result=U32)

def wrong(k: KernelBuilder, a: Value) -> None:
    k.fmaa(a, a, a)  # attr-defined
    k.fma(a, a)  # call-arg
    k.fma(a, a, a, a)  # call-arg
    k.add(a, a, rnd="up")  # arg-type
    k.add(a, a, round="rn")  # call-arg
    k.fma(a, k.arg.x, "1.0")  # arg-type
    k.lop3(a, a, a, 1.5)  # arg-type
    k.popc(1.5)  # arg-type
    k.ld(a, type="f32")  # call-overload
    k.shfl(a, 1, 31, -1)  # call-arg
    k.tid.w  # attr-defined
    waited = k.bar_sync(0)  # func-returns-value
    one, two = k.fma(a, a, a)  # misc
    k.cvt(a, result="f32")  # call-overload
"""


def test_committed_stub_is_current() -> None:
    committed = builder_stub.STUB.read_text(encoding="utf-8")
    assert committed == builder_stub.stub(), "run python -m tests.ptxgen.dsl.builder_stub"


def test_the_stub_has_all_that_is_public() -> None:
    (stub,) = (node for node in ast.parse(builder_stub.stub()).body if getattr(node, "name", "") == KernelBuilder.__name__)
    assert isinstance(stub, ast.ClassDef)
    declared = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
    declared |= {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    inherited = {name for base in KernelBuilder.__mro__[1:] for name in vars(base)}
    assert declared >= {name for name in vars(KernelBuilder) if not name.startswith("_")} | {"arg", "tid", "ctaid", "signature"}
    assert {name.rstrip("_") for name in declared | inherited} >= {row.name for row in ROWS}


@pytest.mark.slow
def test_mypy_accepts_right_kernels_and_refuses_wrong_ones_at_their_lines(tmp_path: Path) -> None:
    assert checked(tmp_path, ROOT / "ptxgen" / "dsl" / "builder.py") == ""  # which else the stub would hide from it
    kernels = tmp_path / "kernels.py"
    kernels.write_text(KERNELS)
    found = re.findall(r"kernels.py:(\d+): error: .*\[([a-z-]+)\]", checked(tmp_path, kernels))
    expected = {(str(line), text.partition("  # ")[2]) for line, text in enumerate(KERNELS.splitlines(), 1) if "  # " in text}
    assert expected <= set(found)
    assert {line for line, _ in expected} == {line for line, _ in found}


def checked(folder: Path, file: Path) -> str:
    """What mypy finds wrong in the file."""
    cache = f"--cache-dir={folder / 'cache'}"
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary", cache, str(file)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
