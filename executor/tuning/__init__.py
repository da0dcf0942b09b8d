"""Tuning: which parameters, or which kernels, were measured to be fast for a weight format and shape on a GPU. The tables that
are shipped are the JSON files here; executor/profile.py chooses by them."""
