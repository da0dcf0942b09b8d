"""Weights in another order of bits: the same values in blocks that are simpler to read."""
