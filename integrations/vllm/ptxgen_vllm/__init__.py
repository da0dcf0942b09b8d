"""ptxgen's kernels under vLLM's out-of-tree GGUF plugin: its two products are replaced by ours, and given back. PyTorch and the
plugin are imported when that is done, not before."""

from __future__ import annotations

from ptxgen_vllm.installation import PluginMismatch, install, installed, register, uninstall

__all__ = ["PluginMismatch", "install", "installed", "register", "uninstall"]
