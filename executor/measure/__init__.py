"""How long kernels take, what that comes to, and where the first NaN is. Chooses nothing."""
