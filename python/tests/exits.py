# SPDX-License-Identifier: MIT
"""Interpreters that exit with a hundred works pending, in every state that a work can be in.

    exits.py [--count N] [--ranks N] [--first SEED] [--jobs N]     runs exits, and says which were not clean
    exits.py --seed SEED [--ranks N]                               runs one

The seed says in which states the works are, and how the program ends. An exit is clean if every rank has the status and
the text on stderr that the program asks for, no signal has ended it, and nothing is left in /dev/shm.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from array import array
from concurrent.futures import ThreadPoolExecutor

import shoal

N_WORKS = 100
DEADLINE_S = 60.0
KEPT: list[object] = []


def zeros() -> array[float]:
    return array("d", [0.0]) * 16


# States: each has started `count` works when it returns -----------------------------------------------------------------


def never_matched(group: shoal.Group, count: int) -> None:
    KEPT.extend(group.recv_start(zeros(), (group.rank + 1) % group.n_ranks, 1000 + i) for i in range(count))


def matched(group: shoal.Group, count: int) -> None:
    KEPT.extend(group.all_reduce_start(zeros()) for _ in range(count))


def dropped(group: shoal.Group, count: int) -> None:
    for _ in range(count):
        group.all_reduce_start(array("d", [1.0]) * 5000)
        group.recv_start(zeros(), 0, 7)


def in_a_cycle(group: shoal.Group, count: int) -> None:
    for _ in range(count):
        ring: list[object] = [group.recv_start(zeros(), 0, 8), group]
        ring.append(ring)


def start_for_await(group: shoal.Group, count: int) -> list[shoal.Work]:
    return [group.recv_start(zeros(), 0, 9) if i % 2 else group.all_reduce_start(zeros()) for i in range(count)]


async def wait(work: shoal.Work) -> None:
    with contextlib.suppress(shoal.Error):  # the world is closed while a thread still runs the loop
        await work


async def leave_waiting(listed: list[shoal.Work]) -> None:
    KEPT.extend(asyncio.ensure_future(wait(work)) for work in listed)
    await asyncio.sleep(0.001)


def awaited_and_cancelled(group: shoal.Group, count: int) -> None:
    asyncio.run(leave_waiting(start_for_await(group, count)))


def awaited_in_an_open_loop(group: shoal.Group, count: int) -> None:
    """The loop is neither closed nor run again: its tasks are pending when the interpreter exits."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave_waiting(start_for_await(group, count)))
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    KEPT.append(loop)


def awaited_in_a_daemon(group: shoal.Group, count: int) -> None:
    listed = start_for_await(group, count)
    is_running = threading.Event()

    async def stay() -> None:
        await leave_waiting(listed)
        is_running.set()
        await asyncio.sleep(3600)

    threading.Thread(target=asyncio.run, args=(stay(),), daemon=True).start()
    is_running.wait()


def waited_for_by_daemons(group: shoal.Group, count: int) -> None:
    for i in range(count):
        work = group.recv_start(zeros(), 0, 10)
        if i < 8:
            threading.Thread(target=suppress, args=(work.wait,), daemon=True).start()
        KEPT.append(work)


def suppress(function: object) -> None:
    with contextlib.suppress(shoal.Error):
        function()  # type: ignore[operator]


def daemons_in_other_calls(group: shoal.Group, count: int) -> None:
    store = group.world.store
    for function in (lambda: store.get("never"), lambda: store.wait(["never", "ever"]), lambda: compute(group)):
        threading.Thread(target=suppress, args=(function,), daemon=True).start()
    never_matched(group, count)


def compute(group: shoal.Group) -> None:
    """Starts and drops works until the world is gone."""
    while True:
        group.recv_start(zeros(), 0, 11)
        group.world.store.exists("a")


def exits_in_threads(group: shoal.Group, count: int) -> None:
    def use() -> None:
        suppress(lambda: group.recv_start(zeros(), 0, 12))
        sys.exit(5)

    for _ in range(4):
        threading.Thread(target=use).start()
    never_matched(group, count)


STATES = (
    never_matched, matched, dropped, in_a_cycle, awaited_and_cancelled, awaited_in_an_open_loop, awaited_in_a_daemon,
    waited_for_by_daemons, daemons_in_other_calls, exits_in_threads,
)  # fmt: skip

