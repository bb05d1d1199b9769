# SPDX-License-Identifier: MIT
"""Worlds: the ranks of one job."""

from __future__ import annotations

import _thread
import atexit
import collections
import contextlib
import ctypes
import warnings
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from . import _api, meshes, works
from ._library import check, check_generation, generation, lib
from ._uses import Uses, wait_for_others
from ._views import Viewed
from .errors import StateError
from .groups import Group
from .meshes import Mesh
from .stores import Store

__all__ = ["World"]

_open: weakref.WeakSet[World] = weakref.WeakSet()
# Handles of worlds that the garbage collector has dropped, and that a thread closes.
_left: collections.deque[ctypes.c_void_p] = collections.deque()
_closing = Uses()
_is_exiting = False
# How long other threads may stay in calls on a world that is closed.
_PATIENCE_S = 5.0
# How long a world takes at most to close that was opened with the default timeout, and a little more.
_CLOSE_S = 35.0
_world_close = lib.shoal_world_close


class World:
    """The ranks of one job and everything they share.

    Without arguments the launcher's environment says how many ranks there are and which one this is (``shoal run``,
    mpirun, srun, torchrun); without a launcher the world has one rank. It is closed by ``with``, by ``close`` or when
    the interpreter exits.

    >>> with World() as world:
    ...     print(world.rank, world.n_ranks)
    0 1
    """

    def __init__(
        self, n_ranks: int = 0, rank: int = 0, *, key: str | None = None, transport: str | None = None,
        timeout: float = 0.0, startup_timeout: float = 0.0, close_timeout: float = 0.0,
    ) -> None:  # fmt: skip
        self._begin(
            _api.shoal_world_options(
                struct_size=ctypes.sizeof(_api.shoal_world_options),
                n_ranks=n_ranks,
                rank=rank,
                key=key.encode() if key is not None else None,
                transport=transport.encode() if transport is not None else None,
                timeout_s=timeout,
                startup_timeout_s=startup_timeout,
                close_timeout_s=close_timeout,
            )
        )

    def _begin(self, options: _api.shoal_world_options) -> None:
        self._generation = generation()
        self._uses = Uses()
        self._ends = Uses()  # the threads that close it
        self._groups: dict[int, Group] = {}
        self._shared: weakref.WeakSet[Viewed] = weakref.WeakSet()
        # Written by the library: an exception in between loses nothing.
        self._cell = ctypes.c_void_p()
        if _is_exiting:
            raise StateError("a world cannot be opened any more: the interpreter exits")
        _open.add(self)
        check(lib.shoal_world_open(ctypes.byref(options), ctypes.byref(self._cell)))
        self._rank: int = lib.shoal_world_rank(self._handle)
        self._n_ranks: int = lib.shoal_world_n_ranks(self._handle)

    @classmethod
    def from_mpi(
        cls, comm: Any, *, transport: str | None = None, timeout: float = 0.0, startup_timeout: float = 0.0,
        close_timeout: float = 0.0,
    ) -> World:  # fmt: skip
        """The ranks of a communicator of mpi4py. Its MPI must give MPI_THREAD_MULTIPLE, as mpi4py asks by default."""
        from mpi4py import MPI

        self = cls.__new__(cls)
        self._begin(
            _api.shoal_world_options(
                struct_size=ctypes.sizeof(_api.shoal_world_options),
                mpi_comm=MPI._addressof(comm),
                transport=transport.encode() if transport is not None else None,
                timeout_s=timeout,
                startup_timeout_s=startup_timeout,
                close_timeout_s=close_timeout,
            )
        )
        return self

    @property
    def _handle(self) -> int:
        return self._cell.value or 0

    def _live(self) -> int:
        if self._generation != generation():
            check_generation(self._generation, "world")
        handle = self._cell.value
        if not handle:
            raise StateError("the world was closed")
        return handle

    def _call(self, name: str, *arguments: Any) -> Any:
        """Calls a function of the library on the world, which cannot be closed meanwhile."""
        with self._uses:
            return getattr(lib, name)(self._live(), *arguments)

    @property
    def is_open(self) -> bool:
        """Whether this process can use the world."""
        return bool(self._handle) and self._generation == generation()

    @property
    def rank(self) -> int:
        """The rank of the caller."""
        check_generation(self._generation, "world")
        return self._rank

    @property
    def n_ranks(self) -> int:
        """How many ranks there are."""
        check_generation(self._generation, "world")
        return self._n_ranks

    @property
    def group(self) -> Group:
        """The group of all ranks."""
        return self._group_of(self._call("shoal_world_group"))

    @property
    def store(self) -> Store:
        """Keys and values that all ranks see."""
        self._live()
        return Store(self)

    def make_group(self, ranks: Sequence[int], tag: str = "") -> Group:
        """The group of these ranks, in this order. Only members call it; the same ranks and tag are the same group."""
        listed = (ctypes.c_int * len(ranks))(*ranks)
        handle = ctypes.c_void_p()
        check(self._call("shoal_group_create", listed, len(ranks), tag.encode(), ctypes.byref(handle)))
        return self._group_of(handle.value or 0)

    def make_mesh(
        self, shape: Sequence[int], names: Sequence[str] | None = None, ranks: Sequence[int] | None = None
    ) -> Mesh:
        """Ranks in an array: 0, 1, 2, ... or `ranks`, in row-major order, with a group along each dimension."""
        return meshes.create(self, shape, names, ranks)

    def _group_of(self, handle: int) -> Group:
        group = self._groups.get(handle)
        if group is None:
            group = self._groups.setdefault(handle, Group(self, handle))
        return group

    def dump(self) -> str:
        """The flight record of all groups, as JSON: where ranks hang."""
        pieces: list[bytes] = []

        def write(context: int | None, text: bytes, size: int) -> int:
            pieces.append(ctypes.string_at(text, size))
            return 0

        check(self._call("shoal_world_dump", _api.shoal_write_function(write), None))
        return b"".join(pieces).decode()

    def close(self) -> None:
        """Leaves the job. Every rank calls it, last; what goes on is finished first. Again: nothing.

        BufferError: arrays still use symmetric memory or a window of the world. StateError: another thread is in a call
        that does not end. The world stays open then.
        """
        if self.is_open:
            self._close(may_be_viewed=False)

    def _close(self, may_be_viewed: bool) -> None:
        with self._ends:
            self._end(may_be_viewed)

    def _end(self, may_be_viewed: bool) -> None:
        # Nobody begins another call.
        handle, self._cell.value = self._cell.value, None
        try:
            if not may_be_viewed:
                self._check_views()
            self._end_calls()
            if not may_be_viewed:
                self._check_views()  # of those calls
        except BaseException:
            self._cell.value = handle
            raise
        try:
            check(_world_close(handle))
        finally:  # also after an exception of a signal handler, which has waited for the call
            works.complete_lost()
            works.sweep(everything=True)

    def _check_views(self) -> None:
        n_viewed = sum(memory.is_viewed for memory in list(self._shared))
        if n_viewed:
            raise BufferError(
                f"arrays still use {n_viewed} blocks of shared memory of rank {self._rank}: delete them first"
            )

    def _end_calls(self) -> None:
        """Waits for other threads that are in calls, and ends calls that do not end by themselves."""
        groups = list(self._groups.values())
        users = [self._uses, *[group._uses for group in groups], *[shared._uses for shared in list(self._shared)]]
        if wait_for_others(users, _PATIENCE_S):
            return
        for group in groups:
            if group._uses.has_others() and group._handle:
                lib.shoal_group_abort(group._handle, b"its world is closed")
        if not wait_for_others(users, _PATIENCE_S):
            raise StateError("the world cannot be closed: another thread of this process is in a call on it")

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception:
            # What went wrong first is what the caller wants to know.
            if error is None:
                raise

    def __del__(self) -> None:
        if not self._was_left_open():
            return
        try:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2)
        finally:
            if works.is_in_callback():
                # The garbage collector has come along while the library waits for this thread.
                _left.append(self._cell)
                _thread.start_new_thread(_close_left, ())
            else:
                try:
                    self._close(may_be_viewed=True)
                except Exception:
                    pass

    def _was_left_open(self) -> bool:
        return hasattr(self, "_cell") and self.is_open

    def __repr__(self) -> str:
        if not self.is_open:
            return "<shoal.World, closed>"
        return f"<shoal.World: rank {lib.shoal_world_rank(self._cell)} of {lib.shoal_world_n_ranks(self._cell)}>"


def _close_left() -> None:
    """Closes worlds that were dropped where they could not be closed."""
    with _closing:
        while _left:
            with contextlib.suppress(IndexError):  # another thread does the same
                _world_close(_left.popleft())


def close_all() -> None:
    """No function of Python may be called by the library once the interpreter has begun to end."""
    global _is_exiting
    _is_exiting = True
    for world in list(_open):
        with contextlib.suppress(BaseException):  # also of a signal handler: what is left is closed all the same
            if world.is_open:
                world._close(may_be_viewed=True)
    _close_left()
    wait_for_others([_closing], _CLOSE_S)
    works.wait_for_callbacks(_PATIENCE_S)


atexit.register(close_all)
