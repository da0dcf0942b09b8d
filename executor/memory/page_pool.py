"""Which page of a paged KV cache belongs to whom: numbers only, on the host. The memory of the pages lives elsewhere.

A page is free, held by one or more sequences, or idle: held by no sequence, but still known by the tokens that its keys and
values were computed from, until a sequence needs it. Only full pages are known and shared, so no shared page is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from executor.base.arguments import whole
from executor.base.errors import OutOfPages
from executor.memory.window_pages import WindowPages
from ptxgen.errors import ArgumentError


class PageObserver(Protocol):
    """Is called when the pages that a lookup finds change: on the pool's thread, between two changes."""

    def known(self, page: int, before: int | None, tokens: Sequence[int], /) -> None:
        """A page is found from now on, after the page `before` (None: at the start of a text), by its own tokens."""

    def unknown(self, page: int, /) -> None:
        """A page is found no more. Those after it were lost before."""

    def all_unknown(self) -> None:
        """No page is found any more."""


class PagePool:
    """Pages 0 to `pages` - 1 of `page_len` positions each. Sequences hold theirs by a PageTable.

    Known pages form a tree: a page is found under the page before it by its own tokens, compared one by one, so equal tokens
    in front of them all are certain. A sequence that holds a known page holds all before it, so a page that is not held has
    nothing after it that is held, and becomes idle after it: the page that was idle longest is always the end of its text.
    """

    def __init__(self, pages: int, page_len: int, *, window: int | None = None, window_pages: int = 0) -> None:
        """window: what layers see that have `window_pages` pages of their own; None: there are no such layers."""
        self.pages = whole("pages", pages, 1)
        self.page_len = whole("page_len", page_len, 1)
        self.window = None if window is None else WindowPages(window, window_pages, self.page_len)
        self._holders = [0] * self.pages
        self._free = list(range(self.pages))[::-1]
        self._idle: dict[int, None] = {}  # the longest idle first
        self._known: dict[int, _Known] = {}
        self._root = _Known(-1, None, ())
        self.observer: PageObserver | None = None

    @property
    def free(self) -> int:
        """How many pages hold nothing of use."""
        return len(self._free)

    @property
    def idle(self) -> int:
        """How many pages no sequence holds and a lookup still finds."""
        return len(self._idle)

    @property
    def available(self) -> int:
        """How many pages can be taken: free and idle ones."""
        return self.free + self.idle

    @property
    def held(self) -> int:
        """How many pages sequences hold; one that several share counts once."""
        return self.pages - self.available

    def pages_for(self, positions: int) -> int:
        """How many pages have room for so many positions."""
        return -(-positions // self.page_len)

    def forget(self) -> None:
        """No page is found any more, because what they hold has become wrong (other weights). Held ones stay held."""
        self._root = _Known(-1, None, ())
        self._known.clear()
        self._free += self._idle
        self._idle.clear()
        if self.window is not None:
            self.window.forget()
        if self.observer is not None:
            self.observer.all_unknown()

    def _take(self) -> int:
        if not self._free:
            page = next(iter(self._idle))
            del self._idle[page]
            lost = self._known.pop(page)
            lost.leave()
            if self.window is not None:
                self.window.lose(lost)
            self._free.append(page)
            if self.observer is not None:
                self.observer.unknown(page)
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def _hold(self, page: int) -> None:
        self._idle.pop(page, None)
        self._holders[page] += 1

    def _drop(self, page: int) -> None:
        self._holders[page] -= 1
        if self._holders[page]:
            return
        if page in self._known:
            self._idle[page] = None
        else:
            self._free.append(page)


class PageTable:
    """The pages of one sequence, in the order of its positions; at first none. `version` rises whenever they change. Its owner
    calls `release` in the end: a table that is only dropped keeps its pages.

    Where layers with a window have pages of their own, the owner calls `reserve_window` before positions are computed, and
    `leave` after that. Pages are adopted only as far as the window before the next position is found, too."""

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.version = 0
        self._pages: list[int] = []
        self._window: dict[int, int] = {}  # of layers with one, by place
        self._path: list[_Known] = [pool._root]  # of the leading pages that are known; the root is in front of them

    @property
    def pages(self) -> tuple[int, ...]:
        """Their numbers."""
        return tuple(self._pages)

    @property
    def window_pages(self) -> tuple[int | None, ...] | None:
        """Those of layers with a window, in the same order; None where the sequence has none. None where layers have no pages
        of their own."""
        return None if self.pool.window is None else tuple(map(self._window.get, range(len(self._pages))))

    @property
    def room(self) -> int:
        """How many positions they have room for."""
        return len(self._pages) * self.pool.page_len

    @property
    def known(self) -> int:
        """How many leading positions stand in pages that a lookup finds, so that others may share."""
        return (len(self._path) - 1) * self.pool.page_len

    def missing(self, positions: int) -> int:
        """How many pages must be taken before there is room for so many positions."""
        return max(0, self.pool.pages_for(positions) - len(self._pages))

    def reserve(self, positions: int) -> None:
        """Take the pages missing for so many positions. OutOfPages if there are too few; then none is taken."""
        missing, pool = self.missing(positions), self.pool
        if missing > pool.available:
            raise OutOfPages(
                f"{positions} positions need {missing} more pages of {pool.page_len}; {pool.available} of {pool.pages} are "
                f"available, {pool.held} are held",
                missing,
                pool.available,
            )
        if missing:
            self._pages += [pool._take() for _ in range(missing)]
            self.version += 1

    def reserve_window(self, computed: int, positions: int) -> None:
        """Have pages of layers with a window for the positions from `computed` to `positions`. OutOfPages for too few."""
        window, length = self.pool.window, self.pool.page_len
        if window is None:
            return
        for place in range(computed // length, -(-positions // length)):
            if place not in self._window:
                self._window[place] = window.take()
                self.version += 1

    def leave(self, computed: int) -> None:
        """Give back the pages of layers with a window that no token after the `computed` first ones sees."""
        window = self.pool.window
        if window is not None:
            first = window.first(computed)
            self._drop_window([place for place in self._window if place < first], behind=True)

    def adopt(self, tokens: Sequence[int], end: int) -> int:
        """Put known pages of the sequence `tokens` in place of those after the known ones, as far as they are full before
        position `end`. Returns how many leading positions need not be computed: all of `known`."""
        before, found = len(self._path) - 1, self._found(tokens, end)
        for one in found:
            self._put(one)
        window = self.pool.window
        if window is not None and found:
            first = window.first(self.known)
            self._drop_window([place for place in self._window if place >= before])
            for place in range(max(first, before), len(self._path) - 1):
                page = self._path[place + 1].window
                assert page is not None
                window.hold(page)
                self._window[place] = page
            self.leave(self.known)
        return self.known

    def _found(self, tokens: Sequence[int], end: int) -> list[_Known]:
        """The known pages that come next, full before `end`: as many as the next token can follow."""
        length, window = self.pool.page_len, self.pool.window
        found: list[_Known] = []
        node, at, usable, since = self._path[-1], self.known, 0, 0
        while self._is_current() and at + length <= end:
            following = node.next.get(tuple(tokens[at : at + length]))
            if following is None:
                break
            node, at = following, at + length
            found.append(node)
            if window is None or node.window is None:
                since = at // length  # the first place from which on all windows' pages are there
            if window is None or since <= window.first(at):
                usable = len(found)
        return found[:usable]

    def publish(self, tokens: Sequence[int], computed: int) -> None:
        """Let others find the pages whose positions all are among the `computed` first ones of the sequence `tokens`. Where an
        equal page is known already it takes the place of ours, which goes back."""
        length = self.pool.page_len
        while self._is_current() and self.known + length <= computed:
            part = self._tokens(tokens)
            found = self._path[-1].next.get(part)
            if found is None:
                before = self._path[-1]
                found = _Known(self._pages[len(self._path) - 1], before, part)
                before.next[part] = self.pool._known[found.page] = found
                self._path.append(found)
                if self.pool.observer is not None:
                    self.pool.observer.known(found.page, None if before.before is None else before.page, part)
            else:
                self._put(found)
            place = len(self._path) - 2
            if self.pool.window is not None and place in self._window:
                self._window[place] = self.pool.window.publish(self._window[place], found)
                self.version += 1

    def truncate(self, positions: int) -> None:
        """Give back the pages that only later positions need. ArgumentError below `known`: a page that others may read would be
        written again."""
        if positions < self.known:
            raise ArgumentError(f"{self.known} positions are shared, so no {positions} can be kept; release them all instead")
        self._give_back(self.pool.pages_for(positions))

    def release(self) -> None:
        """Give all pages back; what was published is found until somebody needs the room. A second time does nothing."""
        self._give_back(0)
        self._path = [self.pool._root]

    def next_page(self, tokens: Sequence[int]) -> object:
        """What says which page comes after the known ones: equal for sequences whose tokens are equal up to its end."""
        return id(self._path[-1]), self._tokens(tokens)

    def _is_current(self) -> bool:
        return self._path[0] is self.pool._root

    def _tokens(self, tokens: Sequence[int]) -> tuple[int, ...]:
        return tuple(tokens[self.known : self.known + self.pool.page_len])

    def _put(self, found: _Known) -> None:
        """Hold a known page at the end of the path, in place of the page that was there."""
        place = len(self._path) - 1
        self.pool._hold(found.page)
        if place < len(self._pages):
            self.pool._drop(self._pages[place])
        self._pages[place : place + 1] = [found.page]
        self._path.append(found)
        self.version += 1

    def _give_back(self, kept: int) -> None:
        if len(self._pages) > kept:
            for page in reversed(self._pages[kept:]):  # the last first, as PagePool says
                self.pool._drop(page)
            del self._pages[kept:]
            self.version += 1
        self._drop_window([place for place in self._window if place >= kept])

    def _drop_window(self, places: Sequence[int], *, behind: bool = False) -> None:
        """Give back those of layers with a window at these places, the last first; what is behind the window the first first,
        as WindowPages says."""
        for place in sorted(places, reverse=not behind):
            assert self.pool.window is not None
            self.pool.window.drop(self._window.pop(place), behind=behind)
            self.version += 1


class _Known:
    """A page that a lookup finds: its tokens, the page before it, and the pages after it by their tokens. window: the page that
    holds the same for layers with a window, None where that is gone."""

    __slots__ = ("before", "next", "page", "tokens", "window")

    def __init__(self, page: int, before: _Known | None, tokens: tuple[int, ...]) -> None:
        self.page = page
        self.before = before
        self.tokens = tokens
        self.next: dict[tuple[int, ...], _Known] = {}
        self.window: int | None = None

    def leave(self) -> None:
        assert self.before is not None
        assert not self.next
        del self.before.next[self.tokens]
