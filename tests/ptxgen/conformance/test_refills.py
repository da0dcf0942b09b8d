"""A ring whose slots are filled again conforms only if a proxy fence, or an mbarrier that readers arrive at, stands between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from ptxgen.conformance import check
from ptxgen.conformance.refills import violations
from ptxgen.dsl.arguments import Signature, read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.target import FULL_WARP, WARP_SIZE
from ptxgen.types import U32, U64
from tests.ptxgen.emulator.test_bulk_copies import FENCE, MEET, RING, WAIT
from tests.ptxgen.emulator.test_proxies import ARRIVE, STORE, declared, used_late

BYTES = 4 * WARP_SIZE
GLOBAL = "fence.proxy.async.global;"


@pytest.mark.parametrize(
    ("lines", "right"),
    [
        (f"{MEET}\n{FENCE}", True),
        (f"{FENCE}\n{MEET}", True),
        (f"{MEET}\n@%p3 {FENCE}", True),
        (f"{ARRIVE}\n{WAIT.replace('WAIT', 'FREE')}", True),
        (MEET, False),
        ("bar.sync 0;", False),
        (f"{MEET}\n{GLOBAL}", False),
        (f"{STORE}\n{ARRIVE}\n{WAIT.replace('WAIT', 'FREE')}", False),
        (ARRIVE, False),  # which no wait follows
        (WAIT.replace("WAIT", "AGAIN"), False),  # which no arrival precedes
    ],
)
def test_a_copy_to_what_was_read_needs_a_proxy_fence_or_an_arrival_and_a_wait(lines: str, right: bool) -> None:
    found = violations(declared(replace(RING, read=lines).text), "k")
    assert bool(found) is not right
    assert all("shared" in one and "cp.async.bulk" in one for one in found)


def test_an_arrival_before_the_use_of_what_was_loaded_is_none_and_a_fence_is() -> None:
    handed = f"{ARRIVE}\n{WAIT.replace('WAIT', 'FREE')}"
    assert violations(declared(used_late(replace(RING, read=handed).text)), "k")
    assert not violations(declared(used_late(replace(RING, read=f"{FENCE}\n{handed}").text)), "k")


def test_what_is_read_before_any_copy_or_elsewhere_needs_none() -> None:
    assert not violations(replace(RING, started=f"ld.shared.u32 %r12, [ring];\n{MEET}").text, "k")
    assert not violations(replace(RING, read=MEET).text.replace("[%r12];", "[bars];"), "k")


@dataclass(frozen=True)
class Refilled(KernelType):
    """y = x, u32[rounds, 32], by way of one slot that a bulk copy fills in each round."""

    family: ClassVar[str] = "test"
    name = "test_refilled"
    least_sm = 90
    rounds: int
    fenced: bool = True

    def signature(self) -> Signature:
        return {"y": write(U32, self.rounds, WARP_SIZE), "x": read(U32, self.rounds, WARP_SIZE, align=16)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=1, block=WARP_SIZE)

    def emit(self, k: KernelBuilder) -> None:
        barrier, slot = k.shared(U64, 1), k.shared(U32, WARP_SIZE)
        with k.when(k.tid.x == 0):
            k.mbarrier_init(barrier[0].address, 1)
            k.fence_mbarrier_init()
        k.bar_warp_sync(FULL_WARP)
        for number in k.strided(0, self.rounds):
            with k.when(k.tid.x == 0):
                if self.fenced:
                    k.fence_proxy(proxy="async.shared::cta")
                k.mbarrier_arrive_expect_tx(barrier[0].address, BYTES)
                k.cp_async_bulk(slot[0].address, k.arg.x[number, 0].address, k.u32(BYTES), barrier[0].address)
            with k.loop() as loop:
                loop.break_if(k.mbarrier_try_wait_parity(barrier[0].address, number & 1))
            k.store(k.arg.y[number, k.tid.x], k.load(slot[k.tid.x]))
            k.bar_warp_sync(FULL_WARP)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(rounds=3)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        x = rng.integers(0, 1 << 32, (self.rounds, WARP_SIZE), np.uint32)
        return {"y": np.zeros_like(x), "x": x}

    def reference(self, **arguments: Any) -> dict[str, Any]:
        return {"y": arguments["x"]}

    def tolerance(self, **arguments: Any) -> dict[str, Any]:
        return {"y": 0}

    def work(self) -> Work:
        return Work(0, 2 * self.rounds * BYTES)


@pytest.mark.slow
def test_a_kernel_that_refills_in_order_conforms_and_one_that_does_not_is_found_in_its_text_and_on_the_emulator() -> None:
    report = check(Refilled(rounds=3))
    assert report.passed, str(report)
    reasons = {result.check: result.reason for result in check(Refilled(rounds=3, fenced=False)).failures}
    assert set(reasons) == {"text", "emulator"}
    assert "a bulk copy overwrites what was read" in reasons["text"]
    assert "unfenced: test_refilled" in reasons["emulator"]
