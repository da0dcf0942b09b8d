"""Matrix-vector products of quantised weights: what is common (gemv_type.py, walk.py) and a file a strategy."""
