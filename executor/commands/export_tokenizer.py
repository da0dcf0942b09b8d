"""`ptxrun export-tokenizer`: the tokenizer of a model as a folder that other engines read."""

from __future__ import annotations

from pathlib import Path

import click

from executor.commands.session import AskedModel, model_argument
from ptxgen.commands import console
from ptxgen.commands.options import FILE, json_option


@click.command("export-tokenizer")
@model_argument
@click.argument("folder", type=FILE)
@json_option()
def export_tokenizer_command(asked: AskedModel, folder: Path, as_json: bool) -> None:
    """Write the tokenizer of MODEL into FOLDER as Hugging Face's libraries read it: tokenizer.json, tokenizer_config.json with
    the chat template, config.json and generation_config.json. Engines that are given token ids, such as NVIDIA Dynamo's, have
    their texts tokenised from such a folder.

    The library `tokenizers` reads the document back first, and must make the same ids and the same text of every token and of
    many texts as this package does. What the format cannot say is an error, and then nothing is written.

    \b
    Example:
      ptxrun export-tokenizer model.gguf model-tokenizer
    """
    from executor.model.tokenizer_folder import tokenizer_folder

    made = tokenizer_folder(asked.path)
    made.write(folder)
    if as_json:
        compared = {"texts": made.compared_texts, "ids": made.compared_ids}
        facts = {"folder": str(folder), "files": list(made.files), "tokens": made.tokens, "chats": made.chats}
        console.print_json(facts | {"compared": compared})
        return
    chat = "" if made.chats else "; the model has no chat template"
    console.echo(f"{folder}: {made.tokens} tokens; {made.compared_texts} texts give the same ids as here{chat}")
