# SPDX-License-Identifier: MIT
"""Ranks of torch.distributed as forked processes, for tests: what they give, or the exception of the first that fails."""

import datetime
import faulthandler
import multiprocessing
import os
import signal
import tempfile
import traceback

import torch
import torch.distributed as dist
import shoal.torch  # noqa: F401
from shoal.torch import building
from torch_completed import complete

complete()
LIMIT_S = 120


class Died:
    """What a rank gives that has ended without an answer."""

    def __init__(self, code):
        self.code = code

    def __eq__(self, other):
        return isinstance(other, Died) and self.code == other.code

    def __repr__(self):
        return f"Died({self.code})"


def killed():
    return Died(-signal.SIGKILL)


def _run(pipe, function, rank, n, arguments, store, backend, timeout_s):
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    torch.set_num_threads(1)
    try:
        if backend:
            dist.init_process_group(
                backend, init_method=f"file://{store}", rank=rank, world_size=n,
                timeout=datetime.timedelta(seconds=timeout_s),
            )  # fmt: skip
        answer = (True, function(rank, n, *arguments))
        if backend and dist.is_initialized():
            dist.destroy_process_group()
    except BaseException as error:
        answer = (False, (repr(error), traceback.format_exc()))
    pipe.send(answer)
    pipe.close()
    os._exit(0) if not answer[0] else None


def run_ranks(function, n, *arguments, backend="shoal", timeout_s=100.0):
    """Runs function(rank, n, *arguments) on n ranks; gives a list of results. A rank that dies gives Died(code)."""
    building.load()
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(n):
            ours, theirs = context.Pipe(duplex=False)
            store = os.path.join(folder, "store")
            process = context.Process(
                target=_run, args=(theirs, function, rank, n, arguments, store, backend, timeout_s)
            )
            process.start()
            theirs.close()
            ranks.append((process, ours))
        return _collect(ranks)


def _collect(ranks):
    results, failures = [], []
    for rank, (process, pipe) in enumerate(ranks):
        try:
            is_good, value = pipe.recv()
        except EOFError:
            process.join()
            is_good, value = True, Died(process.exitcode)
        results.append(value)
        if not is_good:
            failures.append(f"rank {rank}: {value[0]}\n{value[1]}")
    for process, pipe in ranks:
        process.join()
        pipe.close()
    assert not failures, "\n".join(failures)
    return results
