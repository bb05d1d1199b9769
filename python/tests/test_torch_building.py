# SPDX-License-Identifier: MIT
"""The backend is compiled once, kept, and not taken from where others can write."""

import errno
import os
import stat
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from shoal.torch import building

# Stands for the compiler: counts its calls, takes a moment, and gives what was compiled before.
COMPILER = """#!/bin/bash
[[ $1 == -print-* ]] && exec c++ "$@"
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


# What a compiler says and does, and what the error has of it.
FAILURES = {
    "echo 'backend.cpp:1: error: no such thing'; exit 1": "no such thing; ",
    "echo ld: final link failed: No space left on device; echo 'collect2: error: ld returned 1 exit status'; exit 1":
        "ld: final link failed: No space left on device | collect2: error: ld returned 1 exit status; ",
    "seq 1 9; exit 1": "5 | 6 | 7 | 8 | 9; ",
    "exit 3": "c++ ended with exit status 3 and said nothing; ",
    "kill -9 $$": "c++ ended with signal 9 and said nothing; ",
}  # fmt: skip


@pytest.mark.parametrize("does", FAILURES)
def test_a_compiler_that_fails(cache, does):
    (cache.parent / "c++").write_text(f"#!/bin/sh\nexec >&2\n{does}\n")
    with pytest.raises(building.BuildError) as raised:
        building.build()
    text = str(raised.value)
    assert FAILURES[does] in text and text.endswith("run: python -m shoal.torch build"), text
    names = sorted(path.suffix for path in cache.iterdir())
    assert names == ["", ".log"]  # the lock, and what the compiler said


def test_a_compiler_that_cannot_be_run(cache):
    (cache.parent / "c++").write_bytes(b"\x7fnot a program")
    with pytest.raises(building.BuildError, match="Exec format error.*python -m shoal.torch build"):
        building.build()


@pytest.mark.parametrize("fails", ["mkstemp", "open", "fsync"])
def test_a_full_disk(cache, monkeypatch, fails):
    def fail(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    owner = {"mkstemp": building.tempfile, "open": building, "fsync": building.os}[fails]
    monkeypatch.setattr(owner, fails, fail, raising=fails != "open")
    with pytest.raises(building.BuildError, match="No space left on device.*python -m shoal.torch build"):
        building.build()
    monkeypatch.undo()
    assert not [path for path in cache.iterdir() if path.name != "lock"]


def test_the_log_of_a_full_disk(cache, monkeypatch):
    (cache.parent / "c++").write_text("#!/bin/sh\necho 'error: No space left on device' >&2; exit 1\n")

    def fail(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(building.Path, "write_text", fail)
    with pytest.raises(building.BuildError, match=r"error: No space left on device\. When"):
        building.build()


def test_no_home(monkeypatch):
    for name in ("SHOAL_TORCH_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(building.Path, "home", home)
    with pytest.raises(building.BuildError, match="no home.*SHOAL_TORCH_CACHE.*python -m shoal.torch build"):
        building.find()


PROGRAM_OF_OTHERS = """
import os
from shoal.torch import building
known = building.key()
building.key = lambda: known  # the source may be in a folder of root's own
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
try:
    print(building.find())
except building.BuildError as error:
    print("BuildError", error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_folder_of_root_for_others(cache, monkeypatch):
    """chmod 755 of the folder is enough, and without it the error says so."""

    def find():
        return subprocess.run([sys.executable, "-c", PROGRAM_OF_OTHERS], capture_output=True, text=True).stdout

    with tempfile.TemporaryDirectory() as above:  # others cannot reach those of pytest
        os.chmod(above, 0o755)
        folder = Path(above) / "cache"
        monkeypatch.setenv("SHOAL_TORCH_CACHE", str(folder))
        path = building.build()
        answer = find()
        assert "Permission denied" in answer and answer.endswith("run: python -m shoal.torch build\n"), answer
        folder.chmod(0o755)
        assert find() == f"{path}\n" and stat.S_IMODE(path.stat().st_mode) == 0o755
        path.chmod(0o700)
        assert "Permission denied" in find()


@pytest.mark.parametrize("damage", ["shorter", "other", "empty"])
def test_a_damaged_file_is_compiled_again(cache, damage, capsys):
    path = building.build()
    data = path.read_bytes()
    other = bytearray(data)
    other[len(other) // 2] ^= 1
    path.write_bytes({"shorter": data[: len(data) // 2], "other": bytes(other), "empty": b""}[damage])
    assert building.find() is None
    assert building.build() == path == building.find() and calls(cache) == 2
    assert f"{path} is damaged" in capsys.readouterr().err


def test_a_file_that_cannot_be_loaded(cache, monkeypatch):
    (cache.parent / "c++").write_text(
        '#!/bin/sh\nwhile [ $# -gt 0 ] && [ "$1" != -o ]; do shift; done\n[ $# = 0 ] || echo nothing >"$2"\n'
    )
    monkeypatch.setattr(building, "_loaded", None)
    for _ in range(2):
        with pytest.raises(building.BuildError, match="cannot be loaded.*python -m shoal.torch build --again"):
            building.load()
        assert not building.is_loaded()


def test_what_killed_builds_left(cache):
    building.build()
    old, new = cache / ".building-old.so", cache / ".building-new.so"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    building.build()
    assert not old.exists() and new.exists()


def test_options_that_cannot_be_read(cache, monkeypatch):
    monkeypatch.setenv("CXXFLAGS", "-O3 '-g")
    with pytest.raises(building.BuildError, match="CXXFLAGS cannot be read.*python -m shoal.torch build"):
        building.build()


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
    monkeypatch.setenv("CXXFLAGS", "-O3")
    keys.add(building.key())
    monkeypatch.setenv("CXX", "another-compiler")
    keys.add(building.key())
    assert len(keys) == 7


def test_the_command(cache):
    folder = cache.parent / "other"
    answer = subprocess.run(
        [sys.executable, "-m", "shoal.torch", "build", "--folder", str(folder)], capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == str(folder / f"shoal_torch-{building.key()}.so")
    assert f"set SHOAL_TORCH_CACHE={folder} CXX={cache.parent / 'c++'}\n" in answer.stderr and calls(cache) == 1
    environment = {**os.environ, "CXX": "no-such-compiler"}
    answer = subprocess.run(
        [sys.executable, "-m", "shoal.torch", "build"], capture_output=True, text=True, env=environment
    )
    assert answer.returncode == 1 and "no no-such-compiler here" in answer.stderr


def test_the_command_names_the_shared_library_of_streams(cache):
    """With a copy of its own in the file, a refused call crashed on the numbers of its text."""
    assert any(os.path.basename(part) == "libstdc++.so.6" for part in building.command(cache / "x.so"))
    dynamic = subprocess.run(["readelf", "-d", building.build()], capture_output=True, text=True, check=True).stdout
    assert "[libstdc++.so.6]" in dynamic
