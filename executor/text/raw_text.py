"""BPE whose tokens hold UTF-8 text, not characters that stand for bytes: gemma4 and its kin. A space is U+2581 in a token, and
a character that is no token becomes one token for each byte."""

from __future__ import annotations

import re
from typing import Final

from executor.gguf.gguf_file import GgufFile
from executor.text.merges import first_ids, pair_backend
from executor.text.pre_tokenizers import PreTokenizer
from executor.text.sentencepiece import SPACE, byte_of
from executor.text.token_kinds import TokenKind
from executor.text.vocabulary import Vocabulary

_LINE_ENDS: Final = re.compile(r"(\n+)")


class RawTextEncoder:
    """Ids of one fragment of text that holds no special token, and the bytes of one token."""

    adds_space_prefix = False
    finds_user_defined = False

    def __init__(self, file: GgufFile, vocabulary: Vocabulary, split: PreTokenizer) -> None:
        from tokenizers import pre_tokenizers

        self._vocabulary = vocabulary
        self._ids = first_ids(vocabulary)
        # gemma4's line ends are tokens of their own, whatever the merges give; its kin that are not forced to BOS merge them.
        self._whole_line_ends = split.force_bos
        self._backend = pair_backend(file, self._ids, ignore_merges=split.ignore_merges, byte_fallback=True)
        cuts = [pre_tokenizers.Split(regex, "isolated") for regex in split.regexes()]
        self._escaped = not split.drops_spaces
        self._backend.pre_tokenizer = pre_tokenizers.Sequence(cuts if self._escaped else [pre_tokenizers.WhitespaceSplit()])

    def encode(self, fragment: str) -> list[int]:
        """Ids of the fragment. A byte that has no token is left out."""
        escaped = fragment.replace(" ", SPACE) if self._escaped else fragment
        if not self._whole_line_ends:
            return self._merged(escaped)
        out: list[int] = []
        for piece in _LINE_ENDS.split(escaped):
            if piece.startswith("\n") and piece in self._ids:
                out.append(self._ids[piece])
            elif piece:
                out += self._merged(piece)
        return out

    def _merged(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        control = self._vocabulary.control_ids
        return ids if control.isdisjoint(ids) else [part for index in ids for part in self._spelt(index)]

    def _spelt(self, index: int) -> list[int]:
        """A control token that text merged to, as the bytes of its text: text is never control."""
        if index not in self._vocabulary.control_ids:
            return [index]
        spelt = (f"<0x{byte:02X}>" for byte in self._vocabulary.tokens[index].encode())
        return [self._ids[byte] for byte in spelt if byte in self._ids]

    def piece(self, index: int) -> bytes:
        """The bytes that a token stands for."""
        text, kind = self._vocabulary.tokens[index], self._vocabulary.kinds[index]
        byte = byte_of(text) if kind is TokenKind.BYTE else None
        if byte is not None:
            return bytes([byte])
        return (text.replace(SPACE, " ") if kind is TokenKind.NORMAL else text).encode()
