# SPDX-License-Identifier: MIT
"""Ctrl-C ends every wait that it is documented to end, and the operation goes on."""

import asyncio
import inspect
import os
import signal
import threading
from array import array

import pytest
import shoal
from shoal import groups, works

TIMEOUT = 60.0


@pytest.fixture(autouse=True)
def hear_ctrl_c():
    """A shell that runs the tests in the background has them ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


BIG = 200000


def data(count=4):
    return array("d", [1.0]) * count


def await_barrier(group):
    async def use():
        await group.barrier_start()

    asyncio.run(use())


# Each blocks on rank 0 until rank 1 does its part: what rank 0 calls, and what rank 1 calls.
WAITS = {
    "all_reduce": (lambda group: group.all_reduce(data()),) * 2,
    "reduce": (lambda group: group.reduce(data()),) * 2,
    "broadcast": (lambda group: group.broadcast(data(), 1),) * 2,
    "all_gather": (lambda group: group.all_gather(data(), data(8)),) * 2,
    "reduce_scatter": (lambda group: group.reduce_scatter(data(), data(2)),) * 2,
    "all_to_all": (lambda group: group.all_to_all(data(), data()),) * 2,
    "gather": (lambda group: group.gather(data(), data(8)),) * 2,
    "scatter": (lambda group: group.scatter(data(8), data(), 1),) * 2,
    "barrier": (lambda group: group.barrier(),) * 2,
    "send": (lambda group: group.send(data(BIG), 1), lambda group: group.recv(data(BIG), 0)),
    "recv": (lambda group: group.recv(data(), 1), lambda group: group.send(data(), 0)),
    "recv from any": (lambda group: group.recv(data()), lambda group: group.send(data(), 0)),
    "Work.wait": (lambda group: group.barrier_start().wait(), lambda group: group.barrier()),
    "Work.wait with a timeout": (lambda group: group.barrier_start().wait(50.0), lambda group: group.barrier()),
    "await": (await_barrier, lambda group: group.barrier()),
    "Store.get": (lambda group: group.world.store.get("b"), lambda group: group.world.store.set("b", b"1")),
    "Store.wait": (lambda group: group.world.store.wait(["c"]), lambda group: group.world.store.set("c", b"1")),
}


def test_every_collective_has_a_row():
    names = [name for name, _ in inspect.getmembers(shoal.Group, inspect.isfunction) if not name.startswith("_")]
    assert {name for name in names if f"{name}_start" in names} <= set(WAITS)


def interrupt_soon():
    threading.Timer(0.12, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_ctrl_c_interrupts():
    def ranks(world):
        group = world.group
        group.barrier()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for name, (waits, comes) in WAITS.items():
            if world.rank == 1:
                world.store.get(f"interrupted {name}")
                comes(group)
                continue
            interrupt_soon()
            with pytest.raises(KeyboardInterrupt):
                waits(group)
            world.store.set(f"interrupted {name}", b"1")
        group.barrier()
        works.sweep()
        return len(works._flights)

    assert shoal.launch(ranks, 2, timeout=TIMEOUT) == [0, 0]


def test_ctrl_c_in_a_gather_into_a_window():
    def ranks(world):
        window = world.group.window(16)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if world.rank == 0:
            interrupt_soon()
            with pytest.raises(KeyboardInterrupt):
                window.gather([(data(1), 0)])
            world.store.set("interrupted", b"1")
        else:
            world.store.get("interrupted")
            window.gather([(data(1), 8)])
        world.group.barrier()
        return window.buffer.cast("d").tolist()

    assert shoal.launch(ranks, 2, timeout=TIMEOUT) == [[1.0, 1.0]] * 2


def test_ctrl_c_between_the_start_and_its_work(monkeypatch):
    """The operation has started when the exception comes: its arrays stay until it has ended."""

    def ranks(world):
        if world.rank == 0:

            def interrupt(status):
                raise KeyboardInterrupt

            monkeypatch.setattr(groups, "check", interrupt)
            for start in (world.group.all_reduce_start, lambda sent: world.group.send_start(sent, 1)):
                with pytest.raises(KeyboardInterrupt):
                    start(data(BIG))
            monkeypatch.undo()
            assert len(works._flights) == 2 and all(flight.keep for flight in works._flights)
            world.store.set("go", b"1")
        else:
            world.store.get("go")
            assert world.group.all_reduce(data(BIG))[BIG - 1] == 2.0
            world.group.recv(data(BIG), 0)
        world.group.barrier()
        works.sweep()
        return len(works._flights)

    assert shoal.launch(ranks, 2, timeout=TIMEOUT) == [0, 0]


def test_ctrl_c_while_a_work_is_dropped():
    """A handler that raises ends a function such as __del__ before its first line: a work needs none."""

    def ranks(world):
        import sys

        def interrupt(frame, event, argument):
            if event == "call" and frame.f_code.co_name == "__del__":
                raise KeyboardInterrupt

        work = world.group.recv_start(data(), 0, 5)
        sys.unraisablehook = lambda unraisable: None
        sys.setprofile(interrupt)
        del work
        sys.setprofile(None)
        (flight,) = works._dropped
        array_kept = flight.keep[0].source
        world.group.send(array("d", [7.0] * 4), 0, 5)
        while array_kept[0] != 7.0:
            world.group.barrier()
        works.sweep()
        return len(works._flights)

    assert shoal.launch(ranks, 1, timeout=TIMEOUT) == [0]


def test_ctrl_c_while_an_await_begins(monkeypatch):
    """The library may call back later: nothing waits for it."""

    def interrupt(status):
        monkeypatch.undo()
        raise KeyboardInterrupt

    async def use(group):
        work = group.recv_start(data(), 0, 5)
        monkeypatch.setattr(works, "check", interrupt)
        await work

    with shoal.World() as world:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(use(world.group))
        assert not works._waiting
        world.group.send(data(), 0, 5)


def test_ctrl_c_in_a_callback_of_the_library(monkeypatch):
    """The library has called back, and nothing has come of it: closing the world makes up for it."""

    async def use(group):
        work = group.recv_start(data(), 0, 5)
        waiting = asyncio.ensure_future(wait(work))
        await asyncio.sleep(0)
        group.send(data(), 0, 5)
        work.wait()
        await asyncio.sleep(0.05)
        assert len(works._waiting) == 1 and not waiting.done()
        group.world.close()
        await waiting

    async def wait(work):
        await work

    lost = works._api.shoal_done_function(lambda context, status: None)
    monkeypatch.setattr(works, "_on_done_native", lost)
    asyncio.run(use(shoal.World().group))
    assert not works._waiting


def test_ctrl_c_after_open_closes_the_world(monkeypatch):
    def interrupt(status):
        monkeypatch.undo()
        raise KeyboardInterrupt

    before = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(shoal.worlds, "check", interrupt)
    with pytest.raises(KeyboardInterrupt), pytest.warns(ResourceWarning):
        shoal.World()
    assert (len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))) == before


def test_ctrl_c_while_a_world_is_closed(monkeypatch):
    """It is heard when the call returns: the works of the world are freed all the same."""
    real = shoal.worlds._world_close

    def close(handle):
        real(handle)
        raise KeyboardInterrupt

    works.sweep()
    before = len(works._flights)
    world = shoal.World()
    world.group.recv_start(data(), 0, 5)
    assert len(works._flights) == before + 1
    monkeypatch.setattr(shoal.worlds, "_world_close", close)
    with pytest.raises(KeyboardInterrupt):
        world.close()
    assert len(works._flights) <= before and not world.is_open


def test_ctrl_c_ends_a_launch():
    def ranks(world):
        signal.pause()

    before = set(os.listdir("/proc/self/fd"))
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        shoal.launch(ranks, 2)
    assert set(os.listdir("/proc/self/fd")) <= before
