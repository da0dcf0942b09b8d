"""PTX that NVIDIA's compiler wrote, run on the emulator against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.emulator import run
from tests.ptxgen.emulator.nvrtc import compile_cuda

Array = np.ndarray[Any, Any]
rng = np.random.default_rng(7)


@pytest.fixture(params=[False, True], ids=["plain", "sanitised"])
def sanitize(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def launch(text: str, entry: str, grid: Any, block: Any, *args: Any, sanitize: bool = True, **more: Any) -> None:
    """Run, and show every finding if there is one."""
    findings = run(text, entry, grid, block, args, sanitize=sanitize, **more)
    assert not findings, "\n".join(map(str, findings))


VECTOR_ADD = """extern "C" __global__ void k(float* c, const float* a, const float* b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) c[i] = a[i] + b[i]; }"""


@pytest.mark.parametrize("block", [32, 40, 256])
def test_vector_add_with_partial_warps_and_a_ragged_end(sanitize: bool, block: int) -> None:
    a, b, c = rng.normal(size=(3, 1001)).astype(np.float32)
    launch(compile_cuda(VECTOR_ADD), "k", -(-1001 // block), block, c, a, b, np.int32(1001), sanitize=sanitize)
    assert np.array_equal(c, a + b)


REDUCTION = """extern "C" __global__ void k(float* out, const float* a, int n) {
  __shared__ float s[32]; float t = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) t += a[i];
  for (int d = 16; d; d >>= 1) t += __shfl_xor_sync(~0u, t, d);
  if ((threadIdx.x & 31) == 0) s[threadIdx.x >> 5] = t;
  __syncthreads();
  if (threadIdx.x < 32) {
    t = threadIdx.x < blockDim.x / 32 ? s[threadIdx.x] : 0.f;
    for (int d = 16; d; d >>= 1) t += __shfl_down_sync(~0u, t, d);
    if (!threadIdx.x) out[0] = t; } }"""


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_block_reduction_with_shuffles_in_any_warp_order(sanitize: bool, seed: int | None) -> None:
    a, out = rng.normal(size=3000).astype(np.float32), np.zeros(1, np.float32)
    launch(compile_cuda(REDUCTION), "k", 1, 256, out, a, np.int32(3000), sanitize=sanitize, seed=seed)
    assert abs(out[0] - a.astype(np.float64).sum()) < 1e-3


def test_softmax_rows(sanitize: bool) -> None:
    text = compile_cuda("""extern "C" __global__ void k(float* y, const float* x, int n) {
      __shared__ float s[2]; extern __shared__ float e[];
      const float* r = x + blockIdx.x * n; float m = -1e30f;
      for (int i = threadIdx.x; i < n; i += 32) m = fmaxf(m, r[i]);
      for (int d = 16; d; d >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
      float t = 0; for (int i = threadIdx.x; i < n; i += 32) { e[i] = __expf(r[i] - m); t += e[i]; }
      for (int d = 16; d; d >>= 1) t += __shfl_xor_sync(~0u, t, d);
      if (threadIdx.x == 0) s[0] = 1.f / t;
      __syncwarp();
      for (int i = threadIdx.x; i < n; i += 32) y[blockIdx.x * n + i] = e[i] * s[0]; }""")
    x = rng.normal(size=(5, 77)).astype(np.float32)
    y = np.zeros_like(x)
    launch(text, "k", 5, 32, y, x, np.int32(77), shared=77 * 4, sanitize=sanitize)
    e = np.exp(x - x.max(1, keepdims=True), dtype=np.float64)
    assert np.allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)


def test_transpose_through_shared_memory_with_two_dimensional_blocks(sanitize: bool) -> None:
    text = compile_cuda("""extern "C" __global__ void k(int* y, const int* x, int rows, int cols) {
      __shared__ int t[16][17]; int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
      if (r < rows && c < cols) t[threadIdx.y][threadIdx.x] = x[r * cols + c];
      __syncthreads();
      c = blockIdx.y * 16 + threadIdx.x; r = blockIdx.x * 16 + threadIdx.y;
      if (r < cols && c < rows) y[r * rows + c] = t[threadIdx.x][threadIdx.y]; }""")
    x = rng.integers(0, 1 << 30, size=(37, 50), dtype=np.int32)
    y = np.zeros((50, 37), np.int32)
    launch(text, "k", (4, 3), (16, 16), y, x, np.int32(37), np.int32(50), sanitize=sanitize)
    assert np.array_equal(y, x.T)


def test_three_dimensional_blocks_and_grids_number_their_threads_like_cuda(sanitize: bool) -> None:
    text = compile_cuda("""extern "C" __global__ void k(int* y) {
      int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
      int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
      y[b * blockDim.x * blockDim.y * blockDim.z + t] =
        threadIdx.x + 100 * threadIdx.y + 10000 * threadIdx.z + 1000000 * b; }""")
    y = np.zeros((2 * 3 * 2, 4, 3, 5), np.int32)
    launch(text, "k", (2, 3, 2), (5, 3, 4), y, sanitize=sanitize)
    z, j, i = np.meshgrid(range(4), range(3), range(5), indexing="ij")
    assert np.array_equal(y, i + 100 * j + 10000 * z + 1000000 * np.arange(12)[:, None, None, None])


@pytest.mark.parametrize("kind", ["int", "unsigned", "long long", "unsigned long long", "short"])
def test_integer_division_and_remainder(sanitize: bool, kind: str) -> None:
    dtype: Any = {
        "int": np.int32,
        "unsigned": np.uint32,
        "long long": np.int64,
        "unsigned long long": np.uint64,
        "short": np.int16,
    }[kind]
    text = compile_cuda(f"""extern "C" __global__ void k({kind}* q, {kind}* r, const {kind}* a, const {kind}* b) {{
      int i = threadIdx.x; q[i] = a[i] / b[i]; r[i] = a[i] % b[i]; }}""")
    info = np.iinfo(dtype)
    a = rng.integers(info.min, info.max, size=64, dtype=dtype)
    b = rng.integers(1, 100, size=64).astype(dtype) * rng.choice([-1, 1], size=64).astype(dtype)
    b[b == 0] = 3
    a[:3], b[:3] = info.max, (1, 2, 3)
    a[3:5] = info.min
    q, r = np.zeros(64, dtype), np.zeros(64, dtype)
    launch(text, "k", 1, 64, q, r, a, b, sanitize=sanitize)
    for i in range(64):
        want = abs(int(a[i])) // abs(int(b[i])) * (1 if (int(a[i]) < 0) == (int(b[i]) < 0) else -1)
        assert int(q[i]) == want
        assert int(r[i]) == int(a[i]) - want * int(b[i])


SWITCH = """__constant__ float table[4] = {1.5f, 2.5f, 3.5f, 4.5f};
__device__ int counter = 7;
__device__ __noinline__ float helper(float a, int b) { return a * b + 1.0f; }
extern "C" __global__ void k(float* x, const float* y, int m) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  switch (i % m) {
    case 0: x[i] = 1; break; case 1: x[i] = helper(y[i], i); break; case 2: x[i] = table[i & 3]; break;
    case 3: x[i] = counter; break; case 4: x[i] = y[i] / 3.f; break; case 5: x[i] = -y[i]; break; default: x[i] = 9; } }"""


def test_switch_with_a_called_function_constants_and_a_device_variable(sanitize: bool) -> None:
    y = rng.normal(size=128).astype(np.float32)
    x = np.zeros_like(y)
    launch(compile_cuda(SWITCH), "k", 2, 64, x, y, np.int32(8), sanitize=sanitize)
    i = np.arange(128)
    table = np.array([1.5, 2.5, 3.5, 4.5], np.float32)
    helper = np.array([np.float32(np.float64(a) * b + 1.0) for a, b in zip(y, i, strict=True)])
    nine = np.full_like(y, 9)
    cases = [np.ones_like(y), helper, table[i & 3], np.full_like(y, 7), y / np.float32(3), -y, nine, nine]
    assert np.array_equal(x, np.choose(i % 8, cases))


def test_dense_switch_becomes_an_indexed_branch(sanitize: bool) -> None:
    cases = " ".join(f"case {i}: v = y[i] {'+-*'[i % 3]} {i + 1}; break;" for i in range(16))
    text = compile_cuda(f"""extern "C" __global__ void k(int* x, const int* y) {{
      int i = threadIdx.x, v = 0; switch (y[i]) {{ {cases} default: v = -1; }} x[i] = v; }}""")
    y = rng.integers(0, 20, size=96, dtype=np.int32)
    x = np.zeros_like(y)
    launch(text, "k", 1, 96, x, y, sanitize=sanitize)
    want = [(v + v + 1, -1, v * (v + 1))[v % 3] if v < 16 else -1 for v in y.tolist()]
    assert x.tolist() == want


def test_nested_divergence_with_loops_breaks_and_early_return(sanitize: bool) -> None:
    text = compile_cuda("""extern "C" __global__ void k(int* out, const int* in, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      int v = in[i], steps = 0;
      while (v != 1) {
        if (v & 1) { v = 3 * v + 1;
          if (v % 5 == 0) for (int j = 0; j < (v & 7); j++) { steps += j; if (steps % 11 == 3) break; } }
        else { v >>= 1; if (v == 40) continue; }
        steps++; if (steps > 500) { steps = -1; break; } }
      out[i] = steps; }""")
    x = rng.integers(1, 2000, size=200, dtype=np.int32)
    out = np.zeros_like(x)
    launch(text, "k", 4, 64, out, x, np.int32(200), sanitize=sanitize)

    def steps(v: int) -> int:
        n = 0
        while v != 1:
            if v & 1:
                v = 3 * v + 1
                if v % 5 == 0:
                    for j in range(v & 7):
                        n += j
                        if n % 11 == 3:
                            break
            else:
                v >>= 1
                if v == 40:
                    continue
            n += 1
            if n > 500:
                return -1
        return n

    assert out.tolist() == [steps(v) for v in x.tolist()]


def test_shuffle_after_divergence_finds_every_lane_back(sanitize: bool) -> None:
    text = compile_cuda("""extern "C" __global__ void k(int* out, const int* in) {
      int i = threadIdx.x, v = in[i];
      for (int r = 0; r < 4; r++) {
        if (v % 3 == 0) { int n = v & 15; for (int j = 0; j < n; j++) v += j * r; } else if (v & 1) v = v * 5 + 1;
        v += __shfl_xor_sync(~0u, v, 1 << r); v += __popc(__ballot_sync(~0u, v & 1)); }
      out[i] = v; }""")
    x = rng.integers(0, 1000, size=64, dtype=np.int32)
    out = np.zeros_like(x)
    launch(text, "k", 1, 64, out, x, sanitize=sanitize)
    want = []
    for w in (0, 32):
        lane = [int(v) for v in x[w : w + 32]]
        for r in range(4):
            for i, v in enumerate(lane):
                if v % 3 == 0:
                    for j in range(v & 15):
                        v += j * r
                elif v & 1:
                    v = v * 5 + 1
                lane[i] = v
            lane = [v + lane[i ^ (1 << r)] for i, v in enumerate(lane)]
            odd = sum(v & 1 for v in lane)
            lane = [v + odd for v in lane]
        want += lane
    assert out.tolist() == [((v + 2**31) % 2**32) - 2**31 for v in want]


def test_atomics_count_and_sum(sanitize: bool) -> None:
    text = compile_cuda("""extern "C" __global__ void k(int* bins, float* total, unsigned* order, const int* x) {
      __shared__ int local[8]; if (threadIdx.x < 8) local[threadIdx.x] = 0; __syncthreads();
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      atomicAdd(&local[x[i]], 1); atomicMax(order, (unsigned)i); atomicAdd(total, 0.5f);
      __syncthreads(); if (threadIdx.x < 8) atomicAdd(&bins[threadIdx.x], local[threadIdx.x]); }""")
    x = rng.integers(0, 8, size=512, dtype=np.int32)
    bins, total, order = np.zeros(8, np.int32), np.zeros(1, np.float32), np.zeros(1, np.uint32)
    launch(text, "k", 4, 128, bins, total, order, x, sanitize=sanitize)
    assert np.array_equal(bins, np.bincount(x, minlength=8))
    assert (total[0], order[0]) == (256.0, 511)


def test_local_arrays_indexed_by_the_thread(sanitize: bool) -> None:
    text = compile_cuda("""extern "C" __global__ void k(int* out, const int* x, int n) {
      int a[16]; int i = threadIdx.x; for (int j = 0; j < 16; j++) a[j] = 0;
      for (int j = 0; j < n; j++) a[x[i * n + j] & 15] += j + 1;
      int s = 0; for (int j = 0; j < 16; j++) s = s * 3 + a[(j + i) & 15]; out[i] = s; }""")
    x = rng.integers(0, 100, size=(48, 9), dtype=np.int32)
    out = np.zeros(48, np.int32)
    launch(text, "k", 1, 48, out, x, np.int32(9), sanitize=sanitize)
    for i in range(48):
        a = [0] * 16
        for j in range(9):
            a[int(x[i, j]) & 15] += j + 1
        s = 0
        for j in range(16):
            s = s * 3 + a[(j + i) & 15]
        assert out[i] == (s + 2**31) % 2**32 - 2**31


GEMV = """extern "C" __global__ void k(float* y, const unsigned char* w, const float* x, int K) {
  int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x & 31;
  const unsigned char* r = w + (size_t)row * (K / 32) * 20; float acc = 0;
  for (int b = lane; b < K / 32; b += 32) {
    const unsigned char* p = r + b * 20; float d = __half2float(*(const __half*)p), m = __half2float(*(const __half*)(p + 2));
    for (int j = 0; j < 16; j++) { unsigned q = p[4 + j];
      acc += (d * (q & 15) + m) * x[b * 32 + j]; acc += (d * (q >> 4) + m) * x[b * 32 + j + 16]; } }
  for (int o = 16; o; o >>= 1) acc += __shfl_xor_sync(~0u, acc, o);
  if (lane == 0) y[row] = acc; }"""


def half_header() -> str:
    """NVRTC has no cuda_fp16.h without a toolkit; the conversion is one instruction."""
    return """struct __half { unsigned short v; };
    __device__ inline float __half2float(__half h) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h.v)); return f; }\n"""


def q4_1(rows: int, k: int) -> tuple[Array, Array]:
    """Random Q4_1 blocks and the f64 matrix that they spell."""
    blocks = rng.integers(0, 256, size=(rows, k // 32, 20), dtype=np.uint8)
    scales = rng.normal(size=(rows, k // 32, 2)).astype(np.float16)
    blocks[..., :4] = scales.view(np.uint8).reshape(rows, k // 32, 4)
    low, high = blocks[..., 4:] & 15, blocks[..., 4:] >> 4
    q = np.concatenate([low, high], axis=-1).astype(np.float64)
    return blocks, (q * scales[..., :1].astype(np.float64) + scales[..., 1:].astype(np.float64)).reshape(rows, k)


def test_quantised_gemv(sanitize: bool) -> None:
    w, matrix = q4_1(8, 576)
    x, y = rng.normal(size=576).astype(np.float32), np.zeros(8, np.float32)
    launch(compile_cuda(half_header() + GEMV), "k", 2, 128, y, w, x, np.int32(576), sanitize=sanitize)
    bound = 1e-5 * (np.abs(matrix) @ np.abs(x))
    assert (np.abs(y - matrix @ x.astype(np.float64)) < bound).all()


def test_double_precision_and_ftz(sanitize: bool) -> None:
    source = """extern "C" __global__ void k(float* f, double* d, const float* x) {
      int i = threadIdx.x; f[i] = x[i] * 0.5f; double v = x[i]; d[i] = sqrt(v * v + 1.0) / 3.0; }"""
    x = rng.normal(size=32).astype(np.float32)
    x[0] = np.float32(1.5e-38)
    f, d = np.zeros(32, np.float32), np.zeros(32)
    launch(compile_cuda(source), "k", 1, 32, f, d, x, sanitize=sanitize)
    assert np.array_equal(f, x * np.float32(0.5))
    assert f[0] != 0
    assert np.allclose(d, np.sqrt(x.astype(float) ** 2 + 1) / 3, rtol=1e-15)
    launch(compile_cuda(source, "--ftz=true"), "k", 1, 32, f, d, x, sanitize=sanitize)
    assert f[0] == 0


def test_a_large_grid(sanitize: bool) -> None:
    text = compile_cuda("""extern "C" __global__ void k(int* y, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = i ^ 5; }""")
    y = np.zeros(100_000, np.int32)
    launch(text, "k", -(-y.size // 64), 64, y, np.int32(y.size), sanitize=sanitize)
    assert np.array_equal(y, np.arange(y.size) ^ 5)
