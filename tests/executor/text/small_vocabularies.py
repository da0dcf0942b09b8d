"""Small vocabularies of each algorithm, made of some texts by rule, as the keys of a file. No test; the ids that llama.cpp
gives with them are in small_vocabularies.json."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from executor.gguf.directory import Value

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPECIAL: Final = {"<unk>": UNKNOWN, **dict.fromkeys(("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"), CONTROL)}
USER: Final = {"<extra_id_0>": USER_DEFINED, "##": USER_DEFINED}
SPACE: Final = "\u2581"
MAP: Final = {
    "\u3000": " ",
    "\t": " ",
    "\n": " ",
    "\uff26": "F",
    "\ufb01": "fi",
    "e\u0301": "\u00e9",
    "e": "e",
    "\u200b": "",
    "\u2026": "...",
}
MORE_TEXTS: Final = (
    "<|im_end|> \n a <|im_end|>  ",
    "a <s>  b</s> \n c",
    " <extra_id_0> x  <extra_id_0>",
    "a  b ## c  ",
    "n\u200b \u3000e\u0301",
)


def files() -> dict[str, dict[str, Value]]:
    """By what is special about it, the keys of a file."""
    unigram = {"tokenizer.ggml.add_space_prefix": True, "tokenizer.ggml.remove_extra_whitespaces": True}
    flat = dict.fromkeys(unigram, False)
    return {
        "llama": _scored("llama", {}),
        "llama, no space before": _scored("llama", {"tokenizer.ggml.add_space_prefix": False}),
        "llama, phi-3": _scored("llama", {"general.name": "Phi-3 small"}),
        "t5": _scored("t5", unigram),
        "t5, spaces kept": _scored("t5", flat),
        "t5, spaces kept and one before": _scored("t5", flat | {"tokenizer.ggml.add_space_prefix": True}),
        "t5, mapped": _scored("t5", unigram | {"tokenizer.ggml.precompiled_charsmap": character_map(MAP)}),
        "bert": _words({}),
        "bert, case and accents": _words({"tokenizer.ggml.normalizer.lowercase": False}),
        "bert, case": _words({"tokenizer.ggml.normalizer.lowercase": False, "tokenizer.ggml.normalizer.strip_accents": True}),
        "gemma4": _merged("gemma4", None),
        "sarvam-moe": _merged("gpt2", "sarvam-moe"),
        "whitespace": _merged("whitespace", "whitespace"),
    }


def digest(ids: Iterable[int]) -> str:
    """Six characters that tell lists of ids apart."""
    return hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()[:6]


def _corpus() -> list[str]:
    words = (
        "the cat sat on mat It's I'm you're HelloWorld def return caf\u00e9 e\u0301 \u4f60\u597d \u4e16\u754c 123 1234 "
        "\ud55c\uad6d \U0001f600 \u043c\u0438\u0440"
    )
    return [SPACE + word for word in words.split()] + [SPACE * 2, SPACE * 3, "\n\n", "--", "...", "!!"]


def _pieces() -> list[str]:
    """Characters and parts of the corpus, the most frequent first."""
    count = Counter(text[a:b] for text in _corpus() for a in range(len(text)) for b in range(a + 1, len(text) + 1))
    letters = dict.fromkeys("abcdefghijklmnopqrstuvwxyzABCDEFGHIJ0123456789.,!?'-()<>|_/ \n", 1)
    return sorted({**letters, **count}, key=lambda text: (-count[text], text))


def _file(model: str, tokens: Mapping[str, int], more: Mapping[str, Value]) -> dict[str, Value]:
    ids = {
        name: list(tokens).index(text)
        for name, text in (("unknown", "<unk>"), ("bos", "<s>"), ("eos", "</s>"))
        if text in tokens
    }
    return {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": np.asarray(list(tokens.values()), np.int32),
        **{f"tokenizer.ggml.{name}_token_id": index for name, index in ids.items()},
        **more,
    }


def _scored(model: str, more: Mapping[str, Value]) -> dict[str, Value]:
    bytes_ = {f"<0x{byte:02X}>": BYTE for byte in range(256)} if model == "llama" else USER
    pieces = [piece for piece in _pieces() if " " not in piece]
    tokens = {**SPECIAL, **bytes_, **dict.fromkeys(pieces, NORMAL)}
    first = len(tokens) - len(pieces)
    scores = [0.0] * first + [-1.0 - 0.25 * place / max(1, len(piece)) for place, piece in enumerate(pieces)]
    return _file(model, tokens, {"tokenizer.ggml.scores": np.asarray(scores, np.float32), **more})


def _words(more: Mapping[str, Value]) -> dict[str, Value]:
    special = {"[PAD]": CONTROL, "[UNK]": CONTROL, "[CLS]": CONTROL, "[SEP]": CONTROL}
    pieces = [piece for piece in _pieces() if " " not in piece and "\n" not in piece]
    tokens = {**special, **dict.fromkeys([*pieces, *(SPACE + piece for piece in pieces if piece[0] != SPACE)], NORMAL)}
    ids = {"unknown": 1, "cls": 2, "bos": 2, "seperator": 3, "padding": 0}
    return _file("bert", tokens, {f"tokenizer.ggml.{name}_token_id": index for name, index in ids.items()} | dict(more))


def _merged(model: str, pre: str | None) -> dict[str, Value]:
    """Merges of the two neighbours that are most frequent in the corpus, again and again."""
    words = [list(text) for text in (*_corpus(), "\n" * 4)]
    characters = dict.fromkeys([*"abcdefghijklmnopqrstuvwxyz0123456789.'\n", *(c for word in words for c in word)], NORMAL)
    tokens = {**SPECIAL, **USER, **{f"<0x{byte:02X}>": BYTE for byte in range(256)}, **characters, "\n\n\n": NORMAL}
    merges: list[str] = []
    while pairs := Counter(pair for word in words for pair in pairwise(word)):
        (left, right), _ = min(pairs.items(), key=lambda item: (-item[1], item[0]))
        merges.append(f"{left} {right}")
        tokens.setdefault(left + right, NORMAL)
        words = [_joined(word, left, right) for word in words]
    more: dict[str, Value] = {"tokenizer.ggml.merges": merges}
    if pre is not None:
        more["tokenizer.ggml.pre"] = pre
    return _file(model, tokens, more)


def _joined(word: Sequence[str], left: str, right: str) -> list[str]:
    out: list[str] = []
    for part in word:
        if out and out[-1] == left and part == right:
            out[-1] = left + right
        else:
            out.append(part)
    return out


def character_map(replacements: Mapping[str, str]) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The bytes of a precompiled character map (executor/text/charsmap.py)."""
    texts = {key.encode(): value.encode() for key, value in replacements.items()}
    pool = b"".join(value + b"\0" for value in texts.values())
    starts = dict(zip(texts, np.cumsum([0, *(len(value) + 1 for value in texts.values())]).tolist(), strict=False))
    nodes: dict[int, int] = {0: 0}
    todo = [(0, b"")]
    while todo:
        at, prefix = todo.pop()
        labels = sorted({key[len(prefix)] for key in texts if key.startswith(prefix) and key != prefix})
        ends = prefix in texts
        base = next(b for b in range(1, 1 << 20) if all(b ^ c not in nodes for c in (*labels, *([0] if ends else []))))
        nodes[at] |= (at ^ base) << 10 | ends << 8
        if ends:
            nodes[base] = 1 << 31 | starts[prefix]
        for label in labels:
            nodes[base ^ label] = label
            todo.append((base ^ label, prefix + bytes([label])))
    table = np.zeros(max(nodes) // 256 * 256 + 512, "<u4")
    table[list(nodes)] = list(nodes.values())
    return np.frombuffer(np.uint32(table.nbytes).tobytes() + table.tobytes() + pool, np.uint8)
