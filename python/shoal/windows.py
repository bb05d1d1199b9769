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
from ._uses import Uses, wait_for_others
from ._views import Views
from .errors import StateError
from .works import Work

if TYPE_CHECKING:
    from .groups import Group

__all__ = ["Symmetric", "Window"]

# How long a thread may be in a call on memory that is freed.
_PATIENCE_S = 1.0


class _Shared:
    """What both have: a handle, and views that keep it."""

    _what = "memory"

    def __init__(self, group: Group) -> None:
        self._group = group
        self._generation = generation()
        self._uses = Uses()
        self._views = Views()
        # Written by the library: an exception in between loses nothing.
        self._cell = ctypes.c_void_p()
        group._world._shared.add(self)

    def _live(self) -> int:
        check_generation(self._generation, self._what)
        self._group._world._live()
        handle = self._cell.value
        if not handle:
            raise StateError(f"the {self._what} was freed")
        return handle

    def _call(self, name: str, *arguments: Any) -> Any:
        """Calls a function of the library on the memory, which cannot be freed meanwhile."""
        with self._uses:
            return getattr(lib, name)(self._live(), *arguments)

    def _view(self, address: int | None, size: int) -> memoryview:
        view = self._views.make(None, self._what, address, size, self)
        self._live()  # another thread that frees the memory has either seen the view, or is seen here
        return view

    @property
    def is_viewed(self) -> bool:
        """Whether an array or a memoryview still uses the memory."""
        return bool(self._views.names())

    def _native_free(self, handle: int | None) -> None:
        raise NotImplementedError

    def free(self) -> None:
        """Frees this rank's handle. Not collective, but every rank calls it. Again: nothing."""
        if not self._cell.value or self._generation != generation():
            return
        handle, self._cell.value = self._cell.value, None  # nobody begins another call
        try:
            if self.is_viewed:
                raise BufferError(f"arrays still use the {self._what}: delete them before it is freed")
            if not wait_for_others([self._uses], _PATIENCE_S):
                raise StateError(f"another thread is in a call on the {self._what}")
        except BaseException:
            self._cell.value = handle
            raise
        self._free(handle)

    def _free(self, handle: int | None) -> None:
        world = self._group._world
        with world._uses:
            if world.is_open:
                self._native_free(handle)

    def __del__(self) -> None:
        if hasattr(self, "_cell") and self._cell.value and self._generation == generation():
            self._free(self._cell.value)


class Symmetric(_Shared):
    """A block of the same size for every rank of a group on one host; each rank can read and write all of them.

    Made by ``group.symmetric(size)``. Collectives on arrays in symmetric memory copy less.
    """

    _what = "symmetric memory"

    @property
    def size(self) -> int:
        """The bytes of one block."""
        return int(self._call("shoal_symmetric_bytes"))

    @property
    def buffer(self) -> memoryview:
        """This rank's own block."""
        return self._view(self._call("shoal_symmetric_data"), self.size)

    def peer(self, rank: int) -> memoryview:
        """The block of a rank of the group. Ranks order their reads and writes themselves, by a barrier for example."""
        address = self._call("shoal_symmetric_peer", rank)
        if address is None and self.size > 0:
            raise ValueError(lib.shoal_error_text().decode())
        return self._view(address, self.size)

    def grow(self, size: int) -> None:
        """Lets all blocks grow to `size` bytes of those that were reserved. Collective; contents and addresses stay."""
        with self._uses:
            check(self._group._call("shoal_symmetric_grow", self._live(), size))

    def _native_free(self, handle: int | None) -> None:
        lib.shoal_symmetric_free(handle)


class Window(_Shared):
    """One block for all ranks of a host, into which each rank writes its own part and which all read.

    Made by ``group.window(size)``.
    """

    _what = "window"

    @property
    def size(self) -> int:
        """The bytes of the window."""
        return int(self._call("shoal_window_bytes"))

    @property
    def buffer(self) -> memoryview:
        """The memory, read-only. Its contents are defined from the end of a gather until this rank releases it."""
        return self._view(self._call("shoal_window_data"), self.size).toreadonly()

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
        work = Work(self, (self, memories), None)
        with self._group._uses:
            self._group._live()
            check(self._call("shoal_window_gather_start", listed, len(pieces), label, ctypes.byref(work._cell)))
        return work

    def gather(self, pieces: Sequence[tuple[Any, int]], *, dtype: str | None = None, label: int = 0) -> None:
        """Writes this rank's pieces, (array, offset in bytes), converted to `dtype`; ends when all ranks have.

        It waits until every rank has released what was there before. `label` is the same on all ranks.
        """
        self.gather_start(pieces, dtype=dtype, label=label).wait()

    def release(self) -> None:
        """This rank has read what it needs of the oldest generation that it has not released."""
        with self._group._uses:
            self._group._live()
            check(self._call("shoal_window_release"))

    def _native_free(self, handle: int | None) -> None:
        lib.shoal_window_free(handle)
