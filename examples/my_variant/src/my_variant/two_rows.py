"""my_q4k_gemv: two rows a warp, so that each activation is loaded once for both."""

from dataclasses import dataclass

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.formats import FORMATS
from ptxgen.formats.format import LaneAddress
from ptxgen.kernels.gemv.gemv_type import GemvType
from ptxgen.kernels.registry import register

WARPS, ROWS = 4, 2  # warps a block, rows a warp


@register(format=[FORMATS["Q4_K"]])
@dataclass(frozen=True)
class TwoRows(GemvType):
    """y = W x, two rows a warp. y: f32[n]; w: u8[n, row_bytes], rows of k values; x: f32[k]."""

    name = "my_q4k_gemv"

    @property
    def chain(self) -> int:
        return self.k // 32 + 5  # a lane adds every 32nd product, then the lanes are added in pairs

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.n // (WARPS * ROWS)), block=32 * WARPS)

    def emit(self, k: KernelBuilder) -> None:
        first = (k.ctaid.x * WARPS + k.warp) * ROWS
        with k.when(first < self.n):
            numbers = [k.min(first + i, self.n - 1) for i in range(ROWS)]  # an odd n: its last row twice, stored once
            rows = [k.arg.w.at(number, 0) for number in numbers]
            sums = [k.f32(0.0) for _ in rows]
            for i in k.strided(0, self.k // self.format.block):
                x = k.arg.x.at(i * self.format.block + k.lane)
                blocks = [row.at(i * self.format.block_bytes) for row in rows]
                decoders = [self.format.reader(k, LaneAddress(block, block.at(k.lane), k.lane)) for block in blocks]
                for group in range(self.format.groups):
                    for weights in zip(*(decode(group) for decode in decoders), strict=True):
                        value = k.load(x[64 * group + weights[0].offset])
                        for row, weight in enumerate(weights):
                            sums[row] @= k.fma(weight.value, value, sums[row])
            for row, total in enumerate(map(k.warp_sum, sums)):
                with k.when((k.lane == 0) & (first + row < self.n)):
                    k.store(k.arg.y[first + row], total)
