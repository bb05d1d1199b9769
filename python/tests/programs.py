# SPDX-License-Identifier: MIT
"""What random programs share: those on the package (random_programs.py), and those on the backend of torch.distributed
(torch_programs.py)."""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, ClassVar


class Deliberate(Exception):
    """Thrown by a program at itself."""


class Leave(Exception):
    """A rank goes, in the middle of the program."""


class ChildEnds(SystemExit):
    """A child of fork() ends as an interpreter does."""


class Steps:
    """The steps of a program on one rank: what all ranks do together, what each does on its own, and what goes wrong."""

    TOGETHER: ClassVar[tuple[Callable[[Any], None], ...]]
    ALONE: ClassVar[tuple[Callable[[Any], None], ...]]
    WEIGHTS: ClassVar[tuple[float, ...]]  # of ALONE
    WRONG: ClassVar[tuple[Callable[[Any], None], ...]]
    is_even: bool  # the ranks agree, and no exception may come
    shared: random.Random  # the same on all ranks
    own: random.Random
    threads: list[threading.Thread]

    def step(self) -> None:
        self.shared.choice(self.TOGETHER)(self)
        if self.own.random() < 0.5:
            self.own.choices(self.ALONE, self.WEIGHTS)[0](self)
        if not self.is_even and self.own.random() < 0.15:
            self.own.choice(self.WRONG)(self)

    def collect(self) -> None:
        gc.collect()

    def use_together(
        self, errors: tuple[type[BaseException], ...], use: Callable[[], None], use_here: Callable[[], None] | None = None
    ) -> None:
        """Two threads use the same things, and so does this one: in the same way, or in its own, whose errors it gets."""
        failures: list[BaseException] = []

        def use_and_note() -> None:
            try:
                use()
            except errors as error:
                failures.append(error)

        workers = [threading.Thread(target=use_and_note) for _ in range(2)]
        self.threads += workers
        for worker in workers:
            worker.start()
        (use_here or use_and_note)()
        for worker in workers:
            worker.join()
        if failures and self.is_even:
            raise failures[0]

    def fork_beside(
        self, errors: tuple[type[BaseException], ...], call: Callable[[], object], n_forks: int, fork: Callable[[], None]
    ) -> None:
        """Forks while another thread makes a call again and again."""
        stop = threading.Event()

        def use() -> None:
            try:
                while not stop.is_set():
                    call()
            except errors:
                if self.is_even:
                    raise

        worker = threading.Thread(target=use)
        self.threads.append(worker)
        worker.start()
        try:
            for _ in range(n_forks):
                time.sleep(self.own.uniform(0.0, 0.003))
                fork()
        finally:
            stop.set()
        worker.join()


def fork_quietly() -> int:
    """Python 3.12 warns of threads, which are there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def read_memory() -> int:
    """The memory of this process, without what the allocator keeps."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# Running many --------------------------------------------------------------------------------------------------------


def make_parser(description: str) -> argparse.ArgumentParser:
    """The options that both have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--repeat", type=int, default=1)
    return parser


def list_shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


def conclude(count: int, n_failed: int, before: set[str]) -> None:
    """Says how many programs have failed, and what they have left in shared memory since `before`; exits."""
    left = sorted(name for name in list_shared_memory() - before if "shoal" in name)
    print(f"{count} programs, {n_failed} failed, {len(left)} names left in /dev/shm {left[:5]}")
    sys.exit(1 if n_failed or left else 0)
