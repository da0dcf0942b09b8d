"""Writes what README.md and docs/models.md say of the architectures that run: `python -m tests.docs.architectures`. Everything
comes from their modules, from the specs of synthetic files of theirs, and from the recorded logits of llama.cpp."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from inspect import getdoc
from pathlib import Path
from textwrap import fill
from typing import Any, Final

from executor.gguf.gguf_file import GgufFile
from executor.layers.shape import XieluNumbers
from executor.model import architectures
from executor.model.architectures import ARCHITECTURES
from executor.model.model_file import read_spec
from executor.model.parts import DENSE
from executor.model.spec import ModelSpec
from tests.executor.model.variants import VARIANTS
from tests.paths import ROOT
from tests.reference.cases import RECORDED
from tests.synthetic import Q, write_model

BLOCK: Final = re.compile(
    r"(<!-- architectures: python -m tests.docs.architectures -->\n).*?(<!-- /architectures -->)", re.DOTALL
)
LAYERS: Final = {"baichuan": 32, "exaone4": 64}
"""Of files that show what models of an architecture have, where it depends on that."""
SIZES: Final[dict[str, Any]] = {"hidden": 64, "heads": 2, "kv_heads": 1, "ff": 96, "context": 64, "types": Q.F16}
ACTIVATIONS: Final = {("silu", False): "SiLU", ("gelu", True): "GeGLU", ("gelu", False): "GELU", ("relu2", False): "ReLU²"}
WIDTH: Final = 128


def pages(folder: Path) -> Mapping[Path, str]:
    """By file, what it should hold. folder: where synthetic models are written."""
    made = {ROOT / "README.md": _names(), ROOT / "docs" / "models.md": _table(folder)}
    return {path: _filled(path.read_text(), text) for path, text in made.items()}


def models_of(name: str) -> str:
    """The models of an architecture, as the first words of its module name them."""
    modules = (
        import_module(f"{architectures.__name__}.{path.stem}") for path in Path(architectures.__path__[0]).glob("[a-z]*.py")
    )
    (said,) = (getdoc(module) or "" for module in modules if module.ARCHITECTURE is ARCHITECTURES[name])
    stated, models, _ = re.split(r":\s+", said, maxsplit=2)
    assert stated == name, f"the docstring of {name} begins with {stated}"
    return " ".join(models.split())


def features(spec: ModelSpec) -> Iterator[str]:
    """What sets the model of a spec apart from Llama's."""
    block = spec.blocks[0]
    at, mixer, ffn = block.norms.at, block.mixer, block.ffn
    if block.norms.norm.kind == "layer":
        yield "LayerNorm"
    if at.attention_output is not None:
        yield "post norms" if at.attention is None else "sandwich norms"
    if (at.attended, at.activated) != (None, None):
        yield "norms inside"
    if block.parallel:
        yield "parallel"
    if isinstance(ffn.activation, XieluNumbers):
        yield "xIELU"
    elif (kind := (ffn.activation, ffn.gated)) in ACTIVATIONS:
        yield ACTIVATIONS[kind]
    if mixer.qk_norm is not None:
        yield "QK-norm"
    if len({one.mixer.scores.window for one in spec.blocks}) > 1:
        yield "window"
    if mixer.rope.dim < mixer.head_dim:
        yield "partial RoPE"
    if mixer.scores.alibi:
        yield "ALiBi"
    if spec.learned_positions:
        yield "learned positions"
    elif not mixer.scores.alibi and any(rope.scale == 0 for rope in spec.ropes):
        yield "NoPE"
    if len({rope.base for rope in spec.ropes if rope.scale}) > 1:
        yield "two bases"
    if mixer.gated:
        yield "gated attention"
    if mixer.clamp:
        yield "clamp"
    if mixer.temperature:
        yield "temperature"
    if mixer.scores.softcap or spec.logit_softcap:
        yield "softcap"
    if (spec.embedding_scale, spec.logit_scale, block.residual_scale) != (1, 1, 1):
        yield "scales"
    if mixer.fused or ffn.fused:
        yield "fused tensors"


def _filled(page: str, text: str) -> str:
    return BLOCK.sub(lambda found: found[1] + text + found[2], page)


def _names() -> str:
    text = ", ".join(f"`{name}`" for name in ARCHITECTURES)
    return f"\n{fill(f'{text}.', WIDTH, break_long_words=False, break_on_hyphens=False)}\n\n"


def _table(folder: Path) -> str:
    recorded, on_gpus = json.loads(RECORDED.read_text()), {variant.arguments["arch"] for variant in VARIANTS}
    lines = ["|architecture|models|beside Llama's block|checked against|", "|---|---|---|---|"]
    for name in ARCHITECTURES:
        computed = {f"{name}.{key}": values[0] for key, values in ARCHITECTURES[name].computed.items() if key not in DENSE}
        path = write_model(folder / f"{name}.gguf", name, full=True, metadata=computed, layers=LAYERS.get(name, 8), **SIZES)
        with GgufFile.open(path) as file:
            found = ", ".join(features(read_spec(file)))
        checked = "F" + "L" * (name in recorded) + "G" * (name in on_gpus)
        lines.append(f"|`{name}`|{models_of(name)}|{found}|{checked}|")
    return "\n" + "\n".join(lines) + "\n\n"


def main() -> None:
    """Write both pages."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in pages(Path(folder)).items():
            path.write_text(text)
            print(path, file=sys.stderr)


if __name__ == "__main__":
    main()
