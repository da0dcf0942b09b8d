"""Byte-level BPE, the "gpt2" vocabularies of GGUF: fragments of text to ids through `tokenizers`, and ids to bytes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Final

from executor.base.errors import ModelError
from executor.gguf.gguf_file import GgufFile
from executor.text.token_kinds import TokenKind
from executor.text.vocabulary import Vocabulary, VocabularyKeys

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_WORDS: Final = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class WordSplit:
    """How text is cut into words before merging. words: the regular expression; empty means GPT-2's with each digit alone.

    nfc: text is first composed, as the tokenizer that the model was trained with does. ignore_merges: a word that is a token
    is that token, whatever the merges give.
    """

    words: str
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False


_SMOLLM: Final = WordSplit("")
_QWEN2: Final = WordSplit(_WORDS.format(numbers=r"\p{N}"), nfc=True)
_LLAMA: Final = WordSplit(_WORDS.format(numbers=r"\p{N}{1,3}"), ignore_merges=True, add_bos=True)
SPLITS: Final[dict[str, WordSplit]] = {
    "smollm": _SMOLLM,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "llama-bpe": _LLAMA,
    "llama3": _LLAMA,
    "llama-v3": _LLAMA,
}

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

    def __init__(self, file: GgufFile, vocabulary: Vocabulary) -> None:
        keys = VocabularyKeys(file)
        name = keys.text("pre")
        if name not in SPLITS:
            known = ", ".join(SPLITS)
            keys.fail("pre", f"is {'missing' if name is None else repr(name)[:80]}; known pre-tokenizers: {known}")
        self.split = SPLITS[name]
        self.default_add_bos = self.split.add_bos
        self._vocabulary = vocabulary
        # The first of equal texts counts.
        self._ids = dict(zip(reversed(vocabulary.tokens), range(len(vocabulary.tokens) - 1, -1, -1), strict=True))
        characters = byte_characters()
        self._bytes = {character: byte for byte, character in enumerate(characters)}
        self._absent = frozenset(byte for byte, character in enumerate(characters) if character not in self._ids)
        self.backend = self._build(file, keys)

    def _check_merges(self, keys: VocabularyKeys, merges: list[str]) -> None:
        """ModelError that names the first merge that is wrong, if there is one."""
        ids = self._ids
        for index, merge in enumerate(merges):
            cut = merge.find(" ", 1)
            left, right = merge[:cut], merge[cut + 1 :]
            if cut < 0 or left not in ids or right not in ids or left + right not in ids:
                keys.fail(
                    "merges",
                    f"holds {repr(merge)[:80]} at {index}; a merge joins two tokens into a third, with one space between",
                )

    def _build(self, file: GgufFile, keys: VocabularyKeys) -> Backend:
        from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

        merges = keys.strings("merges")
        cuts = list(map(str.find, merges, repeat(" "), repeat(1)))
        if min(cuts, default=0) < 0:
            self._check_merges(keys, merges)
        pairs = [(merge[:cut], merge[cut + 1 :]) for merge, cut in zip(merges, cuts, strict=True)]
        try:
            # The library looks for the three tokens of each merge, so that is not done here before something is wrong.
            backend = Tokenizer(models.BPE(vocab=self._ids, merges=pairs, ignore_merges=self.split.ignore_merges))
        except Exception as error:  # the library raises plain Exception
            self._check_merges(keys, merges)
            raise ModelError(f"the vocabulary cannot be used: {error}", file.path) from error
        if self.split.nfc:
            backend.normalizer = normalizers.NFC()
        first: pre_tokenizers.PreTokenizer
        if self.split.words:
            first = pre_tokenizers.Split(Regex(self.split.words), "isolated")
        else:
            first = pre_tokenizers.Digits(individual_digits=True)
        second = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not self.split.words)
        backend.pre_tokenizer = pre_tokenizers.Sequence([first, second])
        return backend

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
