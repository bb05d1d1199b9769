# SPDX-License-Identifier: MIT
"""``python -m shoal`` finds the tool."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from shoal import __main__ as tool
from shoal import _library

LIBRARY = _library.find_path()


@pytest.fixture
def prefix(tmp_path, monkeypatch):
    """A folder with lib and bin/shoal, and nothing that names a tool."""
    for folder in ("lib", "bin"):
        (tmp_path / folder).mkdir()
    (tmp_path / "bin" / "shoal").write_text("#!/bin/sh\necho the tool: $1\n")
    (tmp_path / "bin" / "shoal").chmod(0o755)
    monkeypatch.delenv("SHOAL_TOOL", raising=False)
    monkeypatch.setenv("SHOAL_LIBRARY", str(tmp_path / "lib" / "libshoal.so.0.1"))
    return tmp_path


pytestmark = pytest.mark.skipif(
    (Path(tool.__file__).parent / "bin" / "shoal").exists(), reason="the package has a tool of its own"
)


def test_the_tool_beside_the_library(prefix, monkeypatch):
    assert tool.find_tool() == str(prefix / "bin" / "shoal")
    monkeypatch.chdir(prefix)
    monkeypatch.setenv("SHOAL_LIBRARY", "lib/libshoal.so.0.1")
    assert tool.find_tool() == str(prefix / "bin" / "shoal")
    monkeypatch.setenv("SHOAL_TOOL", "/other/shoal")
    assert tool.find_tool() == "/other/shoal"


def test_the_tool_of_the_path(prefix, monkeypatch):
    monkeypatch.setenv("SHOAL_LIBRARY", "libshoal.so.0.1")  # the loader knows where
    assert tool.find_tool() == "shoal"
    monkeypatch.setenv("SHOAL_LIBRARY", str(prefix / "bin" / "libshoal.so.0.1"))
    (prefix / "bin" / "shoal").unlink()
    assert tool.find_tool() == "shoal"


@pytest.mark.skipif(not os.path.isabs(LIBRARY), reason="the loader finds the library")
def test_it_runs_the_tool(prefix):
    (prefix / "lib" / "libshoal.so.0.1").symlink_to(LIBRARY)
    done = subprocess.run([sys.executable, "-m", "shoal", "run"], capture_output=True, text=True)
    assert done.stdout == "the tool: run\n", done.stderr
