"""What the operands of probe kernels are filled with: edge values (zeros, infinities, NaN, subnormals, extremes, counts beyond
the width) among random ones. The same bytes on every machine and with every NumPy, so that recorded results stay good.
"""

from __future__ import annotations

import re
import zlib
from functools import cache
from typing import TYPE_CHECKING

from ptxgen.target import WARP_SIZE
from ptxgen.types import BF16, F16, F32, F64, PRED, DType
from tests.ptxgen.isa.probe import Batch, Field, Probe

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bits = NDArray[np.unsignedinteger]

# Exponent bits, fraction bits.
_FLOATS = {F16: (5, 10), BF16: (8, 7), F32: (8, 23), F64: (11, 52)}

# Operands (mnemonic.name) that count bits.
_COUNTS = frozenset({"shl.b", "shr.b", "shf.c", "bfe.b", "bfe.c", "bfi.c", "bfi.e", "bmsk.a", "bmsk.b", "szext.b"})
_COUNT_EDGES = (0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 255, 256, 0x80000000, 0xFFFFFFFF)

# Bounds and segment masks that shuffles are used with: whole warp, groups of 8, 16 and 4, up.
SHUFFLE_BOUNDS = (0x1F, 0x181F, 0x100F, 0x1C03, 0, 0x1800)

# The largest magnitude that the approximation of this mnemonic is asked for.
_RANGES = {"sin": 6.28, "cos": 6.28, "ex2": 140.0, "tanh": 12.0}


_NUMBERED = re.compile(r"(%x|array|over|list|function)[0-9]+")
_WITHOUT_NUMBER = r"\1"


def key(probe: Probe) -> str:
    """A name for the probe that does not change when rows are added: its instruction without register numbers."""
    return f"{probe.row.name}: {_NUMBERED.sub(_WITHOUT_NUMBER, probe.instruction)}"


def records(batch: Batch, count: int) -> NDArray[np.uint8]:
    """`count` input records, uint8[count, in_bytes]. The fields of a probe depend on the probe alone."""
    import numpy as np

    filled = np.zeros((count, batch.in_bytes), np.uint8)
    for probe in batch.probes:
        for number, field in enumerate(probe.inputs):
            seed = zlib.crc32(f"{key(probe)} {number} {field.type} {field.count}".encode())
            values = _values(field, count, seed)
            filled[:, field.offset : field.offset + field.bytes] = values.view(np.uint8).reshape(count, field.bytes)
    return filled


