"""Kernel launches as a CUDA graph. Belongs to cuda.py.

The nodes are added one by one (cuGraphAddKernelNode): nothing is captured from a stream, so nothing that other threads, other
streams or the loader do can break it, and what is not in the list is not in the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from executor.device.cuda_event import Check
from executor.device.protocol import Node

PROGRAMMATIC_PORT = 1
"""CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC: the edge starts where the kernel lets its dependents start."""


class CudaGraph:
    """The launches, each after those that it names, what was captured as a graph in this one; `dependent` ones that name one by
    a programmatic edge (CUDA Programming Guide, "Programmatic Dependent Launch", use in CUDA graphs). `cuda` is
    cuda.bindings.driver; `check` takes a driver's answer and what was being done, and gives the values or raises."""

    def __init__(self, cuda: Any, nodes: Sequence[Node], check: Check) -> None:
        self.cooperative = any(node.kernel.cooperative for node in nodes)
        """Whether blocks of a launch wait for each other."""
        self._cuda = cuda
        self._check = check
        self._graph = self._check(cuda.cuGraphCreate(0), "making a graph")
        self._instance: Any = None
        try:
            self._add_all(nodes)
            self._instance = self._check(cuda.cuGraphInstantiate(self._graph, 0), "instantiating a graph")
        except BaseException:
            self.close()
            raise

    def upload(self, stream: Any) -> None:
        """Bring to the GPU what the first launch would else bring there."""
        self._check(self._cuda.cuGraphUpload(self._instance, stream), "uploading a graph")

    def launch(self, stream: Any, work: object) -> None:
        """Start all launches; str(work) says for errors what they are."""
        (status,) = self._cuda.cuGraphLaunch(self._instance, stream)
        if status:
            self._check((status,), f"launching {work}")

    def nodes(self) -> list[tuple[tuple[int, int, int], tuple[int, int, int]]]:
        """Grid and block of each launch, read back from the driver, in the order in which they were added."""
        cuda = self._cuda
        _, count = self._check(cuda.cuGraphGetNodes(self._graph, 0), "counting the nodes of a graph")
        nodes, _ = self._check(cuda.cuGraphGetNodes(self._graph, count), "reading the nodes of a graph")
        sizes = []
        for node in nodes:
            p = self._check(cuda.cuGraphKernelNodeGetParams(node), "reading a node of a graph")
            sizes.append(((p.gridDimX, p.gridDimY, p.gridDimZ), (p.blockDimX, p.blockDimY, p.blockDimZ)))
        return sizes

    def close(self) -> None:
        """Give back what the driver keeps. A second time does nothing."""
        if self._instance is not None:
            self._cuda.cuGraphExecDestroy(self._instance)
        if self._graph is not None:
            self._cuda.cuGraphDestroy(self._graph)
        self._instance = self._graph = None

    def _add_all(self, nodes: Sequence[Node]) -> None:
        added: list[Any] = []
        beside = _beside_each_other(nodes)
        for number, node in enumerate(nodes):
            before = [added[earlier] for earlier in node.after]
            dependent = node.dependent and number not in beside and _waits_for_a_kernel(nodes, number)
            added.append(self._add(node, [] if dependent else before, dependent=dependent))
            if dependent:
                edge = self._cuda.CUgraphEdgeData()
                edge.from_port = PROGRAMMATIC_PORT
                edge.type = self._cuda.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC.value
                answer = self._cuda.cuGraphAddDependencies(self._graph, before, added[-1:], [edge], 1)
                self._check(answer, f"making {node.kernel.entry} dependent in a graph")

    def _add(self, node: Node, waits: list[Any], *, dependent: bool = False) -> Any:
        cuda = self._cuda
        if node.captured is not None:
            added = cuda.cuGraphAddChildGraphNode(self._graph, waits, len(waits), node.captured)
            return self._check(added, f"adding {node.kernel.entry} to a graph")
        parameters = cuda.CUDA_KERNEL_NODE_PARAMS()
        parameters.func = node.kernel.handle
        parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ = node.grid
        parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ = node.block
        parameters.sharedMemBytes = node.kernel.dynamic_shared
        parameters.kernelParams = node.parameters.pointers
        doing = f"adding {node.kernel.entry} (grid {node.grid}, block {node.block}) to a graph"
        added = self._check(cuda.cuGraphAddKernelNode(self._graph, waits, len(waits), parameters), doing)
        # A dependent launch may not be cooperative, too, and needs not: it starts when all blocks of the one before it
        # are on the GPU or over. Those end without it, and nothing that comes after it starts before all blocks of this one
        # have: so they get the room that was counted (Device.most_blocks), if some of them later than others.
        if node.kernel.cooperative and not dependent:
            value = cuda.CUkernelNodeAttrValue()
            value.cooperative = 1
            attribute = cuda.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            self._check(cuda.cuGraphKernelNodeSetAttribute(added, attribute, value), doing)
        return added


def _waits_for_a_kernel(nodes: Sequence[Node], number: int) -> bool:
    """Whether a launch is a kernel that waits for one other kernel: only of such can one start before the other has ended."""
    node = nodes[number]
    return node.captured is None and len(node.after) == 1 and nodes[node.after[0]].captured is None


def _beside_each_other(nodes: Sequence[Node]) -> set[int]:
    """The cooperative launches that may run while another one does: if each had some of its blocks on the GPU and no room for
    the others, both would wait for ever. The driver sees to that, but not where they are dependent."""
    before: list[set[int]] = []
    for node in nodes:
        before.append({*node.after, *(number for earlier in node.after for number in before[earlier])})
    waiting = [number for number, node in enumerate(nodes) if node.kernel.cooperative]
    return {a for a in waiting for b in waiting if a != b and a not in before[b] and b not in before[a]}
