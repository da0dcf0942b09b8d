"""What the threads of a warp or a block do together: shuffles, reductions, barriers. Every order is fixed, so results are
the same bits on every run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from operator import or_

from ptxgen.dsl.flow import ControlFlow
from ptxgen.dsl.ir import Function
from ptxgen.dsl.memory import Element, GlobalArray, Index, MemoryAccess, PeerArrays, SharedView
from ptxgen.dsl.mistakes import no_array, no_element, no_register
from ptxgen.dsl.value import Value
from ptxgen.errors import AuthorError, TypeMismatch
from ptxgen.target import FULL_WARP, WARP_SIZE, Target
from ptxgen.types import U32, U64, DType

Combine = Callable[[Value, Value], Value]

MOST_POLLS = 1 << 22
"""How often a thread looks whether a grid's barrier has opened before it gives up: some seconds of a GPU."""
POLL_NS = 20
REDUX_SM = 80
"""The oldest GPU that reduces over a warp by one instruction."""


class Cooperation(MemoryAccess, ControlFlow):
    """The warp and block operations of KernelBuilder. `threads` is the number of threads of a block."""

    def __init__(self, function: Function, threads: int, target: Target) -> None:
        super().__init__(function, target)
        self.threads = threads

    @property
    def lane(self) -> Value:
        """The lane in its warp, 0..31."""
        return self.special("%laneid")

    @property
    def warp(self) -> Value:
        """The warp in its block, which must be one-dimensional."""
        self._require_one_dimensional("k.warp")
        return self._once("warp", "shr", [self.special("%tid.x"), WARP_SIZE.bit_length() - 1], {}, U32)

    def _require_one_dimensional(self, what: str) -> None:
        block = self._function.max_threads
        if block[1:] != (1, 1):
            raise AuthorError(f"{what} needs a one-dimensional block, this one is {block}", self.where())

    def barrier(self) -> None:
        """Every thread of the block waits for every other (bar.sync 0)."""
        self.write("bar_sync", [0])

    def shuffle_xor(self, value: Value, mask: int) -> Value:
        """The value of lane `lane ^ mask`; all 32 lanes must take part."""
        return self._shuffled(value, mask, "bfly")

    def shuffle(self, value: Value, lane: Value | int) -> Value:
        """The value of lane `lane`; all 32 lanes must take part."""
        return self._shuffled(value, lane, "idx")

    def _shuffled(self, value: Value, source: Value | int, mode: str) -> Value:
        if not isinstance(value, Value):
            raise no_register("a shuffle or a sum", value, self.where)
        if value.type.bits == 64:  # a shuffle moves 32 bits
            halves = self.write("mov", [value], result=U32)
            return self.op("mov", tuple(self._shuffled(half, source, mode) for half in halves), result=value.type)
        return self.op("shfl", value, source, WARP_SIZE - 1, _full_mask(value), mode=mode, result=value.type)

    def warp_reduce(self, value: Value, combine: Combine, *, width: int = WARP_SIZE) -> Value:
        """Combine over groups of `width` lanes by a butterfly, so that every lane ends with the same bits (for a commutative
        `combine`): partners 16, 8, 4, 2, 1 lanes away, in this order."""
        offset = width // 2
        while offset:
            value = combine(value, self.shuffle_xor(value, offset))
            offset //= 2
        return value

    def warp_sum(self, value: Value, *, width: int = WARP_SIZE) -> Value:
        """The sum over the warp, in every lane."""
        return self.warp_reduce(value, lambda a, b: a + b, width=width)

    def warp_max(self, value: Value, *, width: int = WARP_SIZE) -> Value:
        """The largest over the warp, in every lane."""
        return self.warp_reduce(value, lambda a, b: self.op("max", a, b), width=width)

    def largest_integer(self, value: Value) -> Value:
        """The largest u32 or s32 of the warp, in every lane: by one instruction where the GPU has it."""
        if self.target.sm < REDUX_SM:
            return self.warp_max(value)
        return self.op("redux", value, FULL_WARP, op="max", type=str(value.type))

    def sum_of_integers(self, value: Value) -> Value:
        """The sum of the u32 or s32 of the warp, modulo 2^32, in every lane: by one instruction where the GPU has it."""
        if self.target.sm < REDUX_SM:
            return self.warp_sum(value)
        return self.op("redux", value, FULL_WARP, op="add", type=str(value.type))

    def block_sum(self, value: Value) -> Value:
        """The sum over the block, in every thread. All threads must reach it."""
        if not isinstance(value, Value):
            raise no_register("k.block_sum", value, self.where)
        return self._block_reduce(value, lambda a, b: a + b, 0.0 if value.type.is_float else 0)

    def part_sum(self, value: Value, parts: int, part: Value) -> Value:
        """The sum over one of the equal parts, each of successive threads, that the block has: over the one numbered `part`,
        which each thread chooses for itself. It has the bits of block_sum in a block of a part's size, which must be 2, 4 or 8
        warps. All threads must reach it."""
        if not isinstance(value, Value):
            raise no_register("k.part_sum", value, self.where)
        warps = self.threads // WARP_SIZE // parts
        if warps not in (2, 4, 8) or warps * parts * WARP_SIZE != self.threads or value.type.bits != 32:
            raise AuthorError(
                f"k.part_sum takes 32-bit values and parts of 2, 4 or 8 warps, not {value.type} and {parts} parts of "
                f"{self.threads} threads",
                self.where(),
            )
        partial = self._partials(self.warp_sum(value))
        return self._combined(partial, warps, lambda a, b: a + b, part * warps)

    def block_max(self, value: Value) -> Value:
        """The largest over the block, in every thread. All threads must reach it."""
        if not isinstance(value, Value):
            raise no_register("k.block_max", value, self.where)
        lowest = float("-inf") if value.type.is_float else _lowest(value.type)
        return self._block_reduce(value, lambda a, b: self.op("max", a, b), lowest)

    def last_block(self, counter: Element, blocks: Value | int) -> Value:
        """Whether all the others of `blocks` blocks have been here, the same predicate in every thread of this block: if so, it
        may read what their threads wrote to global memory before. All threads must reach it. `counter` is a u32 in global
        memory: 0 before the first block comes, and 0 again as soon as the last one has."""
        self._require_one_dimensional("k.last_block")
        if not isinstance(counter, Element):
            raise no_element("k.last_block", counter, self.where)
        if (counter.space, counter.dtype) != ("global", U32):
            raise TypeMismatch(
                f"the counter of k.last_block must be u32 in global memory, this is {counter.dtype} in {counter.space} memory",
                self.where(),
            )
        last, answer = blocks - 1, self.shared(U32, 1)
        self.barrier()  # what all its threads wrote comes before the count, which publishes it
        with self.when(self.special("%tid.x") == 0):
            count = self.op(  # inc goes from `last` to 0
                "atom", counter.address, last, order="acq_rel", scope="gpu", space="global", op="inc", type="u32"
            )
            self.store(answer[0], count)
        self.barrier()
        return self.load(answer[0]) == last

    def grid_barrier(self, words: GlobalArray, barriers: int) -> None:
        """Every thread of the grid waits for every other; what they wrote to global memory before is seen by all after. All
        threads must reach it, and the launch must be cooperative. `words` is u32[2] in global memory, zeros before the launch
        and after it. `barriers`, at least 2, is how many such barriers each thread passes in all, with the same words.

        Word 0 counts the blocks that have arrived, word 1 the barriers that have opened; both go back to 0 by themselves. A
        block that waits for MOST_POLLS looks at word 1 traps: the others are not there."""
        self._require_one_dimensional("k.grid_barrier")
        if not self._function.cooperative:
            raise AuthorError(
                "k.grid_barrier waits for all blocks, and the launch does not hold them all at once",
                self.where(),
                "say so in launch(): LaunchConfig(..., cooperative=True)",
            )
        if not isinstance(words, GlobalArray):
            raise no_array("k.grid_barrier", words, self.where)
        if words.dtype != U32 or prod(words.shape) < 2:
            given = f"{words.dtype}[{', '.join(map(str, words.shape))}]"
            raise TypeMismatch(f"the words of k.grid_barrier must be u32[2] in global memory, these are {given}", self.where())
        if barriers < 2:
            raise AuthorError(
                f"a launch passes 2 barriers or more, got {barriers}: the count of those that have opened must change at each "
                "and be 0 again after the last",
                self.where(),
                "add one at the end if there is one alone",
            )
        arrived, opened = words.at(*[0] * len(words.shape)), words.at(*[0] * (len(words.shape) - 1), 1)
        count = {"scope": "gpu", "space": "global", "op": "inc", "type": "u32"}
        self.barrier()  # what all threads of the block wrote comes before the arrival, which publishes it
        with self.when(self.special("%tid.x") == 0):
            last = self.blocks - 1
            before = self.load(opened[0], order="relaxed", scope="gpu")  # before the arrival: after it the last may open
            (number,) = self.write("atom", [arrived[0].address, last], {**count, "order": "acq_rel"})  # from `last` to 0
            with self.when(number == last):
                self.write("red", [opened[0].address, barriers - 1], {**count, "order": "release"})
            with self.otherwise():
                self._poll(opened[0], "gpu", lambda now: now == before)
        self.barrier()

    def signal_peers(self, flags: GlobalArray, peers: PeerArrays, rank: Value, block: Index) -> Value:
        """Tell the blocks of this number on all other ranks that what this block has written before, to whichever rank's
        memory, may be read there. All threads of the block must reach it, ranks or more of them. Returns the number of the
        signal, which k.wait_for_peers takes. The launch must be one of several ranks.

        `flags` is u32[blocks, ranks] in this rank's memory, `peers` the flags of all ranks, `rank` u32. Row b is for the blocks
        b: element r has the number of the last signal of rank r, this rank's own the one that it has given. All are equal
        before the first launch of all (zeros), and no launch changes that: a graph can be replayed as it is. Numbers go on
        after 2^32 - 1 with 0.

        The bar.sync before puts the writes of all threads before the signal, and a release at `.sys` scope makes whatever comes
        before it visible to who acquires it on another device (PTX ISA 8.8, release and acquire patterns, cumulativity)."""
        self._require_flags("k.signal_peers", flags, rank)
        if not isinstance(peers, PeerArrays) or (peers.dtype, peers.shape) != (flags.dtype, flags.shape):
            raise TypeMismatch(
                f"the peers of k.signal_peers must be the flags of all ranks, got {peers}",
                self.where(),
                'declare their addresses in signature(): "peers": addresses("flags", ranks)',
            )
        ranks, thread = flags.shape[1], self.special("%tid.x")
        mine = flags[block, rank]
        number = self.load(mine) + 1
        self.barrier()
        with self.when(thread < ranks):
            with self.when(thread == rank):
                self.store(mine, number)
            with self.otherwise():
                self.store(peers[thread][block, rank], number, order="release", scope="sys")
        return number

    def wait_for_peers(self, flags: GlobalArray, rank: Value, block: Index, number: Value) -> None:
        """Wait until the blocks of this number on all other ranks have given the signal of this number (k.signal_peers, with
        the same flags): what they wrote before it is seen by all threads of the block after. All of them must reach it.

        A rank may be a signal ahead, never two: for the second it needs one of this rank that comes after this wait. So a flag
        is `number` or the one after, or before that some number up to 2^31 less, which holds beyond 2^32, too. After MOST_POLLS
        looks the thread traps: a rank is not there."""
        self._require_flags("k.wait_for_peers", flags, rank)
        thread = self.special("%tid.x")
        with self.when(thread < flags.shape[1]), self.when(thread != rank):
            self._poll(flags[block, thread], "sys", lambda now: now - number >= 1 << 31)
        self.barrier()

    def send_word(self, place: Element, word: Value, number: Value) -> None:
        """Store a word (u32) and the number of its message (u32) where another rank waits for it with k.receive_words: both
        in one access, of a u64 in its memory. The launch must be one of several ranks.

        Nothing else is made visible by it and nothing has to be waited for, as nothing but the word itself is told: 8 aligned
        bytes are one access that is never seen in part (PTX ISA 8.10.3, single-copy atomicity)."""
        self._require_ranks("k.send_word")
        self._require_word("k.send_word", place)
        self.store(place, self.op("mov", (word, number), result=U64), order="relaxed", scope="sys")

    def receive_words(self, places: Sequence[Element], number: Value) -> list[Value]:
        """Wait until places in this rank's memory have their words of this number (k.send_word), and return these. They must
        have another number before. They are all looked at together. After MOST_POLLS looks the thread traps: a rank is not
        there. The launch may be one by itself: then the words are those of an earlier launch of another rank."""
        for place in places:
            self._require_word("k.receive_words", place)
        looks = self.variable(0, U32)
        again = self.new_label("poll")
        self.place(again)
        found = [self.load(place, order="relaxed", scope="sys") for place in places]
        words, numbers = zip(*(self.write("mov", [one], result=U32) for one in found), strict=True)
        waits = reduce(or_, (told != number for told in numbers))
        self.write("nanosleep", [POLL_NS], guard=waits)
        self.assign(looks, looks + 1)
        self.write("trap", [], guard=looks == MOST_POLLS)
        self.branch(again, waits)
        return list(words)

    def _require_word(self, what: str, place: Element) -> None:
        if not isinstance(place, Element):
            raise no_element(what, place, self.where)
        if place.dtype != U64 or place.space != "global":
            raise TypeMismatch(f"{what} takes an element of u64 in global memory, this is {place}", self.where())

    def _require_ranks(self, what: str) -> None:
        if self._function.ranks < 2:
            raise AuthorError(
                f"{what} is for launches of several ranks, and this is one by itself",
                self.where(),
                "say so in launch(): LaunchConfig(..., ranks=R)",
            )

    def _require_flags(self, what: str, flags: GlobalArray, rank: Value) -> None:
        self._require_one_dimensional(what)
        self._require_ranks(what)
        if not isinstance(flags, GlobalArray):
            raise no_array(what, flags, self.where)
        if not isinstance(rank, Value):
            raise no_register(what, rank, self.where)
        if flags.dtype != U32 or len(flags.shape) != 2 or flags.shape[1] != self._function.ranks:
            given = f"{flags.dtype}[{', '.join(map(str, flags.shape))}]"
            raise TypeMismatch(
                f"the flags of {what} must be u32[blocks, {self._function.ranks}] in global memory, these are {given}",
                self.where(),
            )
        if self.threads < self._function.ranks:
            raise AuthorError(
                f"{what} needs a thread for each of {self._function.ranks} ranks, the block has {self.threads}", self.where()
            )

    @property
    def blocks(self) -> Value:
        """Blocks of the grid."""
        x, y, z = (self.special(f"%nctaid.{axis}") for axis in "xyz")
        return x * y * z

    def _poll(self, word: Element, scope: str, waits: Callable[[Value], Value]) -> None:
        """Wait while that holds of what another block of the scope writes to a word."""
        looks = self.variable(0, U32)
        again = self.new_label("poll")
        self.place(again)
        self.write("nanosleep", [POLL_NS])
        now = self.load(word, order="acquire", scope=scope)
        self.assign(looks, looks + 1)
        self.write("trap", [], guard=looks == MOST_POLLS)
        self.branch(again, waits(now))

    def _block_reduce(self, value: Value, combine: Combine, neutral: float) -> Value:
        threads = self.threads
        if threads % WARP_SIZE:
            raise AuthorError(f"a block reduction needs whole warps, the block has {threads} threads", self.where())
        warps = threads // WARP_SIZE
        value = self.warp_reduce(value, combine)
        if warps == 1:
            return value
        partial = self._partials(value)
        if value.type.bits == 32 and warps in (2, 4, 8):
            return self._combined(partial, warps, combine)
        mine = self.variable(neutral, value.type)
        with self.when(self.lane < warps):
            self.assign(mine, self.load(partial[self.lane]))
        return self.warp_reduce(mine, combine)

    def _partials(self, value: Value) -> SharedView:
        """The values of the block's warps, one of each, where all threads can read them now."""
        partial = self.shared(value.type, self.threads // WARP_SIZE)
        if self.loop_depth:  # the last pass may still be reading
            self.barrier()
        with self.when(self.lane == 0):
            self.store(partial[self.warp], value)
        self.barrier()
        return partial

    def _combined(self, partial: SharedView, count: int, combine: Combine, first: Index = 0) -> Value:
        """Combine `count` from `first` on in the order of warp_reduce, but in every thread by itself, which is faster than
        shuffles."""
        width = min(count, 4)
        values = [value for at in range(0, count, width) for value in self.load_vector(partial[first + at], width)]
        while len(values) > 1:
            half = len(values) // 2
            values = [combine(a, b) for a, b in zip(values[:half], values[half:], strict=True)]
        return values[0]


def _full_mask(value: Value) -> int:
    """The mask of all lanes, as a constant of the value's type: operands of a shuffle are checked together."""
    return -1 if value.type.is_signed else FULL_WARP


def _lowest(type: DType) -> int:
    return -(1 << (type.bits - 1)) if type.is_signed else 0
