"""Models: what their files mean, the decode loop, sampling, many sequences at once."""
