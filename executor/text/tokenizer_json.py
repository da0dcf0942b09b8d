"""A tokenizer as the document `tokenizer.json` of the library `tokenizers`, from which many engines tokenise. What its format
cannot say is refused, and what came out is held to our own tokenizer before anybody gets it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from executor.base.errors import ModelError, shown
from executor.text.byte_level import ByteLevelEncoder, byte_characters
from executor.text.sentencepiece import SPACE, SentencePieceEncoder
from executor.text.token_kinds import SILENT, TokenKind, is_merged
from executor.text.tokenizer import Tokenizer
from executor.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

MIXED_TEXTS: Final = 2000
"""Texts of tokens in any order that are compared, beside each token's own."""
LONGEST_MIX: Final = 12
"""Tokens of such a text."""


@dataclass(frozen=True)
class TokenizerJson:
    """The document, and what was compared: texts that both made the same ids of, ids that both made the same text of."""

    text: str
    texts: int
    ids: int


def tokenizer_json(tokenizer: Tokenizer) -> TokenizerJson:
    """The document of a tokenizer that has text. A reader of it gets the ids and the text of `tokenizer`, but for two
    exceptions that the format leaves no way around: BOS is put even before a text that begins with it, and the space that some
    vocabularies put before a text is left there when ids that begin with BOS become text.

    ModelError names what cannot be said in the format: a text that two tokens have, a control token that words could become,
    SentencePiece without a token for each byte, with tokens made of characters that are none, with unused tokens that words
    become on their way to others, or with user-defined tokens and a space before each text."""
    vocabulary, encoder = tokenizer.parts()
    _check_texts(tokenizer, vocabulary)
    if isinstance(encoder, ByteLevelEncoder):
        backend = _byte_level(tokenizer, vocabulary, encoder)
    elif isinstance(encoder, SentencePieceEncoder):
        backend = _sentencepiece(tokenizer, vocabulary)
    else:
        _refuse(tokenizer, f"{type(encoder).__name__} has no such document")
    _add_tokens(backend, vocabulary, normalized=encoder.finds_user_defined)
    _add_ends(backend, tokenizer)
    text: str = backend.to_str()
    return _compared(tokenizer, vocabulary, text)


def _refuse(tokenizer: Tokenizer, why: str) -> NoReturn:
    raise ModelError(f"the tokenizer cannot be written as tokenizer.json: {why}", tokenizer.path)


def _named(vocabulary: Vocabulary, index: int) -> str:
    return f"token {index} ({shown(vocabulary.tokens[index])})"


