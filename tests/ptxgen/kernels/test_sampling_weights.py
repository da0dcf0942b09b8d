"""The weights of tokens: how near to e^x they are, and where they end."""

from __future__ import annotations

import numpy as np

from ptxgen.kernels.token.sampling import LOWEST, UNIT_BITS, weights


def test_weights_are_within_two_ulp_and_a_cut_of_the_exponential() -> None:
    x = np.concatenate([np.linspace(LOWEST, 0, 200_001), -np.logspace(-45, 1, 1001)]).astype(np.float32)
    exact = np.exp(x.astype(np.float64)) * 2**UNIT_BITS
    assert (np.abs(weights(x) - exact) <= exact * 2**-22 + 1).all()


def test_the_largest_has_one_whole_and_what_is_far_below_nothing() -> None:
    x = np.array([0.0, -0.0, LOWEST, -1e30, -np.inf], np.float32)
    assert weights(x).tolist() == [2**UNIT_BITS, 2**UNIT_BITS, 0, 0, 0]
