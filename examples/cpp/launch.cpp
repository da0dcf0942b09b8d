// Launches one kernel of a bundle through the CUDA driver API, with no Python and no CUDA toolkit at run time.
//
//   ptxgen bundle model.gguf --target sm_90 --cubin -o bundle
//   g++ -std=c++17 -I<folder of cuda.h> launch.cpp -ldl -o launch
//   ./launch bundle "residual_add(n=576)"
//
// cuda.h comes with the package nvidia-cuda-runtime (nvidia/cu13/include) or with the toolkit. The driver is opened when the
// program runs, so that it builds on machines without one. Only residual_add (x += delta) is checked here; the names, types and
// shapes of every other kernel's arguments are in manifest.json, whose reading is here cut down to what this program needs.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

[[noreturn]] void fail(const std::string& message) {
    std::fprintf(stderr, "launch: %s\n", message.c_str());
    std::exit(1);
}

void* driver_function(const char* name) {
    static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) fail("no NVIDIA driver: " + std::string(dlerror()));
    void* function = dlsym(driver, name);
    if (!function) fail("the driver has no " + std::string(name));
    return function;
}

// cuda.h renames functions to their newest version (cuMemAlloc is cuMemAlloc_v2): EXPANDED gives that name as text.
#define TEXT(name) #name
#define EXPANDED(name) TEXT(name)
#define CALL(name, ...)                                                                                       \
    do {                                                                                                      \
        CUresult status = reinterpret_cast<decltype(&name)>(driver_function(EXPANDED(name)))(__VA_ARGS__);    \
        if (status != CUDA_SUCCESS) fail(std::string(EXPANDED(name)) + ": CUDA error " + std::to_string(status)); \
    } while (0)

std::string contents(const std::string& path) {
    std::ifstream stream(path, std::ios::binary);
    if (!stream) fail(path + " cannot be read");
    std::ostringstream all;
    all << stream.rdbuf();
    return all.str();
}

// What follows the first `key` of a piece of JSON, up to the end of the line and without quotes and the comma.
std::string value(const std::string& json, const std::string& key) {
    size_t start = json.find("\"" + key + "\": ");
    if (start == std::string::npos) fail("the manifest does not say " + key);
    start += key.size() + 4;
    std::string line = json.substr(start, json.find('\n', start) - start);
    if (line.back() == ',') line.pop_back();
    return line.front() == '"' ? line.substr(1, line.size() - 2) : line;
}

struct Size { unsigned x, y, z; };

Size size(const std::string& kernel, const std::string& key) {
    Size read;
    if (std::sscanf(value(kernel, key).c_str(), "[%u, %u, %u]", &read.x, &read.y, &read.z) != 3) fail(key + ": no numbers");
    return read;
}

int main(int count, char** words) {
    if (count != 3) fail("use: launch BUNDLE \"residual_add(n=...)\"");
    const std::string folder = words[1], name = words[2], manifest = contents(folder + "/manifest.json");
    const size_t start = manifest.find("\n  \"" + name + "\": {");
    if (start == std::string::npos || name.rfind("residual_add(", 0)) fail("the bundle has no such kernel: " + name);
    const std::string kernel = manifest.substr(start, manifest.find("\n  }", start) - start);
    const bool compiled = kernel.find("\"cubin\": ") != std::string::npos;  // else the driver compiles the PTX
    const std::string file = kernel.substr(kernel.find(compiled ? "\"cubin\": " : "\"ptx\": "));
    const std::string image = contents(folder + "/" + value(file, "path")), entry = value(kernel, "entry");
    const size_t n = std::stoul(value(kernel, "n"));
    const Size grid = size(kernel, "grid"), block = size(kernel, "block");
    const unsigned shared = std::stoul(value(kernel, "dynamic_shared_bytes"));
    const bool cooperative = value(kernel, "cooperative") == "true";  // then all blocks must be on the GPU at once

    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction function;
    CUdeviceptr x, delta;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, image.c_str());
    CALL(cuModuleGetFunction, &function, module, entry.c_str());
    CALL(cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, static_cast<int>(shared));

    std::vector<float> left(n), right(n), sum(n);
    for (size_t i = 0; i < n; i++) left[i] = 0.1f * i, right[i] = 1.0f / (i + 1);
    CALL(cuMemAlloc, &x, n * sizeof(float));
    CALL(cuMemAlloc, &delta, n * sizeof(float));
    CALL(cuMemcpyHtoD, x, left.data(), n * sizeof(float));
    CALL(cuMemcpyHtoD, delta, right.data(), n * sizeof(float));
    void* arguments[] = {&x, &delta};  // in the order of the manifest's parameters
    if (cooperative)
        CALL(cuLaunchCooperativeKernel, function, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, nullptr, arguments);
    else
        CALL(cuLaunchKernel, function, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, nullptr, arguments, nullptr);
    CALL(cuMemcpyDtoH, sum.data(), x, n * sizeof(float));

    for (size_t i = 0; i < n; i++)
        if (sum[i] != left[i] + right[i]) fail("element " + std::to_string(i) + " is " + std::to_string(sum[i]));
    std::printf("%s: %zu sums, all right (%s)\n", name.c_str(), n, compiled ? "machine code" : "PTX");
}
