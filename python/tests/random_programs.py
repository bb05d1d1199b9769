# SPDX-License-Identifier: MIT
"""Random programs over the whole package, with exceptions, garbage collection, threads, signals and forks thrown in.

    random_programs.py [--count N] [--first SEED] [--jobs N]     runs programs, and says which have failed
    random_programs.py --seed SEED [--repeat N]                  runs one, and shows what its ranks print

A program is made from its seed. What ranks do together is drawn from a generator that is the same on all ranks, what
each does on its own from another. There are three kinds:

- even seeds: the ranks agree. Results are compared with what they must be, and no exception may come.
- seed % 4 == 1: ranks go wrong: they raise, leave, close early, mix up calls, and use objects in threads at the same
  time. Every exception of the package is right.
- seed % 4 == 3: as the last, and signal handlers raise at random times: those of SIGALRM, or, with seed % 8 == 7, that of
  Ctrl-C.

Each rank is a process. It fails if it hangs, crashes, prints something, or has more descriptors, threads, works or worlds
at the end than at the beginning. With --repeat each rank runs the program N times, and memory must not grow either.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import warnings
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import random_fsdp
import shoal
from programs import ChildEnds, Deliberate, Leave, Steps, conclude, fork_quietly, list_shared_memory, make_parser, read_memory
from shoal import works, worlds

DEADLINE_S = 120.0
GROWTH_MAX = 4 << 20


# A program on one rank -----------------------------------------------------------------------------------------------


class Program(Steps):
    def __init__(self, seed: int, n_ranks: int, rank: int, key: str) -> None:
        self.kind = {0: "even", 2: "even", 1: "rough", 3: "signals"}[seed % 4]
        self.is_even = self.kind == "even"
        self.shared = random.Random(seed)
        self.own = random.Random((seed, rank).__hash__())
        self.seed, self.n_ranks, self.rank, self.key = seed, n_ranks, rank, key
        self.groups: list[tuple[shoal.Group, list[int]]] = []
        self.pending: list[tuple[shoal.Work, object]] = []
        self.memories: list[tuple[shoal.Symmetric, list[int]]] = []
        self.windows: list[tuple[shoal.Window, list[int]]] = []
        self.kept: list[object] = []
        self.threads: list[threading.Thread] = []
        self.number = 0
        self.folder = os.environ["SHOAL_TEST_FOLDER"]

    # Helpers

    def expect(self, found: object, wanted: object, what: str) -> None:
        if self.is_even and found != wanted:
            raise AssertionError(f"{what}: {found} instead of {wanted}")

    def draw_group(self) -> tuple[shoal.Group, list[int]] | None:
        """The same place in the list on all ranks; None if this rank is not a member."""
        group, ranks = self.groups[self.shared.randrange(len(self.groups))]
        return (group, ranks) if group is not None else None

    def finish(self, work: shoal.Work, check: object, how: str) -> None:
        """Waits for a work, awaits it, drops it or keeps it for later."""
        if how == "wait":
            work.wait()
        elif how == "await":
            asyncio.run(self.await_all([work]))
        elif how == "cancel":
            asyncio.run(self.cancel(work))
            return
        elif how == "keep":
            self.pending.append((work, check))
            return
        else:
            return
        if callable(check):
            check()

    async def await_all(self, listed: list[shoal.Work]) -> None:
        async def one(work: shoal.Work) -> None:
            await work

        await asyncio.gather(*[one(work) for work in listed])

    async def cancel(self, work: shoal.Work) -> None:
        async def one() -> None:
            await work

        task = asyncio.ensure_future(one())
        await asyncio.sleep(0)
        task.cancel()
        asyncio.get_running_loop().call_soon(self.cycle)

    def how(self) -> str:
        return self.own.choice(("wait", "wait", "await", "keep", "keep", "cancel", "drop"))

    def cycle(self) -> None:
        """Garbage that only the collector finds."""
        ring: list[object] = [self.groups[0], self.pending[-1:]]
        ring.append(ring)

    # What ranks do together

    def all_reduce(self) -> None:
        drawn, count = self.draw_group(), self.shared.choice((1, 7, 1000, 30000))
        if drawn is None:
            return
        group, ranks = drawn
        data = array("d", [group.rank + 1.0]) * count
        wanted = len(ranks) * (len(ranks) + 1) / 2
        work = group.all_reduce_start(data)
        self.finish(work, lambda: self.expect((data[0], data[-1]), (wanted, wanted), "all_reduce"), self.how())

    def all_gather(self) -> None:
        drawn, count = self.draw_group(), self.shared.choice((1, 5, 2000))
        if drawn is None:
            return
        group, ranks = drawn
        out = array("l", [0]) * (count * len(ranks))
        work = group.all_gather_start(array("l", [group.rank]) * count, out)
        wanted = list(range(len(ranks)))
        self.finish(work, lambda: self.expect(out.tolist()[::count], wanted, "all_gather"), self.how())

    def reduce_scatter(self) -> None:
        drawn = self.draw_group()
        if drawn is None:
            return
        group, ranks = drawn
        out = array("i", [0]) * 3
        work = group.reduce_scatter_start(array("i", range(3 * len(ranks))), out, op="max")
        wanted = [3 * group.rank + i for i in range(3)]
        self.finish(work, lambda: self.expect(out.tolist(), wanted, "reduce_scatter"), self.how())

    def others(self) -> None:
        drawn, root, kind = self.draw_group(), self.shared.random(), self.shared.randrange(5)
        if drawn is None:
            return
        group, ranks = drawn
        n_ranks, root = len(ranks), int(root * len(ranks))
        is_root = group.rank == root
        if kind == 0:
            data = array("f", [float(group.rank)]) * 10
            self.finish(group.broadcast_start(data, root), lambda: self.expect(data[9], float(root), "broadcast"), self.how())
        elif kind == 1:
            out = array("f", [0.0]) * n_ranks if is_root else None
            self.finish(group.gather_start(array("f", [1.0]), out, root), None, self.how())
        elif kind == 2:
            data = array("h", range(n_ranks)) if is_root else None
            out = array("h", [0])
            work = group.scatter_start(data, out, root)
            self.finish(work, lambda: self.expect(out[0], group.rank, "scatter"), self.how())
        elif kind == 3:
            out = array("b", [0]) * n_ranks
            work = group.all_to_all_start(array("b", [group.rank]) * n_ranks, out)
            self.finish(work, lambda: self.expect(out.tolist(), list(range(n_ranks)), "all_to_all"), self.how())
        else:
            group.reduce(array("d", [1.0]) * 4, array("d", [0.0]) * 4 if is_root else None, root)

    def barrier(self) -> None:
        drawn = self.draw_group()
        if drawn is not None:
            drawn[0].barrier()
            drawn[0].check_equal("seed", self.seed)

    def messages(self) -> None:
        drawn, tag, count = self.draw_group(), self.shared.randrange(5), self.shared.choice((1, 100, 20000))
        is_from_any = self.shared.random() < 0.3
        if drawn is None:
            return
        group, ranks = drawn
        n_ranks, rank = len(ranks), group.rank
        out = array("d", [0.0]) * count
        receive = group.recv_start(out, None if is_from_any else (rank - 1) % n_ranks, tag)
        send = group.send_start(array("d", [float(rank)]) * count, (rank + 1) % n_ranks, tag)
        wanted = float((rank - 1) % n_ranks)
        self.finish(receive, lambda: self.expect(out[-1], wanted, "recv"), "wait")
        self.finish(send, None, self.own.choice(("wait", "keep", "drop")))

    def make_group(self) -> None:
        ranks = sorted(self.shared.sample(range(self.n_ranks), self.shared.randint(1, self.n_ranks)))
        self.number += 1
        if self.rank in ranks:
            group = self.world.make_group(ranks, f"g{self.number}")
            group.timeout = self.world.group.timeout
            self.groups.append((group, ranks))
        else:
            self.groups.append((None, ranks))

    def end_group(self) -> None:
        if len(self.groups) < 2:
            return
        group, _ = self.groups.pop(self.shared.randrange(1, len(self.groups)))
        is_closed = self.shared.random() < 0.6
        if group is None:
            return
        if self.is_even:
            self.kept.clear()  # contexts of FSDP use groups
            gc.collect()
        if is_closed:
            group.close()
        else:
            # Others may still need this rank's part of what was started.
            for work, check in self.take_pending():
                self.finish(work, check, "wait")
            if self.is_even:
                group.barrier()
            group.abandon()
        repr(group)

    def symmetric(self) -> None:
        drawn, size = self.draw_group(), self.shared.choice((64, 4096, 100000))
        if drawn is None:
            return
        group, ranks = drawn
        memory = group.symmetric(size)
        view = memory.buffer.cast("d") if size % 8 == 0 else memory.buffer
        view[0] = group.rank
        group.barrier()
        self.expect([memory.peer(rank).cast("d")[0] for rank in range(len(ranks))], list(range(len(ranks))), "peer")
        group.barrier()
        group.all_reduce(view[:1])
        self.memories.append((memory, ranks))
        if self.own.random() < 0.3:
            self.kept.append(view)

    def window(self) -> None:
        drawn = self.draw_group()
        if drawn is None:
            return
        group, ranks = drawn
        window = group.window(4 * len(ranks))
        work = window.gather_start([(array("f", [float(group.rank)]), 4 * group.rank)], label=self.seed)
        self.finish(work, None, "await")
        self.expect(window.buffer.cast("f").tolist(), [float(r) for r in range(len(ranks))], "window")
        window.release()
        self.windows.append((window, ranks))

    def mesh(self) -> None:
        mesh = self.world.make_mesh((1, self.n_ranks), ("dp", "tp"))
        out = array("l", [0]) * self.n_ranks
        mesh.group("tp").all_gather(array("l", [self.rank]), out)
        self.expect(out.tolist(), list(range(self.n_ranks)), "mesh")
        self.expect((mesh["tp"].shape, mesh.flatten().ranks[-1]), ((self.n_ranks,), self.n_ranks - 1), "mesh")
        self.kept.append(mesh if self.own.random() < 0.5 else mesh["dp"])

    def store(self) -> None:
        self.number += 1
        store, key = self.world.store, f"k{self.number}"
        store.add(key, self.rank + 1)
        if self.rank == 0:
            store.set(key + "x", b"1")
        self.expect(store.get(key + "x"), b"1", "store")
        store.exists(key)
        store.compare_set(key + "y", b"", b"2")

    # What a rank does on its own

    def settle(self) -> None:
        listed = self.take_pending()
        if self.own.random() < 0.5:
            asyncio.run(self.await_all([work for work, _ in listed]))
        for work, check in listed:
            self.finish(work, check, "wait")
            self.expect(work.done(), True, "done")

    def take_pending(self) -> list[tuple[shoal.Work, object]]:
        listed, self.pending = self.pending, []
        return listed

    def throw(self) -> None:
        """An exception through frames that hold works, views and groups."""
        try:
            work, view = self.pending[-1:], [memory.buffer for memory, _ in self.memories[:1]]
            group = self.groups[0]
            raise Deliberate
        except Deliberate as error:
            error.args = (error, work, view, group)  # a cycle, with its traceback

    def fork(self) -> None:
        self.fork_and_use(self.use_in_child)

    def fork_and_use(self, use: Callable[[], None]) -> None:
        child = fork_quietly()
        if child == 0:
            use()
            if self.own.random() < 0.5:
                os._exit(0)
            raise ChildEnds(0)
        if os.waitpid(child, 0)[1] != 0:
            raise AssertionError("a child of fork() has failed")

    def use_in_child(self) -> None:
        store = shoal.Store(self.world)
        uses = [self.groups[0][0].barrier, lambda: store.add("a", 1), lambda: self.world.group]
        uses += [work.wait for work, _ in self.pending[:2]]
        uses += [lambda memory=memory: memory.buffer for memory, _ in self.memories[:2]]
        for use in uses:
            try:
                use()
            except shoal.StateError:
                continue
            os._exit(9)
        self.pending.clear()
        self.memories.clear()
        self.windows.clear()
        gc.collect()
        self.world.close()

    def fork_in_call(self) -> None:
        """Another thread is somewhere in the library, with its locks; the child opens a world of its own."""
        world = self.world
        alone = world.make_group([self.rank], "forking")
        calls: list[Callable[[], object]] = [
            lambda: world.store.add("forks", 1),
            lambda: alone.all_reduce(array("d", [1.0]) * 1000),
            lambda: alone.symmetric(4096).free(),
            lambda: random_fsdp.run_step(random_fsdp.make(alone, 2, {}), 1.0),
            lambda: shoal.World(1, 0).close(),
        ]
        call = self.own.choice(calls)

        def use_in_child() -> None:
            self.use_in_child()
            with shoal.World(1, 0) as own:
                data = array("d", [1.0]) * 1000
                own.group.all_reduce(data)
                if data[-1] != 1.0:
                    os._exit(8)

        self.fork_beside((shoal.Error, BufferError), call, 3, lambda: self.fork_and_use(use_in_child))

    def wait_together(self) -> None:
        """Two threads wait for the same works, and so does this one."""
        listed = self.take_pending()

        def use() -> None:
            for work, check in listed:
                self.finish(work, check, "wait")

        def use_here() -> None:
            for work, check in listed:
                self.finish(work, check, self.own.choice(("wait", "await")))

        self.use_together((shoal.Error, AssertionError), use, use_here)

    def thread(self) -> None:
        """Threads that use the world on their own, and one another's works."""
        listed = [work for work, _ in self.pending[:3]]
        world = self.world

        def use() -> None:
            try:
                for work in listed:
                    work.done()
                    if self.is_even or self.own.random() < 0.5:
                        work.wait(0 if self.own.random() < 0.3 else None)
                world.store.add("threads", 1)
                world.make_group([self.rank], "alone").all_reduce(array("d", [1.0]))
                gc.collect()
            except shoal.TimeoutError:
                pass
            except shoal.Error:
                if self.is_even:
                    raise

        worker = threading.Thread(target=use)
        self.threads.append(worker)
        worker.start()
        if self.own.random() < 0.5:
            worker.join()

    def launch(self) -> None:
        def ranks(world: shoal.World) -> int:
            world.group.barrier()
            if world.rank == 1:
                raise Deliberate
            return world.rank

        try:
            shoal.launch(ranks, 2, timeout=60.0)
        except Deliberate:
            pass

    def another_world(self) -> None:
        world = shoal.World(1, 0)
        world.group.all_reduce(array("d", [1.0]))
        if self.own.random() < 0.5:
            world.close()
        else:
            self.kept.append(world.group)
            self.others_open = True

    def free(self) -> None:
        if not self.memories and not self.windows:
            return
        listed = self.own.choice([listed for listed in (self.memories, self.windows) if listed])
        memory, _ = listed.pop(self.own.randrange(len(listed)))
        try:
            memory.free()
        except BufferError:
            listed.append((memory, _))

    def forget(self) -> None:
        self.kept.clear()

    # What goes wrong

    def leave(self) -> None:
        raise Leave

    def close_early(self) -> None:
        try:
            self.world.close()
        except (BufferError, shoal.Error):
            pass

    def close_in_thread(self) -> None:
        worker = threading.Thread(target=self.close_early, daemon=True)
        self.threads.append(worker)
        worker.start()

    def mix_up(self) -> None:
        group = self.groups[0][0]
        group.all_reduce_start(array("d", [1.0]) * (self.rank + 1))

    def misuse_in_threads(self) -> None:
        """Two threads use one group in no order, free memory in use, and close the group."""

        def use() -> None:
            try:
                group = self.groups[-1][0] or self.groups[0][0]
                for _ in range(20):
                    group.all_reduce_start(array("d", [1.0]) * 100)
                for memory, _ in self.memories:
                    memory.buffer[0]
                    memory.free()
                if group is not self.groups[0][0]:
                    group.abandon()
                group.barrier(timeout=1.0)
            except (shoal.Error, BufferError):
                pass

        for _ in range(2):
            worker = threading.Thread(target=use, daemon=self.own.random() < 0.3)
            self.threads.append(worker)
            worker.start()

    def wait_in_daemons(self) -> None:
        def use(function: object) -> None:
            try:
                function()  # type: ignore[operator]
            except shoal.Error:
                pass

        world, group = self.world, self.groups[0][0]
        for function in (lambda: world.store.get("never"), lambda: group.recv(array("d", [0.0]), 0, 99),
                         lambda: group.symmetric(100), lambda: group.check_equal("a", 1)):  # fmt: skip
            if self.own.random() < 0.4:
                threading.Thread(target=use, args=(function,), daemon=True).start()

    def abort(self) -> None:
        group, _ = self.own.choice(self.groups)
        if group is not None:
            group.abort("the program says so")

    def exit_thread(self) -> None:
        worker = threading.Thread(target=sys.exit)
        worker.start()
        worker.join()

    TOGETHER = (
        all_reduce, all_reduce, all_reduce, all_gather, reduce_scatter, others, others, barrier, messages, messages,
        make_group, make_group, end_group, symmetric, window, mesh, store, random_fsdp.train,
    )  # fmt: skip
    ALONE = (
        Steps.collect, settle, wait_together, throw, fork, fork_in_call, thread, thread, free, forget, another_world, launch,
    )  # fmt: skip
    WEIGHTS = (3, 3, 3, 3, 1, 1, 3, 3, 2, 2, 1, 0.25)
    WRONG = (
        leave, close_early, close_in_thread, mix_up, misuse_in_threads, wait_in_daemons, abort, exit_thread,
        random_fsdp.close_while_training, random_fsdp.close_while_training, random_fsdp.train_beside_closing,
    )  # fmt: skip

    def run(self) -> None:
        rough = {} if self.is_even else {"timeout": 4.0, "close_timeout": 1.0}
        options = {"timeout": 60.0, "close_timeout": 60.0, "startup_timeout": 60.0, **rough}
        try:
            with shoal.World(self.n_ranks, self.rank, key=self.key, **options) as self.world:
                self.groups.append((self.world.group, list(range(self.n_ranks))))
                self.run_steps()
        except BufferError:
            if not self.kept:
                raise
        except (Leave, shoal.Error, KeyboardInterrupt):
            if self.is_even:
                raise

    def run_steps(self) -> None:
        n_steps = self.shared.randint(3, 25)
        if self.kind == "signals":
            start_signals(self.seed % 8 == 7, self.own.uniform(0.001, 0.3), self.own.uniform(0.01, 0.5))
        for _ in range(n_steps):
            try:
                self.step()
            except ChildEnds:
                raise
            except (shoal.Error, KeyboardInterrupt, AttributeError, BufferError):
                if self.is_even or self.own.random() < 0.3:
                    raise
        if self.is_even:
            self.settle()
            self.world.group.barrier()
            self.kept.clear()
            for worker in self.threads:
                worker.join()
        elif self.own.random() < 0.5:
            self.kept.clear()

    def end(self) -> None:
        """Lets go of everything; the order is up to the collector."""
        is_even = self.is_even
        for worker in self.threads:
            if worker.ident is not None:  # it was started
                worker.join(20.0)
        for name in self.own.sample(sorted(self.__dict__), len(self.__dict__)):
            if name not in ("own", "world"):
                self.__dict__.pop(name)
        world = self.__dict__.pop("world", None)
        gc.collect()
        if world is not None:
            with contextlib.nullcontext() if is_even else contextlib.suppress(shoal.Error):
                world.close()


