"""The fields of a kernel's parts are its parameters, under a registered name and by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, ClassVar

import pytest

from ptxgen.dsl.parts import (
    PARTS,
    KernelPart,
    composed,
    parameters_of,
    part_parameters,
    summary,
    usual_parameters,
    with_parameters,
)
from ptxgen.errors import ArgumentError


@dataclass(frozen=True)
class Nothing(KernelPart):
    pass


@dataclass(frozen=True)
class Wide(KernelPart):
    summary: ClassVar[str] = "several at once"
    defaults: ClassVar[Mapping[str, Any]] = {"warps": 2}
    width: int
    step: int = 1


@dataclass(frozen=True)
class Kernel:
    """A kernel."""

    n: int
    warps: int = 8
    hidden: int = field(default=0, metadata={"shown": False})
    shape: KernelPart = field(default=Nothing(), metadata=PARTS)
    chain: tuple[KernelPart, ...] = field(default=(), metadata=PARTS)


FIXED = {"shape": Nothing, "chain": (Wide,)}


def test_a_name_has_the_parameters_of_the_parts_that_it_fixes_with_their_defaults() -> None:
    assert parameters_of(Kernel, {"shape": Nothing, "chain": ()}) == {"n": MISSING, "warps": 8}
    assert parameters_of(Kernel, FIXED) == {"n": MISSING, "warps": 2, "width": MISSING, "step": 1}


def test_a_kernel_is_composed_of_parameters_of_its_own_and_of_its_parts() -> None:
    kernel = composed(Kernel, FIXED, {"n": 5, "width": 3})
    assert kernel == Kernel(5, warps=2, chain=(Wide(3),))
    assert part_parameters(kernel) == {"width": 3, "step": 1}
    assert usual_parameters(kernel) == {"warps": 2, "hidden": 0, "step": 1}
    with pytest.raises(ArgumentError, match="Wide needs width"):
        composed(Kernel, FIXED, {"n": 5})


def test_parameters_are_changed_wherever_they_are_held() -> None:
    kernel = Kernel(5, shape=Wide(3), chain=(Nothing(),))
    assert with_parameters(kernel, n=6, step=4) == Kernel(6, shape=Wide(3, step=4), chain=(Nothing(),))
    assert with_parameters(kernel) == kernel


def test_parts_say_what_they_add_to_a_summary() -> None:
    assert summary(Kernel, [Nothing]) == "A kernel."
    assert summary(Kernel, [Nothing(), Wide(1)]) == "A kernel; several at once"
