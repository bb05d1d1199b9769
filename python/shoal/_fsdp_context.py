# SPDX-License-Identifier: MIT
"""What a context of FSDP, its units and its parameters have in common: the handle, views, and functions of the program.

Nothing here refers to the objects that refer to it, so that the last of them frees the context when it goes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import traceback
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from . import _api, _interrupts
from ._api import Dtype, Status
from ._arrays import find_dtype
from ._library import check, check_generation, generation, lib
from ._uses import Uses, wait_for_others
from ._views import Views, make_array, make_device_array
from .devices import DeviceArray, Export, Streams
from .errors import Error, StateError
from .works import Work

if TYPE_CHECKING:
    from .groups import Group
    from .worlds import World

# What views are of.
WHOLE = "whole parameters"
GRAD = "gradients"
SHARD = "shards"
# How long other threads may stay in calls on a context that is closed.
_PATIENCE_S = 5.0
# How long another library may keep an array of a device that the program has dropped: torch's autograd lets go of some
# on a thread of its own.
_LINGER_S = 0.2

_Method = TypeVar("_Method", bound=Callable[..., Any])


def in_use(method: _Method) -> _Method:
    """A method of an object that has a context, which is not freed during the call, nor is its world."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        with self._context._uses:
            return method(self, *arguments, **options)

    return cast(_Method, call)


class Context:
    """A context of the library. Freed when nothing uses it any more, or by ``close``."""

    def __init__(self, world: World, groups: list[Group], handle: int, stays: bool, device: int) -> None:
        self.world = world
        self.device = device
        self.streams = Streams()
        self.handle = handle
        self.stays = stays  # whole parameters stay from step to step
        self._uses = Uses()
        self.views = Views()
        self.raised: BaseException | None = None
        self.kinds: list[str] = []  # of arrays, by the number of the parameter
        self.units: list[int] = []  # the unit of each parameter
        self.own_ranks: list[int] = []  # this rank in the group of each unit, or row by row in its mesh
        self.open: set[int] = set()  # units in a pass
        self.backward: set[int] = set()  # units in a backward pass
        self.kept: dict[tuple[str, int], Any] = {}  # functions that the library calls
        self.given: list[Any] = []  # what works use that hooks have started
        self.groups = groups  # on which calls wait
        self._generation = generation()
        world._shared.add(self)

    @property
    def is_usable(self) -> bool:
        """Whether it belongs to this process, and was not closed."""
        return bool(self.handle) and self._generation == generation()

    def seen(self) -> int:
        """The handle, for calls that are possible when the world is closed."""
        check_generation(self._generation, "context of FSDP")
        if not self.handle:
            raise StateError("the context of FSDP was closed")
        return self.handle

    def live(self) -> int:
        """The handle, for all other calls."""
        handle = self.seen()
        self.world._live()
        return handle

    def check(self, status: int) -> None:
        """Raises what a function of the program has raised in the call, or the call's own error."""
        if status == 0:
            return
        raised, self.raised = self.raised, None
        if raised is not None:
            raise raised
        check(status)

    def wait(self, function: Any, *arguments: Any) -> None:
        """Makes a call that waits for other ranks. A thread that closes the world ends it."""
        with self.groups[0]._uses:
            self.live()  # another thread that closes the world has either seen this use, or is seen here
            self.follow()
            self.check(_interrupts.call(self.groups, function, *arguments))

    def follow(self) -> None:
        """Later work of the library comes behind what others have asked of the device, who have arrays of this
        context."""
        if self.device:
            self.streams.follow(self.device)

    # Views

    @property
    def is_viewed(self) -> bool:
        """Whether arrays use memory that ends with the world."""
        keys = [(what, unit) for what in (WHOLE, GRAD) for unit in set(self.units)]
        return bool(self.views.names(keys))

    def refuse_views(self, what: str, units: Sequence[int], call: str) -> None:
        """BufferError if arrays use memory that `call` gives up."""
        names = self.views.names([(what, unit) for unit in units], _LINGER_S if self.device else 0.0)
        if names:
            raise BufferError(
                f"{call}: arrays still use {what} of {', '.join(names[:8])}: delete them first (a function that "
                "returns deletes its own)"
            )

    def array(
        self, what: str, id: int, name: str, address: int, shape: Sequence[int], dtype: Dtype, readonly: bool
    ) -> Any:
        """An array of a parameter. It keeps this context."""
        if self.device:
            return self.device_array(self.views, (what, self.units[id]), name, address, shape, dtype, self.kinds[id])
        size = lib.shoal_dtype_bytes(dtype)
        for length in shape:
            size *= length
        view = self.views.make((what, self.units[id]), name, address, size, self)
        return make_array(view, shape, dtype, self.kinds[id], readonly=readonly)

    def device_array(
        self, views: Views, key: Hashable, name: str, address: int, shape: Sequence[int], dtype: Dtype, kind: str
    ) -> Any:
        """An array in memory of the device, which is one of `views`."""

        def tell(user: DeviceArray | Export) -> None:
            if isinstance(user, Export):
                views.add(key, name, user)
                self.streams.add(user)
            else:
                views.add(key, name, weakref.ref(user))

        return make_device_array(self.device, address, shape, dtype, kind, self, tell)

    def close(self) -> None:
        if not self.is_usable:
            return
        if self._uses.has_own():
            raise StateError("the context of FSDP cannot be closed by a function that it calls")
        handle, self.handle = self.handle, 0  # nobody begins another call
        try:
            if not wait_for_others([self._uses], _PATIENCE_S):
                raise StateError("the context of FSDP cannot be closed: another thread of this process is in a call on it")
            names = self.views.names()
            if names:
                raise BufferError(f"arrays still use parameters of the context: {', '.join(names[:8])}")
        except BaseException:
            self.handle = handle
            raise
        self.free(handle)

    def free(self, handle: int) -> None:
        self.handle = 0
        with contextlib.suppress(Error):  # a device that has failed works no more
            self.follow()
        lib.shoal_fsdp_free(handle)
        self.kept.clear()

    def __del__(self) -> None:
        if getattr(self, "handle", 0) and self._generation == generation():
            self.free(self.handle)


