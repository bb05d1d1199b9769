# SPDX-License-Identifier: MIT
"""Parameters of a context of FSDP."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _api, _fsdp_context
from ._api import FSDP_ALL_RANKS, Dtype, Status
from ._arrays import Memory, find_dtype, take, take_on, to_host
from ._fsdp_context import GRAD, SHARD, WHOLE, Context, GatherExtension, in_use
from ._library import check, lib
from ._views import new_array, shape_of
from .errors import make_error


def _raise_last() -> None:
    raise make_error(Status.ERR_STATE, lib.shoal_error_text().decode(errors="replace"))


_REFUSED = (
    "{what} of the parameter '{name}' is memory of the library, which another array cannot replace: write into it, "
    "with param.{what}[...] = values or param.{what} += values"
)


def _is_same(value: Any, own: Any) -> bool:
    """Whether two arrays are the same elements of the same memory."""
    if value is None or own is None:
        return value is own
    try:
        given = take(value, "value", may_be_on_device=True)
        kept = take(own, "own", may_be_on_device=True)
    except (TypeError, ValueError):
        return False
    if (given.count, given.dtype, given.device) != (kept.count, kept.dtype, kept.device):
        return False
    if shape_of(value) != shape_of(own):
        return False
    return given.address == kept.address or given.count == 0


class Param:
    """A parameter. Its arrays are of torch if it was added as a tensor, otherwise of numpy: bf16 is uint16 there."""

    __slots__ = ("_context", "_id", "_name")

    def __init__(self, context: Context, id: int, name: str) -> None:
        self._context = context
        self._id = id
        self._name = name

    @in_use
    def _layout(self) -> Any:
        layout = _api.shoal_shard_layout(struct_size=ctypes.sizeof(_api.shoal_shard_layout))
        check(lib.shoal_fsdp_get_layout(lib.shoal_fsdp_param_of(self._context.seen(), self._id), ctypes.byref(layout)))
        return layout

    def _handle(self) -> int:
        handle: int = lib.shoal_fsdp_param_of(self._context.live(), self._id)
        return handle

    # What it is

    @property
    def name(self) -> str:
        """The name that it was added with."""
        return self._name

    @property
    def id(self) -> int:
        """Its number: 0, 1, 2, ... in the order of adding."""
        return self._id

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole parameter."""
        layout = self._layout()
        return tuple(layout.shape[: layout.n_dims])

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """The shape of this rank's shard."""
        layout = self._layout()
        return tuple(layout.shard_shape[: layout.n_dims])

    @property
    def dtype(self) -> str:
        """The dtype of the shards: "f32"."""
        return Dtype(self._layout().dtype).name.lower()

    @property
    def full_dtype(self) -> str:
        """The dtype of the whole parameter and its gradient, which is param_dtype of the context if that was set."""
        return Dtype(self._layout().gathered_dtype).name.lower()

    @property
    def dim(self) -> int:
        """The dimension that is cut."""
        return int(self._layout().dim)

    @property
    def n_shards(self) -> int:
        """Into how many parts it is cut."""
        return int(self._layout().n_shards)

    @property
    def rows(self) -> slice:
        """Which indices along the dimension that is cut this rank has."""
        layout = self._layout()
        return slice(layout.offset, layout.offset + layout.length)

    def zeros(self, dtype: str | None = None) -> Any:
        """A new array with the shape of the shard, on the same device: a moment of an optimizer, say."""
        kind = self._context.kinds[self._id]
        return new_array(self.shard_shape, find_dtype(dtype or self.dtype), kind, self._context.device)

    def __repr__(self) -> str:
        if not self._context.handle:
            return f"<shoal.Param {self._name}, closed>"
        if not self._context.is_usable:
            return f"<shoal.Param {self._name}>"
        return f"<shoal.Param {self._name}: {self.dtype}{list(self.shape)}, this rank has {list(self.shard_shape)}>"

    def item(self, data: Any, *, dtype: str | None = None) -> ParamItem:
        """An array with the shape of the shard, for a checkpoint: the whole array is saved, and can be cut anew."""
        return ParamItem(self, data, dtype)

    # Inside a pass

    def _whole(self, address: int | None, readonly: bool) -> Any:
        if address is None:
            _raise_last()
        layout = self._layout()
        return self._context.array(
            WHOLE, self._id, self._name, address or 0, layout.shape[: layout.n_dims], Dtype(layout.gathered_dtype),
            readonly,
        )  # fmt: skip

    @property
    @in_use
    def full(self) -> Any:
        """The whole parameter, while its unit is gathered. It can only be read: a write to a tensor of torch may end
        the process, since torch has no read-only tensors."""
        return self._whole(lib.shoal_fsdp_full_param(self._context.live(), self._id), True)

    @property
    @in_use
    def full_grad(self) -> Any:
        """The whole gradient, for kernels to add to, in the backward pass of its unit. It starts with zeros."""
        return self._whole(lib.shoal_fsdp_grad(self._context.live(), self._id), False)

    @full_grad.setter
    @in_use
    def full_grad(self, value: Any) -> None:
        """``param.full_grad += values`` ends with this, and gives the array that it has added to."""
        if not _is_same(value, self.full_grad):
            raise AttributeError(_REFUSED.format(what="full_grad", name=self._name))

    @in_use
    def full_grad_to_store(self) -> tuple[Any, bool]:
        """The whole gradient without zeros, and whether it has values. If not, every element must be stored."""
        has_values = ctypes.c_bool()
        address = lib.shoal_fsdp_grad_to_store(self._context.live(), self._id, ctypes.byref(has_values))
        return self._whole(address, False), has_values.value

    # Between passes

    def _shard(self, call: Any) -> Any:
        shard = _api.shoal_fsdp_shard(struct_size=ctypes.sizeof(_api.shoal_fsdp_shard))
        self._context.check(call(self._context.live(), self._id, ctypes.byref(shard)))
        return shard

    def _part(self, what: str, address: int | None, readonly: bool) -> Any:
        layout = self._layout()
        return self._context.array(
            what, self._id, self._name, address or 0, layout.shard_shape[: layout.n_dims], Dtype(layout.dtype), readonly
        )

    @property
    @in_use
    def shard(self) -> Any:
        """This rank's part, for reading. It stays where it is as long as the context."""
        return self._part(SHARD, self._shard(lib.shoal_fsdp_read_shard).data, True)

    @property
    @in_use
    def grad(self) -> Any:
        """The gradient of this rank's part, or None if there is none. It stays until ``zero_grad``."""
        shard = self._shard(lib.shoal_fsdp_read_shard)
        return None if shard.grad is None else self._part(GRAD, shard.grad, False)

    @grad.setter
    @in_use
    def grad(self, value: Any) -> None:
        """``param.grad *= factor`` ends with this, and gives the array that it has multiplied."""
        if not _is_same(value, self.grad):
            raise AttributeError(_REFUSED.format(what="grad", name=self._name))

    @in_use
    def update(self) -> Any:
        """This rank's part, for writing. All ranks ask alike: what was gathered before is gathered again."""
        return self._part(SHARD, self._shard(lib.shoal_fsdp_update_shard).data, False)

    @in_use
    def set_requires_grad(self, is_required: bool) -> None:
        """Whether it gets gradients. Between steps, on all ranks alike."""
        self._context.check(lib.shoal_fsdp_set_requires_grad(self._context.live(), self._id, is_required))

    @in_use
    def set_gather_extension(self, extension: GatherExtension | None) -> None:
        """Gathers something else in place of its elements. On all ranks alike, before the first forward pass."""
        if extension is None:
            self._context.check(lib.shoal_fsdp_set_gather_extension(self._handle(), None))
            self._context.kept.pop(("extension", self._id), None)
            return
        struct, kept = _fsdp_context.gather_extension(self._context, extension)
        self._context.check(lib.shoal_fsdp_set_gather_extension(self._handle(), ctypes.byref(struct)))
        self._context.kept["extension", self._id] = kept

    # Values

    def _take(self, source: Any, what: str, shape: Sequence[int], dtype: Dtype) -> Memory:
        memory = take(to_host(source) if self._context.device else source, what, dtype)
        if shape_of(source) != tuple(shape):
            raise ValueError(f"{self._name}: {what} has shape {shape_of(source)}, not {tuple(shape)}")
        return memory

    def _take_full(self, full: Any) -> Memory:
        return self._take(full, "full", self.shape, find_dtype(self.dtype))

    def _refuse_views(self, call: str) -> None:
        self._context.refuse_views(WHOLE, [self._context.units[self._id]], call)

    @in_use
    def load(self, full: Any) -> None:
        """Sets this rank's part from the whole parameter, which every rank has."""
        memory = self._take_full(full)
        self._refuse_views("load")
        self._context.follow()
        self._context.check(lib.shoal_fsdp_load(self._handle(), memory.address))

    @in_use
    def load_slice(self, offset: int, part: Any) -> None:
        """Sets of this rank's part what is in `part`: indices from `offset` on along the dimension that is cut."""
        layout, given = self._layout(), shape_of(part)
        wanted = list(layout.shape[: layout.n_dims])
        if len(given) == len(wanted):
            wanted[layout.dim] = given[layout.dim]
        memory = self._take(part, "part", wanted, Dtype(layout.dtype))
        self._refuse_views("load_slice")
        self._context.follow()
        self._context.check(lib.shoal_fsdp_load_slice(self._handle(), offset, wanted[layout.dim], memory.address))

    @in_use
    def broadcast(self, full: Any, root: int = 0) -> None:
        """Sets the parts of all ranks from the whole parameter of the root; None on other ranks. Collective."""
        memory = None if full is None else self._take_full(full)
        self._refuse_views("broadcast")
        self._context.wait(lib.shoal_fsdp_broadcast, self._handle(), memory.address if memory else None, root)

    def _out(self, root: int | None, dtype: Dtype) -> tuple[Any, int | None]:
        """A whole array for a gather, and its address, if this rank gets one."""
        if root is not None and self._context.own_ranks[self._context.units[self._id]] != root:
            return None, None
        out = new_array(self.shape, dtype, self._context.kinds[self._id])
        return out, take(out, "out", dtype, writes=True).address

    @in_use
    def gather(self, root: int | None = None) -> Any:
        """The whole parameter, a copy, on every rank, or on the root alone (None on the others). Collective."""
        out, address = self._out(root, find_dtype(self.dtype))
        self._context.wait(lib.shoal_fsdp_gather, self._handle(), address, FSDP_ALL_RANKS if root is None else root)
        return out

    def _own(self, shard: Any, dtype: str | None, writes: bool) -> Memory:
        memory = take_on(shard, "shard", self._context.device, dtype, writes)
        if shape_of(shard) != self.shard_shape:
            raise ValueError(f"{self._name}: shard has shape {shape_of(shard)}, not {self.shard_shape}")
        return memory

    @in_use
    def gather_array(self, shard: Any, root: int | None = None, *, dtype: str | None = None) -> Any:
        """The whole array of which every rank has a part that is shaped like its shard: a moment. Collective."""
        memory = self._own(shard, dtype, False)
        out, address = self._out(root, memory.dtype)
        number = FSDP_ALL_RANKS if root is None else root
        self._context.wait(
            lib.shoal_fsdp_gather_array, self._handle(), memory.dtype, memory.address, address, number
        )
        return out

    @in_use
    def load_array(self, full: Any, shard: Any, *, dtype: str | None = None) -> None:
        """Sets `shard`, an array that is shaped like this rank's part, from the whole one."""
        own = self._own(shard, dtype, True)
        memory = self._take(full, "full", self.shape, own.dtype)
        self._context.follow()
        self._context.check(lib.shoal_fsdp_load_array(self._handle(), own.dtype, memory.address, own.address))

    @in_use
    def broadcast_array(self, full: Any, shard: Any, root: int = 0, *, dtype: str | None = None) -> None:
        """Sets the `shard` of all ranks from the whole array of the root; None on other ranks. Collective."""
        own = self._own(shard, dtype, True)
        memory = None if full is None else self._take(full, "full", self.shape, own.dtype)
        address = memory.address if memory else None
        self._context.wait(lib.shoal_fsdp_broadcast_array, self._handle(), own.dtype, address, own.address, root)


class ParamItem(NamedTuple):
    """An array that is cut as a parameter is, for a checkpoint. Made by ``param.item``."""

    param: Param
    data: Any
    dtype: str | None
