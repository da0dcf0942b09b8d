"""How likely the tokens of an answer were, in lines for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from executor.base.errors import quoted

if TYPE_CHECKING:
    from executor.model.logprobs import TokenLogprob
    from executor.text.tokenizer import Tokenizer


def probability_lines(logprobs: Iterable[TokenLogprob], tokenizer: Tokenizer) -> Iterator[str]:
    """A line for each token: its probability in per cent and its text, then the likeliest tokens of its position with theirs.
    A token that is no whole characters is shown as bytes."""

    def text(token: int) -> str:
        content = tokenizer.token_bytes(token, skip_special=False)
        try:
            return quoted(content.decode())
        except UnicodeDecodeError:
            return quoted(content)

    for one in logprobs:
        likeliest = ", ".join(f"{text(token)} {_per_cent(logprob)}" for token, logprob in one.top)
        yield f"{_per_cent(one.logprob):>9} %  {text(one.token):14}{likeliest}".rstrip()


def _per_cent(logprob: float) -> str:
    return f"{100 * math.exp(logprob):.3g}"
