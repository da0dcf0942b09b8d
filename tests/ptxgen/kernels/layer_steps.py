"""The steps of a persistent layer by the kernels that a model runs otherwise, one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels.activation.swiglu import FusedSwiglu
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.norm.rmsnorm import RmsNorm
from ptxgen.kernels.persistent.persistent_layer import PersistentLayer
from tests.ptxgen.kernels import gemvs

Arrays = dict[str, NDArray[Any]]
Run = Callable[[KernelType, dict[str, Any]], Arrays]
"""Gives what a kernel makes of some of its arguments; those it only writes may be left out."""
DIGITS = ("digits", "scales", "sums")


def one_by_one(kernel: PersistentLayer, arguments: Mapping[str, Any], run: Run) -> Arrays:
    """The results of a layer by a launch for each step."""

    def product(stage: int, matrix: int, weights: str, given: Mapping[str, Any], **more: Any) -> NDArray[Any]:
        of = kernel.stages[stage]
        make = gemvs.residual if more else HwDp4aGemv
        made = make(of.matrices[matrix].format, k=of.k, n=of.matrices[matrix].n, digits=of.digits)
        return run(made, {"w": arguments[weights], **{name: given[name] for name in DIGITS}, **more})["y"]

    def normed(x: NDArray[Any], stage: int) -> Arrays:
        made = RmsNorm(hidden=kernel.hidden, digits=kernel.stages[stage].digits)
        gamma = arguments[kernel.stages[stage].gamma]
        return run(made, {"x": x.reshape(1, -1), "gamma": gamma, "eps": arguments["eps"]})

    x = product(0, 0, "wo", arguments, y=arguments["x"])
    inner = normed(x, 1)
    gate, up = (product(1, 0, name, inner) for name in ("wg", "wu"))
    gated = run(FusedSwiglu(n=kernel.ffn, digits=kernel.stages[2].digits), {"gate": gate, "up": up})
    x = product(2, 0, "wd", gated, y=x)
    results = {"x": x, "gated": gated["y"]}
    if len(kernel.stages) > 3:
        outer = normed(x, 3)
        for number, matrix in enumerate(kernel.stages[3].matrices):
            results[matrix.result] = product(3, number, matrix.weights[0], outer)
    return results