# A rank as a process -------------------------------------------------------------------------------------------------


def list_descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one of the list itself
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


def count_kept(is_interrupted: bool) -> dict[str, int]:
    """What a program must not leave behind. Threads of the library end with their worlds.

    multiprocessing loses the pipe that it is making when a signal handler raises there.
    """
    return {
        "descriptors": sum(not name.startswith("pipe:") or not is_interrupted for name in list_descriptors()),
        "threads": len(os.listdir("/proc/self/task")) - threading.active_count(),
        "works": len(works._waiting) + len(works._flights),
        "worlds": sum(world.is_open for world in list(worlds._open)),
    }


def settle_and_count(is_interrupted: bool) -> dict[str, int]:
    """Daemon threads that were in calls may need a moment to hear that their world was closed."""
    until = time.monotonic() + 10.0
    while True:
        gc.collect()
        asyncio.set_event_loop(None)  # asyncio.run may have been interrupted before it did
        works.complete_lost()  # as the next world that is closed does
        works.sweep(everything=True)
        found = count_kept(is_interrupted)
        if not any(found[name] for name in ("works", "worlds", "threads")) or time.monotonic() > until:
            return found
        time.sleep(0.02)


def run_once(seed: int, n_ranks: int, rank: int, key: str) -> None:
    program = Program(seed, n_ranks, rank, key)
    try:
        program.run()
        stop_signals()
    except KeyboardInterrupt:
        stop_signals()
        if program.is_even:
            raise
    program.end()


