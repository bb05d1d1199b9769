# SPDX-License-Identifier: MIT
"""A sample of the programs that `make soak-torch` runs by the thousand."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
PROGRAMS = Path(__file__).with_name("torch_programs.py")
N_PROGRAMS = 12


def test_random_programs():
    # Ranks are forked off a process that has done nothing else with torch.
    command = [sys.executable, str(PROGRAMS), "--count", str(N_PROGRAMS), "--jobs", "2"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert ended.returncode == 0, ended.stdout
