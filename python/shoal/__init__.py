# SPDX-License-Identifier: MIT
"""Collectives of ranks on arrays, without copies: Shoal for Python.

>>> import shoal
>>> from array import array
>>> with shoal.World() as world:
...     print(world.group.all_reduce(array("f", [1.0, 2.0])).tolist())
[1.0, 2.0]
"""

from ._api import VERSION as __version__
from ._api import Dtype, ReduceOp
from .checkpoints import Alias, CheckpointInfo, Item, Progress, Saving, load, read, save, save_start
from .devices import DeviceArray, dlpack_device, use_stream
from .errors import (
    CancelledError,
    Error,
    InternalError,
    InvalidError,
    MismatchError,
    NoMemoryError,
    PeerError,
    StateError,
    Status,
    SystemCallError,
    TimeoutError,
    UnsupportedError,
)
from .fsdp import Fsdp, GatherExtension, GatherRows, MemoryReport, Param, ReducedGradients, Unit
from .groups import Group
from .launching import LaunchError, launch
from .meshes import Mesh
from .stores import Store
from .windows import Symmetric, Window
from .works import Work
from .worlds import World

__all__ = [
    "Alias",
    "CancelledError",
    "CheckpointInfo",
    "DeviceArray",
    "Dtype",
    "Error",
    "Fsdp",
    "GatherExtension",
    "GatherRows",
    "Group",
    "InternalError",
    "InvalidError",
    "Item",
    "LaunchError",
    "MemoryReport",
    "Mesh",
    "MismatchError",
    "NoMemoryError",
    "Param",
    "PeerError",
    "Progress",
    "ReduceOp",
    "ReducedGradients",
    "Saving",
    "StateError",
    "Status",
    "Store",
    "Symmetric",
    "SystemCallError",
    "TimeoutError",
    "Unit",
    "UnsupportedError",
    "Window",
    "Work",
    "World",
    "__version__",
    "dlpack_device",
    "launch",
    "load",
    "read",
    "save",
    "save_start",
    "use_stream",
]
