"""Memory that the runtime and the launching side share, by the names of its parts, while a function is being built."""

from __future__ import annotations

import ctypes

from ptxgen.emulator.layout import ContextWord, State
from ptxgen.emulator.runtime.builder import VECTOR_ALIGNMENT, IrValue
from ptxgen.target import WARP_SIZE


class StructView:
    """A structure by the names of its fields: `record["epoch"]` loads, `record["epoch"] = x` stores."""

    def __init__(self, pointer: IrValue, structure: type[ctypes.Structure]) -> None:
        self.pointer, self.structure = pointer, structure

    def __getitem__(self, name: str) -> IrValue:
        field = getattr(self.structure, name)
        return self.pointer.at(field.offset).load(f"i{8 * field.size}")

    def __setitem__(self, name: str, value: IrValue | int) -> None:
        field = getattr(self.structure, name)
        self.pointer.at(field.offset).store(value, f"i{8 * field.size}")


class Context:
    """The words of a launch's context: `context[ContextWord.EPOCH]`."""

    def __init__(self, pointer: IrValue) -> None:
        self.pointer = pointer

    def __getitem__(self, slot: ContextWord) -> IrValue:
        return self.pointer.at(slot, "i64").load("i64")

    def __setitem__(self, slot: ContextWord, value: IrValue | int) -> None:
        self.pointer.at(slot, "i64").store(value, "i64")


class WarpState:
    """What a warp's state holds: `state[State.PCS]` is a vector of an i32 a lane, `state[State.WARP]` one i32 of the warp."""

    def __init__(self, pointer: IrValue) -> None:
        self.pointer = pointer

    def __getitem__(self, part: State) -> IrValue:
        return self.pointer.at(part).load(*self._layout(part))

    def __setitem__(self, part: State, value: IrValue | int) -> None:
        self.pointer.at(part).store(value, *self._layout(part))

    def _layout(self, part: State) -> tuple[str, int]:
        return (f"<{WARP_SIZE} x i32>", VECTOR_ALIGNMENT) if part < State.WARP else ("i32", 4)

    def of_lane(self, part: State, lane: IrValue) -> IrValue:
        """The address of one lane's element of a vector."""
        return self.pointer.at(part).at(lane.resized("i64"), "i32")
