# SPDX-License-Identifier: MIT
"""Functions of Python's C interface."""

from __future__ import annotations

import ctypes
from typing import Any


def declare(name: str, result: Any, *arguments: Any) -> Any:
    """A function of its own: the types of those in ctypes.pythonapi are the whole process's, and others set them, too."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))
