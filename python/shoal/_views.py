# SPDX-License-Identifier: MIT
"""Arrays over memory that the library owns, and who still uses it.

A view keeps a block, and the block the object whose memory it is. Weak references to blocks tell whether an array is
still there when the memory is about to be freed or used for something else.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from ._api import Dtype
from ._uses import Uses
from .devices import CPU, DeviceArray, Export, dlpack_of

_numpy_names = {
    Dtype.F64: "f8", Dtype.F32: "f4", Dtype.F16: "f2", Dtype.BF16: "u2", Dtype.I8: "i1", Dtype.I16: "i2",
    Dtype.I32: "i4", Dtype.I64: "i8", Dtype.U8: "u1", Dtype.U16: "u2", Dtype.U32: "u4", Dtype.U64: "u8",
    Dtype.BOOL: "?", Dtype.C64: "c8", Dtype.C128: "c16", Dtype.F8_E4M3FN: "u1", Dtype.F8_E5M2: "u1",
}  # fmt: skip
_torch_names = {
    Dtype.F64: "float64", Dtype.F32: "float32", Dtype.F16: "float16", Dtype.BF16: "bfloat16", Dtype.I8: "int8",
    Dtype.I16: "int16", Dtype.I32: "int32", Dtype.I64: "int64", Dtype.U8: "uint8", Dtype.U16: "uint16",
    Dtype.U32: "uint32", Dtype.U64: "uint64", Dtype.BOOL: "bool", Dtype.C64: "complex64", Dtype.C128: "complex128",
    Dtype.F8_E4M3FN: "float8_e4m3fn", Dtype.F8_E5M2: "float8_e5m2",
}  # fmt: skip


class Viewed(Protocol):
    """Has memory that arrays may use."""

    _uses: Uses

    @property
    def is_viewed(self) -> bool: ...


class Views:
    """The blocks of memory of one object that arrays use, by what they are for."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: dict[Hashable, list[tuple[Callable[[], object | None], str]]] = {}

    def make(self, key: Hashable, name: str, address: int | None, size: int, owner: Any) -> memoryview:
        """A view of bytes, which keeps `owner`. `name` is for error texts."""
        kind: Any = ctypes.c_ubyte * size
        block = kind.from_address(address) if size else kind()
        block.owner = owner
        self.add(key, name, weakref.ref(block))
        return memoryview(block).cast("B")

    def add(self, key: Hashable, name: str, probe: Callable[[], object | None]) -> None:
        """Memory that an array uses as long as `probe` gives something."""
        known = [entry for entry in self._blocks.get(key, ()) if entry[0]() is not None]
        self._blocks[key] = [*known, (probe, name)]

    def _names(self, keys: Sequence[Hashable] | None) -> list[str]:
        chosen = list(self._blocks) if keys is None else keys
        found = [name for key in chosen for block, name in self._blocks.get(key, ()) if block() is not None]
        return list(dict.fromkeys(found))

    def names(self, keys: Sequence[Hashable] | None = None, linger_s: float = 0.0) -> list[str]:
        """Of what arrays are still there: of these keys, or of all. They may take `linger_s` seconds to go."""
        until = time.monotonic() + linger_s
        while self._names(keys) and time.monotonic() < until:
            time.sleep(0.0005)
        if not self._names(keys):
            return []
        gc.collect()  # arrays in cycles, of a traceback say, are used by nobody
        return self._names(keys)


def kind_of(like: Any) -> str:
    """Which arrays are given to somebody who has given this one: "torch", or "numpy"."""
    torch = sys.modules.get("torch")
    return "torch" if torch is not None and isinstance(like, torch.Tensor) else "numpy"


def _torch_dtype(dtype: Dtype) -> Any:
    torch = sys.modules["torch"]
    found = getattr(torch, _torch_names[dtype], None)
    if found is None:
        raise TypeError(f"this version of torch has no {_torch_names[dtype]}")
    return found


def make_array(view: memoryview, shape: Sequence[int], dtype: Dtype, kind: str, *, readonly: bool = False) -> Any:
    """An array over the bytes of a view. numpy has no bf16 and f8: they are uint16 and uint8 there.

    torch has no read-only tensors.
    """
    if kind == "torch":
        torch = sys.modules["torch"]
        if view.nbytes == 0:
            return torch.empty(tuple(shape), dtype=_torch_dtype(dtype))
        return torch.frombuffer(view, dtype=_torch_dtype(dtype)).view(tuple(shape))
    import numpy

    return numpy.ndarray(tuple(shape), _numpy_names[dtype], view.toreadonly() if readonly else view)


def make_device_array(
    device: int, address: int, shape: Sequence[int], dtype: Dtype, kind: str, owner: Any,
    tell: Callable[[DeviceArray | Export], None],
) -> Any:  # fmt: skip
    """An array in memory of a device, or a tensor of torch over it. `tell` gets what keeps the memory in use."""
    array = DeviceArray(device, address, shape, dtype, owner, tell)
    if kind != "torch":
        tell(array)
        return array
    torch = sys.modules["torch"]
    if array.nbytes == 0:
        return torch.empty(tuple(shape), dtype=_torch_dtype(dtype), device=f"cuda:{dlpack_of(device)[1]}")
    return torch.from_dlpack(array)


def new_array(shape: Sequence[int], dtype: Dtype, kind: str, device: int = CPU) -> Any:
    """A new array of zeros."""
    if kind == "torch":
        where = "cpu" if device == CPU else f"cuda:{dlpack_of(device)[1]}"
        return sys.modules["torch"].zeros(tuple(shape), dtype=_torch_dtype(dtype), device=where)
    if device != CPU:
        raise TypeError("Shoal makes no arrays on devices: add parameters as tensors of torch, or make arrays yourself")
    import numpy

    return numpy.zeros(tuple(shape), _numpy_names[dtype])


def shape_of(source: Any) -> tuple[int, ...]:
    """The shape of an array."""
    shape = getattr(source, "shape", None)
    return tuple(memoryview(source).shape if shape is None else shape)
