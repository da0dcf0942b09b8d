"""Tests of ptxgen-vllm, against the plugin's own wheel and, where vLLM would be, stand-ins."""
