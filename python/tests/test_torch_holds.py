# SPDX-License-Identifier: MIT
"""What once corrupted memory, mixed up data or kept tensors: calls that are refused half-way, groups that end under calls."""

import gc
import os
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch_ranks import run_ranks

IS_TWO = int(torch.__version__.split(".")[0]) >= 2
needs_two = pytest.mark.skipif(not IS_TWO, reason="needs torch 2")


def ranks(n, *arguments):
    def decorate(function):
        def test():
            run_ranks(function, n, *arguments)

        test.__name__, test.__doc__ = function.__name__, function.__doc__
        return test

    return decorate


def refuse_half_way(rank, n, call):
    """One of the tensors cannot be reduced: nothing may be started, and the memory of the others is not touched."""
    tensor = torch.full((16000,), float(rank))
    if rank == 1:
        time.sleep(0.2)
    with pytest.raises((RuntimeError, NotImplementedError, ValueError)):
        call(tensor, n)
    del tensor
    gc.collect()
    others = [torch.full((16000,), 7.0) for _ in range(20)]
    time.sleep(0.3)
    assert all((other == 7).all() for other in others)
    value = torch.ones(3)
    dist.all_reduce(value)  # the calls of ranks still are the same
    assert value[0] == n


def reduce_eight_bits(tensor, n):
    import torch.distributed._functional_collectives as functional

    functional.all_reduce_coalesced([tensor, torch.ones(4).to(torch.float8_e5m2)], "sum", dist.group.WORLD)


def gather_wrong_size(tensor, n):
    outputs = [[torch.empty(16000), torch.empty(5)] for _ in range(n)]
    dist.all_gather_coalesced(outputs, [tensor, torch.ones(4)], async_op=True)


@needs_two
def test_a_sum_that_is_refused_half_way():
    run_ranks(refuse_half_way, 2, reduce_eight_bits)


def test_a_gather_that_is_refused_half_way():
    run_ranks(refuse_half_way, 2, gather_wrong_size)


@ranks(2)
def test_a_group_that_is_destroyed_while_a_thread_uses_it(rank, n):
    for turn in range(25):
        group = dist.new_group(list(range(n)))

        def use():
            try:
                for _ in range(50):
                    dist.all_reduce(torch.ones(2000), group=group, async_op=bool(turn % 2))
            except (RuntimeError, ValueError, AssertionError):
                pass  # it is destroyed, here or on the other rank

        threads = [threading.Thread(target=use), threading.Thread(target=lambda: dist.destroy_process_group(group))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    dist.barrier()


def mixed_dtypes(rank, n):
    import torch.distributed._functional_collectives as functional

    a, b = torch.full((2,), 1.5), torch.full((2,), 7, dtype=torch.int32)
    found = functional.all_gather_into_tensor_coalesced([a, b], dist.group.WORLD)
    assert found[0].tolist() == [1.5] * 2 * n and found[1].tolist() == [7] * 2 * n
    with pytest.raises(RuntimeError, match="MISMATCH"):
        other = functional.all_gather_into_tensor_coalesced([a, b] if rank == 0 else [b, a], dist.group.WORLD)
        print(other[0].tolist())


@needs_two
def test_lists_whose_dtypes_differ_between_ranks():
    run_ranks(mixed_dtypes, 2)


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def after_a_refused_batch(rank, n):
    for _ in range(3):
        with pytest.raises((ValueError, RuntimeError)):
            dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(3), 1 - rank, tag=-1)])
    before = resident_bytes()
    for _ in range(60):
        dist.all_reduce(torch.ones(1 << 20))
    assert resident_bytes() - before < 100 << 20
    got = torch.empty(2)
    operations = [dist.P2POp(dist.isend, torch.full((2,), float(rank)), 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert got[0] == 1 - rank


@needs_two
def test_tensors_are_not_kept_after_a_refused_batch():
    run_ranks(after_a_refused_batch, 2)


def inference(rank, n):
    with torch.inference_mode():
        value = torch.ones(300, 400).t()
        for _ in range(5):
            dist.all_reduce(value, async_op=True).get_future().wait()
        assert (value == n**5).all()


def test_inference_mode():
    run_ranks(inference, 2)


@ranks(3)
def test_a_monitored_barrier_that_is_tried_again(rank, n):
    """A rank that is late once arrives in a later try, and both sides pass."""
    if rank == 1:
        time.sleep(0.8)
    for turn in range(20):
        try:
            dist.monitored_barrier(timeout=timedelta(seconds=0.5))
            break
        except RuntimeError:
            assert turn < 19
    dist.barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=60))


def fork_with_operations(rank, n):
    """A child of fork() drops what its parent has in flight."""
    pending = [dist.all_reduce(torch.ones(100000), async_op=True) for _ in range(4)] if rank else []
    child = os.fork()
    if child == 0:
        pending.clear()
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    for work in pending or [dist.all_reduce(torch.ones(100000), async_op=True) for _ in range(4)]:
        work.wait()


def test_a_child_that_drops_operations():
    run_ranks(fork_with_operations, 2)


@ranks(2)
def test_options_of_a_group(rank, n):
    with pytest.raises(TypeError, match="pg_options is a int"):
        dist.new_group(pg_options=3)
    with pytest.raises((TypeError, AttributeError, AssertionError, RuntimeError)):
        dist.monitored_barrier(group="x")
    dist.barrier()
