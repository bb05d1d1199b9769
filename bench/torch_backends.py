#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times torch.distributed on Gloo and on Shoal in one run, in turn: collectives, calls in a world of one, DDP, FSDP2.

    torch_backends.py [--ranks 2] [--threads 1] [--rounds 3] [--only collectives,calls,ddp,fsdp] [--small]

A line of JSON for each thing: microseconds on either backend (of the slowest rank; the median of all rounds), and Shoal's
time over Gloo's. FSDP2 needs torch 2; torch 1.13's Gloo has no reduce_scatter and no all_gather_into_tensor.
"""
import argparse
import json
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import shoal.torch  # noqa: F401
from shoal.torch import building

SIZES = [1 << 10, 1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26]
BACKENDS = ("gloo", "shoal")


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def attend(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
        mask = torch.full((length, length), float("-inf")).triu(1)
        return self.proj(((scores + mask).softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


class Gpt(torch.nn.Module):
    def __init__(self, width, layers, vocabulary, length):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(length, width)
        self.blocks = torch.nn.ModuleList([Block(width, width // 64) for _ in range(layers)])
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def slowest(seconds, group):
    value = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(value, op=dist.ReduceOp.MAX, group=group)
    return value.item() * 1e6


def measure(functions, groups, rounds, repeats):
    """Runs the function of each backend in turn: {backend: microseconds}."""
    times = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            function()
            for _ in range(repeats):
                dist.barrier(group=groups["shoal"])
                begin = time.perf_counter()
                function()
                times[name].append(slowest(time.perf_counter() - begin, groups["shoal"]))
    return {name: statistics.median(values) for name, values in times.items()}


def report(rank, what, times, **more):
    if rank == 0:
        ratio = round(times["shoal"] / times["gloo"], 3) if "gloo" in times else None
        rounded = {name: round(value, 1) for name, value in times.items()}
        print(json.dumps({"what": what, **more, **rounded, "ratio": ratio}), flush=True)


def collectives(rank, n, groups, options):
    for size in SIZES[: 4 if options.small else None]:
        whole, part = torch.ones(size // 4), torch.ones(max(1, size // 4 // n))
        calls = {
            "all_reduce": lambda group: dist.all_reduce(whole, group=group),
            "all_gather": lambda group: dist.all_gather_into_tensor(whole, part, group=group),
            "reduce_scatter": lambda group: dist.reduce_scatter_tensor(part, whole, group=group),
        }
        for name, call in calls.items():
            if name != "all_reduce" and int(torch.__version__.split(".")[0]) < 2:
                continue
            functions = {backend: (lambda group=group: call(group)) for backend, group in groups.items()}
            report(rank, name, measure(functions, groups, options.rounds, max(5, min(50, (1 << 24) // size))),
                   bytes=size, ranks=n)  # fmt: skip
            whole.fill_(1)


def calls(rank, n, groups, options):
    """The cost of a call: a group of one rank."""
    alone = {backend: [dist.new_group([peer], backend=backend) for peer in range(n)][rank] for backend in BACKENDS}
    if rank == 0:
        value = torch.ones(1)
        for what, wait in (("wait", lambda work: work.wait()), ("future", lambda work: work.get_future().wait())):
            times = {}
            for backend, group in alone.items():
                for count in (200, 2000):
                    begin = time.perf_counter()
                    for _ in range(count):
                        wait(dist.all_reduce(value, group=group, async_op=True))
                times[backend] = (time.perf_counter() - begin) / 2000 * 1e6
            report(rank, f"one call, {what}", times, ranks=1)
    dist.barrier(group=groups["shoal"])


def step_of(model, tokens):
    def step():
        logits = model(tokens).float()
        torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), tokens.view(-1)).backward()
        model.zero_grad()

    return step


def make_model(options):
    torch.manual_seed(0)
    return Gpt(128, 2, 512, 128) if options.small else Gpt(512, 8, 512, 128)


def ddp(rank, n, groups, options):
    tokens = torch.randint(0, 512, (2, 128))
    functions = {
        backend: step_of(torch.nn.parallel.DistributedDataParallel(make_model(options), process_group=group), tokens)
        for backend, group in groups.items()
    }
    report(rank, "DDP, forward + backward", measure(functions, groups, options.rounds, 5), ranks=n)


def fsdp(rank, n, groups, options):
    try:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        return
    tokens, functions = torch.randint(0, 512, (2, 128)), {}
    for backend, group in groups.items():
        model, mesh = make_model(options), DeviceMesh.from_group(group, "cpu")
        for block in [*model.blocks, model]:
            fully_shard(block, mesh=mesh)
        functions[backend] = step_of(model, tokens)
    report(rank, "FSDP2, forward + backward", measure(functions, groups, options.rounds, 5), ranks=n)


PARTS = {"collectives": collectives, "calls": calls, "ddp": ddp, "fsdp": fsdp}


def run(rank, n, store, options):
    torch.set_num_threads(options.threads)
    dist.init_process_group("shoal", init_method=f"file://{store}", rank=rank, world_size=n)
    groups = {"gloo": dist.new_group(backend="gloo"), "shoal": dist.group.WORLD}
    for name in options.only.split(","):
        PARTS[name](rank, n, groups, options)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--small", action="store_true", help="for a test of this program")
    options = parser.parse_args()
    building.load()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (options.ranks, os.path.join(folder, "store"), options), nprocs=options.ranks)


if __name__ == "__main__":
    main()
