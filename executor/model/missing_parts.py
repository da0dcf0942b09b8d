"""What a file has that is not computed, by name: found by its keys and its tensors, whatever its architecture."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from executor.gguf.directory import Value
from executor.gguf.gguf_file import GgufFile


class MissingPart(NamedTuple):
    """A part of models that is not computed. key: without the architecture, of those that have the part unless its value is
    `without`; tensors: a pattern of the names of its tensors."""

    name: str
    key: str
    tensors: str = "(?!)"
    without: Value | None = 0


PARTS: Final = (
    MissingPart("experts", "expert_count", r"blk\.\d+\.ffn_(gate|up|down|gate_up)_exps\b|blk\.\d+\.ffn_gate_inp\b"),
    MissingPart("latent attention", "attention.kv_lora_rank"),
    MissingPart("recurrent layers", "ssm.state_size", r"blk\.\d+\.(ssm_|time_mix_)"),
    MissingPart("recurrent layers", "wkv.head_size"),
    MissingPart("short convolutions", "shortconv.l_cache"),
    MissingPart("attention sinks", "", r"blk\.\d+\.attn_sinks\b"),
    MissingPart("gated attention", "", r"blk\.\d+\.attn_gate\b"),
    MissingPart("attention in both directions", "attention.causal", without=True),
    MissingPart("an encoder", "decoder_start_token_id", r"enc\.", without=None),
    MissingPart("embeddings of each layer", "embedding_length_per_layer_input"),
    MissingPart("several residual streams", "altup.num_inputs", r"altup_"),
    MissingPart("layers that share keys and values", "attention.shared_kv_layers"),
    MissingPart("scales of several NVFP4 matrices in one", "", r"blk\.\d+\.attn_qkv\.scale$"),
)
"""In order of weight."""
ALWAYS: Final[Mapping[str, str]] = {
    "dream": "attention in both directions",
    "llada": "attention in both directions",
    "llada-moe": "attention in both directions",
    "rnd1": "attention in both directions",
}
"""By architecture, a part that all its files have, of which neither a key nor a tensor tells."""
OTHERS: Final[Mapping[tuple[str, str], str]] = {
    ("general.architecture", "clip"): "a projector for images; load the file of the language model, without mmproj in its name",
    ("general.type", "mmproj"): "a projector for images; load the file of the language model, without mmproj in its name",
    ("general.type", "adapter"): "an adapter (LoRA); load the model that it was made for",
    ("general.type", "imatrix"): "statistics for a quantiser (imatrix); load the model that was quantised with it",
}
"""By key and value, what a file is that is no language model, and what to load."""


def missing_parts(file: GgufFile, architecture: str, computed: Collection[str] = ()) -> tuple[str, ...]:
    """The names of the parts that the file has and that are not computed. computed: those of PARTS that its architecture is
    computed with."""
    found = [part.name for part in PARTS if part.name not in computed and _has(file, architecture, part)]
    if architecture in ALWAYS:
        found.append(ALWAYS[architecture])
    return tuple(dict.fromkeys(found))


def other_content(file: GgufFile) -> str | None:
    """What the file holds in the place of a language model, and what to load; None for one that may be a language model."""
    for (key, value), said in OTHERS.items():
        found = file.metadata.get(key)
        if isinstance(found, str) and found == value:
            return said
    layers = [name for name in file.tensors if name.startswith("blk.")]
    if layers and not any(name.startswith("blk.0.") for name in layers):
        return "only layers for drafts (there is no blk.0); load the file of the model that they draft for"
    return None


def _has(file: GgufFile, architecture: str, part: MissingPart) -> bool:
    value = file.metadata.get(f"{architecture}.{part.key}") if part.key else None
    if isinstance(value, bool | int | float) and value != part.without:
        return True
    pattern = re.compile(part.tensors)
    return any(pattern.match(name) for name in file.tensors)
