"""Which beginnings of texts this worker has keys and values of, as events for Dynamo's router."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import Protocol

_log = logging.getLogger(__name__)


class Publisher(Protocol):
    """What is used of dynamo.llm.KvEventPublisher. It may be called on any thread, and does not wait."""

    def publish_stored(
        self, token_ids: list[int], num_block_tokens: list[int], block_hashes: list[int], parent_hash: int | None = None
    ) -> None:
        """Blocks of tokens behind the block that `parent_hash` names."""

    def publish_removed(self, block_hashes: list[int]) -> None:
        """Blocks that are gone."""


class PrefixEvents:
    """Observes a PagePool. A page's block has a number that no other has had, since pages are used again.

    The router only guesses by what it is told, so an event that cannot be sent is logged and harms no answer."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._numbers = itertools.count(1)
        self._blocks: dict[int, int] = {}

    def known(self, page: int, before: int | None, tokens: Sequence[int]) -> None:
        """Its block is stored."""
        block = self._blocks[page] = next(self._numbers)
        parent = None if before is None else self._blocks.get(before)
        try:
            self._publisher.publish_stored(list(tokens), [len(tokens)], [block], parent)
        except Exception:
            _log.exception("a prefix cannot be announced")

    def unknown(self, page: int) -> None:
        """Its block is removed, if it was stored while this looked on."""
        block = self._blocks.pop(page, None)
        self._remove([] if block is None else [block])

    def all_unknown(self) -> None:
        """All blocks are removed."""
        self._remove(list(self._blocks.values()))
        self._blocks.clear()

    def _remove(self, blocks: list[int]) -> None:
        if not blocks:
            return
        try:
            self._publisher.publish_removed(blocks)
        except Exception:
            _log.exception("prefixes cannot be taken back")
