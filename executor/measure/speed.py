"""What a benchmark of a model times, and what came out: prompts, one sequence at a depth, several sequences. Times nothing:
executor/model/engine_speed.py does, and llama_cpp.py lets another program do it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from executor.base.arguments import one_of, whole

Kind = Literal["prompt", "depth", "batch"]


@dataclass(frozen=True)
class SpeedCase:
    """`prompt`: so many tokens at once, from position 0 on, until the answer's first token is on the host. `depth`: a sequence
    whose cache holds `depth` positions goes on for so many tokens, each read back while the next step may run already.
    `batch`: several sequences do that together. Raises ArgumentError for what no such case can be."""

    kind: Kind
    tokens: int
    depth: int = 0
    sequences: int = 1

    def __post_init__(self) -> None:
        one_of("the kind of a case", self.kind, get_args(Kind))
        whole(f"{self.kind}: tokens", self.tokens, 1)
        whole(f"{self.kind}: depth", self.depth, 0, 0 if self.kind == "prompt" else None)
        whole(f"{self.kind}: sequences", self.sequences, 1, None if self.kind == "batch" else 1)

    @property
    def positions(self) -> int:
        """That each sequence has at the end."""
        return self.depth + self.tokens

    @property
    def read_positions(self) -> float:
        """Positions of the cache that a step reads, of all sequences: the mean of its steps."""
        return self.sequences * (self.depth + (self.tokens + 1) / 2)


def speed_cases(
    prompts: Sequence[int], tokens: int, depths: Sequence[int], batches: Sequence[int], batch_depth: int
) -> tuple[SpeedCase, ...]:
    """Prompts; `tokens` more at each depth; and in batches, each sequence after `batch_depth` positions. What is named twice is
    one."""
    return (
        *(SpeedCase("prompt", prompt) for prompt in dict.fromkeys(prompts)),
        *(SpeedCase("depth", tokens, depth) for depth in dict.fromkeys(depths)),
        *(SpeedCase("batch", tokens, batch_depth, sequences) for sequences in dict.fromkeys(batches)),
    )


def room_for(cases: Sequence[SpeedCase]) -> tuple[int, ...]:
    """By slot, how many positions its sequence needs: slot s is in every case with more than s sequences."""
    slots = max(case.sequences for case in cases)
    return tuple(max(case.positions for case in cases if case.sequences > slot) for slot in range(slots))


@dataclass(frozen=True)
class Speed:
    """Tokens a second of all sequences together, of each round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.rounds)

    def facts(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"median": self.median, "least": min(self.rounds), "most": max(self.rounds), "rounds": len(self.rounds)}


@dataclass(frozen=True)
class Measured:
    """A case and its speed; peer: the same of the program that it is compared with. step_bytes: what a decode step must read,
    weights and cache; limit: bytes a second that the device reads, None where it is not known."""

    case: SpeedCase
    speed: Speed
    peer: Speed | None = None
    step_bytes: float | None = None
    limit: float | None = None

    @property
    def share(self) -> float | None:
        """Of the speed at which a step would only wait for memory."""
        if self.step_bytes is None or self.limit is None:
            return None
        return self.speed.median / self.case.sequences * self.step_bytes / self.limit

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the peer."""
        return None if self.peer is None else self.speed.median / self.peer.median

    def facts(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "kind": self.case.kind,
            "tokens": self.case.tokens,
            "depth": self.case.depth,
            "sequences": self.case.sequences,
            "tokens_per_second": self.speed.facts(),
            "bytes_a_step": self.step_bytes,
            "share_of_read_limit": self.share,
            "llama_cpp_tokens_per_second": None if self.peer is None else self.peer.facts(),
            "ratio": self.ratio,
        }
