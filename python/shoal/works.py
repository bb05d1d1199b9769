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

# What was dropped before it had ended: its buffers stay until it has. There is no lock: the garbage collector may drop a
# work at any time, also in the middle of `sweep`. Single calls of a deque need none.
_orphans: collections.deque[tuple[int, Any]] = collections.deque()


def sweep() -> None:
    """Frees dropped works that have ended."""
    for _ in range(len(_orphans)):
        try:
            handle, keep = _orphans.popleft()
        except IndexError:
            return  # another thread sweeps, too
        if _work_test(handle):
            _work_free(handle)
        else:
            _orphans.append((handle, keep))


class Work:
    """An operation that was started.

    The arrays that it uses belong to it until it has ended. ``wait`` gives its result; so does ``await``.
    """

    __slots__ = ("__weakref__", "_generation", "_handle", "_is_over", "_keep", "_result")

    def __init__(self, handle: int, keep: Any, result: Any) -> None:
        """`result` is what `wait` gives; a number that the operation writes is given as c_int."""
        self._handle = handle
        self._keep = keep
        self._result = result
        self._is_over = False
        self._generation = generation()
        if _orphans:
            sweep()

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
        self._keep = None

    def _give(self) -> tuple[int, Any]:
        """Hands the operation to the library, which waits for it and frees it: the handle, and what it uses."""
        check_generation(self._generation, "work")
        given = self._handle, self._keep
        self._handle = 0
        self._result = None
        self._end()
        return given

    def __await__(self) -> Generator[Any, None, Any]:
        check_generation(self._generation, "work")
        if not _work_test(self._handle):
            yield from _completion(self).__await__()
        return self.wait(0)

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), 0
        if not handle or self._generation != generation():
            return
        if self._is_over or _work_test(handle):
            _work_free(handle)
            return
        _orphans.append((handle, self._keep))

    def __repr__(self) -> str:
        return f"<shoal.Work {'done' if self._is_over or self.done() else 'going on'}>"


# asyncio -------------------------------------------------------------------------------------------------------------

_numbers = itertools.count(1)
_waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[None], Work]] = {}


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _on_done(context: int | None, status: int) -> None:
    """Runs on whichever thread the operation ends on."""
    entry = _waiting.pop(context or 0, None)
    if entry is None:
        return
    loop, future, _ = entry
    try:
        loop.call_soon_threadsafe(_complete, future)
    except RuntimeError:
        pass  # the loop was closed: nobody waits


_on_done_native = _api.shoal_done_function(_on_done)


def _completion(work: Work) -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    number = next(_numbers)
    _waiting[number] = (loop, future, work)
    status = lib.shoal_work_on_done(work._handle, _on_done_native, ctypes.c_void_p(number))
    if status != 0:
        _waiting.pop(number, None)
    check(status)
    return future


def wait_for_callbacks(seconds: float) -> bool:
    """Waits until no function of Python is left to be called by the library."""
    until = time.monotonic() + seconds
    while _waiting and time.monotonic() < until:
        time.sleep(0.001)
    return not _waiting


def _forget() -> None:
    """In a child of fork(): works of the parent end in the parent, and call nobody here."""
    _orphans.clear()
    _waiting.clear()


# Behind that of _library, by which works know that they are the parent's.
os.register_at_fork(after_in_child=_forget)
