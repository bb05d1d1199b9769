#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times PyTorch's fusion of the all-reduces of a DDP step: the graph and the passes of the first line of `shoal bench passes`.

    ddp_fusion_torch.py [--gradients 1024] [--rounds 3] [--bucket-mb 25]

Every gradient is a placeholder, a negation, a division, an all_reduce and a wait_tensor; matrices of 64 x 64 and vectors of 64
take turns. A round makes the graph, which does not count, and runs one pass that fuses and then `schedule_comm_wait`. Prints
one line of JSON per kind of fusion, with the median over rounds; fails when all-reduces are left that should have been fused.

Written for PyTorch 2.11. No rank is started: tensors are fake ones.
"""
import argparse
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.fx as fx
from torch._inductor.fx_passes import ddp_fusion
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.shape_prop import _extract_tensor_metadata
from torch.testing._internal.distributed.fake_pg import FakeStore

WIDTH = 64
COLLECTIVES = torch.ops._c10d_functional
STARTS = (COLLECTIVES.all_reduce.default, COLLECTIVES.all_reduce_coalesced.default)


def describe(node, value):
    node.meta["val"] = value
    node.meta["tensor_meta"] = _extract_tensor_metadata(value)
    return node


def call(graph, target, node, *rest):
    return describe(graph.call_function(target, (node, *rest)), target(node.meta["val"], *rest))


def build(n_gradients):
    """The gradients of a step, each reduced by itself."""
    graph = fx.Graph()
    results = []
    for index in range(n_gradients):
        shape = (WIDTH, WIDTH) if index % 2 == 0 else (WIDTH,)
        node = describe(graph.placeholder(f"p{index}"), torch.empty(shape))
        node = call(graph, torch.ops.aten.neg.default, node)
        node = call(graph, torch.ops.aten.div.Tensor, node, 8)
        node = call(graph, COLLECTIVES.all_reduce.default, node, "sum", "0")
        results.append(call(graph, COLLECTIVES.wait_tensor.default, node))
    graph.output(results)
    return fx.GraphModule(torch.nn.Module(), graph).graph


def measure(name, options):
    times = []
    for _ in range(options.rounds):
        graph = build(options.gradients)
        n_nodes = len(graph.nodes)
        begin = time.perf_counter()
        ddp_fusion.fuse_ddp_communication(graph, [name, "schedule_comm_wait"], options.bucket_mb)
        times.append((time.perf_counter() - begin) * 1e3)
        n_left = sum(node.target in STARTS for node in graph.nodes)
        if n_left >= options.gradients / 8:
            sys.exit(f"ddp_fusion_torch.py: {name} left {n_left} of {options.gradients} all-reduces")
    print(json.dumps({"bench": "ddp_fusion_torch", "torch": torch.__version__, "pass": name, "gradients": options.gradients,
                      "nodes": n_nodes, "collectives": n_left, "ms": round(statistics.median(times), 1),
                      "rounds": options.rounds}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gradients", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bucket-mb", type=int, default=25)
    options = parser.parse_args()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    fake_mode = FakeTensorMode()
    with V.set_fake_mode(fake_mode), fake_mode:
        for name in ("fuse_ddp_with_concat_op", "fuse_ddp_with_coalesced_op"):
            measure(name, options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
