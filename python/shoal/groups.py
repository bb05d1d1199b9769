# SPDX-License-Identifier: MIT
"""Groups of ranks, and what they do together on arrays.

All members call the same collectives in the same order. Ranks compare their calls before any result can be read; if
they differ, that is a :class:`~shoal.MismatchError` on every rank.

Each collective blocks; with ``_start`` it returns at once and gives a :class:`~shoal.Work`. Arrays are used where they
are, never copied: they must be contiguous, and belong to the operation until it has ended.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import _api
from ._api import ANY_RANK, CollectiveKind, Dtype, ReduceOp, Status
from ._arrays import Memory, empty, take
from ._library import check, check_generation, generation, lib
from ._uses import Uses, wait_for_others
from .devices import CPU, name_of
from .errors import StateError
from .windows import Symmetric, Window
from .works import Work

if TYPE_CHECKING:
    from .worlds import World

__all__ = ["Group"]

_collective_start = lib.shoal_group_collective_start
_group_close = lib.shoal_group_close
_group_abandon = lib.shoal_group_abandon
# How long a thread may be on its way into a call on a group that is freed.
_PATIENCE_S = 1.0
_ops = {op.name.lower(): op for op in ReduceOp}


def _find_op(name: str | ReduceOp) -> ReduceOp:
    if isinstance(name, ReduceOp):
        return name
    found = _ops.get(name)
    if found is None:
        raise ValueError(f"there is no reduce operator '{name}': {', '.join(_ops)}")
    return found


def _take(source: Any, name: str, dtype: str | None = None, writes: bool = False) -> Memory:
    return take(source, name, dtype, writes, may_be_on_device=True)


def _same(name: str, left: Memory, right: Memory) -> None:
    if left.dtype != right.dtype:
        raise ValueError(f"{name}: out has {right.dtype.name.lower()} elements, data has {left.dtype.name.lower()}")


def _divided(name: str, what: str, memory: Memory, n_ranks: int) -> int:
    if memory.count % n_ranks != 0:
        raise ValueError(f"{name}: {what} has {memory.count} elements, not a multiple of the {n_ranks} ranks")
    return memory.count // n_ranks


def _counts(name: str, what: str, counts: Sequence[int], memory: Memory | None, n_ranks: int) -> Any:
    if len(counts) != n_ranks:
        raise ValueError(f"{name}: {what} has {len(counts)} counts, the group {n_ranks} ranks")
    if any(count < 0 for count in counts):
        raise ValueError(f"{name}: {what} has a negative count: {list(counts)}")
    if memory is not None and sum(counts) != memory.count:
        raise ValueError(f"{name}: {what} are {sum(counts)} elements together, the array has {memory.count}")
    return (ctypes.c_size_t * n_ranks)(*counts)


class Group:
    """An ordered list of ranks. ``world.group`` has all of them; ``world.make_group`` makes others.

    `dtype` reads the elements of an array as another dtype of the same size: ``dtype="bf16"`` over an array of uint16.
    `timeout`, in seconds, is the deadline of one call; past it the group has failed.
    """

    __slots__ = ("__weakref__", "_generation", "_handle", "_n_ranks", "_rank", "_uses", "_world")

    def __init__(self, world: World, handle: int) -> None:
        self._world = world
        self._handle = handle
        self._generation = generation()
        self._uses = Uses()
        with world._uses:
            world._live()
            status = lib.shoal_group_error(handle)
            if status == Status.ERR_STATE:  # a mesh still has a group that was closed
                check(status)
            self._rank: int = lib.shoal_group_rank(handle)
            self._n_ranks: int = lib.shoal_group_n_ranks(handle)

    # What it is

    @property
    def world(self) -> World:
        """The world that the group was made in."""
        check_generation(self._generation, "group")
        return self._world

    @property
    def rank(self) -> int:
        """The caller's rank in the group."""
        check_generation(self._generation, "group")
        return self._rank

    @property
    def n_ranks(self) -> int:
        """The number of its ranks."""
        check_generation(self._generation, "group")
        return self._n_ranks

    @property
    def name(self) -> str:
        """Ranks and tag as one text: "0,2/tag", "world"."""
        text: bytes = self._call("shoal_group_name")
        return text.decode()

    @property
    def timeout(self) -> float:
        """How many seconds an operation may take; past it the group has failed."""
        return float(self._call("shoal_group_timeout"))

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        check(self._call("shoal_group_set_timeout", seconds))

    @property
    def sequence(self) -> int:
        """How many collectives this rank has started on the group."""
        return int(self._call("shoal_group_sequence"))

    def world_rank(self, rank: int) -> int:
        """The rank in the world of a rank of the group."""
        found: int = self._call("shoal_group_world_rank", rank)
        if found < 0:
            raise ValueError(f"the group has no rank {rank}: it has {self._n_ranks}")
        return found

    def check(self) -> None:
        """Raises the failure of the group, if it has failed."""
        check(self._call("shoal_group_error"))

    def abort(self, reason: str) -> None:
        """Ends what goes on in the group, on all ranks, with this reason."""
        check(self._call("shoal_group_abort", reason.encode()))

    def close(self) -> None:
        """Frees the group on all members; every member calls it. The world's own group ends with its world."""
        self._free(_group_close, (Status.OK,))

    def abandon(self) -> None:
        """Frees this rank's part of the group, without the other members."""
        self._free(_group_abandon, (Status.OK, Status.ERR_SYSTEM))

    def _free(self, free: Callable[[int], int], when_freed: tuple[Status, ...]) -> None:
        with self._world._uses:
            handle = self._live()
            self._handle = 0  # nobody begins another call
            try:
                # Whoever stays in a call for longer waits in the library, which knows about it.
                wait_for_others([self._uses], _PATIENCE_S)
            except BaseException:
                self._handle = handle
                raise
            status = free(handle)
            if status in when_freed:
                self._world._groups.pop(handle, None)
            else:
                self._handle = handle
            check(status)

    def _live(self) -> int:
        if self._generation != generation():
            check_generation(self._generation, "group")
        self._world._live()
        if not self._handle:
            raise StateError("the group was closed")
        return self._handle

    def _call(self, name: str, *arguments: Any) -> Any:
        """Calls a function of the library on the group, which cannot be freed meanwhile."""
        with self._uses:
            return getattr(lib, name)(self._live(), *arguments)

    def __repr__(self) -> str:
        if not self._handle or not self._world.is_open:
            return "<shoal.Group, closed>"
        return f"<shoal.Group {self.name}: rank {self._rank} of {self._n_ranks}>"

    # Shared memory

    def symmetric(self, size: int, *, reserve: int | None = None) -> Symmetric:
        """Memory with a block of `size` bytes for every rank, which can grow to `reserve` bytes. Collective."""
        if size < 0 or (reserve is not None and reserve < 0):
            raise ValueError(f"symmetric: a size is negative: {size}, {reserve}")
        memory = Symmetric(self)
        if reserve is None:
            check(self._call("shoal_symmetric_create", size, ctypes.byref(memory._cell)))
        else:
            check(self._call("shoal_symmetric_reserve", size, reserve, ctypes.byref(memory._cell)))
        return memory

    def window(self, size: int) -> Window:
        """A window of `size` bytes, once per host. Collective."""
        if size < 0:
            raise ValueError(f"window: the size is negative: {size}")
        window = Window(self)
        check(self._call("shoal_window_create", size, ctypes.byref(window._cell)))
        return window

    # Collectives

    def _start(
        self, kind: CollectiveKind, *, send: Memory | None = None, recv: Memory | None = None, count: int = 0,
        dtype: Dtype | None = None, op: str | ReduceOp = ReduceOp.SUM, factor: float | None = None, root: int = 0,
        counts: Any = None, send_counts: Any = None, recv_counts: Any = None, timeout: float | None = None,
        result: Any = None,
    ) -> Work:  # fmt: skip
        devices = [memory.device for memory in (send, recv) if memory]
        if len(set(devices)) > 1:
            raise ValueError(f"data and out are on {name_of(devices[0])} and {name_of(devices[1])}, not on one device")
        call = _api.shoal_collective(
            struct_size=ctypes.sizeof(_api.shoal_collective), kind=kind, dtype=dtype or 0, reduce=_find_op(op),
            device=devices[0] if devices else CPU, root=root, count=count,
            send=send.address if send else None, recv=recv.address if recv else None,
            counts=counts, send_counts=send_counts, recv_counts=recv_counts, factor=factor or 0.0,
            timeout_s=timeout or 0.0,
        )  # fmt: skip
        work = Work(self, (send, recv), result)
        with self._uses:
            check(_collective_start(self._live(), ctypes.byref(call), ctypes.byref(work._cell)))
        return work

    def barrier_start(self, *, timeout: float | None = None) -> Work:
        """Starts a barrier: it ends when all ranks have come."""
        return self._start(CollectiveKind.KIND_BARRIER, timeout=timeout)

    def barrier(self, *, timeout: float | None = None) -> None:
        """Waits until all ranks have come."""
        self.barrier_start(timeout=timeout).wait()

    def broadcast_start(
        self, data: Any, root: int = 0, *, dtype: str | None = None, timeout: float | None = None
    ) -> Work:
        """Starts a broadcast."""
        memory = _take(data, "data", dtype, writes=self._rank != root)
        return self._start(
            CollectiveKind.KIND_BROADCAST, recv=memory, count=memory.count, dtype=memory.dtype, root=root,
            timeout=timeout, result=data,
        )  # fmt: skip

    def broadcast(self, data: Any, root: int = 0, *, dtype: str | None = None, timeout: float | None = None) -> Any:
        """Copies the root's `data` to all ranks, in place."""
        return self.broadcast_start(data, root, dtype=dtype, timeout=timeout).wait()

    def all_reduce_start(
        self, data: Any, out: Any = None, *, op: str | ReduceOp = "sum", factor: float | None = None,
        dtype: str | None = None, timeout: float | None = None,
    ) -> Work:  # fmt: skip
        """Starts an all_reduce."""
        send = _take(data, "data", dtype, writes=out is None)
        recv = send if out is None else _take(out, "out", dtype, writes=True)
        self._same_counts("all_reduce", send, recv)
        return self._start(
            CollectiveKind.KIND_ALL_REDUCE, send=send, recv=recv, count=send.count, dtype=send.dtype,
            op="premul_sum" if factor is not None else op, factor=factor, timeout=timeout,
            result=data if out is None else out,
        )  # fmt: skip

    def all_reduce(
        self, data: Any, out: Any = None, *, op: str | ReduceOp = "sum", factor: float | None = None,
        dtype: str | None = None, timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """Combines `data` of all ranks by `op`; every rank gets the result, in `out`, or in place if there is none.

        With `factor` the result is the sum of factor * data.
        """
        return self.all_reduce_start(data, out, op=op, factor=factor, dtype=dtype, timeout=timeout).wait()

    def _same_counts(self, name: str, send: Memory, recv: Memory) -> None:
        _same(name, send, recv)
        if send.count != recv.count:
            raise ValueError(f"{name}: out has {recv.count} elements, data has {send.count}")

    def reduce_start(
        self, data: Any, out: Any = None, root: int = 0, *, op: str | ReduceOp = "sum", factor: float | None = None,
        dtype: str | None = None, timeout: float | None = None,
    ) -> Work:  # fmt: skip
        """Starts a reduce."""
        is_root = self._rank == root
        send = _take(data, "data", dtype, writes=is_root and out is None)
        recv = send if out is None else _take(out, "out", dtype, writes=True)
        if is_root:
            self._same_counts("reduce", send, recv)
        return self._start(
            CollectiveKind.KIND_REDUCE, send=send, recv=recv if is_root else None, count=send.count, dtype=send.dtype,
            op="premul_sum" if factor is not None else op, factor=factor, root=root, timeout=timeout,
            result=(data if out is None else out) if is_root else None,
        )  # fmt: skip

    def reduce(
        self, data: Any, out: Any = None, root: int = 0, *, op: str | ReduceOp = "sum", factor: float | None = None,
        dtype: str | None = None, timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """Combines `data` of all ranks by `op`; the root gets the result, the others None."""
        return self.reduce_start(data, out, root, op=op, factor=factor, dtype=dtype, timeout=timeout).wait()

    def all_gather_start(
        self, data: Any, out: Any = None, *, counts: Sequence[int] | None = None, dtype: str | None = None,
        timeout: float | None = None,
    ) -> Work:  # fmt: skip
        """Starts an all_gather."""
        send = _take(data, "data", dtype)
        if out is None:
            total = send.count * self._n_ranks if counts is None else sum(counts)
            out = empty(data, total, self._n_ranks if counts is None else None)
        recv = _take(out, "out", dtype, writes=True)
        _same("all_gather", send, recv)
        if counts is None and recv.count != send.count * self._n_ranks:
            raise ValueError(
                f"all_gather: out has {recv.count} elements, {self._n_ranks} ranks have {send.count * self._n_ranks}"
            )
        if counts is None:
            return self._start(
                CollectiveKind.KIND_ALL_GATHER, send=send, recv=recv, count=send.count, dtype=send.dtype,
                timeout=timeout, result=out,
            )  # fmt: skip
        listed = _counts("all_gather", "counts", counts, recv, self._n_ranks)
        self._own_count("all_gather", "data", send, counts)
        return self._start(
            CollectiveKind.KIND_ALL_GATHER_V, send=send, recv=recv, dtype=send.dtype, counts=listed, timeout=timeout,
            result=out,
        )  # fmt: skip

    def _own_count(self, name: str, what: str, memory: Memory, counts: Sequence[int]) -> None:
        if memory.count != counts[self._rank]:
            raise ValueError(f"{name}: {what} has {memory.count} elements, counts[{self._rank}] is {counts[self._rank]}")

    def all_gather(
        self, data: Any, out: Any = None, *, counts: Sequence[int] | None = None, dtype: str | None = None,
        timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """Concatenates `data` of all ranks, in rank order, on every rank.

        `counts`, the same on every rank, says how many elements each rank has, if these differ.
        """
        return self.all_gather_start(data, out, counts=counts, dtype=dtype, timeout=timeout).wait()

    def reduce_scatter_start(
        self, data: Any, out: Any = None, *, op: str | ReduceOp = "sum", factor: float | None = None,
        counts: Sequence[int] | None = None, dtype: str | None = None, timeout: float | None = None,
    ) -> Work:  # fmt: skip
        """Starts a reduce_scatter."""
        send = _take(data, "data", dtype)
        count = _divided("reduce_scatter", "data", send, self._n_ranks) if counts is None else 0
        listed = None if counts is None else _counts("reduce_scatter", "counts", counts, send, self._n_ranks)
        own = count if counts is None else counts[self._rank]
        out = empty(data, own) if out is None else out
        recv = _take(out, "out", dtype, writes=True)
        _same("reduce_scatter", send, recv)
        if recv.count != own:
            raise ValueError(f"reduce_scatter: out has {recv.count} elements, this rank gets {own}")
        return self._start(
            CollectiveKind.KIND_REDUCE_SCATTER if counts is None else CollectiveKind.KIND_REDUCE_SCATTER_V, send=send,
            recv=recv, count=count, dtype=send.dtype, op="premul_sum" if factor is not None else op, factor=factor,
            counts=listed, timeout=timeout, result=out,
        )  # fmt: skip

    def reduce_scatter(
        self, data: Any, out: Any = None, *, op: str | ReduceOp = "sum", factor: float | None = None,
        counts: Sequence[int] | None = None, dtype: str | None = None, timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """Combines `data` of all ranks by `op`; rank r gets block r of the result, or its counts[r] elements."""
        return self.reduce_scatter_start(
            data, out, op=op, factor=factor, counts=counts, dtype=dtype, timeout=timeout
        ).wait()

    def all_to_all_start(
        self, data: Any, out: Any = None, *, send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None, dtype: str | None = None, timeout: float | None = None,
    ) -> Work:  # fmt: skip
        """Starts an all_to_all."""
        send = _take(data, "data", dtype)
        if (send_counts is None) != (recv_counts is None):
            raise ValueError("all_to_all: send_counts and recv_counts are given together")
        if out is None:
            out = empty(data, send.count if recv_counts is None else sum(recv_counts))
        recv = _take(out, "out", dtype, writes=True)
        _same("all_to_all", send, recv)
        if send_counts is None or recv_counts is None:
            self._same_counts("all_to_all", send, recv)
            count = _divided("all_to_all", "data", send, self._n_ranks)
            return self._start(
                CollectiveKind.KIND_ALL_TO_ALL, send=send, recv=recv, count=count, dtype=send.dtype, timeout=timeout,
                result=out,
            )  # fmt: skip
        return self._start(
            CollectiveKind.KIND_ALL_TO_ALL_V, send=send, recv=recv, dtype=send.dtype,
            send_counts=_counts("all_to_all", "send_counts", send_counts, send, self._n_ranks),
            recv_counts=_counts("all_to_all", "recv_counts", recv_counts, recv, self._n_ranks), timeout=timeout,
            result=out,
        )  # fmt: skip

    def all_to_all(
        self, data: Any, out: Any = None, *, send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None, dtype: str | None = None, timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """Sends block r of `data` to rank r, and receives block r of `out` from it."""
        return self.all_to_all_start(
            data, out, send_counts=send_counts, recv_counts=recv_counts, dtype=dtype, timeout=timeout
        ).wait()

    def gather_start(
        self, data: Any, out: Any = None, root: int = 0, *, counts: Sequence[int] | None = None,
        dtype: str | None = None, timeout: float | None = None,
    ) -> Work:  # fmt: skip
        """Starts a gather."""
        send = _take(data, "data", dtype)
        recv = None
        if self._rank == root:
            total = send.count * self._n_ranks if counts is None else sum(counts)
            if out is None:
                out = empty(data, total, self._n_ranks if counts is None else None)
            recv = _take(out, "out", dtype, writes=True)
            _same("gather", send, recv)
            if recv.count != total:
                raise ValueError(f"gather: out has {recv.count} elements, all ranks have {total}")
        listed = None
        if counts is not None:
            listed = _counts("gather", "counts", counts, recv, self._n_ranks)
            self._own_count("gather", "data", send, counts)
        return self._start(
            CollectiveKind.KIND_GATHER if counts is None else CollectiveKind.KIND_GATHER_V, send=send, recv=recv,
            count=send.count if counts is None else 0, dtype=send.dtype, root=root, counts=listed, timeout=timeout,
            result=out if recv else None,
        )  # fmt: skip

    def gather(
        self, data: Any, out: Any = None, root: int = 0, *, counts: Sequence[int] | None = None,
        dtype: str | None = None, timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """Concatenates `data` of all ranks on the root; the others get None."""
        return self.gather_start(data, out, root, counts=counts, dtype=dtype, timeout=timeout).wait()

    def scatter_start(
        self, data: Any, out: Any, root: int = 0, *, counts: Sequence[int] | None = None, dtype: str | None = None,
        timeout: float | None = None,
    ) -> Work:  # fmt: skip
        """Starts a scatter."""
        recv = _take(out, "out", dtype, writes=True)
        send = None
        if self._rank == root:
            send = _take(data, "data", dtype)
            _same("scatter", send, recv)
            if counts is None and send.count != recv.count * self._n_ranks:
                raise ValueError(
                    f"scatter: data has {send.count} elements, {self._n_ranks} ranks get {recv.count * self._n_ranks}"
                )
        listed = None
        if counts is not None:
            listed = _counts("scatter", "counts", counts, send, self._n_ranks)
            self._own_count("scatter", "out", recv, counts)
        return self._start(
            CollectiveKind.KIND_SCATTER if counts is None else CollectiveKind.KIND_SCATTER_V, send=send, recv=recv,
            count=recv.count if counts is None else 0, dtype=recv.dtype, root=root, counts=listed, timeout=timeout,
            result=out,
        )  # fmt: skip

    def scatter(
        self, data: Any, out: Any, root: int = 0, *, counts: Sequence[int] | None = None, dtype: str | None = None,
        timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """Gives rank r block r of the root's `data`, or its counts[r] elements; `data` is None on the others."""
        return self.scatter_start(data, out, root, counts=counts, dtype=dtype, timeout=timeout).wait()

    def check_equal(self, name: str, value: int | float | bytes) -> None:
        """Compares a setting of the program on all ranks: a difference is an error on all of them."""
        if isinstance(value, bytes):
            check(self._call("shoal_group_check_equal", name.encode(), value, len(value)))
        elif isinstance(value, float):
            check(self._call("shoal_group_check_equal_real", name.encode(), value))
        else:
            check(self._call("shoal_group_check_equal_integer", name.encode(), value))

    # Point to point

    def send_start(self, data: Any, to: int, tag: int = 0, *, dtype: str | None = None) -> Work:
        """Starts a send."""
        memory = take(data, "data", dtype)
        work = Work(self, memory, None)
        check(
            self._call(
                "shoal_group_send_start", memory.address, memory.count, memory.dtype, to, tag, ctypes.byref(work._cell)
            )
        )
        return work

    def send(self, data: Any, to: int, tag: int = 0, *, dtype: str | None = None) -> None:
        """Sends `data` to a rank of the group. A small one may return before it is received."""
        self.send_start(data, to, tag, dtype=dtype).wait()

    def recv_start(self, out: Any, source: int | None = None, tag: int = 0, *, dtype: str | None = None) -> Work:
        """Starts a receive. The work's result is the rank that has sent it."""
        memory = take(out, "out", dtype, writes=True)
        found = ctypes.c_int(ANY_RANK if source is None else source)
        work = Work(self, (memory, found), found)
        place = (memory.address, memory.count, memory.dtype)
        if source is None:
            status = self._call(
                "shoal_group_recv_any_start", *place, tag, ctypes.byref(found), ctypes.byref(work._cell)
            )
        else:
            status = self._call("shoal_group_recv_start", *place, source, tag, ctypes.byref(work._cell))
        check(status)
        return work

    def recv(self, out: Any, source: int | None = None, tag: int = 0, *, dtype: str | None = None) -> int:
        """Receives into `out`, from a rank of the group or from whichever sends first; gives that rank."""
        sender: int = self.recv_start(out, source, tag, dtype=dtype).wait()
        return sender
