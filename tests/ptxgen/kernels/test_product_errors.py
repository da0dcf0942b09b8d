"""Products of weights and few rows of activations are as near to float64 as llama.cpp's tests ask, and as its own products are.
What kernels allow themselves is looked at for every format; that they keep to it is conformance's business, and shown here for
some."""

from __future__ import annotations

import pytest

from ptxgen.formats import FORMATS, Format
from tests.ptxgen.kernels.product_errors import ACCURATE_NMSE, AS_GOOD, MOST_NMSE, Product, products
from tests.ptxgen.kernels.running import emulate

ROWS = (1, 2, 5, 9)


def k_of(format: Format) -> int:
    """Of a small product: two windows of 256, the second not whole where blocks are small."""
    return 512 if 288 % format.block else 288


@pytest.mark.parametrize("format", FORMATS.values(), ids=str)
def test_no_kernel_may_be_further_from_float64_than_llama_cpp_is(format: Format) -> None:
    k, n = k_of(format), 129
    for m in ROWS:
        product = Product(format, k, n, m)
        theirs = product.error(product.llama_cpp)
        for _, kernel in products(format, k, n, m):
            error, most = product.described(kernel)
            assert error <= AS_GOOD * theirs, str(kernel)
            assert most <= MOST_NMSE, str(kernel)


@pytest.mark.parametrize("format", [FORMATS["Q4_K"], FORMATS["Q8_0"]], ids=str)
def test_products_are_as_near_to_float64_as_their_precision_promises(format: Format) -> None:
    m = max(ROWS)
    product = Product(format, k_of(format), 17, m)
    theirs = product.error(product.llama_cpp)
    for precision, kernel in products(format, k_of(format), 17, m, tile=16, split=1, warps=1):
        results, _ = emulate(kernel, product.arguments(kernel), sanitize=False)
        most = ACCURATE_NMSE if precision == "accurate" else min(MOST_NMSE, AS_GOOD * theirs)
        assert product.error(results["y"]) <= most, str(kernel)
