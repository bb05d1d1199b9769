# SPDX-License-Identifier: MIT
"""Works: operations that were started and go on while the program computes."""

from __future__ import annotations

import asyncio
import collections
import ctypes
import itertools
import os
import threading
import time
import weakref
from collections.abc import Generator
from typing import Any

from . import _api
from ._library import check, check_generation, generation, lib

__all__ = ["Work"]

# A thread that waits in the library does not run Python's signal handlers: the main thread comes back this often.
_SLICE_S = 0.1

_work_wait = lib.shoal_work_wait
_work_test = lib.shoal_work_test
_work_free = lib.shoal_work_free

class _Flight(weakref.ref["Work"]):
    """The handle of a work and the arrays that its operation uses. It outlives the work, if that is dropped early.

    A work has no ``__del__``: a signal handler that raises may end such a function before it has done anything, and the
    arrays would be freed while the operation writes to them. When a work goes, the interpreter itself calls
    ``_dropped.append`` with its flight.
    """

    __slots__ = ("cell", "keep")

    cell: ctypes.c_void_p
    keep: Any


_flights: set[_Flight] = set()
# Flights whose works are gone. The garbage collector may drop a work at any time, also in the middle of `sweep`: single
# calls of a deque need no lock.
_dropped: collections.deque[_Flight] = collections.deque()
_sweeping = threading.Lock()


def sweep(everything: bool = False) -> None:
    """Frees dropped works that have ended, and lets go of their arrays.

    With `everything`, also those that an exception of a signal handler has lost in the middle of a sweep.
    """
    if _sweeping.locked():
        return  # perhaps by this thread, which a signal handler has left for a while
    with _sweeping:
        if everything:
            known = {id(flight) for flight in list(_dropped)}
            _dropped.extend([flight for flight in list(_flights) if flight() is None and id(flight) not in known])
        for _ in range(len(_dropped)):
            flight = _dropped.popleft()
            handle = flight.cell.value  # None: never started, or listed twice
            if handle and not _work_test(handle):
                _dropped.append(flight)
                continue
            flight.cell.value = None
            _work_free(handle)
            flight.keep = None
            _flights.discard(flight)


class Work:
    """An operation that was started.

    The arrays that it uses belong to it until it has ended. ``wait`` gives its result; so does ``await``.
    """

    __slots__ = ("__weakref__", "_cell", "_flight", "_generation", "_is_over", "_owner", "_result")

    def __init__(self, owner: Any, keep: Any, result: Any) -> None:
        """Made before its operation is started, with `_cell` for the handle: an exception in between loses nothing.

        `owner` stays as long as the work, the arrays in `keep` until the operation has ended. `result` is what `wait`
        gives; a number that the operation writes is given as c_int.
        """
        if _dropped:
            sweep()
        self._cell = ctypes.c_void_p()
        self._owner = owner
        self._result = result
        self._is_over = False
        self._generation = generation()
        self._flight = flight = _Flight(self, _dropped.append)  # type: ignore[arg-type]
        flight.cell = self._cell
        flight.keep = keep
        _flights.add(flight)

    @property
    def _handle(self) -> int:
        return self._cell.value or 0

    def done(self) -> bool:
        """Whether the operation has ended, successfully or not. Never waits."""
        check_generation(self._generation, "work")
        return bool(_work_test(self._handle))

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for the end, and gives the result of the operation.

        If it does not end within `timeout` seconds, that is a TimeoutError, and the operation goes on.
        """
        check_generation(self._generation, "work")
        self._wait(-1.0 if timeout is None else max(timeout, 0.0))
        self._end()
        return self._result.value if isinstance(self._result, ctypes.c_int) else self._result

    def _wait(self, timeout: float) -> None:
        if threading.current_thread() is not threading.main_thread():
            check(_work_wait(self._handle, timeout))
            return
        until = time.monotonic() + timeout if timeout >= 0 else None
        while True:
            left = _SLICE_S if until is None else min(_SLICE_S, max(until - time.monotonic(), 0.0))
            status = _work_wait(self._handle, left)
            is_slice = status == _api.Status.ERR_TIMEOUT and not _work_test(self._handle)
            if not is_slice or (until is not None and time.monotonic() >= until):
                # One that has ended meanwhile says how.
                check(_work_wait(self._handle, 0.0) if status != 0 else 0)
                return

    def _end(self) -> None:
        self._is_over = True
        self._owner = self._flight.keep = None

    def _give(self) -> tuple[int, Any]:
        """Hands the operation to the library, which waits for it and frees it: the handle, and what it uses."""
        check_generation(self._generation, "work")
        given = self._handle, (self._owner, self._flight.keep)
        self._cell.value = None
        self._result = None
        self._end()
        return given

    def __await__(self) -> Generator[Any, None, Any]:
        check_generation(self._generation, "work")
        if not _work_test(self._handle):
            yield from _completion(self).__await__()
        return self.wait(0)

    def __repr__(self) -> str:
        if self._generation != generation():
            return "<shoal.Work of the parent process>"
        return f"<shoal.Work {'done' if self._is_over or self.done() else 'going on'}>"


# asyncio -------------------------------------------------------------------------------------------------------------

_numbers = itertools.count(1)
_waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[None], Work]] = {}


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _on_done(context: int | None, status: int) -> None:
    """Runs on whichever thread the operation ends on."""
    number = context or 0
    entry = _waiting.get(number)
    if entry is None:
        return
    loop, future, _ = entry
    _in_callback.append(threading.get_ident())
    try:
        loop.call_soon_threadsafe(_complete, future)
    except RuntimeError:
        pass  # the loop was closed: nobody waits
    finally:
        del loop, future, entry, _
        _waiting.pop(number, None)
        _in_callback.remove(threading.get_ident())


_on_done_native = _api.shoal_done_function(_on_done)
# The threads that are in `_on_done`. The garbage collector may run there, and must not close a world then.
_in_callback: collections.deque[int] = collections.deque()


def is_in_callback() -> bool:
    """Whether the caller was called by the library, at the end of an operation."""
    return threading.get_ident() in _in_callback


def _completion(work: Work) -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    number = next(_numbers)
    try:
        _waiting[number] = (loop, future, work)
        check(lib.shoal_work_on_done(work._handle, _on_done_native, ctypes.c_void_p(number)))
    except BaseException:
        _waiting.pop(number, None)
        raise
    if _work_test(work._handle):
        # The callback may have run on this thread, where an exception of a signal handler may have ended it.
        _waiting.pop(number, None)
        _complete(future)
    return future


def complete_lost() -> None:
    """Completes what was awaited and has ended, although an exception of a signal handler has ended its callback."""
    for number, (_, _, work) in list(_waiting.items()):
        if _work_test(work._handle):
            _on_done(number, 0)


def wait_for_callbacks(seconds: float) -> bool:
    """Waits until no function of Python is left to be called by the library."""
    until = time.monotonic() + seconds
    while _waiting and time.monotonic() < until:
        time.sleep(0.001)
    return not _waiting


def _forget() -> None:
    """In a child of fork(): works of the parent end in the parent, and call nobody here."""
    global _sweeping
    _sweeping = threading.Lock()
    _dropped.clear()
    _flights.clear()
    _waiting.clear()
    _in_callback.clear()


# Behind that of _library, by which works know that they are the parent's.
os.register_at_fork(after_in_child=_forget)
