# SPDX-License-Identifier: MIT
"""fsdp2_gpt.py under torchrun: it learns, goes on after a rank was killed, and on another number of ranks."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from shoal.torch import building, checkpoint

pytestmark = pytest.mark.skipif(int(torch.__version__.split(".")[0]) < 2, reason="needs torch 2")
TESTS = Path(__file__).resolve().parent
EXAMPLE = TESTS.parent / "examples" / "fsdp2_gpt.py"

# Rank 1 is killed when the backward pass of step 15 begins, in the first attempt. All ranks note what happens, and when.
KILLING = """
import json, os, signal, sys, time
import fsdp2_gpt, torch

def note(what, text=""):
    with open(os.environ["NOTES"], "a") as file:
        file.write(json.dumps([os.environ["RANK"], what, time.time(), text]) + "\\n")

def cross_entropy(values, *arguments, count=[0], **options):
    count[0] += 1
    if count[0] == 1:
        note("first step")
    if count[0] == 15 and (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
        values.register_hook(lambda grad: (note("killed"), os.kill(os.getpid(), signal.SIGKILL)))
    return compute(values, *arguments, **options)

compute, fsdp2_gpt.F.cross_entropy = fsdp2_gpt.F.cross_entropy, cross_entropy
try:
    fsdp2_gpt.main()
except Exception as error:
    note("raised", str(error))
    raise
"""


def torchrun(n, folder, *options, program=EXAMPLE, steps=20, **environment):
    completed = [sys.executable, str(TESTS / "torch_completed.py")]
    text = TESTS / "test_torch_two.py"
    command = [*completed, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n), *options]
    command += [completed[1], str(program), "--text", str(text), "--folder", str(folder), "--steps", str(steps)]
    path = os.pathsep.join([str(EXAMPLE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def same(a, b):
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_a_rank_is_killed_and_torchrun_restarts_all(tmp_path):
    building.load()  # compiled before ranks wait for each other
    out = torchrun(2, tmp_path / "straight")
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", out)]
    assert len(losses) == 2 and losses[1] < losses[0] < 6, out

    program, notes = tmp_path / "killing.py", tmp_path / "notes"
    program.write_text(KILLING)
    begin = time.time()
    # With the default interval of 0.1 s torchrun may end the other rank before it raises.
    options = ["--max-restarts", "1", "--monitor-interval", "2"]
    out = torchrun(2, tmp_path / "killed", *options, program=program, NOTES=str(notes))
    assert "goes on at step 10 on 2 ranks" in out
    entries = [json.loads(line) for line in notes.read_text().splitlines()]
    ((_, _, killed, _),) = [entry for entry in entries if entry[1] == "killed"]
    ((_, _, raised, text),) = [entry for entry in entries if entry[1] == "raised"]
    again = max(entry[2] for entry in entries if entry[1] == "first step")
    assert "rank 1" in text and raised - killed < 5, (text, raised - killed)
    print(f"the other rank raised after {raised - killed:.3f} s, training went on {again - killed:.1f} s after the kill")
    print(f"the first step began {min(entry[2] for entry in entries) - begin:.1f} s after torchrun")
    # A killed run ends with the bits of one that was not.
    assert same(checkpoint.read(tmp_path / "killed"), checkpoint.read(tmp_path / "straight"))

    out = torchrun(3, tmp_path / "killed", steps=30)
    assert "goes on at step 20 on 3 ranks" in out and "step 30" in out
    assert sorted(path.name for path in (tmp_path / "killed").glob("step-*")) == ["step-000000020", "step-000000030"]
