# SPDX-License-Identifier: MIT
"""Which threads are in calls of the library on an object, so that it is not freed under them."""

from __future__ import annotations

import collections
import time
from collections.abc import Sequence
from threading import get_ident

__all__ = ["Uses", "wait_for_others"]

_NAP_S = 0.001


class Uses:
    """The threads that are in calls on one object: ``with uses: ...``.

    Whoever frees the object first takes its handle away, then waits for these. There is no lock, because the garbage
    collector and signal handlers may come here at any time; single calls of a deque need none.
    """

    __slots__ = ("_inside",)

    def __init__(self) -> None:
        self._inside: collections.deque[int] = collections.deque()

    def __enter__(self) -> None:
        self._inside.append(get_ident())

    def __exit__(self, *_: object) -> None:
        self._inside.remove(get_ident())

    def has_own(self) -> bool:
        """Whether the caller is in a call: it is in a function that the library has called."""
        return get_ident() in self._inside

    def has_others(self) -> bool:
        """Whether a thread other than the caller is in a call."""
        own = get_ident()
        return any(ident != own for ident in list(self._inside))


def wait_for_others(users: Sequence[Uses], seconds: float) -> bool:
    """Waits until no other thread is in a call on one of the objects; says whether that is so."""
    until = time.monotonic() + seconds
    while any(uses.has_others() for uses in users):
        if time.monotonic() >= until:
            return False
        time.sleep(_NAP_S)
    return True
