# SPDX-License-Identifier: MIT
"""Finds libshoal, loads it, and declares its functions as they are first used.

The library is, in this order: what SHOAL_LIBRARY names, the one in this package's own folder ``lib``, the one that the
loader finds. Calls release the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from . import _api
from .errors import StateError, make_error

_folder = Path(__file__).resolve().parent


def find_path() -> str:
    """The path of the library, or its bare name if only the loader knows it."""
    named = os.environ.get("SHOAL_LIBRARY")
    if named:
        return named
    own = _folder / "lib" / _api.SONAME
    return str(own) if own.exists() else _api.SONAME


def _load() -> ctypes.CDLL:
    path = find_path()
    try:
        loaded = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"libshoal was not found ({error}): install it, or set SHOAL_LIBRARY to the path of {_api.SONAME}"
        ) from None
    loaded.shoal_version.restype = ctypes.c_char_p
    version: str = loaded.shoal_version().decode()
    if version.split(".")[:2] != _api.VERSION.split(".")[:2]:
        raise ImportError(f"{path} is Shoal {version}, but this package needs {_api.VERSION}")
    return loaded


class _Library:
    """The functions of the library as attributes."""

    def __init__(self) -> None:
        self._loaded = _load()

    def __getattr__(self, name: str) -> Any:
        if name not in _api.FUNCTIONS:
            raise AttributeError(f"libshoal has no function {name}")
        result, parameters = _api.FUNCTIONS[name]
        function = getattr(self._loaded, name)
        function.restype = result
        function.argtypes = parameters
        setattr(self, name, function)
        return function


lib = _Library()


def check(status: int) -> None:
    """Raises the exception of a status that is not SHOAL_OK."""
    if status != 0:
        raise make_error(status, lib.shoal_error_text().decode(errors="replace"))


# Forks ---------------------------------------------------------------------------------------------------------------

_generation = 0


def _count_fork() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_count_fork)


def generation() -> int:
    """How often this process's line of ancestors has forked since the package was imported."""
    return _generation


def check_generation(made_in: int, what: str) -> None:
    """Objects of the parent process are of no use in its child."""
    if made_in != _generation:
        raise StateError(f"the {what} belongs to the parent of this process: a child of fork() is not a rank of it")
