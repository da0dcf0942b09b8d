"""Attention over a key/value cache, and the writing of that cache."""
