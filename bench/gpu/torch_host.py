#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What FSDP2 costs the host for a unit, forward and backward, in a world of one: the peer of bench/gpu/host.c.

    torch_host.py [--units 64] [--steps 50] [--device cuda] > FILE

The same units, of one tensor of 64 x 64 or of twelve as a layer of GPT-2 has, in f32, or with parameters that are gathered in
bf16. Their forward pass passes its input on, and their backward pass gives each tensor a gradient that nobody has computed,
which costs little; the same modules that are not sharded are timed too, and what is left is FSDP2's. A time ends before the
GPU is waited for; gradients are set to None outside of it. wall_us and cpu_us are medians over steps, of all threads of the
process, because backward passes run in a thread of their own.
"""
import argparse
import json
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn


class Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *tensors):
        ctx.save_for_backward(*tensors)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return (gradient, *(torch.empty_like(t) for t in ctx.saved_tensors))


class Unit(nn.Module):
    def __init__(self, n_tensors, device):
        super().__init__()
        for i in range(n_tensors):
            shape = (64, 64) if i % 3 == 0 else (64,)
            self.register_parameter(f"p{i}", nn.Parameter(torch.randn(shape, device=device)))

    def forward(self, x):
        return Pass.apply(x, *self._parameters.values())


def make(options, n_tensors, is_sharded, is_mixed):
    model = nn.Sequential(*(Unit(n_tensors, options.device) for _ in range(options.units)))
    if is_sharded:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy()
        if is_mixed:
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for unit in model:
            fully_shard(unit, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    return model


def measure(options, model):
    x = torch.ones(64, device=options.device, requires_grad=True)
    wall, cpu = [], []
    for step in range(options.steps + 5):
        begin, begin_cpu = time.perf_counter(), time.process_time()
        model(x).sum().backward()
        took, took_cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
        if options.device == "cuda":
            torch.cuda.synchronize()
        for p in model.parameters():
            p.grad = None
        if step >= 5:
            wall.append(took * 1e6 / options.units)
            cpu.append(took_cpu * 1e6 / options.units)
    return statistics.median(wall), statistics.median(cpu)


def run(options):
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if options.device == "cuda" else "gloo"
        if options.device == "cuda":
            torch.cuda.set_device(0)
        os.environ.setdefault("NCCL_IB_DISABLE", "1")
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        for n_tensors in (12, 1):
            plain_wall, plain_cpu = measure(options, make(options, n_tensors, False, False))
            for is_mixed in (False, True):
                wall, cpu = measure(options, make(options, n_tensors, True, is_mixed))
                print(json.dumps({"bench": "gpu_torch_host", "tensors": n_tensors, "units": options.units,
                                  "case": "f32 shards, bf16 compute" if is_mixed else "equal dtypes",
                                  "wall_us": wall, "cpu_us": cpu, "plain_wall_us": plain_wall, "plain_cpu_us": plain_cpu,
                                  "fsdp2_wall_us": wall - plain_wall, "fsdp2_cpu_us": cpu - plain_cpu,
                                  "steps": options.steps, "torch": torch.__version__}), flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--units", type=int, default=64)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    run(parser.parse_args())
