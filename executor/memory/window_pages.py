"""Pages of the layers that see a window of positions: of a sequence those alone that its next token sees. They hang on the
pages of page_pool.py, by which they are found; numbers only, on the host."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from executor.base.arguments import whole
from executor.base.errors import OutOfPages


class Found(Protocol):
    """What a lookup finds for a part of a text. window: the page of this room that holds it, None if that is gone."""

    window: int | None


class WindowPages:
    """Pages 0 to `pages` - 1 of `page_len` positions each, for layers in which a position sees `window` positions at most, its
    own included.

    A page is free, held by sequences, or idle. Of those that are idle the ones that a sequence has left behind its window go
    first, the newest of them before the older ones: what comes soon after the start of a text is most likely shared. Then go
    those that were idle longest."""

    def __init__(self, window: int, pages: int, page_len: int) -> None:
        self.window = whole("window", window, 1)
        self.pages = whole("window_pages", pages, 1)
        self.page_len = page_len
        self._holders = [0] * self.pages
        self._free = list(range(self.pages))[::-1]
        self._idle: OrderedDict[int, None] = OrderedDict()  # the first to go first
        self._known: dict[int, Found] = {}

    @property
    def held(self) -> int:
        """How many pages sequences hold; one that several share counts once."""
        return self.pages - len(self._free) - len(self._idle)

    def first(self, computed: int) -> int:
        """The first page of a sequence, by its place there, that the token after `computed` ones sees."""
        return max(0, computed + 1 - self.window) // self.page_len

    def take(self) -> int:
        """A page for one sequence. OutOfPages if all are held."""
        if not self._free:
            if not self._idle:
                raise OutOfPages(f"all {self.pages} pages of layers with a window are held", 1, 0)
            page, _ = self._idle.popitem(last=False)
            self._known.pop(page).window = None
            self._free.append(page)
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        """One more sequence has the page."""
        self._idle.pop(page, None)
        self._holders[page] += 1

    def drop(self, page: int, *, behind: bool = False) -> None:
        """One sequence less has it; behind: because it lies before the sequence's window."""
        self._holders[page] -= 1
        if self._holders[page]:
            return
        if page not in self._known:
            self._free.append(page)
            return
        self._idle[page] = None
        if behind:
            self._idle.move_to_end(page, last=False)

    def publish(self, page: int, found: Found) -> int:
        """Have a page that a sequence has computed found; the page that it has from now on: where there was one, that."""
        if found.window is None:
            found.window, self._known[page] = page, found
        elif found.window != page:
            self.hold(found.window)
            self.drop(page)
        return found.window

    def lose(self, found: Found) -> None:
        """It is found no more."""
        if found.window is not None:
            del self._known[found.window]
            if not self._holders[found.window]:
                del self._idle[found.window]
                self._free.append(found.window)
            found.window = None

    def forget(self) -> None:
        """No page is found any more. Held ones stay held."""
        for found in list(self._known.values()):
            self.lose(found)
