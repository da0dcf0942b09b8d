"""Matrix products of quantised weights with many rows of activations, by tensor cores."""
