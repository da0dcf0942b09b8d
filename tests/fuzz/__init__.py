"""Fuzzers: what a stranger may hand in, made wrong in every way that a seed can choose.

Each is a test that takes `cases` and loops over it; a case is one seeded generator. In CI every fuzzer runs for a few seconds
from a fixed seed; by hand they run as long as one likes: `pytest tests/fuzz --fuzz-seconds 3600 --fuzz-seed 7`.
"""
