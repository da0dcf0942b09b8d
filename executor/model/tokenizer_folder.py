"""The folder that engines elsewhere tokenise from, as Hugging Face lays it out: what a GGUF file's metadata say of tokens and
shapes, in four files of JSON. It holds no weights, and what is said about the model is for reading, not for computing it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor.gguf.gguf_file import GgufFile
from executor.model.model_file import architecture_of, read_spec
from executor.model.spec import ModelSpec
from executor.text.chat import render
from executor.text.chat_templates import DEFAULT
from executor.text.tokenizer import Tokenizer
from executor.text.tokenizer_json import tokenizer_json
from ptxgen.files import make_folder, replacing


@dataclass(frozen=True)
class TokenizerFolder:
    """What is in such a folder: texts by the names of files. compared_texts, compared_ids: as TokenizerJson has them; chats:
    whether there is a chat template."""

    files: Mapping[str, str]
    tokens: int
    compared_texts: int
    compared_ids: int
    chats: bool

    @property
    def digest(self) -> str:
        """Of all its files, in hexadecimal digits: SHA-256."""
        return hashlib.sha256(json.dumps(sorted(self.files.items())).encode()).hexdigest()

    def write(self, folder: Path) -> None:
        """Make the folder, if need be, and its files, in place of those of their names. ArgumentError if that fails."""
        make_folder(folder)
        for name, text in self.files.items():
            with replacing(folder / name) as stream:
                stream.write(text.encode())


def tokenizer_folder(path: Path) -> TokenizerFolder:
    """tokenizer.json, tokenizer_config.json, config.json and generation_config.json of the model `path`. ModelError for what is
    no model, has no vocabulary or a chat template that cannot be rendered, or whose vocabulary the format cannot hold."""
    with GgufFile.open(path) as file:
        spec = read_spec(file)
        tokenizer = Tokenizer.from_gguf(file)
    document = tokenizer_json(tokenizer)
    files = {
        "tokenizer.json": document.text,
        "tokenizer_config.json": _json(_tokenizer_config(tokenizer, spec)),
        "config.json": _json(_config(tokenizer, spec)),
        "generation_config.json": _json(_ends(tokenizer) | {"eos_token_id": sorted(tokenizer.eos_ids)}),
    }
    chats = bool(tokenizer.chat_templates.named)
    return TokenizerFolder(files, tokenizer.vocab_size, document.texts, document.ids, chats)


def _json(value: dict[str, Any]) -> str:
    """What is not known is left out."""
    known = {name: one for name, one in value.items() if one is not None}
    return json.dumps(known, indent=2, ensure_ascii=False) + "\n"


def _ends(tokenizer: Tokenizer) -> dict[str, Any]:
    return {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}


def _tokenizer_config(tokenizer: Tokenizer, spec: ModelSpec) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.bos_token or None,
        "eos_token": tokenizer.eos_token or None,
        "add_bos_token": tokenizer.add_bos,
        "add_eos_token": tokenizer.add_eos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": spec.context_length,
        "chat_template": _templates(tokenizer),
    }


def _templates(tokenizer: Tokenizer) -> str | list[dict[str, str]] | None:
    """The chat template, or several with their names."""
    named = {name: _template(tokenizer, template) for name, template in tokenizer.chat_templates.named.items()}
    if named.keys() <= {DEFAULT}:
        return named.get(DEFAULT)
    return [{"name": name, "template": template} for name, template in named.items()]


def _template(tokenizer: Tokenizer, template: str) -> str:
    """A chat template, with BOS in front if the model wants BOS before a conversation and the template does not write it: who
    renders it makes ids of the text as it is."""
    bos = tokenizer.bos_token
    if not tokenizer.add_bos:
        return template
    said = render(template, [{"role": "user", "content": "Hi"}], bos_token=bos, eos_token=tokenizer.eos_token)
    return template if said.startswith(bos) else "{{ bos_token }}" + template


def _config(tokenizer: Tokenizer, spec: ModelSpec) -> dict[str, Any]:
    layer = spec.layer
    return {
        "architectures": [architecture_of(spec).model_class],
        "model_type": spec.architecture,
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.context_length,
        "hidden_size": spec.hidden,
        "intermediate_size": layer.ff,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": layer.heads,
        "num_key_value_heads": layer.kv_heads,
        "head_dim": layer.head_dim,
        "rms_norm_eps": spec.norm.eps,
        "rope_theta": spec.ropes[0].base,
        "tie_word_embeddings": spec.tied,
        **_ends(tokenizer),
    }
