"""`ptxrun models`: which models are kept here; fetching one, and removing one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from executor.commands.session import model_dir_option
from ptxgen.commands import console
from ptxgen.commands.options import json_option
from ptxgen.errors import ArgumentError

if TYPE_CHECKING:
    from executor.gguf.model_folder import StoredModel

GB = 1e9


@click.group("models", invoke_without_command=True)
@model_dir_option
@json_option()
@click.pass_context
def models_command(context: click.Context, model_dir: Path | None, as_json: bool) -> None:
    """List the models in the folder of models: what a command takes for each, its quantisation by its name, its size, and where
    it is.

    \b
    Examples:
      ptxrun models
      ptxrun models fetch hf://ORG/REPO:Q4_K_M
      ptxrun models remove hf://ORG/REPO:Q4_K_M
    """
    from executor.gguf.model_folder import ModelFolder

    if context.invoked_subcommand is not None:
        if as_json or model_dir is not None:
            raise click.UsageError(f"options go after {context.invoked_subcommand}")
        return
    folder = ModelFolder.at(model_dir)
    models = folder.models()
    if as_json:
        console.print_json({"folder": str(folder.root), "models": [_facts(model) for model in models]})
        return
    if not models:
        console.echo(f"there are no models in {folder.root}", err=True)
        return
    rows = [(model.name, model.quantisation, f"{model.nbytes / GB:.2f}", _where(model)) for model in models]
    console.print_table(("model", "quantisation", "GB", "where"), rows, numeric=("GB",), bold="model")


@models_command.command("fetch")
@click.argument("name", metavar="hf://ORG/REPO:QUANTISATION")
@model_dir_option
@json_option("The same facts about the model as `ptxrun models --json` has.")
def fetch_command(name: str, model_dir: Path | None, as_json: bool) -> None:
    """Fetch a model from the Hugging Face hub, as it is there now, and print the path of its (first) file. One that is here
    already is compared, and fetched again if the hub has another. An interrupted transfer continues.

    \b
    Example:
      ptxrun models fetch hf://ORG/REPO:Q4_K_M --model-dir models
    """
    from executor.gguf.hub import fetch_from_hub
    from executor.gguf.model_folder import ModelFolder
    from executor.gguf.model_name import HubName

    folder = ModelFolder.at(model_dir)
    with console.progress() as report:
        path = fetch_from_hub(HubName.parse(name), folder, report)
    if as_json:
        console.print_json(next(_facts(model) for model in folder.models() if path in model.paths))
    else:
        console.echo(str(path))


@models_command.command("remove")
@click.argument("name", metavar="MODEL")
@model_dir_option
def remove_command(name: str, model_dir: Path | None) -> None:
    """Delete a model from the folder of models, with all its parts. The name is one of those that `ptxrun models` lists.

    \b
    Example:
      ptxrun models remove hf://ORG/REPO:Q4_K_M
    """
    from executor.gguf.model_folder import ModelFolder

    folder = ModelFolder.at(model_dir)
    models = {model.name: model for model in folder.models()}
    if name not in models:
        there = ", ".join(models) or "none"
        raise ArgumentError(f"there is no model {name} in {folder.root}; there are: {there}")
    try:
        folder.remove(models[name])
    except OSError as error:
        raise ArgumentError(f"{error.filename}: cannot be removed: {error.strerror or error}") from error
    console.echo(f"removed {name}, {models[name].nbytes / GB:.2f} GB", err=True)


def _facts(model: StoredModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "quantisation": model.quantisation,
        "bytes": model.nbytes,
        "files": [str(path) for path in model.paths],
        "missing_parts": model.missing,
    }


def _where(model: StoredModel) -> str:
    parts = f" ({model.missing} of {len(model.paths) + model.missing} parts are missing)" if model.missing else ""
    return f"{model.paths[0]}{parts}"
