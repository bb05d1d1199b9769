# SPDX-License-Identifier: MIT
"""What random programs (random_programs.py) do with contexts of FSDP and with checkpoints.

Each function gets the program of a rank. A step on n ranks, on parameters of ones with gradients of rank + 1, ends with
parameters of 1 - (n + 1) / 2, which are saved and loaded again.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy
import shoal

OPTIONS: list[dict[str, Any]] = [
    {}, {"sharded": "gradients"}, {"sharded": "state"}, {"reshard": "never"}, {"replicated": True},
]  # fmt: skip


def make(group: shoal.Group, n_units: int, options: dict[str, Any]) -> shoal.Fsdp:
    fsdp = shoal.Fsdp(group, **options)
    for i in range(n_units):
        fsdp.add_unit({f"{i}.w": numpy.ones((2 * i + 3, 2), dtype="f4"), f"{i}.b": numpy.ones(i, dtype="f4")})
    return fsdp


def subtract(param: shoal.Param, shard: Any, grad: Any) -> None:
    shard -= grad


def run_step(fsdp: shoal.Fsdp, amount: float) -> None:
    for unit in fsdp.units:
        with unit.forward():
            for param in unit:
                param.full.sum()
    for unit in reversed(fsdp.units):
        with unit.backward():
            for param in unit:
                param.full_grad[...] += amount
    fsdp.end_backward()
    fsdp.update(subtract)


def check_values(program: Any, fsdp: shoal.Fsdp, wanted: float) -> None:
    for param in fsdp:
        program.expect(set(param.gather().reshape(-1).tolist()) - {wanted}, set(), "FSDP: " + param.name)


def save_and_load(program: Any, group: shoal.Group, fsdp: shoal.Fsdp, number: int, is_in_background: bool) -> None:
    folder = os.path.join(program.folder, f"{program.key}-{number}")
    state = {"model": fsdp, "number": number}
    if is_in_background:
        saving = shoal.save_start(group, folder, state, step=1)
        if program.own.random() < 0.3:
            program.throw()
        saving.wait()
        saving.wait()
    else:
        shoal.save(group, folder, state, step=1)
    state["number"] = 0
    found = shoal.load(group, folder, state)
    program.expect((found.step, state["number"]), (1, number), "load")


def train(program: Any) -> None:
    """A context, a step, and a checkpoint, of all ranks of a group."""
    drawn, n_units = program.draw_group(), program.shared.randint(1, 3)
    options, is_in_background = program.shared.choice(OPTIONS), program.shared.random() < 0.5
    is_saved = program.shared.random() < 0.5
    program.number += 1
    if drawn is None:
        return
    group, ranks = drawn
    fsdp = make(group, n_units, options)
    run_step(fsdp, group.rank + 1.0)
    wanted = 1.0 - (len(ranks) + 1) / 2
    check_values(program, fsdp, wanted)
    if is_saved:
        save_and_load(program, group, fsdp, program.number, is_in_background)
        check_values(program, fsdp, wanted)
    end = program.own.choice(("close", "drop", "keep", "cycle"))
    if end == "close":
        fsdp.close()
    elif end == "keep":
        program.kept.append(fsdp if program.own.random() < 0.5 else fsdp["0.w"].shard)
    elif end == "cycle":
        ring: list[Any] = [fsdp, fsdp["0.w"]]
        ring.append(ring)


# What goes wrong -----------------------------------------------------------------------------------------------------


def close_while_training(program: Any) -> None:
    """Another thread closes the world, or the context, in the middle of steps and saves of this rank's own context."""
    group = program.world.make_group([program.rank], f"own{program.own.randrange(1000)}")
    what = program.own.choice(("world", "world", "context", "group"))
    with_saves = program.own.random() < 0.5
    fsdp = make(group, 3, program.own.choice(OPTIONS))
    wait_s = program.own.uniform(0.0, 0.02)
    closed = {"world": program.world, "context": fsdp, "group": group}[what]

    def close() -> None:
        time.sleep(wait_s)
        try:
            closed.close()
        except (BufferError, shoal.Error):
            pass

    worker = threading.Thread(target=close)
    program.threads.append(worker)
    worker.start()
    until = time.monotonic() + 0.2
    while time.monotonic() < until:
        run_step(fsdp, 1.0)
        fsdp.memory()
        if with_saves:
            program.number += 1
            save_and_load(program, group, fsdp, program.number, program.own.random() < 0.5)
        fsdp.add_unit if program.own.random() < 0.9 else make(group, 1, {}).close()


def train_beside_closing(program: Any) -> None:
    """Another thread closes the world while this one is in calls that wait for the other ranks."""
    closer = threading.Timer(program.own.uniform(0.0, 0.05), program.close_early)
    program.threads.append(closer)
    closer.start()
    group = program.groups[0][0]
    if program.own.random() < 0.5:
        run_step(make(group, 2, {}), 1.0)
    else:
        folder = os.path.join(program.folder, f"{program.key}-lost")
        shoal.save(group, folder, {"w": numpy.ones(1000), "rank": 1}, replaces=True)
