# SPDX-License-Identifier: MIT
"""Closing in odd orders: under the garbage collector, with exceptions in flight, beside other threads, at exit."""

import asyncio
import gc
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
from array import array

import pytest
import shoal
from shoal import works, worlds

TIMEOUT = 60.0


def count():
    """What must not be left behind."""
    gc.collect()
    works.sweep()
    gc.collect()
    opened = sum(world.is_open for world in list(worlds._open))
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), len(works._flights), opened


def assert_nothing_left(before, *notes):
    """A thread of an earlier test may have ended meanwhile."""
    after = count()
    assert all(now <= then for now, then in zip(after, before)), (after, before, *notes)


def run_script(text, status=0):
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(text)], capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert ended.returncode == status, ended.stderr
    return ended


def wait_until(function):
    until = time.monotonic() + 30.0
    while not function() and time.monotonic() < until:
        time.sleep(0.005)
    assert function()


# Orders --------------------------------------------------------------------------------------------------------------


def make_objects():
    world = shoal.World()
    group = world.make_group([0], "one")
    memory, window = group.symmetric(64), world.group.window(64)
    return {
        "world": world, "group": group, "memory": memory, "window": window, "view": memory.buffer,
        "cast": memory.peer(0).cast("d"), "read": window.buffer, "mesh": world.make_mesh((1, 1), ("a", "b")),
        "mesh group": world.make_mesh((1,)).group(), "store": world.store,
        "pending": group.recv_start(array("d", [0.0]), 0, 5), "ended": group.all_reduce_start(memory.buffer.cast("f")),
        "in the window": window.gather_start([(array("f", [1.0]), 0)]),
    }  # fmt: skip


ENDS = {"world": "close", "group": "close", "memory": "free", "window": "free"}


def end_in_some_order(seed):
    draw = random.Random(seed)
    objects = make_objects()
    for name in draw.sample(sorted(objects), len(objects)):
        if name in ENDS and draw.random() < 0.6:
            try:
                getattr(objects[name], ENDS[name])()
            except (BufferError, shoal.Error):
                pass
        if draw.random() < 0.7:
            del objects[name]
        if draw.random() < 0.2:
            gc.collect()
    if draw.random() < 0.5:
        objects["self"] = objects
    if draw.random() < 0.5:
        raise KeyError(objects)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_every_order():
    with shoal.World():
        pass
    gc.collect()
    gc.freeze()  # the collector looks at what comes now, and is fast
    before = count()
    try:
        for seed in range(100):
            try:
                end_in_some_order(seed)
            except KeyError:
                pass
            assert_nothing_left(before, seed)
    finally:
        gc.unfreeze()


def test_an_exception_through_everything():
    def ranks(world):
        memory = world.group.symmetric(64)
        view = memory.buffer
        work = world.group.recv_start(view, 0, 5)
        raise KeyError("in flight", work.done())

    before = count()
    for _ in range(3):
        with pytest.raises(KeyError, match="in flight"):
            shoal.launch(ranks, 2, timeout=TIMEOUT)
    assert_nothing_left(before)


def test_garbage_does_not_keep_a_world_open():
    with shoal.World() as world:
        try:
            view = world.group.symmetric(64).buffer
            raise KeyError(view)
        except KeyError as error:
            error.args = (error,)
            del view
    assert not world.is_open


def test_a_rank_that_raises_with_views_closes_its_world():
    """The traceback has the view, so the world cannot be closed where the exception passes."""

    def ranks(world):
        view = world.group.symmetric(64).buffer
        if world.rank == 0:
            raise KeyError("in flight")
        del view
        with pytest.raises(shoal.PeerError, match="closed its world"):
            world.group.barrier()
        raise IndexError("the other rank has closed its world")

    with pytest.raises((KeyError, IndexError)):
        shoal.launch(ranks, 2, timeout=TIMEOUT)


def test_closed_groups_are_forgotten():
    with shoal.World() as world:
        for i in range(20):
            group = world.make_group([0], f"tag {i}")
            group.all_reduce(array("d", [1.0]))
            group.close() if i % 2 else group.abandon()
        assert len(world._groups) <= 1


def test_a_closed_group_of_a_mesh():
    def ranks(world):
        mesh = world.make_mesh((1, 2))
        mesh.group(0).close()
        with pytest.raises(shoal.StateError, match="closed"):
            mesh.group(0)
        mesh.group(1).barrier()
        return True

    assert all(shoal.launch(ranks, 2, timeout=TIMEOUT))


def test_a_close_that_fails_leaves_the_group():
    with shoal.World() as world:
        with pytest.raises(shoal.InvalidError, match="closed with the world"):
            world.group.close()
        world.group.barrier()


# Worlds that are dropped ---------------------------------------------------------------------------------------------


