"""Kernels for ptxgen, found by the entry points in pyproject.toml."""
