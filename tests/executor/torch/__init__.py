"""Tests of the operators for PyTorch."""
