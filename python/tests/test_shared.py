# SPDX-License-Identifier: MIT
"""Symmetric memory, windows and meshes."""

import gc

import pytest
import shoal

numpy = pytest.importorskip("numpy")
TIMEOUT = 60.0


def test_symmetric_memory():
    def ranks(world):
        group, rank = world.group, world.rank
        memory = group.symmetric(4096)
        mine = numpy.frombuffer(memory.buffer, dtype="f4")
        mine[:] = rank + 1
        group.barrier()
        peers = [numpy.frombuffer(memory.peer(other), dtype="f4")[5] for other in range(group.n_ranks)]
        group.barrier()
        group.all_reduce(mine)
        with pytest.raises(ValueError, match="3"):
            memory.peer(3)
        with pytest.raises(BufferError, match="arrays still use the symmetric memory"):
            memory.free()
        with pytest.raises(BufferError, match="1 blocks of shared memory"):
            world.close()
        found = float(mine[1000])
        del mine
        memory.free()
        memory.free()
        with pytest.raises(shoal.StateError, match="was freed"):
            memory.buffer
        return peers, found

    assert shoal.launch(ranks, 3, timeout=TIMEOUT) == [([1.0, 2.0, 3.0], 6.0)] * 3


def test_memory_that_grows():
    def ranks(world):
        memory = world.group.symmetric(100, reserve=1 << 20)
        memory.buffer[99] = 7
        memory.grow(1000)
        assert memory.size == 1000 and memory.buffer[99] == 7 and memory.buffer[999] == 0
        with pytest.raises(shoal.InvalidError):
            memory.grow(50)
        # Nobody frees it: the views go, then the memory, then the world.
        return True

    assert all(shoal.launch(ranks, 2, timeout=TIMEOUT))


def test_views_outlive_their_names():
    with shoal.World() as world:
        view = world.group.symmetric(64).buffer
        gc.collect()
        view[3] = 5
        assert view[3] == 5
        del view
        empty = world.group.symmetric(0)
        assert len(empty.buffer) == 0


def test_windows():
    def ranks(world):
        group, rank = world.group, world.rank
        window = group.window(4 * 3 * group.n_ranks)
        found = []
        for step in range(3):
            part = numpy.full(3, 10 * step + rank, dtype="f8")
            window.gather([(part, 12 * rank)], dtype="f32", label=step)
            whole = numpy.frombuffer(window.buffer, dtype="f4")
            assert not whole.flags.writeable
            found.append(whole[::3].tolist())
            del whole
            window.release()
        with pytest.raises(shoal.StateError):
            window.release()
        return found

    wanted = [[10.0 * step + rank for rank in range(2)] for step in range(3)]
    assert shoal.launch(ranks, 2, timeout=TIMEOUT) == [wanted] * 2


def test_meshes():
    def ranks(world):
        mesh = world.make_mesh((2, 2), ("dp", "tp"))
        assert mesh.shape == (2, 2) and mesh.names == ("dp", "tp") and mesh.ranks == (0, 1, 2, 3)
        assert mesh == world.make_mesh((2, 2), ("dp", "tp"))
        rows = mesh.group("dp").all_gather(numpy.array([world.rank])).ravel().tolist()
        columns = mesh["tp"].group().all_gather(numpy.array([world.rank])).ravel().tolist()
        assert mesh.flatten().shape == (4,)
        with pytest.raises(shoal.InvalidError, match="pp"):
            mesh["pp"]
        with pytest.raises(shoal.InvalidError, match="pp"):
            mesh.group("pp")
        return mesh.coordinate, rows, columns

    assert shoal.launch(ranks, 4, timeout=TIMEOUT) == [
        ((rank // 2, rank % 2), [rank % 2, rank % 2 + 2], [rank // 2 * 2, rank // 2 * 2 + 1]) for rank in range(4)
    ]


def test_wrong_meshes():
    with shoal.World() as world:
        with pytest.raises(ValueError, match="has 1 names"):
            world.make_mesh((1, 1), ("dp",))
        with pytest.raises(ValueError, match="has 1 ranks, not 2"):
            world.make_mesh((1,), None, (0, 1))
        with pytest.raises(shoal.InvalidError):
            world.make_mesh((2,))
        mesh = world.make_mesh((1,))
        assert mesh.names is None
    assert repr(mesh) == "<shoal.Mesh, closed>"
