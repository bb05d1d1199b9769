# SPDX-License-Identifier: MIT
"""Memory of devices (GPUs), and the streams that order work on it.

The host cannot reach memory of a device. Other libraries take it where it is, by DLPack:

    fsdp = shoal.Fsdp(world.group, device="cuda")
    weight = torch.from_dlpack(layer["w"].full)

Parameters that are added as tensors of torch give tensors of torch, without that call.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from . import _api
from ._api import Dtype
from ._dlpack import LEGACY_STREAM, NO_ORDER, is_unused, make_capsule, read_device, give_back
from ._library import check, check_generation, generation, lib

__all__ = ["DeviceArray", "dlpack_device", "use_stream"]

CPU = 0
# DLPack's number of what torch calls "cuda", and ours.
_CUDA_DLPACK = 2
_CUDA = "cuda"


# Devices -------------------------------------------------------------------------------------------------------------

_of_dlpack: dict[tuple[int, int], int] = {}
_dlpack_of: dict[int, tuple[int, int]] = {}


def find_device(name: str | None) -> int:
    """The number of a device. Loads its module."""
    if name is None:
        return CPU
    if not isinstance(name, str):
        raise TypeError(f"a device is given by its name, not by {name!r}")
    number = ctypes.c_int()
    check(lib.shoal_device_find(name.encode(), ctypes.byref(number)))
    return number.value


def name_of(device: int) -> str:
    """The name of a device."""
    name: bytes = lib.shoal_device_name(device)
    return name.decode()


_null: Any = _api.shoal_deleter
_no_deleter = _null()


class _Tensor:
    """A tensor of the library, for one call or several: ``with`` makes it in a scope of its own."""

    def __init__(self, device: int, address: int, shape: Sequence[int], dtype: Dtype) -> None:
        self._arguments = (device, address or None, shape, dtype)
        self.handle = 0

    def __enter__(self) -> int:
        device, address, shape, dtype = self._arguments
        check(lib.shoal_scope_begin())
        sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        self.handle = lib.shoal_from_device_memory(
            device, address, sizes, len(shape), dtype, None, _no_deleter, None
        ) or 0  # fmt: skip
        if not self.handle:
            status = lib.shoal_scope_error()
            text = lib.shoal_error_text()
            lib.shoal_scope_end()
            check(lib.shoal_fail(status, text.replace(b"%", b"%%")))
        return self.handle

    def __exit__(self, *error: object) -> None:
        lib.shoal_scope_end()


def dlpack_of(device: int) -> tuple[int, int]:
    """DLPack's numbers of a device: the kind, and which one of that kind."""
    found = _dlpack_of.get(device)
    if found is None:
        with _Tensor(device, 0, (0,), Dtype.U8) as tensor:
            managed = ctypes.c_void_p()
            check(lib.shoal_to_dlpack_on(tensor, NO_ORDER, ctypes.byref(managed)))
            found = read_device(managed.value or 0)
            give_back(managed.value or 0)
        _dlpack_of[device] = found
        _of_dlpack[found] = device
    return found


def device_of_dlpack(kind: int, id: int, what: str) -> int:
    """The device of memory that DLPack describes so, which is in use in this process."""
    if kind == _CUDA_DLPACK and (kind, id) not in _of_dlpack:
        own = dlpack_of(find_device(_CUDA))[1]
        if own != id:
            raise ValueError(
                f"{what} is on GPU {id}, and this process uses GPU {own}: SHOAL_CUDA_DEVICE chooses another one"
            )
    found = _of_dlpack.get((kind, id))
    if found is None:
        raise ValueError(f"{what} is not in host memory (DLPack device {kind})")
    return found


def stream_of(device: int) -> int:
    """The stream of the library's work, as a number of DLPack."""
    stream = ctypes.c_int64()
    check(lib.shoal_device_stream(device, ctypes.byref(stream)))
    return stream.value


def dlpack_device(device: str) -> tuple[int, int]:
    """DLPack's numbers of the device that this process uses: the kind, and which one of that kind.

    ``torch.device("cuda", shoal.dlpack_device("cuda")[1])`` is torch's name of it.
    """
    return dlpack_of(find_device(device))


def use_stream(device: str, stream: Any = None) -> None:
    """From now on the library's work on a device goes to `stream`, behind what both were asked for so far.

    A stream of torch, or its number for DLPack. Then kernels that the program puts on that stream between two calls of
    the library need no events. It must exist until another one is used. None: the library's own stream again.
    """
    number = getattr(stream, "cuda_stream", stream)
    if number is None:
        number = 0
    elif number == 0:
        number = LEGACY_STREAM
    check(lib.shoal_device_use_stream(find_device(device), number))


def _torch_stream(device: int) -> list[int]:
    """The stream that torch uses now on a device."""
    torch = sys.modules.get("torch")
    if torch is None or name_of(device) != _CUDA or not torch.cuda.is_initialized():
        return []
    return [torch.cuda.current_stream(dlpack_of(device)[1]).cuda_stream or LEGACY_STREAM]


# Arrays that other libraries have taken ------------------------------------------------------------------------------


