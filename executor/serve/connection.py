"""A connection, which has a time for the head of each request: else those who never send one would keep theirs for ever."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """read_seconds: from the first byte of a head to its last, and from the connection to the first request."""

    def __init__(self, read_seconds: float, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._read_seconds = read_seconds
        self._impatient: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Go on waiting, or stop if a request is there."""
        super().data_received(data)
        if self._answers or self.timeout_keep_alive_task is not None:
            self._stop_waiting()
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing comes any more."""
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def _answers(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        if self._impatient is None:
            self._impatient = self.loop.call_later(self._read_seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._impatient is not None:
            self._impatient.cancel()
            self._impatient = None

    def _give_up(self) -> None:
        self._impatient = None
        if not self._answers and not self.transport.is_closing():
            self.transport.close()
