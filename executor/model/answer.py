"""An answer while it is made and after: its tokens, text and times."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Literal, Self

from executor.model.logprobs import TokenLogprob
from executor.model.scheduling.token_sequence import AnswerPiece


@dataclass
class Generation:
    """What a call of `generate` or `stream` made, and how long it took.

    tokens: without the one that ended the text, with those of a stop string; text: up to the stop string, empty where the file
    has no vocabulary; stopped: eos (a token that ends it), stop (a stop string), grammar (which allows nothing more), length
    (max_tokens) or context (which is full); logprobs: of its tokens, if they were asked for."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    stopped: Literal["eos", "stop", "grammar", "length", "context"] = "length"
    prompt_tokens: int = 0
    prompt_seconds: float = 0.0  # until the first token was there
    decode_seconds: float = 0.0  # for the tokens after the first
    cached_prompt_tokens: int = 0  # of the prompt, not computed: the sequence before began with them, too
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed after the first token; 0 if there was no second one."""
        return (len(self.tokens) - 1) / self.decode_seconds if len(self.tokens) > 1 else 0.0


class AnswerStream:
    """The pieces of an answer as they come, by `for` or by `async for`, which lets the event loop go round after each. The
    model is busy from the first piece until the last one, or until the stream is closed (`close`, the end of a `with`, or
    nobody holding it any more). `generation` is what there is so far."""

    def __init__(self, generation: Generation, pieces: Generator[AnswerPiece, None, None]) -> None:
        self.generation = generation
        self._pieces = pieces

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> AnswerPiece:
        return next(self._pieces)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnswerPiece:
        piece = next(self._pieces, None)
        await asyncio.sleep(0)
        if piece is None:
            raise StopAsyncIteration
        return piece

    def close(self) -> None:
        """End the answer where it is. A second time does nothing."""
        self._pieces.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
