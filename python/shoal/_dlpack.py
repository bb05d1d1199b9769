# SPDX-License-Identifier: MIT
"""The structs and capsules of DLPack."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any

from ._cpython import declare

# Streams: the producer waits for nothing; CUDA's legacy default stream.
NO_ORDER = -1
LEGACY_STREAM = 1


class DLTensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


_deleter = ctypes.CFUNCTYPE(None, c_void_p)


class _Managed(Structure):
    _fields_ = [("tensor", DLTensor), ("context", c_void_p), ("deleter", _deleter)]


_pointer_in = declare("PyCapsule_GetPointer", c_void_p, ctypes.py_object, c_char_p)
_is_valid = declare("PyCapsule_IsValid", c_int, ctypes.py_object, c_char_p)
_new = declare("PyCapsule_New", ctypes.py_object, c_void_p, c_void_p, c_void_p)

_NAME = b"dltensor"
# Capsules have the address of their name, and may live longer than this module.
_name = ctypes.create_string_buffer(_NAME)
declare("Py_IncRef", None, ctypes.py_object)(_name)


def read_tensor(capsule: Any) -> Any:
    """What a capsule describes. It belongs to the capsule."""
    return DLTensor.from_address(_pointer_in(capsule, _NAME))


def read_device(managed: int) -> tuple[int, int]:
    """The device of a struct, by its address."""
    tensor = _Managed.from_address(managed).tensor
    return tensor.device_type, tensor.device_id


def make_capsule(managed: int) -> Any:
    """A capsule for a consumer. One that nobody takes must be given back."""
    return _new(managed, ctypes.addressof(_name), None)


def is_unused(capsule: Any) -> bool:
    """Whether nobody has taken what is in it."""
    return bool(_is_valid(capsule, _NAME))


def give_back(given: Any) -> None:
    """Ends a struct, by its address or in a capsule that nobody has taken."""
    address = given if isinstance(given, int) else _pointer_in(given, _NAME)
    _Managed.from_address(address).deleter(address)
