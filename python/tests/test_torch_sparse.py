# SPDX-License-Identifier: MIT
"""all_reduce of sparse tensors, and DDP with sparse gradients."""

import pytest
import torch
import torch.distributed as dist
from torch_ranks import run_ranks

N = 3


def make_sparse(seed, n_values, dtype=torch.float32, shape=(7, 4), n_sparse=1):
    generator = torch.Generator().manual_seed(seed)
    indices = torch.stack([torch.randint(size, (n_values,), generator=generator) for size in shape[:n_sparse]])
    values = torch.randn(n_values, *shape[n_sparse:], generator=generator).mul(8).to(dtype)
    return torch.sparse_coo_tensor(indices, values, shape)


def fold(parts):
    total = parts[0].to_dense()
    for part in parts[1:]:
        total = total + part.to_dense()
    return total


def sums(rank, n):
    for dtype in (torch.float32, torch.float64, torch.int64):
        for shape, n_sparse in (((7, 4), 1), ((5, 6), 2), ((4, 3, 2), 1), ((6,), 1)):
            for counts in ([3, 3, 3], [0, 5, 1], [0, 0, 0], [20, 0, 2]):
                parts = [make_sparse(10 * peer + 1, counts[peer], dtype, shape, n_sparse) for peer in range(n)]
                for is_async in (False, True):
                    got = parts[rank].clone()
                    work = dist.all_reduce(got, async_op=is_async)
                    if is_async:
                        work.wait()
                    assert got.is_sparse and torch.equal(got.to_dense(), fold([part.coalesce() for part in parts]))
    dist.barrier()


def test_sums_of_sparse_tensors():
    run_ranks(sums, N)


def one_rank(rank, n):
    got = make_sparse(3, 4)
    expected = got.to_dense()
    dist.all_reduce(got)
    assert torch.equal(got.to_dense(), expected)


def test_one_rank():
    run_ranks(one_rank, 1)


def differing(rank, n):
    """Shapes, dtypes, numbers of dimensions: an error on every rank, and the group goes on unless calls differ."""
    for odd in (make_sparse(1, 2, shape=(8, 4)), make_sparse(1, 2, torch.float64), make_sparse(1, 2, n_sparse=2)):
        with pytest.raises(RuntimeError, match="sparse tensors of all_reduce differ: rank 0 .*rank 1 "):
            dist.all_reduce(odd if rank == 1 else make_sparse(1, 2))
        dist.barrier()
    with pytest.raises((RuntimeError, NotImplementedError), match="can only sum"):
        dist.all_reduce(make_sparse(1, 2), op=dist.ReduceOp.MAX)
    part = dist.new_group()
    with pytest.raises(RuntimeError, match="all_reduce"):
        dist.all_reduce(torch.ones(4) if rank == 1 else make_sparse(1, 2), group=part)
    dist.barrier()


def test_a_rank_whose_tensor_differs():
    run_ranks(differing, N)


def embedding(rank, n, backend):
    group = dist.new_group(backend=backend)
    torch.manual_seed(0)
    table = torch.nn.Embedding(20, 3, sparse=True)
    model = torch.nn.parallel.DistributedDataParallel(table, process_group=group)
    model(torch.tensor([rank, rank + 1, 5])).sum().backward()
    return table.weight.grad.to_dense().tolist()


def test_ddp_with_sparse_gradients():
    ours = run_ranks(embedding, 2, "shoal")
    assert ours == run_ranks(embedding, 2, "gloo") and ours[0][5][0] == 1
