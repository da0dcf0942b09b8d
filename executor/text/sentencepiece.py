"""SentencePiece-style BPE, the "llama" vocabularies of GGUF: pairs merged by score, bytes as the last resort."""

from __future__ import annotations

import heapq
import re
from typing import Final

from executor.base.errors import ModelError
from executor.gguf.gguf_file import GgufFile
from executor.text.special_tokens import Span, SpecialTokens
from executor.text.token_kinds import TokenKind
from executor.text.vocabulary import Vocabulary, VocabularyKeys

SPACE: Final = "\u2581"  # stands for a space inside a token
_MERGED: Final = frozenset({TokenKind.NORMAL, TokenKind.USER_DEFINED, TokenKind.UNUSED})
_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_of(text: str) -> int | None:
    """The byte that <0xE2> stands for; None for what is not written so."""
    match = _BYTE.fullmatch(text)
    return None if match is None else int(match[1], 16)


class SentencePieceEncoder:
    """Ids of one fragment of text that holds no control token, and the bytes of one token.

    The algorithm of SentencePiece's BPE (src/bpe_model.cc): spaces are written as SPACE; what is a user-defined token then is
    one, leftmost and longest first, and no part of another token; of all neighbouring symbols between them whose union is a
    token, the union with the highest score is made, the leftmost of equals first, until there is none; a union that is an
    unused token is taken apart again.
    """

    finds_user_defined = True

    def __init__(self, file: GgufFile, vocabulary: Vocabulary) -> None:
        keys = VocabularyKeys(file)
        self.adds_space_prefix = keys.flag("add_space_prefix", True)
        self._path = file.path
        self._vocabulary = vocabulary
        self._ids: dict[str, int] = {}
        self._bytes: dict[int, int] = {}  # byte -> id
        self._byte_of: dict[int, int] = {}  # id -> byte
        self._unused = frozenset(index for index, kind in enumerate(vocabulary.kinds) if kind is TokenKind.UNUSED)
        whole: dict[str, int] = {}
        for index, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)):
            if kind is TokenKind.BYTE:
                byte = byte_of(text)
                if byte is None:
                    keys.fail("tokens", f"has the byte token {repr(text)[:80]} at {index}; allowed: <0x00> to <0xFF>")
                self._byte_of[index] = byte
                self._bytes.setdefault(byte, index)
            elif kind in _MERGED and index not in vocabulary.control_ids:
                self._ids.setdefault(text, index)
                if kind is TokenKind.USER_DEFINED:
                    whole.setdefault(text, index)
        # Converters write the spaces of some as spaces, which no text has here.
        spaced = {text.replace(" ", SPACE): index for text, index in whole.items() if " " in text}
        self._user_defined = SpecialTokens({}, whole | {text: index for text, index in spaced.items() if text not in self._ids})

    def encode(self, fragment: str) -> list[int]:
        """Ids of the fragment; a symbol that is no token becomes its UTF-8 bytes, or the unknown token if those are none."""
        out: list[int] = []
        for text, user_defined in self._user_defined.cut([Span(fragment.replace(" ", SPACE), trusted=False)]):
            if user_defined is not None:
                out.append(user_defined)
                continue
            for symbol in self._merge(text):
                index = self._ids.get(symbol)
                if index is not None and index not in self._unused:
                    out.append(index)
                else:
                    out.extend(self._byte_id(byte) for byte in symbol.encode())
        return out

    def _byte_id(self, byte: int) -> int:
        index = self._bytes.get(byte, self._vocabulary.unknown_id)
        if index is None:
            raise ModelError(f"the vocabulary has no token for byte 0x{byte:02x} and no unknown token", self._path)
        return index

    def _merge(self, text: str) -> list[str]:
        ids, scores = self._ids, self._vocabulary.scores
        symbols: list[str] = list(text)  # "" once merged into its left neighbour
        end = len(symbols)
        after = list(range(1, end + 1))
        before = list(range(-1, end - 1))
        queue: list[tuple[float, int, int, str]] = []
        halves: dict[str, tuple[str, str]] = {}  # of unions that are unused tokens

        def offer(left: int, right: int) -> None:
            union = symbols[left] + symbols[right]
            index = ids.get(union)
            if index is not None:
                heapq.heappush(queue, (-scores[index], left, right, union))
                if index in self._unused:
                    halves[union] = symbols[left], symbols[right]

        for left in range(end - 1):
            offer(left, left + 1)
        while queue:
            _, left, right, union = heapq.heappop(queue)
            # A pair is stale once either side has grown or gone; then its union is another text.
            if not symbols[left] or not symbols[right] or symbols[left] + symbols[right] != union or after[left] != right:
                continue
            symbols[left], symbols[right] = union, ""
            after[left] = after[right]
            if after[left] < end:
                before[after[left]] = left
                offer(left, after[left])
            if before[left] >= 0:
                offer(before[left], left)
        merged = [symbol for symbol in reversed(symbols) if symbol]
        out: list[str] = []
        while merged:
            symbol = merged.pop()
            if symbol in halves:
                merged += reversed(halves[symbol])
            else:
                out.append(symbol)
        return out

    def piece(self, index: int) -> bytes:
        """The bytes that a token stands for."""
        byte = self._byte_of.get(index)
        if byte is not None:
            return bytes([byte])
        text = self._vocabulary.tokens[index]
        return (text.replace(SPACE, " ") if self._vocabulary.kinds[index] in _MERGED else text).encode()
