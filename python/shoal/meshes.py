# SPDX-License-Identifier: MIT
"""Meshes: ranks in an array with named dimensions, and a group along each of them.

>>> import shoal
>>> with shoal.World() as world:
...     mesh = world.make_mesh((1, 1), ("dp", "tp"))
...     print(mesh, mesh["dp"].group().n_ranks)
mesh cpu dp=1 tp=1 [[0]] 1
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ._api import Status
from ._library import check, check_generation, generation, lib
from .errors import make_error

if TYPE_CHECKING:
    from .groups import Group
    from .worlds import World

__all__ = ["Mesh"]


def _texts(names: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(names))(*[name.encode() for name in names])


def create(world: World, shape: Sequence[int], names: Sequence[str] | None, ranks: Sequence[int] | None) -> Mesh:
    if names is not None and len(names) != len(shape):
        raise ValueError(f"a mesh of {len(shape)} dimensions has {len(names)} names")
    n_ranks = 1
    for size in shape:
        n_ranks *= size
    if ranks is not None and len(ranks) != n_ranks:
        raise ValueError(f"a mesh of shape {tuple(shape)} has {n_ranks} ranks, not {len(ranks)}")
    handle = ctypes.c_void_p()
    check(
        lib.shoal_mesh_create(
            world._live(), b"cpu", None if ranks is None else (ctypes.c_int * len(ranks))(*ranks),
            (ctypes.c_int * len(shape))(*shape), len(shape), None if names is None else _texts(names),
            ctypes.byref(handle),
        )  # fmt: skip
    )
    return Mesh(world, handle.value or 0)


class Mesh:
    """Ranks of a world in an array. Made by ``world.make_mesh``; no call here communicates."""

    __slots__ = ("_generation", "_handle", "_world")

    def __init__(self, world: World, handle: int) -> None:
        self._world = world
        self._handle = handle
        self._generation = generation()

    def _live(self) -> int:
        check_generation(self._generation, "mesh")
        self._world._live()
        return self._handle

    @property
    def shape(self) -> tuple[int, ...]:
        """How many ranks there are along each dimension."""
        handle = self._live()
        return tuple(lib.shoal_mesh_shape(handle)[: lib.shoal_mesh_n_dims(handle)])

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the dimensions, or None."""
        handle = self._live()
        found = [lib.shoal_mesh_dim_name(handle, dim) for dim in range(lib.shoal_mesh_n_dims(handle))]
        return None if found[0] is None else tuple(name.decode() for name in found)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The world ranks, in row-major order."""
        handle = self._live()
        out = (ctypes.c_int * lib.shoal_mesh_n_ranks(handle))()
        check(lib.shoal_mesh_ranks(handle, out))
        return tuple(out)

    @property
    def coordinate(self) -> tuple[int, ...] | None:
        """The caller's place, or None outside of the mesh."""
        handle = self._live()
        out = (ctypes.c_int * lib.shoal_mesh_n_dims(handle))()
        return tuple(out) if lib.shoal_mesh_coordinate(handle, out) else None

    def group(self, dim: int | str = 0) -> Group:
        """The group along a dimension, in which the caller's rank is its coordinate."""
        handle = self._live()
        if isinstance(dim, str):
            found = lib.shoal_mesh_group_by_name(handle, dim.encode())
        else:
            found = lib.shoal_mesh_group(handle, dim)
        if not found:
            raise make_error(Status.ERR_INVALID, lib.shoal_error_text().decode())
        return self._world._group_of(found)

    def __getitem__(self, names: str | tuple[str, ...]) -> Mesh:
        """The mesh of some dimensions: the ranks with the caller's coordinates in all others."""
        listed = (names,) if isinstance(names, str) else names
        handle = ctypes.c_void_p()
        check(lib.shoal_mesh_slice(self._live(), _texts(listed), len(listed), ctypes.byref(handle)))
        return Mesh(self._world, handle.value or 0)

    def flatten(self, name: str | None = None) -> Mesh:
        """The mesh with all dimensions as one."""
        handle = ctypes.c_void_p()
        text = None if name is None else name.encode()
        check(lib.shoal_mesh_flatten(self._live(), text, ctypes.byref(handle)))
        return Mesh(self._world, handle.value or 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and bool(lib.shoal_mesh_equal(self._live(), other._live()))

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        handle = self._live()
        size = lib.shoal_mesh_describe(handle, None, 0) + 1
        text = ctypes.create_string_buffer(size)
        lib.shoal_mesh_describe(handle, text, size)
        return text.value.decode()

    def __repr__(self) -> str:
        return f"<shoal.Mesh {self}>" if self._world.is_open else "<shoal.Mesh, closed>"

    def __del__(self) -> None:
        # Closing the world frees the meshes that are left.
        if getattr(self, "_handle", 0) and self._generation == generation() and self._world.is_open:
            lib.shoal_mesh_free(self._handle)
