"""A byte-level BPE vocabulary of the size of Llama-3's, without its texts: for timing how long a vocabulary takes to read."""

from __future__ import annotations

from itertools import islice, product
from typing import Final

import gguf

from executor.text.byte_level import byte_characters

SPECIAL: Final = 256
"""Control tokens; fewer in a vocabulary that has no room for so many beside bytes and as many merged tokens."""
MERGES_PER_TOKEN: Final = 280147 / 128000
"""Of Llama-3: most of its tokens can be had by more than one merge."""
_LETTERS: Final = "abcdefghijklmnopqrstuvwx"


def add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """Give a model `size` tokens: the bytes, then all pairs, triples and so on of some letters, then special ones."""
    grams = ("".join(letters) for length in range(2, 5) for letters in product(_LETTERS, repeat=length))
    special = min(SPECIAL, (size - 256) // 2)
    tokens = byte_characters() + list(islice(grams, size - special - 256))
    merges = [f"{token[:cut]} {token[cut:]}" for token in tokens[256:] for cut in range(1, len(token))]
    kinds = [gguf.TokenType.NORMAL] * len(tokens) + [gguf.TokenType.CONTROL] * special
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens + [f"<|special_{index}|>" for index in range(special)])
    writer.add_token_types(kinds)
    writer.add_token_merges(merges[: int(MERGES_PER_TOKEN * len(tokens))])
    writer.add_bos_token_id(len(tokens))
    writer.add_eos_token_id(len(tokens) + 1)
