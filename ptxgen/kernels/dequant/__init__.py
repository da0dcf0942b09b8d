"""Whole weight matrices decoded, for matrix products that take plain numbers."""
