# SPDX-License-Identifier: MIT
"""Random programs on the backend of torch.distributed, with exceptions, garbage collection, threads and forks thrown in.

    torch_programs.py [--count N] [--first SEED] [--jobs N]     runs programs, and says which have failed
    torch_programs.py --count 1 --first SEED [--repeat N]       runs one

A program is made from its seed. What ranks do together is drawn from a generator that is the same on all ranks, what
each does on its own from another. There are two kinds:

- seed % 3 != 2: the ranks agree. Results are compared with what each rank computes alone, and no exception may come.
- seed % 3 == 2: ranks go wrong: they leave, destroy groups early, mix up calls, and use groups in threads at the same
  time. Every exception of torch.distributed is right.

Each rank is a process, forked off one that has loaded torch. It fails if it hangs, crashes, prints something, or has more
descriptors or threads at the end than at the beginning. With --repeat each rank runs the program N times; memory must
not grow then, and threads of the backend must end.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import shoal.torch  # noqa: E402, F401
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from programs import (  # noqa: E402
    ChildEnds, Deliberate, Leave, Steps, conclude, fork_quietly, list_shared_memory, make_parser, read_memory,
)  # fmt: skip
from shoal.torch import building  # noqa: E402

DEADLINE_S = 120.0
GROWTH_MAX = 6 << 20
MOST_TOLD = 100
DTYPES = (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bfloat16)
COUNTS = (1, 3, 64, 1000, 40000)

# Names that torch 2.14 has replaced: those of 1.13 are used here.
warnings.filterwarnings("ignore", "`torch.distributed.*is deprecated", FutureWarning)


class Wrong(Exception):
    """A result that is not what it must be."""


# What torch.distributed raises: also for groups that were destroyed, which older versions only assert.
ERRORS = (RuntimeError, ValueError, AssertionError, AttributeError)
REDUCTIONS: dict[Any, Callable[[torch.Tensor], torch.Tensor]] = {
    dist.ReduceOp.SUM: lambda stacked: stacked.sum(0, dtype=stacked.dtype),
    dist.ReduceOp.MAX: lambda stacked: stacked.amax(0),
    dist.ReduceOp.MIN: lambda stacked: stacked.amin(0),
}


def values(count: int, dtype: torch.dtype, rank: int, salt: int) -> torch.Tensor:
    """The data of a rank, small enough that every sum is exact."""
    return ((torch.arange(count) + rank + salt) % 7).to(dtype)


def stack(count: int, dtype: torch.dtype, ranks: list[int], salt: int) -> torch.Tensor:
    return torch.stack([values(count, dtype, rank, salt) for rank in ranks])


# A program on one rank -----------------------------------------------------------------------------------------------


class Program(Steps):
    def __init__(self, seed: int, n_ranks: int, rank: int, store: str) -> None:
        self.is_even = seed % 3 != 2
        self.shared = random.Random(seed)
        self.own = random.Random(seed * 1000 + rank)
        self.seed, self.n_ranks, self.rank, self.store = seed, n_ranks, rank, store
        self.all_ranks = list(range(n_ranks))
        self.groups: list[tuple[Any, list[int]]] = []
        self.pending: list[tuple[Any, Callable[[], None]]] = []
        self.futures: list[tuple[Any, Callable[[], None]]] = []
        self.threads: list[threading.Thread] = []
        self.kept: list[Any] = []
        self.alone: Any = None
        self.timeout = timedelta(seconds=60.0 if self.is_even else 5.0)

    # Helpers

    def expect(self, found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
        if self.is_even and not torch.equal(found, wanted):
            raise Wrong(f"{what}: {found.reshape(-1)[:8]} instead of {wanted.reshape(-1)[:8]}, {found.shape}")

    def draw(self) -> tuple[Any, list[int], bool]:
        """A group, its ranks, and whether this rank is one of them."""
        group, ranks = self.groups[self.shared.randrange(len(self.groups))]
        return group, ranks, self.rank in ranks

    def draw_data(self) -> tuple[int, torch.dtype, int]:
        return self.shared.choice(COUNTS), self.shared.choice(DTYPES), self.shared.randrange(100)

    def lay(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same values, perhaps in memory with gaps."""
        if tensor.numel() == 0 or self.own.random() < 0.8:
            return tensor
        apart = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)[..., 0]
        return apart.copy_(tensor)

    def finish(self, work: Any, check: Callable[[], None]) -> None:
        """Waits for a work, or asks its future, or keeps or drops either."""
        how = self.own.choice(("wait", "wait", "keep", "keep", "drop", "future", "keep future", "then", "test", "poll"))
        if how == "wait":
            work.wait()
            check()
        elif how == "keep":
            self.pending.append((work, check))
        elif how == "future":
            work.get_future().wait()
            check()
        elif how == "keep future":
            self.futures.append((work.get_future(), check))
        elif how == "then":
            self.futures.append((work.get_future().then(lambda future: len(future.value())), check))
        elif how == "test":
            work.is_completed()
            self.pending.append((work, check))
        elif how == "poll":
            with contextlib.suppress(RuntimeError):
                work.wait(timedelta(milliseconds=1))
            self.pending.append((work, check))

    # What ranks do together

    def all_reduce(self) -> None:
        (group, ranks, is_member), (count, dtype, salt) = self.draw(), self.draw_data()
        op = self.shared.choice(list(REDUCTIONS))
        if is_member:
            data = self.lay(values(count, dtype, self.rank, salt))
            wanted = REDUCTIONS[op](stack(count, dtype, ranks, salt))
            work = dist.all_reduce(data, op, group=group, async_op=True)
            self.finish(work, lambda: self.expect(data, wanted, "all_reduce"))

    def average(self) -> None:
        group, ranks, is_member = self.draw()
        if is_member:
            data = torch.full((10,), float(self.rank))
            wanted = torch.full((10,), sum(ranks)).div(len(ranks))
            dist.all_reduce(data, dist.ReduceOp.AVG, group=group)
            self.expect(data, wanted, "average")

    def all_gather(self) -> None:
        (group, ranks, is_member), (count, dtype, salt) = self.draw(), self.draw_data()
        is_single = self.shared.random() < 0.5
        if not is_member:
            return
        mine, wanted = self.lay(values(count, dtype, self.rank, salt)), stack(count, dtype, ranks, salt)
        if is_single:
            out = torch.zeros(len(ranks) * count, dtype=dtype)
            work = dist.all_gather_into_tensor(out, mine, group=group, async_op=True)
            self.finish(work, lambda: self.expect(out, wanted.reshape(-1), "all_gather_into_tensor"))
        else:
            parts = [self.lay(torch.zeros(count, dtype=dtype)) for _ in ranks]
            work = dist.all_gather(parts, mine, group=group, async_op=True)
            self.finish(work, lambda: self.expect(torch.stack(parts), wanted, "all_gather"))

    def reduce_scatter(self) -> None:
        (group, ranks, is_member), (count, dtype, salt) = self.draw(), self.draw_data()
        is_single = self.shared.random() < 0.5
        if not is_member:
            return
        n, place = len(ranks), ranks.index(self.rank)
        data = values(n * count, dtype, self.rank, salt)
        total = REDUCTIONS[dist.ReduceOp.SUM](stack(n * count, dtype, ranks, salt))
        wanted, out = total[place * count : (place + 1) * count], self.lay(torch.zeros(count, dtype=dtype))
        if is_single:
            work = dist.reduce_scatter_tensor(out, data, group=group, async_op=True)
        else:
            work = dist.reduce_scatter(out, list(data.reshape(n, count)), group=group, async_op=True)
        self.finish(work, lambda: self.expect(out, wanted, "reduce_scatter"))

    def rooted(self) -> None:
        (group, ranks, is_member), (count, dtype, salt) = self.draw(), self.draw_data()
        root, kind = ranks[int(self.shared.random() * len(ranks))], self.shared.randrange(4)
        if not is_member:
            return
        is_root, data = self.rank == root, self.lay(values(count, dtype, self.rank, salt))
        everything = stack(count, dtype, ranks, salt)
        if kind == 0:
            work = dist.broadcast(data, root, group=group, async_op=True)
            self.finish(work, lambda: self.expect(data, values(count, dtype, root, salt), "broadcast"))
        elif kind == 1:
            work = dist.reduce(data, root, group=group, async_op=True)
            wanted = REDUCTIONS[dist.ReduceOp.SUM](everything)
            self.finish(work, lambda: self.expect(data, wanted, "reduce") if is_root else None)
        elif kind == 2:
            parts = [torch.zeros(count, dtype=dtype) for _ in ranks] if is_root else None
            work = dist.gather(data, parts, root, group=group, async_op=True)
            self.finish(work, lambda: self.expect(torch.stack(parts), everything, "gather") if parts else None)
        else:
            parts = list(everything.clone()) if is_root else None
            out = torch.zeros(count, dtype=dtype)
            work = dist.scatter(out, parts, root, group=group, async_op=True)
            self.finish(work, lambda: self.expect(out, values(count, dtype, self.rank, salt), "scatter"))

    def all_to_all(self) -> None:
        """Rank i sends rank j i + j + 1 elements, or each the same number."""
        group, ranks, is_member = self.draw()
        is_even_split, salt = self.shared.random() < 0.5, self.shared.randrange(100)
        is_list = self.shared.random() < 0.5
        if not is_member:
            return

        def counts(sender: int) -> list[int]:
            return [5 if is_even_split else sender + receiver + 1 for receiver in ranks]

        def part(sender: int, receiver: int) -> torch.Tensor:
            return values(counts(sender)[ranks.index(receiver)], torch.float32, 10 * sender + receiver, salt)

        mine, wanted = [part(self.rank, to) for to in ranks], torch.cat([part(sender, self.rank) for sender in ranks])
        sizes = [len(part(sender, self.rank)) for sender in ranks]
        out = torch.zeros(sum(sizes))
        if is_list:
            pieces = list(out.split(sizes))
            work = dist.all_to_all(pieces, mine, group=group, async_op=True)
        elif is_even_split:
            work = dist.all_to_all_single(out, torch.cat(mine), group=group, async_op=True)
        else:
            work = dist.all_to_all_single(out, torch.cat(mine), sizes, counts(self.rank), group=group, async_op=True)
        self.finish(work, lambda: self.expect(out, wanted, "all_to_all"))

    def barrier(self) -> None:
        group, _, is_member = self.draw()
        is_monitored = self.shared.random() < 0.3
        if is_member and is_monitored and group is None:
            dist.distributed_c10d._get_default_group().monitored_barrier(self.timeout, self.shared.random() < 0.5)
        elif is_member:
            dist.barrier(group=group)

    def messages(self) -> None:
        """Round the ring of a group."""
        (group, ranks, is_member), (count, dtype, salt) = self.draw(), self.draw_data()
        kind, tag = self.shared.randrange(3), self.shared.randrange(5)
        if not is_member or len(ranks) == 1:
            return
        place = ranks.index(self.rank)
        to, source = ranks[(place + 1) % len(ranks)], ranks[place - 1]
        data, out = self.lay(values(count, dtype, self.rank, salt)), torch.zeros(count, dtype=dtype)
        if kind == 0:
            pairs = [dist.P2POp(dist.isend, data, to, group), dist.P2POp(dist.irecv, out, source, group)]
            for work in dist.batch_isend_irecv(pairs):
                work.wait()
        else:
            receive = dist.irecv(out, None if kind == 1 else source, group=group, tag=tag)
            send = dist.isend(data, to, group=group, tag=tag)
            receive.wait()
            self.finish(send, lambda: None)
        self.expect(out, values(count, dtype, source, salt), "message")

    def objects(self) -> None:
        group, ranks, is_member = self.draw()
        if is_member:
            out: list[Any] = [None] * len(ranks)
            dist.all_gather_object(out, {"rank": self.rank}, group=group)
            if self.is_even and out != [{"rank": rank} for rank in ranks]:
                raise Wrong(f"all_gather_object: {out}")

    def make_group(self) -> None:
        ranks = sorted(self.shared.sample(self.all_ranks, self.shared.randint(1, self.n_ranks)))
        group = dist.new_group(ranks, timeout=self.timeout)
        self.groups.append((group if self.rank in ranks else None, ranks))

    def end_group(self) -> None:
        if len(self.groups) < 2:
            return
        group, ranks = self.groups.pop(self.shared.randrange(1, len(self.groups)))
        if self.rank not in ranks:
            return
        if self.is_even and self.own.random() < 0.5:
            self.settle()
        how = self.own.choice(("destroy", "destroy", "drop", "keep"))
        if how == "destroy":
            dist.destroy_process_group(group)
        elif how == "keep":
            self.kept.append(group)

    def chain(self) -> None:
        """A callback that starts another collective."""
        group, ranks, is_member = self.draw()
        if not is_member:
            return

        def then(future: Any) -> torch.Tensor:
            again = dist.all_reduce(future.value()[0].clone(), group=group, async_op=True)
            return again.get_future().wait()[0]

        future = dist.all_reduce(torch.ones(500), group=group, async_op=True).get_future().then(then)
        found = future.wait()
        found = found[0] if isinstance(found, (list, tuple)) else found
        self.expect(found, torch.full((500,), float(len(ranks) ** 2)), "chain")

    def ddp(self) -> None:
        group, ranks, is_member = self.draw()
        salt = self.shared.randrange(100)
        if not is_member:
            return
        torch.manual_seed(salt)
        model = torch.nn.Linear(4, 3)
        replica = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
        replica(values(4, torch.float32, self.rank, salt)).sum().backward()
        wanted = stack(4, torch.float32, ranks, salt).sum(0).div(len(ranks)).expand(3, 4)
        if self.is_even and not torch.allclose(model.weight.grad, wanted):
            raise Wrong(f"DDP: {model.weight.grad} instead of {wanted}")
        if self.own.random() < 0.3:
            self.kept.append(replica)

    # What a rank does on its own

    def settle(self) -> None:
        listed, self.pending = self.pending, []
        futures, self.futures = self.futures, []
        for thing, check in self.own.sample(listed + futures, len(listed + futures)):
            thing.wait()
            check()

    def wait_together(self) -> None:
        """Two threads wait for the same works, and so does this one."""
        listed, self.pending = self.pending, []

        def use() -> None:
            for work, check in listed:
                work.wait()
                work.is_completed()
                check()

        self.use_together((*ERRORS, Wrong), use)

    def throw(self) -> None:
        """An exception through frames that hold works and groups."""
        try:
            work, group = self.pending[-1:], self.groups[-1]
            raise Deliberate
        except Deliberate as error:
            error.args = (error, work, group)  # a cycle, with its traceback

    def fork(self) -> None:
        fork_and_use(self.use_in_child)

    def fork_in_call(self) -> None:
        """Another thread is somewhere in the backend."""

        def call() -> None:
            dist.all_reduce(torch.ones(1000), group=self.alone, async_op=True).get_future().wait()

        self.fork_beside(ERRORS, call, 2, self.fork)

    def use_in_child(self) -> None:
        """A child is no rank: calls raise, and what it has can be dropped.

        It may not destroy groups, nor end as an interpreter does, which destroys them: threads of the parent, also those
        of the backend itself, may have had its locks.
        """
        try:
            dist.all_reduce(torch.ones(3))
            os._exit(9)
        except ERRORS:
            pass
        # A FileStore that goes would count this process out, although its parent is still there, and remove the file.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.distributed_c10d._get_default_store()))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the backend warns of works that a child drops
        for end in self.own.sample((self.pending.clear, self.futures.clear, self.groups.clear, gc.collect), 4):
            end()
        os._exit(0)

    def thread(self) -> None:
        """A thread that uses a group of its own, and works of this one."""
        listed = [work for work, _ in self.pending[:3]]

        def use() -> None:
            try:
                for work in listed:
                    work.is_completed()
                    work.wait()
                for _ in range(5):
                    data = torch.ones(100)
                    dist.all_reduce(data, group=self.alone)
                gc.collect()
            except ERRORS:
                if self.is_even:
                    raise

        worker = threading.Thread(target=use)
        self.threads.append(worker)
        worker.start()
        if self.own.random() < 0.5:
            worker.join()

    def forget(self) -> None:
        self.kept.clear()

    # What goes wrong

    def leave(self) -> None:
        raise Leave

    def destroy_early(self) -> None:
        dist.destroy_process_group()

    def destroy_in_thread(self) -> None:
        def use() -> None:
            with contextlib.suppress(*ERRORS):
                dist.destroy_process_group()

        worker = threading.Thread(target=use)
        self.threads.append(worker)
        worker.start()

    def mix_up(self) -> None:
        dist.all_reduce(torch.ones(self.rank + 1), async_op=True)

    def use_in_threads(self) -> None:
        """Two threads use one group in no order, and one destroys it."""
        group = self.groups[-1][0]

        def use() -> None:
            with contextlib.suppress(*ERRORS):
                for _ in range(10):
                    dist.all_reduce(torch.ones(100), group=group, async_op=True)
                if group is not None:
                    dist.destroy_process_group(group)
                dist.barrier(group=group)

        for _ in range(2):
            worker = threading.Thread(target=use)
            self.threads.append(worker)
            worker.start()

    TOGETHER = (
        all_reduce, all_reduce, all_reduce, average, all_gather, all_gather, reduce_scatter, reduce_scatter, rooted,
        rooted, all_to_all, barrier, messages, messages, objects, make_group, make_group, end_group, chain, ddp,
    )  # fmt: skip
    ALONE = (Steps.collect, settle, wait_together, throw, fork, fork_in_call, thread, forget)
    WEIGHTS = (3, 3, 3, 3, 1, 0.5, 3, 2)
    WRONG = (leave, destroy_early, destroy_in_thread, mix_up, use_in_threads)

    def run(self) -> None:
        try:
            dist.init_process_group(
                "shoal", init_method=f"file://{self.store}", rank=self.rank, world_size=self.n_ranks,
                timeout=self.timeout,
            )  # fmt: skip
            alone = [dist.new_group([rank], timeout=self.timeout) for rank in self.all_ranks]
            self.alone = alone[self.rank]
            self.groups.append((None, self.all_ranks))
            self.run_steps()
        except (*ERRORS, Leave):
            if self.is_even:
                raise

    def run_steps(self) -> None:
        for _ in range(self.shared.randint(3, 25)):
            try:
                self.step()
            except ERRORS:
                if self.is_even or self.own.random() < 0.3:
                    raise
        if self.is_even:
            self.settle()
            for worker in self.threads:
                worker.join()
            if self.shared.random() < 0.5:
                dist.barrier()

    def end(self, may_leave_open: bool) -> None:
        """Lets go of everything, in some order."""
        for worker in self.threads:
            worker.join()
        for name in self.own.sample(("pending", "futures", "groups", "kept", "alone", "threads"), 6):
            if self.own.random() < 0.2 and dist.is_initialized() and not may_leave_open:
                dist.destroy_process_group()
            self.__dict__.pop(name)
        gc.collect()
        if not may_leave_open and dist.is_initialized():
            dist.destroy_process_group()
        gc.collect()