class Sender(threading.Thread):
    """Sends SIGINT to its process, again and again."""

    def __init__(self, first_s: float, interval_s: float) -> None:
        super().__init__(daemon=True)
        self.first_s, self.interval_s = first_s, interval_s
        self.stop = threading.Event()

    def run(self) -> None:
        wait_s = self.first_s
        while not self.stop.wait(wait_s):
            os.kill(os.getpid(), signal.SIGINT)
            wait_s = self.interval_s


sender: Sender | None = None


def start_signals(is_interrupt: bool, first_s: float, interval_s: float) -> None:
    global sender
    if is_interrupt:
        sender = Sender(first_s, interval_s)
        sender.start()
    else:
        signal.setitimer(signal.ITIMER_REAL, first_s, interval_s)


def stop_signals() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    while sender is not None and sender.is_alive():
        with contextlib.suppress(KeyboardInterrupt):
            sender.stop.set()
            sender.join()


def ignore_unraisable(unraisable: object) -> None:
    """An exception of a signal handler may come in a function whose exceptions nobody gets, also of asyncio's own."""
    traceback = unraisable.exc_traceback  # type: ignore[attr-defined]
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    is_ours = traceback is not None and "/shoal/" in traceback.tb_frame.f_code.co_filename
    if is_ours and not isinstance(unraisable.exc_value, KeyboardInterrupt):  # type: ignore[attr-defined]
        sys.__unraisablehook__(unraisable)  # type: ignore[arg-type]


