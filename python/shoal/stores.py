# SPDX-License-Identifier: MIT
"""The store: keys and values that all ranks of a world see, for small things outside of collectives."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ._library import check, lib
from .errors import TimeoutError

if TYPE_CHECKING:
    from .worlds import World

__all__ = ["Store"]

_MAX_BYTES = 1 << 20
_SLICE_S = 0.1


class Store:
    """The store of a world, which rank 0 holds. Values are bytes, at most 1 MiB."""

    __slots__ = ("_world",)

    def __init__(self, world: World) -> None:
        self._world = world

    def _call(self, name: str, *arguments: Any) -> None:
        """Calls a function of the library on the store."""
        world = self._world
        with world._uses:
            check(getattr(lib, name)(lib.shoal_world_store(world._live()), *arguments))

    def set(self, key: str, value: bytes | str) -> None:
        """Sets the value of a key, which is created or replaced."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._call("shoal_store_set", key.encode(), data, len(data))

    def get(self, key: str, timeout: float | None = None) -> bytes:
        """Waits until the key exists, at most `timeout` seconds (the world's timeout if None), and gives its value."""
        room = ctypes.create_string_buffer(_MAX_BYTES)
        size = ctypes.c_size_t()
        self._in_slices(
            timeout,
            lambda slice: self._call("shoal_store_get", key.encode(), room, _MAX_BYTES, slice, ctypes.byref(size)),
        )
        return room.raw[: size.value]

    def add(self, key: str, amount: int) -> int:
        """Adds to a number, atomically, and gives the sum."""
        total = ctypes.c_int64()
        self._call("shoal_store_add", key.encode(), amount, ctypes.byref(total))
        return total.value

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bool:
        """Sets the value to `desired` if it is `expected` (b"": the key is missing); says whether it was set."""
        was_set = ctypes.c_bool()
        self._call(
            "shoal_store_compare_set", key.encode(), expected, len(expected), desired, len(desired),
            ctypes.byref(was_set),
        )  # fmt: skip
        return was_set.value

    def wait(self, keys: Sequence[str], timeout: float | None = None) -> None:
        """Waits until all keys exist."""
        listed = (ctypes.c_char_p * len(keys))(*[key.encode() for key in keys])
        self._in_slices(timeout, lambda slice: self._call("shoal_store_wait", listed, len(keys), slice))

    def _in_slices(self, timeout: float | None, wait: Callable[[float], None]) -> None:
        """The main thread comes back often, so that Ctrl-C is heard; others do, so that the world can be closed."""
        until = time.monotonic() + (self._world.group.timeout if timeout is None else max(timeout, 0.0))
        while True:
            left = max(until - time.monotonic(), 0.0)
            try:
                return wait(min(left, _SLICE_S))
            except TimeoutError:
                if left <= _SLICE_S:
                    raise

    def exists(self, *keys: str) -> bool:
        """Whether all keys exist now."""
        listed = (ctypes.c_char_p * len(keys))(*[key.encode() for key in keys])
        exist = ctypes.c_bool()
        self._call("shoal_store_check", listed, len(keys), ctypes.byref(exist))
        return exist.value

    def delete(self, key: str) -> bool:
        """Removes a key; says whether it existed."""
        existed = ctypes.c_bool()
        self._call("shoal_store_delete", key.encode(), ctypes.byref(existed))
        return existed.value
