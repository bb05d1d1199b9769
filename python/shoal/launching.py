# SPDX-License-Identifier: MIT
"""Ranks as processes of this program, for tests and notebooks."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import time
import traceback
import uuid
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from .errors import CancelledError, Error, PeerError
from .worlds import World, close_all

__all__ = ["LaunchError", "launch"]

# After one rank has failed, the others have this long to end with what they know.
_GRACE_S = 5.0


class LaunchError(Exception):
    """A rank has ended without an answer: killed by a signal, or by os._exit."""

    def __init__(self, text: str, rank: int) -> None:
        super().__init__(text)
        self.rank = rank

    def __reduce__(self) -> tuple[object, ...]:
        return (LaunchError, (str(self), self.rank))


class _Traceback(Exception):
    """The traceback of a rank, as text: the cause of the exception that `launch` raises."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return self.text


def _portable(error: BaseException, rank: int) -> BaseException:
    """The exception, or one with its text, if it cannot be pickled and made again."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return LaunchError(f"rank {rank}: {type(error).__name__}: {error}", rank)
    return error


def _run_rank(
    pipe: multiprocessing.connection.Connection, function: Callable[..., Any], arguments: tuple[Any, ...], rank: int,
    n_ranks: int, key: str, timeout: float,
) -> None:  # fmt: skip
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with World(n_ranks, rank, key=key, timeout=timeout) as world:
            answer = (True, function(world, *arguments), "")
    except BaseException as error:
        answer = (False, _portable(error, rank), f'\n"""rank {rank}\n{traceback.format_exc()}"""')
    try:
        pipe.send(answer)
    except Exception as error:
        pipe.send((False, TypeError(f"rank {rank}: what it gives cannot be sent to its parent: {error}"), answer[2]))
    pipe.close()
    close_all()  # the process ends without that: an exception may have kept its world open


def _describe_end(rank: int, process: BaseProcess) -> LaunchError:
    code = process.exitcode or 0
    if code < 0:
        return LaunchError(f"rank {rank} was killed by signal {-code} ({signal.strsignal(-code)})", rank)
    return LaunchError(f"rank {rank} exited with status {code} before its function had ended", rank)


class _Job:
    """The processes of a launch, and what they have answered."""

    def __init__(self, processes: list[BaseProcess], pipes: list[multiprocessing.connection.Connection]) -> None:
        self.processes = processes
        self.pipes = pipes
        self.results: list[Any] = []
        self.failures: list[tuple[int, BaseException, str]] = []

    def collect(self) -> None:
        self.results = [None] * len(self.pipes)
        left = dict(zip(self.pipes, range(len(self.pipes))))
        until: float | None = None
        while left:
            timeout = None if until is None else max(until - time.monotonic(), 0.0)
            ready = multiprocessing.connection.wait(list(left), timeout)
            if not ready and until is not None and time.monotonic() >= until:
                return
            for pipe in ready:
                assert isinstance(pipe, multiprocessing.connection.Connection)
                self._take(left.pop(pipe), pipe)
            if self.failures and until is None:
                until = time.monotonic() + _GRACE_S

    def _take(self, rank: int, pipe: multiprocessing.connection.Connection) -> None:
        try:
            is_good, value, text = pipe.recv()
        except EOFError:
            self.processes[rank].join()
            self.failures.append((rank, _describe_end(rank, self.processes[rank]), ""))
            return
        if is_good:
            self.results[rank] = value
        else:
            self.failures.append((rank, value, text))

    def kill(self) -> None:
        for process in self.processes:
            if process.pid is not None:  # it was started
                process.kill()

    def end(self) -> None:
        started = [process for process in self.processes if process.pid is not None]
        try:
            for process in started:
                if process.is_alive() and self.failures:
                    process.join(0.2)
                if process.is_alive() and self.failures:
                    process.kill()
                process.join()
        except BaseException:  # of a signal handler
            self.kill()
            raise
        finally:
            for pipe in self.pipes:
                pipe.close()

    def raise_first(self) -> None:
        """The failure that others only heard of: what a PeerError tells of is told by its own rank, and an exception
        of the program may be a MismatchError elsewhere."""
        if not self.failures:
            return
        rank, error, text = min(
            self.failures,
            key=lambda failure: (isinstance(failure[1], (PeerError, CancelledError)), isinstance(failure[1], Error)),
        )
        raise error from (_Traceback(text) if text else None)


def launch(
    function: Callable[..., Any], n_ranks: int, *arguments: Any, timeout: float = 0.0, method: str = "fork"
) -> list[Any]:
    """Runs ``function(world, *arguments)`` on `n_ranks` processes of this machine, and gives their results in rank order.

    If a rank raises, the exception is raised here, with the rank's traceback as its cause; a rank that dies is a
    LaunchError. `method` is that of multiprocessing: "fork" takes functions of notebooks, "spawn" starts afresh.

    >>> launch(lambda world: world.rank * 10, 3)
    [0, 10, 20]
    """
    if n_ranks < 1:
        raise ValueError(f"launch: n_ranks is {n_ranks}, at least 1")
    context = multiprocessing.get_context(method)
    key = f"launch-{os.getpid()}-{uuid.uuid4().hex}"
    processes: list[BaseProcess] = []
    pipes: list[multiprocessing.connection.Connection] = []
    job = _Job(processes, pipes)
    try:
        for rank in range(n_ranks):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(  # type: ignore[attr-defined]
                target=_run_rank, args=(theirs, function, arguments, rank, n_ranks, key, timeout), name=f"rank {rank}"
            )
            processes.append(process)
            pipes.append(ours)
            process.start()
            theirs.close()
        job.collect()
    except BaseException:
        job.kill()
        raise
    finally:
        job.end()
    job.raise_first()
    return job.results
