# SPDX-License-Identifier: MIT
"""Exceptions: one class for each status of the library.

Every exception of this package that comes from the library is an :class:`Error`. It has the status, the text that says
why, and the ranks that the text names:

>>> try:
...     raise make_error(Status.ERR_PEER, "rank 2 (process 17) died or exited without closing its world")
... except PeerError as error:
...     print(error.status.name, error.ranks)
ERR_PEER (2,)
"""

from __future__ import annotations

import re

from ._api import Status

__all__ = [
    "CancelledError",
    "Error",
    "InternalError",
    "InvalidError",
    "MismatchError",
    "NoMemoryError",
    "PeerError",
    "StateError",
    "Status",
    "SystemCallError",
    "TimeoutError",
    "UnsupportedError",
]

_builtin_timeout = TimeoutError


class Error(Exception):
    """A call of the library has failed."""

    status: Status
    text: str

    def __init__(self, text: str, status: Status | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.status = status if status is not None else _status_of[type(self)]

    def __reduce__(self) -> tuple[object, ...]:
        return (make_error, (int(self.status), self.text))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that the text names, in order and without repetition."""
        found: list[int] = []
        for listed in re.findall(r"\branks? (\d+(?:(?:, | and )\d+)*)", self.text):
            for number in re.findall(r"\d+", listed):
                if int(number) not in found:
                    found.append(int(number))
        return tuple(found)


class InvalidError(Error, ValueError):
    """An argument is wrong; nothing was changed."""


class NoMemoryError(Error, MemoryError):
    """An allocation failed; nothing was changed."""


class UnsupportedError(Error):
    """The call is legal, but not offered for this dtype, device or build."""


class StateError(Error):
    """The object is not in a state that allows the call."""


class TimeoutError(Error, _builtin_timeout):
    """A deadline passed. If it was that of an operation on a group, the group has failed."""


class SystemCallError(Error):
    """A call of the operating system failed; the operation has no result."""


class CancelledError(Error):
    """The operation was ended on request, or by closing its group or world."""


class PeerError(Error):
    """Another rank died or left: every group that it is a member of has failed."""


class MismatchError(Error):
    """Ranks called different things: their group has failed."""


class InternalError(Error):
    """The library contradicts itself: a bug in it. Please report the text."""


_classes: dict[Status, type[Error]] = {
    Status.ERR_INVALID: InvalidError,
    Status.ERR_NO_MEMORY: NoMemoryError,
    Status.ERR_UNSUPPORTED: UnsupportedError,
    Status.ERR_STATE: StateError,
    Status.ERR_TIMEOUT: TimeoutError,
    Status.ERR_SYSTEM: SystemCallError,
    Status.ERR_CANCELLED: CancelledError,
    Status.ERR_PEER: PeerError,
    Status.ERR_MISMATCH: MismatchError,
    Status.ERR_INTERNAL: InternalError,
}
_status_of = {kind: status for status, kind in _classes.items()} | {Error: Status.ERR_INTERNAL}


def make_error(status: int, text: str) -> Error:
    """The exception of a status and its text."""
    known = Status(status) if status in Status._value2member_map_ else Status.ERR_INTERNAL
    return _classes.get(known, InternalError)(text, known)