class Export:
    """Memory that was given to another library by DLPack. Called, it gives itself as long as that library has it.

    The consumer ends its use by a function of the library, which knows nothing of Python: it may be called when the
    interpreter has ended. So nobody is told of the end; who needs to know asks.
    """

    __slots__ = ("_capsule", "_owner", "_tensor", "stream")

    def __init__(self, capsule: Any, tensor: int, owner: Any, stream: int) -> None:
        self._capsule = capsule
        self._tensor = tensor
        self._owner = owner  # it has the memory
        self.stream = stream

    def __call__(self) -> Export | None:
        if not _asking.acquire(blocking=False):
            return self
        try:
            return self if self._is_used() else None
        finally:
            _asking.release()

    def _is_used(self) -> bool:
        if not self._tensor:
            return False
        if self._capsule is not None and is_unused(self._capsule):
            if sys.getrefcount(self._capsule) > 2:  # this object's, and the argument
                return True
            give_back(self._capsule)
        self._capsule = None
        if lib.shoal_tensor_release_data(self._tensor) != 0:
            return True
        lib.shoal_tensor_unref(self._tensor)
        self._tensor, self._owner = 0, None
        return False


_asking = threading.Lock()
_exports: list[Export] = []
_most_exports = 16


def _keep(export: Export) -> None:
    """Keeps an export, and with it the owner of the memory, until its consumer has ended."""
    global _exports, _most_exports
    _exports.append(export)
    if len(_exports) > _most_exports:
        _exports = [known for known in _exports if known() is not None]
        _most_exports = 2 * len(_exports) + 16


def _forget() -> None:
    """In a child of fork() memory of the parent's devices is nobody's."""
    global _asking
    _asking = threading.Lock()
    _exports.clear()
    _of_dlpack.clear()
    _dlpack_of.clear()


os.register_at_fork(after_in_child=_forget)


class Streams:
    """The streams on which consumers may still work on exports of one object."""

    __slots__ = ("_exports",)

    def __init__(self) -> None:
        self._exports: list[Export] = []

    def add(self, export: Export) -> None:
        """Its stream is followed until it has ended, and once after that."""
        self._exports.append(export)

    def follow(self, device: int) -> None:
        """Later work of the library begins after what consumers have asked of their streams so far."""
        streams = {export.stream for export in self._exports if export.stream != NO_ORDER}
        self._exports = [export for export in self._exports if export() is not None]
        for stream in streams.union(_torch_stream(device)):
            check(lib.shoal_device_follow(device, stream))


class DeviceArray:
    """An array in memory of a device. It is contiguous.

    ``torch.from_dlpack(array)`` is a tensor over the same memory. `read` and `write` copy to and from host memory.
    """

    __slots__ = ("__weakref__", "_address", "_device", "_dtype", "_generation", "_owner", "_shape", "_tell")

    def __init__(
        self, device: int, address: int, shape: Sequence[int], dtype: Dtype, owner: Any, tell: Callable[[Export], None]
    ) -> None:
        self._device = device
        self._address = address
        self._shape = tuple(shape)
        self._dtype = dtype
        self._owner = owner
        self._tell = tell
        self._generation = generation()

    @property
    def shape(self) -> tuple[int, ...]:
        """The numbers of elements along its dimensions."""
        return self._shape

    @property
    def dtype(self) -> str:
        """The type of its elements: "f32"."""
        return self._dtype.name.lower()

    @property
    def device(self) -> str:
        """The name of the device."""
        return name_of(self._device)

    @property
    def address(self) -> int:
        """The address of the first element, for kernels of the program."""
        return self._address

    @property
    def nbytes(self) -> int:
        """The number of bytes of all elements."""
        return math.prod(self._shape) * int(lib.shoal_dtype_bytes(self._dtype))

    def _use(self) -> _Tensor:
        check_generation(self._generation, "array")
        return _Tensor(self._device, self._address, self._shape, self._dtype)

    def _memory(self) -> tuple[int, int, Dtype, int]:
        check_generation(self._generation, "array")
        return self._address, math.prod(self._shape), self._dtype, self._device

    def _follow(self) -> None:
        follow = getattr(self._owner, "follow", None)
        if follow is not None:
            follow()

    def read(self) -> Any:
        """A copy in host memory, of numpy. bf16 is uint16 there."""
        from ._views import new_array

        out = new_array(self._shape, self._dtype, "numpy")
        self._follow()
        with self._use() as tensor:
            check(lib.shoal_read(tensor, out.ctypes.data, self.nbytes))
        return out

    def write(self, values: Any) -> None:
        """Copies an array of host memory, with as many elements of the same dtype, to the device."""
        from ._arrays import take

        memory = take(values, "values", self._dtype)
        if memory.bytes != self.nbytes:
            raise ValueError(f"values has {memory.count} elements, the array {math.prod(self._shape)}")
        self._follow()
        with self._use() as tensor:
            check(lib.shoal_write(tensor, memory.address, memory.bytes))

    # DLPack

    def __dlpack_device__(self) -> tuple[int, int]:
        """The device, as DLPack numbers it."""
        return dlpack_of(self._device)

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> Any:  # fmt: skip
        """A capsule of DLPack. Later work of `stream`, a stream of the consumer, comes behind the library's so far."""
        if copy:
            raise BufferError("Shoal makes no copies for DLPack: copy the array that the consumer makes")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the array is on {self.device}, and Shoal makes no copies for DLPack")
        number = LEGACY_STREAM if stream is None else stream
        managed = ctypes.c_void_p()
        with self._use() as tensor:
            check(lib.shoal_to_dlpack_on(tensor, number, ctypes.byref(managed)))
            lib.shoal_tensor_ref(tensor)
        capsule = make_capsule(managed.value or 0)
        export = Export(capsule, tensor, self._owner, number)
        _keep(export)
        self._tell(export)
        return capsule

    def __repr__(self) -> str:
        return f"<shoal.DeviceArray: {self.dtype}{list(self._shape)} on {self.device}>"
