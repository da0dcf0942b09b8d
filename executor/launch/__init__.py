"""Compiled kernels and their launches: every launch of the executor goes through here."""
