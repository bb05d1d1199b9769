# SPDX-License-Identifier: MIT
"""Memory of arrays: its address, elements and dtype, without a copy.

Anything with the buffer protocol (numpy, array, bytearray, memoryview) or with DLPack (torch) is taken.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, Structure, c_char_p, c_int, c_ssize_t, c_void_p
from typing import Any

from ._api import Dtype
from ._cpython import declare
from ._dlpack import read_tensor
from .devices import CPU, DeviceArray, device_of_dlpack, name_of, stream_of

_float_of = {2: Dtype.F16, 4: Dtype.F32, 8: Dtype.F64}
_signed_of = {1: Dtype.I8, 2: Dtype.I16, 4: Dtype.I32, 8: Dtype.I64}
_unsigned_of = {1: Dtype.U8, 2: Dtype.U16, 4: Dtype.U32, 8: Dtype.U64}
_complex_of = {8: Dtype.C64, 16: Dtype.C128}
_bytes_of = {
    dtype: size
    for table in (_float_of, _signed_of, _unsigned_of, _complex_of)
    for size, dtype in table.items()
} | {Dtype.BF16: 2, Dtype.BOOL: 1, Dtype.F8_E4M3FN: 1, Dtype.F8_E5M2: 1}

_names = {dtype.name.lower(): dtype for dtype in Dtype}
_others = {
    "float64": Dtype.F64, "float32": Dtype.F32, "float16": Dtype.F16, "bfloat16": Dtype.BF16, "int8": Dtype.I8,
    "int16": Dtype.I16, "int32": Dtype.I32, "int64": Dtype.I64, "uint8": Dtype.U8, "uint16": Dtype.U16,
    "uint32": Dtype.U32, "uint64": Dtype.U64, "complex64": Dtype.C64, "complex128": Dtype.C128,
}  # fmt: skip


def find_dtype(name: str | Dtype) -> Dtype:
    """A dtype by its name, Shoal's ("f32") or numpy's ("float32").

    >>> find_dtype("bf16").name, find_dtype("float32").name
    ('BF16', 'F32')
    """
    if isinstance(name, Dtype):
        return name
    found = _names.get(name) or _others.get(name)
    if found is None:
        raise ValueError(f"there is no dtype '{name}': {', '.join(_names)}")
    return found


# The buffer protocol -------------------------------------------------------------------------------------------------


class _PyBuffer(Structure):
    _fields_ = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_char_p),
        ("shape", POINTER(c_ssize_t)),
        ("strides", POINTER(c_ssize_t)),
        ("suboffsets", POINTER(c_ssize_t)),
        ("internal", c_void_p),
    ]


_get_buffer = declare("PyObject_GetBuffer", c_int, ctypes.py_object, POINTER(_PyBuffer), c_int)
_release_buffer = declare("PyBuffer_Release", None, POINTER(_PyBuffer))
_SIMPLE = 0


def _address_of(view: memoryview) -> int:
    # The view itself keeps the memory where it is.
    buffer = _PyBuffer()
    _get_buffer(view, ctypes.byref(buffer), _SIMPLE)
    address: int | None = buffer.buf
    _release_buffer(ctypes.byref(buffer))
    return address or 0


def _dtype_of_format(format: str, itemsize: int) -> Dtype | None:
    code = format.lstrip("@=<|")
    if format[:1] in (">", "!") and itemsize > 1:
        return None
    if code in ("e", "f", "d"):
        return _float_of.get(itemsize)
    if code in ("b", "h", "i", "l", "q", "n"):
        return _signed_of.get(itemsize)
    if code in ("B", "H", "I", "L", "Q", "N", "c"):
        return _unsigned_of.get(itemsize)
    if code == "?":
        return Dtype.BOOL
    return _complex_of.get(itemsize) if code in ("Zf", "Zd") else None


class Memory:
    """The memory of an array. The array is kept as long as this object is."""

    __slots__ = ("address", "bytes", "count", "device", "dtype", "owner", "readonly", "source")

    def __init__(
        self, address: int, count: int, dtype: Dtype, readonly: bool, source: Any, owner: Any, device: int = CPU
    ) -> None:
        self.address = address
        self.device = device
        self.count = count
        self.dtype = dtype
        self.bytes = count * _bytes_of[dtype]
        self.readonly = readonly
        self.source = source
        self.owner = owner


def _refuse_layout(name: str, source: Any) -> ValueError:
    return ValueError(f"{name} is not contiguous ({type(source).__name__}): Shoal makes no copies, pass a contiguous one")


def _of_view(source: Any, view: memoryview, name: str) -> Memory:
    if not view.c_contiguous:
        raise _refuse_layout(name, source)
    dtype = _dtype_of_format(view.format, view.itemsize)
    if dtype is None:
        raise TypeError(f"{name} has elements of format '{view.format}', for which there is no dtype")
    return Memory(_address_of(view), view.nbytes // view.itemsize, dtype, view.readonly, source, view)


# DLPack --------------------------------------------------------------------------------------------------------------


_ON_HOST = (1, 3)
# What has no table of sizes: (code, bits).
_others_of = {(4, 16): Dtype.BF16, (6, 8): Dtype.BOOL, (10, 8): Dtype.F8_E4M3FN, (12, 8): Dtype.F8_E5M2}
_tables = {0: _signed_of, 1: _unsigned_of, 2: _float_of, 5: _complex_of}


def _dtype_of_dlpack(code: int, bits: int) -> Dtype | None:
    return _others_of.get((code, bits)) or _tables.get(code, {}).get(bits // 8)


def is_on_host(source: Any) -> bool:
    """Whether an array is in host memory, as far as it says where it is."""
    where = getattr(source, "__dlpack_device__", None)
    return where is None or where()[0] in _ON_HOST


def to_host(source: Any) -> Any:
    """An array in host memory: a copy of one that is on a device."""
    if isinstance(source, DeviceArray):
        return source.read()
    return source if is_on_host(source) or not hasattr(source, "cpu") else source.cpu()


def _of_dlpack(source: Any, name: str, may_be_on_device: bool) -> Memory:
    if getattr(source, "requires_grad", False):
        raise ValueError(f"{name} is a tensor that requires grad: use .detach()")
    kind, id = source.__dlpack_device__()
    device, order = CPU, {}
    if kind not in _ON_HOST:
        if not may_be_on_device:
            raise ValueError(f"{name} is not in host memory (DLPack device {int(kind)})")
        device = device_of_dlpack(int(kind), int(id), name)
        order = {"stream": stream_of(device)}  # what the producer has asked of the device comes first
    is_bool = str(getattr(source, "dtype", "")) == "torch.bool"
    exported = source.view(sys.modules["torch"].uint8) if is_bool else source  # torch 1.13 does not export bool
    capsule = exported.__dlpack__(**order)
    tensor = read_tensor(capsule)
    count = expected = 1
    for i in reversed(range(tensor.ndim)):
        count *= tensor.shape[i]
    for i in reversed(range(tensor.ndim)):
        if tensor.strides and count > 0 and tensor.shape[i] != 1 and tensor.strides[i] != expected:
            raise _refuse_layout(name, source)
        expected *= tensor.shape[i]
    dtype = Dtype.BOOL if is_bool else _dtype_of_dlpack(tensor.code, tensor.bits)
    if dtype is None or tensor.lanes != 1:
        raise TypeError(f"{name} has elements for which there is no dtype ({getattr(source, 'dtype', '?')})")
    return Memory((tensor.data or 0) + tensor.byte_offset, count, dtype, False, source, (capsule, exported), device)


def _of_device_array(source: DeviceArray, name: str, may_be_on_device: bool) -> Memory:
    if not may_be_on_device:
        raise ValueError(f"{name} is not in host memory (device {source.device})")
    address, count, dtype, device = source._memory()
    source._follow()
    return Memory(address, count, dtype, False, source, source, device)


# Both ----------------------------------------------------------------------------------------------------------------


def take(
    source: Any, name: str, dtype: str | Dtype | None = None, writes: bool = False, *, may_be_on_device: bool = False
) -> Memory:
    """The memory of `source`, which messages call `name`. `dtype` reads elements of another type of the same size.

    Memory of a device can be used by what goes to the stream of the library's work from now on.
    """
    try:
        view = memoryview(source)
    except TypeError:
        if isinstance(source, str):
            option = f": an operator is given by its name, op={source!r}" if name == "out" else ""
            raise TypeError(f"{name} is a str, not an array{option}") from None
        if not hasattr(source, "__dlpack__"):
            raise TypeError(f"{name} is a {type(source).__name__}: it has neither the buffer protocol nor DLPack") from None
        if isinstance(source, DeviceArray):
            memory = _of_device_array(source, name, may_be_on_device)
        else:
            memory = _of_dlpack(source, name, may_be_on_device)
    else:
        memory = _of_view(source, view, name)
    if writes and memory.readonly:
        raise ValueError(f"{name} is read-only ({type(source).__name__})")
    if dtype is not None:
        wanted = find_dtype(dtype)
        if _bytes_of[wanted] != _bytes_of[memory.dtype]:
            raise ValueError(f"{name} has elements of {_bytes_of[memory.dtype]} bytes, {wanted.name.lower()} has {_bytes_of[wanted]}")
        memory.dtype = wanted
    return memory


def take_on(source: Any, name: str, device: int, dtype: str | Dtype | None = None, writes: bool = False) -> Memory:
    """`take`, of memory that must be on this device."""
    memory = take(source, name, dtype, writes, may_be_on_device=device != CPU)
    if memory.device != device:
        where = "in host memory" if memory.device == CPU else f"on {name_of(memory.device)}"
        raise ValueError(f"{name} is {where}, not on {name_of(device)}")
    return memory


def empty(like: Any, count: int, blocks: int | None = None) -> Any:
    """A new array of the kind of `like`: of its shape, or with `blocks` of them, or flat with `count` elements."""
    shape = getattr(like, "shape", None)
    new = getattr(like, "new_empty", None)
    if new is not None:
        return new(count if shape is None or blocks is None else (blocks, *shape))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(like, numpy.ndarray):
        return numpy.empty(count if blocks is None else (blocks, *shape), dtype=like.dtype)  # type: ignore[misc]
    if isinstance(like, DeviceArray):
        raise TypeError("there is no out, and Shoal makes no arrays on devices: give one, of torch for instance")
    raise TypeError(f"there is no out, and Shoal does not know how to make a {type(like).__name__}")
