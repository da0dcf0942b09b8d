"""Rules rewrite only what keeps its meaning: graphs are rewritten here, and nothing is launched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from executor.base.errors import LaunchError
from executor.choice.choice import GpuProfile
from executor.device.dry_run import DryRunDevice
from executor.device.gpu import GpuModel
from executor.layers.calls import Recorder
from executor.layers.graph.gathers import GatherParts
from executor.layers.graph.graph import Setting
from executor.layers.graph.operations import Add, Norm, Operation
from executor.layers.graph.products import DeferNorm, Project, project
from executor.layers.graph.rules import RULES, perform, rewritten
from executor.layers.graph.values import ActivationSource, StepValue
from executor.layers.projection import Projection
from executor.memory.weights import LoadedWeight
from executor.memory.workspace import Workspace
from ptxgen.formats import FORMATS
from ptxgen.kernels.gemv.dp4a import Dp4aGemv
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.gemv.plane_gemv_type import Int8GemvType
from ptxgen.types import U8

Q4_K = FORMATS["Q4_K"]
K = 256
ABLE = HwDp4aGemv(Q4_K, k=K, n=K, digits=3)
ONE_PLANE = HwDp4aGemv(Q4_K, k=K, n=K, digits=1)
UNABLE = Dp4aGemv(Q4_K, k=K, n=K, digits=3)


class Step:
    """A product onto a stream, a norm of that, and products of the norm; of ranks with a gather before the norm."""

    def __init__(self, readers: Sequence[Int8GemvType], rules: frozenset[str], ranks: int = 1, others: int = 0) -> None:
        model = GpuModel("NVIDIA H200", "sm_90", 132)
        self.workspace = Workspace(DryRunDevice(model, ranks=ranks))
        self.rules, self.ranks = rules, ranks
        self.x, delta, old, self.new, self.normed = (self.value(name) for name in ("x", "delta", "old", "new", "normed"))
        gamma, whole = self.value("gamma").buffer, self.new
        self.operations: list[Operation] = [
            project("down", self.projection(ABLE), self.x, delta),
            Add(name="down_residual", x=old, delta=delta, y=self.new),
        ]
        if ranks > 1:
            whole = StepValue.of(self.workspace.buffer("whole", (K * ranks,)))
            self.operations.append(GatherParts(name="down", own=self.new, whole=whole))
        self.operations.append(Norm(name="norm", x=whole, y=self.normed, gamma=gamma, eps=1e-5))
        for number, kernel in enumerate(readers):
            self.operations.append(project(f"reader {number}", self.projection(kernel), self.normed, self.value(f"y {number}")))
        for number in range(others):
            normed = self.value(f"other {number}")
            self.operations.append(Norm(name=f"other {number}", x=whole, y=normed, gamma=gamma, eps=1e-5))
            self.operations.append(project("its reader", self.projection(ABLE), normed, self.value(f"of other {number}")))

    def value(self, name: str) -> StepValue:
        return StepValue.of(self.workspace.buffer(name, (K,)))

    def projection(self, kernel: Int8GemvType) -> Projection:
        blocks = self.workspace.buffer(kernel.name, (kernel.n, kernel.format.row_bytes(kernel.k)), U8)
        return Projection(
            LoadedWeight(kernel.name, blocks, Q4_K, kernel.n, kernel.k), kernel, "test", GpuProfile(rules=self.rules)
        )

    def names(self) -> list[str]:
        return [one.name for one in rewritten(self.operations, Setting(self.workspace.device))]


DEFER = frozenset({"deferred_norms"})


@pytest.mark.parametrize(
    ("readers", "rules", "deferred"),
    [
        ([ABLE, ABLE], DEFER, True),
        ([ABLE], frozenset(), False),
        ([ABLE, ONE_PLANE], DEFER, False),  # which would make other numbers of it
        ([ABLE, UNABLE], DEFER, False),
        ([UNABLE], DEFER, False),
    ],
)
def test_a_norm_is_deferred_where_all_its_readers_complete_it(
    readers: list[Int8GemvType], rules: frozenset[str], deferred: bool
) -> None:
    step = Step(readers, rules)
    first, *_ = rewritten(step.operations, Setting(step.workspace.device))
    assert isinstance(first, Project)
    assert isinstance(first.epilogue, DeferNorm) == deferred
    assert ("norm" in step.names()) != deferred


def test_one_of_two_norms_of_a_stream_is_deferred() -> None:
    assert Step([ABLE], DEFER, others=1).names() == ["down", "reader 0", "other 0", "its reader"]


def test_ranks_gather_the_stream_itself_where_two_norms_read_it() -> None:
    rules = frozenset({"deferred_norms", "plane_gathers"})
    assert "norm" not in Step([ABLE], rules, ranks=2).names()
    assert "norm" in Step([ABLE], rules, ranks=2, others=1).names()
    assert "norm" in Step([ABLE], DEFER, ranks=2).names()


def deferred_to(kernel: Int8GemvType) -> None:
    """A reader that no rule would have given a deferred norm."""
    step = Step([], DEFER)
    recorder = Recorder(step.workspace)
    recorder.defer(step.normed, ActivationSource(3, {}, deferred=True))
    perform(recorder, [project("gate", step.projection(kernel), step.normed, step.x)])


@pytest.mark.parametrize("kernel", [ONE_PLANE, UNABLE])
def test_a_reader_that_cannot_complete_a_norm_is_refused(kernel: Int8GemvType) -> None:
    with pytest.raises(LaunchError, match=f"gate: {kernel.name}.* cannot complete the norm that was deferred to it"):
        deferred_to(kernel)


def products(rules: frozenset[str], kernels: Sequence[Int8GemvType]) -> Iterator[str]:
    step = Step([], rules)
    made = [
        project(str(number), step.projection(kernel), step.x, step.value(f"y {number}"))
        for number, kernel in enumerate(kernels)
    ]
    return (one.name for one in rewritten(made, Setting(step.workspace.device)))


def test_products_are_fused_where_their_kernels_can_be_and_stay_in_order() -> None:
    fuse = frozenset({"horizontal_fusion"})
    assert list(products(fuse, [ABLE, UNABLE, ABLE])) == ["0+2", "1"]
    assert list(products(fuse, [UNABLE, ABLE, ABLE])) == ["0", "1+2"]
    assert list(products(fuse, [ABLE, ONE_PLANE])) == ["0", "1"]
    assert list(products(frozenset(), [ABLE, ABLE])) == ["0", "1"]


def test_rules_have_names_of_their_own() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
