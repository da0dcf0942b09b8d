"""Kernels that turn f32 activations into int8 planes."""
