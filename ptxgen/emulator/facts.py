"""What a launch must know of a compiled kernel. It is kept beside the code on disk."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from ptxgen.emulator.program import ParsedParameter
from ptxgen.types import BY_NAME


@dataclass(frozen=True)
class Facts:
    """Bytes of a warp's state, static shared bytes, local bytes a thread; whether blocks must run one after the other; what
    .maxntid and .reqntid allow. Of a sanitised kernel also what its checks go by: log2 of the granules of shared and of global
    memory (runtime/shadow.py); the names of what it may write, None for anything (targets.py); whether it has fences, acquires
    or releases (ordering.py). `has_data`: its module has variables. `prints`: it calls vprintf. `bulk_offset`: where in
    a warp's state its bulk copies are (runtime/bulk_copies.py), or 0."""

    state_bytes: int
    shared_bytes: int
    local_bytes: int
    serial: bool
    parameters: tuple[ParsedParameter, ...]
    most_threads: int | None
    block: tuple[int, int, int] | None
    has_data: bool
    sanitize: bool
    shared_shift: int = 0
    global_shift: int = 0
    targets: tuple[str, ...] | None = None
    synchronises: bool = False
    prints: bool = False
    bulk_offset: int = 0

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        parameters = [{**asdict(replace(p, register=None)), "type": p.type.name} for p in self.parameters]
        return json.loads(json.dumps({**vars(self), "parameters": parameters}))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Facts:
        """The inverse of `to_json`."""
        parameters = tuple(ParsedParameter(**{**p, "type": BY_NAME[p["type"]]}) for p in data["parameters"])
        lists = {name: None if data[name] is None else tuple(data[name]) for name in ("block", "targets")}
        return cls(**{**data, **lists, "parameters": parameters})
