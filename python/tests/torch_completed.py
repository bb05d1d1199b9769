# SPDX-License-Identifier: MIT
"""Debian's torch 2, completed so that tests of Shoal run on it; others stay as they are.

    python torch_completed.py PROGRAM ARGUMENTS...        runs a program with it, or, with -m, a module

FSDP2 of torch 2.6 does not run on CPU tensors; that of 2.7 does. Debian builds torch without libuv, which torchrun asks
for whatever USE_LIBUV says.
"""

import contextlib
import functools
import os
import runpy
import sys

import torch


def complete():
    """Lets FSDP2 use CPU tensors."""
    if torch.__version__.split(".")[:2] != ["2", "6"] or hasattr(torch.cpu.Stream, "record_event"):
        return
    torch.cpu.Stream.record_event = lambda self, event=None: event or torch.cpu.Event()
    torch.cpu.Stream.wait_event = lambda self, event: None
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group

    copy_out = _fsdp_param_group.foreach_all_gather_copy_out

    def keep_versions(result, params, group):
        """Autograd takes the second gather into the same memory for a change of the parameters."""
        outputs = [output for param in params for output in getattr(param, "all_gather_outputs", ())]
        with contextlib.ExitStack() as stack:
            for output in outputs:
                stack.enter_context(torch.autograd._unsafe_preserve_version_counter(output))
            copy_out(result, params, group)

    _fsdp_param_group.foreach_all_gather_copy_out = keep_versions


def leave_libuv_out():
    """Lets torchrun use the store that Debian's torch has."""
    if "+debian" not in torch.__version__ or torch.__version__.startswith("1."):
        return
    os.environ["USE_LIBUV"] = "0"
    store = functools.partial(torch.distributed.TCPStore, use_libuv=False)
    torch.distributed.TCPStore = sys.modules["torch.distributed.rendezvous"].TCPStore = store


if __name__ == "__main__":
    complete()
    leave_libuv_out()
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "-m":
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
        runpy.run_path(sys.argv[0], run_name="__main__")
