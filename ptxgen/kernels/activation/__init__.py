"""Element-wise kernels: activations, residual sums, products."""
