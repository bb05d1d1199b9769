# SPDX-License-Identifier: MIT
"""What only torch 2 has: FSDP2, DTensor, functional collectives, torch.compile, split groups, abort, memory of a backend."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from torch_ranks import killed, run_ranks

pytestmark = pytest.mark.skipif(int(torch.__version__.split(".")[0]) < 2, reason="needs torch 2")
N = 3


def make_model(seed=0, width=33):
    torch.manual_seed(seed)
    layers = [torch.nn.Sequential(torch.nn.Linear(width, 17), torch.nn.GELU(), torch.nn.Linear(17, width)) for _ in range(3)]
    return torch.nn.Sequential(*layers)


def make_batch(step, rank):
    return torch.randn(4, 33, generator=torch.Generator().manual_seed(100 * step + rank))


def shard(model, group, **options):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in [*model, model]:
        fully_shard(layer, mesh=mesh, **options)
    return model


def train(model, rank, n_steps=3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(n_steps):
        loss = model(make_batch(step, rank)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, {name: value.full_tensor() for name, value in model.state_dict().items()}


# FSDP2 ---------------------------------------------------------------------------------------------------------------


def fsdp_on_both(rank, n, options):
    gloo, found = dist.new_group(backend="gloo"), []
    for group in (gloo, dist.group.WORLD):
        found.append(train(shard(make_model(), group, **options), rank))
    (losses_there, state_there), (losses, state) = found
    assert all(abs(a - b) < 1e-5 for a, b in zip(losses, losses_there)), (losses, losses_there)
    for name, value in state.items():
        assert torch.allclose(value, state_there[name], rtol=1e-4, atol=1e-5), name
    again = train(shard(make_model(), dist.group.WORLD, **options), rank)
    assert again[0] == losses and all(torch.equal(again[1][name], value) for name, value in state.items())
    return losses[-1]


@pytest.mark.parametrize("options", [{}, {"reshard_after_forward": False}], ids=["reshard", "keep"])
def test_fsdp2_as_on_gloo(options):
    run_ranks(fsdp_on_both, N, options)


def fsdp_mixed(rank, n):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    losses, state = train(shard(make_model(), dist.group.WORLD, mp_policy=policy), rank)
    assert all(value.dtype == torch.float32 for value in state.values())
    plain = make_model()
    assert abs(losses[0] - plain(make_batch(0, rank)).square().mean().item()) < 0.05


def test_fsdp2_in_mixed_precision():
    run_ranks(fsdp_mixed, N)


def fsdp_own_memory(rank, n):
    """FSDP2 takes its buffers from the backend: symmetric memory, with the bits of ordinary memory."""
    expected = train(shard(make_model(), dist.group.WORLD), rank)
    model = shard(make_model(), dist.group.WORLD)
    if not hasattr(model, "set_allocate_memory_from_process_group_for_comm"):
        return
    model.set_allocate_memory_from_process_group_for_comm(True)
    found = train(model, rank)
    assert found[0] == expected[0]
    assert all(torch.equal(found[1][name], value) for name, value in expected[1].items())


def test_fsdp2_with_memory_of_the_backend():
    run_ranks(fsdp_own_memory, N)


def hsdp(rank, n):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = make_model()
    for layer in [*model, model]:
        fully_shard(layer, mesh=mesh)
    losses, state = train(model, rank)
    expected_losses, expected = train(shard(make_model(), dist.group.WORLD), rank)
    assert all(abs(a - b) < 1e-5 for a, b in zip(losses, expected_losses))
    assert all(torch.allclose(state[name], value, rtol=1e-4, atol=1e-5) for name, value in expected.items())


def test_hsdp():
    run_ranks(hsdp, 4)


def die_in_backward(rank, n):
    model = shard(make_model(), dist.group.WORLD)
    train(model, rank, 1)
    if rank == 1:
        model[1].register_full_backward_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    begin = time.monotonic()
    try:
        for step in range(20):
            model(make_batch(step, rank)).square().mean().backward()
    except dist.DistBackendError as error:
        return str(error), time.monotonic() - begin
    return None


def test_a_rank_that_is_killed_in_the_backward_pass_of_fsdp2():
    found = run_ranks(die_in_backward, N)
    assert found[1] == killed()
    for answer in (found[0], found[2]):
        assert answer is not None and "rank 1" in answer[0], found
        print(f"told after {answer[1]:.3f} s")


# DTensor and functional collectives ----------------------------------------------------------------------------------


def dtensor(rank, n):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (n,))
    a, b = (torch.randn(7, 7, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    for place_a in (Shard(0), Shard(1), Replicate()):
        for place_b in (Shard(0), Shard(1), Replicate()):
            product = distribute_tensor(a, mesh, [place_a]) @ distribute_tensor(b, mesh, [place_b])
            assert torch.allclose(product.full_tensor(), a @ b, atol=1e-5), (place_a, place_b)
            moved = distribute_tensor(a, mesh, [place_a]).redistribute(mesh, [place_b])
            assert torch.equal(moved.full_tensor(), a), (place_a, place_b)


def test_dtensor():
    run_ranks(dtensor, N)


def functional(rank, n):
    import torch.distributed._functional_collectives as functional

    x = torch.arange(6.0).reshape(3, 2) + rank
    total = functional.all_reduce(x, "sum", dist.group.WORLD)
    assert torch.equal(total + 0, 3 * torch.arange(6.0).reshape(3, 2) + 3)
    whole = functional.all_gather_tensor(x, 0, dist.group.WORLD)
    assert torch.equal(whole + 0, torch.cat([torch.arange(6.0).reshape(3, 2) + peer for peer in range(n)]))
    part = functional.reduce_scatter_tensor(x, "avg", 0, dist.group.WORLD)
    assert torch.equal(part + 0, torch.arange(6.0).reshape(3, 2)[rank : rank + 1] + 1)
    many = functional.all_reduce_coalesced([x, x.double()], "sum", dist.group.WORLD)
    assert torch.equal(many[0] + 0, total + 0) and torch.equal(many[1] + 0, total.double() + 0)
    gathered = functional.all_gather_into_tensor_coalesced([x, x.int()], dist.group.WORLD)
    assert torch.equal(gathered[0] + 0, whole + 0) and torch.equal(gathered[1] + 0, whole.int() + 0)
    parts = functional.reduce_scatter_tensor_coalesced([x, 2 * x], "sum", [0, 0], dist.group.WORLD)
    assert torch.equal(parts[1] + 0, 2 * (parts[0] + 0))
    moved = functional.all_to_all_single(x, [1] * n, [1] * n, dist.group.WORLD)
    assert torch.equal(moved + 0, torch.stack([torch.arange(6.0).reshape(3, 2)[rank] + peer for peer in range(n)]))
    root = functional.broadcast(x, 1, dist.group.WORLD)
    assert torch.equal(root + 0, torch.arange(6.0).reshape(3, 2) + 1)


def test_functional_collectives():
    run_ranks(functional, N)


def compiled(rank, n):
    import torch.distributed._functional_collectives as functional

    weight = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))

    def step(x):
        y = functional.all_reduce(torch.relu(x @ weight), "sum", dist.group.WORLD)
        z = functional.all_gather_tensor(y * 2 + 1, 0, dist.group.WORLD)
        return functional.reduce_scatter_tensor(z.sin(), "sum", 0, dist.group.WORLD) + 1

    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(rank + 1))
    expected = step(x) + 0
    found = torch.compile(step, backend="inductor", fullgraph=True)(x)
    assert torch.allclose(found, expected, atol=1e-4)


def test_a_step_compiled_by_inductor():
    run_ranks(compiled, 2)


# Groups --------------------------------------------------------------------------------------------------------------


def split(rank, n):
    part = dist.group.WORLD.split_group([0, 1] if rank < 2 else [2, 3], group_name=f"half {rank // 2}")
    value = torch.full((5,), float(rank))
    part.allreduce([value]).wait()
    assert value[0].item() == (1.0 if rank < 2 else 5.0)


# dist.split_group itself insists on an accelerator.
@pytest.mark.skipif(not hasattr(dist.ProcessGroup, "split_group"), reason="this torch has no ProcessGroup.split_group")
def test_split_groups():
    run_ranks(split, 4)


def groups_of_members(rank, n):
    ranks = [0, 2] if rank in (0, 2) else [1]
    group = dist.new_group(ranks, use_local_synchronization=True)
    value = torch.ones(3)
    dist.all_reduce(value, group=group)
    assert value[0].item() == len(ranks)


def test_groups_that_only_their_members_make():
    run_ranks(groups_of_members, N)


def coalesce(rank, n):
    tensors = [torch.full((size,), float(rank + 1)) for size in (1, 5, 1000)]
    with dist._coalescing_manager(group=dist.group.WORLD, async_ops=True) as works:
        for tensor in tensors:
            dist.all_reduce(tensor)
    works.wait()
    assert all((tensor == 6).all() for tensor in tensors)
    outputs = [torch.empty(n * 4), torch.empty(n * 2)]
    with dist._coalescing_manager(group=dist.group.WORLD):
        for output, size in zip(outputs, (4, 2)):
            dist.all_gather_into_tensor(output, torch.full((size,), float(rank)))
    assert outputs[0][4 * rank] == rank and outputs[1][-1] == n - 1
    right, left = (rank + 1) % n, (rank - 1) % n
    got = torch.empty(3)
    operations = [dist.P2POp(dist.isend, torch.full((3,), float(rank)), right), dist.P2POp(dist.irecv, got, left)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert (got == left).all()


def test_coalesced_calls():
    run_ranks(coalesce, N)


def abort(rank, n):
    group = dist.new_group(list(range(n)))
    value = torch.ones(4)
    dist.all_reduce(value, group=group)
    pending = dist.all_reduce(value, group=group, async_op=True) if rank else None
    if rank == 0:
        time.sleep(0.2)
        group._get_backend(torch.device("cpu")).abort()
    begin = time.monotonic()
    if pending is not None:
        with pytest.raises(dist.DistBackendError, match="abort"):
            pending.wait()
    with pytest.raises(dist.DistBackendError, match="abort"):
        dist.all_reduce(value, group=group)
    assert time.monotonic() - begin < 30
    dist.all_reduce(value)


def test_an_aborted_group_fails_on_every_rank_and_others_go_on():
    run_ranks(abort, N)


def shut_down(rank, n):
    group = dist.new_group(list(range(n)))
    dist.all_reduce(torch.ones(4), group=group)
    group._get_backend(torch.device("cpu")).shutdown()
    value = torch.ones(4)
    dist.all_reduce(value)
    assert value[0] == n


def test_a_group_that_is_shut_down():
    run_ranks(shut_down, N)


def eight_bits(rank, n):
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        mine = (torch.arange(16.0) + rank).to(dtype)
        whole = torch.empty(n * 16, dtype=dtype)
        dist.all_gather_into_tensor(whole, mine)
        expected = torch.cat([(torch.arange(16.0) + peer).to(dtype) for peer in range(n)])
        assert torch.equal(whole.view(torch.uint8), expected.view(torch.uint8))


def test_floats_of_eight_bits_are_moved():
    run_ranks(eight_bits, N)
