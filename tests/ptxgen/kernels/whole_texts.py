"""Which kernels have their whole text in golden/ptx, and at which shape. No test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ptxgen.kernels.dequant.dequant_f16 import DequantF16
from ptxgen.kernels.registry import entries_of

ALIKE: Final = {
    "Q4_1": "Q4_0",
    "Q5_1": "Q5_0",
    "Q5_K": "Q4_K",
    "IQ3_S": "IQ3_XXS",
    "IQ2_XXS": "IQ3_XXS",
    "IQ2_XS": "IQ3_XXS",
    "IQ2_S": "IQ3_XXS",
    "IQ1_S": "IQ3_XXS",
    "IQ1_M": "IQ3_XXS",
    "TQ1_0": "Q2_K",
    "TQ2_0": "Q2_K",
    "Q1_0": "Q4_0",
}
"""Formats without a whole text, each with one whose blocks are unpacked by the same parts."""
_FORMATS: Final = {entry.name: "" for entry in entries_of(DequantF16) if entry.fixed["format"].name not in ALIKE}
"""How the blocks of each other format are unpacked."""

_PARTS: Final = {
    # products on f32 activations: a kernel a strategy
    "q4k_gemv": "k=256 n=2",
    "wide_q4k_gemv": "k=256 n=2",
    "coalesced_q4k_gemv": "k=512 n=2",
    "vectorized_q4k_gemv": "k=256 n=2",
    "tiled_q4k_gemv": "k=256 n=3 outputs_per_block=2",
    "chunked_tiled_q4k_gemv": "k=8448 n=3 outputs_per_block=2",
    "mwv_q4k_gemv": "k=1024 n=2 num_warps=4 rows_per_block=1",
    "batched_q4k_gemv": "k=1024 n=2 num_warps=2 rows_per_block=1 m=2",
    # products on int8 planes, and what they do with a result
    "dp4a_q4k_gemv": "k=256 n=2 digits=1",
    "mwv_dp4a_q4k_gemv": "k=1024 n=2 digits=1",
    "hw_dp4a_q4k_gemv": "k=512 n=4 digits=2 num_warps=2 rows_per_warp=1",
    "hw_dp4a_q4k_gemv_residual": "",
    "hw_dp4a_q4k_gemv_residual_normed": "digits=1 out_digits=1 rows_per_warp=1",
    "batched_hw_dp4a_q4k_gemv": "k=256 n=2 digits=1 num_warps=1 m=2",
    "mixed_hw_dp4a_q4k_q6k_gemv": "digits=1",
    "gated_hw_dp4a_q4k_gemv_sent": "digits=1 out_digits=1 rows_per_warp=2",
    # products on tensor cores
    "mma_q4k_gemm": "digits=1 warps=1 n=16",
    "half_mma_q4k_gemm": "k=512 n=16 parts=1 chains=1 ahead=0",
    "stationary_q4k_gemm": "k=512 n=16 parts=1 n2=0 n3=0 slices=1 row_tiles=1 columns=8 stages=2 chains=1",
    "wgmma_q4k_gemm": "k=256 n=64 m=8 parts=1 columns=8 stages=2 unpacked=1",
    # attention: of one token, of the tokens of a step, of prompts; what is done in the same launch
    "incremental_attention_digits_indirect": "heads=1 kv_heads=1 head_dim=256 digits=1",
    "split_attention": "heads=1 kv_heads=1 head_dim=256",
    "split_attention_reduce": "heads=2 head_dim=32 max_len=256",
    "bias_rope_grouped_attention_indirect": "heads=1 kv_heads=1 head_dim=32 max_len=64 splits=2",
    "paged_attention_merged": "rows=2 heads=1 kv_heads=1 head_dim=32 pages=3 slots=2 max_len=64 splits=2 tile=16 kv_type=q8_0",
    "paged_attention_reduce_digits": "rows=2 heads=1 head_dim=32 max_len=64 splits=2 least=32 digits=1",
    "paged_attention_reduce_halves": "rows=2 heads=1 head_dim=256 max_len=64 parts=1 lane_run=4",
    "flash_attention": "parts=1",
    "query_temperature": "",
    "kv_cache_scatter": "",
    "bias_rope_neox_scatter_indirect": "",
    "norm_rope_neox_scatter_indirect": "heads=2 kv_heads=1 head_dim=64 rotary_dim=64",
    "bias_paged_rope_neox_scatter": "kv_type=q8_0",
    # norms, activations, rotation, and the forms in which they write
    "batched_rmsnorm": "hidden=256 m=2",
    "rmsnorm_digits": "hidden=256 digits=1",
    "batched_rmsnorm_halves": "hidden=256 m=2 parts=1",
    "per_head_rmsnorm": "",
    "per_head_layernorm": "heads=2 head_dim=64",
    "layernorm": "hidden=256",
    "fused_swiglu": "",
    "fused_swiglu_digits": "n=256 digits=1",
    "batched_fused_swiglu_halves": "n=256 m=2 parts=1",
    "gelu": "",
    "elementwise_mul": "",
    "residual_add": "",
    "scale": "",
    "batched_bias_broadcast_add": "",
    "rope": "",
    "q16_quantize": "",
    "pack_halves": "m=2 k=256 parts=1",
    "outlier_flag": "",
    "q6k_aligned_repack": "",
    # tokens
    "batched_embedding_lookup": "",
    "gather_rows": "",
    "batched_argmax": "n=2049",
    "batched_allowed_argmax": "n=31",
    "sample_token": "n=31",
    "advance_position": "",
    # several GPUs, and the persistent launch
    "all_gather": "",
    "send_digits": "digits=1",
    "gather_digits": "digits=1",
    "persistent_layer": "attended_digits=1 down_digits=1 next_digits=1",
}


def _shape(words: str) -> Mapping[str, Any]:
    fields = (word.partition("=") for word in words.split())
    return {name: int(value) if value.isdigit() else value for name, _, value in fields}


WHOLE: Final = {name: _shape(words) for name, words in {**_FORMATS, **_PARTS}.items()}
"""By kernel, the fields that differ from its first sample shape. Each part of a kernel (strategy, source, epilogue, layout,
form of the result) is in at least one text, at a shape that makes it short. Kernels that only combine such parts are left out.
"""
