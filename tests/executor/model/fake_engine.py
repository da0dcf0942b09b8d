"""An engine that reads and writes pages and computes almost nothing: the next token follows from every token that a row
attends to, in their order, read through the page tables, so a wrong page, a stale one or a lost token shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from executor.base.progress import Progress
from executor.model.scheduling.request import Request
from executor.model.scheduling.scheduler import Scheduler
from executor.model.step import Allowed, Draw, Row
from ptxgen.kernels.token.philox import random_bits
from ptxgen.kernels.token.sampling import sample

NOTHING = -1
"""What a page holds that nobody has written."""


class FakeScores:
    """Logits of rows by hash: a row's likeliest token is that of its hash, and the others follow from it. Of a row with
    allowed tokens, the others are -infinity when one is chosen."""

    def __init__(self, engine: FakeEngine, hashes: list[int]) -> None:
        self._engine = engine
        self._hashes = hashes
        self._drawn: dict[int, int] = {}

    def chosen(self) -> list[int]:
        self._engine.order.append("read")
        return self.tokens

    @property
    def tokens(self) -> list[int]:
        return [self._drawn.get(row, self._engine.choose(value)) for row, value in enumerate(self._hashes)]

    def logits(self, index: int) -> NDArray[np.float32]:
        value = self._hashes[index]
        logits = (np.arange(self._engine.vocab) * (value % 89 + 7) % 17 / 4).astype(np.float32)
        logits[self._engine.choose(value)] = 5
        return logits

    def draw(self, draws: Mapping[int, Draw], allowed: Mapping[int, Allowed]) -> None:
        self._engine.order.append("draw")
        for row in draws.keys() | allowed.keys():
            logits = self.logits(row)
            if row in allowed:
                bits = np.unpackbits(allowed[row].view(np.uint8), bitorder="little", count=logits.size)
                logits = np.where(bits, logits, np.float32(-np.inf))
            draw = draws.get(row)
            self._drawn[row] = (
                int(logits.argmax()) if draw is None else sample(logits, draw.settings, random_bits(draw.key, draw.number))
            )


class FakeEngine:
    """`choose`: the likeliest token for the hash of all that a row attends to. `before_step`: is called with the rows, and may
    raise. ahead: whether steps may be started before tokens were read."""

    def __init__(
        self,
        *,
        slots: int = 4,
        rows: int = 16,
        vocab: int = 32,
        context: int = 64,
        page_len: int = 4,
        pages: int = 64,
        ahead: bool = True,
        window: int | None = None,
        window_pages: int = 0,
    ):
        self.slots, self.rows, self.vocab, self.context, self.page_len, self.pages = (
            slots,
            rows,
            vocab,
            context,
            page_len,
            pages,
        )
        self.memory = np.full((pages, page_len), NOTHING)
        self.window, self.window_pages = window, window_pages
        self.window_memory = np.full((window_pages, page_len), NOTHING)  # hashes of the text up to there
        self.window_tables: dict[int, Sequence[int | None]] = {}
        self.model = 0
        self.tables: dict[int, tuple[int, ...]] = {}
        self.steps: list[list[Row]] = []
        self.scores = FakeScores(self, [])
        self.ahead = ahead
        self.order: list[str] = []  # of steps, steps ahead and reads of their tokens
        self.choose: Callable[[int], int] = lambda value: value % vocab
        self.before_step: Callable[[Sequence[Row]], None] = lambda rows: None
        self.paying_rows: Callable[[int], int] = lambda waiting: waiting

    def set_table(self, slot: int, pages: Sequence[int], window: Sequence[int | None] | None = None) -> None:
        assert 0 <= slot < self.slots
        assert len(set(pages)) == len(pages)
        self.tables[slot] = tuple(pages)
        assert (window is None) == (self.window is None)
        self.window_tables[slot] = window or ()

    def prepare(self, progress: Progress | None = None) -> None:
        self.order.append("prepare")

    def step(self, rows: Sequence[Row]) -> FakeScores:
        assert 1 <= len(rows) <= self.rows
        assert len({(row.slot, row.position) for row in rows}) == len(rows)
        self.before_step(rows)
        self.steps.append(list(rows))
        self.order.append("step")
        written = set()
        for row in rows:
            assert 0 <= row.token < self.vocab
            assert 0 <= row.position < self.context
            place = self.tables[row.slot][row.position // self.page_len], row.position % self.page_len
            assert place not in written
            written.add(place)
            self.memory[place] = row.token
        for row in rows if self.window is not None else ():
            self._keep_window(row)
        self.scores = FakeScores(self, [self._hash(row) for row in rows if row.scored])
        return self.scores

    def step_ahead(self) -> FakeScores | None:
        """A token that is none goes on as token 0."""
        if not self.ahead:
            return None
        rows = self.steps[-1]
        assert all(row.scored for row in rows)
        tokens = [token if token < self.vocab else 0 for token in self.scores.tokens]
        scores = self.step([Row(row.slot, token, row.position + 1, True) for row, token in zip(rows, tokens, strict=True)])
        self.order[-1] = "ahead"
        return scores

    def _keep_window(self, row: Row) -> None:
        """What layers with a window see before the row must be what was computed from its own text."""
        assert self.window is not None
        text, table = self._text(row), self.window_tables[row.slot]
        for position in range(max(0, row.position + 1 - self.window), row.position + 1):
            page = table[position // self.page_len]
            assert page is not None
            place, hashed = (page, position % self.page_len), crc32(text[: position + 1].tobytes())
            if position == row.position:
                self.window_memory[place] = hashed
            assert self.window_memory[place] == hashed

    def _text(self, row: Row) -> NDArray[np.int64]:
        return self.memory[list(self.tables[row.slot])].reshape(-1)[: row.position + 1]

    def _hash(self, row: Row) -> int:
        seen = self._text(row)
        assert NOTHING not in seen
        assert seen[-1] == row.token
        return crc32(seen.tobytes())

    def alone(self, prompt: Sequence[int]) -> Iterator[int]:
        """The tokens that follow greedily, with no pages at all."""
        text = np.array(prompt)
        while True:
            token = self.choose(crc32(text.tobytes()))
            yield token
            text = np.append(text, token)


class Letters:
    """A tokenizer whose tokens are characters: the alphabet, then others. Token 31 ends an answer."""

    eos_ids = frozenset([31])
    has_text = True
    start = 0

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        return [ord(character) - ord("a") for character in text]

    def stream(self) -> Letters:
        return self

    def push(self, index: int) -> str:
        return chr(ord("a") + index)

    def hidden(self, index: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


def alone(engine: FakeEngine, prompt: Sequence[int], count: int) -> list[int]:
    return list(islice(engine.alone(prompt), count))


def fresh(engine: FakeEngine, **options: object) -> Scheduler:
    return Scheduler(engine, Letters(), **options)  # type: ignore[arg-type]


def greedy(scheduler: Scheduler, prompt: Sequence[int], count: int = 8, **options: object) -> Request:
    """Nothing ends it early."""
    return scheduler.submit(prompt, max_tokens=count, stop_tokens=(), **options)  # type: ignore[arg-type]


def rows_of_steps(engine: FakeEngine) -> list[int]:
    return [len(rows) for rows in engine.steps]
