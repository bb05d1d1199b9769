# SPDX-License-Identifier: MIT
"""The Python blocks of README.md and docs/python.md do what the pages say."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import shoal

numpy = pytest.importorskip("numpy")
ROOT = Path(__file__).resolve().parent.parent.parent


def blocks_of(page):
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def run(tmp_path, text, n_ranks):
    """What a program prints, by rank."""
    program = tmp_path / "program.py"
    program.write_text(text)
    command = [sys.executable, "-m", "shoal", "run", "--no-label", "-n", str(n_ranks), sys.executable, str(program)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return sorted(done.stdout.splitlines())


def test_readme(tmp_path):
    blocks = [block for block in blocks_of("README.md") if "all_reduce" in block]
    assert len(blocks) == 1
    assert run(tmp_path, blocks[0], 3) == ["[3 3]"] * 3


def test_all_reduce_in_ten_lines(tmp_path):
    block = blocks_of("docs/python.md")[0]
    assert len(block.splitlines()) <= 10
    assert run(tmp_path, block, 2) == [f"rank {rank} of 2: [3. 3. 3. 3.]" for rank in range(2)]


def test_sessions():
    """Blocks that begin with >>> are doctests."""
    import doctest

    sessions = [block for block in blocks_of("docs/python.md") if block.startswith(">>>")]
    assert sessions
    for session in sessions:
        parsed = doctest.DocTestParser().get_doctest(session, {"shoal": shoal, "numpy": numpy}, "python.md", None, 0)
        assert doctest.DocTestRunner().run(parsed).failed == 0


def test_the_training_loop_is_that_of_the_example():
    (block,) = [block for block in blocks_of("docs/python.md") if block.startswith("def train(")]
    text = (ROOT / "python/examples/fsdp_from_scratch.py").read_text()
    assert block in text
    page = (ROOT / "docs/python.md").read_text()
    assert f": {len(text.splitlines())} lines with the kernels" in page


def test_fsdp2_is_that_of_the_example():
    (block,) = [block for block in blocks_of("docs/python.md") if "fully_shard(" in block]
    text = (ROOT / "python/examples/fsdp2_gpt.py").read_text()
    assert block in textwrap.dedent(text.split("def main():\n")[1].split("\n\n\nif __name__")[0])


def test_checkpoints_of_pytorch(tmp_path):
    torch = pytest.importorskip("torch")
    page = blocks_of("docs/python.md")
    blocks = [block for block in page if "checkpoint." in block and "shoal.save(" not in block and "GPT()" not in block]
    assert len(blocks) == 2
    if int(torch.__version__.split(".")[0]) < 2:
        blocks = blocks[:1]
    text = f"import os, torch, warnings\nimport shoal.torch\nos.chdir({str(tmp_path)!r})\n"
    text += "state = {'model': {'w': torch.ones(3)}, 'epoch': 3}\n"
    if len(blocks) == 2:  # DCP warns that there is one process
        text += "import torch.distributed.checkpoint as dcp\nwarnings.simplefilter('ignore')\n"
    text += "".join(blocks) + "print(whole['epoch'], whole['model']['w'].tolist())"
    assert run(tmp_path, text, 1) == ["3 [1.0, 1.0, 1.0]"]


def test_checkpoints(tmp_path):
    (block,) = [block for block in blocks_of("docs/python.md") if "shoal.save(" in block]

    def ranks(world):
        os.chdir(tmp_path)
        fsdp = shoal.Fsdp(world.group)
        fsdp.add_unit({"0.w": numpy.arange(6.0).reshape(3, 2)})
        names = {"shoal": shoal, "world": world, "fsdp": fsdp, "moments": {param.name: param.zeros() for param in fsdp}}
        exec(block, names)
        return names["whole"]["model"]["0.w"].tolist(), names["whole"]["epoch"], sorted(names["whole"]["optimizer"])

    assert shoal.launch(ranks, 2, timeout=60.0) == [([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], 3, ["0.w.m"])] * 2
