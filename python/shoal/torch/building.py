# SPDX-License-Identifier: MIT
"""Compiles the C++ part of the backend, once for each version of torch, and keeps it in a folder.

c10d has no stable binary interface, so that there is a file for each torch, Python, C++ ABI, machine and version of
Shoal. Its name has a hash of all of them, of the source, and of CXX and CXXFLAGS. The folder is SHOAL_TORCH_CACHE, or
``shoal/torch`` in XDG_CACHE_HOME or ``~/.cache``. It is made with mode 0700; a folder into which others could write is
refused, because what lies there is loaded. It may be on a disk that several hosts share: a file appears there whole or
not at all. A file ends with its own hash, which loaders ignore: to load a file that has lost a part kills the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch

from .. import _api, _library

__all__ = ["BuildError", "build", "cache_folder", "find", "is_loaded", "key", "load"]

_MODULE = "shoal_torch"
_package = Path(__file__).resolve().parent
_source = _package / "source"
_MANUAL = "python -m shoal.torch build"
_MARK = b"shoal-sha256:"  # what comes before the hash at the end of a file
_OLD_S = 3600.0  # nobody compiles that long
_cause = re.compile(r"\berror:|failed|No space|undefined reference|cannot find|ld returned")


class BuildError(ImportError):
    """The backend is not compiled yet and cannot be compiled here; the text says why, and what to do."""


def cache_folder() -> Path:
    """Where compiled files are kept."""
    named = os.environ.get("SHOAL_TORCH_CACHE")
    if named:
        return Path(named)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal" / "torch"
    except RuntimeError:
        raise BuildError(f"this user has no home directory for the backend: name a folder in SHOAL_TORCH_CACHE, and "
                         f"run: {_MANUAL}") from None  # fmt: skip


def key() -> str:
    """What the compiled file depends on, as a hash."""
    parts = [torch.__version__, str(torch.version.git_version), sysconfig.get_config_var("SOABI") or ""]
    parts += [str(int(_cxx11_abi())), platform.machine(), _api.SONAME, _api.VERSION]
    parts += [os.environ.get("CXX", ""), os.environ.get("CXXFLAGS", "")]
    digest = hashlib.sha256("\0".join(parts).encode())
    for path in sorted(_source.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:20]


def _cxx11_abi() -> bool:
    return bool(getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True))


def _describe() -> str:
    python = ".".join(str(number) for number in sys.version_info[:2])
    return f"for torch {torch.__version__}, Python {python}, {platform.machine()}"


def _file_in(folder: Path) -> Path:
    return folder / f"{_MODULE}-{key()}.so"


# The folder ----------------------------------------------------------------------------------------------------------


def _check_folder(folder: Path) -> None:
    """Whoever can write into the folder can run code here."""
    found = folder.stat()
    if found.st_uid not in (os.geteuid(), 0):
        raise BuildError(f"{folder} belongs to user {found.st_uid}, not to you: name a folder of your own in "
                         f"SHOAL_TORCH_CACHE, and run: {_MANUAL}")  # fmt: skip
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BuildError(f"others can write into {folder} (mode {stat.S_IMODE(found.st_mode):04o}): run chmod go-w on "
                         f"it, or name another folder in SHOAL_TORCH_CACHE, and run: {_MANUAL}")  # fmt: skip


def _make_folder(folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        _check_folder(folder)
    except OSError as error:
        raise BuildError(f"{folder} cannot be made ({error.strerror}): name a folder that you can write in "
                         f"SHOAL_TORCH_CACHE, and run: {_MANUAL}") from None  # fmt: skip
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BuildError(f"{folder} cannot be written, and has no complete file {_describe()}: where it can be, run "
                         f"{_MANUAL}, or name another folder in SHOAL_TORCH_CACHE")  # fmt: skip


def _remove_old(folder: Path) -> None:
    """What builds have left that were killed."""
    for path in folder.glob(".building-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _OLD_S:
                path.unlink()


def _seal(path: Path) -> None:
    """Appends the hash of a file, and waits until the disk has both."""
    digest = hashlib.sha256(path.read_bytes()).digest()
    with open(path, "ab") as file:
        file.write(_MARK + digest)
        file.flush()
        os.fsync(file.fileno())


def _is_complete(path: Path) -> bool:
    """Whether a file ends with its hash. Says so if there is one that does not."""
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return False
    size = len(data) - len(_MARK) - hashlib.sha256().digest_size
    if size > 0 and data[size:] == _MARK + hashlib.sha256(memoryview(data)[:size]).digest():
        return True
    print(f"shoal.torch: {path} is damaged", file=sys.stderr, flush=True)
    return False


def find() -> Path | None:
    """The compiled file, if there is a complete one."""
    folder = cache_folder()
    path = _file_in(folder)
    try:
        path.stat()
        _check_folder(folder)
        return path if _is_complete(path) else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BuildError(f"{path} cannot be read ({error.strerror}): its owner can make the folder and the file "
                         f"readable; or name another one in SHOAL_TORCH_CACHE, and run: {_MANUAL}") from None  # fmt: skip


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time. Disks without locks are used without: then several may compile the same."""
    with open(folder / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass
        yield


# The compiler --------------------------------------------------------------------------------------------------------


def _options_in(variable: str) -> list[str]:
    try:
        return shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise BuildError(f"{variable} cannot be read ({error}): mend it, and run: {_MANUAL}") from None


def _find_compiler() -> list[str]:
    named = _options_in("CXX")
    for compiler in [named] if named else [["c++"], ["g++"], ["clang++"]]:
        if shutil.which(compiler[0]):
            return compiler
    tried = named[0] if named else "c++, g++ or clang++"
    raise BuildError(f"the backend must be compiled {_describe()}, and there is no {tried} here: install a C++ "
                     f"compiler, or set CXX, and run: {_MANUAL}")  # fmt: skip


def _find_includes() -> list[Path]:
    installed = Path(torch.__file__).resolve().parent / "include"
    if not (installed / "torch" / "csrc" / "distributed" / "c10d").is_dir():
        raise BuildError(f"the backend must be compiled {_describe()}, and {installed} has no headers of c10d: install "
                         f"them (Debian: libtorch-dev and pybind11-dev), and run: {_MANUAL}")  # fmt: skip
    shoal = [folder for folder in (_package.parent / "include", _package.parents[2] / "include")
             if (folder / "shoal" / "shoal.h").exists()]  # fmt: skip
    return [installed, installed / "torch" / "csrc" / "api" / "include", Path(sysconfig.get_paths()["include"]), *shoal[:1]]


def _shared_runtime(compiler: list[str]) -> list[str]:
    """The C++ library as torch has it, a shared one.

    A compiler that has only the static one would put a second copy into the file, and streams of one copy crash in the
    other.
    """
    answer = subprocess.run([*compiler, "-print-file-name=libstdc++.so.6"], capture_output=True, text=True)
    path = answer.stdout.strip()
    return [path] if os.path.isabs(path) else []


def _standard() -> str:
    """The C++ of torch's headers: they refuse C++17 in 2.14, and torch 1.13 is not compiled with a later one."""
    major, minor = (int(number) for number in torch.__version__.split(".")[:2])
    return "c++20" if (major, minor) >= (2, 8) else "c++17"


def command(output: Path) -> list[str]:
    """How the backend is compiled into a file. CXX and CXXFLAGS are honoured."""
    library, compiler = _library.find_path(), _find_compiler()
    return [
        *compiler, "-O2", f"-std={_standard()}", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall",
        f"-DTORCH_EXTENSION_NAME={_MODULE}", f"-D_GLIBCXX_USE_CXX11_ABI={int(_cxx11_abi())}",
        *[option for folder in _find_includes() for option in ("-isystem", str(folder))],
        *_options_in("CXXFLAGS"), str(_source / "backend.cpp"), "-o", str(output),
        f"-L{Path(torch.__file__).resolve().parent / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10",
        library if os.path.isabs(library) else f"-l:{library}", *_shared_runtime(compiler),
    ]  # fmt: skip


def _report(answer: subprocess.CompletedProcess[str], log: Path) -> BuildError:
    """What the compiler said of its failure, and where all of it is."""
    said = answer.stdout + answer.stderr
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    found = [line for line in lines if _cause.search(line)][:5] or lines[-5:]
    if not found:
        ended = f"signal {-answer.returncode}" if answer.returncode < 0 else f"exit status {answer.returncode}"
        found = [f"{shlex.quote(answer.args[0])} ended with {ended} and said nothing"]
    try:
        log.write_text(shlex.join(answer.args) + "\n" + said, encoding="utf-8", errors="replace")
        where = f"; {log} has all that the compiler said"
    except OSError:  # a full disk may be the cause
        where = ""
    return BuildError(f"the backend could not be compiled {_describe()}: {' | '.join(found)}{where}. When that is "
                      f"mended, run: {_MANUAL}")  # fmt: skip


def _compile(path: Path) -> None:
    handle, name = tempfile.mkstemp(prefix=".building-", suffix=".so", dir=path.parent)
    os.close(handle)
    try:
        answer = subprocess.run(command(Path(name)), capture_output=True, text=True, errors="replace")
        if answer.returncode != 0:
            raise _report(answer, path.with_suffix(".log"))
        _seal(Path(name))
        os.chmod(name, 0o755)  # the folder protects it
        os.rename(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def build(again: bool = False) -> Path:
    """Compiles the backend unless that has been done, and gives the file. Of several processes one compiles."""
    folder = cache_folder()
    _make_folder(folder)
    try:
        with _locked(folder):
            return _build_in(folder, again)
    except OSError as error:
        raise BuildError(f"the backend could not be compiled {_describe()} into {folder} ({error}): when that is "
                         f"mended, or SHOAL_TORCH_CACHE names another folder, run: {_MANUAL}") from error  # fmt: skip


def _build_in(folder: Path, again: bool) -> Path:
    _remove_old(folder)
    path = _file_in(folder)
    if not again and _is_complete(path):
        return path
    begin = time.monotonic()
    print(f"shoal.torch: compiling the backend {_describe()}, once ...", end="", file=sys.stderr, flush=True)
    try:
        _compile(path)
    except BaseException:
        print(" failed", file=sys.stderr, flush=True)
        raise
    print(f" {time.monotonic() - begin:.0f} s: {path}", file=sys.stderr, flush=True)
    return path


_loaded: ModuleType | None = None


def is_loaded() -> bool:
    """Whether this process has used the backend."""
    return _loaded is not None


def load() -> ModuleType:
    """The compiled module; compiles it first if need be."""
    global _loaded
    if _loaded is None:
        path = str(find() or build())
        loader = importlib.machinery.ExtensionFileLoader(_MODULE, path)
        spec = importlib.util.spec_from_file_location(_MODULE, path, loader=loader)
        assert spec is not None
        try:
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
        except ImportError as error:
            raise BuildError(f"{path} cannot be loaded ({error}): compile it again with {_MANUAL} --again, or name "
                             "another folder in SHOAL_TORCH_CACHE") from error  # fmt: skip
        _loaded = module
    return _loaded
