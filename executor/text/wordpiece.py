"""WordPiece, the "bert" vocabularies of GGUF: words in small letters, each as its longest tokens from the left."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Final

from executor.gguf.gguf_file import GgufFile
from executor.text.merges import first_ids
from executor.text.sentencepiece import SPACE
from executor.text.token_kinds import TokenKind
from executor.text.vocabulary import Vocabulary, VocabularyKeys

_HAN: Final = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


class WordPieceEncoder:
    """Ids of one fragment of text that holds no special token, and the bytes of one token.

    A token that begins a word has U+2581 before it, where BERT's own files write ## before all others.
    """

    adds_space_prefix = False
    finds_user_defined = False

    def __init__(self, file: GgufFile, vocabulary: Vocabulary) -> None:
        keys = VocabularyKeys(file)
        self._lowercase = keys.flag("normalizer.lowercase", True)
        self._strip_accents = keys.flag("normalizer.strip_accents", self._lowercase)
        self._vocabulary = vocabulary
        self._ids = {text: index for text, index in first_ids(vocabulary).items() if index not in vocabulary.control_ids}
        self._longest = max(map(len, self._ids), default=0)
        if vocabulary.unknown_id is None:
            keys.fail("unknown_token_id", "is missing; a bert vocabulary needs it for words that are no tokens")
        self._unknown = vocabulary.unknown_id

    def encode(self, fragment: str) -> list[int]:
        """Ids of the fragment; a word that tokens do not make up is the unknown token."""
        return [index for word in self._words(fragment) for index in self._pieces(SPACE + word) or [self._unknown]]

    def _pieces(self, word: str) -> list[int]:
        """The longest tokens from the left; empty if there are none somewhere."""
        out: list[int] = []
        start = 0
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                if (index := self._ids.get(word[start:end])) is not None:
                    out.append(index)
                    start = end
                    break
            else:
                return []
        return out

    def _words(self, text: str) -> Iterator[str]:
        word = ""
        for character in text:
            if self._strip_accents:
                # llama.cpp takes the first character of a decomposition; the others are accents, but for Hangul.
                character = unicodedata.normalize("NFD", character)[0]
            category = unicodedata.category(character)
            if (character.isspace() and category != "Cc") or character in "\t\n\v\f\r\x85":
                if word:
                    yield word
                word = ""
                continue
            control = character == "\ufffd" or (category[0] == "C" and category != "Cn")
            if control or (self._strip_accents and category[0] == "M"):
                continue
            lowered = character.lower()[0] if self._lowercase else character
            code = ord(character)
            if category[0] == "P" or (code < 0x7F and category[0] == "S") or any(low <= code <= high for low, high in _HAN):
                if word:
                    yield word
                yield lowered
                word = ""
            else:
                word += lowered
        if word:
            yield word

    def piece(self, index: int) -> bytes:
        """The bytes that a token stands for."""
        text = self._vocabulary.tokens[index]
        return (text.replace(SPACE, " ") if self._vocabulary.kinds[index] is TokenKind.NORMAL else text).encode()
