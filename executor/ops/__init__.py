"""Operations that choose among kernels: which variant computes a thing for a given weight, shape and profile."""
