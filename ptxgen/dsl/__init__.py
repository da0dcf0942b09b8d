"""The language that kernels are written in: values with PTX types, structured control flow, memory, what a kernel type is."""
