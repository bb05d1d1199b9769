#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains the GPT of `shoal train` with PyTorch on processors: FSDP2 or DDP over Gloo, or ranks that do not talk.

    fsdp2_torch.py [--mode fsdp|ddp|none] [--ranks 2] [--threads 1] [--layers 6 --width 256 --heads 4 --context 128]
                   [--vocabulary 256] [--batch 4] [--steps 20] [--warmup 3] [--dtype f32|bf16]
                   [--bind cores|none] [--compile] [--profile]

Prints one line of JSON: the keys that `shoal train --json` has too mean the same. A step is forward, backward, optimizer and
the gradients set to None; the median over the steps of the slowest rank is reported. Every rank trains on tokens of its own.
The model is GPT-2 with a tied head, tanh GELU and PyTorch's own causal attention; AdamW is the fused one, or, where that does
not take sharded parameters on processors, the one over lists. Ranks are processes that this program forks, with `threads`
threads each; they divide the processors as those of `shoal train` do (`--bind`).

--profile adds a table of PyTorch's profiler: which operations take the time of the steps, on rank 0.

In bf16 with `none` the weights themselves are bf16; with `fsdp` the optimizer's are f32, as in `shoal train`.

Written for PyTorch 2.11. Its Gloo takes the mean of a reduce-scatter for a sum in some versions
(github.com/pytorch/pytorch/issues/162338): losses of `fsdp` may then differ from ours, times do not.
"""
import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
import traceback

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.attn_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.mlp_proj = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.c_attn(self.ln_1(x)).view(batch, length, 3, self.n_heads, width // self.n_heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.wte = nn.Embedding(options.vocabulary, options.width)
        self.wpe = nn.Embedding(options.context, options.width)
        self.h = nn.ModuleList(Block(options.width, options.heads) for _ in range(options.layers))
        self.ln_f = nn.LayerNorm(options.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def wrap(model, options):
    """The model that is trained, sharded by block as ours is."""
    if options.mode == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if options.mode == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh("cpu", (options.ranks,))
        policy = MixedPrecisionPolicy()
        if options.dtype == "bf16":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model.h:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        return model
    return model.to(torch.bfloat16) if options.dtype == "bf16" else model


def make_optimizer(model, is_fused):
    if is_fused:
        return torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    return torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)


def update(model, optimizer, is_first):
    """A step of the optimizer. The first one shows whether the fused one can be used; all ranks find the same."""
    try:
        optimizer.step()
    except (NotImplementedError, RuntimeError):
        if not is_first:
            raise
        optimizer = make_optimizer(model, False)
        optimizer.step()
    return optimizer


def train(model, options, rank):
    """Seconds of each step after the warm-up, the losses, and the kind of optimizer."""
    optimizer = make_optimizer(model, True)
    generator = torch.Generator().manual_seed(1 + rank)
    shape = (options.batch, options.context + 1)
    seconds, losses = [], []
    for step in range(options.warmup + options.steps):
        tokens = torch.randint(options.vocabulary, shape, generator=generator)
        if dist.is_initialized():
            dist.barrier()
        begin = time.perf_counter()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer = update(model, optimizer, step == 0)
        optimizer.zero_grad(set_to_none=True)
        if step >= options.warmup:
            seconds.append(time.perf_counter() - begin)
            losses.append(loss.item())
    return seconds, losses, "fused" if optimizer.defaults.get("fused") else "foreach"


def read_list(text):
    """The numbers of a list such as "0-3,8"."""
    numbers = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def bind(options, rank):
    """Whole cores for each rank, if there are two processors or more for it, and one for each thread."""
    allowed = os.sched_getaffinity(0)
    if options.bind == "none" or options.ranks == 1 or len(allowed) // options.ranks < max(2, options.threads):
        return
    cores = {}
    for processor in sorted(allowed):
        try:
            with open(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list") as file:
                siblings = read_list(file.read())
        except (OSError, ValueError):
            siblings = {processor}
        cores.setdefault(min(siblings & allowed), set()).add(processor)
    groups = [cores[first] for first in sorted(cores)]
    if len(groups) >= options.ranks:
        begin, end = (len(groups) * part // options.ranks for part in (rank, rank + 1))
        os.sched_setaffinity(0, set().union(*groups[begin:end]))


def slowest(seconds, options):
    """The median over steps, of the slowest rank."""
    median = torch.tensor([statistics.median(seconds)], dtype=torch.float64)
    if options.ranks > 1:
        dist.all_reduce(median, op=dist.ReduceOp.MAX)
    return median.item()


def run_rank(options, rank, meeting):
    bind(options, rank)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.ranks > 1:
        dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=options.ranks)
    model = Gpt(options)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    model = wrap(model, options)
    if options.compile:
        model = torch.compile(model)
    if options.profile and rank == 0:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            seconds, losses, kind = train(model, options, rank)
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=18, max_name_column_width=44))
    else:
        seconds, losses, kind = train(model, options, rank)
    median = slowest(seconds, options)
    if rank == 0:
        print(json.dumps({
            "bench": "torch", "torch": torch.__version__, "mode": options.mode, "ranks": options.ranks,
            "threads": options.threads, "dtype": options.dtype, "optimizer": kind, "params": n_parameters,
            "steps": options.steps,
            "loss_first": losses[0], "loss_last": losses[-1], "step_ms_median": round(median * 1e3, 3),
            "tokens_per_s": round(options.ranks * options.batch * options.context / median),
            "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)}), flush=True)
    if options.ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("fsdp", "ddp", "none"), default="fsdp")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--bind", choices=("cores", "none"), default="cores")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--profile", action="store_true")
    for name, default in (("ranks", 2), ("threads", 1), ("layers", 6), ("width", 256), ("heads", 4), ("context", 128),
                          ("vocabulary", 256), ("batch", 4), ("steps", 20), ("warmup", 3)):
        parser.add_argument("--" + name, type=int, default=default)
    options = parser.parse_args()
    if options.ranks == 1:
        options.mode = "none"
    return options


def main():
    options = parse()
    with tempfile.TemporaryDirectory() as directory:
        children = []
        for rank in range(options.ranks):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    run_rank(options, rank, os.path.join(directory, "meeting"))
                    status = 0
                except Exception:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(status)
            children.append(child)
        statuses = [os.waitpid(child, 0)[1] for child in children]
    return 1 if any(statuses) else 0


if __name__ == "__main__":
    sys.exit(main())
