"""The one place that launches. Arguments are checked against the kernel's signature before anything runs; a checked launch is a
Plan, which runs again for a few microseconds. What a kernel does with its arguments is the kernel's own business."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from executor.base.errors import LaunchError
from executor.device.parameters import ParameterBlock
from executor.device.protocol import Device, DeviceLaunch, Grid, LoadedKernel, Node
from executor.launch.checks import (
    check_buffer,
    check_geometry,
    check_life,
    check_names,
    check_overlap,
    check_room,
    check_scalar,
    direction_of,
)
from executor.launch.dependencies import AccessedRange
from executor.launch.dependent_launches import Start
from executor.memory.buffers import DeviceAllocation, GpuBuffer, Writes
from ptxgen.dsl.arguments import Array, Scalar, Signature
from ptxgen.dsl.dependent_launch import promised
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.stamps import NAME as STAMPS
from ptxgen.dsl.stamps import stamped_signature
from ptxgen.kernels.compose import as_dependent

if TYPE_CHECKING:
    import numpy as np

    Number = int | float | np.generic


class Loads(Protocol):
    """What the launcher needs of Modules."""

    def load(self, kernel: KernelType, *, dependent: bool = False, stamped: bool = False) -> LoadedKernel:
        """As Modules.load."""


class LayerOperation(NamedTuple):
    """Where in a model a launch belongs: `layer 3 attn_q`; `layer` is None outside the layers."""

    layer: int | None = None
    operation: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in ("" if self.layer is None else f"layer {self.layer}", self.operation) if part)


NOWHERE = LayerOperation()


@dataclass(frozen=True)
class LaunchRecord:
    """One launch that happened: what observers (a profiler, a debugger) see. Scalars hold the values of this launch."""

    place: LayerOperation
    kernel: KernelType
    loaded: LoadedKernel
    grid: Grid
    block: Grid
    arguments: Mapping[str, GpuBuffer | Number]


Observer = Callable[[LaunchRecord], None]
"""Called after a launch. A method `prepared` of it is called when a launch has been prepared: its kernel may have been
compiled for it."""


class Plan:
    """A launch whose arguments have been checked. Call it to launch; scalars may be replaced (`plan(position=5)`), are
    checked the same way, and stay for the calls after. Made by `Launcher.prepare`."""

    __slots__ = (
        "_arguments",
        "_before_wait",
        "_block",
        "_buffers",
        "_dependent",
        "_frees",
        "_grid",
        "_is_dependent",
        "_launcher",
        "_parameters",
        "_scalars",
        "_signature",
        "device",
        "kernel",
        "loaded",
        "place",
        "ranks",
        "written",
    )

    def __init__(
        self, launcher: Launcher, kernel: KernelType, place: LayerOperation, arguments: dict[str, Any], dependent: bool = False
    ) -> None:
        signature = self._signature = kernel.signature()
        launch = kernel.launch()
        check_geometry(kernel, launch.grid, launch.block)
        check_names(kernel, signature, arguments)
        self._buffers: dict[str, GpuBuffer] = {}
        for name, argument in signature.items():
            value = arguments[name]
            if isinstance(argument, Array):
                self._buffers[name] = check_buffer(kernel, name, argument, value, launcher.device)
            else:
                check_scalar(kernel, name, argument, value)
        check_overlap(kernel, signature, self._buffers)
        self.kernel = kernel
        self.ranks = launch.ranks
        self.place = place
        self.loaded = launcher.modules.load(kernel, dependent=dependent)
        check_room(kernel, launch, self.loaded, launcher.device)
        self._dependent = dependent
        self._is_dependent = dependent or launch.dependent
        self._before_wait = promised(kernel, signature, dependent=dependent, of_itself=launch.dependent)
        self._launcher = launcher
        self.device = launcher.device
        self._frees = launcher.device.frees
        self._grid = launch.grid
        self._block = launch.block
        self._scalars = {name: argument for name, argument in signature.items() if isinstance(argument, Scalar)}
        self._arguments: dict[str, Any] = {name: arguments[name] for name in signature}
        self._parameters = _packed(signature, self._arguments)
        outputs = [self._buffers[n].allocation for n, a in signature.items() if isinstance(a, Array) and a.direction != "in"]
        self.written: tuple[DeviceAllocation, ...] = tuple(dict.fromkeys(outputs))
        """The memory that the kernel writes."""

    def __call__(self, **scalars: Number) -> None:
        """Launch, or be recorded by the capture under way. Raises LaunchError for a scalar that does not fit or a buffer freed
        since; nothing is launched then."""
        if scalars:
            self._replace(scalars)
        self.count_writes()
        self.start()

    def count_writes(self) -> None:
        """What the kernel writes counts as written from now on: before it is, since an interrupt in between must not leave a
        change uncounted."""
        for allocation in self.written:
            allocation.writes.count += 1

    def start(self) -> None:
        """`__call__` for a plan whose writes have been counted."""
        self.check_alive()
        if self.is_recorded():
            return
        if self.ranks not in (1, self.device.ranks):
            raise LaunchError(
                f"{self.kernel} waits for its launches on {self.ranks} devices; launch them all: launch_together(plans)"
            )
        self.device.launch(self.loaded, self._grid, self._block, self._parameters, self)
        self.report()

    def is_recorded(self) -> bool:
        """Whether a capture is under way on the device; the launch is then among what it recorded."""
        if self._launcher.recorded is None:
            return False
        self._launcher.recorded.append(self._launcher.prepare(self.kernel, self.place, **self._arguments))
        return True

    @property
    def of_device(self) -> DeviceLaunch:
        """The launch, as one of several devices."""
        return DeviceLaunch(self.device, self.loaded, self._grid, self._block, self._parameters, self)

    def __str__(self) -> str:
        """Kernel with its shape, and the tensors it works on: `layer 0 attn_q: q4k_gemv(...) on w = blk.0... u8[...], ...`."""
        where = f"{self.place}: " if str(self.place) else ""
        return f"{where}{self.kernel} on {', '.join(f'{name} = {buffer}' for name, buffer in self._buffers.items())}"

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Buffers and current scalars by name."""
        return dict(self._arguments)

    def _replace(self, scalars: Mapping[str, Number]) -> None:
        for name, value in scalars.items():
            argument = self._scalars.get(name)
            if argument is None:
                allowed = ", ".join(self._scalars) or "none"
                raise LaunchError(
                    f"{self.kernel}: {name} is not a scalar of this kernel, so a plan cannot replace it; its scalars: {allowed}"
                )
            check_scalar(self.kernel, name, argument, value)
        for name, value in scalars.items():
            self._parameters.set(name, value)  # type: ignore[arg-type]
            self._arguments[name] = value

    def node(self, after: tuple[int, ...], written: Collection[Writes] = (), stamps: GpuBuffer | None = None) -> Node:
        """The launch as a graph takes it, with the scalars of now. `written` is what launches before it in the graph write: a
        kernel that reads some of it before it waits, because its signature says that it may, is not dependent here.
        stamps: memory for the times of this launch alone, whose kernel is then loaded now in its stamped form."""
        reads = (self._buffers[name].allocation.writes for name in self._before_wait.reads)
        dependent = self._is_dependent and not any(writes in written for writes in reads)
        loaded, parameters = self.loaded, self._parameters
        if stamps is not None:
            loaded = self._launcher.modules.load(self.kernel, dependent=self._dependent, stamped=True)
            check_room(self.kernel, self.kernel.launch(), loaded, self.device)  # it takes more registers
            parameters = _packed(stamped_signature(self.kernel), {**self._arguments, STAMPS: stamps})
        return Node(loaded, self._grid, self._block, parameters, after, dependent, self.ranks)

    @property
    def accesses(self) -> dict[str, AccessedRange]:
        """The memory that the kernel reads and writes, by argument."""
        return {
            name: AccessedRange(
                b.allocation.writes, b.pointer, b.pointer + b.nbytes, direction_of(self._signature, name) != "in"
            )
            for name, b in self._buffers.items()
        }

    def started_as(self, node: Node, accesses: Mapping[str, AccessedRange]) -> Start:
        """What is to be proved of this launch as that node of a graph. accesses: its own."""
        peers: frozenset[str] = frozenset()
        if self.ranks > 1:
            arrays = (argument for argument in self._signature.values() if isinstance(argument, Array))
            peers = frozenset(array.addresses_of for array in arrays if array.addresses_of)
        return Start(self, node.after, node.dependent, accesses, self._before_wait, peers)

    @property
    def record(self) -> LaunchRecord:
        """What an observer sees of a launch with the scalars of now."""
        return LaunchRecord(self.place, self.kernel, self.loaded, self._grid, self._block, dict(self._arguments))

    def check_alive(self) -> None:
        """LaunchError if a buffer was freed since the arguments were checked."""
        if self.device.frees != self._frees:
            for name, buffer in self._buffers.items():
                check_life(self.kernel, name, buffer)
            self._frees = self.device.frees

    def report(self) -> None:
        """Tell the observers of the launch that was."""
        if not self._launcher.observers:
            return
        record = self.record
        for observer in self._launcher.observers:
            observer(record)


