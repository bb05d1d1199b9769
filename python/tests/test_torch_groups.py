# SPDX-License-Identifier: MIT
"""Groups, works and futures, messages, barriers, and DDP, through torch.distributed."""

import gc
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch_ranks import run_ranks

N = 3


def ranks(n, **options):
    """Runs the decorated function as a test on n ranks."""

    def decorate(function):
        def test():
            run_ranks(function, n, **options)

        test.__doc__ = function.__doc__
        return test

    return decorate


@ranks(N)
def test_many_in_flight(rank, n):
    tensors = [torch.full((100 * i + 1,), float(rank + i)) for i in range(50)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    assert all(work.is_completed() and work.is_success() for work in works)
    assert [tensor[-1].item() for tensor in tensors] == [float(sum(range(n)) + n * i) for i in range(50)]


@ranks(1)
def test_small_and_large_calls_of_one_rank(rank, n):
    for size in (5, 200000):  # the small one ends in the call that starts it
        strided = torch.zeros(size, 2)[:, 0]
        strided += 3
        works = [dist.all_reduce(strided, op=op, async_op=True) for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX)]
        future = dist.broadcast(strided, 0, async_op=True).get_future()
        assert all(work.wait() for work in works) and future.wait()[0].data_ptr() == strided.data_ptr()
        parts = [torch.empty(size)]
        gathered = dist.all_gather(parts, torch.full((size,), 7.0), async_op=True)
        last = dist.barrier(async_op=True)
        gathered.wait()
        last.wait()
        assert gathered.is_completed() and gathered.is_success()
        assert strided.eq(3).all() and parts[0].eq(7).all()
    with pytest.raises((RuntimeError, ValueError), match="band"):
        dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND, async_op=True)


@ranks(N)
def test_dropped_works_keep_their_tensors(rank, n):
    for _ in range(20):
        dist.all_reduce(torch.ones(200000), async_op=True)
    gc.collect()
    last = torch.ones(3)
    dist.all_reduce(last)
    assert last.tolist() == [n] * 3


@ranks(N)
def test_futures(rank, n):
    futures = [
        dist.all_reduce(torch.full((70000,), float(i)), async_op=True).get_future().then(lambda f: f.value()[0][0].item())
        for i in range(20)
    ]
    assert torch.futures.wait_all(futures) == [float(n * i) for i in range(20)]


@ranks(N)
def test_callbacks_that_wait_for_collectives(rank, n):
    def then(future):
        return dist.all_reduce(future.value()[0].clone(), async_op=True).get_future().wait()[0]

    # Callbacks have no order: all works are started before the first can begin another, which it would be taken for.
    works = [dist.all_reduce(torch.ones(50000), async_op=True) for _ in range(3)]
    futures = [work.get_future().then(then) for work in works]
    assert [future.wait()[0].item() for future in futures] == [n * n] * 3


@ranks(2)
def test_the_future_of_a_failed_call_raises(rank, n):
    group = dist.new_group(timeout=timedelta(seconds=60))
    future = dist.all_reduce(torch.ones(50000 + rank), group=group, async_op=True).get_future()
    with pytest.raises(RuntimeError, match="SHOAL_ERR_MISMATCH"):
        future.wait()


