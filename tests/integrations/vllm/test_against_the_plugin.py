"""What the adapter takes for granted about the plugin is what stands in the plugin's wheel. Its function that chooses who
multiplies runs here as it is written there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest

import ptxgen_vllm
from ptxgen.formats import COMMON, FORMATS
from ptxgen_vllm import installation
from ptxgen_vllm.quant_types import FORMAT_OF, NAMES
from tests.integrations.vllm import plugin
from tests.paths import ROOT

ADAPTER = ROOT / "integrations" / "vllm"
PROJECT = tomllib.loads((ADAPTER / "pyproject.toml").read_text())["project"]


@pytest.mark.slow
def test_the_products_have_the_signatures_of_those_that_they_replace(wheel: Path) -> None:
    theirs = plugin.functions(plugin.source(wheel, "ops.py"))
    ours = plugin.functions((ADAPTER / "ptxgen_vllm" / "products.py").read_text())
    for name in installation.REPLACED:
        assert plugin.signature(ours[name]) == plugin.signature(theirs[name])
        assert tuple(argument.arg for argument in ours[name].args.args) == installation.PARAMETERS


@pytest.mark.slow
def test_the_types_are_those_of_the_plugin_that_are_common_here(wheel: Path) -> None:
    sets = plugin.type_sets(wheel)
    assert {type.name for type in sets["MMVQ_QUANT_TYPES"]} & set(COMMON) == set(NAMES)
    assert sets["UNQUANTIZED_TYPES"].isdisjoint(map(gguf.GGMLQuantizationType, FORMAT_OF))
    cases = re.findall(r"case (\d+):\s*mul_mat_vec_(\w+)_q8_1_cuda", plugin.source(wheel, "csrc/gguf/gguf_kernel.cu"))
    by_id = {int(number): name.upper() for number, name in cases}
    assert {number: by_id[number] for number in FORMAT_OF} == FORMAT_OF


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_plugin_calls_them_with_the_blocks_then_the_rows_then_the_type(wheel: Path, name: str) -> None:
    called: list[tuple[Any, ...]] = []
    ops = SimpleNamespace(
        ggml_mul_mat_vec_a8=lambda *given: called.append(("few", *given)),
        ggml_mul_mat_a8=lambda *given: called.append(("many", *given)),
        ggml_dequantize=lambda *given: called.append(("dequantize", given[1])) or SimpleNamespace(T=0),  # type: ignore[func-returns-value]
    )
    fused, type = plugin.fused_mul_mat(wheel, ops, torch=None), gguf.GGMLQuantizationType[name]
    weight = plugin.rows(4096, FORMATS[name].block_bytes * 16)
    few, many = plugin.rows(2, 4096), plugin.rows(64, 4096)
    fused(few, weight, int(type))
    assert called == [("few", weight, few, type, 4096)]
    called.clear()
    if name.startswith("IQ"):  # many rows of these the plugin dequantises and gives to PyTorch; ours are not asked
        with pytest.raises(TypeError):
            fused(many, weight, int(type))
        assert called == [("dequantize", type)]
    else:
        fused(many, weight, int(type))
        assert called == [("many", weight, many, type, 4096)]


@pytest.mark.slow
def test_vllm_calls_ours_as_it_calls_the_plugins_own(wheel: Path) -> None:
    ((group, _),) = PROJECT["entry-points"].items()
    assert plugin.entry_points(wheel).split() == [f"[{group}]", "gguf", "=", "vllm_gguf_plugin:register"]


def test_one_version_of_the_plugin_is_asked_for_and_vllm_registers_us_by_a_function_that_is_there() -> None:
    assert f"{installation.PLUGIN}=={installation.VERSION}" in PROJECT["dependencies"]
    ((_, names),) = PROJECT["entry-points"].items()
    assert names == {"ptxgen_gguf": f"{ptxgen_vllm.__name__}:{ptxgen_vllm.register.__name__}"}