def launch_together(plans: Sequence[Plan]) -> None:
    """Launch the plans of a kernel that waits for its launches on other devices (LaunchConfig.ranks): those of all its ranks,
    in their order, each on a device of its own. Or have them recorded, each by the capture that is under way on its device.

    LaunchError unless they are just that, or for a buffer that was freed since, or where only some of the devices are under a
    capture; nothing is launched then. A device that fails in between leaves the others waiting, until they give up with a trap.
    """
    kernel, ranks = plans[0].kernel, plans[0].ranks
    devices = {id(plan.device) for plan in plans}
    if any(plan.kernel != kernel for plan in plans) or not 1 < len(plans) == ranks == len(devices):
        raise LaunchError(
            f"{kernel} is launched on {ranks} devices at once, got {len(plans)} plans on {len(devices)}: "
            f"{', '.join(str(plan.kernel) for plan in plans)}"
        )
    for rank, plan in enumerate(plans):
        if plan.arguments["rank"] != rank:
            raise LaunchError(f"{kernel}: the plan at place {rank} is of rank {plan.arguments['rank']}")
        plan.check_alive()
    captured = [plan.device.owner.capturing for plan in plans]
    if any(captured) and not all(captured):
        names = ", ".join(plan.device.name for plan, its in zip(plans, captured, strict=True) if not its)
        raise LaunchError(f"{kernel}: a launch on several devices is captured on all of them or none; not captured: {names}")
    for plan in plans:
        plan.count_writes()
    recorded = [plan.is_recorded() for plan in plans]
    if all(recorded):
        return
    plans[0].device.launch_together([plan.of_device for plan in plans])
    for plan in plans:
        plan.report()


