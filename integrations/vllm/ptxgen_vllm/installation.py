"""Puts our products into the plugin's module `ops`, where the plugin looks them up at each call, and takes them out again."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from importlib import metadata
from threading import Lock
from types import ModuleType
from typing import Any, Final, Literal

from ptxgen.errors import ArgumentError, PtxGenError
from ptxgen_vllm.quant_types import FORMAT_OF

PLUGIN: Final = "vllm-gguf-plugin"
VERSION: Final = "0.0.5"
"""The one version whose insides these functions fit."""
OPS: Final = "vllm_gguf_plugin.ops"
REPLACED: Final = ("ggml_mul_mat_vec_a8", "ggml_mul_mat_a8")
PARAMETERS: Final = ("W", "X", "quant_type", "row")

Product = Callable[[Any, Any, int, int], Any]
Others = Literal["refuse", "plugin"]

_theirs: dict[str, Product] = {}
_ours: dict[str, Product] = {}
_change = Lock()


class PluginMismatch(PtxGenError):
    """The plugin is not there, not of the version that this package is for, or not as it was left: found, wanted."""


def install(*, others: Others = "refuse") -> None:
    """From now on the plugin multiplies with ptxgen's kernels, in this process. Called again it is set anew.

    others: what becomes of GGML types that ptxgen has no kernel for: `refuse` raises ArgumentError where one is multiplied
    with, `plugin` has the plugin's own function do it. Raises PluginMismatch unless the plugin is there in version VERSION with
    functions of the parameters PARAMETERS, and executor's MissingExtra without PyTorch; nothing is changed then."""
    if others not in ("refuse", "plugin"):
        raise ArgumentError(f"others is {others!r}; allowed: 'refuse', 'plugin'")
    ops = _plugin()
    from ptxgen_vllm import products  # PyTorch, which is not asked for before it is needed

    with _change:
        _give_back(ops)
        for name in REPLACED:
            theirs, ours = getattr(ops, name), getattr(products, name)
            _theirs[name] = theirs
            _ours[name] = ours if others == "refuse" else _shared(ours, theirs)
            setattr(ops, name, _ours[name])


def register() -> None:
    """`install()`, as vLLM's entry point: it is called in each of vLLM's processes, in some more than once."""
    if not installed():
        install()


def uninstall() -> None:
    """The plugin has its own functions again. PluginMismatch if somebody else has replaced ours meanwhile; nothing is changed
    then, and nothing if they were not installed."""
    if _theirs:
        ops = importlib.import_module(OPS)
        with _change:
            _give_back(ops)


def installed() -> bool:
    """Whether the plugin multiplies with ptxgen's kernels in this process."""
    return bool(_theirs) and all(getattr(importlib.import_module(OPS), name) is ours for name, ours in _ours.items())


def _plugin() -> ModuleType:
    cure = f'pip install "{PLUGIN}=={VERSION}"'
    try:
        version = metadata.version(PLUGIN)
    except metadata.PackageNotFoundError:
        raise PluginMismatch(f"{PLUGIN} is not installed: {cure}") from None
    if version != VERSION:
        raise PluginMismatch(f"{PLUGIN} is installed in version {version}; ptxgen-vllm is for {VERSION}: {cure}")
    ops = importlib.import_module(OPS)
    for name in REPLACED:
        function = getattr(ops, name, None)
        if function is None:
            raise PluginMismatch(f"{OPS} of {PLUGIN} {version} has no {name}: {cure}")
        found = tuple(inspect.signature(function).parameters)
        if found != PARAMETERS:
            raise PluginMismatch(
                f"{OPS}.{name} of {PLUGIN} {version} takes ({', '.join(found)}); must take ({', '.join(PARAMETERS)}): {cure}"
            )
    return ops


def _give_back(ops: ModuleType) -> None:
    changed = [name for name, ours in _ours.items() if getattr(ops, name) is not ours]
    if changed:
        raise PluginMismatch(f"{', '.join(changed)} of {OPS} is no more what ptxgen-vllm put there: undo that first")
    for name, theirs in _theirs.items():
        setattr(ops, name, theirs)
    _theirs.clear()
    _ours.clear()


def _shared(ours: Product, theirs: Product) -> Product:
    def product(W: Any, X: Any, quant_type: int, row: int) -> Any:
        return (ours if int(quant_type) in FORMAT_OF else theirs)(W, X, quant_type, row)

    return product
