# SPDX-License-Identifier: MIT
"""Ctrl-C while a rank waits in FSDP or in a checkpoint for others that do not come."""

import subprocess
import sys

import pytest

pytest.importorskip("numpy")

PROGRAM = """
import os, signal, sys, threading, time
import numpy, shoal

def interrupt():
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)

how, folder = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started this with SIGINT ignored
if how == "own handler":
    signal.signal(signal.SIGINT, lambda *_: print("handled", flush=True))
world = shoal.World(timeout=5.0 if how == "own handler" else 0.0)
fsdp = shoal.Fsdp(world.make_mesh((1, world.n_ranks), ("dp", "tp")) if how == "mesh" else world.group)
unit = fsdp.add_unit({"w": numpy.ones((4, 2))})
with unit.forward():
    pass
fsdp.end_forward()
said = []
if world.rank == 0:
    threading.Thread(target=interrupt).start()
    try:
        if how == "save":
            shoal.save(world.group, folder, {"w": numpy.ones(3)})
        elif how == "load":
            shoal.load(world.group, folder, {"w": numpy.ones(3)})
        elif how == "gather":
            unit["w"].gather()
        else:
            with unit.forward():
                pass
    except KeyboardInterrupt:
        said.append("interrupted")
    except shoal.Error as error:
        said.append(type(error).__name__)
    world.store.set("over", "yes")
else:
    world.store.get("over", timeout=120.0)
    try:
        with unit.forward():
            pass
        world.group.barrier()
    except shoal.Error as error:
        said.append(type(error).__name__ + (" of Ctrl-C" if "Ctrl-C" in str(error) else ""))
os.write(1, f"rank {world.rank} {' '.join(said)}\\n".encode())
"""


def run(tmp_path, how):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "shoal", "run", "--no-label", "-n", "2", sys.executable, str(program), how]
    done = subprocess.run([*command, str(tmp_path / "none")], stdout=subprocess.PIPE, text=True, timeout=240)
    return sorted(done.stdout.splitlines())


@pytest.mark.parametrize("how", ["forward", "mesh", "gather", "save", "load"])
def test_ctrl_c(tmp_path, how):
    assert run(tmp_path, how) == ["rank 0 interrupted", "rank 1 CancelledError of Ctrl-C"]


def test_a_handler_of_the_program_is_left_alone(tmp_path):
    lines = run(tmp_path, "own handler")
    assert lines[0] == "handled" and lines[1] == "rank 0 TimeoutError"
