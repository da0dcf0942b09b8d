"""A step that was started before the token before it was read: what it ran on, and what it found."""

from __future__ import annotations

from dataclasses import dataclass

from executor.device.protocol import Fetch
from executor.model.token_plans import TokenPlans


@dataclass
class StepAhead:
    """A step that was started for the likeliest token before anybody had read that. position: of the token; coming: its number,
    u32[1]; token: the same, once it was read; plans: what was launched; likeliest: as TokenDecoder._likeliest, of the token
    that this step found, if it was launched wholly; memory: as TokenDecoder._memory, then; otherwise: whether the token was
    chosen otherwise than by argmax."""

    position: int
    coming: Fetch
    plans: TokenPlans
    otherwise: bool
    likeliest: tuple[int, object, int, bool] | None = None
    memory: object = None
    token: int | None = None

    def read(self) -> int:
        """The token, as soon as it has come."""
        if self.token is None:
            self.token = int(self.coming.to_numpy()[0])
        return self.token
