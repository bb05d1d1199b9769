# SPDX-License-Identifier: MIT
"""Every collective of torch.distributed, on many dtypes and shapes, against Gloo or against what must come out."""

import pytest
import torch
import torch.distributed as dist
from torch_ranks import run_ranks

N = 3
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
SHAPES = [(5,), (3, 7), (40000,), (0,)]
HAS_INTO = hasattr(dist, "all_gather_into_tensor")
# Dtypes that Gloo lacks are reduced there in these.
AS = {torch.int16: torch.int32, torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.bool: torch.uint8}


def make(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.complex64 if dtype.is_complex else None).to(dtype)
    return torch.randint(0, 3, shape, generator=generator).to(dtype)


class Comparison:
    """Counts comparisons, and remembers those that fail."""

    def __init__(self):
        self.n = 0
        self.wrong = []

    def equal(self, name, got, expected):
        self.n += 1
        if got.shape != expected.shape or got.dtype != expected.dtype or not torch.equal(got, expected):
            self.wrong.append(name)

    def close(self, name, got, expected):
        if not (got.dtype.is_floating_point or got.dtype.is_complex):
            return self.equal(name, got, expected)
        self.n += 1
        wide = torch.complex128 if got.dtype.is_complex else torch.float64
        rtol, atol = (2e-2, 1e-1) if got.element_size() == 2 else (1e-5, 1e-5)
        if not torch.allclose(got.to(wide), expected.to(wide), rtol=rtol, atol=atol):
            self.wrong.append(name)


def reduce_on_gloo(tensor, gloo, op):
    if tensor.dtype.is_complex:
        return torch.view_as_complex(reduce_on_gloo(torch.view_as_real(tensor), gloo, op))
    there = tensor.to(AS.get(tensor.dtype, tensor.dtype), copy=True)
    dist.all_reduce(there, op=op, group=gloo)
    return there.to(tensor.dtype)


def operators_of(dtype):
    op = dist.ReduceOp
    if dtype == torch.bool or dtype.is_complex:
        return [op.SUM]
    return [op.SUM, op.MIN, op.MAX, op.PRODUCT] + ([] if dtype.is_floating_point else [op.BAND, op.BOR, op.BXOR])


def compare_reductions(rank, n):
    gloo, found = dist.new_group(backend="gloo"), Comparison()
    for dtype in [*FLOATS, *INTEGERS, torch.bool, torch.complex64]:
        for shape in SHAPES:
            for op in operators_of(dtype):
                name = f"{op} {dtype} {shape}"
                mine = make(shape, dtype, rank * 7 + 1)
                expected = reduce_on_gloo(mine, gloo, op)
                got = mine.clone()
                dist.all_reduce(got, op=op)
                found.close("all_reduce " + name, got, expected)
                got = mine.clone()
                dist.reduce(got, 1, op=op)
                if rank == 1:
                    found.close("reduce " + name, got, expected)
                if dtype == torch.bool:
                    continue
                whole = torch.stack([make(shape, dtype, 100 * rank + to) for to in range(n)])
                expected = reduce_on_gloo(whole, gloo, op)[rank]
                got = torch.empty(shape, dtype=dtype)
                dist.reduce_scatter(got, list(whole.clone().unbind()), op=op)
                found.close("reduce_scatter " + name, got, expected)
                if HAS_INTO:
                    again = torch.empty(shape, dtype=dtype)
                    dist.reduce_scatter_tensor(again, whole.reshape((-1, *shape[1:])), op=op)
                    found.equal("reduce_scatter_tensor " + name, again, got)
    return found.n, found.wrong


def test_reductions():
    results = run_ranks(compare_reductions, N)
    assert [wrong for _, wrong in results] == [[]] * N
    assert min(n for n, _ in results) > 400


def compare_moves(rank, n):
    found = Comparison()
    for dtype in [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128]:
        for shape in SHAPES:
            name = f"{dtype} {shape}"
            all_of = [make(shape, dtype, peer * 7 + 1) for peer in range(n)]
            mine = all_of[rank].clone()
            got = mine.clone()
            dist.broadcast(got, n - 1)
            found.equal("broadcast " + name, got, all_of[n - 1])
            parts = [torch.empty_like(mine) for _ in range(n)]
            dist.all_gather(parts, mine)
            found.equal("all_gather " + name, torch.cat(parts), torch.cat(all_of))
            if HAS_INTO:
                whole = torch.empty((n * shape[0], *shape[1:]), dtype=dtype)
                dist.all_gather_into_tensor(whole, mine)
                found.equal("all_gather_into_tensor " + name, whole, torch.cat(all_of))
            parts = [torch.empty_like(mine) for _ in range(n)] if rank == 1 else None
            dist.gather(mine, parts, dst=1)
            if rank == 1:
                found.equal("gather " + name, torch.cat(parts), torch.cat(all_of))
            got = torch.empty_like(mine)
            dist.scatter(got, all_of if rank == 0 else None, src=0)
            found.equal("scatter " + name, got, mine)
            sent = [make(shape, dtype, 100 * rank + to) for to in range(n)]
            expected = torch.cat([make(shape, dtype, 100 * source + rank) for source in range(n)])
            got = torch.empty_like(expected)
            dist.all_to_all_single(got, torch.cat(sent))
            found.equal("all_to_all_single " + name, got, expected)
            parts = [torch.empty_like(mine) for _ in range(n)]
            dist.all_to_all(parts, sent)
            found.equal("all_to_all " + name, torch.cat(parts), expected)
    return found.n, found.wrong


