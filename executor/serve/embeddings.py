"""`/v1/embeddings`: texts and token ids as vectors."""

from __future__ import annotations

import base64
from typing import Any, Final

from executor.serve.endpoint import Events
from executor.serve.errors import ApiError, blamed
from executor.serve.fields import RequestFields
from executor.serve.inputs import ids_of, texts_of
from executor.serve.parameters import require_model
from executor.serve.service import Service

MOST_TEXTS: Final = 2048
"""Of one request, as OpenAI has it."""
_ALLOWED: Final = f"text, token ids, or a list of 1 to {MOST_TEXTS} texts or lists of token ids"


async def embed(service: Service, body: Any, events: Events) -> dict[str, Any]:
    """A vector of length 1 for each text, or list of token ids, pooled as the model's file says."""
    fields = RequestFields(body)
    require_model(fields, service.served)
    given = fields.required("input", _ALLOWED)
    kind = fields.choice("encoding_format", "float", ("float", "base64"))
    fields.only({"dimensions": ((), "vectors have the model's own length")})
    fields.finish()
    texts = texts_of("input", given, MOST_TEXTS, _ALLOWED)
    served = service.served
    with service.places.taking(1):
        ids = await service.on_host(lambda: [ids_of(f"input[{at}]", text, served, "input") for at, text in enumerate(texts)])
        for at, tokens in enumerate(ids):
            if len(tokens) > served.context:
                raise ApiError(
                    f"input[{at}] has {len(tokens)} tokens; allowed: 1 to {served.context}",
                    param="input",
                    code="context_length_exceeded",
                )
        with blamed("input"):
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
