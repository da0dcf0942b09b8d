"""Bundles: a model's kernels as files with a manifest, written with no GPU and loaded with no code generation."""
