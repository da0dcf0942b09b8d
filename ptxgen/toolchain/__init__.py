"""From a kernel to text and to machine code: the module, NVRTC for CUDA C++, nvJitLink, and the verdict on what it made."""