# Ends: what the program does last, its status, and how the last line on stderr begins ---------------------------------


class Flying(Exception):
    pass


def return_from_main(world: shoal.World) -> None:
    pass


def exit_with_status(world: shoal.World) -> None:
    sys.exit(3)


def raise_exception(world: shoal.World) -> None:
    raise Flying("with works pending")


def close_first(world: shoal.World) -> None:
    world.close()


def exit_in_with(world: shoal.World) -> None:
    with world:
        sys.exit(4)


def collect_first(world: shoal.World) -> None:
    gc.collect()
    KEPT.clear()
    gc.collect()


def freeze(world: shoal.World) -> None:
    gc.disable()
    world.cycle = world  # type: ignore[attr-defined]


ENDS = (
    (return_from_main, 0, ""), (exit_with_status, 3, ""), (raise_exception, 1, "Flying: with works pending"),
    (close_first, 0, ""), (exit_in_with, 4, ""), (collect_first, 0, ""), (freeze, 0, ""),
)  # fmt: skip


def draw(seed: int) -> tuple[list[object], tuple[object, int, str]]:
    """Which states and which end: all pairs come within len(STATES) * len(ENDS) seeds."""
    first = STATES[seed % len(STATES)]
    more = random.Random(seed).sample(STATES, random.Random(seed).randrange(3))
    return [first, *[state for state in more if state is not first]], ENDS[seed // len(STATES) % len(ENDS)]


def run_rank(seed: int, n_ranks: int, rank: int, key: str) -> None:
    world = shoal.World(n_ranks, rank, key=key, timeout=60.0)
    states, (end, _, _) = draw(seed)
    for state in states:
        state(world.group, N_WORKS // len(states))  # type: ignore[operator]
    meet(world)
    end(world)  # type: ignore[operator]


def meet(world: shoal.World) -> None:
    """A rank that has closed its world fails what others start. A barrier would finish what is pending."""
    if world.store.add("started", 1) == world.n_ranks:
        world.store.set("all", b"1")
    world.store.get("all")


def run_exit(seed: int, n_ranks: int) -> str:
    """Runs an exit; gives what was not clean, or nothing."""
    key = f"exits-{uuid.uuid4().hex}"
    states, (end, status, last) = draw(seed)
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore::ResourceWarning", __file__, "--seed", str(seed)]
    ranks = [
        subprocess.Popen(
            [*command, "--rank", f"{rank}/{n_ranks}/{key}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for rank in range(n_ranks)
    ]
    problems = []
    for rank, process in enumerate(ranks):
        try:
            text = process.communicate(timeout=DEADLINE_S)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            process.kill()
            text = "hangs\n" + process.communicate()[0].decode(errors="replace")
        is_clean = text.splitlines()[-1:] == ([last] if last else []) and text.count("Traceback") == bool(last)
        if process.returncode != status or not is_clean:
            names = ", ".join(state.__name__ for state in states)  # type: ignore[attr-defined]
            problems.append(
                f"seed {seed} ({names}; {end.__name__}), rank {rank} of {n_ranks}: "  # type: ignore[attr-defined]
                f"status {process.returncode}, {status} expected\n{text}"
            )
    return "".join(problems)


def main() -> None:
    parser = argparse.ArgumentParser(description="Interpreters that exit with works pending.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int)
    parser.add_argument("--rank")
    given = parser.parse_args()
    if given.rank:
        rank, n_ranks, key = given.rank.split("/")
        run_rank(given.seed, int(n_ranks), int(rank), key)
        return
    seeds = range(given.first, given.first + given.count) if given.seed is None else [given.seed]
    before, begin = set(os.listdir("/dev/shm")), time.monotonic()
    n_failed = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for problem in pool.map(lambda seed: run_exit(seed, given.ranks), seeds):
            n_failed += bool(problem)
            print(problem, end="", flush=True)
    left = sorted(name for name in set(os.listdir("/dev/shm")) - before if "shoal" in name)
    print(
        f"{len(seeds)} exits of {given.ranks} ranks with {N_WORKS} works pending: {n_failed} not clean, "
        f"{len(left)} names left in /dev/shm {left[:5]}, {time.monotonic() - begin:.0f} s"
    )
    sys.exit(1 if n_failed or left else 0)


if __name__ == "__main__":
    main()
