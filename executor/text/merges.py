"""The merges of a BPE vocabulary, given to the library `tokenizers`. How text is cut before them: pre_tokenizers.py."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from typing import TYPE_CHECKING

from executor.base.errors import ModelError
from executor.gguf.gguf_file import GgufFile
from executor.text.vocabulary import Vocabulary, VocabularyKeys

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


def first_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """The id of each token's text; the first of equal texts counts."""
    return dict(zip(reversed(vocabulary.tokens), range(len(vocabulary.tokens) - 1, -1, -1), strict=True))


def pair_backend(
    file: GgufFile, ids: Mapping[str, int], *, ignore_merges: bool = False, byte_fallback: bool = False
) -> Backend:
    """The library's tokenizer that merges by tokenizer.ggml.merges. ModelError names the first merge that is wrong.

    ignore_merges: a piece that is a token is that token. byte_fallback: a character that is no token is its bytes, <0xE2>.
    """
    from tokenizers import Tokenizer, models

    keys = VocabularyKeys(file)
    merges = keys.strings("merges")
    cuts = list(map(str.find, merges, repeat(" "), repeat(1)))
    if min(cuts, default=0) < 0:
        _check(keys, ids, merges)
    pairs = [(merge[:cut], merge[cut + 1 :]) for merge, cut in zip(merges, cuts, strict=True)]
    try:
        # The library looks for the three tokens of each merge, so that is not done here before something is wrong.
        return Tokenizer(models.BPE(vocab=dict(ids), merges=pairs, ignore_merges=ignore_merges, byte_fallback=byte_fallback))
    except Exception as error:  # the library raises plain Exception
        _check(keys, ids, merges)
        raise ModelError(f"the vocabulary cannot be used: {error}", file.path) from error


def _check(keys: VocabularyKeys, ids: Mapping[str, int], merges: list[str]) -> None:
    """ModelError that names the first merge that is wrong, if there is one."""
    for index, merge in enumerate(merges):
        cut = merge.find(" ", 1)
        left, right = merge[:cut], merge[cut + 1 :]
        if cut < 0 or left not in ids or right not in ids or left + right not in ids:
            keys.fail(
                "merges",
                f"holds {repr(merge)[:80]} at {index}; a merge joins two tokens into a third, with one space between",
            )
