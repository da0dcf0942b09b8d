"""Every check of the conformance kit, for every sample shape."""

from ptxgen.conformance.testing import conformance_test

test_my_kernels = conformance_test("my_q4k_gemv", "my_cuda_q8_0_gemv")
