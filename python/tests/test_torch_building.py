# SPDX-License-Identifier: MIT
"""The backend is compiled once, kept, and not taken from where others can write."""

import os
import stat
import subprocess
import sys
import textwrap

import pytest
from shoal.torch import building

# Stands for the compiler: counts its calls, takes a moment, and gives what was compiled before.
COMPILER = """#!/bin/bash
echo "$@" >>"$(dirname "$0")/calls"
sleep 0.3
while [[ $1 != -o ]]; do shift; done
cp {compiled} "$2"
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty folder, and a compiler whose calls are in the file `calls`."""
    compiled = building.build()
    compiler = tmp_path / "c++"
    compiler.write_text(COMPILER.format(compiled=compiled))
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("SHOAL_TORCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def calls(cache):
    path = cache.parent / "calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_ranks_that_start_together_compile_once(cache):
    program = textwrap.dedent(
        """
        import sys, torch, torch.distributed as dist, shoal.torch
        rank = int(sys.argv[1])
        dist.init_process_group("shoal", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
        value = torch.ones(2)
        dist.all_reduce(value)
        print(value.tolist())
        dist.destroy_process_group()
        """
    )
    ranks = [
        subprocess.Popen([sys.executable, "-c", program, str(rank), str(cache.parent / "store")],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]  # fmt: skip
    answers = [rank.communicate(timeout=120) for rank in ranks]
    assert [answer[0] for answer in answers] == ["[2.0, 2.0]\n"] * 2, answers
    assert calls(cache) == 1
    lines = "".join(answer[1] for answer in answers)
    assert lines.count("shoal.torch: compiling the backend for torch") == 1 and " s: " in lines
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_what_is_there_is_not_compiled_again(cache):
    first = building.build()
    assert building.build() == building.find() == first and calls(cache) == 1
    assert building.build(again=True) == first and calls(cache) == 2
    assert sorted(path.name for path in cache.iterdir()) == ["lock", first.name]


def test_a_read_only_folder_is_enough_to_load(cache):
    building.build()
    cache.chmod(0o500)
    assert building.find() is not None


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_can_write_is_refused(cache, mode):
    building.build()
    cache.chmod(mode)
    for refused in (building.find, building.build):
        with pytest.raises(building.BuildError, match=f"mode {mode:04o}.*python -m shoal.torch build"):
            refused()


def test_a_folder_that_cannot_be_made(cache, monkeypatch):
    monkeypatch.setenv("SHOAL_TORCH_CACHE", "/proc/no/such")
    with pytest.raises(building.BuildError, match="/proc/no/such cannot be made.*python -m shoal.torch build"):
        building.build()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(cache):
    cache.mkdir(mode=0o500)
    with pytest.raises(building.BuildError, match="cannot be written.*python -m shoal.torch build"):
        building.build()


def test_no_compiler(cache, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O3")
    with pytest.raises(building.BuildError, match="no no-such-compiler here.*python -m shoal.torch build"):
        building.build()


def test_no_headers(cache, monkeypatch, tmp_path):
    monkeypatch.setattr(building.torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    with pytest.raises(building.BuildError, match="no headers of c10d.*python -m shoal.torch build"):
        building.build()


def test_a_compiler_that_fails(cache, monkeypatch):
    (cache.parent / "c++").write_text("#!/bin/sh\necho 'backend.cpp:1: error: no such thing' >&2; exit 1\n")
    with pytest.raises(building.BuildError, match="no such thing.*python -m shoal.torch build"):
        building.build()
    names = sorted(path.suffix for path in cache.iterdir())
    assert names == ["", ".log"]  # the lock, and what the compiler said


def test_the_key_has_all_that_matters(monkeypatch):
    keys = {building.key()}
    monkeypatch.setattr(building.torch, "__version__", "9.9")
    keys.add(building.key())
    monkeypatch.setattr(building.platform, "machine", lambda: "pdp11")
    keys.add(building.key())
    monkeypatch.setattr(building, "_cxx11_abi", lambda: not building.torch._C._GLIBCXX_USE_CXX11_ABI)
    keys.add(building.key())
    monkeypatch.setattr(building._api, "SONAME", "libshoal.so.9")
    keys.add(building.key())
    assert len(keys) == 5


def test_the_command(cache):
    folder = cache.parent / "other"
    answer = subprocess.run(
        [sys.executable, "-m", "shoal.torch", "build", "--folder", str(folder)], capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == str(folder / f"shoal_torch-{building.key()}.so")
    assert f"SHOAL_TORCH_CACHE={folder}" in answer.stderr and calls(cache) == 1
    environment = {**os.environ, "CXX": "no-such-compiler"}
    answer = subprocess.run(
        [sys.executable, "-m", "shoal.torch", "build"], capture_output=True, text=True, env=environment
    )
    assert answer.returncode == 1 and "no no-such-compiler here" in answer.stderr