# Functions of the program --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GatherExtension:
    """What is gathered of a parameter in place of its elements, and how it becomes the whole parameter.

    `buffers` are (dtype, count) pairs: elements for each row, or, without `by_rows`, elements of each rank. Ranks
    compare all but the functions.

    ``encode(rows, shard, buffers)`` writes this rank's rows to the buffers; ``decode(rows, buffers, out)`` reads them
    again: rows of one rank, on any thread, or without `by_rows` those of all ranks, whose buffers have a first
    dimension for the ranks. Arrays are of numpy, with a first dimension for the rows, and are valid during the call.
    """

    name: str
    buffers: Sequence[tuple[str, int]]
    encode: Callable[[GatherRows, Any, list[Any]], None]
    decode: Callable[[GatherRows, list[Any], Any], None]
    by_rows: bool = True
    metadata: bytes = b""


@dataclass(frozen=True)
class GatherRows:
    """The rows that are encoded or decoded."""

    name: str  # of the parameter
    first: int  # the number of the first row
    count: int  # how many rows; 0 if this rank has none
    row_count: int  # elements of a row
    dtype: str  # of the shard
    compute: str  # of the whole parameter
    metadata: bytes
    n_shards: int


@dataclass(frozen=True)
class ReducedGradients:
    """The reduced gradients of one unit, before they are added to those of the shards. Valid during the hook.

    `data` are the shards one after the other, with zeros between them; `parts` the shard of each parameter in it. Both
    can be changed in place.
    """

    unit: str
    dtype: str
    data: Any
    parts: dict[str, Any]


def _fail(context: weakref.ref[Context], error: BaseException) -> int:
    """The status of a function that has raised. The call of which it is a part raises the same."""
    traceback.clear_frames(error.__traceback__)  # their arrays use memory of the call
    known = context()
    if known is not None and known.raised is None:
        known.raised = error
    status = error.status if isinstance(error, Error) else Status.ERR_CANCELLED
    text = f"{type(error).__name__}: {error}".replace("%", "%%")
    return int(lib.shoal_fail(status, text.encode(errors="replace")))


class _Lent:
    """Arrays that a function of the program gets for the time of the call."""

    def __init__(self, context: Context | None) -> None:
        self._context = context
        self._views = Views()
        self.is_kept = False  # a work that goes on uses them

    def array(
        self, name: str, address: int | None, shape: Sequence[int], dtype: int, *, kind: str = "numpy",
        readonly: bool = False,
    ) -> Any:  # fmt: skip
        if self._context is not None and self._context.device:
            return self._context.device_array(self._views, None, name, address or 0, shape, Dtype(dtype), kind)
        size = lib.shoal_dtype_bytes(dtype)
        for length in shape:
            size *= length
        view = self._views.make(None, name, address, size, None)
        return make_array(view, shape, Dtype(dtype), kind, readonly=readonly)

    def take_back(self, what: str) -> None:
        if self._context is not None:
            self._context.follow()
        names = [] if self.is_kept else self._views.names()
        if names:
            raise BufferError(f"{what} has kept an array of {', '.join(names)}, which was valid during the call")


def _guarded(context: weakref.ref[Context], what: str, call: Callable[[_Lent], None]) -> int:
    lent = _Lent(context())
    try:
        call(lent)
        lent.take_back(what)
    except BaseException as error:
        return _fail(context, error)
    return 0


def _name(dtype: int) -> str:
    return Dtype(dtype).name.lower()


