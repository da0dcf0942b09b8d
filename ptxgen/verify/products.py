"""Static checks of asynchronous products (wgmma, PTX ISA 9.7.15.7): from where one begins until a wait covers it nobody touches
its registers, and a fence stands between whoever touched them before and the product. What lies in shared memory is the
sanitiser's to look after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from ptxgen.dsl.ir import Function, Op
from ptxgen.errors import VerifyError
from ptxgen.isa.effects import Effect
from ptxgen.isa.operands import Immediate, registers
from ptxgen.target import WARPGROUP_SIZE
from ptxgen.verify.cfg import Graph
from ptxgen.verify.divergence import Divergence, Level

_OLDEST = 8
"""Groups committed since: more can no wait leave pending."""


@dataclass(frozen=True)
class _Use:
    """What a product under way has a register for: accumulator of a shape, or a factor (""). `age` counts the groups committed
    since, from 0 for its own; -1 before that."""

    shape: str
    age: int = -1


@dataclass(frozen=True)
class _State:
    """What may be at a point of the program: the uses of registers by products under way, and the registers of products that
    something touched with no fence since."""

    used: Mapping[str, frozenset[_Use]] = field(default_factory=dict)
    touched: frozenset[str] = frozenset()

    def joined(self, other: _State) -> _State:
        used = dict(self.used)
        for name, uses in other.used.items():
            used[name] = used.get(name, frozenset()) | uses
        return _State(used, self.touched | other.touched)

    def aged(self) -> _State:
        return self._kept({use: replace(use, age=min(use.age + 1, _OLDEST)) for uses in self.used.values() for use in uses})

    def waited(self, pending: int) -> _State:
        return self._kept({use: use for uses in self.used.values() for use in uses if use.age < pending})

    def _kept(self, changed: Mapping[_Use, _Use]) -> _State:
        used = {name: frozenset(changed[use] for use in uses if use in changed) for name, uses in self.used.items()}
        return _State({name: uses for name, uses in used.items() if uses}, self.touched)


def check_products(function: Function, flow: Graph, divergence: Divergence) -> None:
    """Raise VerifyError for the first product whose registers, threads or descriptor are not as they must be."""
    products = [op for op in function.ops if op.row.effect is Effect.ASYNC_PRODUCT]
    if not products:
        return
    _check_threads(function, products, divergence)
    accumulators = {r.name for op in products for r in op.written}
    factors = {r.name for op in products for r in registers(op.operands["a"])}
    before = {0: _State(touched=frozenset(accumulators | factors))}  # no fence yet
    analysis = _Analysis(accumulators, factors)
    changed = True
    while changed:
        changed = False
        for number in flow.order:
            if number not in before:
                continue
            state = before[number]
            for op in flow.blocks[number].ops:
                state = analysis.after(op, state)
            for successor in flow.blocks[number].successors:
                known = before.get(successor)
                joined = state if known is None else known.joined(state)
                if joined != known:
                    before[successor], changed = joined, True


def _check_threads(function: Function, products: Iterable[Op], divergence: Divergence) -> None:
    threads = prod(function.max_threads)
    for op in products:
        if threads % WARPGROUP_SIZE:
            raise VerifyError(
                f"{op.opcode} needs blocks of whole warpgroups, this one has {threads} threads",
                op.where,
                f"launch a multiple of {WARPGROUP_SIZE}",
            )
        for place in ("b", "scale_d"):
            cause = divergence.of(op.operands[place])
            if cause.level > Level.WARPGROUP:
                raise VerifyError(
                    f"{op.opcode} needs the same {place} in all threads of the warpgroup, but it depends on {cause.why}",
                    op.where,
                    "compute it from constants, block numbers or k.warpgroup",
                )


class _Analysis:
    """How instructions change a state. Errors are raised on the way: what may be only grows."""

    def __init__(self, accumulators: set[str], factors: set[str]) -> None:
        self.accumulators, self.factors = accumulators, factors
        self.all = accumulators | factors
        self.products: dict[str, Op] = {}  # by register, the last that was seen to use it
        self.touching: dict[str, Op] = {}

    def after(self, op: Op, state: _State) -> _State:
        effect = op.row.effect
        if effect is Effect.ASYNC_PRODUCT:
            return self._product(op, state)
        if effect is Effect.PRODUCT_FENCE:
            return replace(state, touched=frozenset())
        if effect is Effect.PRODUCT_GROUP:
            return state.aged()
        if effect is Effect.PRODUCT_WAIT:
            pending = op.operands["pending"]
            return state.waited(int(pending.value) if isinstance(pending, Immediate) else 0)
        return self._other(op, state)

    def _other(self, op: Op, state: _State) -> _State:
        written = [r.name for r in op.written if r.name in self.all]
        read = [r.name for r in op.read if r.name in self.all]
        for name in (*read, *written):
            if name in state.used:
                does = "writes" if name in written else "reads"
                raise VerifyError(
                    f"{op.opcode} {does} {name}, which a product has that may not have been waited for:\n"
                    f"  {self.products[name].where}",
                    op.where,
                    "commit the product to a group, and wait for that first",
                )
        touched = {*written, *(name for name in read if name in self.accumulators)}
        if not touched - state.touched:
            return state
        self.touching.update(dict.fromkeys(touched, op))
        return replace(state, touched=state.touched | touched)

    def _product(self, op: Op, state: _State) -> _State:
        shape = op.modifiers["shape"]
        used = dict(state.used)
        places = [(r.name, "") for r in registers(op.operands["a"])] + [(r.name, shape) for r in op.written]
        for name, use in places:
            if any(other.shape != use for other in used.get(name, ())):
                raise VerifyError(
                    f"{op.opcode} uses {name}, which another product has for something else and may not be done:\n"
                    f"  {self.products[name].where}",
                    op.where,
                    "commit that product to a group, and wait for that first",
                )
            if name in state.touched:
                since = f", after\n  {self.touching[name].where}" if name in self.touching else ""
                raise VerifyError(
                    f"{op.opcode} uses {name}, and no wgmma.fence stands before it{since}",
                    op.where,
                    "write k.wgmma_fence() after the last instruction that touches its registers",
                )
        for name, use in places:
            used[name] = used.get(name, frozenset()) | {_Use(use)}
            self.products[name] = op
        return _State(used, state.touched)
