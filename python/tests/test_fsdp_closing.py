# SPDX-License-Identifier: MIT
"""Contexts of FSDP that are closed, or whose world is, while they are used."""

import threading
import time

import pytest
import shoal
from shoal import _fsdp_context, checkpoints

pytest.importorskip("numpy")
from test_fsdp import TIMEOUT, step, whole  # noqa: E402


def test_a_world_that_another_thread_closes():
    def ranks(world):
        fsdp = shoal.Fsdp(world.group)
        unit = fsdp.add_unit({"w": whole(4, 3)})
        said = []

        def wait():
            try:
                unit.pre_forward()
            except shoal.Error as error:
                said.append(type(error).__name__)

        if world.rank == 0:  # the other rank never comes
            thread = threading.Thread(target=wait)
            thread.start()
            while not world.group._uses.has_others():
                time.sleep(0.001)
            world.close()
            thread.join()
        return said

    assert shoal.launch(ranks, 2, timeout=TIMEOUT)[0] in (["CancelledError"], ["PeerError"])


def test_a_hook_cannot_close_its_context():
    with shoal.World() as world:
        fsdp = shoal.Fsdp(world.group)
        unit = fsdp.add_unit({"w": whole(4, 3)})
        fsdp.set_accumulated_hook(lambda param, shard, grad: fsdp.close())
        with pytest.raises(shoal.StateError, match="cannot be closed by a function that it calls"):
            step(fsdp, unit, 0)
        fsdp.close()


def close_when_possible(fsdp):
    while repr(fsdp) != "<shoal.Fsdp, closed>":
        try:
            fsdp.close()
        except BufferError:
            pass


def test_a_context_that_another_thread_closes():
    """It waits for calls, and calls that come later raise."""
    with shoal.World() as world:
        for _ in range(50):
            fsdp = shoal.Fsdp(world.group)
            unit = fsdp.add_unit({"w": whole(4, 3)})
            closer = threading.Thread(target=close_when_possible, args=(fsdp,))
            closer.start()
            with pytest.raises(shoal.StateError, match="was closed"):
                while True:
                    step(fsdp, unit, 0)
                    fsdp.memory()
                    fsdp["w"].gather()
            closer.join()


def test_a_context_in_a_call_of_another_thread_is_not_freed(monkeypatch):
    monkeypatch.setattr(_fsdp_context, "_PATIENCE_S", 0.1)
    with shoal.World() as world:
        fsdp = shoal.Fsdp(world.group)
        unit = fsdp.add_unit({"w": whole(4, 3)})
        is_inside, may_go_on = threading.Event(), threading.Event()

        def hook(param, shard, grad):
            is_inside.set()
            may_go_on.wait()

        fsdp.set_accumulated_hook(hook)
        worker = threading.Thread(target=step, args=(fsdp, unit, 0))
        worker.start()
        is_inside.wait()
        with pytest.raises(shoal.StateError, match="another thread of this process is in a call on it"):
            fsdp.close()
        may_go_on.set()
        worker.join()
        assert fsdp["w"].grad[0, 0] == 1
        fsdp.close()


def test_a_save_that_several_threads_wait_for(tmp_path):
    """It is on the disk when any of them goes on."""
    with shoal.World() as world:
        for i in range(20):
            saving = shoal.save_start(world, tmp_path, {"w": whole(300, 300)}, step=i)
            found = []

            def wait(saving=saving, found=found):
                saving.wait()
                found.append(checkpoints.newest(tmp_path).step)

            workers = [threading.Thread(target=wait) for _ in range(2)]
            for worker in workers:
                worker.start()
            wait()
            for worker in workers:
                worker.join()
            assert found == [i] * 3
