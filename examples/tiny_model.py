"""Writes the model of the pages in docs/executor: `python tiny_model.py tiny.gguf`. Two layers of random weights, small enough
for the emulator, and no vocabulary, so that it speaks in token ids."""

import sys

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType

from ptxgen.formats import FORMATS

LAYERS, HIDDEN, FF, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY, CONTEXT, EPSILON = 2, 256, 512, 4, 2, 64, 128, 32, 1e-5


def write(path: str) -> None:
    """Write the model; its bytes are the same each time."""
    rng = np.random.default_rng(0)
    file = gguf.GGUFWriter(path, "llama")
    file.add_block_count(LAYERS)
    file.add_context_length(CONTEXT)
    file.add_embedding_length(HIDDEN)
    file.add_feed_forward_length(FF)
    file.add_head_count(HEADS)
    file.add_head_count_kv(KV_HEADS)
    file.add_layer_norm_rms_eps(EPSILON)
    file.add_vocab_size(VOCABULARY)
    file.add_tokenizer_model("none")

    def matrix(name: str, n: int, k: int, kind: str = "Q4_K") -> None:
        blocks = FORMATS[kind].random_blocks(rng, n, k)
        file.add_tensor(f"{name}.weight", blocks, raw_dtype=GGMLQuantizationType[kind])

    def norm(name: str) -> None:
        file.add_tensor(f"{name}.weight", rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32))

    matrix("token_embd", VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        norm(f"blk.{layer}.attn_norm")
        matrix(f"blk.{layer}.attn_q", HEADS * HEAD_DIM, HIDDEN)
        matrix(f"blk.{layer}.attn_k", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(f"blk.{layer}.attn_v", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(f"blk.{layer}.attn_output", HIDDEN, HEADS * HEAD_DIM)
        norm(f"blk.{layer}.ffn_norm")
        matrix(f"blk.{layer}.ffn_gate", FF, HIDDEN)
        matrix(f"blk.{layer}.ffn_up", FF, HIDDEN)
        matrix(f"blk.{layer}.ffn_down", HIDDEN, FF, "Q6_K")
    norm("output_norm")
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


if __name__ == "__main__":
    write(sys.argv[1])
