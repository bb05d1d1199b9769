# SPDX-License-Identifier: MIT
"""Collectives on arrays, against what numpy says."""

import pytest
import shoal

numpy = pytest.importorskip("numpy")
TIMEOUT = 60.0


def on_ranks(n_ranks, function, *arguments):
    return shoal.launch(function, n_ranks, *arguments, timeout=TIMEOUT)


def values(rank, count, dtype="f4"):
    return (numpy.arange(count) * 3 % 7 + rank).astype(dtype)


def all_kinds(world):
    """Every collective once, in every form; the results are compared here, so that ranks send only their word."""
    group, n_ranks, rank = world.group, world.n_ranks, world.rank
    every = [values(r, 6) for r in range(n_ranks)]
    data = values(rank, 6)

    assert group.all_reduce(data) is data
    assert data.tolist() == sum(every).tolist()
    out = numpy.zeros(6, dtype="f4")
    assert group.all_reduce(values(rank, 6), out, op="max") is out
    assert out.tolist() == numpy.max(every, axis=0).tolist()
    assert group.all_reduce(values(rank, 6), factor=0.5).tolist() == (sum(every) * 0.5).tolist()
    assert group.all_reduce(values(rank, 6, "i4"), op="avg").tolist() == (sum(every).astype("i4") // n_ranks).tolist()

    root = n_ranks - 1
    reduced = group.reduce(values(rank, 6), root=root)
    assert reduced is None if rank != root else reduced.tolist() == sum(every).tolist()
    assert group.broadcast(values(rank, 6), root).tolist() == every[root].tolist()

    assert group.all_gather(values(rank, 6).reshape(2, 3)).shape == (n_ranks, 2, 3)
    assert group.all_gather(values(rank, 6)).tolist() == numpy.stack(every).tolist()
    counts = [r + 1 for r in range(n_ranks)]
    parts = numpy.concatenate([values(r, r + 1) for r in range(n_ranks)])
    assert group.all_gather(values(rank, rank + 1), counts=counts).tolist() == parts.tolist()

    long = [values(r, 2 * n_ranks) for r in range(n_ranks)]
    mine = group.reduce_scatter(values(rank, 2 * n_ranks))
    assert mine.tolist() == sum(long)[2 * rank : 2 * rank + 2].tolist()
    total = sum(counts)
    mine = group.reduce_scatter(values(rank, total), counts=counts)
    begin = sum(counts[:rank])
    assert mine.tolist() == sum(values(r, total) for r in range(n_ranks))[begin : begin + rank + 1].tolist()

    swapped = group.all_to_all(values(rank, 2 * n_ranks))
    assert swapped.tolist() == numpy.concatenate([block[2 * rank : 2 * rank + 2] for block in long]).tolist()
    sends = [rank + 1] * n_ranks
    swapped = group.all_to_all(values(rank, sum(sends)), send_counts=sends, recv_counts=counts)
    assert swapped.tolist() == numpy.concatenate(
        [values(r, (r + 1) * n_ranks)[rank * (r + 1) : (rank + 1) * (r + 1)] for r in range(n_ranks)]
    ).tolist()

    gathered = group.gather(values(rank, 6), root=root)
    assert gathered is None if rank != root else gathered.tolist() == numpy.stack(every).tolist()
    gathered = group.gather(values(rank, rank + 1), counts=counts)
    assert gathered is None if rank != 0 else gathered.tolist() == parts.tolist()
    out = numpy.zeros(2, dtype="f4")
    group.scatter(long[0] if rank == 0 else None, out)
    assert out.tolist() == long[0][2 * rank : 2 * rank + 2].tolist()
    out = numpy.zeros(rank + 1, dtype="f4")
    group.scatter(parts if rank == root else None, out, root, counts=counts)
    assert out.tolist() == values(rank, rank + 1).tolist()
    group.barrier()
    return True


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_all_kinds(n_ranks):
    assert all(on_ranks(n_ranks, all_kinds))


def messages(world):
    group = world.group
    rank = group.rank
    if rank == 0:
        sources = []
        for _ in range(2):
            out = numpy.zeros(4, dtype="i8")
            source = group.recv(out)
            assert out.tolist() == [source] * 4
            sources.append(source)
        group.send(numpy.arange(3.0), 1, tag=7)
        return sorted(sources)
    group.send(numpy.full(4, rank, dtype="i8"), 0)
    if rank == 1:
        out = numpy.zeros(3)
        assert group.recv(out, 0, 7) == 0
        return out.tolist()
    return None


def test_messages():
    assert on_ranks(3, messages) == [[1, 2], [0.0, 1.0, 2.0], None]


def other_groups(world):
    pair = world.make_group([2, 0], "pair") if world.rank != 1 else None
    if pair is None:
        return None
    assert world.make_group([2, 0], "pair") is pair
    found = pair.all_gather(numpy.array([world.rank])).ravel().tolist()
    name, ranks = pair.name, [pair.world_rank(i) for i in range(2)]
    pair.close()
    with pytest.raises(shoal.StateError, match="the group was closed"):
        pair.barrier()
    return name, ranks, found


def test_other_groups():
    assert on_ranks(3, other_groups) == [("2,0/pair", [2, 0], [2, 0]), None, ("2,0/pair", [2, 0], [2, 0])]


def wrong(world, function):
    function(world)


def test_ranks_that_differ():
    with pytest.raises(shoal.MismatchError) as caught:
        on_ranks(3, lambda world: world.group.all_reduce(numpy.zeros(3 + (world.rank == 1))))
    assert "count 4" in caught.value.text and 1 in caught.value.ranks
    assert caught.value.status == shoal.Status.ERR_MISMATCH
    with pytest.raises(shoal.InvalidError, match="rate"):
        on_ranks(2, lambda world: world.group.check_equal("rate", 0.5 + world.rank))


def test_deadlines():
    def late(world):
        if world.rank == 0:
            world.group.barrier(timeout=0.2)
        world.group.timeout = 1.0
        world.store.get("never", timeout=0.1)

    with pytest.raises(shoal.TimeoutError):
        on_ranks(2, late)


def test_store():
    def use(world):
        store = world.store
        if world.rank == 0:
            store.set("run", "lemon")
            assert store.compare_set("once", b"", b"1") and not store.compare_set("once", b"", b"2")
        assert store.get("run") == b"lemon"
        store.wait(["run", "once"])
        total = store.add("count", 1)
        world.group.barrier()
        assert store.exists("run", "count") and not store.exists("no")
        world.group.barrier()
        return total, store.delete("run")

    totals, deleted = zip(*on_ranks(3, use))
    assert sorted(totals) == [1, 2, 3] and sum(deleted) == 1
