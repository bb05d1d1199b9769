# SPDX-License-Identifier: MIT
"""torch.profiler shows the operations of the backend, as it shows those of Gloo."""

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
from torch_ranks import run_ranks

N = 2


def use_all(rank, n):
    """Operations that Gloo records, too, in torch 1.13 as in torch 2."""
    tensor = torch.ones(3, 4)
    parts = [torch.empty(3, 4) for _ in range(n)]
    dist.broadcast(tensor, 0)
    dist.all_reduce(tensor)
    dist.reduce(tensor, 0)
    dist.all_gather(parts, tensor)
    dist.gather(tensor, parts if rank == 0 else None)
    dist.scatter(tensor, parts if rank == 0 else None)
    dist.all_to_all_single(torch.empty(4, 2), torch.ones(4, 2))
    dist.barrier()
    if rank == 0:
        dist.send(torch.ones(5), 1)
    else:
        dist.recv(torch.empty(5), 0)


def record(function, rank, n):
    """What a profile has of this process: (name without that of the backend, shapes of the inputs), and raw events."""
    backend = dist.get_backend()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        function(rank, n)
        dist.barrier()
    events = [event for event in recorded.events() if event.name.startswith(f"{backend}:")]
    return [(event.name.split(":")[1], event.input_shapes, event.is_async) for event in events]


def names_and_shapes(rank, n):
    return sorted((name, shapes) for name, shapes, _ in record(use_all, rank, n))


def test_names_and_shapes_are_those_of_gloo():
    ours = run_ranks(names_and_shapes, N)
    assert ours == run_ranks(names_and_shapes, N, backend="gloo")
    assert ("all_reduce", [[3, 4]]) in ours[0] and ("send", [[5]]) in ours[0] and ("recv", [[5]]) in ours[1]


def use_others(rank, n):
    tensor = torch.ones(2, 3)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    dist.reduce_scatter(torch.empty(3), [torch.ones(3) for _ in range(n)])
    parts = [torch.empty(3) for _ in range(n)]
    dist.all_to_all(parts, [torch.ones(3) for _ in range(n)])
    if rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor)
    dist.all_reduce(torch.ones(6, 6).t()[::2])  # not contiguous


def test_what_gloo_does_not_have():
    expected = {
        ("all_reduce", ((2, 3),)), ("reduce_scatter", ((3,), (3,))), ("all_to_all", ((3,), (3,))),
        ("all_reduce", ((3, 6),)), ("barrier", ()),
    }  # fmt: skip
    messages = [("send", ((2, 3),)), ("recv_any_source", ((2, 3),))]
    for rank, events in enumerate(run_ranks(record_others, N)):
        found = {(name, tuple(map(tuple, shapes))) for name, shapes, _ in events}
        assert found == expected | {messages[rank]}
        assert ("all_reduce", [[2, 3]], True) in events


def record_others(rank, n):
    return record(use_others, rank, n)


def fail(rank, n):
    """An operation that fails ends in a profile as well, and one that nobody waits for does."""
    dist.all_reduce(torch.ones(7), async_op=True)
    group = dist.new_group()
    try:
        dist.all_reduce(torch.ones(3 + rank), group=group)
    except RuntimeError:
        pass


def record_failures(rank, n):
    return record(fail, rank, n)


def test_operations_that_fail_are_recorded():
    for rank, events in enumerate(run_ranks(record_failures, N)):
        assert ("all_reduce", [[3 + rank]]) in [event[:2] for event in events]
        assert ("all_reduce", [[7]]) in [event[:2] for event in events]
