# SPDX-License-Identifier: MIT
"""Worlds: the ranks of one job."""

from __future__ import annotations

import atexit
import ctypes
import warnings
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from . import _api, meshes, works
from ._library import check, check_generation, generation, lib
from ._views import Viewed
from .errors import StateError
from .groups import Group
from .meshes import Mesh
from .stores import Store

__all__ = ["World"]

_open: weakref.WeakSet[World] = weakref.WeakSet()


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
        self._handle = 0
        self._generation = generation()
        self._groups: dict[int, Group] = {}
        self._shared: weakref.WeakSet[Viewed] = weakref.WeakSet()
        handle = ctypes.c_void_p()
        check(lib.shoal_world_open(ctypes.byref(options), ctypes.byref(handle)))
        self._handle = handle.value or 0
        self._rank: int = lib.shoal_world_rank(self._handle)
        self._n_ranks: int = lib.shoal_world_n_ranks(self._handle)
        _open.add(self)

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

    def _live(self) -> int:
        if self._generation != generation():
            check_generation(self._generation, "world")
        if not self._handle:
            raise StateError("the world was closed")
        return self._handle

    @property
    def is_open(self) -> bool:
        """Whether this process can use the world."""
        return bool(self._handle) and self._generation == generation()

    @property
    def rank(self) -> int:
        """The rank of the caller."""
        return self._rank

    @property
    def n_ranks(self) -> int:
        """How many ranks there are."""
        return self._n_ranks

    @property
    def group(self) -> Group:
        """The group of all ranks."""
        return self._group_of(lib.shoal_world_group(self._live()))

    @property
    def store(self) -> Store:
        """Keys and values that all ranks see."""
        self._live()
        return Store(self)

    def make_group(self, ranks: Sequence[int], tag: str = "") -> Group:
        """The group of these ranks, in this order. Only members call it; the same ranks and tag are the same group."""
        listed = (ctypes.c_int * len(ranks))(*ranks)
        handle = ctypes.c_void_p()
        check(lib.shoal_group_create(self._live(), listed, len(ranks), tag.encode(), ctypes.byref(handle)))
        return self._group_of(handle.value or 0)

    def make_mesh(
        self, shape: Sequence[int], names: Sequence[str] | None = None, ranks: Sequence[int] | None = None
    ) -> Mesh:
        """Ranks in an array: 0, 1, 2, ... or `ranks`, in row-major order, with a group along each dimension."""
        return meshes.create(self, shape, names, ranks)

    def _group_of(self, handle: int) -> Group:
        group = self._groups.get(handle)
        if group is None or not group._handle:
            group = self._groups[handle] = Group(self, handle)
        return group

    def dump(self) -> str:
        """The flight record of all groups, as JSON: where ranks hang."""
        pieces: list[bytes] = []

        def write(context: int | None, text: bytes, size: int) -> int:
            pieces.append(ctypes.string_at(text, size))
            return 0

        check(lib.shoal_world_dump(self._live(), _api.shoal_write_function(write), None))
        return b"".join(pieces).decode()

    def close(self) -> None:
        """Leaves the job. Every rank calls it, last; what goes on is finished first. Again: nothing.

        BufferError: arrays still use symmetric memory or a window of the world.
        """
        if not self.is_open:
            return
        viewed = [memory for memory in self._shared if memory.is_viewed]
        if viewed:
            raise BufferError(f"arrays still use {len(viewed)} blocks of shared memory of {self!r}: delete them first")
        self._close()

    def _close(self) -> None:
        handle, self._handle = self._handle, 0
        _open.discard(self)
        status = lib.shoal_world_close(handle)
        works.sweep()
        check(status)

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
        if getattr(self, "_handle", 0) and self._generation == generation():
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2)
            try:
                self._close()
            except Exception:
                pass

    def __repr__(self) -> str:
        if not self.is_open:
            return "<shoal.World, closed>"
        return f"<shoal.World: rank {self._rank} of {self._n_ranks}>"


def _close_all() -> None:
    """No function of Python may be called by the library once the interpreter has begun to end."""
    for world in list(_open):
        try:
            if world.is_open:
                world._close()
        except Exception:
            pass
    works.wait_for_callbacks(5.0)


atexit.register(_close_all)
