"""DLPack 1.x, the C structures by which array libraries hand memory to each other (https://dmlc.github.io/dlpack/latest/c_api.html):
capsules are read and made here. Which memory a device may use is decided in interop.py."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ptxgen.arrays import numpy_dtype
from ptxgen.errors import ArgumentError
from ptxgen.types import BF16, BY_NAME, F16, F32, F64, DType

CPU: Final = 1
CUDA: Final = 2
VERSION: Final = (1, 0)
"""The version that is requested and returned: all of 1.x can be read as this."""
READ_ONLY: Final = 1
COPIED: Final = 2

_INT, _UINT, _FLOAT, _BFLOAT = 0, 1, 2, 4
_CODE_NAMES: Final = {_INT: "int", _UINT: "uint", _FLOAT: "float", 3: "handle", _BFLOAT: "bfloat", 5: "complex", 6: "bool"}
_DTYPES: Final = {
    **{(_INT, bits): BY_NAME[f"s{bits}"] for bits in (8, 16, 32, 64)},
    **{(_UINT, bits): BY_NAME[f"u{bits}"] for bits in (8, 16, 32, 64)},
    (_FLOAT, 16): F16,
    (_FLOAT, 32): F32,
    (_FLOAT, 64): F64,
    (_BFLOAT, 16): BF16,
}
_NAME: Final = b"dltensor"
_VERSIONED_NAME: Final = b"dltensor_versioned"
_KINDS: Final = {CPU: "host memory", CUDA: "cuda:{}", 3: "pinned host memory", 13: "managed memory of cuda:{}"}


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """Starts with the tensor; the context and the deleter after it are the producer's."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.argtypes, _get_pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p


@dataclass(frozen=True)
class ForeignArray:
    """Memory as another library describes it. strides: of each axis, in bytes; None for row-major. `type_name` is the other
    library's word where `dtype` is None: a type that PTX does not have. `owner` keeps the memory alive."""

    pointer: int
    type_name: str
    dtype: DType | None
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    read_only: bool
    owner: Any


def device_label(kind: int, number: int) -> str:
    """A device as `__dlpack_device__` gives it, in words."""
    return _KINDS.get(kind, f"a device of DLPack's kind {kind}").format(number)


def read_capsule(capsule: object) -> ForeignArray:
    """What a capsule says. It is not consumed: it is the owner, and the producer's own destructor gives the memory back when
    it goes. Raises ArgumentError for what is no fresh capsule, a major version above 1, or memory that is a copy."""
    read_only = False
    if _is_valid(capsule, _VERSIONED_NAME):
        versioned = _ManagedVersioned.from_address(_get_pointer(capsule, _VERSIONED_NAME))
        if versioned.major > VERSION[0]:
            raise ArgumentError(f"its DLPack version is {versioned.major}.{versioned.minor}; up to {VERSION[0]}.x can be read")
        if versioned.flags & COPIED:
            raise ArgumentError("it gave a copy of its memory; only the memory itself can be shared")
        read_only = bool(versioned.flags & READ_ONLY)
        tensor = versioned.tensor
    elif _is_valid(capsule, _NAME):
        tensor = _Managed.from_address(_get_pointer(capsule, _NAME)).tensor
    else:
        raise ArgumentError(f"its __dlpack__ gave {capsule!r}, which is not an unconsumed DLPack capsule")
    code, bits, lanes = tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes
    itemsize = bits * lanes // 8
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = tuple(tensor.strides[axis] * itemsize for axis in range(tensor.ndim)) if tensor.strides else None
    return ForeignArray(
        pointer=(tensor.data or 0) + tensor.byte_offset,
        type_name=f"{_CODE_NAMES.get(code, f'DLPack type {code} of ')}{bits}{f' x {lanes}' if lanes != 1 else ''}",
        dtype=_DTYPES.get((code, bits)) if lanes == 1 else None,
        shape=shape,
        strides=strides,
        read_only=read_only,
        owner=capsule,
    )


def make_capsule(
    pointer: int,
    dtype: DType,
    shape: tuple[int, ...],
    device: tuple[int, int],
    owner: object,
    *,
    read_only: bool = False,
    max_version: tuple[int, int] | None = None,
) -> object:
    """A capsule over row-major memory, which keeps `owner` alive until its consumer is done. Versioned if `max_version` is 1.0
    or more. bf16 travels as bfloat, any other type as NumPy stores it (.b types and packed pairs: unsigned bits).

    The capsule is NumPy's, with another device written into it: its deleter is compiled code, which may be called on any
    thread, while an exception propagates and while the interpreter ends. A deleter written in Python may not.
    Raises BufferError for read-only memory in a capsule without a version, which could not say so.
    """
    array = np.asarray(_Carrier(pointer, numpy_dtype(dtype).str, shape, read_only, owner))
    versioned = max_version is not None and tuple(max_version) >= VERSION
    capsule = array.__dlpack__(max_version=VERSION if versioned else None)
    if versioned:
        tensor = _ManagedVersioned.from_address(_get_pointer(capsule, _VERSIONED_NAME)).tensor
    else:
        tensor = _Managed.from_address(_get_pointer(capsule, _NAME)).tensor
    tensor.device.kind, tensor.device.number = device
    if dtype == BF16:
        tensor.dtype.code = _BFLOAT
    return capsule


class _Carrier:
    """What NumPy needs to see memory as an array, and the owner of that memory. The array never touches the memory."""

    def __init__(self, pointer: int, typestr: str, shape: tuple[int, ...], read_only: bool, owner: object) -> None:
        self.__array_interface__ = {"version": 3, "data": (pointer, read_only), "typestr": typestr, "shape": shape}
        self.owner = owner
