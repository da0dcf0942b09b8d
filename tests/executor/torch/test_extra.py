"""Without PyTorch, executor.torch says what to install, and nothing else needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from executor.base.errors import MissingExtra
from ptxgen.errors import PtxGenError


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("executor.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r'executor\.torch needs PyTorch .*: pip install "torch>=') as caught:
        import executor.torch  # noqa: F401
    assert isinstance(caught.value, PtxGenError)
    assert isinstance(caught.value, ImportError)


@pytest.mark.slow
def test_the_executor_does_not_import_pytorch() -> None:
    code = "import sys; from executor import CudaExecutor, load_model; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