@ranks(4)
def test_groups(rank, n):
    pair = dist.new_group([0, n - 1])
    again = dist.new_group()
    if rank in (0, n - 1):
        value = torch.tensor([float(rank)])
        dist.all_reduce(value, group=pair)
        assert value.item() == n - 1
    value = torch.ones(3)
    dist.all_reduce(value, group=again)
    assert value.tolist() == [n] * 3
    dist.destroy_process_group(again)
    halves = [dist.new_group(list(range(half * 2, half * 2 + 2))) for half in range(2)]
    value = torch.tensor([float(rank)])
    dist.all_reduce(value, group=halves[rank // 2])
    assert value.item() == [1.0, 5.0][rank // 2]


@ranks(N)
def test_a_group_that_only_some_destroy(rank, n):
    """Destroying is not collective: the other groups go on."""
    group = dist.new_group()
    dist.barrier(group=group)
    if rank == 0:
        dist.destroy_process_group(group)
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == n


@ranks(2)
def test_a_group_that_is_destroyed_while_it_works(rank, n):
    """Destroying waits for collectives that were started, whose works may have been dropped, as Gloo does."""
    group = dist.new_group()
    dist.barrier(group=group)
    value = torch.ones(300000)
    if rank == 1:
        dist.all_reduce(value, group=group, async_op=True)
        dist.destroy_process_group(group)
        del group
        assert value[-1].item() == n
    else:
        time.sleep(0.5)  # the other is likely to destroy the group meanwhile
        dist.all_reduce(value, group=group)
        assert value[-1].item() == n


@ranks(4, backend="gloo")
def test_a_group_beside_a_default_group_of_gloo(rank, n):
    group = dist.new_group([1, 3], backend="shoal")
    if rank in (1, 3):
        value = torch.tensor([float(rank)])
        dist.all_reduce(value, group=group)
        assert value.item() == 4


def begin_and_end(rank, n, folder):
    for turn in range(3):
        dist.init_process_group("shoal", init_method=f"file://{folder}/{turn}", rank=rank, world_size=n)
        value = torch.ones(1)
        dist.all_reduce(value)
        assert value.item() == n
        dist.destroy_process_group()


def test_again_and_again(tmp_path):
    run_ranks(begin_and_end, 2, tmp_path, backend=None)


@ranks(N)
def test_messages(rank, n):
    mine, got = torch.full((1000,), float(rank)), torch.empty(1000)
    operations = [dist.P2POp(dist.isend, mine, (rank + 1) % n), dist.P2POp(dist.irecv, got, (rank - 1) % n)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert got[0].item() == (rank - 1) % n
    if rank == 0:
        for work in [dist.isend(torch.full((300000,), float(i)), n - 1, tag=i) for i in range(4)]:
            work.wait()
    if rank == n - 1:
        values = [torch.empty(300000) for _ in range(4)]
        for work in [dist.irecv(values[i], 0, tag=i) for i in (3, 2, 1, 0)]:
            work.wait()
        assert [value[0].item() for value in values] == [0, 1, 2, 3]


@ranks(N)
def test_messages_from_any_rank(rank, n):
    if rank:
        dist.send(torch.full((4,), float(rank)), 0)
    else:
        seen = set()
        for _ in range(n - 1):
            value = torch.empty(4)
            source = dist.recv(value)
            assert value[0].item() == source
            seen.add(source)
        assert seen == set(range(1, n))


@ranks(N)
def test_sequence_numbers(rank, n):
    group = dist.distributed_c10d._get_default_group()
    if hasattr(group, "_get_backend"):  # process groups of torch 2.11 do not ask backends that they do not know
        group = group._get_backend(torch.device("cpu"))
    before = group._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1))
    assert group._get_sequence_number_for_group() == before + 1


@ranks(N)
def test_a_monitored_barrier(rank, n):
    group = dist.distributed_c10d._get_default_group()
    group.monitored_barrier(timedelta(seconds=60), False)
    for wait_all, missing in ((False, {n - 1}), (True, set(range(1, n)))):
        if rank not in missing:
            with pytest.raises(RuntimeError, match="failed to pass monitoredBarrier|reached monitoredBarrier") as caught:
                group.monitored_barrier(timedelta(seconds=0.3), wait_all)
            if rank == 0:
                names = "Ranks 1, 2" if wait_all else f"Rank {n - 1}"
                assert f"{names} failed to pass monitoredBarrier in 300 ms" in str(caught.value)
        dist.barrier()
        if rank in missing:  # too late; the others have given it up
            with pytest.raises(RuntimeError, match="reached monitoredBarrier, but received errors .* from rank 0"):
                group.monitored_barrier(timedelta(seconds=0.3), wait_all)
        dist.barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=60), wait_all_ranks=True)  # as on Gloo
    if rank == 0:
        with pytest.raises(RuntimeError, match="Rank 0 timed out in monitoredBarrier"):
            dist.monitored_barrier(timeout=timedelta(seconds=0))
        with pytest.raises(TypeError, match="datetime.timedelta"):
            dist.monitored_barrier(timeout="soon")
    dist.barrier()


@ranks(N)
def test_threads(rank, n):
    groups = [dist.new_group() for _ in range(3)]
    results = [None] * 3

    def use(i):
        value = torch.ones(5000)
        for _ in range(50):
            dist.all_reduce(value, group=groups[i])
            value.div_(n)
        results[i] = value[0].item()

    threads = [threading.Thread(target=use, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [1.0] * 3


def train(rank, n):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 10))
    replica = torch.nn.parallel.DistributedDataParallel(model)
    assert replica._get_ddp_logging_data()["backend_name"] == dist.get_backend()
    optimizer = torch.optim.SGD(replica.parameters(), 0.1)
    torch.manual_seed(rank)
    losses = []
    for _ in range(5):
        data = torch.randn(32, 64)
        loss = torch.nn.functional.cross_entropy(replica(data), data[:, :10].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_ddp_as_on_gloo():
    """Two ranks: a sum of two has one order, so that the losses are equal to the bit."""
    assert run_ranks(train, 2) == run_ranks(train, 2, backend="gloo")


PROGRAM = """
import os, sys, torch, torch.distributed as dist, shoal.torch
for turn in range(2):
    dist.init_process_group("shoal")
    value = torch.ones(3)
    dist.all_reduce(value)
    assert value[0] == dist.get_world_size()
    if turn == 0:
        dist.destroy_process_group()
pending = [dist.all_reduce(torch.ones(100000), async_op=True).get_future().then(lambda f: 0) for _ in range(20)]
print("rank", dist.get_rank(), "ends without destroy_process_group", flush=True)
"""


@pytest.mark.parametrize("debug", ["OFF", "DETAIL"])
def test_under_torchrun(debug, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "TORCH_DISTRIBUTED_DEBUG": debug, "OMP_NUM_THREADS": "1"}
    # On Python 3.11 torchrun of torch 1.13 fails without the options of its second line.
    completed = os.path.join(os.path.dirname(__file__), "torch_completed.py")
    torchrun = [sys.executable, completed, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
                "--redirects", "1", "--tee", "1", "--log_dir", str(tmp_path)]  # fmt: skip
    answer = subprocess.run([*torchrun, completed, str(program)], env=environment, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("ends without") == 2
    assert "terminate called" not in answer.stderr
