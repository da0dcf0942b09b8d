"""What a launch is checked for before anything runs: geometry, names, scalars, buffers and their overlaps. Each check raises a
LaunchError that names kernel, argument, what was given and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from executor.base.errors import LaunchError
from executor.device.parameters import scalar_fault
from executor.device.protocol import Device, Grid, LoadedKernel
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.arguments import Array, Scalar, Signature
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.errors import ArgumentError
from ptxgen.target import MAX_BLOCK, MAX_GRID, MAX_THREADS


def check_geometry(kernel: KernelType, grid: Grid, block: Grid) -> None:
    """Grid and block are what every GPU takes."""
    for what, sizes, limits in (("grid", grid, MAX_GRID), ("block", block, MAX_BLOCK)):
        if not all(1 <= size <= limit for size, limit in zip(sizes, limits, strict=True)):
            raise LaunchError(f"{kernel}: {what} {sizes} is out of range; from (1, 1, 1) to {limits}")
    if block[0] * block[1] * block[2] > MAX_THREADS:
        raise LaunchError(f"{kernel}: block {block} has {block[0] * block[1] * block[2]} threads; at most {MAX_THREADS}")


def check_room(kernel: KernelType, launch: LaunchConfig, loaded: LoadedKernel, device: Device) -> None:
    """Blocks that wait for each other must be there all at once."""
    if launch.cooperative and launch.blocks > (most := device.most_blocks(loaded, launch.block)):
        raise LaunchError(
            f"{kernel}: the {launch.blocks} blocks of grid {launch.grid} wait for each other, and {device.name} holds {most} "
            "at once; write it with fewer blocks, or with blocks that take less (threads, registers, shared memory)"
        )


def check_names(kernel: KernelType, signature: Signature, arguments: Iterable[str]) -> None:
    """The arguments have the names of the signature, all of them and no other."""
    names = set(arguments)
    missing = [name for name in signature if name not in names]
    extra = sorted(names - set(signature))
    if extra:
        near = difflib.get_close_matches(extra[0], missing or signature, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(signature) or 'none'}"
        raise LaunchError(f"{kernel} has no argument {extra[0]}{hint}")
    if missing:
        raise LaunchError(f"{kernel} needs {', '.join(f'{name} ({signature[name]})' for name in missing)}")


def check_scalar(kernel: KernelType, name: str, expected: Scalar, value: object) -> None:
    """The value fits type and bounds."""
    if reason := _scalar_fault(expected, value):
        raise LaunchError(f"{kernel}: argument {name} ({expected}) is {reason}")


def check_buffer(kernel: KernelType, name: str, expected: Array, value: object, device: Device) -> GpuBuffer:
    """The value, which is a buffer of this device, alive, of exactly this dtype and shape, and aligned."""

    def fault(text: str) -> LaunchError:
        return LaunchError(f"{kernel}: argument {name} {text}")

    if not isinstance(value, GpuBuffer):
        raise fault(f"is a {type(value).__name__}; must be a GpuBuffer {expected} (GpuBuffer.from_numpy uploads an array)")
    if value.device is not device:
        raise fault(f"is {value.other_label}; must be of this one, on {device.name}")
    check_life(kernel, name, value)
    if value.dtype != expected.dtype or value.shape != expected.shape:
        raise fault(f"is {value.dtype}{list(value.shape)}; must be {expected}")
    if value.pointer == 0:
        raise fault("is a null pointer")
    if expected.direction != "in" and value.allocation.read_only:
        raise fault(f"({value}) is written, but is memory of another library that is read-only")
    end = value.allocation.base + value.allocation.nbytes
    if value.pointer < value.allocation.base or value.pointer + expected.nbytes > end:
        raise fault(f"needs {expected.nbytes} bytes, but its memory ends after {end - value.pointer}")
    if value.pointer % expected.align:
        raise fault(f"starts at {value.pointer:#x}; must be on a {expected.align}-byte boundary")
    return value


def check_life(kernel: KernelType, name: str, buffer: GpuBuffer) -> None:
    """The buffer was not freed."""
    if not buffer.alive:
        raise LaunchError(f"{kernel}: argument {name} ({buffer}) was freed")


def require_apart(what: object, read: Mapping[str, GpuBuffer], written: Mapping[str, GpuBuffer]) -> None:
    """LaunchError if `what` would write memory that it reads, whichever of its launches does which."""
    for output, there in written.items():
        for input, here in read.items():
            if here.pointer < there.pointer + there.nbytes and there.pointer < here.pointer + here.nbytes:
                raise LaunchError(
                    f"{what}: {output} ({there}) overlaps {input} ({here}) in memory; "
                    f"{output} is written, so it needs memory of its own"
                )


def check_overlap(kernel: KernelType, signature: Signature, buffers: Mapping[str, GpuBuffer]) -> None:
    """A kernel that writes an argument may assume that no other argument sees it."""
    spans = sorted((buffer.pointer, buffer.pointer + buffer.nbytes, name) for name, buffer in buffers.items())
    for i, (_, end, name) in enumerate(spans):
        for start, _, other in spans[i + 1 :]:
            if start >= end:
                break
            directions = {n: direction_of(signature, n) for n in (name, other)}
            written = [n for n, direction in directions.items() if direction != "in"]
            if written:
                pair = " and ".join(f"{n} ({direction})" for n, direction in directions.items())
                raise LaunchError(
                    f"{kernel}: arguments {pair} overlap in memory; {written[0]} is written, so it needs memory of its own"
                )


def direction_of(signature: Signature, name: str) -> str:
    """What the kernel does with an array: in, out or inout."""
    argument = signature[name]
    assert isinstance(argument, Array)
    return argument.direction


def _scalar_fault(argument: Scalar, value: object) -> str:
    if isinstance(value, GpuBuffer):
        return f"the buffer {value}; must be a number"
    try:
        return scalar_fault(argument, value)
    except ArgumentError as error:
        return str(error)
