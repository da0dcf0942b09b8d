"""Typed memory of a device: buffers, those of others, weights, the workspace and the KV cache."""
