# SPDX-License-Identifier: MIT
"""Ctrl-C in calls that wait in the library and cannot come back in between, as those of FSDP and checkpoints.

Python runs its handler of SIGINT when the main thread is back from the library. A thread hears of the signal meanwhile,
through the descriptor that Python writes signals to, and if the call does not end soon, it ends the groups on which the
call waits: on all ranks, since a step or a save that one of them has left cannot go on. Then the handler runs.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._library import lib

if TYPE_CHECKING:
    from .groups import Group

# A call that ends within this time is left alone.
_GRACE_S = 0.5


class _Waiting:
    """A call of the main thread."""

    __slots__ = ("ended", "groups")

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = groups
        self.ended = threading.Event()


class _Watcher:
    """The thread, and the pipe through which it hears of signals."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        os.set_blocking(self.write, False)
        self.waiting: _Waiting | None = None
        self.other = -1  # the descriptor of somebody else who wants to hear of signals, an event loop say
        threading.Thread(target=self._run, name="shoal signals", daemon=True).start()

    def _run(self) -> None:
        while True:
            heard = os.read(self.read, 64)
            waiting, other = self.waiting, self.other
            if other != -1:
                try:
                    os.write(other, heard)
                except OSError:
                    pass
            if signal.SIGINT in heard and waiting is not None and not waiting.ended.wait(_GRACE_S):
                for group in waiting.groups:
                    if group._handle:
                        lib.shoal_group_abort(group._handle, b"a rank was interrupted (Ctrl-C)")


_watcher: _Watcher | None = None


def _forget() -> None:
    """In a child of fork() the thread is gone; the pipe is the parent's."""
    global _watcher
    if _watcher is not None:
        current = signal.set_wakeup_fd(-1)
        if current not in (-1, _watcher.write):
            signal.set_wakeup_fd(current)
        os.close(_watcher.read)
        os.close(_watcher.write)
        _watcher = None


os.register_at_fork(after_in_child=_forget)


def call(groups: Sequence[Group], function: Any, *arguments: Any) -> int:
    """``function(*arguments)``, which waits on these groups. Programs that handle SIGINT themselves are left alone."""
    global _watcher
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        return int(function(*arguments))
    if _watcher is None:
        _watcher = _Watcher()
    watcher, waiting = _watcher, _Waiting(groups)
    watcher.waiting = waiting
    watcher.other = signal.set_wakeup_fd(watcher.write, warn_on_full_buffer=False)
    try:
        return int(function(*arguments))
    finally:
        signal.set_wakeup_fd(watcher.other)
        waiting.ended.set()
        watcher.waiting = None
