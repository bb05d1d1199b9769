# SPDX-License-Identifier: MIT
"""A backend of torch.distributed for CPU tensors.

    import torch.distributed as dist
    import shoal.torch

    dist.init_process_group("shoal")                  # or "cpu:shoal,cuda:nccl"

The first use compiles a C++ file, once for each version of torch (:mod:`shoal.torch.building`).
"""

from __future__ import annotations

import atexit
import datetime
import functools
import inspect
import re
from typing import Any

import torch
import torch.distributed as dist

from . import building
from .building import BuildError, load

__all__ = ["BuildError"]

_NAME = "shoal"


def _check_version() -> None:
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if version < (1, 13) or (2, 0) <= version < (2, 3):
        raise ImportError(f"shoal.torch needs torch 1.13, or 2.3 and later, and this is torch {torch.__version__}")
    if not dist.is_available():
        raise ImportError(f"this torch {torch.__version__} was built without torch.distributed")


def _backend_of(group: Any) -> Any:
    """The backend of a process group for CPU tensors; before torch 2, they are one."""
    if not hasattr(group, "_get_backend"):
        return group
    try:
        return group._get_backend(torch.device("cpu"))
    except RuntimeError:  # it has none for CPU tensors
        return None


def _find_parent(compiled: Any) -> Any:
    """The backend of the default group, if that is this one."""
    if not dist.is_initialized():
        return None
    backend = _backend_of(dist.distributed_c10d._get_default_group())
    return backend if backend is not None and compiled.is_ours(backend) else None


def _timeout_of(pg_options: Any) -> datetime.timedelta:
    timeout = getattr(pg_options, "_timeout", None)
    if not isinstance(timeout, datetime.timedelta):
        raise TypeError(f"pg_options is a {type(pg_options).__name__}: the backend shoal takes the timeout of c10d's options")
    return timeout


_is_leaving_at_exit = False


def _create(options: Any, pg_options: Any = None) -> Any:
    """Makes the backend of a process group: a world of its own for the default group, and beside other backends."""
    global _is_leaving_at_exit
    compiled = load()
    if not _is_leaving_at_exit:
        _is_leaving_at_exit = True
        atexit.register(compiled.leave_all)
    timeout = (options.timeout if pg_options is None else _timeout_of(pg_options)).total_seconds()
    ranks = list(options.global_ranks_in_group)
    parent = _find_parent(compiled) if ranks else None
    if parent is None:
        return compiled.open_world(options.store, options.group_rank, options.group_size, timeout)
    return compiled.make_group(parent, ranks, options.group_id, options.group_rank, timeout)


def _leave_unwrapped() -> None:
    """With TORCH_DISTRIBUTED_DEBUG=DETAIL torch 2 wraps each backend in one that compares calls through Gloo.

    The wrapper has no coalesced collectives, which functional collectives and DTensor use. Shoal compares calls itself.
    """
    module = dist.distributed_c10d
    wrap: Any = getattr(module, "_create_process_group_wrapper", None)
    if wrap is None or getattr(wrap, "_is_of_shoal", False):
        return

    def create_wrapper(wrapped_pg: Any, *arguments: Any, **options: Any) -> Any:
        is_ours = building.is_loaded() and load().is_ours(wrapped_pg)
        return wrapped_pg if is_ours else wrap(wrapped_pg, *arguments, **options)

    create_wrapper._is_of_shoal = True  # type: ignore[attr-defined]
    module._create_process_group_wrapper = create_wrapper


def _name_in_logs() -> None:
    """DDP's logging data call every backend of another package "custom": say which one it is."""
    kind = torch.nn.parallel.DistributedDataParallel
    get = kind._get_ddp_logging_data
    if getattr(get, "_is_of_shoal", False):
        return

    def get_logging_data(self: Any) -> Any:
        data = get(self)
        if data.get("backend_name") == "custom":
            data["backend_name"] = dist.get_backend(self.process_group)
        return data

    get_logging_data._is_of_shoal = True  # type: ignore[attr-defined]
    kind._get_ddp_logging_data = get_logging_data


def _allow_monitored_barrier() -> None:
    """dist.monitored_barrier asks whether the backend is called Gloo: groups of this one go on without the question."""
    module = dist.distributed_c10d
    ask = module.monitored_barrier
    if getattr(ask, "_is_of_shoal", False):
        return

    @functools.wraps(ask)
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
        is_known = group is None or isinstance(group, dist.ProcessGroup)
        is_member = dist.is_initialized() and is_known and not module._rank_not_in_group(group)
        chosen = (group or module._get_default_group()) if is_member else None
        if chosen is None or not (building.is_loaded() and load().is_ours(_backend_of(chosen))):
            return ask(group, timeout, wait_all_ranks)
        if timeout is None:
            timeout = module.default_pg_timeout
        elif isinstance(timeout, float):
            timeout = datetime.timedelta(seconds=timeout)
        if not isinstance(timeout, datetime.timedelta):
            raise TypeError(f"timeout is {timeout!r}: a datetime.timedelta is expected")
        return chosen.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    monitored_barrier._is_of_shoal = True  # type: ignore[attr-defined]
    module.monitored_barrier = monitored_barrier
    dist.monitored_barrier = monitored_barrier


def _register() -> None:
    if _NAME.upper() in dist.Backend._plugins:
        return
    takes_devices = "devices" in inspect.signature(dist.Backend.register_backend).parameters
    devices = {"devices": ["cpu"]} if takes_devices else {}
    dist.Backend.register_backend(_NAME, _create, extended_api=True, **devices)


_check_version()
_leave_unwrapped()
_name_in_logs()
_allow_monitored_barrier()
_register()
