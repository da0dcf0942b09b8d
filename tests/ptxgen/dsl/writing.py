"""How these tests write small kernels: a body that is a Python function of the builder, without a kernel type around it."""

from __future__ import annotations

from collections.abc import Callable

from ptxgen.dsl.arguments import Signature, read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.ir import Function
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.target import DEFAULT, Target
from ptxgen.toolchain.module import module_text
from ptxgen.types import F32, U32
from ptxgen.verify.verify import verify

Body = Callable[[KernelBuilder], object]

ARGUMENTS: Signature = {"x": read(F32, 256), "n": read(U32, 256), "y": write(F32, 256)}


def written(
    body: Body, *, block: int | tuple[int, ...] = 64, target: Target = DEFAULT, signature: Signature | None = None,
    cooperative: bool = False, ranks: int = 1,
) -> Function:  # fmt: skip
    """The function that `body` writes, not verified. `k.arg` has x: f32[256], n: u32[256], y: f32[256] unless told other."""
    launch = LaunchConfig(1, block, cooperative=cooperative, ranks=ranks)
    k = KernelBuilder("probe", ARGUMENTS if signature is None else signature, launch, target)
    body(k)
    return k.finish()


def verified(body: Body, *, block: int | tuple[int, ...] = 64, target: Target = DEFAULT) -> Function:
    """The same, verified."""
    function = written(body, block=block, target=target)
    verify(function, target)
    return function


def text(
    body: Body, *, block: int | tuple[int, ...] = 64, target: Target = DEFAULT, signature: Signature | None = None,
    cooperative: bool = False,
) -> str:  # fmt: skip
    """The text of a module with this one kernel, verified."""
    function = written(body, block=block, target=target, signature=signature, cooperative=cooperative)
    verify(function, target)
    return module_text([function], target)


def lines_of(body: Body, *, block: int | tuple[int, ...] = 64, target: Target = DEFAULT) -> list[str]:
    """The instructions and labels of the text, without declarations and remarks."""
    lines = text(body, block=block, target=target).split("{\n", 1)[1].splitlines()
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith((".", "}", "//"))]
