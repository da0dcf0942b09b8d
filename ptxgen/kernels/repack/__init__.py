"""Weights in another order of bits: the same values in blocks that other kernels read faster."""
