"""Random programs of reads, uses, writes, proxy fences, barriers and mbarriers before a bulk copy: what is found is what
follows from a list of all that each thread knows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgen.emulator import run
from tests.ptxgen.emulator.ptx import kernel

THREADS = (0, 1, 32, 33)
"""Those that do something: two of each warp. The first begins the copy."""
MOST_HANDOVERS = 4
FIRST_READ = 10
"""The number of the register that the program's first step may load into."""
HEAD = f"""
ld.param.u64 %rd1, [p0];
mov.u32 %r1, %tid.x;
mov.u32 %r2, cells;
mad.lo.u32 %r2, %r1, 4, %r2;
mov.u32 %r3, bars;
shr.u32 %r4, %r1, 5;
setp.eq.u32 %p0, %r1, 0;
st.shared.u32 [%r2], %r1;
{"".join(f"@%p0 mbarrier.init.shared.b64 [%r3+{8 * i}], 1;" for i in range(MOST_HANDOVERS + 1))}
fence.proxy.async;
bar.sync 0;
"""
COPY = f"""
@!%p0 bra END;
mov.u32 %r2, cells;
mbarrier.arrive.expect_tx.shared::cta.b64 %rd2, [%r3+{8 * MOST_HANDOVERS}], 256;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 256, [%r3+{8 * MOST_HANDOVERS}];
LAST:
mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r3+{8 * MOST_HANDOVERS}], 0;
@!%p1 bra LAST;
END:"""


@dataclass(frozen=True)
class Step:
    """What one thread does to its own cell, or with all that it has read, or a fence of it; where a warp, or the block, meets;
    or that a thread arrives at an mbarrier which another waits for."""

    what: str
    thread: int = 0
    other: int = 0


threads = st.sampled_from(THREADS)
steps = st.one_of(
    st.builds(Step, st.sampled_from(["read", "use", "write", "fence"]), threads),
    st.builds(Step, st.just("warp"), threads),
    st.just(Step("block")),
    st.builds(Step, st.just("hand"), threads, threads),
)


def program_text(program: list[Step]) -> str:
    lines, handovers = [HEAD], 0
    alone = {
        "write": "st.shared.u32 [%r2], 7;",
        "fence": "fence.proxy.async.shared::cta;",
    }
    unused: dict[int, list[int]] = {thread: [] for thread in THREADS}
    for number, step in enumerate(program):
        if step.what == "read":
            unused[step.thread].append(number)
        alone["read"] = f"ld.shared.u32 %r{FIRST_READ + number}, [%r2];"
        if step.what == "use":
            lines += [f"add.u32 %r5, %r{FIRST_READ + read}, 1;" for read in unused[step.thread]]
            unused[step.thread].clear()
        elif step.what == "block":
            lines.append("bar.sync 0;")
        elif step.what == "warp":
            lines.append(
                f"setp.ne.u32 %p2, %r4, {step.thread // 32};\n@%p2 bra PAST{number};\nbar.warp.sync -1;\nPAST{number}:"
            )
        elif step.what == "hand":
            bar = f"[%r3+{8 * handovers}]"
            lines.append(f"setp.eq.u32 %p2, %r1, {step.thread};")
            lines.append(f"@%p2 mbarrier.arrive.expect_tx.shared::cta.b64 %rd2, {bar}, 0;")
            lines.append(f"setp.ne.u32 %p2, %r1, {step.other};\n@%p2 bra PAST{number};\nWAIT{number}:")
            lines.append(f"mbarrier.try_wait.parity.shared::cta.b64 %p1, {bar}, 0;\n@!%p1 bra WAIT{number};\nPAST{number}:")
            handovers += 1
        else:
            lines.append(f"setp.eq.u32 %p2, %r1, {step.thread};\n@%p2 {alone[step.what]}")
    shared = f".shared .align 8 .b8 bars[{8 * MOST_HANDOVERS + 8}];\n.shared .align 16 .b8 cells[256];"
    return kernel("\n".join([*lines, COPY]), "u64", shared=shared)


@dataclass
class Knowledge:
    """Of a thread: the accesses that come before what it does now, and those of them that have passed to the other proxy."""

    accesses: set[tuple[int, str]] = field(default_factory=set)
    passed: set[tuple[int, str]] = field(default_factory=set)

    def meets(self, others: list[Knowledge]) -> None:
        for other in others:
            self.accesses |= other.accesses
            self.passed |= other.passed


def late_reads(program: list[Step]) -> set[int]:
    """The numbers of the reads that some arrival, or the copy's, or a barrier of the block follows before a use. A read of a
    cell that was read late before counts as late, too: it stands for that one."""
    late = set()
    for number, step in enumerate(program):
        ends = [
            other.what
            for other in program[number + 1 :]
            if other.what in ("hand", "block") or other == Step("use", step.thread)
        ]
        if step.what == "read" and ends[:1] != ["use"]:
            late |= {n for n, other in enumerate(program) if n >= number and other == step}
    return late


def expected(program: list[Step]) -> set[str]:
    knows = {thread: Knowledge() for thread in THREADS}
    accesses = set()
    late = late_reads(program)
    for number, step in enumerate(program):
        mine, access = knows[step.thread], (number, step.what)
        if step.what in ("read", "write"):
            mine.accesses.add(access)
            accesses.add(access)
        elif step.what == "fence":
            mine.passed |= mine.accesses
        elif step.what == "hand":
            released = {one for one in mine.accesses if one[1] == "read" and one[0] not in late}
            knows[step.other].meets([Knowledge(set(mine.accesses), mine.passed | released)])
        elif step.what in ("warp", "block"):
            there = [t for t in THREADS if step.what == "block" or t // 32 == step.thread // 32]
            for thread in there:
                knows[thread].meets([knows[one] for one in there])
    # A later access of a cell stands for the earlier ones of its kind: it comes after them, and is no further
    last = {(program[number].thread, what): (number, what) for number, what in sorted(accesses)}
    copier, kept = knows[0], set(last.values())
    unordered, unfenced = kept - copier.accesses, (kept & copier.accesses) - copier.passed
    return {kind for kind, of in (("race", unordered), ("unfenced", unfenced)) if of}


@given(st.lists(steps, max_size=9).filter(lambda program: sum(s.what == "hand" for s in program) <= MOST_HANDOVERS))
@settings(max_examples=15, deadline=None)
def test_what_is_found_is_what_follows_from_all_that_each_thread_knows(program: list[Step]) -> None:
    x = np.zeros(64, np.uint32)
    found = {f.kind for seed in (None, 1) for f in run(program_text(program), "k", 1, 64, [x], seed=seed)}
    assert found == expected(program)
