"""Which tokens end a generation, by their texts, whatever the metadata says. The texts are those that llama.cpp knows
(src/llama-vocab.cpp)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

END_TEXTS: Final = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|flush|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "</s>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "[e~[",
    }
)
_FILL_ENDS: Final[Mapping[str, tuple[str, ...]]] = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""By the key that names it, the texts of a token that ends code which fills a gap; the key counts more."""
FILL_TEXTS: Final = frozenset(f"<fim{dash}{name}>" for name in ("prefix", "suffix", "middle") for dash in "_-").union(
    ("<PRE>", "<SUF>", "<MID>", "\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"), *_FILL_ENDS.values()
)
"""Marks of code to fill in, of files and of repositories, which some files call normal tokens."""
END_KEYS: Final = ("eos", "eot", "eom", *_FILL_ENDS)


def end_ids(tokens: Sequence[str], named: Mapping[str, int | None]) -> frozenset[int]:
    """The ids that end a generation. named: ids by key, those of END_KEYS among them."""
    ids: dict[str, int] = {}
    known = END_TEXTS.union(*_FILL_ENDS.values())
    for index, text in enumerate(tokens):
        if text in known:
            ids.setdefault(text, index)
    ends = {ids[text] for text in END_TEXTS & ids.keys()} | {named.get(key) for key in END_KEYS}
    for key, texts in _FILL_ENDS.items():
        if named.get(key) is None:
            ends.add(next((ids[text] for text in texts if text in ids), None))
    calls = bool({"<|call|>", "<|calls|>"} & ids.keys())
    if calls and {"<|return|>", "<|flush|>"} & ids.keys():
        ends.discard(ids.get("<|end|>"))  # it ends a message of several (gpt-oss, solar-open)
    if {"<|tool_response>", "<|plamo:eos|>"} & {tokens[index] for index in ends if index is not None}:
        ends.discard(ids.get("</s>"))  # markup, to gemma4 and plamo
    return frozenset(index for index in ends if index is not None)
