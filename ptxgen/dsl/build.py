"""How a kernel type becomes a function: its arguments, what a dependent or a stamped form adds, and its body."""

from __future__ import annotations

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.ir import Function
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.parts import parts_of, summary
from ptxgen.dsl.stamps import stamped_signature, write_stamps
from ptxgen.errors import AuthorError
from ptxgen.target import Target


def build(kernel: KernelType, target: Target | None = None, *, dependent: bool = False, stamped: bool = False) -> Function:
    """Write the kernel for a target (KernelType.target_for). The result is not verified yet (see ptxgen.verify). dependent: so
    that it may start before the launch before it has ended, as LaunchConfig.dependent says; unless it does so by itself, it
    lets the next one start and then waits, before all else or where it says (KernelType.waits_inside). stamped: with the times
    of a launch, in one more argument (stamps.py)."""
    dependent = dependent and not kernel.launch().dependent
    signature = stamped_signature(kernel) if stamped else kernel.signature()
    target = kernel.target_for(target)
    k = KernelBuilder(
        kernel.name, signature, kernel.launch(), target, summary(type(kernel), parts_of(kernel)), dependent=dependent
    )
    if dependent:
        if not kernel.frees_next_inside:
            k.let_next_launch_start()
        if not kernel.waits_inside:
            k.wait_for_launch_before()
    kernel.emit(k)
    if kernel.waits_inside and not k.waited:
        raise AuthorError(
            f"{kernel.name} says that it waits inside (waits_inside) and does so nowhere",
            None,
            "call k.wait_for_launch_before() before it touches what launches before it write",
        )
    if kernel.frees_next_inside and not k.freed:
        raise AuthorError(
            f"{kernel.name} says that it lets the next launch start inside (frees_next_inside) and does so nowhere",
            None,
            "call k.let_next_launch_start() where it needs its share of the GPU no more",
        )
    if stamped:
        write_stamps(k)
    function = k.finish()
    function.kernel = str(kernel)
    return function
