"""What every kernel needs while it runs, and no kernel changes: the schedule of warps and blocks, barriers, cp.async's queues,
loads and stores of 32 lanes, and the sanitiser's checks.

Each function is LLVM code that a Python function builds (builder.py), and beside it stand the structures that it shares with
the side that launches. link.py compiles a part of them when a kernel first needs it, and links it to kernels as object code."""
