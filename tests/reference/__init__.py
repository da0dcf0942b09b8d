"""Whole models in float64 NumPy, and what they are compared with. Shares nothing with the packages under test."""
