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
from typing import TYPE_CHECKING, Any

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
    mesh = Mesh(world)
    check(
        world._call(
            "shoal_mesh_create", b"cpu", None if ranks is None else (ctypes.c_int * len(ranks))(*ranks),
            (ctypes.c_int * len(shape))(*shape), len(shape), None if names is None else _texts(names),
            ctypes.byref(mesh._cell),
        )  # fmt: skip
    )
    return mesh


class Mesh:
    """Ranks of a world in an array. Made by ``world.make_mesh``; no call here communicates."""

    __slots__ = ("_cell", "_generation", "_world")

    def __init__(self, world: World) -> None:
        self._world = world
        self._generation = generation()
        self._cell = ctypes.c_void_p()

    def _live(self) -> int:
        check_generation(self._generation, "mesh")
        self._world._live()
        return self._cell.value or 0

    def _call(self, name: str, *arguments: Any) -> Any:
        """Calls a function of the library on the mesh, whose world cannot be closed meanwhile."""
        with self._world._uses:
            return getattr(lib, name)(self._live(), *arguments)

    def _n_dims(self) -> int:
        return int(self._call("shoal_mesh_n_dims"))

    @property
    def shape(self) -> tuple[int, ...]:
        """How many ranks there are along each dimension."""
        with self._world._uses:
            handle = self._live()
            return tuple(lib.shoal_mesh_shape(handle)[: lib.shoal_mesh_n_dims(handle)])

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the dimensions, or None."""
        found = [self._call("shoal_mesh_dim_name", dim) for dim in range(self._n_dims())]
        return None if found[0] is None else tuple(name.decode() for name in found)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The world ranks, in row-major order."""
        out = (ctypes.c_int * self._call("shoal_mesh_n_ranks"))()
        check(self._call("shoal_mesh_ranks", out))
        return tuple(out)

    @property
    def coordinate(self) -> tuple[int, ...] | None:
        """The caller's place, or None outside of the mesh."""
        out = (ctypes.c_int * self._n_dims())()
        return tuple(out) if self._call("shoal_mesh_coordinate", out) else None

    def group(self, dim: int | str = 0) -> Group:
        """The group along a dimension, in which the caller's rank is its coordinate."""
        if isinstance(dim, str):
            found = self._call("shoal_mesh_group_by_name", dim.encode())
        else:
            found = self._call("shoal_mesh_group", dim)
        if not found:
            raise make_error(Status.ERR_INVALID, lib.shoal_error_text().decode())
        return self._world._group_of(found)

    def __getitem__(self, names: str | tuple[str, ...]) -> Mesh:
        """The mesh of some dimensions: the ranks with the caller's coordinates in all others."""
        listed = (names,) if isinstance(names, str) else names
        mesh = Mesh(self._world)
        check(self._call("shoal_mesh_slice", _texts(listed), len(listed), ctypes.byref(mesh._cell)))
        return mesh

    def flatten(self, name: str | None = None) -> Mesh:
        """The mesh with all dimensions as one."""
        mesh = Mesh(self._world)
        check(self._call("shoal_mesh_flatten", None if name is None else name.encode(), ctypes.byref(mesh._cell)))
        return mesh

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mesh):
            return NotImplemented
        with other._world._uses:
            return bool(self._call("shoal_mesh_equal", other._live()))

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        size = self._call("shoal_mesh_describe", None, 0) + 1
        text = ctypes.create_string_buffer(size)
        self._call("shoal_mesh_describe", text, size)
        return text.value.decode()

    def __repr__(self) -> str:
        return f"<shoal.Mesh {self}>" if self._world.is_open else "<shoal.Mesh, closed>"

    def __del__(self) -> None:
        # Closing the world frees the meshes that are left.
        if hasattr(self, "_cell") and self._cell.value and self._generation == generation():
            with self._world._uses:
                if self._world.is_open:
                    lib.shoal_mesh_free(self._cell)
