# SPDX-License-Identifier: MIT
"""What torch.distributed on Shoal says when ranks call different things, and when one is killed.

    python3 torch_faults.py
"""

import os
import signal
import tempfile
import time

import shoal.torch  # noqa: F401
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

N_RANKS = 3


def attempt(what, call):
    begin = time.monotonic()
    try:
        call()
    except RuntimeError as error:
        if dist.get_rank() == 0:
            print(f"{what}, after {time.monotonic() - begin:.1f} s: {str(error).splitlines()[0]}", flush=True)


def run(rank, store):
    dist.init_process_group("shoal", init_method=f"file://{store}", rank=rank, world_size=N_RANKS)
    group, survivors = dist.new_group(), dist.new_group([0, 1])
    size = 5 if rank == 1 else 4  # a bug
    attempt("a mismatch", lambda: dist.all_reduce(torch.ones(size), group=group))
    dist.barrier()  # the other groups go on
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    attempt("a killed rank", lambda: dist.all_reduce(torch.ones(4)))
    total = torch.ones(1)
    dist.all_reduce(total, group=survivors)
    if rank == 0:
        print(f"the {int(total)} others go on", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        ranks = mp.spawn(run, (os.path.join(folder, "store"),), nprocs=N_RANKS, join=False)
        for process in ranks.processes:
            process.join()
