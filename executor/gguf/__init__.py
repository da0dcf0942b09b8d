"""GGUF files: found or fetched, read, and checked. What their tensors mean is the business of model/."""