def test_moves():
    results = run_ranks(compare_moves, N)
    assert [wrong for _, wrong in results] == [[]] * N
    assert min(n for n, _ in results) > 250


def compare_shapes(rank, n):
    gloo, found = dist.new_group(backend="gloo"), Comparison()
    strided = make((40, 30), torch.float32, rank).t()
    expected = reduce_on_gloo(strided, gloo, dist.ReduceOp.SUM)
    dist.all_reduce(strided)
    found.close("all_reduce of a transposed tensor", strided, expected)
    column = torch.full((6, 4), -1.0)[:, 1]
    dist.broadcast(column if rank else column.copy_(torch.arange(6.0)), 0)
    found.equal("broadcast of a column", column.clone(), torch.arange(6.0))
    parts = [torch.empty(peer + 1) for peer in range(n)]
    dist.all_gather(parts, torch.full((rank + 1,), float(rank)))
    found.equal("all_gather of several sizes", torch.cat(parts),
                torch.cat([torch.full((peer + 1,), float(peer)) for peer in range(n)]))  # fmt: skip
    got = torch.empty((rank + 1) * n, 2)
    dist.all_to_all_single(got, torch.full((sum(range(n + 1)), 2), float(rank)), [rank + 1] * n,
                           [peer + 1 for peer in range(n)])  # fmt: skip
    found.equal("all_to_all_single of several sizes", got,
                torch.cat([torch.full((rank + 1, 2), float(peer)) for peer in range(n)]))  # fmt: skip
    got = torch.empty(rank + 1)
    dist.reduce_scatter(got, [torch.ones(peer + 1) for peer in range(n)])
    found.equal("reduce_scatter of several sizes", got, torch.full((rank + 1,), float(n)))
    mine = make((1000,), torch.float32, rank)
    expected = reduce_on_gloo(mine, gloo, dist.ReduceOp.SUM)
    got = mine.clone()
    dist.all_reduce(got, op=dist.ReduceOp.AVG)
    found.close("average", got, expected / n)
    got = mine.clone()
    dist.all_reduce(got, op=dist._make_nccl_premul_sum(0.5))
    found.close("factor", got, expected * 0.5)
    lists = [[torch.empty(2, dtype=torch.int64), torch.empty(3, dtype=torch.int64)] for _ in range(n)]
    dist.all_gather_coalesced(lists, [torch.full((2,), rank), torch.full((3,), rank)])
    found.equal("all_gather_coalesced", torch.cat([part[1] for part in lists]), torch.arange(n).repeat_interleave(3))
    listed = [torch.full((size,), rank) for size in (2, 3, 4)]
    dist.all_reduce_coalesced(listed)
    found.equal("all_reduce_coalesced", torch.cat(listed), torch.full((9,), sum(range(n))))
    objects = [None] * n
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert objects == [{"rank": peer, "text": "x" * peer} for peer in range(n)]
    return found.wrong


@pytest.mark.filterwarnings("ignore")
def test_shapes_lists_and_factors():
    assert run_ranks(compare_shapes, N) == [[]] * N


def compare_bits(rank, n):
    mine = make((100000,), torch.float32, rank)
    parts = [torch.empty_like(mine) for _ in range(n)]
    dist.all_gather(parts, mine)
    expected = parts[0]
    for part in parts[1:]:
        expected = expected + part
    dist.all_reduce(mine)
    return torch.equal(mine, expected)


def test_sums_are_in_rank_order():
    assert run_ranks(compare_bits, 4) == [True] * 4


def refuse(rank, n):
    texts = []
    for call in (
        lambda: dist.all_reduce(torch.zeros(3).to_sparse(), op=dist.ReduceOp.MAX),
        lambda: dist.all_gather([torch.empty(2)] * n, torch.empty(3)),
        lambda: dist.all_gather([torch.empty(3)] * (n + 1), torch.empty(3)),
        lambda: dist.all_to_all_single(torch.empty(n), torch.empty(n), [1] * n, [2] * n),
        lambda: dist.all_reduce(torch.zeros(3), op=dist.ReduceOp.BAND),
    ):
        with pytest.raises((RuntimeError, ValueError)) as caught:
            call()
        texts.append(str(caught.value).splitlines()[0])
    dist.barrier()  # nothing was started
    return texts


def test_what_is_refused_before_anything_starts():
    for texts in run_ranks(refuse, 2):
        for text, part in zip(texts, ("can only sum", "this rank's part", "3 tensors for 2 ranks", "sum up", "f32")):
            assert part in text, texts
