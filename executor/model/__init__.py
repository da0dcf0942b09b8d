"""Models: what their files mean, tokenizer and chat template, the decode loop, sampling."""
