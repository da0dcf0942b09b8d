"""Which algorithm the vocabulary of a GGUF file asks for, and what that implies for its texts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from executor.gguf.gguf_file import GgufFile
from executor.text.byte_level import ByteLevelEncoder
from executor.text.pre_tokenizers import PRE_TOKENIZERS
from executor.text.raw_text import RawTextEncoder
from executor.text.sentencepiece import SentencePieceEncoder
from executor.text.unigram import UnigramEncoder
from executor.text.vocabulary import Vocabulary, VocabularyKeys
from executor.text.wordpiece import WordPieceEncoder

_log = logging.getLogger(__name__)

NO_VOCABULARY: Final = ("none", "no_vocab")
MODELS: Final[Mapping[str, str]] = {
    "gpt2": "byte-level BPE, cut by tokenizer.ggml.pre",
    "gemma4": "BPE over UTF-8 text",
    "whitespace": "BPE over UTF-8 text without white space",
    "llama": "SentencePiece's BPE, merged by score",
    "t5": "Unigram, with a character map",
    "bert": "WordPiece",
}
"""The values of tokenizer.ggml.model that are supported, and the algorithm of each."""
NOT_SUPPORTED: Final[Mapping[str, str]] = {
    "rwkv": "the longest token at each place, tokens being escaped bytes",
    "plamo2": "PLaMo-2's own search by the scores of suffixes",
    "hybriddna": "BPE, and six letters a token between the marks of DNA",
}
"""Others that are known, and what they would take."""


class Encoder(Protocol):
    """What a vocabulary's algorithm offers: ids of a fragment without special tokens, bytes of a token. finds_user_defined:
    fragments have user-defined tokens in them."""

    adds_space_prefix: bool
    finds_user_defined: bool

    def encode(self, fragment: str) -> list[int]:
        """Ids of a fragment of text."""

    def piece(self, index: int) -> bytes:
        """The bytes that a token stands for."""


@dataclass(frozen=True)
class Chosen:
    """The algorithm of a file, or `refusal`: why there is none. add_bos, add_eos: what is added to a text where no key says it;
    force_bos: BOS is added whatever the key says. separates: SEP ends a text if the file wants it."""

    vocabulary: Vocabulary | None = None
    encoder: Encoder | None = None
    refusal: str = "the file has no vocabulary"
    add_bos: bool = False
    add_eos: bool = False
    force_bos: bool = False
    separates: bool = False
    clean_spaces: bool = False


def chosen(file: GgufFile) -> Chosen:
    """The algorithm that the file's keys ask for. ModelError for a vocabulary that is wrong."""
    keys = VocabularyKeys(file)
    model = keys.text("model")
    if model in NO_VOCABULARY:
        return Chosen()
    if model is None or model not in MODELS:
        return _refused(file, "model", model, "vocabularies", (*MODELS, *NO_VOCABULARY))
    if model in ("gpt2", "gemma4", "whitespace"):
        return _pairs(file, keys, model)
    vocabulary = Vocabulary.from_gguf(file, model)
    if model == "llama":
        return Chosen(vocabulary, SentencePieceEncoder(file, vocabulary), add_bos=True)
    if model == "t5":
        return Chosen(vocabulary, UnigramEncoder(file, vocabulary), add_eos=True)
    return Chosen(vocabulary, WordPieceEncoder(file, vocabulary), add_bos=True, separates=True, clean_spaces=True)


def _pairs(file: GgufFile, keys: VocabularyKeys, model: str) -> Chosen:
    name = keys.text("pre") if model == "gpt2" else model
    if name is None:
        name = "default"
        _log.warning(
            "%s: tokenizer.ggml.pre is missing; words are cut as llama.cpp's default, maybe not as the model's", file.path
        )
    if name not in PRE_TOKENIZERS:
        return _refused(file, "pre", name, "pre-tokenizers", PRE_TOKENIZERS)
    split = PRE_TOKENIZERS[name]
    vocabulary = Vocabulary.from_gguf(file, "gpt2", default_ids=split.default_ids and model == "gpt2")
    encoder = (RawTextEncoder if split.raw else ByteLevelEncoder)(file, vocabulary, split)
    return Chosen(vocabulary, encoder, add_bos=split.add_bos, force_bos=split.force_bos, clean_spaces=split.clean_spaces)


def _refused(file: GgufFile, key: str, value: str | None, kind: str, known: Mapping[str, object] | tuple[str, ...]) -> Chosen:
    """No text: what the key holds, and what it may hold. The list of tokens still says which ids end a generation."""
    what = "missing" if value is None else repr(value)[:80]
    needs = NOT_SUPPORTED.get(value or "") if key == "model" else None
    why = f" ({needs})" if needs else ""
    refusal = f"tokenizer.ggml.{key} is {what}{why}, which is not supported; known {kind}: {', '.join(known)}"
    listed = "tokenizer.ggml.tokens" in file.metadata
    return Chosen(Vocabulary.from_gguf(file, "") if listed else None, refusal=refusal)
