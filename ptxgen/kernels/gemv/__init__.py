"""Matrix-vector products of quantised weights: what is common (gemv_type.py, iteration.py) and a file a strategy."""
