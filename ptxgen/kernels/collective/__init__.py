"""Kernels of several devices: what one computes, the others get."""
