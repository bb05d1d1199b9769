# SPDX-License-Identifier: MIT
"""Works: waiting, awaiting, dropping, and what happens to buffers, signals and forks meanwhile."""

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import shoal
from shoal import works

numpy = pytest.importorskip("numpy")
TIMEOUT = 60.0


def run_script(text, **environment):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], env={**os.environ, **environment}, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip


def test_wait_gives_the_result_every_time():
    with shoal.World() as world:
        data = numpy.ones(3)
        work = world.group.all_reduce_start(data)
        assert work.wait() is data and work.wait() is data and work.done()
        assert repr(work) == "<shoal.Work done>"


def test_a_wait_that_is_too_short_is_no_failure():
    def ranks(world):
        if world.rank == 0:
            work = world.group.barrier_start()
            with pytest.raises(shoal.TimeoutError):
                work.wait(0.05)
            assert not work.done()
            world.store.set("go", b"1")
            work.wait()
        else:
            world.store.get("go")
            world.group.barrier()
        world.group.check()
        return True

    assert all(shoal.launch(ranks, 2, timeout=TIMEOUT))


def test_dropped_works_keep_their_buffers():
    def ranks(world):
        if world.rank == 0:
            alive = []
            for i in range(20):
                data = numpy.full(1000, float(i))
                alive.append(world.group.all_reduce_start(data))
                if i % 2 == 0:
                    alive.pop()
            del data
            gc.collect()
            assert len(works._dropped) == 10
            world.store.set("go", b"1")
            found = [work.wait()[0] for work in alive]
        else:
            world.store.get("go")
            found = [world.group.all_reduce(numpy.full(1000, float(i)))[0] for i in range(20)][1::2]
        world.group.barrier()
        works.sweep()
        assert not works._dropped
        return found

    left, right = shoal.launch(ranks, 2, timeout=TIMEOUT)
    assert left == right == [2.0 * i for i in range(1, 20, 2)]


def test_a_work_that_is_collected_while_others_are_swept(monkeypatch):
    works.sweep()
    with shoal.World() as world:
        monkeypatch.setattr(works, "_work_test", lambda handle: gc.collect() < 0)
        gc.disable()
        try:
            world.group.recv_start(numpy.zeros(1), 0, 5)
            cycle = [world.group.recv_start(numpy.zeros(1), 0, 5)]
            cycle.append(cycle)
            del cycle
            assert len(works._dropped) == 1
            works.sweep()
            assert len(works._dropped) == 2
        finally:
            gc.enable()
        monkeypatch.undo()
    works.sweep()
    assert not works._dropped and not works._flights


def test_a_child_of_fork_exits_at_once():
    def ranks(world):
        async def use():
            waiting = asyncio.ensure_future(wait(world.group.recv_start(numpy.zeros(1), 0, 5)))
            await asyncio.sleep(0)
            world.group.recv_start(numpy.zeros(1), 0, 6)
            child = os.fork()
            if child == 0:
                os._exit(0 if not works._waiting and not works._dropped else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert len(works._waiting) == 1 and len(works._dropped) == 1
            for tag in (5, 6):
                world.group.send(numpy.zeros(1), 0, tag)
            await waiting

        async def wait(work):
            await work

        asyncio.run(use())
        return True

    assert shoal.launch(ranks, 1, timeout=TIMEOUT) == [True]


def test_await():
    async def use(world):
        started = [world.group.all_reduce_start(numpy.full(100, float(i + world.rank))) for i in range(8)]
        beats = 0

        async def beat():
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0.001)

        heart = asyncio.create_task(beat())
        if world.rank == 1:
            await asyncio.sleep(0.1)
        found = [float((await work)[0]) for work in started]
        last = world.group.barrier_start()
        if world.rank == 0:
            await asyncio.sleep(0.05)
        assert await last is None
        heart.cancel()
        assert beats > 1 and works.wait_for_callbacks(TIMEOUT)  # the callback of the last may not have returned
        return found

    for found in shoal.launch(lambda world: asyncio.run(use(world)), 2, timeout=TIMEOUT):
        assert found == [2.0 * i + 1 for i in range(8)]


def test_await_of_a_failure():
    async def use(world):
        with pytest.raises(shoal.MismatchError):
            await world.group.all_reduce_start(numpy.zeros(3 + world.rank))
        return True

    assert all(shoal.launch(lambda world: asyncio.run(use(world)), 2, timeout=TIMEOUT))


def test_another_thread_computes_meanwhile():
    def ranks(world):
        if world.rank == 1:
            world.store.get("computed")
            world.group.barrier()
            return 0
        counted = 0
        waiter = threading.Thread(target=world.group.barrier)
        waiter.start()
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            counted += 1
        world.store.set("computed", b"1")
        waiter.join()
        return counted

    assert shoal.launch(ranks, 2, timeout=TIMEOUT)[0] > 0


def test_a_child_of_fork_has_worlds_of_its_own():
    def ranks(world):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with shoal.World() as own:
                    assert own.n_ranks == 1
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        world.group.barrier()
        return True

    assert all(shoal.launch(ranks, 2, timeout=TIMEOUT))


def test_exit_with_works_that_are_awaited():
    """Two ranks exit with works that nobody will complete, and callbacks pending."""
    text = """
        import asyncio, sys, numpy, shoal
        async def use(group):
            works = [group.recv_start(numpy.zeros(2), 1 - group.rank, tag) for tag in range(100)]
            waiting = [asyncio.ensure_future(wait(work)) for work in works]
            await asyncio.sleep(0.01)
            group.barrier()  # a rank that has closed its world ends what others start
        async def wait(work):
            await work
        world = shoal.World(timeout=60)
        asyncio.run(use(world.group))
        print("ends")
    """
    tool = os.environ.get("SHOAL_TOOL", "shoal")
    for _ in range(3):
        ended = subprocess.run(
            [tool, "run", "--no-label", "-n", "2", sys.executable, "-c", textwrap.dedent(text)], capture_output=True,
            text=True, timeout=120,
        )  # fmt: skip
        assert (ended.returncode, ended.stdout) == (0, "ends\nends\n"), ended.stderr


def test_a_world_that_is_dropped_is_closed():
    ended = run_script(
        """
        import shoal, warnings
        warnings.simplefilter("error")
        world = shoal.World()
        group = world.group
        del world
        group.barrier()
        print(group.world)
        group.world.close()
        group.world.close()
        print(group)
        try:
            group.barrier()
        except shoal.StateError as error:
            print(error)
        """
    )
    assert ended.stdout.splitlines() == ["<shoal.World: rank 0 of 1>", "<shoal.Group, closed>", "the world was closed"]
    assert ended.stderr == ""
