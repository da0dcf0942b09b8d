"""From a GGUF file to text: container, configuration, tokenizer, chat template, sampling. Runs nothing on a device."""