class Launcher:
    """Launches kernels on one device. `observers` are called after every launch, in order."""

    def __init__(self, device: Device, modules: Loads) -> None:
        self.device = device
        self.modules = modules
        self.observers: list[Observer] = []
        self.recorded: list[Plan] | None = None
        """Where launches go while a capture is under way."""

    @contextmanager
    def recording(self) -> Iterator[list[Plan]]:
        """In the block nothing is launched: what would be is in the list, each with the scalars that it had. What else happens
        at once on the device (copies, fills, launches of another launcher) is refused with LaunchError."""
        self.recorded = []
        self.device.owner.capturing = True
        try:
            yield self.recorded
        finally:
            self.device.owner.capturing = False
            self.recorded = None

    @contextmanager
    def observed_by(self, observer: Observer) -> Iterator[None]:
        """In the block the observer sees every launch, once, as if it were among `observers`."""
        others = self.observers
        self.observers = [*(other for other in others if other is not observer), observer]
        try:
            yield
        finally:
            self.observers = others

    def prepare(self, kernel: KernelType, place: LayerOperation = NOWHERE, /, **arguments: Any) -> Plan:
        """Check the arguments, load the kernel, and pack its parameters. Nothing is launched yet.

        A buffer must be of this device, alive, of exactly the signature's dtype and shape, and aligned; a scalar must fit its
        type and bounds; an `out` or `inout` must not overlap any other argument. LaunchError says kernel, argument, what was
        given and what is allowed.
        """
        return self._prepared(Plan(self, kernel, place, arguments))

    def prepare_dependent(self, kernel: KernelType, place: LayerOperation = NOWHERE, /, **arguments: Any) -> Plan:
        """As `prepare`: a launch that a graph may start before the one before it has ended, in the form of the kernel that
        works before it waits, if there is one. Launched by itself it waits for nothing."""
        return self._prepared(Plan(self, as_dependent(kernel, self.device.target), place, arguments, dependent=True))

    def _prepared(self, plan: Plan) -> Plan:
        for observer in self.observers:
            if (prepared := getattr(observer, "prepared", None)) is not None:
                prepared()
        return plan

    def __call__(self, kernel: KernelType, place: LayerOperation = NOWHERE, /, **arguments: Any) -> None:
        """Check and launch once, or be recorded by the capture under way."""
        self.prepare(kernel, place, **arguments)()


def _packed(signature: Signature, arguments: Mapping[str, Any]) -> ParameterBlock:
    """The parameters of arguments that have been checked."""
    parameters = ParameterBlock(signature)
    for name, value in arguments.items():
        parameters.set(name, value.pointer if isinstance(value, GpuBuffer) else value)
    return parameters
