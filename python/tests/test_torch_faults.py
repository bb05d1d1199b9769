# SPDX-License-Identifier: MIT
"""What the ranks of torch.distributed see when one of them calls something else, is late, or dies."""

import os
import re
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch_ranks import killed, run_ranks


def mismatch(rank, n):
    group = dist.new_group()
    with pytest.raises(RuntimeError) as caught:
        dist.all_reduce(torch.ones(3 + (rank == 1)), group=group)
    dist.barrier()
    return str(caught.value)


def test_calls_that_differ_are_an_exception_that_names_both():
    for text in run_ranks(mismatch, 3):
        assert "SHOAL_ERR_MISMATCH" in text and "count 3" in text and "rank 1 called all_reduce f32 sum count 4" in text, text


def late(rank, n):
    group = dist.new_group(timeout=timedelta(seconds=0.5))
    text = ""
    if rank:
        with pytest.raises(RuntimeError) as caught:
            dist.all_reduce(torch.ones(3), group=group)
        text = str(caught.value)
    dist.barrier()
    return text


def test_a_deadline_names_who_is_missing():
    for text in run_ranks(late, 3)[1:]:
        assert "SHOAL_ERR_TIMEOUT" in text and "rank 0" in text, text


def wait_twice(rank, n):
    if rank == 0:
        dist.recv(torch.empty(1), 1)
    work = dist.all_reduce(torch.ones(100000), async_op=True)
    if rank:
        with pytest.raises(RuntimeError, match="Timed out"):
            work.wait(timedelta(milliseconds=100))
        dist.send(torch.ones(1), 0)
    work.wait()
    return work.is_success()


def test_a_wait_that_timed_out_can_be_repeated():
    assert run_ranks(wait_twice, 2) == [True, True]


def die(rank, n):
    survivors = dist.new_group([0, 1])
    dist.barrier()
    if rank == n - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError) as caught:
        dist.all_reduce(torch.ones(100000))
    if rank < 2:
        value = torch.ones(1)
        dist.all_reduce(value, group=survivors)
        assert value.item() == 2
    return str(caught.value)


def test_a_rank_that_is_killed_is_named_and_the_others_go_on():
    *texts, last = run_ranks(die, 4, timeout_s=600)
    assert last == killed()
    for text in texts:
        assert "SHOAL_ERR_PEER" in text and "rank 3" in text, text


def die_in_backward(rank, n):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    if rank == 1:
        next(model.parameters()).register_hook(lambda gradient: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(RuntimeError) as caught:
        for _ in range(3):
            model(torch.ones(4, 8)).sum().backward()
    return str(caught.value)


def test_a_rank_that_is_killed_in_the_backward_pass_of_ddp():
    text, last = run_ranks(die_in_backward, 2, timeout_s=600)
    assert last == killed() and "SHOAL_ERR_PEER" in text and "rank 1" in text


def raise_in_one(rank, n):
    if rank == 1:
        return "gone"
    with pytest.raises(RuntimeError) as caught:
        dist.all_reduce(torch.ones(10))
    return str(caught.value)


def test_a_rank_that_leaves_early_is_named():
    text, last = run_ranks(raise_in_one, 2, timeout_s=600)
    assert last == "gone" and "SHOAL_ERR_PEER" in text and "rank 1" in text


def test_the_example_says_what_the_page_says():
    root = Path(__file__).resolve().parents[2]
    answer = subprocess.run(
        [sys.executable, str(root / "python/examples/torch_faults.py")], capture_output=True, text=True, timeout=120
    )
    page = re.search(r"    a mismatch, .*?go on$", (root / "docs/python.md").read_text(), re.MULTILINE | re.DOTALL)[0]
    without_numbers = [re.sub("process [0-9]+", "process", text).splitlines() for text in (answer.stdout, page)]
    assert [len(lines) for lines in without_numbers] == [3, 3], answer
    for line, expected in zip(*without_numbers):
        what, _, rest = expected.strip().rstrip(". ").partition(", after ")
        assert line.startswith(what) and rest.partition(" s: ")[2] in line, (line, expected)
