"""The nodes and edges of a CUDA graph, on a driver that only writes them down. That a GPU runs them is tests/gpu's business."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from cuda.bindings import driver as real

from executor.base.errors import DeviceError
from executor.device.cuda_graph import PROGRAMMATIC_PORT, CudaGraph
from executor.device.parameters import ParameterBlock
from executor.device.protocol import LoadedKernel, Node

OK = real.CUresult.CUDA_SUCCESS


@dataclass
class Driver:
    """`nodes` and `edges` of the graph that was made, an edge with its port (0: after the node's end); `cooperative` nodes."""

    nodes: list[str] = field(default_factory=list)
    edges: list[tuple[str, str, int]] = field(default_factory=list)
    cooperative: list[str] = field(default_factory=list)
    alive: int = 0
    refused: str = ""
    CUDA_KERNEL_NODE_PARAMS = SimpleNamespace
    CUgraphEdgeData = SimpleNamespace
    CUgraphDependencyType = real.CUgraphDependencyType
    CUkernelNodeAttrID = real.CUkernelNodeAttrID
    CUkernelNodeAttrValue = real.CUkernelNodeAttrValue

    def cuGraphCreate(self, flags: int) -> tuple[Any, str]:
        self.alive += 1
        return OK, "graph"

    def cuGraphInstantiate(self, graph: Any, flags: int) -> tuple[Any, str]:
        self.alive += 1
        return OK, "instance"

    def cuGraphAddKernelNode(self, graph: Any, waits: list[str], count: int, parameters: Any) -> tuple[Any, str | None]:
        return self._add(parameters.func, waits, count)

    def cuGraphAddDependencies(self, graph: Any, starts: list[str], ends: list[str], data: Any, count: int) -> tuple[Any]:
        self.edges.append((starts[0], ends[0], data[0].from_port))
        return (OK,)

    def cuGraphKernelNodeSetAttribute(self, node: str, attribute: Any, value: Any) -> tuple[Any]:
        assert type(value) is real.CUkernelNodeAttrValue  # the binding takes no other, not the one that a launch takes either
        assert (attribute, value.cooperative) == (real.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 1)
        self.cooperative.append(node)
        return (OK,)

    def cuGraphGetNodes(self, graph: Any, count: int) -> tuple[Any, list[str], int]:
        return OK, self.nodes[:count], len(self.nodes)

    def cuGraphKernelNodeGetParams(self, node: str) -> tuple[Any, Any]:
        return OK, SimpleNamespace(gridDimX=1, gridDimY=1, gridDimZ=1, blockDimX=32, blockDimY=1, blockDimZ=1)

    def cuGraphExecDestroy(self, instance: Any) -> tuple[Any]:
        self.alive -= 1
        return (OK,)

    cuGraphDestroy = cuGraphExecDestroy

    def _add(self, name: str, waits: list[str], count: int) -> tuple[Any, str | None]:
        assert len(waits) == count
        if name == self.refused:
            return real.CUresult.CUDA_ERROR_INVALID_VALUE, None
        self.nodes.append(name)
        self.edges += [(before, name, 0) for before in waits]
        return OK, name


def answered(answer: tuple[Any, ...], doing: str) -> Any:
    """The device's check, without a device."""
    status, *values = answer
    if status:
        raise DeviceError(f"{doing}: {status.name}")
    return values[0] if len(values) == 1 else tuple(values)


def node(number: int, *after: int, dependent: bool = False, cooperative: bool = False) -> Node:
    kernel = LoadedKernel(f"entry{number}", f"kernel{number}", cooperative=cooperative)
    return Node(kernel, (1, 1, 1), (32, 1, 1), ParameterBlock({}), after, dependent)


NODES = [node(0), node(1, 0, dependent=True), node(2, 0), node(3, 1, 2, dependent=True)]
"""Two that need nothing but the first, and one that needs both."""


def test_a_launch_waits_for_those_it_comes_after_and_is_dependent_only_after_a_single_one() -> None:
    driver = Driver()
    graph = CudaGraph(driver, NODES, answered)
    assert driver.nodes == ["kernel0", "kernel1", "kernel2", "kernel3"]
    dependent = ("kernel0", "kernel1", PROGRAMMATIC_PORT)
    assert driver.edges == [dependent, ("kernel0", "kernel2", 0), ("kernel1", "kernel3", 0), ("kernel2", "kernel3", 0)]
    graph.close()
    graph.close()
    assert driver.alive == 0


def test_blocks_that_wait_for_each_other_start_together_or_early_where_no_others_do_beside_them() -> None:
    driver, chain = Driver(), [node(0, cooperative=True), node(1, 0, dependent=True, cooperative=True), node(2, 1)]
    assert CudaGraph(driver, chain, answered).cooperative
    assert driver.cooperative == ["kernel0"]
    assert driver.edges == [("kernel0", "kernel1", PROGRAMMATIC_PORT), ("kernel1", "kernel2", 0)]
    driver, fork = Driver(), [node(0), *(node(number, 0, dependent=True, cooperative=True) for number in (1, 2))]
    CudaGraph(driver, fork, answered)
    assert driver.cooperative == ["kernel1", "kernel2"]
    assert driver.edges == [("kernel0", "kernel1", 0), ("kernel0", "kernel2", 0)]
    assert not CudaGraph(Driver(), NODES, answered).cooperative


def test_the_nodes_read_back_are_the_launches() -> None:
    sizes = ((1, 1, 1), (32, 1, 1))
    assert CudaGraph(Driver(), NODES, answered).nodes() == [sizes] * 4


def test_a_node_that_the_driver_refuses_leaves_no_graph_behind() -> None:
    driver = Driver(refused="kernel1")
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
        CudaGraph(driver, NODES, answered)
    assert driver.alive == 0
