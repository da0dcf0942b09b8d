"""persistent_layer: the bits of the kernels that it stands for, whatever its grid, its ring, its formats and its digits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from numpy.typing import NDArray

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.formats import find as find_format
from ptxgen.kernels.activation.swiglu_digits import FusedSwigluDigits
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv, HwDp4aGemvResidual
from ptxgen.kernels.norm.rmsnorm_digits import RmsNormDigits
from ptxgen.kernels.persistent.persistent_layer import PersistentLayer
from tests.ptxgen.kernels.running import assert_matches_reference, emulate, inputs

Arrays = dict[str, NDArray[Any]]
DIGITS = ("digits", "scales", "sums")


def run(kernel: KernelType, **given: Any) -> Arrays:
    """What a kernel makes of these arguments, on the emulator."""
    results, _ = emulate(kernel, inputs(kernel) | given, sanitize=False)
    return results


def one_by_one(kernel: PersistentLayer, arguments: Mapping[str, Any]) -> Arrays:
    """The results by a launch for each step, of the kernels that a model runs otherwise."""

    def product(stage: int, matrix: int, weights: str, given: Mapping[str, Any], **more: Any) -> NDArray[Any]:
        of = kernel.stages[stage]
        cls = HwDp4aGemvResidual if "y" in more else HwDp4aGemv
        made = cls(of.matrices[matrix].format, k=of.k, n=of.matrices[matrix].n, digits=of.digits)
        return run(made, w=arguments[weights], **{name: given[name] for name in DIGITS}, **more)["y"]

    def normed(x: NDArray[Any], stage: int) -> Arrays:
        made = RmsNormDigits(hidden=kernel.hidden, digits=kernel.stages[stage].digits)
        gamma = arguments[kernel.stages[stage].gamma]
        return run(made, x=x.reshape(1, -1), gamma=gamma, eps=arguments["eps"])

    x = product(0, 0, "wo", arguments, y=arguments["x"])
    inner = normed(x, 1)
    gate, up = (product(1, 0, name, inner) for name in ("wg", "wu"))
    gated = run(FusedSwigluDigits(n=kernel.ffn, digits=kernel.stages[2].digits), gate=gate, up=up)
    x = product(2, 0, "wd", gated, y=x)
    results = {"x": x, "gated": gated["y"]}
    if len(kernel.stages) > 3:
        outer = normed(x, 3)
        for number, matrix in enumerate(kernel.stages[3].matrices):
            results[matrix.result] = product(3, number, matrix.weights[0], outer)
    return results


def of_format(name: str, k: int = 512, **settings: Any) -> PersistentLayer:
    """A layer whose matrices are all of one format."""
    size = max(find_format(name).block, 32)
    k = -(-k // size) * size
    return PersistentLayer(
        k,
        2 * size,
        3 * size,
        name,
        name,
        name,
        name,
        name,
        name,
        queries=33,
        keys=9,
        **{"blocks": 2, "num_warps": 8, **settings},
    )


@pytest.mark.parametrize("kernel", list(PersistentLayer.cases()), ids=["q4_k_m", "q8_0"])
@pytest.mark.parametrize("sanitize", [True, False], ids=["sanitised", "plain"])
def test_a_layer_has_the_bits_of_its_kernels_one_by_one(kernel: PersistentLayer, sanitize: bool) -> None:
    arguments = inputs(kernel)
    results, findings = emulate(kernel, arguments, sanitize=sanitize)
    assert not findings
    assert_matches_reference(kernel, arguments, results)
    for name, expected in one_by_one(kernel, arguments).items():
        assert results[name].tobytes() == expected.tobytes(), name
    assert not results["barrier"].any()
