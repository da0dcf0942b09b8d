"""Normalisation: RMSNorm and LayerNorm of whole rows, RMSNorm of single heads."""
