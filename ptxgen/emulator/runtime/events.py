"""What tells ordering.py of fences and of strong accesses, in kernels that have any."""

from __future__ import annotations

from ptxgen.emulator.layout import ContextWord, State
from ptxgen.emulator.ordering import FENCE, RELEASES
from ptxgen.emulator.runtime.builder import Builder, IrValue
from ptxgen.emulator.runtime.function import runtime_function
from ptxgen.emulator.runtime.views import Context, WarpState
from ptxgen.target import WARP_SIZE

_MIX = 0x5851F42D4C957F2D  # odd, and otherwise of no meaning


@runtime_function("void", context="ptr", state="ptr", addresses="<32 x i64>", lanes="i32", flags="i32")
def event(b: Builder, context: IrValue, state: IrValue, addresses: IrValue, lanes: IrValue, flags: IrValue) -> None:
    """Pass an event to `ContextWord.EVENT`. The same event again, with none between, says nothing new unless it releases: a
    warp that spins stays cheap."""
    c, s = Context(context), WarpState(state)
    first, epoch, serial = (c[slot].resized("i32") for slot in (ContextWord.FIRST_EPOCH, ContextWord.EPOCH, ContextWord.SERIAL))
    warp, sync = s[State.WARP], s[State.SYNC_EPOCH]
    weights = b.vector([_MIX + 2 * lane for lane in range(WARP_SIZE)], "i64")
    key = b.intrinsic("llvm.vector.reduce.add.v32i64", "i64", addresses * weights)
    for word in (first, epoch, warp, sync, lanes, flags):
        key = key * _MIX + word.resized("i64")
    is_again = c[ContextWord.LAST_EVENT] == key
    c[ContextWord.LAST_EVENT] = key
    with b.when(is_again & ((flags & (RELEASES | FENCE)) == 0)):
        b.ret()
    b.call_address(c[ContextWord.EVENT], "void", first, epoch, warp, sync, serial, lanes, flags, b.table(addresses))
