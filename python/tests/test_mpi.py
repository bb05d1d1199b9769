# SPDX-License-Identifier: MIT
"""Worlds on communicators of mpi4py, under the mpirun of the MPI that it was built with."""

import os
import shutil
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, numpy, shoal
from mpi4py import MPI

def say(line):  # in one piece: launchers mix what ranks print
    os.write(1, f"rank {MPI.COMM_WORLD.rank} {line}\\n".encode())

comm = MPI.COMM_WORLD
if sys.argv[1] == "part":
    comm = comm.Split(comm.rank % 2, comm.rank)
world = shoal.World.from_mpi(comm, timeout=60.0)
assert (world.rank, world.n_ranks) == (comm.rank, comm.size)
data = numpy.full(3, world.rank + 1.0)
if sys.argv[1] == "differ":
    try:
        world.group.all_reduce(data[: 3 - comm.rank])
    except shoal.MismatchError as error:
        say("mismatch")
else:
    world.group.all_reduce(data)
    assert comm.allreduce(world.rank + 1.0) == data[0]
    say(data.tolist())
if sys.argv[1] != "exit":
    world.close()
"""


def find_mpirun():
    pytest.importorskip("numpy")
    mpi4py = pytest.importorskip("mpi4py")
    asked = "from mpi4py import MPI; print(MPI.Get_library_version())"
    said = subprocess.run([sys.executable, "-c", asked], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    name = "mpirun.openmpi" if "Open MPI" in said.stdout else "mpirun.mpich"
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"mpi4py {mpi4py.__version__} needs {name}")
    options = ["--oversubscribe", "--allow-run-as-root"] if name == "mpirun.openmpi" else []
    return [found, *options]


def run(tmp_path, how, n_ranks):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [*find_mpirun(), "-n", str(n_ranks), sys.executable, str(program), how]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120, env=os.environ)
    assert done.returncode == 0
    return sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))


@pytest.mark.parametrize("transport", [None, "mpi"])
def test_all_ranks(tmp_path, monkeypatch, transport):
    if transport is not None:
        monkeypatch.setenv("SHOAL_TRANSPORT", transport)
    assert run(tmp_path, "all", 3) == [f"rank {rank} [6.0, 6.0, 6.0]" for rank in range(3)]


def test_a_part_of_them(tmp_path):
    assert run(tmp_path, "part", 3) == [
        "rank 0 [3.0, 3.0, 3.0]", "rank 1 [1.0, 1.0, 1.0]", "rank 2 [3.0, 3.0, 3.0]",
    ]  # fmt: skip


def test_ranks_that_differ(tmp_path):
    assert run(tmp_path, "differ", 2) == ["rank 0 mismatch", "rank 1 mismatch"]


def test_a_world_that_the_exit_closes(tmp_path):
    assert run(tmp_path, "exit", 2) == [f"rank {rank} [3.0, 3.0, 3.0]" for rank in range(2)]
