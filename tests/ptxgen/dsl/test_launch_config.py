"""What a launch may say of registers, and what becomes of it in the text."""

from __future__ import annotations

import pytest

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.errors import ArgumentError
from ptxgen.target import Target
from ptxgen.toolchain.module import module_text


@pytest.mark.parametrize("count", [-1, 256, 80.0, True, "80"])
def test_registers_that_assemblers_would_pass_over_are_refused(count: object) -> None:
    with pytest.raises(ArgumentError, match=r"^most_registers must be an integer, 0\.\.255, got "):
        LaunchConfig(1, 32, most_registers=count)  # type: ignore[arg-type]


@pytest.mark.parametrize(("count", "said"), [(0, False), (80, True), (255, True)])
def test_the_text_has_the_most_registers_of_a_thread(count: int, said: bool) -> None:
    function = KernelBuilder("probe", {}, LaunchConfig(1, 512, most_registers=count)).finish()
    assert (f".maxntid 512, 1, 1\n.maxnreg {count}\n" in module_text([function], Target(90))) == said
