"""Small f32 models of every dense architecture and of the turns that its files take, and some logits of each by llama.cpp.

python -m tests.reference.cases FOLDER writes the models, for another program to compute; with a second folder it records that
program's logits (NAME.npz: `tokens`, `logits` f32[tokens, vocab]) in llama_cpp.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.reference.architectures import ARCHITECTURES
from tests.synthetic import Q, write_model

RECORDED: Final = Path(__file__).with_name("llama_cpp.json")
"""Of the last token of TOKENS the first KEPT logits, and the deviation of all; llama.cpp 0c1e570, with GELU in f32."""
KEPT: Final = 8
TOKENS: Final = (7, 32, 61, 45, 1, 12, 7, 22, 50, 18, 3, 3, 41, 59, 9, 31, 60, 6, 15, 20, 14, 47, 28, 11)
WIDTHS: Final[Mapping[str, Any]] = {"hidden": 64, "heads": 4, "kv_heads": 2, "ff": 96}
SIZES: Final[Mapping[str, Any]] = {"full": True, "layers": 4, "context": 64, "vocab": 64, "tokenizer": "none", **WIDTHS}
DEEP: Final[dict[str, Any]] = {"hidden": 32, "heads": 2, "kv_heads": 1, "ff": 32}
"""For models whose number of layers decides."""
BARE_MPT: Final = frozenset({"attn_q_norm", "attn_k_norm"})
"""llama.cpp cannot compute the norms of fused heads."""


def _keys(arch: str, **values: Any) -> dict[str, Any]:
    """Arguments that set keys; __ stands for a dot."""
    return {"arch": arch, "metadata": {f"{arch}.{key.replace('__', '.')}": value for key, value in values.items()}}


def _yarn(arch: str, **values: Any) -> dict[str, Any]:
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 32} | values
    return _keys(arch, **{f"rope__scaling__{key}": value for key, value in scaling.items()})


def _cases() -> dict[str, dict[str, Any]]:
    made: dict[str, dict[str, Any]] = {arch: {"arch": arch} for arch in ARCHITECTURES}
    made["qwen"]["kv_heads"] = made["cogvlm"]["kv_heads"] = 4
    made["mpt"] |= {"kv_heads": 4, "omit": BARE_MPT}
    # llama.cpp does not read the key
    made["qwen2vl"] = _keys("qwen2vl", attention__layer_norm_rms_epsilon=0.0)
    return made | {
        "llama-plain": {"arch": "llama", "full": False},
        "llama-wide-heads": {"arch": "llama", "head_dim": 40},
        "llama-linear": _keys("llama", rope__scaling__factor=4.0),
        "llama-linear-old-key": _keys("llama", rope__scale_linear=4.0),
        "llama-unscaled": _keys("llama", rope__scaling__type="none", rope__scaling__factor=4.0),
        "llama-yarn": _yarn("llama", attn_factor=1.3),
        "mistral3-one-magnitude": _yarn("mistral3", yarn_log_multiplier=1.0),
        "phi3-short": _keys("phi3", rope__scaling__original_context_length=256),
        "gemma2-27b": {"arch": "gemma2", "layers": 46, "head_dim": 8} | DEEP,
        "gemma2-yarn": _yarn("gemma2"),
        "gemma3-27b": {"arch": "gemma3", "layers": 62, "head_dim": 8} | DEEP,
        "gemma3-no-window": _keys("gemma3", attention__sliding_window=0),
        "gemma3-yarn": _yarn("gemma3"),
        "olmo2-no-window": _keys("olmo2", attention__sliding_window=0),
        "exaone4-32b": {"arch": "exaone4", "layers": 64} | DEEP,
        "cohere2-yarn": _yarn("cohere2"),
        "command-r-plus": {"arch": "command-r", "layers": 64} | DEEP,
        "glm4-vision": _keys("glm4", rope__dimension_sections=[2, 1, 1, 0]),
        "qwen3vl-fourth-section": _keys("qwen3vl", rope__dimension_sections=[2, 2, 2, 2]),
        "granite-no-positions": _keys("granite", rope__scaling__finetuned=False),
        "muse-glimmer-own-pattern": _keys("muse-glimmer", attention__sliding_window_pattern=[True, False, True, True]),
        "stablelm-12b": {"arch": "stablelm", "omit": frozenset({"ffn_norm"})},
        "falcon-7b": {"arch": "falcon", "full": False, "kv_heads": 1},
        "gptneox-sequential": _keys("gptneox", use_parallel_residual=False),
        "baichuan-7b": {"arch": "baichuan", "layers": 32} | DEEP,
        "baichuan-13b": {"arch": "baichuan", "layers": 40} | DEEP,
        "bloom-3-heads": {"arch": "bloom", "heads": 3, "kv_heads": 3, "hidden": 48},
        "deci-layers": {"arch": "deci", "heads": [4, 4, 0, 4], "kv_heads": [2, 0, 0, 1], "ff": [96, 64, 96, 48]},
        "deci-empty-layer": {"arch": "deci", "ff": [96, 0, 96, 48]},
        "openelm-layers": {"arch": "openelm", "heads": [4, 2, 4, 4], "kv_heads": [2, 1, 1, 2], "ff": [96, 64, 96, 48]},
        "plamo3-wide-values": {"arch": "plamo3", "value_dim": 24},
    }


CASES: Final[Mapping[str, Mapping[str, Any]]] = _cases()
"""By name, arguments of write_model beside SIZES."""


def write_case(name: str, folder: Path, **other: Any) -> Path:
    """The file of a case; other: arguments of write_model that replace its own."""
    return write_model(folder / f"{name}.gguf", **{"types": Q.F32, **SIZES, **CASES[name], **other})


def record(logits: Path) -> None:
    kept = {}
    for name in CASES:
        last = np.load(logits / f"{name}.npz")["logits"][-1].astype(np.float64)
        kept[name] = [round(float(value), 6) for value in (*last[:KEPT], last.std())]
    lines = [f"{json.dumps(name)}: {json.dumps(values)}" for name, values in kept.items()]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    for case in CASES:
        write_case(case, Path(sys.argv[1]))
    if len(sys.argv) > 2:
        record(Path(sys.argv[2]))
