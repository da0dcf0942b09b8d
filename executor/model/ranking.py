"""How well a text answers a query, by a reranker: of a prompt that holds both, its head `cls.output` reads the last state, and
the softmax of what it makes has a probability for each label (llama.cpp's pooling by rank, of Qwen3). On the host."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from executor.base.errors import ModelError
from executor.model.decoder import Decoder
from executor.model.embedding import last_norm, pooled
from executor.model.spec import ModelSpec
from executor.text.special_tokens import Span
from executor.text.tokenizer import Tokenizer

HEAD: Final = "cls.output.weight"
TEMPLATE: Final = "rerank"
"""The chat template of the prompt, in which the query and the document stand for themselves in braces."""
_PLACES: Final = re.compile(r"\{(query|document)\}")


def require_head(spec: ModelSpec, tokenizer: Tokenizer) -> None:
    """ModelError unless the model ranks texts, and its file says how they become a prompt."""
    if not spec.labels:
        raise ModelError(f"the model does not rank texts: it has no {HEAD} of several labels", tokenizer.path)
    if TEMPLATE not in tokenizer.chat_templates.named:
        raise ModelError(f"the file has no chat template named {TEMPLATE}, which makes a prompt of texts", tokenizer.path)


def prompt_of(tokenizer: Tokenizer, query: str, document: str) -> list[int]:
    """The token ids of the prompt. A control token that is written in the query or in the document is text."""
    given = {"query": query, "document": document}
    pieces = _PLACES.split(tokenizer.chat_templates.named[TEMPLATE])
    spans = [Span(piece, trusted=True) if at % 2 == 0 else Span(given[piece], trusted=False) for at, piece in enumerate(pieces)]
    return tokenizer.encode_spans(spans, add_special=False)


def scores(decoder: Decoder, prompts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """f32[len(prompts)]: the probability of the first label after each. Starts a new sequence for each."""
    weight, vectors = decoder.weights[HEAD], last_norm(decoder.weights)
    head = weight.format.dequantize(weight.buffer.to_numpy()).astype(np.float64)
    found = np.empty(len(prompts), np.float32)
    for at, (*before, last) in enumerate(prompts):
        decoder.reset()
        decoder.feed(before)
        decoder.step(last, head=False)
        made = head @ pooled([decoder.hidden()], decoder.spec.norm, vectors, "last")
        likely = np.exp(made - made.max())
        found[at] = likely[0] / likely.sum()
    return found
