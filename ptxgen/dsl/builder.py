"""`KernelBuilder`: what a kernel author writes in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptxgen.dsl.arguments import Array, Signature
from ptxgen.dsl.core import Core
from ptxgen.dsl.ir import Function, Parameter
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import LARGEST_ARRAY, GlobalArray, PeerArrays
from ptxgen.dsl.printing import Printing
from ptxgen.dsl.value import Value
from ptxgen.dsl.warpgroup import Warpgroup
from ptxgen.errors import AuthorError
from ptxgen.isa.operands import Address, Symbol
from ptxgen.target import DEFAULT, Target
from ptxgen.types import U64


class KernelBuilder(Warpgroup, Printing):
    """Writes one kernel. `k.arg.NAME` are its arguments; `k.tid.x`, `k.ctaid.x`, `k.lane`, `k.warp` say which thread runs.

    Every row of the instruction table is a method: `k.fma(a, b, c)`, `k.dp4a(a, b, c)`, `k.lop3(...)` (`and`, `or`, `not`
    are the operators & | ~). Operand types pick the form; modifiers are keywords (`k.add(a, b, rnd="rz")`)."""

    def __init__(
        self,
        name: str,
        signature: Signature,
        launch: LaunchConfig,
        target: Target = DEFAULT,
        summary: str = "",
        *,
        dependent: bool = False,
    ) -> None:
        function = Function(
            name,
            parameters(signature),
            max_threads=launch.block,
            resident=launch.resident,
            most_registers=launch.most_registers,
            dynamic_shared=launch.dynamic_shared,
            cooperative=launch.cooperative,
            ranks=launch.ranks,
            summary=summary,
        )
        super().__init__(function, launch.threads, target)
        self.signature: Signature = signature
        self._dependent = dependent
        self.waited: bool = False
        """Whether the kernel said where it waits."""
        self.freed: bool = False
        """Whether it said where it lets the next launch start."""
        self.arg: _Arguments = _Arguments(self)
        self.tid: _Axes = _Axes(self, "tid")
        self.ctaid: _Axes = _Axes(self, "ctaid")

    def argument(self, name: str) -> Value | GlobalArray | PeerArrays:
        """The argument called `name`: an array for a pointer, a register for a scalar, arrays for addresses of arrays."""
        if name not in self.signature:
            raise AuthorError(f"the kernel has no argument {name!r}; it has {', '.join(self.signature)}", self.where())
        argument = self.signature[name]
        type = U64 if isinstance(argument, Array) else argument.dtype
        value = self._once(f"param {name}", "ld", [Address(Symbol(name))], {"space": "param", "type": type.name}, type)
        if not isinstance(argument, Array):
            return value
        if argument.size >= LARGEST_ARRAY:
            raise AuthorError(f"argument {name} has {argument.size} elements; the limit is {LARGEST_ARRAY - 1}", self.where())
        base = self._once(f"global {name}", "cvta", [value], {"to": "to", "space": "global"}, U64)
        array = GlobalArray(self, name, base, argument.dtype, argument.shape)
        if not argument.addresses_of:
            return array
        of = self.signature.get(argument.addresses_of)
        if not isinstance(of, Array):
            raise AuthorError(f"{name} has the addresses of {argument.addresses_of}, which is no array argument", self.where())
        return PeerArrays(self, f"{argument.addresses_of} of a rank", array, of.dtype, of.shape)

    def wait_for_launch_before(self) -> None:
        """From here on the kernel may touch what launches before it write; before, it may read constant and settled arguments.
        All threads must call it, or another one of these. It does nothing where the kernel is not dependent. For kernels
        that are `waits_inside`."""
        self.waited = True
        if self._dependent:
            self.write("griddepcontrol", [], {"action": "wait"})

    def let_next_launch_start(self) -> None:
        """The next launch may start when all blocks have called it or ended. It does nothing where the kernel does not start
        early. For kernels that say `frees_next_inside`."""
        self.freed = True
        if self._dependent:
            self.write("griddepcontrol", [], {"action": "launch_dependents"})


class _Axes:
    """Reads %name.x, .y, .z on first use."""

    x: Value
    y: Value
    z: Value

    def __init__(self, k: Core, name: str) -> None:
        self._k = k
        self._name = name

    def __repr__(self) -> str:
        return f"k.{self._name}, which has the parts k.{self._name}.x, .y and .z"

    if not TYPE_CHECKING:

        def __getattr__(self, axis: str) -> Value:
            return self._k.special(f"%{self._name}.{axis}")


class _Arguments:
    """`k.arg.NAME`."""

    def __init__(self, k: KernelBuilder) -> None:
        self._k = k

    def __getattr__(self, name: str) -> Any:
        return self._k.argument(name)


def parameters(signature: Signature) -> tuple[Parameter, ...]:
    """The entry's parameters for these arguments."""
    return tuple(
        Parameter(name, U64, f"{argument}, {argument.direction}", argument.align)
        if isinstance(argument, Array)
        else Parameter(name, argument.dtype)
        for name, argument in signature.items()
    )