def random_bits(seed: int, count: int) -> NDArray[np.uint64]:
    """uint64[count] from the SplitMix64 sequence of `seed`."""
    import numpy as np

    with np.errstate(over="ignore"):
        z = np.uint64(seed) * np.uint64(0xD1342543DE82EF95) + (np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


_GOLDEN = 0x9E3779B97F4A7C15


def _values(field: Field, count: int, seed: int) -> Bits:
    """[count, field.count] bit patterns."""
    import numpy as np

    n = count * field.count
    unsigned = np.dtype(f"u{max(field.type.bytes, 1)}")
    words = random_bits(seed, 2 * n)
    bits, choice = words[:n], words[n:]
    hint = field.hint
    if field.type == PRED:
        chosen = _predicates(bits, count)
    elif hint in _COUNTS:
        chosen = np.where(choice % 2 == 0, _pick(_COUNT_EDGES, bits), bits % 70)
    elif hint == "fns.b":
        chosen = bits % 32
    elif hint == "fns.c":
        chosen = bits % 41 - 20
    elif hint == "shfl.b":
        chosen = bits % 40
    elif hint == "shfl.c":
        chosen = _pick(SHUFFLE_BOUNDS, bits)
    elif hint == "match.a":
        chosen = np.where(np.arange(n) % (2 * WARP_SIZE) < WARP_SIZE, bits % 3, 5)
    elif hint.startswith("mma.") and not field.type.is_integer:
        chosen = _moderate(bits, field.type)
    elif field.type.is_float and hint.partition(".")[0] in _RANGES:
        chosen = _spread(bits, choice, field.type, _RANGES[hint.partition(".")[0]])
    else:
        chosen = _mixed(bits, choice, field.type)
    values: Bits = chosen.astype(unsigned).reshape(count, field.count)
    return values


def _pick(values: tuple[int, ...], bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    import numpy as np

    picked: NDArray[np.uint64] = np.array(values, np.uint64)[bits % len(values)]
    return picked


def _predicates(bits: NDArray[np.uint64], count: int) -> NDArray[np.uint64]:
    """Warp by warp: any, all true, all false, one true."""
    import numpy as np

    warp, lane = np.arange(count) // WARP_SIZE % 4, np.arange(count) % WARP_SIZE
    uniform = [np.full(count, 1, np.uint64), np.zeros(count, np.uint64), (lane == 11).astype(np.uint64)]
    chosen: NDArray[np.uint64] = np.select([warp == 1, warp == 2, warp == 3], uniform, bits & np.uint64(1))
    return chosen


def _mixed(bits: NDArray[np.uint64], choice: NDArray[np.uint64], type: DType) -> NDArray[np.uint64]:
    """Every third an edge, every third all random bits, the rest numbers of ordinary size."""
    import numpy as np

    if type.lanes == 2:
        half = F16 if type.name == "f16x2" else BF16
        low, high = _mixed(bits, choice, half), _mixed(bits >> np.uint64(20), choice >> np.uint64(20), half)
        return low | high << np.uint64(16)
    edges = np.array(_edges(type), np.uint64)
    kind = choice % 3
    ordinary = _ordinary(bits, choice, type)
    return np.where(kind == 0, edges[(choice >> np.uint64(8)) % len(edges)], np.where(kind == 1, bits, ordinary))


def _ordinary(bits: NDArray[np.uint64], choice: NDArray[np.uint64], type: DType) -> NDArray[np.uint64]:
    import numpy as np

    if type in _FLOATS:
        exponent_bits, fraction_bits = _FLOATS[type]
        bias = (1 << exponent_bits - 1) - 1
        exponent = bias - 4 + (choice >> np.uint64(16)) % 12
        fraction = bits & np.uint64((1 << fraction_bits) - 1)
        sign = (bits >> np.uint64(63)) << np.uint64(type.bits - 1)
        number: NDArray[np.uint64] = sign | exponent << np.uint64(fraction_bits) | fraction
        return number
    length = (choice >> np.uint64(16)) % type.bits
    small = bits & ((np.uint64(1) << length) - np.uint64(1))
    return np.where((choice >> np.uint64(40)) % 2 == 0, small, ~small)


@cache
def _edges(type: DType) -> tuple[int, ...]:
    mask = (1 << type.bits) - 1
    if type not in _FLOATS:
        top = 1 << type.bits - 1
        return tuple(
            x & mask for x in (0, 1, 2, 3, -1, -2, top, top - 1, top + 1, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0x10000)
        )
    exponent_bits, fraction_bits = _FLOATS[type]
    one = ((1 << exponent_bits - 1) - 1) << fraction_bits
    step = 1 << fraction_bits
    infinity = ((1 << exponent_bits) - 1) << fraction_bits
    positive = [
        0, 1, step // 2, step - 1, step, one, one - 1, one + 1, one - step, one + step, one + step // 2, one + step + step // 4,
        infinity - 1, infinity, infinity + step // 2, infinity + step // 2 + 1, infinity + 1, one + 31 * step,
        one + (infinity - one) // 2,
    ]  # fmt: skip
    return tuple(x & mask for value in positive for x in (value, value | 1 << type.bits - 1))


def _moderate(bits: NDArray[np.uint64], type: DType) -> NDArray[np.uint64]:
    """Numbers between 1/2 and 4, whether the register is read as f32, tf32 or as two f16 or bf16."""
    import numpy as np

    if type == F32:
        return (bits & np.uint64(0x80FFFFFF)) | np.uint64(0x3F000000)
    exponent = np.uint64(0x38003800) + (bits >> np.uint64(40)) % 3 * np.uint64(0x04000400)
    return (bits & np.uint64(0x83FF83FF)) | exponent


def _spread(bits: NDArray[np.uint64], choice: NDArray[np.uint64], type: DType, limit: float) -> NDArray[np.uint64]:
    """Numbers evenly between -limit and limit, every fourth an edge."""
    import numpy as np

    if type.lanes == 2:
        half = F16 if type.name == "f16x2" else BF16
        low, high = _spread(bits, choice, half, limit), _spread(bits << np.uint64(20), choice >> np.uint64(20), half, limit)
        return low | high << np.uint64(16)
    limit = min(limit, 13.0) if type == F16 else limit
    number = ((bits >> np.uint64(40)).astype(np.float32) / np.float32(1 << 23) - 1) * np.float32(limit)
    if type == F32:
        plain = number.view(np.uint32).astype(np.uint64)
    elif type == F16:
        plain = number.astype(np.float16).view(np.uint16).astype(np.uint64)
    else:
        plain = (number.view(np.uint32) >> np.uint32(16)).astype(np.uint64)
    edges = np.array(_edges(type), np.uint64)
    return np.where(choice % 4 == 0, edges[(choice >> np.uint64(8)) % len(edges)], plain)
