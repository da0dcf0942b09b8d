"""Every dependent launch of the steps of the benchmark models is proved from the texts of their kernels: what they touch before
the wait on some path, and where they let the next launch start."""

from __future__ import annotations

from functools import cache

import pytest

from executor.launch import launch
from ptxgen.conformance.before_wait import before_wait
from ptxgen.dsl.arguments import Signature
from ptxgen.dsl.dependent_launch import BeforeWait, promised
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.target import Target
from ptxgen.toolchain.module import emit
from tests.oracle.launches import SUBJECTS, Subject

HOPPER = Target(90)
EARLY = [subject for subject in SUBJECTS if subject.gpu != "no-table"]
"""No kernel of the others, sm_80, is dependent."""
LAYERS = 2
"""Of which the second begins where another layer has ended."""


@cache
def _of_text(kernel: KernelType, dependent: bool) -> BeforeWait:
    text = emit(kernel, kernel.target_for(HOPPER), dependent=dependent).text
    return before_wait(text, kernel.name, kernel.signature())


def of_text(kernel: KernelType, signature: Signature, *, dependent: bool, of_itself: bool) -> BeforeWait:
    """As `promised`, by the kernel's text."""
    return _of_text(kernel, dependent) if dependent or of_itself else BeforeWait()


@pytest.fixture
def proved(monkeypatch: pytest.MonkeyPatch) -> list[KernelType]:
    """Graphs are checked by the facts of texts; the kernels whose texts were read."""
    read: list[KernelType] = []

    def facts(kernel: KernelType, signature: Signature, *, dependent: bool, of_itself: bool) -> BeforeWait:
        found, promise = (of(kernel, signature, dependent=dependent, of_itself=of_itself) for of in (of_text, promised))
        assert found.reads <= promise.reads, kernel
        read.append(kernel)
        return found

    monkeypatch.setattr(launch, "promised", facts)
    return read


def test_every_dependent_launch_of_a_token_is_proved(proved: list[KernelType]) -> None:
    listing = EARLY[0].listing(LAYERS, steps=1)
    assert listing.count(" dependent;") > 5 * LAYERS
    assert len(set(proved)) > 5


@pytest.mark.slow
@pytest.mark.parametrize("subject", EARLY, ids=str)
def test_every_dependent_launch_of_a_model_is_proved(subject: Subject, proved: list[KernelType]) -> None:
    assert subject.listing(LAYERS).count(" dependent;") > 3 * 5 * LAYERS
    assert len(set(proved)) > 10


def test_no_launch_of_other_gpus_is_dependent() -> None:
    others = [subject for subject in SUBJECTS if subject not in EARLY]
    assert others
    assert not any(" dependent;" in subject.path.read_text(encoding="utf-8") for subject in others)
