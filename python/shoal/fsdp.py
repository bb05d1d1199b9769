# SPDX-License-Identifier: MIT
"""Fully sharded data parallelism around kernels of your own, on arrays of numpy or torch.

Parameters belong to units; a unit is usually a layer. Every rank keeps a shard of each parameter. A unit's whole
parameters exist only while it computes, and its gradients end, averaged over the ranks, in the shards.

>>> import numpy, shoal
>>> with shoal.World() as world:
...     fsdp = shoal.Fsdp(world.group)
...     layer = fsdp.add_unit({"w": numpy.ones((3, 2), dtype="f4")})
...     with layer.forward():
...         y = numpy.ones(3, dtype="f4") @ layer["w"].full
...     with layer.backward():
...         layer["w"].full_grad[...] += 1
...     fsdp.end_backward()
...     fsdp.update(lambda param, shard, grad: numpy.subtract(shard, grad, out=shard))
...     print(y, layer["w"].gather()[2])
[3. 3.] [0. 0.]

Arrays are views of the library's memory: nothing is copied. Memory that arrays still use is not given up: a call that
would is a BufferError. The arrays of a function end with it, so use whole parameters without names of their own, or in
functions: ``y = kernel(x, layer["w"].full)``.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from . import _api, _fsdp_context
from ._api import FSDP_ALL_UNITS, Reshard, Sharded
from ._arrays import find_dtype, take, to_host
from ._fsdp_context import GRAD, WHOLE, Context, GatherExtension, GatherRows, ReducedGradients, in_use
from ._fsdp_param import Param, ParamItem
from ._library import check, lib
from ._views import kind_of, shape_of
from .devices import find_device
from .errors import InvalidError
from .groups import Group
from .meshes import Mesh
from .works import Work

__all__ = [
    "Fsdp",
    "GatherExtension",
    "GatherRows",
    "MemoryAmounts",
    "MemoryReport",
    "Param",
    "ParamItem",
    "ReducedGradients",
    "Unit",
]

_reshards = {kind.name[len("RESHARD_") :].lower(): kind for kind in Reshard}
_shardeds = {kind.name[len("SHARDED_") :].lower(): kind for kind in Sharded}


def _choose(table: Mapping[str, int], what: str, name: str) -> int:
    if name not in table:
        raise ValueError(f"{what} is '{name}': {', '.join(table)}")
    return table[name]


def _dtype_or_none(name: str | None) -> int:
    return 0 if name is None else find_dtype(name)


# Settings ------------------------------------------------------------------------------------------------------------

# In this order: sync sets all_reduce, too.
_setters: dict[str, Callable[[int, Any], Any]] = {
    "reshard": lambda unit, value: lib.shoal_fsdp_set_reshard(unit, _choose(_reshards, "reshard", value)),
    "reshard_after_backward": lambda unit, value: lib.shoal_fsdp_set_reshard_after_backward(unit, value),
    "unshard_in_backward": lambda unit, value: lib.shoal_fsdp_set_unshard_in_backward(unit, value),
    "sync": lambda unit, value: lib.shoal_fsdp_set_sync(unit, value),
    "all_reduce": lambda unit, value: lib.shoal_fsdp_set_all_reduce(unit, value),
    "divide_factor": lambda unit, value: lib.shoal_fsdp_set_divide_factor(unit, value),
    "force_sum": lambda unit, value: lib.shoal_fsdp_set_force_sum(unit, value),
    "reduce_unused": lambda unit, value: lib.shoal_fsdp_set_reduce_unused(unit, value),
    "name": lambda unit, value: lib.shoal_fsdp_set_unit_name(unit, value.encode()),
}


def _set_all(context: Context, number: int, given: Mapping[str, Any]) -> None:
    context.live()
    for name, setter in _setters.items():
        if given.get(name) is not None:
            context.check(setter(lib.shoal_fsdp_unit_of(context.live(), number), given[name]))


def _set_hook(context: Context, what: str, number: int, setter: Any, hook: Any) -> None:
    """Keeps a function as long as the library may call it."""
    native = getattr(_api, {"all_reduce": "shoal_all_reduce_hook", "accumulated": "shoal_fsdp_accumulated_hook"}[what])
    context.check(setter(lib.shoal_fsdp_unit_of(context.live(), number), hook if hook is not None else native(), None))
    if number == FSDP_ALL_UNITS:
        context.kept = {key: kept for key, kept in context.kept.items() if key[0] != what}
    context.kept[what, number] = hook


# Units ---------------------------------------------------------------------------------------------------------------


class _Pass:
    """A forward or backward pass of a unit, for ``with``."""

    __slots__ = ("_begin", "_end")

    def __init__(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._begin = begin
        self._end = end

    def __enter__(self) -> None:
        self._begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After an error the step is over: Fsdp.reset ends it.
        if error is None:
            self._end()


class Unit:
    """Parameters that are gathered, given up and reduced together. Made by ``fsdp.add_unit``."""

    __slots__ = ("_context", "_number", "_params")

    def __init__(self, context: Context, number: int) -> None:
        self._context = context
        self._number = number
        self._params: dict[str, Param] = {}

    @property
    def number(self) -> int:
        """Its number: 0, 1, 2, ... in the order of adding."""
        return self._number

    @in_use
    def add(
        self, name: str, values: Any, *, dtype: str | None = None, dim: int = 0, requires_grad: bool = True
    ) -> Param:
        """Adds a parameter, before the first forward pass and on all ranks alike.

        `values` is the whole parameter, of which this rank copies its part; or a shape, for zeros of `dtype`. `dim` is
        the dimension that is cut. Of a tensor on the context's device, there is a copy in host memory for the time of
        the call.
        """
        if name in self._params:
            raise ValueError(f"the unit has a parameter {name} already")
        if isinstance(values, tuple):
            kind, shape, address, found = "numpy", values, None, find_dtype(dtype or "f32")
        else:
            memory = take(to_host(values) if self._context.device else values, name, dtype)
            kind, shape, address, found = kind_of(values), shape_of(values), memory.address, memory.dtype
        number = ctypes.c_int()
        sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        context = self._context
        status = lib.shoal_fsdp_add_param_along(
            context.live(), self._number, name.encode(), found, len(shape), sizes, dim, address, ctypes.byref(number)
        )
        context.check(status)
        context.kinds.append(kind)
        context.units.append(self._number)
        param = self._params[name] = Param(context, number.value, name)
        if not requires_grad:
            param.set_requires_grad(False)
        return param

    def __getitem__(self, name: str) -> Param:
        if name not in self._params:
            raise KeyError(f"the unit has no parameter {name}: {', '.join(self._params)}")
        return self._params[name]

    def __iter__(self) -> Iterator[Param]:
        return iter(self._params.values())

    def __len__(self) -> int:
        return len(self._params)

    def __repr__(self) -> str:
        return f"<shoal.Unit {self._number}: {', '.join(self._params)}>"

    def _handle(self) -> int:
        handle: int = lib.shoal_fsdp_unit_of(self._context.live(), self._number)
        return handle

    def _refuse_views(self, call: str) -> None:
        self._context.refuse_views(WHOLE, [self._number], call)

    # A step

    @in_use
    def pre_forward(self) -> None:
        """Gathers the parameters, unless they are whole already. Collective."""
        context = self._context
        handle = context.live()
        if self._number not in context.open:
            # What was gathered by hand, before shards were written, is gathered again.
            closed = [self._number] if not context.stays else [unit for unit in set(context.units) - context.open]
            context.refuse_views(WHOLE, closed, "pre_forward")
        context.wait(lib.shoal_fsdp_pre_forward, handle, self._number)
        context.open.add(self._number)

    @in_use
    def post_forward(self) -> None:
        """Gives the whole parameters up, as the unit's settings say. Collective."""
        context = self._context
        handle = context.live()
        if self._number not in context.backward:
            self._refuse_views("post_forward")
        context.wait(lib.shoal_fsdp_post_forward, handle, self._number)
        if self._number not in context.backward:
            context.open.discard(self._number)

    @in_use
    def pre_backward(self) -> None:
        """Gathers the parameters again, and makes room for gradients. Collective."""
        context = self._context
        context.wait(lib.shoal_fsdp_pre_backward, context.live(), self._number)
        context.open.add(self._number)
        context.backward.add(self._number)

    @in_use
    def post_backward(self) -> None:
        """Gives the whole parameters up, and starts to reduce the gradients. Collective."""
        context = self._context
        handle = context.live()
        self._refuse_views("post_backward")
        context.wait(lib.shoal_fsdp_post_backward, handle, self._number)
        context.open.discard(self._number)
        context.backward.discard(self._number)

    def forward(self) -> _Pass:
        """``with unit.forward():`` its whole parameters are there. After an error inside, ``fsdp.reset`` ends the
        step."""
        return _Pass(self.pre_forward, self.post_forward)

    def backward(self) -> _Pass:
        """``with unit.backward():`` its whole parameters and their gradients are there."""
        return _Pass(self.pre_backward, self.post_backward)

    # By hand

    @in_use
    def unshard(self) -> None:
        """Starts to gather the unit outside of a pass. Collective."""
        self._context.wait(lib.shoal_fsdp_unshard, self._handle())

    @in_use
    def wait(self) -> None:
        """Waits for the gather. The whole parameters can then be read until they are given up."""
        self._context.wait(lib.shoal_fsdp_wait, self._handle())

    @in_use
    def reshard(self) -> None:
        """Gives the whole parameters up, whoever gathered them. Collective."""
        handle = self._handle()
        self._refuse_views("reshard")
        self._context.wait(lib.shoal_fsdp_reshard, handle)

    # Settings

    @in_use
    def set(
        self, *, reshard: str | None = None, reshard_after_backward: bool | None = None,
        unshard_in_backward: bool | None = None, sync: bool | None = None, all_reduce: bool | None = None,
        divide_factor: float | None = None, force_sum: bool | None = None, reduce_unused: bool | None = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        """Changes settings of the unit, on all ranks alike; shoal/fsdp_unit.h says when.

        `reshard` is "always", "never" or "partly": what happens to whole parameters after the forward pass. `sync`:
        whether backward passes reduce gradients, or leave them pending for the next ones to add to.
        """
        _set_all(self._context, self._number, locals())

    @in_use
    def set_prefetch(
        self, *, forward: Sequence[Unit] | None = None, backward: Sequence[Unit] | None = None
    ) -> None:
        """Which units are gathered ahead when this one has its parameters. An empty list: as passes before."""
        handle = self._handle()
        pairs = ((lib.shoal_fsdp_set_forward_prefetch, forward), (lib.shoal_fsdp_set_backward_prefetch, backward))
        for setter, units in pairs:
            if units is not None:
                listed = (ctypes.c_void_p * max(len(units), 1))(*[unit._handle() for unit in units])
                self._context.check(setter(handle, listed, len(units)))

    @in_use
    def set_accumulated_hook(self, hook: Callable[[Param, Any, Any], bool | None] | None) -> None:
        """Calls ``hook(param, shard, grad)`` when the gradient of a parameter of this unit is in its shard.

        The arrays can be written, and are valid during the call. True: the gradient has been used, and is freed.
        """
        _set_accumulated(self._context, self._number, hook)

    @in_use
    def set_all_reduce_hook(self, hook: Callable[[ReducedGradients], Work | None] | None) -> None:
        """Calls ``hook(reduced)`` when gradients of the unit were reduced, before they are added to the shards'.

        It may change them, or return a work that does: ``group.all_reduce_start(reduced.data, op="avg")``.
        """
        _set_all_reduce(self._context, self._number, hook)


def _name_of(context: Context, id: int) -> str:
    name: bytes = lib.shoal_fsdp_param_name(lib.shoal_fsdp_param_of(context.handle, id))
    return name.decode()


def _set_accumulated(
    context: Context, number: int, hook: Callable[[Param, Any, Any], bool | None] | None
) -> None:
    native = None
    if hook is not None:
        function = hook
        native = _fsdp_context.accumulated_hook(
            context, lambda owner, id, shard, grad: function(Param(owner, id, _name_of(owner, id)), shard, grad)
        )
    _set_hook(context, "accumulated", number, lib.shoal_fsdp_set_accumulated_hook, native)


def _set_all_reduce(
    context: Context, number: int, hook: Callable[[ReducedGradients], Work | None] | None
) -> None:
    native = None if hook is None else _fsdp_context.all_reduce_hook(context, hook)
    _set_hook(context, "all_reduce", number, lib.shoal_fsdp_set_all_reduce_hook, native)


# Contexts ------------------------------------------------------------------------------------------------------------


class MemoryAmounts(NamedTuple):
    """Amounts of memory, in bytes, as shoal/fsdp_unit.h explains them."""

    shards: int
    gradients: int
    windows: int
    buffers: int
    other: int
    total: int


class MemoryReport(NamedTuple):
    """How much memory a context holds, and the most that it has held. ``str`` gives a table."""

    n_ranks: int
    rank: MemoryAmounts
    rank_peak: MemoryAmounts
    host: MemoryAmounts
    host_peak: MemoryAmounts
    table: str

    def __str__(self) -> str:
        return self.table


def _amounts(native: Any) -> MemoryAmounts:
    return MemoryAmounts(*[getattr(native, name) for name in MemoryAmounts._fields])


def _groups_of(ranks: Group | Mesh) -> list[Group]:
    return [ranks] if isinstance(ranks, Group) else [ranks.group(dim) for dim in range(len(ranks.shape))]


@contextlib.contextmanager
def _using(groups: Sequence[Group]) -> Iterator[None]:
    """The groups are not freed meanwhile, nor is their world."""
    with contextlib.ExitStack() as stack:
        for group in groups:
            stack.enter_context(group._uses)
        yield


def _create(ranks: Group | Mesh, replicated: bool, options: Any) -> Context:
    handle = ctypes.c_void_p()
    function = lib.shoal_fsdp_create_replicated if replicated else lib.shoal_fsdp_create
    if isinstance(ranks, Mesh):
        if replicated:
            raise ValueError("a replicated context is made on a group, not on a mesh")
        function = lib.shoal_fsdp_create_on_mesh
    groups = _groups_of(ranks)
    with _using(groups):
        check(function(ranks._live(), ctypes.byref(options), ctypes.byref(handle)))
        stays = options.sharded != Sharded.SHARDED_PARAMETERS
        context = Context(ranks._world, groups, handle.value or 0, stays, options.device)
    return context


class Fsdp:
    """A context: units whose parameters are cut among the ranks of a group or a mesh.

    A mesh of two dimensions has replicas along its first one. With `replicated` every rank keeps everything, and only
    gradients are averaged. All ranks make the same contexts, units and calls, in the same order.

    `param_dtype` is that of whole parameters and their gradients, `reduce_dtype` the one in which gradients are summed.
    `reshard` is "default", "always", "never", or a number of neighbours that keep one copy among them. `sharded` is
    "parameters", "gradients" (ZeRO-2) or "state" (ZeRO-1). The rest is as in shoal/fsdp.h.

    With `device`, "cuda", shards, whole parameters and gradients are there. Parameters that are added as tensors of
    torch are tensors of torch on that GPU, others are :class:`~shoal.DeviceArray`, which other libraries take by
    DLPack. Arrays of whole values (``load``, ``gather``, ``broadcast``) are host memory all the same.
    """

    def __init__(
        self, ranks: Group | Mesh, *, param_dtype: str | None = None, reduce_dtype: str | None = None,
        reshard: str | int = "default", forward_prefetch: int = 0, divide_factor: float = 0.0, force_sum: bool = False,
        max_reduces: int = 0, sharded: str = "parameters", replicated: bool = False, device: str | None = None,
    ) -> None:  # fmt: skip
        partly = isinstance(reshard, int)
        options = _api.shoal_fsdp_options(
            struct_size=ctypes.sizeof(_api.shoal_fsdp_options),
            param_dtype=_dtype_or_none(param_dtype),
            reduce_dtype=_dtype_or_none(reduce_dtype),
            reshard=Reshard.RESHARD_PARTLY if partly else _choose(_reshards, "reshard", str(reshard)),
            reshard_ranks=reshard if partly else 0,
            forward_prefetch=forward_prefetch,
            divide_factor=divide_factor,
            force_sum=force_sum,
            max_reduces=max_reduces,
            sharded=_choose(_shardeds, "sharded", sharded),
            device=find_device(device),
        )
        self._context = _create(ranks, replicated, options)
        self._ranks = ranks
        self._replicated = replicated
        self._units: list[Unit] = []

    # Units and parameters

    @in_use
    def add_unit(
        self, params: Mapping[str, Any] | None = None, *, name: str | None = None, ranks: Group | Mesh | None = None,
        replicated: bool | None = None,
    ) -> Unit:  # fmt: skip
        """Adds a unit, and parameters to it: names with whole arrays, or with shapes for zeros of f32.

        With `ranks` they are cut among other ranks than the context's: an expert over its own. Before the first
        forward pass, on all ranks alike.
        """
        chosen = self._ranks if ranks is None else ranks
        is_replicated = (self._replicated if ranks is None else False) if replicated is None else replicated
        options = _api.shoal_fsdp_unit_options(
            struct_size=ctypes.sizeof(_api.shoal_fsdp_unit_options), is_replicated=is_replicated
        )
        number = ctypes.c_int()
        with _using(_groups_of(chosen)):
            if isinstance(chosen, Mesh):
                options.mesh = chosen._live()
            else:
                options.group = chosen._live()
            self._context.check(
                lib.shoal_fsdp_add_unit(self._context.live(), ctypes.byref(options), ctypes.byref(number))
            )
        unit = Unit(self._context, number.value)
        self._units.append(unit)
        own = chosen.ranks.index(chosen._world.rank) if isinstance(chosen, Mesh) else chosen.rank
        self._context.own_ranks.append(own)
        self._context.groups += [group for group in _groups_of(chosen) if group not in self._context.groups]
        if name is not None:
            unit.set(name=name)
        for key, values in (params or {}).items():
            unit.add(key, values)
        return unit

    @property
    def units(self) -> tuple[Unit, ...]:
        """All units, in the order of adding."""
        return tuple(self._units)

    def __iter__(self) -> Iterator[Param]:
        """All parameters, unit by unit."""
        return (param for unit in self._units for param in unit)

    @in_use
    def __getitem__(self, name: str) -> Param:
        """The parameter with this name."""
        number = ctypes.c_int()
        try:
            check(lib.shoal_fsdp_find_param(self._context.live(), name.encode(), ctypes.byref(number)))
        except InvalidError as error:
            raise KeyError(error.text) from None
        return Param(self._context, number.value, name)

    # A step

    def _refuse_views(self, what: str, call: str) -> None:
        self._context.refuse_views(what, sorted(set(self._context.units)), call)

    def _end(self) -> None:
        self._context.open.clear()
        self._context.backward.clear()
        self._context.given.clear()

    @in_use
    def end_backward(self) -> None:
        """Ends the backward pass: all gradients are in the shards then. Collective."""
        handle = self._context.live()
        self._refuse_views(WHOLE, "end_backward")
        self._context.wait(lib.shoal_fsdp_end_backward, handle)
        self._end()

    @in_use
    def end_forward(self) -> None:
        """Ends forward passes that no backward pass follows, as in an evaluation. Collective."""
        handle = self._context.live()
        self._refuse_views(WHOLE, "end_forward")
        self._context.wait(lib.shoal_fsdp_end_forward, handle)

    @in_use
    def update(self, function: Callable[[Param, Any, Any], object]) -> None:
        """Calls ``function(param, shard, grad)`` for each parameter that has a gradient, then ``zero_grad``.

        The arrays are this rank's parts; the shard is to be written.
        """
        for param in self:
            shard, grad = param.update(), param.grad
            if grad is not None:
                function(param, shard, grad)
            del shard, grad
        self.zero_grad()

    @in_use
    def zero_grad(self) -> None:
        """Removes the gradients of the shards, and pending ones. All ranks call it at the same place."""
        handle = self._context.seen()
        self._refuse_views(GRAD, "zero_grad")
        self._context.follow()
        self._context.check(lib.shoal_fsdp_zero_grad(handle))

    @in_use
    def synchronize(self) -> None:
        """Reduces all pending gradients. Collective."""
        self._context.wait(lib.shoal_fsdp_synchronize, self._context.live())

    @in_use
    def clip_grad_norm(self, max_norm: float, power: float = 2.0, *, must_be_finite: bool = False) -> float:
        """Clips the gradients of all shards by their common norm, and gives the norm before. Collective."""
        norm = ctypes.c_double()
        self._context.wait(
            lib.shoal_fsdp_clip_grad_norm, self._context.live(), max_norm, power, must_be_finite, ctypes.byref(norm)
        )
        return norm.value

    @in_use
    def clip_grad_value(self, max_value: float) -> None:
        """Clips every gradient of the shards to the range from -max_value to max_value. Collective."""
        self._context.wait(lib.shoal_fsdp_clip_grad_value, self._context.live(), max_value)

    @in_use
    def reset(self) -> None:
        """Ends a step that has failed, so that another can begin. On all ranks."""
        handle = self._context.live()
        self._refuse_views(WHOLE, "reset")
        self._context.follow()
        status = lib.shoal_fsdp_reset(handle)
        self._context.raised = None
        self._end()
        self._context.check(status)

    # Settings

    @in_use
    def set(
        self, *, reshard: str | None = None, reshard_after_backward: bool | None = None,
        unshard_in_backward: bool | None = None, sync: bool | None = None, all_reduce: bool | None = None,
        divide_factor: float | None = None, force_sum: bool | None = None, reduce_unused: bool | None = None,
        is_last_backward: bool | None = None,
    ) -> None:  # fmt: skip
        """Changes settings of all units, as ``Unit.set`` those of one.

        With `is_last_backward` False the next backward passes leave their reductions in flight.
        """
        _set_all(self._context, FSDP_ALL_UNITS, locals())
        if is_last_backward is not None:
            self._context.check(lib.shoal_fsdp_set_is_last_backward(self._context.live(), is_last_backward))

    @in_use
    def set_accumulated_hook(self, hook: Callable[[Param, Any, Any], bool | None] | None) -> None:
        """``Unit.set_accumulated_hook`` for all units."""
        _set_accumulated(self._context, FSDP_ALL_UNITS, hook)

    @in_use
    def set_all_reduce_hook(self, hook: Callable[[ReducedGradients], Work | None] | None) -> None:
        """``Unit.set_all_reduce_hook`` for all units."""
        _set_all_reduce(self._context, FSDP_ALL_UNITS, hook)

    # The context

    @in_use
    def memory(self) -> MemoryReport:
        """How much memory the context holds. Also when the world is closed."""
        report = _api.shoal_fsdp_memory_report(struct_size=ctypes.sizeof(_api.shoal_fsdp_memory_report))
        check(lib.shoal_fsdp_memory(self._context.seen(), ctypes.byref(report)))
        text = ctypes.create_string_buffer(lib.shoal_fsdp_memory_text(ctypes.byref(report), None, 0) + 1)
        lib.shoal_fsdp_memory_text(ctypes.byref(report), text, len(text))
        amounts = {name: _amounts(getattr(report, name)) for name in ("rank", "rank_peak", "host", "host_peak")}
        return MemoryReport(n_ranks=report.n_ranks, table=text.value.decode(), **amounts)

    def close(self) -> None:
        """Frees the context, after waiting for what is in flight. Local. Again: nothing.

        Without it the context is freed with the last object that uses it. BufferError: arrays use its parameters.
        """
        self._context.close()

    def __enter__(self) -> Fsdp:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except BufferError:
            if error is None:
                raise

    def __repr__(self) -> str:
        if not self._context.handle:
            return "<shoal.Fsdp, closed>"
        return f"<shoal.Fsdp: {len(self._units)} units, {sum(len(unit) for unit in self._units)} parameters>"
