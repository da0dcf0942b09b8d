"""Products of warpgroups as LLVM IR. Each warp makes its own rows where the product begins: what is not to be touched until it
was waited for, the verifier knows, and the sanitiser looks after what lies in shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.emulator.bulk_copies import BulkCopyOperations
from ptxgen.emulator.emitter import Emitter
from ptxgen.emulator.layout import ContextWord
from ptxgen.emulator.registers import Frame
from ptxgen.emulator.runtime import product_checks
from ptxgen.emulator.runtime.products import multiplier
from ptxgen.emulator.runtime.proxies import fence_proxy
from ptxgen.emulator.values import Lanes
from ptxgen.isa.algebra import Number
from ptxgen.types import F32, PRED, U32, U64

_FLOATS = "<32 x float>"
_WORDS = "<32 x i32>"
_SIGNS = 0x80008000


class ProductOperations(BulkCopyOperations):
    """Asynchronous products."""

    def __init__(self, e: Emitter, frame: Frame) -> None:
        self.factor_memory = ""
        self.accumulator_memory: dict[int, str] = {}  # by the number of vectors
        super().__init__(e, frame)

    def start_block(self, mask: str) -> None:
        super().start_block(mask)
        self.accumulated: dict[int, tuple[str, ...]] = {}  # what the memory holds

    def product(
        self, c: Sequence[Number], a: Sequence[Number], b: Number, scale_d: Number, type: str, *, negative: bool
    ) -> tuple[Lanes, ...]:
        words = [self.bits(one, U32) for one in a]
        if negative:
            words = [word ^ _SIGNS for word in words]
        factors = self._factors([self.spread(word) for word in words])
        accumulators = self._accumulators(tuple(self.spread(self.like(one, F32)) for one in c))
        descriptor, keeps = self._of_warp(self.bits(b, U64)), self._of_warp(self.like(scale_d, PRED))
        groups: int | str = len(c) // 4
        if self.sanitize:
            fine = self.e.call_runtime(
                product_checks.begin_product, "%c", "%s", "%products", descriptor, groups, self.mask, self.line
            )
            groups = self.e.emit(f"select i1 {fine}, i64 {groups}, i64 0")
        shared = self.slot(ContextWord.SHARED).name
        self.e.call_runtime(multiplier(type), accumulators, factors, descriptor, shared, groups, keeps)
        return self._copied_back(accumulators, len(c))

    def _factors(self, vectors: Sequence[str]) -> str:
        """The address of a copy of the registers of a."""
        if not self.factor_memory:
            self.factor_memory = self.e.alloca(_WORDS, len(vectors))
        for i, vector in enumerate(vectors):
            self._put(self.factor_memory, i, _WORDS, vector)
        return self.factor_memory

    def _accumulators(self, vectors: tuple[str, ...]) -> str:
        """The address of a copy of the accumulators. Those that the product before has left there are there."""
        memory = self.accumulator_memory.setdefault(len(vectors), "")
        if not memory:
            memory = self.accumulator_memory[len(vectors)] = self.e.alloca(_FLOATS, len(vectors))
        if self.accumulated.get(len(vectors)) != vectors:
            for i, vector in enumerate(vectors):
                self._put(memory, i, _FLOATS, vector)
        return memory

    def _put(self, memory: str, index: int, kind: str, vector: str) -> None:
        at = self.e.emit(f"getelementptr {kind}, ptr {memory}, i64 {index}")
        self.e.do(f"store {kind} {vector}, ptr {at}, align 64")

    def _copied_back(self, memory: str, count: int) -> tuple[Lanes, ...]:
        names = []
        for i in range(count):
            at = self.e.emit(f"getelementptr {_FLOATS}, ptr {memory}, i64 {i}")
            names.append(self.e.emit(f"load {_FLOATS}, ptr {at}, align 64"))
        self.accumulated[count] = tuple(names)
        return tuple(Lanes(self, F32, name, False, loose=True) for name in names)

    def _of_warp(self, value: Lanes) -> str:
        """What must be the same in all lanes."""
        return value.name if value.uniform else self.e.emit(f"extractelement {value.llvm_type} {value.name}, i32 0")

    def product_fence(self) -> None:
        self._step()

    def commit_products(self) -> None:
        self._step()
        if self.frame.checks_products:
            self.e.call_runtime(product_checks.commit_products, "%s")

    def wait_products(self, pending: int) -> None:
        self._step()
        if self.frame.checks_products:
            self.e.call_runtime(product_checks.wait_products, "%c", "%s", "%products", pending)

    def proxy_fence(self, proxy: str) -> None:
        if self.frame.checks_proxies and proxy != "async.global":  # the checks are of shared memory
            self.e.call_runtime(fence_proxy, "%c", "%s", self.mask)

    def _step(self) -> None:
        if self.sanitize:
            self.e.call_runtime(product_checks.count_step, "%c", "%s", self.mask, self.line)
