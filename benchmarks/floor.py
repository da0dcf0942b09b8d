"""How fast one H200 reads: the floor for a chain of matrix-vector products, measured with plain CUDA C++ probes on 21 November
2026 (driver 580.159, CUDA 13.0): a dependent chain of pure reads as a CUDA graph with programmatic launch, first loads before
the wait, each node reading a fresh buffer. Not measured by anything in this repository."""

from __future__ import annotations

import numpy as np

READ_LIMIT = 4.65e12
"""Bytes a second of a streaming read of 8 GB."""

# Bytes a node, and microseconds.
_CHAIN = ((0.0, 0.51), (2.36e6, 1.65), (9.44e6, 3.47), (18.9e6, 5.59), (33e6, 9.17), (50e6, 12.7), (100e6, 23.3), (400e6, 87.5))


def chain_microseconds(nbytes: int) -> float:
    """What a node that reads so many bytes takes at least, between the measured sizes by interpolation."""
    sizes, times = (np.array(column) for column in zip(*_CHAIN, strict=True))
    if nbytes > sizes[-1]:
        return float(times[-1] * nbytes / sizes[-1])
    return float(np.interp(nbytes, sizes, times))
