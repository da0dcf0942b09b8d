"""Text and tokens: vocabulary, tokenizer, chat template."""
