"""Unigram, the "t5" vocabularies of GGUF: the tokens whose scores have the highest sum."""

from __future__ import annotations

from typing import Final

from executor.gguf.gguf_file import GgufFile
from executor.text.charsmap import CharacterMap
from executor.text.merges import first_ids
from executor.text.sentencepiece import SPACE, byte_of
from executor.text.token_kinds import TokenKind
from executor.text.vocabulary import Vocabulary, VocabularyKeys

_PENALTY: Final = 10.0
"""How much worse than the lowest score of a token the unknown token is."""
_MATCHED: Final = frozenset({TokenKind.NORMAL, TokenKind.USER_DEFINED, TokenKind.UNUSED})


class UnigramEncoder:
    """Ids of one fragment of text that holds no special token, and the bytes of one token.

    Text is first mapped by the file's character map; with remove_extra_whitespaces, runs of spaces become one and those at the
    ends none. Then each fragment gets a space before its first word, as SentencePiece's dummy prefix, unless add_space_prefix
    is false. A user-defined token has score 0; neighbouring characters that are no tokens become one unknown token.
    """

    adds_space_prefix = False  # it is put after the mapping, by this class
    finds_user_defined = False

    def __init__(self, file: GgufFile, vocabulary: Vocabulary) -> None:
        keys = VocabularyKeys(file)
        self._prefix = keys.flag("add_space_prefix", False)
        self._merge_spaces = keys.flag("remove_extra_whitespaces", False)
        self._map = CharacterMap(keys)
        self._vocabulary = vocabulary
        if vocabulary.unknown_id is None:
            keys.fail("unknown_token_id", "is missing; a t5 vocabulary needs it for characters that are no tokens")
        self._unknown = vocabulary.unknown_id
        kinds, scores = vocabulary.kinds, vocabulary.scores
        self._ids = {
            text: index
            for text, index in first_ids(vocabulary).items()
            if text and kinds[index] in _MATCHED and index not in vocabulary.control_ids
        }
        self._score = [0.0 if kind is TokenKind.USER_DEFINED else score for kind, score in zip(kinds, scores, strict=True)]
        normal = [score for kind, score in zip(kinds, scores, strict=True) if kind is TokenKind.NORMAL]
        self._unknown_score = min(normal, default=0.0) - _PENALTY
        self._longest: dict[str, int] = {}  # characters of a token, by its first
        for text in self._ids:
            self._longest[text[0]] = max(len(text), self._longest.get(text[0], 0))

    def encode(self, fragment: str) -> list[int]:
        """Ids of the fragment."""
        text = self.normalised(fragment)
        best: list[tuple[float, int, int]] = [(0.0, 0, self._unknown)]  # by end: sum of scores, start and id of the last token
        best += [(float("-inf"), 0, self._unknown)] * len(text)
        for start, first in enumerate(text):
            so_far = best[start][0]
            known = False
            for end in range(start + 1, min(len(text), start + self._longest.get(first, 0)) + 1):
                index = self._ids.get(text[start:end])
                if index is not None:
                    known = known or end == start + 1
                    if so_far + self._score[index] > best[end][0]:
                        best[end] = (so_far + self._score[index], start, index)
            if not known and so_far + self._unknown_score > best[start + 1][0]:
                best[start + 1] = (so_far + self._unknown_score, start, self._unknown)
        out: list[int] = []
        end = len(text)
        while end:
            _, start, index = best[end]
            if index != self._unknown or out[-1:] != [self._unknown]:
                out.append(index)
            end = start
        return out[::-1]

    def normalised(self, text: str) -> str:
        """The text that tokens are looked for in."""
        mapped = self._mapped(text.encode())
        if self._merge_spaces:
            return "".join(SPACE + word for word in mapped.split(" ") if word)
        prefix = SPACE if self._prefix and mapped.strip(" ") else ""
        return prefix + mapped.replace(" ", SPACE)

    def _mapped(self, text: bytes) -> str:
        out: list[bytes] = []
        at = 0
        while at < len(text):
            length, new = self._map.longest(text, at)
            if not length:
                length = next(size for low, size in _SIZES if text[at] >= low)
                new = text[at : at + length]
            out.append(new)
            at += length
        return b"".join(out).decode(errors="replace")

    def piece(self, index: int) -> bytes:
        """The bytes that a token stands for."""
        text, kind = self._vocabulary.tokens[index], self._vocabulary.kinds[index]
        byte = byte_of(text) if kind is TokenKind.BYTE else None
        if byte is not None:
            return bytes([byte])
        return (text.replace(SPACE, " ") if kind is TokenKind.NORMAL else text).encode()


_SIZES: Final = ((0xF0, 4), (0xE0, 3), (0xC0, 2), (0, 1))
"""Bytes of a character by its first one."""
