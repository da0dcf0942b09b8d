"""The vocabulary of a small model, whose template shows tools and knows Hermes' way to call them."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.text.tokenizer import Tokenizer
from tests.executor.serve.local import tokenizer_of
from tests.synthetic import Q, write_model

TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools> <tool_call>{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} {{ c.function.arguments.x }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{{ mood or '' }}"
)


def model_file(folder: Path, template: str = TEMPLATE, name: str = "tiny") -> Path:
    """As small as can be: what takes time here is to compile kernels."""
    return write_model(
        folder / f"{name}.gguf", types=Q.F32, layers=1, hidden=32, heads=1, kv_heads=1, ff=32, context=512,
        metadata={"tokenizer.chat_template": template},
    )  # fmt: skip


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_file(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def tokenizer(model: Path) -> Tokenizer:
    return tokenizer_of(model)
