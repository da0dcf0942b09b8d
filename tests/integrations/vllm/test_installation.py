"""Our products go into the plugin's module and come out again; a plugin that is another one is refused. (The plugin is played
here, and so are our products, which need PyTorch.)"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ptxgen_vllm
from ptxgen.errors import ArgumentError
from ptxgen_vllm import PluginMismatch, install, installed, register, uninstall
from ptxgen_vllm.installation import REPLACED, VERSION
from tests.integrations.vllm.plugin import unpack

Q4_K, IQ2_XXS = 12, 16
THEIRS = """
def ggml_mul_mat_vec_a8(W, X, quant_type, row): return "theirs, few"
def ggml_mul_mat_a8(W, X, quant_type, row): return "theirs, many"
def ggml_dequantize(W, quant_type, m, n, dtype): return "theirs"
"""


@pytest.fixture(autouse=True)
def products(monkeypatch: pytest.MonkeyPatch) -> None:
    played = SimpleNamespace(
        ggml_mul_mat_vec_a8=lambda W, X, quant_type, row: "ours, few",
        ggml_mul_mat_a8=lambda W, X, quant_type, row: "ours, many",
    )
    monkeypatch.setitem(sys.modules, "ptxgen_vllm.products", played)
    monkeypatch.setattr(ptxgen_vllm, "products", played, raising=False)


@pytest.fixture
def ops(site: Path) -> Any:
    unpack(site, THEIRS)
    return importlib.import_module("vllm_gguf_plugin.ops")


def answers(ops: Any, quant_type: int = Q4_K) -> list[str]:
    return [getattr(ops, name)("W", "X", quant_type, 1) for name in REPLACED]


def test_the_products_are_replaced_and_given_back_and_nothing_else_is_touched(ops: Any) -> None:
    before = dict(vars(ops))
    install()
    assert (answers(ops), installed()) == (["ours, few", "ours, many"], True)
    assert ops.ggml_dequantize is before["ggml_dequantize"]
    uninstall()
    assert (answers(ops), installed()) == (["theirs, few", "theirs, many"], False)
    assert vars(ops) == before


def test_other_types_go_to_the_plugin_only_if_that_was_asked_for(ops: Any) -> None:
    install(others="plugin")
    assert answers(ops) == ["ours, few", "ours, many"]
    assert answers(ops, IQ2_XXS) == ["theirs, few", "theirs, many"]
    install()
    assert answers(ops, IQ2_XXS) == ["ours, few", "ours, many"]  # which refuse it: test_products.py
    uninstall()
    assert answers(ops) == ["theirs, few", "theirs, many"]


def test_vllm_may_register_it_twice_and_what_was_chosen_before_stays(ops: Any) -> None:
    register()
    register()
    assert answers(ops, IQ2_XXS) == ["ours, few", "ours, many"]
    install(others="plugin")
    register()
    assert answers(ops, IQ2_XXS) == ["theirs, few", "theirs, many"]
    uninstall()
    uninstall()
    assert answers(ops) == ["theirs, few", "theirs, many"]


def test_what_somebody_else_put_there_since_is_not_overwritten(ops: Any) -> None:
    install()
    ops.ggml_mul_mat_a8 = other = lambda W, X, quant_type, row: "somebody else's"
    for change in (uninstall, install, register):
        with pytest.raises(PluginMismatch, match=r"ggml_mul_mat_a8 of vllm_gguf_plugin.ops is no more what ptxgen-vllm put"):
            change()
    assert ops.ggml_mul_mat_a8 is other
    assert not installed()


def test_another_version_is_refused(site: Path) -> None:
    unpack(site, THEIRS, "0.0.6")
    with pytest.raises(
        PluginMismatch, match=rf'in version 0.0.6; ptxgen-vllm is for {VERSION}: pip install "vllm-gguf-plugin=='
    ):
        install()
    assert "vllm_gguf_plugin.ops" not in sys.modules


def test_without_the_plugin_it_is_said_how_to_get_it(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(site)])  # a plugin that is installed is not found from here
    with pytest.raises(PluginMismatch, match=f'is not installed: pip install "vllm-gguf-plugin=={VERSION}"'):
        register()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (THEIRS.replace("ggml_mul_mat_a8", "mul_mat"), "has no ggml_mul_mat_a8"),
        (
            THEIRS.replace("vec_a8(W, X, quant_type, row)", "vec_a8(X, W, quant_type, row)"),
            r"takes \(X, W, quant_type, row\); must",
        ),
    ],
)
def test_a_plugin_of_the_right_number_with_other_functions_is_refused_and_left_as_it_is(
    site: Path, text: str, words: str
) -> None:
    unpack(site, text)
    ops = importlib.import_module("vllm_gguf_plugin.ops")
    before = dict(vars(ops))
    with pytest.raises(PluginMismatch, match=words):
        install()
    assert vars(ops) == before


def test_a_choice_that_is_none_is_refused(ops: Any) -> None:
    with pytest.raises(ArgumentError, match="others is 'skip'; allowed: 'refuse', 'plugin'"):
        install(others="skip")  # type: ignore[arg-type]