# A rank as a process -------------------------------------------------------------------------------------------------


def fork_and_use(use: Callable[[], None]) -> None:
    child = fork_quietly()
    if child == 0:
        use()
    status = os.waitpid(child, 0)[1]
    if status != 0:
        raise Wrong(f"a child of fork() has ended with status {status}")


def count_kept(with_idle: bool) -> dict[str, int]:
    """What a program must not leave behind. Threads of the backend, which run callbacks, wait for more for half a minute:
    they are only counted if there is time for that."""
    n_threads = len(os.listdir("/proc/self/task")) if with_idle else threading.active_count()
    return {"descriptors": len(os.listdir("/proc/self/fd")), "threads": n_threads}


def settle_and_count(most: dict[str, int] | None, with_idle: bool) -> dict[str, int]:
    """What ends by itself is given a moment."""
    until = time.monotonic() + (60.0 if with_idle else 10.0)
    while True:
        gc.collect()
        found = count_kept(with_idle)
        if most is None or all(found[name] <= most[name] for name in found) or time.monotonic() > until:
            return found
        time.sleep(0.02)


def warm_up(folder: str, rank: int) -> None:
    """Makes what is made once and stays: threads of the backend and of autograd, and lazy imports."""
    store = f"file://{folder}/alone-{rank}"
    dist.init_process_group("shoal", init_method=store, rank=0, world_size=1)
    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(10)]
    torch.futures.wait_all([work.get_future().then(lambda future: 0) for work in works])
    replica = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    replica(torch.ones(2)).sum().backward()
    del works, replica
    dist.destroy_process_group()


