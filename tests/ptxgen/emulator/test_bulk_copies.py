"""Bulk copies and mbarriers on the emulator: rings that warps stream through, and what is found where a right one is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen.emulator import EmulationError, Finding, run, uninitialised
from tests.ptxgen.emulator.ptx import kernel

LANE_BYTES = 16
SLOT = 32 * LANE_BYTES

MEET = "bar.warp.sync -1;"
FENCE = "fence.proxy.async.shared::cta;"
READ = f"{MEET}\n{FENCE}"
WAIT = """WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5], %r6;
@!%p1 bra WAIT;"""
BEGIN = """mbarrier.arrive.expect_tx.shared::cta.b64 %rd9, [%r5], {slot};
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r7], [%rd2], {part}, [%r5];
{second}"""
SECOND = """add.u64 %rd8, %rd2, {part};
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r7+{part}], [%rd8], {part}, [%r5];"""


@dataclass(frozen=True)
class Ring:
    """A kernel whose warps each copy `rounds` pieces of p1 to p0 through a ring of their own. %r1 is the lane, %r2 the warp,
    %r3 the round, %r5 the slot's mbarrier, %r6 the parity, %r7 the slot, %rd2 what is copied, %rd3 where the lane stores."""

    warps: int = 1
    slots: int = 2
    rounds: int = 7
    copies: int = 1
    """For each piece."""
    started: str = MEET
    wait: str = WAIT
    after_wait: str = ""
    read: str = READ
    """After the lanes have read the slot."""
    refilled: str = "setp.lt.and.u32 %p2, %r9, {rounds}, %p3;"

    @property
    def text(self) -> str:
        begin = BEGIN.format(
            slot=SLOT, part=SLOT // self.copies, second=SECOND.format(part=SLOT // self.copies) if self.copies > 1 else ""
        )
        begin_guarded = "\n".join(f"@%p2 {line}" for line in begin.splitlines() if line)
        ring = 8 * self.slots
        body = f"""
ld.param.u64 %rd1, [p1];
ld.param.u64 %rd3, [p0];
mov.u32 %r1, %laneid;
mov.u32 %r2, %tid.x;
shr.u32 %r2, %r2, 5;
mul.wide.u32 %rd4, %r2, {self.rounds * SLOT};
add.u64 %rd1, %rd1, %rd4;
add.u64 %rd3, %rd3, %rd4;
mul.wide.u32 %rd4, %r1, {LANE_BYTES};
add.u64 %rd3, %rd3, %rd4;
mov.u32 %r10, bars;
mad.lo.u32 %r10, %r2, {ring}, %r10;
mov.u32 %r11, ring;
mad.lo.u32 %r11, %r2, {self.slots * SLOT}, %r11;
setp.eq.u32 %p3, %r1, 0;
mov.u32 %r3, 0;
@!%p3 bra STARTED;
MAKE:
mad.lo.u32 %r5, %r3, 8, %r10;
mbarrier.init.shared.b64 [%r5], 1;
add.u32 %r3, %r3, 1;
setp.lt.u32 %p1, %r3, {self.slots};
@%p1 bra MAKE;
fence.mbarrier_init.release.cluster;
mov.u32 %r3, 0;
START:
mad.lo.u32 %r5, %r3, 8, %r10;
mad.lo.u32 %r7, %r3, {SLOT}, %r11;
mul.wide.u32 %rd2, %r3, {SLOT};
add.u64 %rd2, %rd2, %rd1;
{begin}
add.u32 %r3, %r3, 1;
setp.lt.u32 %p1, %r3, {self.slots};
@%p1 bra START;
STARTED:
{self.started}
mov.u32 %r3, 0;
ROUND:
rem.u32 %r8, %r3, {self.slots};
mad.lo.u32 %r5, %r8, 8, %r10;
mad.lo.u32 %r7, %r8, {SLOT}, %r11;
div.u32 %r6, %r3, {self.slots};
and.b32 %r6, %r6, 1;
{self.wait}
{self.after_wait}
mad.lo.u32 %r12, %r1, {LANE_BYTES}, %r7;
ld.shared.v4.u32 {{%r20, %r21, %r22, %r23}}, [%r12];
st.global.v4.u32 [%rd3], {{%r20, %r21, %r22, %r23}};
add.u64 %rd3, %rd3, {SLOT};
{self.read}
add.u32 %r9, %r3, {self.slots};
{self.refilled.format(rounds=self.rounds)}
mul.wide.u32 %rd2, %r9, {SLOT};
add.u64 %rd2, %rd2, %rd1;
{begin_guarded}
add.u32 %r3, %r3, 1;
setp.lt.u32 %p1, %r3, {self.rounds};
@%p1 bra ROUND;"""
        shared = (
            f".shared .align 8 .b8 bars[{self.warps * ring}];\n.shared .align 16 .b8 ring[{self.warps * self.slots * SLOT}];"
        )
        return kernel(body, "u64", "u64", shared=shared)

    def run(
        self, *, edit: Callable[[str], str] = str, sanitize: bool = True, seed: int | None = None
    ) -> tuple[list[Finding], NDArray[np.uint32], NDArray[np.uint32]]:
        """What is found, what the kernel wrote and what it is to write."""
        x = np.random.default_rng(1).integers(0, 1 << 32, self.warps * self.rounds * SLOT // 4, np.uint32)
        y = np.zeros_like(x)
        arguments = [uninitialised(y), x]
        found = run(edit(self.text), "k", 1, 32 * self.warps, arguments, sanitize=sanitize, seed=seed)
        return found, y, x


RING = Ring()


def kinds(ring: Ring, edit: Callable[[str], str] = str, seed: int | None = None) -> set[str]:
    return {f.kind for f in ring.run(edit=edit, seed=seed)[0]}


@pytest.mark.parametrize("sanitize", [False, True])
@pytest.mark.parametrize(
    "ring",
    [
        RING,
        Ring(copies=2, slots=3, rounds=8),
        Ring(slots=1, rounds=5),
        Ring(warps=3, slots=4, rounds=9),
        Ring(warps=2, started="bar.sync 0;"),
        Ring(wait=WAIT.replace("shared::cta", "shared")),
    ],
    ids=["plain", "two copies a piece", "one slot", "three warps", "barrier of the block", "another spelling"],
)
def test_a_ring_brings_the_right_bytes(ring: Ring, sanitize: bool) -> None:
    for seed in (None, 1):
        found, y, x = ring.run(sanitize=sanitize, seed=seed)
        assert not found, found[0]
        np.testing.assert_array_equal(y, x)


def test_more_copies_than_are_kept_are_done_early_and_waited_for_all_the_same() -> None:
    """A phase of 300 copies of 16 bytes, of which the first are done where the queue is full."""
    body = """
ld.param.u64 %rd1, [p1];
ld.param.u64 %rd3, [p0];
mov.u32 %r1, %tid.x;
mov.u32 %r5, bars;
mov.u32 %r7, ring;
mov.u32 %r3, 0;
setp.eq.u32 %p3, %r1, 0;
@!%p3 bra WAIT;
mbarrier.init.shared.b64 [%r5], 1;
mbarrier.arrive.expect_tx.shared::cta.b64 %rd9, [%r5], 4800;
COPY:
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r7], [%rd1], 16, [%r5];
add.u32 %r7, %r7, 16;
add.u64 %rd1, %rd1, 16;
add.u32 %r3, %r3, 1;
setp.lt.u32 %p1, %r3, 300;
@%p1 bra COPY;
WAIT:
bar.warp.sync -1;
{wait}
mov.u32 %r7, ring;
mad.lo.u32 %r7, %r1, 4, %r7;
mul.wide.u32 %rd4, %r1, 4;
add.u64 %rd3, %rd3, %rd4;
ld.shared.u32 %r4, [%r7];
st.global.u32 [%rd3], %r4;"""
    shared = ".shared .align 8 .b8 bars[8];\n.shared .align 16 .b8 ring[4800];"
    for wait, expected in ((WAIT.replace("WAIT", "AGAIN").replace("%r6", "0"), set()), ("", {"race", "unwaited"})):
        x, y = np.arange(1200, dtype=np.uint32), np.zeros(32, np.uint32)
        found = run(kernel(body.format(wait=wait), "u64", "u64", shared=shared), "k", 1, 32, [y, x])
        assert {f.kind for f in found} == expected
        np.testing.assert_array_equal(y, x[:32])


def test_blocks_run_one_after_the_other_and_together() -> None:
    ring = Ring(warps=2, slots=2, rounds=4)
    for cooperative in (False, True):
        x = np.random.default_rng(1).integers(0, 1 << 32, 2 * 4 * SLOT // 4, np.uint32)
        ys = np.zeros((3, len(x)), np.uint32)
        move = f"mov.u32 %r30, %ctaid.x;\nmad.wide.u32 %rd3, %r30, {4 * len(x)}, %rd3;\nmov.u32 %r1, %laneid;"
        text = ring.text.replace("mov.u32 %r1, %laneid;", move)
        found = run(text, "k", 3, 64, [ys, x], cooperative=cooperative, seed=1)
        assert not found, found[0]
        np.testing.assert_array_equal(ys, [x] * 3)


def test_a_warp_that_waits_lets_others_come_to_a_barrier() -> None:
    """Warp 0 begins the copy that warp 1 waits for only after a barrier with warp 2."""
    body = f"""
ld.param.u64 %rd1, [p0];
mov.u32 %r1, %tid.x;
shr.u32 %r2, %r1, 5;
mov.u32 %r5, bars;
mov.u32 %r7, ring;
setp.eq.u32 %p3, %r1, 0;
@%p3 mbarrier.init.shared.b64 [%r5], 1;
bar.sync 0;
setp.eq.u32 %p1, %r2, 1;
@%p1 bra WAIT;
bar.sync 1, 64;
@!%p3 bra END;
mbarrier.arrive.expect_tx.shared::cta.b64 %rd9, [%r5], {SLOT};
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r7], [%rd1], {SLOT}, [%r5];
bra.uni END;
{WAIT.replace("%r6", "0")}
ld.shared.u32 %r4, [%r7];
END:"""
    text = kernel(body, "u64", shared=f".shared .align 8 .b8 bars[8];\n.shared .align 16 .b8 ring[{SLOT}];")
    for sanitize in (True, False):
        for seed in range(6):
            assert not run(text, "k", 1, 96, [np.zeros(SLOT // 4, np.uint32)], sanitize=sanitize, seed=seed)


def test_a_read_before_the_wait_is_found_and_gives_what_was_there() -> None:
    found, y, _ = replace(RING, wait="", rounds=2).run()
    assert [f.kind for f in found] == ["early read", "unwaited"]
    assert (y == 0xFFFFFFFF).all()
    assert "before the cp.async that fills it was waited for" in str(found[0])


def test_a_slot_that_is_filled_again_while_lanes_may_read_it_is_a_race() -> None:
    found, _, _ = replace(RING, read=FENCE).run()
    assert {f.kind for f in found} == {"race"}
    assert "cp.async.bulk" in found[0].ptx_text
    assert found[0].against is not None
    assert "ld.shared" in found[0].against.ptx_text


def test_a_barrier_of_the_block_is_as_good() -> None:
    assert not kinds(replace(RING, read=f"bar.sync 0;\n{FENCE}", warps=2))


# Lane 0 alone waits; the others may read after a barrier
ALONE = "@!%p3 bra WAITED;\n" + WAIT + "\nWAITED:"


def test_lanes_that_have_not_waited_race_unless_a_barrier_follows() -> None:
    alone = replace(RING, wait=ALONE)
    found, _, _ = alone.run()
    assert {f.kind for f in found} == {"race"}
    assert "ld.shared" in found[0].ptx_text
    assert found[0].count == 31 * RING.rounds
    assert not kinds(replace(alone, after_wait=MEET))
    assert not kinds(replace(alone, after_wait="bar.sync 0;"))


def test_the_lane_that_began_a_copy_must_wait_as_well() -> None:
    others = ALONE.replace("@!%p3", "@%p3")
    found, _, _ = replace(RING, wait=others).run()
    assert {f.kind for f in found} == {"race"}
    assert {f.thread for f in found} == {(0, 0, 0)}


def test_a_warp_that_has_not_waited_races_with_the_copies_of_another() -> None:
    """Both warps read the ring of warp 0."""

    def shared_ring(wait: str) -> Callable[[str], str]:
        def edit(text: str) -> str:
            text = text.replace("mad.lo.u32 %r10, %r2", "mad.lo.u32 %r10, 0").replace(
                "mad.lo.u32 %r11, %r2", "mad.lo.u32 %r11, 0"
            )
            text = text.replace("setp.eq.u32 %p3, %r1, 0;", "mov.u32 %r13, %tid.x;\nsetp.eq.u32 %p3, %r13, 0;")
            return text.replace("div.u32 %r6", f"{wait}\ndiv.u32 %r6")

        return edit

    both = Ring(warps=2, slots=2, rounds=2, started="bar.sync 0;")
    assert not kinds(both, shared_ring(""))
    second_alone = "setp.eq.u32 %p4, %r2, 1;\n@%p4 bra WAITED;"
    one = replace(both, wait=WAIT + "\nWAITED:")
    for seed in (0, 1, 2, 3):
        found = kinds(one, shared_ring(second_alone), seed=seed)
        assert found in ({"race"}, {"early read"})  # as warp 0 was there first or not
    # which a barrier mends
    assert not kinds(replace(one, after_wait="bar.sync 0;"), shared_ring(second_alone))


def test_a_wait_for_the_wrong_parity_never_ends() -> None:
    wrong = replace(RING, after_wait="xor.b32 %r6, %r6, 1;\n" + WAIT.replace("WAIT", "AGAIN"))
    found, _, _ = wrong.run()
    assert "endless loop" in {f.kind for f in found}
    with pytest.raises(EmulationError, match="endless"):
        wrong.run(sanitize=False)


def test_a_wait_for_bytes_that_nobody_copies_never_ends() -> None:
    assert "endless loop" in kinds(RING, lambda text: text.replace(f"[%r5], {SLOT};", f"[%r5], {SLOT + 16};"))


def test_a_parity_that_is_complete_already_is_no_wait() -> None:
    """The phase before the first counts as complete."""
    wrong = replace(RING, wait="xor.b32 %r6, %r6, 1;\n" + WAIT, rounds=2)
    assert "early read" in kinds(wrong)


def test_a_copy_under_way_at_the_end_is_found() -> None:
    """The last round is left out."""
    found, _, _ = RING.run(edit=lambda text: text.replace(f"setp.lt.u32 %p1, %r3, {RING.rounds};", "setp.lt.u32 %p1, %r3, 6;"))
    assert [f.kind for f in found] == ["unwaited"]
    assert f"copies {SLOT} bytes to shared[" in str(found[0])
    assert "cp.async.bulk" in found[0].ptx_text
    assert found[0].thread == (0, 0, 0)


BROKEN = {
    "[%r7], [%rd2]": [("[%r7+8], [%rd2]", "misaligned"), ("[%r7], [%rd2+8]", "misaligned"),
                      ("[%r7+4096], [%rd2]", "out of bounds"), ("[%r7], [%rd2+65536]", "out of bounds")],
    f"[%rd2], {SLOT},": [("[%rd2], %size,", "misaligned"), (f"[%rd2], {1 << 17},", "out of bounds")],
    f"{SLOT}, [%r5]": [(f"{SLOT}, [%r5+4]", "misaligned"), (f"{SLOT}, [%r5+65536]", "out of bounds")],
}  # fmt: skip


def with_size(text: str, size: int) -> str:
    """The text with a register that holds a size, which the assembler does not allow as a constant."""
    return text.replace("\n{\n", f"\n{{\n.reg .u32 %size; mov.u32 %size, {size};\n", 1)


@pytest.mark.parametrize(
    ("right", "wrong", "kind"), [(right, wrong, kind) for right, list in BROKEN.items() for wrong, kind in list]
)
def test_a_copy_that_must_not_be_is_found(right: str, wrong: str, kind: str) -> None:
    assert right in RING.text
    found, _, _ = RING.run(edit=lambda text: with_size(text.replace(right, wrong), SLOT - 8))
    assert found[0].kind == kind
    assert "cp.async.bulk" in found[0].ptx_text


def test_copies_say_what_is_wrong_with_them() -> None:
    (f, *_), _, _ = RING.run(edit=lambda text: with_size(text.replace(f"[%rd2], {SLOT},", "[%rd2], %size,"), 24))
    assert "copies 24 bytes to shared[" in str(f)
    (f, *_), _, _ = RING.run(edit=lambda text: text.replace("[%r7], [%rd2]", "[%r7], [%rd2+4]"))
    assert "which is not aligned to 16 bytes" in str(f)
    (f, *_), _, _ = RING.run(edit=lambda text: text.replace(f"[%rd2], {SLOT},", "[%rd2], 131072,"))
    assert "writes shared[" in str(f)
    assert "+" not in str(f)


def test_an_mbarrier_must_have_been_made() -> None:
    assert "uninitialised" in kinds(RING, lambda text: text.replace("mbarrier.init.shared.b64 [%r5], 1;", ""))
    stored = "mov.u64 %rd8, 5;\nst.shared.u64 [%r5], %rd8;"
    found, _, _ = RING.run(edit=lambda text: text.replace("mbarrier.init.shared.b64 [%r5], 1;", stored))
    assert "for an mbarrier, which it is not" in str(next(f for f in found if f.kind == "barrier"))


def test_an_mbarrier_that_others_use_before_a_barrier_is_a_race() -> None:
    found, _, _ = replace(RING, started="").run()
    assert found[0].kind == "race"
    assert "mbarrier.try_wait" in found[0].ptx_text


def test_an_arrival_too_many_is_found() -> None:
    again = f"mbarrier.arrive.expect_tx.shared::cta.b64 %rd9, [%r5], {SLOT};"
    found, _, _ = RING.run(edit=lambda text: text.replace(again, again + again.replace(str(SLOT), "0"), 1))
    assert [f.kind for f in found] == ["barrier"]
    assert "had all its arrivals" in str(found[0])


def test_a_write_to_a_slot_that_is_being_filled_is_found() -> None:
    store = "@%p3 st.shared.u32 [%r7], %r1;"
    found, _, _ = replace(RING, wait=f"{store}\n{WAIT}").run()
    assert {f.kind for f in found} == {"race"}
    assert "before that was waited for" in str(found[0])


def test_two_producers_arrive_at_one_mbarrier() -> None:
    """A phase of two arrivals, each with a copy of half a slot, by lanes of two warps; the other warps wait."""
    body = """
ld.param.u64 %rd1, [p1];
ld.param.u64 %rd3, [p0];
mov.u32 %r1, %tid.x;
mov.u32 %r5, bars;
mov.u32 %r7, ring;
setp.eq.u32 %p1, %r1, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r5], 2;
@%p1 fence.mbarrier_init.release.cluster;
bar.sync 0;
and.b32 %r2, %r1, 31;
setp.eq.u32 %p1, %r2, 0;
setp.lt.and.u32 %p1, %r1, 64, %p1;
@!%p1 bra WAIT;
shl.b32 %r3, %r1, 3;
add.u32 %r7, %r7, %r3;
cvt.u64.u32 %rd4, %r3;
add.u64 %rd1, %rd1, %rd4;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r7], [%rd1], 256, [%r5];
mbarrier.arrive.expect_tx.shared::cta.b64 %rd9, [%r5], 256;
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5], 0;
@!%p1 bra WAIT;
mov.u32 %r7, ring;
shl.b32 %r3, %r1, 2;
add.u32 %r7, %r7, %r3;
ld.shared.u32 %r4, [%r7];
mul.wide.u32 %rd4, %r1, 4;
add.u64 %rd3, %rd3, %rd4;
st.global.u32 [%rd3], %r4;"""
    text = kernel(body, "u64", "u64", shared=".shared .align 8 .b8 bars[8];\n.shared .align 16 .b8 ring[512];")
    for sanitize in (True, False):
        for seed in range(4):
            x, y = np.arange(128, dtype=np.uint32), np.zeros(128, np.uint32)
            found = run(text, "k", 1, 128, [y, x], sanitize=sanitize, seed=seed)
            assert not found, found[0]
            np.testing.assert_array_equal(y, x)
