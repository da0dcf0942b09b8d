"""GPUs described: limits, rates, memory and caches of known products, and how many blocks of a kernel fit."""
