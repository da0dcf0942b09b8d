"""Byte-level BPE, the "gpt2" vocabularies of GGUF: fragments of text to ids through `tokenizers`, and ids to bytes."""

from __future__ import annotations

import logging

from executor.gguf.gguf_file import GgufFile
from executor.text.merges import first_ids, pair_backend
from executor.text.pre_tokenizers import PreTokenizer
from executor.text.token_kinds import TokenKind
from executor.text.vocabulary import Vocabulary

_log = logging.getLogger(__name__)


def byte_characters() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


class ByteLevelEncoder:
    """Ids of one fragment of text that holds no special token, and the bytes of one token."""

    adds_space_prefix = False
    finds_user_defined = False

    def __init__(self, file: GgufFile, vocabulary: Vocabulary, split: PreTokenizer) -> None:
        from tokenizers import normalizers, pre_tokenizers

        self.split = split
        self._vocabulary = vocabulary
        self._ids = first_ids(vocabulary)
        characters = byte_characters()
        self._bytes = {character: byte for byte, character in enumerate(characters)}
        self._absent = frozenset(byte for byte, character in enumerate(characters) if character not in self._ids)
        self.backend = pair_backend(file, self._ids, ignore_merges=split.ignore_merges)
        if split.nfc:
            self.backend.normalizer = normalizers.NFC()
        passes = [pre_tokenizers.Split(regex, "isolated") for regex in split.regexes()]
        self.backend.pre_tokenizer = pre_tokenizers.Sequence(
            [*passes, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )

    def encode(self, fragment: str) -> list[int]:
        """Ids of the fragment. Bytes that the vocabulary has no token for are left out, as everywhere, and logged."""
        if self._absent:
            lost = self._absent.intersection(fragment.encode())
            if lost:
                _log.warning("bytes left out, having no token: %s", ", ".join(f"0x{byte:02x}" for byte in sorted(lost)))
        ids: list[int] = self.backend.encode(fragment, add_special_tokens=False).ids
        return ids if self._vocabulary.control_ids.isdisjoint(ids) else self._spelt(ids)

    def _spelt(self, ids: list[int]) -> list[int]:
        """The ids with each control token, which a merge or a whole word may be, as its characters: text is never control."""
        out: list[int] = []
        for index in ids:
            control = index in self._vocabulary.control_ids
            out += (self._ids[c] for c in self._vocabulary.tokens[index] if c in self._ids) if control else (index,)
        return [index for index in out if index not in self._vocabulary.control_ids]

    def piece(self, index: int) -> bytes:
        """The bytes that a token stands for."""
        text = self._vocabulary.tokens[index]
        if self._vocabulary.kinds[index] is not TokenKind.NORMAL:
            return text.encode()
        return b"".join(bytes([self._bytes[c]]) if c in self._bytes else c.encode() for c in text)