def run_rank(seed: int, n_ranks: int, rank: int, key: str, repeat: int) -> None:
    if seed % 4 == 3:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
        sys.unraisablehook = ignore_unraisable
        warnings.simplefilter("ignore")
        logging.disable()  # asyncio tells of futures whose tasks were interrupted
    with shoal.World() as world:  # what is made once and stays: lazy imports, the library's own state
        world.group.barrier()
        random_fsdp.run_step(random_fsdp.make(world.group, 1, {}), 1.0)
    asyncio.run(asyncio.sleep(0))
    before = settle_and_count(seed % 4 == 3)
    memory = 0
    for i in range(repeat):
        run_once(seed, n_ranks, rank, f"{key}-{i}")
        if i == repeat // 2:
            gc.collect()
            memory = read_memory()
    after = settle_and_count(seed % 4 == 3)
    if after != before:
        print(f"rank {rank}: {before} at the beginning, {after} at the end, {list_descriptors()}", file=sys.stderr)
    if repeat > 3 and read_memory() > memory + GROWTH_MAX:
        print(f"rank {rank}: memory grew from {memory} to {read_memory()} bytes", file=sys.stderr)


# All ranks -----------------------------------------------------------------------------------------------------------


def run_program(seed: int, repeat: int = 1) -> str:
    """Runs a program; gives what went wrong, or nothing."""
    n_ranks = 1 + random.Random(seed + 12345).randrange(3)
    key = f"random-{uuid.uuid4().hex}"
    command = [sys.executable, "-X", "faulthandler", __file__, "--seed", str(seed), "--repeat", str(repeat), "--rank"]
    with tempfile.TemporaryDirectory(prefix="shoal-random-") as folder:
        ranks = [
            subprocess.Popen(
                [*command, f"{rank}/{n_ranks}/{key}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env={**os.environ, "SHOAL_TEST_FOLDER": folder, "OPENBLAS_NUM_THREADS": "1"}, start_new_session=True,
            )
            for rank in range(n_ranks)
        ]  # fmt: skip
        return collect_ranks(seed, repeat, ranks)


def collect_ranks(seed: int, repeat: int, ranks: list[subprocess.Popen[bytes]]) -> str:
    problems = []
    until = time.monotonic() + DEADLINE_S * repeat
    for rank, process in enumerate(ranks):
        try:
            text = process.communicate(timeout=max(until - time.monotonic(), 1.0))[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGABRT)  # faulthandler tells where it is, and where its children are
            text = "hangs\n" + process.communicate()[0].decode(errors="replace")
        if process.returncode != 0 or text:
            problems.append(f"seed {seed}, rank {rank} of {len(ranks)}: status {process.returncode}\n{text}")
    return "".join(problems)


def main() -> None:
    parser = make_parser("Random programs over the whole package.")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--rank")
    given = parser.parse_args()
    if given.rank:
        rank, n_ranks, key = given.rank.split("/")
        run_rank(given.seed, int(n_ranks), int(rank), key, given.repeat)
        return
    seeds = range(given.first, given.first + given.count) if given.seed is None else [given.seed]
    before = list_shared_memory()
    n_failed = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for n_done, problem in enumerate(pool.map(lambda seed: run_program(seed, given.repeat), seeds), 1):
            n_failed += bool(problem)
            print(problem, end="", flush=True)
            if sys.stdout.isatty():
                print(f"\r{n_done} of {len(seeds)}", end="", flush=True)
    conclude(len(seeds), n_failed, before)


if __name__ == "__main__":
    main()
