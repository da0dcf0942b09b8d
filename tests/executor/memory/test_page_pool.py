"""Pages: who holds them, who finds them again, and that none is lost, shown with a memory that says what was written where."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from executor.base.errors import OutOfPages
from executor.memory.page_pool import PagePool, PageTable
from ptxgen.errors import ArgumentError

TEXT = list(range(100, 120))


def computed(pool: PagePool, tokens: list[int]) -> PageTable:
    """The table of a sequence that ran whole, after others."""
    table = PageTable(pool)
    table.adopt(tokens, len(tokens))
    table.reserve(len(tokens))
    table.publish(tokens, len(tokens))
    return table


def found(pool: PagePool, tokens: list[int]) -> int:
    """How many leading positions a new sequence would share."""
    table = PageTable(pool)
    known = table.adopt(tokens, len(tokens))
    table.release()
    return known


def test_a_page_is_found_by_all_tokens_up_to_its_end_and_by_no_others() -> None:
    pool = PagePool(8, 4)
    first = computed(pool, TEXT[:10])
    assert first.known == 8
    for tokens, expected in [
        (TEXT[:10], 8),
        (TEXT[:8], 8),
        (TEXT[:7], 4),
        (TEXT[4:8], 0),  # the tokens of the second page, without those in front of it
        ([*TEXT[:4], 0, *TEXT[5:8]], 4),
        ([0, *TEXT[1:8]], 0),
    ]:
        second = PageTable(pool)
        assert second.adopt(tokens, len(tokens)) == expected
        assert second.pages == first.pages[: expected // 4]
        second.release()
    assert pool.held == 3


def test_numbers_with_equal_hashes_are_not_taken_for_equal() -> None:
    assert hash((-1,)) == hash((-2,))
    pool = PagePool(2, 1)
    computed(pool, [-1])
    assert found(pool, [-2]) == 0


def test_pages_that_nobody_holds_are_found_until_they_are_needed_the_ends_of_old_texts_first() -> None:
    pool = PagePool(4, 4)
    old, new = TEXT[:8], TEXT[8:16]
    computed(pool, old).release()
    computed(pool, new).release()
    assert (pool.free, pool.idle, pool.held) == (0, 4, 0)
    other = PageTable(pool)
    other.reserve(4)
    assert [found(pool, old), found(pool, new)] == [4, 8]
    other.reserve(12)
    assert [found(pool, old), found(pool, new)] == [0, 4]


def test_a_page_that_is_used_again_is_kept_longer() -> None:
    pool = PagePool(2, 4)
    computed(pool, TEXT[:4]).release()
    computed(pool, TEXT[4:8]).release()
    computed(pool, TEXT[:4]).release()
    PageTable(pool).reserve(4)
    assert found(pool, TEXT[:4]) == 4


def test_too_few_pages_are_an_error_with_the_numbers_and_nothing_is_taken() -> None:
    pool = PagePool(4, 16)
    PageTable(pool).reserve(20)
    table = PageTable(pool)
    with pytest.raises(OutOfPages, match="33 positions need 3 more pages of 16; 2 of 4 are available, 2 are held") as caught:
        table.reserve(33)
    assert (caught.value.requested, caught.value.available) == (3, 2)
    assert (pool.available, table.pages, table.version) == (2, (), 0)


def test_two_that_computed_the_same_page_hold_one_in_the_end() -> None:
    pool = PagePool(4, 4)
    tables = [PageTable(pool), PageTable(pool)]
    for table in tables:
        table.reserve(6)
    versions = [table.version for table in tables]
    for table in tables:
        table.publish(TEXT[:6], 6)
    assert tables[0].pages[0] == tables[1].pages[0]
    assert tables[0].pages[1] != tables[1].pages[1]
    assert pool.held == 3
    assert [table.version for table in tables] == [versions[0], versions[1] + 1]


def test_a_sequence_in_the_middle_of_a_page_takes_it_over_from_one_that_has_it_whole() -> None:
    pool = PagePool(6, 4)
    late = PageTable(pool)
    late.reserve(8)
    assert late.adopt(TEXT, 7) == 0
    early = computed(pool, TEXT[:8])
    assert late.adopt(TEXT, 7) == 4  # position 7 is to be computed, so its page stays ours
    assert late.pages[0] == early.pages[0]
    assert late.pages[1] != early.pages[1]


def test_later_positions_can_be_given_back_but_not_those_that_others_may_read() -> None:
    pool = PagePool(4, 4)
    table = computed(pool, TEXT[:10])
    table.reserve(16)
    table.truncate(9)
    assert len(table.pages) == 3
    table.truncate(8)
    assert len(table.pages) == 2
    with pytest.raises(ArgumentError, match="8 positions are shared, so no 7 can be kept"):
        table.truncate(7)
    table.release()
    table.release()
    assert pool.held == 0


def test_what_was_forgotten_is_not_found_and_nobody_loses_a_page() -> None:
    pool = PagePool(6, 4)
    held = computed(pool, TEXT[:8])
    held.reserve(12)
    computed(pool, TEXT[8:16]).release()
    pool.forget()
    assert (pool.free, pool.idle, pool.held) == (3, 0, 3)
    held.publish(TEXT, 12)  # what it holds began before
    assert [found(pool, text) for text in (TEXT, TEXT[8:])] == [0, 0]
    held.release()
    assert pool.free == 6
    held.reserve(4)
    held.publish(TEXT, 4)
    assert found(pool, TEXT[:4]) == 4


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (True, 4), (4, 2.0)])
def test_sizes_that_cannot_be_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ArgumentError, match="allowed: a whole number of at least 1"):
        PagePool(*sizes)


def test_many_sequences_at_once_read_what_was_computed_from_their_own_tokens() -> None:
    """Every page remembers the text that its writer had up to its end; a reader must have the same."""
    random_ = random.Random(7)
    pool, length = PagePool(40, 3), 3
    memory: dict[int, tuple[int, ...]] = {}
    running: list[tuple[PageTable, list[int], int]] = []
    adopted = 0
    for _ in range(3000):
        if running and (random_.random() < 0.3 or len(running) == 12):
            running.pop(random_.randrange(len(running)))[0].release()
        if running and random_.random() < 0.5:
            place = random_.randrange(len(running))
            table, tokens, done = running[place]
            most = random_.randint(done, len(tokens))
        else:
            table, tokens, done = PageTable(pool), random_.choices(range(2), k=random_.randint(1, 30)), 0
            most, place = random_.randint(0, len(tokens)), len(running)
            running.append((table, tokens, 0))
        known = table.adopt(tokens, len(tokens))
        adopted += max(0, known - done)
        done = max(done, known)
        if table.missing(most) <= pool.available:
            table.reserve(most)
            for page in table.pages[done // length : pool.pages_for(most)]:
                memory[page] = tuple(tokens[: (table.pages.index(page) + 1) * length][:most])
            done = max(done, most)
            table.publish(tokens, done)
        running[place] = (table, tokens, done)
        for at, page in enumerate(table.pages[: done // length]):
            assert memory[page] == tuple(tokens[: (at + 1) * length])
        holders = {page for table, _, _ in running for page in table.pages}
        assert (pool.held, pool.free + pool.idle) == (len(holders), 40 - len(holders))
    assert adopted > 1000
    for table, _, _ in running:
        table.release()
    assert pool.held == 0


def test_a_beginning_is_found_as_far_as_the_window_before_its_end() -> None:
    pool, text = PagePool(8, 4, window=4, window_pages=4), list(range(16))
    table, others = PageTable(pool), PageTable(pool)
    assert pool.window is not None
    table.reserve(16)
    table.reserve_window(0, 16)
    table.publish(text, 16)
    table.leave(16)
    assert (table.window_pages, pool.window.held) == ((None, None, None, 3), 1)
    table.release()
    assert found(pool, text) == 16
    others.reserve(8)
    others.reserve_window(0, 8)  # takes what came last of what was left behind
    assert [found(pool, text[:length]) for length in (16, 12, 8, 4)] == [16, 4, 4, 4]
    others.release()
    table.adopt(text, 16)
    assert table.window_pages == (None, None, None, 3)
    pool.forget()
    table.release()
    assert (pool.window.held, found(pool, text)) == (0, 0)


class Seen:
    """Keeps what a lookup would find, by what it was told alone: the texts up to the end of each page."""

    def __init__(self) -> None:
        self.texts: dict[int, tuple[int, ...]] = {}

    def known(self, page: int, before: int | None, tokens: Sequence[int]) -> None:
        assert page not in self.texts
        self.texts[page] = (() if before is None else self.texts[before]) + tuple(tokens)

    def unknown(self, page: int) -> None:
        del self.texts[page]

    def all_unknown(self) -> None:
        self.texts.clear()


def test_an_observer_is_told_of_each_page_that_is_found_and_of_each_that_is_lost() -> None:
    pool, rng = PagePool(12, 2), random.Random(5)
    seen = pool.observer = Seen()
    tables: list[PageTable] = []
    for turn in range(300):
        if tables and (rng.random() < 0.5 or pool.available < 4):
            tables.pop(rng.randrange(len(tables))).release()
        else:
            tables.append(computed(pool, [rng.randrange(2) for _ in range(rng.randint(1, 8))]))
        if turn % 90 == 89:
            pool.forget()
        for text in seen.texts.values():
            assert found(pool, list(text)) == len(text)
        assert len(seen.texts) == len(pool._known)
    assert seen.texts
