"""Measuring which kernels and parameters are fast on this GPU, for the tables of choice/."""