def accumulated_hook(context: Context, function: Callable[[Context, int, Any, Any], bool | None]) -> Any:
    """`function` gets the number of a parameter, its shard and its gradient; True: the gradient has been used."""
    known = weakref.ref(context)

    def call(native: int | None, id: int, address: int) -> int:
        shard = _api.shoal_fsdp_shard.from_address(address)

        def run(lent: _Lent) -> None:
            owner = known()
            if owner is None:
                raise StateError("the context of FSDP is being freed")
            layout = _api.shoal_shard_layout(struct_size=ctypes.sizeof(_api.shoal_shard_layout))
            check(lib.shoal_fsdp_get_layout(lib.shoal_fsdp_param_of(owner.seen(), id), ctypes.byref(layout)))
            shape = layout.shard_shape[: layout.n_dims]
            data = lent.array("the shard", shard.data, shape, layout.dtype, kind=owner.kinds[id])
            grad = lent.array("the gradient", shard.grad, shape, layout.dtype, kind=owner.kinds[id])
            if function(owner, id, data, grad):
                owner.refuse_views(GRAD, [owner.units[id]], "a hook that has used a gradient")
                shard.grad = None

        return _guarded(known, "the hook", run)

    return _api.shoal_fsdp_accumulated_hook(call)


def _parts(reduced: Any, lent: _Lent) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for i in range(reduced.n_parts):
        part = _api.shoal_reduced_part(struct_size=ctypes.sizeof(_api.shoal_reduced_part))
        check(lib.shoal_reduced_gradients_part(ctypes.byref(reduced), i, ctypes.byref(part)))
        name = part.name.decode()
        parts[name] = lent.array(name, part.data, (part.count,), reduced.dtype)
    return parts


def all_reduce_hook(context: Context, function: Callable[[ReducedGradients], Work | None]) -> Any:
    """`function` may return a work on the gradients, which the library waits for."""
    known = weakref.ref(context)

    def call(native: int | None, address: int, work_out: Any) -> int:
        reduced = _api.shoal_reduced_gradients.from_address(address)

        def run(lent: _Lent) -> None:
            data = lent.array("the gradients", reduced.data, (reduced.count,), reduced.dtype)
            work = function(
                ReducedGradients(reduced.unit.decode(), _name(reduced.dtype), data, _parts(reduced, lent))
            )
            if work is not None:
                owner = known()
                work_out[0], keep = work._give()
                if owner is not None:
                    owner.given.append((lent, keep))
                lent.is_kept = True

        return _guarded(known, "the hook", run)

    return _api.shoal_all_reduce_hook(call)


def _rows(address: int) -> GatherRows:
    rows = _api.shoal_gather_rows.from_address(address)
    metadata = ctypes.string_at(rows.metadata, rows.metadata_bytes) if rows.metadata_bytes else b""
    return GatherRows(
        rows.name.decode(), rows.first, rows.count, rows.row_count, _name(rows.dtype), _name(rows.compute), metadata,
        rows.n_shards,
    )  # fmt: skip


_encode_function = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
)
_decode_function = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
)


def _buffers(lent: _Lent, extension: GatherExtension, rows: GatherRows, addresses: Any, is_decode: bool) -> list[Any]:
    arrays = []
    for i, (dtype, count) in enumerate(extension.buffers):
        first = rows.count if extension.by_rows else rows.n_shards
        shape = (first, count) if extension.by_rows or is_decode else (count,)
        arrays.append(lent.array(f"buffer {i}", addresses[i], shape, find_dtype(dtype), readonly=is_decode))
    return arrays


def gather_extension(context: Context, given: GatherExtension) -> tuple[Any, Any]:
    """The struct of an extension, and what must be kept as long as it is set."""
    known = weakref.ref(context)

    def encode(native: int | None, address: int, shard: int | None, addresses: Any) -> int:
        def run(lent: _Lent) -> None:
            rows = _rows(address)
            own = lent.array("the shard", shard, (rows.count, rows.row_count), find_dtype(rows.dtype), readonly=True)
            given.encode(rows, own, _buffers(lent, given, rows, addresses, False))

        return _guarded(known, "encode", run)

    def decode(native: int | None, address: int, addresses: Any, out: int | None) -> int:
        def run(lent: _Lent) -> None:
            rows = _rows(address)
            whole = lent.array("the whole parameter", out, (rows.count, rows.row_count), find_dtype(rows.compute))
            given.decode(rows, _buffers(lent, given, rows, addresses, True), whole)

        return _guarded(known, "decode", run)

    functions = _encode_function(encode), _decode_function(decode)
    buffers = (_api.shoal_gather_buffer * len(given.buffers))()
    for buffer, (dtype, count) in zip(buffers, given.buffers):
        buffer.dtype, buffer.count = find_dtype(dtype), count
    metadata = ctypes.create_string_buffer(given.metadata, max(len(given.metadata), 1))
    struct = _api.shoal_gather_extension(
        struct_size=ctypes.sizeof(_api.shoal_gather_extension), name=given.name.encode(), is_by_rows=given.by_rows,
        n_buffers=len(given.buffers), buffers=buffers, metadata=ctypes.addressof(metadata) if given.metadata else None,
        metadata_bytes=len(given.metadata), encode=ctypes.cast(functions[0], ctypes.c_void_p),
        decode=ctypes.cast(functions[1], ctypes.c_void_p),
    )  # fmt: skip
    return struct, (functions, buffers, metadata)