def test_a_dropped_world_is_closed_although_warnings_are_errors():
    ended = run_script(
        """
        import gc, os, warnings, shoal
        with shoal.World():
            pass
        warnings.simplefilter("error")
        before = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
        world = shoal.World()
        world.group.barrier()
        del world
        gc.collect()
        assert (len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))) == before
        """
    )
    assert "was not closed" in ended.stderr


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_world_that_is_collected_in_a_callback():
    """The library refuses to close a world inside of a callback: another thread does."""

    class Loop(asyncio.SelectorEventLoop):
        def call_soon_threadsafe(self, *arguments, **context):
            found.append(works.is_in_callback())
            gc.collect()
            return super().call_soon_threadsafe(*arguments, **context)

    async def use(group):
        work = group.recv_start(array("d", [0.0]), 0, 5)
        asyncio.get_running_loop().call_soon(group.send, array("d", [1.0]), 0, 5)
        await work

    found = []
    with shoal.World():
        pass
    before = count()
    with shoal.World() as world:
        gc.disable()
        try:
            shoal.World().group.barrier()
            loop = Loop()
            loop.run_until_complete(use(world.group))
            loop.close()
        finally:
            gc.enable()
        assert True in found
    wait_until(lambda: count()[1:] <= before[1:])
    assert_nothing_left(before)


# Other threads -------------------------------------------------------------------------------------------------------

CALLS = {
    "Store.get": lambda world: world.store.get("never"),
    "Store.wait": lambda world: world.store.wait(["never"]),
    "barrier": lambda world: world.group.barrier(),
    "recv": lambda world: world.group.recv(array("d", [0.0]), 1),
    "check_equal": lambda world: world.group.check_equal("name", 1),
    "symmetric": lambda world: world.group.symmetric(100),
    "window": lambda world: world.group.window(100),
    "Group.close": lambda world: world.make_group([0, 1], "other").close(),
}


@pytest.mark.parametrize("name", CALLS)
def test_closing_while_another_thread_waits(name, monkeypatch):
    """The thread gets an exception, and the world is closed: nothing is freed under it."""
    monkeypatch.setattr(worlds, "_PATIENCE_S", 0.3)

    def ranks(world):
        found = []

        def use():
            try:
                CALLS[name](world)
            except shoal.Error as error:
                found.append(error)

        if world.rank == 0:
            worker = threading.Thread(target=use)
            worker.start()
            time.sleep(0.1)
            world.store.set("there", b"1")
            world.close()
            worker.join()
            return type(found[0]).__name__
        world.store.get("there")
        return None

    kind, _ = shoal.launch(ranks, 2, timeout=TIMEOUT)
    assert kind in ("StateError", "CancelledError", "PeerError")


def test_threads_that_begin_calls_while_the_world_is_closed():
    def use(world, errors):
        try:
            while True:
                group = world.make_group([0], "one")
                group.all_reduce_start(array("d", [1.0] * 10))
                group.symmetric(64).buffer[0] = 1
                world.store.add("a", 1)
                world.make_mesh((1,)).shape  # noqa: B018
        except shoal.StateError as error:
            errors.append(str(error))
        except shoal.CancelledError as error:
            errors.append("the world was closed" if "closed" in str(error) else str(error))

    before = count()
    for _ in range(20):
        errors = []
        world = shoal.World()
        workers = [threading.Thread(target=use, args=(world, errors)) for _ in range(3)]
        for worker in workers:
            worker.start()
        time.sleep(0.01)
        while True:
            try:
                world.close()
                break
            except BufferError:
                pass
        for worker in workers:
            worker.join()
        assert len(errors) == 3 and all("closed" in error for error in errors), errors
        del world
        assert_nothing_left(before)


def test_threads_that_use_a_group_while_it_is_freed():
    def use(group, errors):
        try:
            while True:
                group.all_reduce_start(array("d", [1.0] * 10))
                group.name  # noqa: B018
        except shoal.Error as error:
            errors.append(type(error).__name__)

    with shoal.World() as world:
        for i in range(40):
            errors = []
            group = world.make_group([0], f"tag {i}")
            workers = [threading.Thread(target=use, args=(group, errors)) for _ in range(2)]
            for worker in workers:
                worker.start()
            time.sleep(0.002)
            group.close() if i % 2 else group.abandon()
            for worker in workers:
                worker.join()
            assert set(errors) <= {"StateError", "CancelledError"} and len(errors) == 2, errors


# The end of the interpreter ------------------------------------------------------------------------------------------


def test_no_world_is_opened_once_the_interpreter_exits():
    ended = run_script(
        """
        import atexit
        def late():
            try:
                shoal.World()
            except shoal.StateError as error:
                print(error)
        atexit.register(late)
        import shoal
        world = shoal.World()
        """
    )
    assert (ended.stdout, ended.stderr) == ("a world cannot be opened any more: the interpreter exits\n", "")


def test_an_exception_that_cannot_be_made_again():
    class Odd(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} and {two}")

    def ranks(world):
        raise Odd(1, 2)

    with pytest.raises(shoal.LaunchError, match="rank 0: Odd: 1 and 2") as caught:
        shoal.launch(ranks, 1)
    assert "in ranks" in str(caught.value.__cause__)
