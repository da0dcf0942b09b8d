"""The compiled shadow of memory against a list of every access: the first race of a trace is found, in any order."""

from __future__ import annotations

import ctypes
import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from ptxgen.emulator import codegen
from ptxgen.emulator.runtime.link import objects
from ptxgen.emulator.runtime.shadow import EVERY_THREAD, EVERY_WARP, OLDEST_EPOCH, SPAN, AccessKind, Me, Record, Slots, touches

GRANULES = 2
UNWRITTEN, ON_THE_WAY, WRITER, READER = 1, 2, 4, 8
BARRIER, NEXT_BLOCK, GRID_BARRIER = "barrier", "next block", "grid barrier"


@dataclass(frozen=True)
class Touch:
    """An access of thread `thread` to granule 0; `scope` is 0 where it is weak."""

    thread: int
    access: AccessKind
    scope: int = 0


@dataclass(frozen=True)
class Sync:
    warp: int


Event = Touch | Sync | str
LOAD, STORE = AccessKind.LOAD, AccessKind.STORE


@dataclass(frozen=True)
class Past:
    touch: Touch
    block: int
    epoch: int
    sync: int
    serial: int


def is_over(past: Past, now: Past, known: list[int]) -> bool:
    """Whether what happened in another block is known to be over."""
    return past.block != now.block and past.epoch <= known[past.block]


def is_race(a: Past, b: Past, apart: int, devices: tuple[int, ...] = ()) -> bool:
    """Whether two accesses race: by the definition, without any shadow. `devices`: that of each block, where there are some."""
    if a.touch.access is LOAD and b.touch.access is LOAD:
        return False
    need = 1 if a.block == b.block else 2 if not devices or devices[a.block] == devices[b.block] else 3
    if min(a.touch.scope, b.touch.scope) >= need:
        return False
    if a.block != b.block:
        return True
    if a.touch.thread & apart == b.touch.thread & apart or a.epoch != b.epoch:
        return False
    return a.touch.thread // 32 != b.touch.thread // 32 or a.sync == b.sync


