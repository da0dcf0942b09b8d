"""Normalisation: RMSNorm of whole rows and of single heads."""
