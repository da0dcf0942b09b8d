"""The table of rules: ways to compute a step that a profile turns on or off by name. Environment variables, help, docs and
GpuProfile derive from its rows. A rule's thresholds are in executor/choice."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Final

from executor.base.environment_values import on
from executor.base.environment_variable import EnvironmentVariable
from ptxgen.errors import ArgumentError
from ptxgen.target import DEFAULT, DEPENDENT_SM, PIPELINE_SHARED, Target


class Usually(Enum):
    """Whether a rule is on where neither the environment nor the caller says; the value is the text for people."""

    ON = "1"
    OFF = "0"
    ABLE = "1 on a GPU that has what it needs, else 0"


@dataclass(frozen=True)
class Rule:
    """A row. sm, shared: the oldest target and the bytes of shared memory of a block that it needs; on a target without these
    it is an error. only_with: rules without which it does nothing. same_bits: it changes no bit of a result."""

    name: str
    does: str
    usually: Usually
    sm: int = DEFAULT.sm
    shared: int = 0
    only_with: tuple[str, ...] = ()
    same_bits: bool = True

    @property
    def needs(self) -> str:
        """What a target must have; empty where each has it."""
        sm = f"sm_{self.sm}" if self.sm > DEFAULT.sm else ""
        return f"{sm} and {self.shared} bytes of shared memory a block" if self.shared else sm

    @cached_property
    def variable(self) -> EnvironmentVariable[bool | None]:
        """The environment variable that turns it on or off; None where it is not set."""
        does = f"{self.does} (needs {self.needs})" if self.needs else self.does
        name = f"PTXGEN_{self.name.upper()}"
        return EnvironmentVariable(name, does, "1 or 0", self.usually.value, lambda: None, False, on)

    def lacks(self, target: Target) -> str:
        """What it needs and the target has not, as a sentence without an end; empty where it has all."""
        if target.sm >= self.sm and target.max_shared >= self.shared:
            return ""
        return f"{self.name} needs {self.needs}, this is {target}" + (f" with {target.max_shared}" if self.shared else "")

    def usually_lacks(self, target: Target) -> str:
        """`lacks` of a rule that is on where nothing says; empty for others."""
        return self.lacks(target) if self.usually is Usually.ABLE else ""

    def require_on(self, target: Target) -> None:
        """ArgumentError if the target lacks what it needs."""
        if lacks := self.lacks(target):
            raise ArgumentError(f"the profile's {lacks}; leave it off{self.variable.note()}")

    def usually_on(self, target: Target, *, emulated: bool) -> bool:
        """Whether it is on where nothing says. emulated: on the emulator, where a launch costs nothing; its steps are those of
        bundles, an operation a launch."""
        return self.usually is Usually.ON or (self.usually is Usually.ABLE and not (emulated or self.lacks(target)))


_ROWS: Final = (
    Rule(
        "batch_invariant",
        "gives a token the same bits beside any other tokens, on every device",
        Usually.OFF,
        same_bits=False,
    ),
    Rule(
        "repack",
        "repacks a model's Q6_K and Q8_0 matrices into aligned blocks at loading: fewer instructions, 6.7 % more bytes of Q6_K",
        Usually.ABLE,
    ),
    Rule(
        "last_block_reduction",
        "computes paged attention of a single token in one launch instead of two: its last block reduces the splits",
        Usually.ABLE,
    ),
    Rule(
        "rope_fused_attention",
        "fuses RoPE and the KV write into attention",
        Usually.ABLE,
    ),
    Rule(
        "dependent_launches",
        "starts each kernel of a step before its predecessor has ended: programmatic dependent launch",
        Usually.ABLE,
        sm=DEPENDENT_SM,
    ),
    Rule(
        "horizontal_fusion",
        "multiplies by q, k and v (also of different formats), and by gate and up, in one launch",
        Usually.ABLE,
    ),
    Rule(
        "deferred_norms",
        "fuses RMSNorm into the neighbouring GEMVs",
        Usually.ABLE,
    ),
    Rule(
        "swiglu_fusion",
        "fuses SwiGLU into the GEMV with gate and up, if their weights are of one format",
        Usually.ABLE,
    ),
    Rule(
        "plane_gathers",
        "gathers int8 planes instead of f32 values where several GPUs share a model and the next GEMV reads planes",
        Usually.ON,
    ),
    Rule(
        "sent_parts",
        "sends int8 planes to the GEMV that reads them, which waits, instead of gathering them (two GPUs, weight_pipelines)",
        Usually.ON,
        only_with=("weight_pipelines",),
    ),
    Rule(
        "weight_pipelines",
        "prefetches a GEMV's weights into shared memory before the previous kernel has ended",
        Usually.ABLE,
        sm=DEPENDENT_SM,
        shared=PIPELINE_SHARED,
    ),
    Rule(
        "persistent_layers",
        "runs everything between the attention of one layer and the next in one persistent kernel",
        Usually.OFF,
        sm=80,
    ),
)
RULES: Final[Mapping[str, Rule]] = {rule.name: rule for rule in _ROWS}

RENAMED: Final[Mapping[str, str]] = {
    "merged_attention": "last_block_reduction",
    "rotating_attention": "rope_fused_attention",
    "early_launches": "dependent_launches",
    "joined_products": "horizontal_fusion",
    "fused_norms": "deferred_norms",
    "gated_products": "swiglu_fusion",
    "gathered_digits": "plane_gathers",
    "weight_rings": "weight_pipelines",
}
"""By the name that a rule had, its name now: the old ones are refused."""

USUAL: Final = frozenset(name for name, rule in RULES.items() if rule.usually is Usually.ON)
"""The rules that are on whatever the GPU."""


def rule_named(name: str) -> Rule:
    """The rule of this name. ArgumentError that lists the known ones, or says the new name of one that was renamed."""
    if found := RULES.get(name):
        return found
    hint = f"it is {RENAMED[name]} now" if name in RENAMED else f"known: {', '.join(RULES)}"
    raise ArgumentError(f"there is no rule {name!r}; {hint}")


def rules_named(names: Collection[str]) -> frozenset[str]:
    """The names as a set. ArgumentError for one that is not a rule's."""
    return frozenset(rule_named(name).name for name in names)
