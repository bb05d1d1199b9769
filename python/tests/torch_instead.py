# SPDX-License-Identifier: MIT
"""Imported by a copy of a test of PyTorch's before its other imports (scripts/torch.sh).

- BACKEND=shoal: process groups that ask for Gloo get Shoal. Such tests name Gloo literally.
- Ranks are forked. PyTorch's tests spawn them, and each imports torch again, which takes longer than most tests.
"""

import functools
import multiprocessing
import os

import torch
import torch.distributed as dist
import torch.distributed.device_mesh as device_mesh
import torch.multiprocessing


def _name(backend):
    return "shoal" if backend == "cpu:gloo,cuda:nccl" else backend.replace("gloo", "shoal")


def _instead(function):
    @functools.wraps(function)
    def make(*arguments, **options):
        arguments = [_name(value) if isinstance(value, str) and not index else value for index, value in enumerate(arguments)]
        if function.__name__ == "init_process_group" and not arguments:
            options["backend"] = options.get("backend") or "gloo"
        if isinstance(options.get("backend"), str):
            options["backend"] = _name(options["backend"])
        return function(*arguments, **options)

    return make


def take_shoal():
    from shoal.torch import building

    building.load()
    for name in ("init_process_group", "new_group"):
        changed = _instead(getattr(dist, name))
        for module in (dist, dist.distributed_c10d, device_mesh):
            if hasattr(module, name):
                setattr(module, name, changed)


def fork_ranks():
    multiprocessing.set_start_method("fork", force=True)
    torch.multiprocessing.get_context = lambda method=None: multiprocessing.get_context("fork")
    torch.multiprocessing.set_start_method = lambda *arguments, **options: None


fork_ranks()
if os.environ.get("BACKEND") == "shoal":
    take_shoal()
