"""A kernel's blocks -> the text of an LLVM module with one function that runs a warp until it finishes or waits.

The lanes of a warp that have the lowest program counter run together until they branch apart; then the dispatcher picks the
lowest again, so lanes meet where their paths do. While no lane is elsewhere, blocks jump straight to each other."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ptxgen.emulator.dispatcher import dispatcher
from ptxgen.emulator.emitter import Emitter
from ptxgen.emulator.facts import Facts
from ptxgen.emulator.flow import Flow, FlowBlock, flow
from ptxgen.emulator.lanes import LaneAlgebra
from ptxgen.emulator.late_loads import late_loads
from ptxgen.emulator.layout import (
    ASKED,
    BARRIERS,
    EXITED,
    SLEPT,
    TRAPPED,
    YIELDED,
    ContextWord,
    State,
)
from ptxgen.emulator.placement import kernel_layout
from ptxgen.emulator.program import Program, Step
from ptxgen.emulator.registers import Frame
from ptxgen.emulator.runtime import barriers
from ptxgen.emulator.runtime.builder import RuntimeFunction
from ptxgen.emulator.runtime.bulk_copies import bulk_bytes
from ptxgen.emulator.runtime.product_checks import PRODUCTS_BYTES
from ptxgen.emulator.runtime.queues import QUEUE_BYTES
from ptxgen.emulator.runtime.schedule import run, warp
from ptxgen.emulator.sanitizer import FindingKind
from ptxgen.emulator.targets import targets
from ptxgen.emulator.values import Lanes
from ptxgen.isa.effects import Effect
from ptxgen.target import WARP_SIZE
from ptxgen.types import PRED, U32, U64

_EXIT = EXITED - (1 << 32)


@dataclass(frozen=True)
class Compiled:
    """The LLVM text of one kernel, the functions of the runtime that it needs, and what a launch must know of it."""

    text: str
    runtime: tuple[RuntimeFunction, ...]
    facts: Facts


def compile_kernel(program: Program, entry: str, *, sanitize: bool) -> Compiled:
    """The LLVM module of an entry; ParseError where it uses what is not emulated."""
    return _Kernel(program, entry, sanitize).compile()


class _Kernel:
    def __init__(self, program: Program, entry: str, sanitize: bool) -> None:
        self.program, self.entry, self.sanitize = program, entry, sanitize
        self.function = program.functions[entry]
        self.flow: Flow = flow(program, entry)
        self.e = Emitter()
        self.placement = kernel_layout(program, entry, self.flow.variables.values())
        self.slots: dict[str, int] = {}
        offset = int(State.REGISTERS)
        for register in self.flow.crossing:
            self.slots[register.name] = offset
            offset += 64 if register.type == PRED else 4 * register.type.bits
        steps = [s for b in self.flow.blocks for s in b.instructions]
        has_queue = any(s.row.effect is Effect.ASYNC_COPY for s in steps)
        has_products = sanitize and any(s.row.effect is Effect.ASYNC_PRODUCT for s in steps)
        self.has_bulk = any(s.row.effect in (Effect.BULK_COPY, Effect.MBARRIER) for s in steps)
        self.queue_offset = offset
        self.products_offset = offset + (WARP_SIZE * QUEUE_BYTES if has_queue else 0)
        self.bulk_offset = self.products_offset + (PRODUCTS_BYTES if has_products else 0)
        self.state_bytes = self.bulk_offset + (bulk_bytes(sanitize=sanitize) if self.has_bulk else 0)
        self.global_atomics = any(
            s.row.effect is Effect.ATOMIC and not s.modifiers.get("space", "").startswith("shared") for s in steps
        )
        self.prints = any(s.row.effect is Effect.CALL for s in steps)
        self.synchronises = sanitize and any(s.row.ordering(s.modifiers).synchronises for s in steps)
        checks_waits = sanitize and self.has_bulk
        late: frozenset[int] = late_loads(self.flow.blocks) if checks_waits else frozenset()
        frame = Frame(
            self.placement.places,
            self.slots,
            self.flow.constants,
            self.flow.loose,
            sanitize,
            self.synchronises,
            has_products,
            checks_waits,
            late,
        )
        self.v = LaneAlgebra(self.e, frame)

    def compile(self) -> Compiled:
        for block in self.flow.blocks:
            self.block(block)
        body, self.e.body = self.e.body, []
        blocks = [block.index for block in self.flow.blocks]
        begun = dispatcher(self.e, blocks, self.queue_offset, self.products_offset, has_bulk=self.has_bulk)
        self.e.functions[warp.name] = "\n".join(
            [f"define i32 @{warp.name}(ptr noalias %s, ptr noalias %c) {{", "entry:", *self.e.allocas, *begun, *body, "}"]
        )
        runtime = (run, *self.e.runtime.values())
        text = self.e.module_text() + "\n!0 = !{}\n"  # !invariant.load needs it
        return Compiled(text, runtime, self.facts())

    def facts(self) -> Facts:
        """What a launch must know, once all is compiled."""
        function = self.function
        facts = Facts(
            self.state_bytes,
            self.placement.shared_bytes,
            self.placement.local_bytes,
            self.global_atomics or self.prints,
            tuple(function.parameters),
            function.most_threads,
            function.block,
            self.placement.data_bytes > 0,
            self.sanitize,
            prints=self.prints,
            bulk_offset=self.bulk_offset if self.has_bulk else 0,
        )
        if not self.sanitize:
            return facts
        shared_shift, global_shift = (smallest.bit_length() - 1 for smallest in self.v.smallest)
        written = targets(self.flow)
        names = None if written is None else tuple(sorted(written))
        return replace(
            facts, shared_shift=shared_shift, global_shift=global_shift, targets=names, synchronises=self.synchronises
        )

    # Blocks
    def block(self, block: FlowBlock) -> None:
        e = self.e
        e.label(f"b{block.index}")
        mask = e.emit("load i32, ptr %mask.m")
        self.v.start_block(mask)
        if block.meet:
            self.meet(block, mask)
            return
        if block.received is not None:
            self.v.receive(block.received)
        if block.waits:
            self.wait_for_grids(block, mask)
        for step in block.steps:
            self.v.execute(step)
        self.end(block, mask)

    def meet(self, block: FlowBlock, mask: str) -> None:
        """Wait here for the lanes that are elsewhere."""
        e = self.e
        wait = e.fresh("wait")
        e.do(f"br i1 {self.full(mask)}, label %b{block.index + 1}, label %{wait}")
        e.label(wait)
        zero = "zeroinitializer"
        e.call_runtime(barriers.park, "%s", mask, block.index + 1, zero, zero, 0)
        e.do("br label %dispatch")

    def end(self, block: FlowBlock, mask: str) -> None:
        end = block.end
        following = block.index + 1
        if block.frees:
            self.let_next_grid_start(block, mask)
            return
        if end is None:
            self.v.store_written(block.live_out, False)
            self.go(mask, following, block)
            return
        self.v.line = end.line
        effect = end.row.effect
        if effect is Effect.BRANCH:
            self.branch(block, end, mask)
        elif effect is Effect.INDEXED_BRANCH:
            self.table_branch(block, end, mask)
        elif effect in (Effect.RETURN, Effect.EXIT):
            self.leave(block, end, mask)
        elif effect is Effect.TRAP:
            self.trap(block, end, mask)
        elif effect is Effect.SLEEP:
            self.sleep(block, end, mask)
        else:
            self.barrier(block, end, mask)

    def full(self, mask: str) -> str:
        live = self.e.emit("load i32, ptr %live.m")
        return self.e.emit(f"icmp eq i32 {mask}, {live}")

    def go(self, mask: str, target: int, block: FlowBlock) -> None:
        """Everyone of the mask goes on at `target`: at once if no lane is elsewhere, else through the dispatcher."""
        e = self.e
        straight, slow = e.fresh("go"), e.fresh("part")
        e.do(f"br i1 {self.full(mask)}, label %{straight}, label %{slow}")
        e.label(straight)
        self.jump(mask, target, block)
        e.label(slow)
        e.call_runtime(barriers.leave, "%s", mask, mask, target, target)
        e.do("br label %dispatch")

    def jump(self, mask: str, target: int, block: FlowBlock) -> None:
        """Jump straight to a block; backward jumps count against the quantum, so that no loop runs for ever."""
        e = self.e
        if target > block.index:
            e.do(f"br label %b{target}")
            return
        ticks = e.emit("load i64, ptr %ticks.m")
        more = e.emit(f"add i64 {ticks}, 1")
        e.do(f"store i64 {more}, ptr %ticks.m")
        tired = e.emit(f"icmp ugt i64 {more}, {e.emit('load volatile i64, ptr %limit.p')}")
        stop = e.fresh("tired")
        e.do(f"br i1 {tired}, label %{stop}, label %b{target}")
        e.label(stop)
        e.call_runtime(barriers.leave, "%s", mask, mask, target, target)
        e.do("br label %yield")

    def branch(self, block: FlowBlock, end: Step, mask: str) -> None:
        target, following = block.targets[0], block.index + 1
        if end.guard is None:
            self.v.store_written(block.live_out, False)
            self.go(mask, target, block)
            return
        taken = self.v.guard_bits(end)
        self.v.store_written(block.live_out, False)
        e = self.e
        together, apart = e.fresh("all"), e.fresh("part")
        onward, some, back = e.fresh("none"), e.fresh("some"), e.fresh("taken")
        e.do(f"br i1 {self.full(mask)}, label %{together}, label %{apart}")
        e.label(together)
        e.do(f"br i1 {e.emit(f'icmp eq i32 {taken}, 0')}, label %{onward}, label %{some}")
        e.label(onward)
        self.jump(mask, following, block)
        e.label(some)
        e.do(f"br i1 {e.emit(f'icmp eq i32 {taken}, {mask}')}, label %{back}, label %{apart}")
        e.label(back)
        self.jump(mask, target, block)
        e.label(apart)
        e.call_runtime(barriers.leave, "%s", mask, taken, target, following)
        e.do("br label %dispatch")

    def table_branch(self, block: FlowBlock, end: Step, mask: str) -> None:
        e = self.e
        index = self.v.read(end.operands["index"], U32)
        self.v.store_written(block.live_out, False)
        chosen = self.v.const(block.targets[-1], U32)
        for i, target in reversed(list(enumerate(block.targets[:-1]))):
            chosen = self.v.select(index == i, self.v.const(target, U32), chosen)
        pcs = e.emit("load <32 x i32>, ptr %pcs.p, align 64")
        active = e.emit(f"bitcast i32 {self.guarded_mask(end, mask)} to <32 x i1>")
        following = self.v.spread(self.v.const(block.index + 1, U32))
        everyone = e.emit(f"bitcast i32 {mask} to <32 x i1>")
        past = e.emit(f"select <32 x i1> {everyone}, <32 x i32> {following}, <32 x i32> {pcs}")
        new = e.emit(f"select <32 x i1> {active}, <32 x i32> {self.v.spread(chosen)}, <32 x i32> {past}")
        e.do(f"store <32 x i32> {new}, ptr %pcs.p, align 64")
        e.do("br label %dispatch")

    def guarded_mask(self, end: Step, mask: str) -> str:
        return mask if end.guard is None else self.v.guard_bits(end)

    def leave(self, block: FlowBlock, end: Step, mask: str) -> None:
        e = self.e
        gone = self.stopped(block, end, mask)
        e.call_runtime(barriers.leave, "%s", mask, gone, _EXIT, block.index + 1)
        e.do("br label %dispatch")

    def trap(self, block: FlowBlock, end: Step, mask: str) -> None:
        e = self.e
        self.stopped(block, end, mask)
        at = e.emit(f"getelementptr i64, ptr %c, i64 {int(ContextWord.FAULT_LINE)}")
        e.do(f"store i64 {end.line}, ptr {at}")
        e.do(f"ret i32 {TRAPPED}")

    def sleep(self, block: FlowBlock, end: Step, mask: str) -> None:
        """End the warp's turn: whoever sleeps waits for others."""
        self.stopped(block, end, mask)
        self.e.call_runtime(barriers.leave, "%s", mask, mask, block.index + 1, block.index + 1)
        self.e.do(f"ret i32 {SLEPT}")

    def wait_for_grids(self, block: FlowBlock, mask: str) -> None:
        """Sleep, and come here again, while launches before this one still run (overlapping.py)."""
        e = self.e
        wait, go = e.fresh("flight"), e.fresh("landed")
        at = e.emit(f"getelementptr i64, ptr %c, i64 {int(ContextWord.IN_FLIGHT)}")
        word = e.emit(f"load i64, ptr {at}")
        e.do(f"br i1 {e.emit(f'icmp eq i64 {word}, 0')}, label %{go}, label %{wait}")
        e.label(wait)
        e.call_runtime(barriers.leave, "%s", mask, mask, block.index, block.index)
        e.do(f"ret i32 {SLEPT}")
        e.label(go)

    def let_next_grid_start(self, block: FlowBlock, mask: str) -> None:
        """Say so to who runs launches that overlap, for the first warp that does, and end its turn."""
        e, following = self.e, block.index + 1
        self.v.line = block.steps[-1].line
        lanes = self.guarded_mask(block.steps[-1], mask)
        self.v.store_written(block.live_out, False)
        at = e.emit(f"getelementptr i64, ptr %c, i64 {int(ContextWord.FREED)}")
        word = e.emit(f"load i64, ptr {at}")
        asked, does = e.emit(f"icmp eq i64 {word}, {ASKED}"), e.emit(f"icmp ne i32 {lanes}, 0")
        say, go = e.fresh("frees"), e.fresh("on")
        e.do(f"br i1 {e.emit(f'and i1 {asked}, {does}')}, label %{say}, label %{go}")
        e.label(say)
        e.do(f"store i64 1, ptr {at}")
        e.call_runtime(barriers.leave, "%s", mask, mask, following, following)
        e.do(f"ret i32 {YIELDED}")
        e.label(go)
        self.go(mask, following, block)

    def stopped(self, block: FlowBlock, end: Step, mask: str) -> str:
        """The lanes that an exit, a trap or a sleep is for; where there are none, all go on and what is emitted next does not
        run."""
        e = self.e
        lanes = self.guarded_mask(end, mask)
        self.v.store_written(block.live_out, False)
        if end.guard is not None:
            stay, stop = e.fresh("stay"), e.fresh("stop")
            e.do(f"br i1 {e.emit(f'icmp eq i32 {lanes}, 0')}, label %{stay}, label %{stop}")
            e.label(stay)
            self.go(mask, block.index + 1, block)
            e.label(stop)
        return lanes

    def barrier(self, block: FlowBlock, end: Step, mask: str) -> None:
        """Park the lanes until the block's scheduler opens the barrier; lanes whose guard is false go on."""
        e = self.e
        stopped = self.guarded_mask(end, mask)
        self.v.barrier_votes = None
        end.row.meaning(self.v, *self.v.sources(end), **end.modifiers)
        operands, votes = self.v.barrier_operands, self.v.barrier_votes
        if self.sanitize:
            self._check_barrier(operands, stopped)
        kind = self.v.spread(self._masked(operands[0]) + 1)
        need = self.v.spread(operands[1] if len(operands) > 1 else self.v.const(0, U32))
        self.v.store_written(block.live_out, False)
        following = block.index + 1
        if end.guard is not None:
            e.call_runtime(barriers.leave, "%s", mask, 0, 0, following)
        if votes is None:
            e.call_runtime(barriers.park, "%s", stopped, following, kind, need, end.line)
        else:
            brought = e.emit(f"bitcast <32 x i1> {self.v.spread(votes)} to i32")
            e.call_runtime(barriers.park_voting, "%s", stopped, following, kind, need, end.line, brought)
        e.do("br label %dispatch")

    def _check_barrier(self, operands: tuple[Lanes, ...], lanes: str) -> None:
        """Report the lanes that name a barrier, or ask for a number of threads, that there is not."""
        checks = [(FindingKind.BARRIER_NUMBER, operands[0], operands[0] > BARRIERS - 1)]
        checks += [(FindingKind.BARRIER_COUNT, count, (count & WARP_SIZE - 1) != 0) for count in operands[1:]]
        for kind, number, wrong in checks:
            bits = self.e.emit(f"bitcast <32 x i1> {self.v.spread(wrong)} to i32")
            stopped = self.e.emit(f"and i32 {bits}, {lanes}")
            self.v.report_lanes(kind, stopped, self.v.spread(self.v.convert(number, U64)), 0)

    def _masked(self, number: Lanes) -> Lanes:
        return number & 15
