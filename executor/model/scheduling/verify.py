"""A draft of the next tokens, scored in one step: as many of them count as the model would have taken itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from executor.base.errors import ModelError
from executor.memory.page_pool import PageTable
from executor.model.scheduling.prompt_lookup import MAX_DRAFT
from executor.model.step import Row, StepEngine
from ptxgen.errors import ArgumentError
from ptxgen.kernels.token.argmax import NOT_A_NUMBER


class Drafter(Protocol):
    """Guesses how one text goes on."""

    def propose(self, tokens: Sequence[int], most: int, /) -> list[int]:
        """At most so many tokens that may follow; `tokens` continue those of the call before."""


def verify(engine: StepEngine, slot: int, table: PageTable, tokens: Sequence[int], draft: Sequence[int]) -> list[int]:
    """The tokens that greedy decoding puts after `tokens`: those of the draft that agree with it, and one more.

    tokens: all of a sequence in `slot` whose pages are those of `table`; all but the last are computed. Afterwards all but the
    last of `tokens` and the result are, and the table has no page for more. After an exception the sequence is as it was.
    ArgumentError for a draft of more than MAX_DRAFT tokens, OutOfPages if it has no room.
    """
    if len(draft) > MAX_DRAFT:
        raise ArgumentError(f"the draft has {len(draft)} tokens; allowed: up to {MAX_DRAFT}")
    computed = len(tokens) - 1
    table.reserve(len(tokens) + len(draft))
    try:
        table.reserve_window(computed, len(tokens) + len(draft))
        engine.set_table(slot, table.pages, table.window_pages)
        scores = engine.step(rows_of(slot, [tokens[-1], *draft], computed, 1 + len(draft)))
        found = accepted(draft, scores.chosen())
    except BaseException:
        table.truncate(computed)
        raise
    table.truncate(computed + len(found))
    table.leave(computed + len(found))
    return found


def rows_of(slot: int, tokens: Sequence[int], position: int, scored: int) -> list[Row]:
    """The rows of successive tokens of one sequence, the first at `position`; the last `scored` ones are scored."""
    return [Row(slot, token, position + i, i >= len(tokens) - scored) for i, token in enumerate(tokens)]


def accepted(draft: Sequence[int], likeliest: Sequence[int]) -> list[int]:
    """What greedy decoding gives for a draft of n tokens, from the likeliest token after the n + 1 rows that verify it: the
    draft's tokens up to the first that it would not have taken, and the one that it takes then. ModelError if there is none
    because the logits hold NaN."""
    found: list[int] = []
    for drafted, token in zip([*draft, None], likeliest, strict=True):
        if token != NOT_A_NUMBER:
            found.append(token)
        elif not found:
            raise ModelError("the logits hold NaN, so no token is the likeliest; the weights are damaged or overflow f32")
        if token != drafted:
            break
    return found
