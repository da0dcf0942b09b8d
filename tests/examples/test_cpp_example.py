"""The C++ example, compiled, against a stand-in for the driver that adds on the CPU."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from ptxgen.target import Target
from tests.examples.cpp_example import KERNEL, build, bundle, headers

# Device memory is host memory; a launch adds as residual_add does, one element short for the entry of a spoilt manifest.
DRIVER = r"""
#include <cuda.h>
#include <cstdlib>
#include <cstring>
#include <string>
static size_t bytes;
static std::string entry;
extern "C" {
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* d, int) { *d = 0; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice) { *c = nullptr; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuModuleLoadData(CUmodule* m, const void* image) {
    *m = nullptr;
    const char* text = static_cast<const char*>(image);
    return std::strstr(text, ".visible .entry residual_add") || !std::memcmp(text, "\177ELF", 4)
        ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}
CUresult cuModuleGetFunction(CUfunction* f, CUmodule, const char* name) { entry = name; *f = nullptr; return CUDA_SUCCESS; }
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuMemAlloc(CUdeviceptr* p, size_t n) { bytes = n; *p = (CUdeviceptr)std::malloc(n); return CUDA_SUCCESS; }
CUresult cuMemcpyHtoD(CUdeviceptr d, const void* s, size_t n) { std::memcpy((void*)d, s, n); return CUDA_SUCCESS; }
CUresult cuMemcpyDtoH(void* d, CUdeviceptr s, size_t n) { std::memcpy(d, (void*)s, n); return CUDA_SUCCESS; }
CUresult cuLaunchKernel(CUfunction, unsigned gx, unsigned, unsigned, unsigned bx, unsigned, unsigned, unsigned, CUstream,
                        void** arguments, void**) {
    float* x = *static_cast<float**>(arguments[0]);
    const float* delta = *static_cast<float**>(arguments[1]);
    size_t n = bytes / sizeof(float);
    if (gx * bx < n) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < n - (entry != "residual_add"); i++) x[i] += delta[i];
    return CUDA_SUCCESS;
}
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cpp")
    (folder / "driver.cpp").write_text(DRIVER)
    words = ["g++", "-std=c++17", "-shared", "-fPIC", f"-I{headers()}", "driver.cpp", "-o", "libcuda.so.1"]
    subprocess.run(words, cwd=folder, check=True)
    return build(folder)


def launched(program: Path, *words: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"LD_LIBRARY_PATH": str(program.parent)}
    command = [str(program), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=False)


@pytest.mark.parametrize(("cubin", "said"), [(True, "machine code"), (False, "PTX")])
def test_the_example_launches_a_kernel_of_a_bundle(program: Path, tmp_path: Path, cubin: bool, said: str) -> None:
    result = launched(program, bundle(tmp_path, Target(90), cubin=cubin), KERNEL)
    assert (result.returncode, result.stdout) == (0, f"{KERNEL}: 96 sums, all right ({said})\n"), result.stderr


def test_the_example_finds_a_wrong_result(program: Path, tmp_path: Path) -> None:
    folder = bundle(tmp_path, Target(90), cubin=False)
    manifest = folder / "manifest.json"
    manifest.write_text(re.sub('"entry": "residual_add"', '"entry": "another"', manifest.read_text()))
    result = launched(program, folder, KERNEL)
    assert (result.returncode, result.stderr.split(" is ")[0]) == (1, "launch: element 95")


def test_the_example_names_what_is_missing(program: Path, tmp_path: Path) -> None:
    folder = bundle(tmp_path, Target(90), cubin=False)
    assert "no such kernel: residual_add(n=97)" in launched(program, folder, "residual_add(n=97)").stderr
    assert f"{tmp_path}/manifest.json cannot be read" in launched(program, tmp_path, KERNEL).stderr
