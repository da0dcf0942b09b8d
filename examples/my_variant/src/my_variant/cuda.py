"""my_cuda_q8_0_gemv: the body in CUDA C++, compiled by NVRTC. One warp a row, one weight of every block a lane."""

from dataclasses import dataclass

from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.formats import FORMATS
from ptxgen.kernels.gemv.gemv_type import GemvType
from ptxgen.kernels.registry import register
from ptxgen.toolchain.cuda_source import CudaSourceKernel


@register(format=[FORMATS["Q8_0"]])
@dataclass(frozen=True)
class CudaGemv(CudaSourceKernel, GemvType):
    """y = W x in CUDA C++, one warp a row. y: f32[n]; w: u8[n, row_bytes], rows of k values; x: f32[k]."""

    name = "my_cuda_q8_0_gemv"

    @property
    def chain(self) -> int:
        return self.k // 32 + 5  # a lane adds every 32nd product, then the lanes are added in pairs

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.n // 4), block=128)

    def source(self) -> str:
        return """
            int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
            if (row >= n) return;
            const unsigned char* block = w + (long long)row * (k / 32) * 34;
            float sum = 0.0f;
            for (int i = 0; i < k; i += 32, block += 34) {
                float scale;
                asm("cvt.f32.f16 %0, %1;" : "=f"(scale) : "h"(*(const unsigned short*)block));
                sum = fmaf(scale * (signed char)block[2 + lane], x[i + lane], sum);
            }
            for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
            if (lane == 0) y[row] = sum;
        """