class Shadow:
    """The functions under test, on the shadow of `GRANULES` granules."""

    def __init__(self, touches: Any, *, apart: int = EVERY_THREAD, stateless: bool = False) -> None:
        self.touches, self.stateless = touches, stateless
        self.records = (Record * (GRANULES * Slots.END))()
        self.states = (ctypes.c_uint32 * (2 * GRANULES))()
        self.me = Me(floor=1, first=1, apart=apart, stride=GRANULES * ctypes.sizeof(Record))
        self.other = Record()
        self.block, self.epoch, self.serial = 0, 1, 0
        self.syncs = {0: 0, 1: 0}

    def step(self, event: Event, granule: int = 0, many: int = 1, serial: int | None = None) -> int:
        if isinstance(event, Sync):
            self.syncs[event.warp] += 1
            return 0
        if isinstance(event, str):
            self.epoch += 1
            if event == NEXT_BLOCK:
                self.block += 1
                self.me.first = self.epoch
                self.me.floor = 1 if self.stateless else self.epoch
            return 0
        self.serial += 1
        past = self.past(event)
        what = event.thread | 77 << 10 | event.scope << 30
        self.me.record = Record(past.epoch, what, past.sync, self.serial if serial is None else serial)
        states = None if self.stateless else ctypes.addressof(self.states) + 8 * granule
        records = ctypes.addressof(self.records) + 16 * granule
        return int(
            self.touches(records, states, many, ctypes.addressof(self.me), int(event.access), ctypes.addressof(self.other))
        )

    def past(self, touch: Touch) -> Past:
        return Past(touch, self.block, self.epoch, self.syncs[touch.thread // 32], self.serial)


class Turns(Shadow):
    """The same for blocks that take turns on global memory: NEXT_BLOCK goes on with another that has begun before."""

    BLOCKS = 3

    def __init__(self, touches: Any) -> None:
        super().__init__(touches, apart=EVERY_WARP, stateless=True)
        self.epochs = [OLDEST_EPOCH + block * SPAN for block in range(self.BLOCKS)]
        self.known = (ctypes.c_uint32 * self.BLOCKS)()
        self.me.known = ctypes.addressof(self.known)

    def step(self, event: Event, granule: int = 0, many: int = 1, serial: int | None = None) -> int:
        if event == GRID_BARRIER:
            for block, epoch in enumerate(self.epochs):
                self.known[block], self.epochs[block] = epoch, epoch + 1
        elif event == BARRIER:
            self.epochs[self.block] += 1
        elif event == NEXT_BLOCK:
            self.block = (self.block + 1) % self.BLOCKS
            self.me.first = OLDEST_EPOCH + self.block * SPAN
        else:
            return super().step(event, granule, many, serial)
        return 0

    def past(self, touch: Touch) -> Past:
        self.epoch = self.epochs[self.block]
        return super().past(touch)


class SeveralDevices(Turns):
    """The same with two blocks on one device and one on another."""

    DEVICES = (0, 0, 1)

    def step(self, event: Event, granule: int = 0, many: int = 1, serial: int | None = None) -> int:
        first, blocks = (0, 2) if self.DEVICES[self.block] == 0 else (2, 1)
        self.me.device, self.me.device_span = OLDEST_EPOCH + first * SPAN, blocks * SPAN
        return super().step(event, granule, many, serial)


@pytest.fixture(scope="module")
def compiled() -> Any:
    code = codegen.load(objects([touches], quickly=True))
    function = ctypes.CFUNCTYPE(
        ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p
    )(code.function("touches"))
    function.code = code  # type: ignore[attr-defined]  # lives as long as the function
    return function


def follow(compiled: Any, trace: Iterable[Event], apart: int, stateless: bool) -> bool:
    """Run a trace up to its first race, checking every step; whether there was one."""
    shadow = Shadow(compiled, apart=apart, stateless=stateless)
    seen: list[Past] = []
    for event in trace:
        code = shadow.step(event)
        if not isinstance(event, Touch):
            if event == NEXT_BLOCK and not stateless:
                seen = []  # shared memory is each block's own
            continue
        now = shadow.past(event)
        rivals = [p for p in seen if is_race(p, now, apart)]
        reads_writer = any(p.touch.access is not LOAD for p in rivals)
        assert code & (WRITER | READER) == (0 if not rivals else WRITER if reads_writer else READER), (trace, event)
        if not stateless:
            unwritten = all(p.touch.access is LOAD for p in seen) and event.access is not STORE
            assert code & (UNWRITTEN | ON_THE_WAY) == (UNWRITTEN if unwritten else 0), (trace, event)
        if rivals:
            named = shadow.other
            found = {(p.touch.thread, p.epoch, p.sync, p.serial) for p in rivals}
            assert (named.what & 1023, named.epoch, named.sync, named.serial) in found, (trace, event)
            assert named.what >> 10 & 0xFFFFF == 77
            return True
        seen.append(now)
    return False


KINDS = [(LOAD, 0), (STORE, 0), (AccessKind.ATOMIC, 2), (LOAD, 2), (STORE, 1)]
MODES = [(EVERY_THREAD, False), (EVERY_WARP, True)]


@pytest.mark.parametrize(("apart", "stateless"), MODES, ids=["shared", "global"])
def test_every_short_trace(compiled: Any, apart: int, stateless: bool) -> None:
    """Two accesses that may race, with anything one of three may do before, between or after them."""
    touched: list[Event] = [Touch(thread, *kind) for thread in (1, 2, 33) for kind in KINDS]
    events: list[Event] = [*touched, Sync(0), BARRIER, NEXT_BLOCK]
    traces = itertools.product(events, events, touched)
    assert sum(follow(compiled, trace, apart, stateless) for trace in traces) > 1000


@pytest.mark.parametrize(("apart", "stateless"), MODES, ids=["shared", "global"])
@pytest.mark.parametrize("seed", range(3))
def test_long_traces(compiled: Any, seed: int, apart: int, stateless: bool) -> None:
    """Many readers (or many atomics) and one that races with a single one of them, in any order."""
    rng = random.Random(seed)
    races = 0
    for _ in range(3000):
        threads = rng.sample([0, 1, 2, 31, 32, 33, 63], 4)
        syncs: list[Event] = [Sync(0), Sync(1), BARRIER, NEXT_BLOCK]
        common = rng.choice(KINDS)
        trace: list[Event] = []
        for _ in range(rng.randrange(3, 9)):
            trace.append(Touch(rng.choice(threads), *(common if rng.random() < 0.7 else rng.choice(KINDS))))
            if rng.random() < 0.4:
                trace.append(rng.choice(syncs))
        races += follow(compiled, trace, apart, stateless)
    assert 500 < races < 2900


@pytest.mark.parametrize("seed", range(3))
def test_long_traces_of_blocks_that_take_turns(compiled: Any, seed: int) -> None:
    follow_turns(compiled, Turns, KINDS, random.Random(seed))


@pytest.mark.parametrize("seed", range(3))
def test_long_traces_of_blocks_on_several_devices(compiled: Any, seed: int) -> None:
    """Only a strong access for the system is as strong on another device."""
    kinds = [(LOAD, 0), (AccessKind.ATOMIC, 2), (LOAD, 2), (AccessKind.ATOMIC, 3), (LOAD, 3), (STORE, 3)]
    follow_turns(compiled, SeveralDevices, kinds, random.Random(seed))


def follow_turns(compiled: Any, kind: type[Turns], kinds: list[tuple[AccessKind, int]], rng: random.Random) -> None:
    others: list[Event] = [Sync(0), BARRIER, NEXT_BLOCK, NEXT_BLOCK, GRID_BARRIER]
    races = 0
    for _ in range(3000):
        shadow, seen = kind(compiled), list[Past]()
        devices = shadow.DEVICES if isinstance(shadow, SeveralDevices) else ()
        threads, common = rng.sample([0, 1, 32, 33], 3), rng.choice(kinds)
        for _ in range(rng.randrange(4, 14)):
            event: Event = Touch(rng.choice(threads), *(common if rng.random() < 0.8 else rng.choice(kinds)))
            if rng.random() < 0.5:
                event = rng.choice(others)
            code = shadow.step(event)
            if not isinstance(event, Touch):
                continue
            now = shadow.past(event)
            rivals = [p for p in seen if not is_over(p, now, list(shadow.known)) and is_race(p, now, EVERY_WARP, devices)]
            assert (code != 0) == bool(rivals), (seen, now)
            if rivals:
                races += 1
                break
            seen.append(now)
    assert 400 < races < 2900


def test_one_access_of_another_device_is_remembered_whatever_comes_after_it(compiled: Any) -> None:
    """Three blocks change a place with the system's scope, then one of the first device reads it with its device's."""
    for order in itertools.permutations(range(3)):
        shadow = SeveralDevices(compiled)
        for block in order:
            shadow.block = block - 1
            shadow.step(NEXT_BLOCK)
            assert not shadow.step(Touch(0, AccessKind.ATOMIC, 3))
        for block in range(3):
            shadow.block = block - 1
            shadow.step(NEXT_BLOCK)
            assert shadow.step(Touch(0, LOAD, 2)) == WRITER


def test_the_lanes_of_one_instruction_do_not_race(compiled: Any) -> None:
    shadow = Shadow(compiled)
    assert not shadow.step(Touch(0, STORE), serial=5)
    assert not shadow.step(Touch(1, STORE), serial=5)
    assert shadow.step(Touch(0, STORE), serial=6) == WRITER


def test_a_copy_is_on_its_way_until_something_else_is_written(compiled: Any) -> None:
    shadow = Shadow(compiled)
    assert not shadow.step(Touch(0, AccessKind.COPY))
    assert shadow.step(Touch(0, LOAD)) == ON_THE_WAY
    assert shadow.step(Touch(33, LOAD)) == ON_THE_WAY  # and not a race, which it is, too
    assert shadow.step(Touch(33, STORE)) == WRITER
    assert not shadow.step(BARRIER)
    assert not shadow.step(Touch(1, LOAD))


def test_what_an_earlier_block_wrote_is_not_written(compiled: Any) -> None:
    shadow = Shadow(compiled)
    assert not shadow.step(Touch(0, STORE))
    shadow.step(NEXT_BLOCK)
    assert shadow.step(Touch(0, LOAD)) == UNWRITTEN
    assert shadow.step(Touch(0, AccessKind.ATOMIC, 2)) == UNWRITTEN
    assert not shadow.step(Touch(0, LOAD))


@pytest.mark.parametrize("stateless", [False, True])
def test_an_access_of_two_granules_finds_what_either_has(compiled: Any, stateless: bool) -> None:
    for granule in range(GRANULES):
        shadow = Shadow(compiled, stateless=stateless)
        shadow.step(Touch(0, STORE), many=2)
        shadow.step(BARRIER)
        assert not shadow.step(Touch(33, STORE), granule=granule)
        assert shadow.step(Touch(1, LOAD), many=2) == WRITER
        assert shadow.other.what & 1023 == 33
        assert not shadow.step(Touch(1, LOAD), granule=1 - granule)


def test_the_first_granule_that_has_something_to_say_says_it(compiled: Any) -> None:
    shadow = Shadow(compiled)
    shadow.step(Touch(40, STORE), granule=0)
    shadow.step(Touch(50, LOAD), granule=1)
    assert shadow.step(Touch(1, STORE), many=2) == WRITER
    assert shadow.other.what & 1023 == 40
    assert shadow.step(Touch(60, LOAD), granule=1) == WRITER  # the second was recorded all the same


@pytest.mark.parametrize("ordered", [0, 1])
def test_flags_are_asked_about_what_nothing_else_orders(compiled: Any, ordered: int) -> None:
    asked: list[tuple[int, int]] = []

    def ask(me: Any, other: Any) -> int:
        asked.append((me.contents.record.what & 1023, other.contents.what & 1023))
        return ordered

    called = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(Me), ctypes.POINTER(Record))(ask)
    shadow = Shadow(compiled)
    shadow.me.ordered = ctypes.cast(called, ctypes.c_void_p).value or 0
    shadow.step(Touch(0, STORE))
    assert not shadow.step(Touch(0, LOAD))
    assert not asked
    assert shadow.step(Touch(33, LOAD)) == (0 if ordered else WRITER)
    assert asked == [(33, 0)]