def run_rank(seed: int, n_ranks: int, rank: int, folder: str, repeat: int) -> None:
    warm_up(folder, rank)
    before, memory = settle_and_count(None, repeat > 1), 0
    # In one of five programs the last run leaves its groups to the end of the interpreter.
    leaves_open = random.Random(seed + 99).random() < 0.2
    for i in range(repeat):
        program = Program(seed, n_ranks, rank, f"{folder}/store-{i}")
        program.run()
        program.end(may_leave_open=leaves_open and i == repeat - 1)
        del program
        if i == repeat // 2:
            gc.collect()
            memory = read_memory()
    if leaves_open:
        return
    after = settle_and_count(before, repeat > 1)
    if any(after[name] > before[name] for name in after):
        files = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        raise Wrong(f"{before} at the beginning, {after} at the end, {files}")
    if repeat > 3 and read_memory() > memory + GROWTH_MAX:
        raise Wrong(f"memory grew from {memory} to {read_memory()} bytes")


def start_rank(seed: int, n_ranks: int, rank: int, folder: str, repeat: int) -> int:
    """Forks a rank; gives the process. The rank leaves through the end of the interpreter."""
    child = fork_quietly()
    if child != 0:
        return child
    os.setsid()
    output = os.open(f"{folder}/output-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    faulthandler.enable()
    # A forked child makes torch's pool of threads again when a thread first sets their number. Two threads must not do
    # so at once ("Invalid thread pool!"), and one that has set it before the fork does not do so again by itself.
    torch.set_num_threads(torch.get_num_threads())
    try:
        run_rank(seed, n_ranks, rank, folder, repeat)
    except ChildEnds:
        raise
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    raise ChildEnds(0)


# All ranks -----------------------------------------------------------------------------------------------------------


def wait_for(process: int, until: float) -> str:
    """Waits for a process; gives what is wrong with its end."""
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return "" if status == 0 else f"status {os.waitstatus_to_exitcode(status)}\n"
        if time.monotonic() > until:
            os.killpg(process, signal.SIGABRT)  # faulthandler tells where it is, and where its children are
            os.waitpid(process, 0)
            return "hangs\n"
        time.sleep(0.005)


def run_program(seed: int, repeat: int) -> str:
    """Runs a program; gives what went wrong, or nothing."""
    n_ranks = 1 + random.Random(seed + 12345).randrange(4)
    problems = []
    folder = tempfile.mkdtemp(prefix="shoal-torch-")  # without `with`, through which ranks would leave
    ranks = [start_rank(seed, n_ranks, rank, folder, repeat) for rank in range(n_ranks)]
    until = time.monotonic() + DEADLINE_S * repeat
    for rank, process in enumerate(ranks):
        problem = wait_for(process, until)
        with open(f"{folder}/output-{rank}", errors="replace") as file:
            problem += file.read()
        if problem:
            problems.append(f"seed {seed}, rank {rank} of {n_ranks}: {problem}")
    shutil.rmtree(folder)
    return "".join(problems)


def run_some(seeds: range, repeat: int) -> None:
    """The programs of one job. The status says how many have failed, up to MOST_TOLD."""
    building.load()
    torch.set_num_threads(1)
    n_failed = 0
    for seed in seeds:
        problem = run_program(seed, repeat)
        n_failed += bool(problem)
        print(problem, end="", flush=True)
    sys.exit(min(n_failed, MOST_TOLD))


def main() -> None:
    parser = make_parser("Random programs on the backend of torch.distributed.")
    parser.add_argument("--job", type=int)
    given = parser.parse_args()
    if given.job is not None:
        run_some(range(given.first + given.job, given.first + given.count, given.jobs), given.repeat)
        return
    building.load()  # compiled once
    before = list_shared_memory()
    command = [sys.executable, __file__, "--count", str(given.count), "--first", str(given.first)]
    command += ["--jobs", str(given.jobs), "--repeat", str(given.repeat), "--job"]
    jobs = [subprocess.Popen([*command, str(job)]) for job in range(given.jobs)]
    n_failed = sum(abs(job.wait()) for job in jobs)
    conclude(given.count, n_failed, before)


if __name__ == "__main__":
    main()
