"""The synthetic models that whole-model tests run: every architecture, every weight format, and the turns that models take."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.synthetic import FORMATS, Q, write_model

TOKENS = (1, 500, 7, 7, 311, 42, 9, 260)


@dataclass(frozen=True)
class Variant:
    """Arguments of write_model, under a name."""

    name: str
    arguments: dict[str, Any] = field(hash=False)

    def write(self, folder: Path) -> Path:
        return write_model(folder / f"{self.name}.gguf", **self.arguments)

    def __str__(self) -> str:
        return self.name


def _variants() -> tuple[Variant, ...]:
    made = [Variant(f"llama-{kind.name}", {"arch": "llama", "types": kind}) for kind in FORMATS]
    for arch in ("qwen2", "qwen3"):
        made += [Variant(f"{arch}-{kind.name}", {"arch": arch, "types": kind}) for kind in (Q.Q4_K, Q.Q5_0, Q.F16)]
    mixed = {"": Q.Q4_K, "attn_v": Q.Q6_K, "ffn_down": Q.Q6_K, "token_embd": Q.Q8_0, "output": Q.Q6_K}
    made += [
        Variant("llama-rope-freqs-untied", {"arch": "llama", "types": mixed, "rope_freqs": True, "tied": False}),
        # 896 = 14 heads of 64 and no multiple of 256: Q4_K falls back to Q5_0, as in Qwen2.5-0.5B.
        Variant("qwen2-896", {"arch": "qwen2", "types": Q.Q4_K, "hidden": 896, "heads": 14, "kv_heads": 2, "ff": 512}),
        Variant("qwen3-wide-heads", {"arch": "qwen3", "types": Q.Q6_K, "heads": 8, "kv_heads": 4, "head_dim": 128}),
        Variant("llama-576", {"arch": "llama", "types": Q.Q4_1, "hidden": 576, "heads": 9, "kv_heads": 3, "ff": 1536}),
    ]
    return tuple(made)


VARIANTS = _variants()
