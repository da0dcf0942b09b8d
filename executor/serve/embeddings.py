"""`/v1/embeddings`: texts as vectors."""

from __future__ import annotations

import base64
from typing import Any, Final

from executor.base.arguments import described
from executor.serve.endpoint import Events
from executor.serve.errors import ApiError
from executor.serve.fields import Fields
from executor.serve.parameters import require_model
from executor.serve.service import Service

MOST_TEXTS: Final = 256
"""Of one request."""


async def embed(service: Service, body: Any, events: Events) -> dict[str, Any]:
    """A vector of length 1 for each text, pooled as the model's file says."""
    fields = Fields(body)
    require_model(fields, service.served)
    given = fields.required("input", "text or a list of texts")
    kind = fields.choice("encoding_format", "float", ("float", "base64"))
    fields.only({"dimensions": ((), "vectors have the model's own length")})
    fields.finish()
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not 0 < len(texts) <= MOST_TEXTS or not all(isinstance(text, str) for text in texts):
        what = f"a list of {len(texts)}" if isinstance(texts, list) else described(texts)
        raise ApiError(f"input is {what}; allowed: text, or a list of 1 to {MOST_TEXTS} texts", param="input")
    served = service.served
    with service.places.taking(1):
        ids = await service.on_host(lambda: [served.tokenizer.encode(text, parse_special=False) for text in texts])
        for at, tokens in enumerate(ids):
            if not 0 < len(tokens) <= served.context:
                raise ApiError(
                    f"input[{at}] has {len(tokens)} tokens; allowed: 1 to {served.context}",
                    param="input",
                    code="context_length_exceeded" if tokens else None,
                )
        vectors = await service.embed(texts)
    count = sum(map(len, ids))
    return {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": at,
                "embedding": vector.tolist() if kind == "float" else base64.b64encode(vector.astype("<f4").tobytes()).decode(),
            }
            for at, vector in enumerate(vectors)
        ],
        "model": served.name,
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }
