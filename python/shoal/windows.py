# SPDX-License-Identifier: MIT
"""Memory that ranks of a host share: symmetric memory, a block for each of them, and windows, one block for all.

Both give their memory as a memoryview of bytes, which ``numpy.frombuffer`` and ``torch.frombuffer`` take without a copy.
As with ``mmap``, memory that such a view still uses cannot be freed: that is a BufferError, also of ``World.close``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import _api
from ._arrays import find_dtype, take
from ._library import check, check_generation, generation, lib
from ._views import Views
from .errors import StateError
from .works import Work

if TYPE_CHECKING:
    from .groups import Group

__all__ = ["Symmetric", "Window"]


class _Shared:
    """What both have: a handle, and views that keep it."""

    _what = "memory"

    def __init__(self, group: Group, handle: int) -> None:
        self._group = group
        self._handle = handle
        self._generation = generation()
        self._views = Views()
        group.world._shared.add(self)

    def _live(self) -> int:
        check_generation(self._generation, self._what)
        self._group.world._live()
        if not self._handle:
            raise StateError(f"the {self._what} was freed")
        return self._handle

    def _view(self, address: int | None, size: int) -> memoryview:
        return self._views.make(None, self._what, address, size, self)

    @property
    def is_viewed(self) -> bool:
        """Whether an array or a memoryview still uses the memory."""
        return bool(self._views.names())

    def _native_free(self, handle: int) -> None:
        raise NotImplementedError

    def free(self) -> None:
        """Frees this rank's handle. Not collective, but every rank calls it. Again: nothing."""
        if not self._handle or self._generation != generation():
            return
        if self.is_viewed:
            raise BufferError(f"arrays still use the {self._what}: delete them before it is freed")
        handle, self._handle = self._handle, 0
        if self._group.world.is_open:
            self._native_free(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", 0):
            self._views = Views()
            self.free()


class Symmetric(_Shared):
    """A block of the same size for every rank of a group on one host; each rank can read and write all of them.

    Made by ``group.symmetric(size)``. Collectives on arrays in symmetric memory copy less.
    """

    _what = "symmetric memory"

    @property
    def size(self) -> int:
        """The bytes of one block."""
        return int(lib.shoal_symmetric_bytes(self._live()))

    @property
    def buffer(self) -> memoryview:
        """This rank's own block."""
        return self._view(lib.shoal_symmetric_data(self._live()), self.size)

    def peer(self, rank: int) -> memoryview:
        """The block of a rank of the group. Ranks order their reads and writes themselves, by a barrier for example."""
        address = lib.shoal_symmetric_peer(self._live(), rank)
        if address is None and self.size > 0:
            raise ValueError(lib.shoal_error_text().decode())
        return self._view(address, self.size)

    def grow(self, size: int) -> None:
        """Lets all blocks grow to `size` bytes of those that were reserved. Collective; contents and addresses stay."""
        check(lib.shoal_symmetric_grow(self._group._live(), self._live(), size))

    def _native_free(self, handle: int) -> None:
        lib.shoal_symmetric_free(handle)


class Window(_Shared):
    """One block for all ranks of a host, into which each rank writes its own part and which all read.

    Made by ``group.window(size)``.
    """

    _what = "window"

    @property
    def size(self) -> int:
        """The bytes of the window."""
        return int(lib.shoal_window_bytes(self._live()))

    @property
    def buffer(self) -> memoryview:
        """The memory, read-only. Its contents are defined from the end of a gather until this rank releases it."""
        return self._view(lib.shoal_window_data(self._live()), self.size).toreadonly()

    def gather_start(self, pieces: Sequence[tuple[Any, int]], *, dtype: str | None = None, label: int = 0) -> Work:
        """Starts a gather."""
        memories = [take(data, f"pieces[{i}]") for i, (data, _) in enumerate(pieces)]
        listed = (_api.shoal_window_piece * len(pieces))()
        for piece, memory, (_, offset) in zip(listed, memories, pieces):
            if offset < 0:
                raise ValueError(f"a piece has the offset {offset}")
            piece.data = memory.address
            piece.count = memory.count
            piece.data_dtype = memory.dtype
            piece.window_dtype = memory.dtype if dtype is None else find_dtype(dtype)
            piece.offset = offset
        work = ctypes.c_void_p()
        check(lib.shoal_window_gather_start(self._live(), listed, len(pieces), label, ctypes.byref(work)))
        return Work(work.value or 0, (self, memories), None)

    def gather(self, pieces: Sequence[tuple[Any, int]], *, dtype: str | None = None, label: int = 0) -> None:
        """Writes this rank's pieces, (array, offset in bytes), converted to `dtype`; ends when all ranks have.

        It waits until every rank has released what was there before. `label` is the same on all ranks.
        """
        self.gather_start(pieces, dtype=dtype, label=label).wait()

    def release(self) -> None:
        """This rank has read what it needs of the oldest generation that it has not released."""
        check(lib.shoal_window_release(self._live()))

    def _native_free(self, handle: int) -> None:
        lib.shoal_window_free(handle)