def _check_texts(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    first: dict[str, int] = {}
    for index, text in enumerate(vocabulary.tokens):
        if first.setdefault(text, index) != index:
            _refuse(tokenizer, f"{_named(vocabulary, index)} has the text of token {first[text]}; allowed: each text once")


def _byte_level(tokenizer: Tokenizer, vocabulary: Vocabulary, encoder: ByteLevelEncoder) -> Backend:
    """The library's tokenizer that `encoder` asks itself."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders

    document = json.loads(encoder.backend.to_str())
    made = {"".join(merge if isinstance(merge, list) else merge.split(" ", 1)) for merge in document["model"]["merges"]}
    alphabet = frozenset(byte_characters())
    for index in sorted(vocabulary.control_ids):
        text = vocabulary.tokens[index]
        becomes = text in made or encoder.split.ignore_merges or len(text) == 1
        # What is written as it is spelt in the vocabulary is cut out before words are made of it.
        written = text.isascii() and not (text in made and encoder.split.nfc)
        if becomes and not written and alphabet.issuperset(text):
            _refuse(tokenizer, f"{_named(vocabulary, index)} is a control token that words of a text could become")
    backend: Backend = Backend.from_str(json.dumps(document))
    backend.decoder = decoders.Sequence([*_silence(vocabulary), decoders.ByteLevel()])
    return backend


def _sentencepiece(tokenizer: Tokenizer, vocabulary: Vocabulary) -> Backend:
    """The same algorithm, with pairs by rank instead of unions by score."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers

    _, encoder = tokenizer.parts()
    ids, whole = _mergeable(vocabulary), {text: index for index, text in enumerate(vocabulary.tokens)}
    for byte in range(256):
        index = whole.get(f"<0x{byte:02X}>")
        if index is None or vocabulary.kinds[index] is not TokenKind.BYTE:
            _refuse(tokenizer, f"there is no byte token <0x{byte:02X}>; a vocabulary of SentencePiece needs all 256")
    for text, index in whole.items():
        if len(text) == 1 and text not in ids:
            _refuse(tokenizer, f"{_named(vocabulary, index)} is one character that is no text")
    for index in _of_kind(vocabulary, TokenKind.UNUSED):
        text = vocabulary.tokens[index]
        if len(text) > 1 and is_merged(text, whole):
            _refuse(tokenizer, f"{_named(vocabulary, index)} is unused, and words become it before they are taken apart again")
    for index in _of_kind(vocabulary, TokenKind.USER_DEFINED):
        if encoder.adds_space_prefix and index not in vocabulary.control_ids:
            _refuse(tokenizer, f"{_named(vocabulary, index)} is user-defined, and text after it would get a space before it")
    merges = _merges(tokenizer, vocabulary, ids)
    backend: Backend = Backend(models.BPE(vocab=whole, merges=merges, byte_fallback=True))
    spaces = normalizers.Replace(" ", SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces] if encoder.adds_space_prefix else [spaces])
    backend.decoder = decoders.Sequence(
        [*_silence(vocabulary), decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return backend


def _merges(tokenizer: Tokenizer, vocabulary: Vocabulary, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """All pairs that words may hold and whose union is a token, the highest score first, of one score those with the longer
    left part, so that a run of one character grows from its left end."""
    found: list[tuple[float, int, int, tuple[str, str]]] = []
    made = set[str]()
    for text, index in sorted(ids.items(), key=lambda item: len(item[0])):
        if " " in text or vocabulary.kinds[index] is TokenKind.USER_DEFINED:
            continue  # no word has a space, nor what is cut out of the text before
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if not all(len(part) == 1 or part in made for part in (left, right)):
                continue
            if left not in ids or right not in ids:
                _refuse(tokenizer, f"{_named(vocabulary, index)} is made of a character that is no token")
            found.append((-vocabulary.scores[index], -cut, index, (left, right)))
            made.add(text)
    found.sort()
    _check_ties(tokenizer, vocabulary, found)
    return [pair for *_, pair in found]


def _check_ties(tokenizer: Tokenizer, vocabulary: Vocabulary, found: Sequence[tuple[float, int, int, tuple[str, str]]]) -> None:
    """Of unions with one score the leftmost is made first, and ranks cannot say that: where it would matter for two different
    tokens the vocabulary is refused. Runs of one character, which some vocabularies give one score, come out the same."""
    tied: dict[float, set[int]] = {}
    for score, _, index, _ in found:
        tied.setdefault(score, set()).add(index)
    ends: dict[tuple[float, str], list[tuple[int, str]]] = {}  # those that come later, by their right part
    for score, _, index, (left, right) in reversed(found):
        rivals = tied[score]
        if len(rivals) == 1:
            continue
        for other, far in ends.get((score, left), ()):
            if other != index and len(set(far + left + right)) > 1:
                _refuse(tokenizer, _ambiguous(vocabulary, other, index))
        ends.setdefault((score, right), []).append((index, left))
    shared = {vocabulary.tokens[index]: index for indices in tied.values() if len(indices) > 1 for index in indices}
    for score, _, index, pair in found:
        for part in pair:
            whole = shared.get(part)
            if whole is not None and -score > vocabulary.scores[whole] and len(set("".join(pair))) > 1:
                _refuse(tokenizer, _ambiguous(vocabulary, whole, index))


def _ambiguous(vocabulary: Vocabulary, one: int, other: int) -> str:
    both = f"{_named(vocabulary, one)} and {_named(vocabulary, other)}"
    return f"which of {both} words become depends on where they stand, since tokens of a vocabulary have equal scores"


def _mergeable(vocabulary: Vocabulary) -> dict[str, int]:
    """The tokens that words become."""
    kinds = (TokenKind.NORMAL, TokenKind.USER_DEFINED)
    every = zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    return {text: index for index, (text, kind) in enumerate(every) if kind in kinds and index not in vocabulary.control_ids}


def _silence(vocabulary: Vocabulary) -> list[Any]:
    """Unused tokens are no text. As special ones they would be cut out of texts, so they are silenced in decoding alone."""
    from tokenizers import Regex, decoders

    unused = [re.escape(vocabulary.tokens[index]) for index in _of_kind(vocabulary, TokenKind.UNUSED)]
    return [decoders.Replace(Regex(f"\\A(?:{'|'.join(unused)})\\z"), "")] if unused else []


def _of_kind(vocabulary: Vocabulary, *kinds: TokenKind) -> Iterator[int]:
    return (index for index, kind in enumerate(vocabulary.kinds) if kind in kinds)


def _add_tokens(backend: Backend, vocabulary: Vocabulary, *, normalized: bool) -> None:
    """Those that are cut out of a text before its words: special where they are no text themselves. normalized: user-defined
    ones are looked for when spaces have been written as they are in tokens."""
    from tokenizers import AddedToken

    cut = sorted(vocabulary.control_ids.union(_of_kind(vocabulary, TokenKind.USER_DEFINED)))
    backend.add_tokens(
        [
            AddedToken(
                vocabulary.tokens[index],
                normalized=normalized and index not in vocabulary.control_ids,
                special=vocabulary.kinds[index] in SILENT,
            )
            for index in cut
            if vocabulary.tokens[index]
        ]
    )


def _add_ends(backend: Backend, tokenizer: Tokenizer) -> None:
    """BOS and EOS around a text, as the file wants them."""
    from tokenizers import processors

    before = [tokenizer.bos_token] if tokenizer.add_bos else []
    after = [tokenizer.eos_token] if tokenizer.add_eos else []
    if before or after:
        named = {tokenizer.bos_token: tokenizer.bos_id, tokenizer.eos_token: tokenizer.eos_id}
        backend.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *before, "$B:1", *after],
            special_tokens=[(text, named[text]) for text in {*before, *after}],
        )


def _compared(tokenizer: Tokenizer, vocabulary: Vocabulary, document: str) -> TokenizerJson:
    """ModelError unless a reader of the document does what `tokenizer` does, for each token and for many texts of tokens."""
    from tokenizers import Tokenizer as Backend

    backend: Backend = Backend.from_str(document)
    own = range(len(vocabulary.tokens))
    if backend.get_vocab_size() != len(own):
        _refuse(tokenizer, f"{backend.get_vocab_size()} tokens would come of {len(own)}")
    single = [[index] for index in own]
    mixed = list(_mixed(tokenizer, vocabulary))
    for skip in (True, False):
        read = backend.decode_batch([*single, *mixed], skip_special_tokens=skip)
        for ids, text in zip([*single, *mixed], read, strict=True):
            said = tokenizer.decode(ids, skip_special=skip)
            unused = not skip and vocabulary.kinds[ids[0]] is TokenKind.UNUSED
            if text != said and not unused and "\ufffd" not in said:
                _refuse(tokenizer, f"the ids {ids} would be the text {shown(text)} instead of {shown(said)}")
    texts = [tokenizer.decode(ids, skip_special=False) for ids in [*single, *mixed]]
    for text, encoding in zip(texts, backend.encode_batch(texts, add_special_tokens=False), strict=True):
        ids = tokenizer.encode(text, add_special=False)
        if encoding.ids != ids:
            _refuse(tokenizer, f"the text {shown(text)} would be the ids {encoding.ids} instead of {ids}")
    return TokenizerJson(document, len(texts), len(single) + len(mixed))


def _mixed(tokenizer: Tokenizer, vocabulary: Vocabulary) -> Iterator[Sequence[int]]:
    """The same ones every time. None begins with BOS, whose space is an exception."""
    rng = random.Random(0)
    usual = list(_of_kind(vocabulary, TokenKind.NORMAL, TokenKind.USER_DEFINED)) or [0]
    rare = list(_of_kind(vocabulary, TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.USER_DEFINED)) or usual
    runs = [index for index in usual if len(vocabulary.tokens[index]) == 1]
    for _ in range(MIXED_TEXTS):
        ids = [rng.choice(rare if rng.random() < 0.1 else usual) for _ in range(rng.randint(2, LONGEST_MIX))]
        if runs and rng.random() < 0.2:
            ids[1:1] = [rng.choice(runs)] * rng.randint(2, LONGEST_MIX)
        if ids[0] != tokenizer.bos_id and vocabulary.kinds[ids[0]] is not TokenKind.UNUSED:
            yield ids
