#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times PyTorch's kernels on a GPU, with the shapes and the names of bench/gpu/cases.c.

    torch_kernels.py [--samples 60] [--only WORDS] [--device cuda] [--divisor 1] > FILE

A line of JSON for each. A sample is the time between two events around several calls, which are queued behind a kernel that
waits, so that the host's time does not count; medians. More than 180 MB are read before the same memory comes again, except in
rows that are called warm. `--device cpu --divisor 1000` tries the program where there is no GPU: what it prints are no results.
"""
import argparse
import json
import math
import statistics
import sys
import time
import traceback

import torch

try:  # registers torch.ops.fsdp
    import torch.distributed.fsdp._fully_shard._fsdp_collectives  # noqa: F401
except Exception:  # old versions, which have other names
    pass

LLAMA = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), (14336, 4096), (14336, 4096), (4096, 14336), (4096,), (4096,)]
GPT2 = [(2304, 768), (2304,), (768, 768), (768,), (3072, 768), (3072,), (768, 3072), (768,), (768,), (768,), (768,), (768,)]
GPT2_ENDS = [(50257, 768), (1024, 768), (768,), (768,)]
ROTATED_BYTES = 190_000_000
BF16, F32 = torch.bfloat16, torch.float32
BYTES = {BF16: 2, F32: 4}


class Clock:
    """Microseconds of a call."""

    def __init__(self, options):
        self.is_cuda = options.device == "cuda"
        self.samples = options.samples

    def sample(self, calls, n, at):
        if not self.is_cuda:
            begin = time.perf_counter()
            for i in range(n):
                calls[(at + i) % len(calls)]()
            return (time.perf_counter() - begin) / n * 1e6
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000_000)
        begin.record()
        for i in range(n):
            calls[(at + i) % len(calls)]()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / n

    def median(self, calls, n):
        times = [self.sample(calls, n, i * n) for i in range(self.samples + 3)]
        return statistics.median(times[3:])


def scale(shapes, divisor):
    return [(rows, max(1, rest[0] // divisor)) if rest else (rows,) for rows, *rest in shapes]


def chunk_elems(shapes, ranks):
    return [-(-shape[0] // ranks) * math.prod(shape[1:]) for shape in shapes]


def aligned(shapes, ranks, dtype):
    """With a tensor more, so that rows are multiples of 128 bytes."""
    over = sum(chunk_elems(shapes, ranks)) % (128 // BYTES[dtype])
    return shapes + [(ranks, 128 // BYTES[dtype] - over)] if over else shapes


def first_that_works(*calls):
    """FSDP2's ops, or what they call, by the names of this version."""
    for call in calls[:-1]:
        try:
            call()
            return call
        except (AttributeError, RuntimeError, TypeError, NotImplementedError):
            pass
    return calls[-1]


def chunk_cat(tensors, ranks, out):
    return first_that_works(lambda: torch.ops.fsdp.chunk_cat(tensors, 0, ranks, out=out),
                            lambda: torch._chunk_cat(tensors, 0, ranks, out=out))


def split_copy(source, sizes, outs):
    return first_that_works(lambda: torch.ops.fsdp.split_with_sizes_copy(source, sizes, dim=1, out=outs),
                            lambda: torch.split_with_sizes_copy(source, sizes, dim=1, out=outs))


class Rows:
    def __init__(self, options):
        self.options = options
        self.device = options.device
        self.clock = Clock(options)

    def random(self, shape, dtype=F32):
        return torch.randn(shape, device=self.device).to(dtype)

    def n_sets(self, bytes_read, is_warm):
        return 1 if is_warm else min(64, -(-ROTATED_BYTES // self.options.divisor // bytes_read) or 1)

    def row(self, name, make, how):
        """make() gives calls that take turns, the bytes of a call, and how many make a sample."""
        if self.options.only and self.options.only not in name:
            return
        try:
            calls, moved, n = make()
            for call in calls:
                call()
            us = self.clock.median(calls, n)
            line = {"bench": "gpu_torch", "case": name, "us": us, "bytes": moved, "tbps": moved / us / 1e6, "how": how,
                    "samples": self.options.samples, "runs": n, "sets": len(calls), "torch": torch.__version__}
        except Exception:  # the rows that are left are worth having
            traceback.print_exc()
            line = {"bench": "gpu_torch", "case": name, "us": None, "how": how, "error": str(sys.exc_info()[1])[:200]}
        print(json.dumps(line), flush=True)
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def copy(self):
        n = (2 << 30) // self.options.divisor
        x = torch.randint(-128, 127, (n,), dtype=torch.int8, device=self.device)
        y = torch.empty_like(x)
        return [lambda: y.copy_(x)], 2 * n, 4

    def pack(self, shapes, ranks, dtype, is_warm=False):
        read = sum(math.prod(s) for s in shapes) * 2
        row = sum(chunk_elems(shapes, ranks))
        calls = []
        for _ in range(self.n_sets(read, is_warm)):
            tensors = [self.random(s, BF16) for s in shapes]
            calls.append(chunk_cat(tensors, ranks, torch.empty(ranks, row, device=self.device, dtype=dtype)))
        moved = read + ranks * row * BYTES[dtype]
        return calls, moved, 4 if moved > 1e8 else 24

    def unpack(self, shapes, ranks, is_warm=False):
        sizes = chunk_elems(shapes, ranks)
        read = ranks * sum(sizes) * 2
        calls = []
        for _ in range(self.n_sets(read, is_warm)):
            outs = [torch.empty(ranks, k, device=self.device, dtype=BF16) for k in sizes]
            calls.append(split_copy(self.random((ranks, sum(sizes)), BF16), sizes, outs))
        return calls, 2 * read, 4 if read > 5e7 else 24

    def cast(self, shapes, ranks):
        sizes = chunk_elems(shapes, ranks)
        calls = []
        for _ in range(self.n_sets(sum(sizes) * 4, False)):
            sources = [self.random((k,)) for k in sizes]
            targets = list(torch.empty(sum(sizes), device=self.device, dtype=BF16).split(sizes))
            calls.append(lambda t=targets, s=sources: torch._foreach_copy_(t, s))
        return calls, sum(sizes) * 6, 4 if sum(sizes) * 6 > 1e8 else 24

    def reduce(self, dtype):
        n = (64 << 20) // BYTES[dtype] // self.options.divisor
        x, y = self.random((8, n), dtype), torch.empty(n, device=self.device, dtype=dtype)
        return [lambda: torch.sum(x, 0, out=y)], 9 * n * BYTES[dtype], 4

    def reduce_by_adds(self):
        n = (64 << 20) // 2 // self.options.divisor
        x, y = self.random((8, n), BF16), torch.empty(n, device=self.device)

        def fold():
            y.copy_(x[0])
            for k in range(1, 8):
                y.add_(x[k])

        return [fold], 8 * n * 2 + n * 4, 4

    def model(self):
        shapes = scale(GPT2 * 12 + GPT2_ENDS, self.options.divisor)
        return [self.random(s) for s in shapes]

    def adamw(self):
        parameters = [torch.nn.Parameter(p) for p in self.model()]
        for p in parameters:
            p.grad = self.random(tuple(p.shape))
        # Old versions have the fused one for GPUs only.
        way = {"fused": True} if self.device == "cuda" else {"foreach": True}
        optimizer = torch.optim.AdamW(parameters, lr=1e-3, **way)
        return [optimizer.step], sum(p.numel() for p in parameters) * 28, 2

    def squares(self):
        tensors = self.model()
        return [lambda: torch._foreach_norm(tensors)], sum(t.numel() for t in tensors) * 4, 4


def run(options):
    rows = Rows(options)
    llama, gpt2 = scale(LLAMA, options.divisor), scale(GPT2, options.divisor)
    rows.row("memcpy 4 GiB", rows.copy, "copy_")
    for ranks in (8, 1024):
        rows.row(f"pack bf16->f32 Llama-8B {ranks}", lambda r=ranks: rows.pack(llama, r, F32), "chunk_cat")
        rows.row(f"pack bf16 Llama-8B {ranks}", lambda r=ranks: rows.pack(llama, r, BF16), "chunk_cat")
        rows.row(f"unpack bf16 Llama-8B {ranks}", lambda r=ranks: rows.unpack(llama, r), "split_with_sizes_copy")
        rows.row(f"cast f32->bf16 Llama-8B {ranks}", lambda r=ranks: rows.cast(llama, r), "_foreach_copy_")
    padded = aligned(llama, 1024, BF16)
    rows.row("pack bf16->f32 aligned Llama-8B 1024", lambda: rows.pack(padded, 1024, F32), "chunk_cat")
    rows.row("pack bf16 aligned Llama-8B 1024", lambda: rows.pack(padded, 1024, BF16), "chunk_cat")
    rows.row("unpack bf16 aligned Llama-8B 1024", lambda: rows.unpack(padded, 1024), "split_with_sizes_copy")
    for state in ("cold", "warm"):
        warm = state == "warm"
        rows.row(f"pack bf16->f32 GPT-2 {state}", lambda w=warm: rows.pack(gpt2, 8, F32, w), "chunk_cat")
        rows.row(f"pack bf16 GPT-2 {state}", lambda w=warm: rows.pack(gpt2, 8, BF16, w), "chunk_cat")
        rows.row(f"unpack bf16 GPT-2 {state}", lambda w=warm: rows.unpack(gpt2, 8, w), "split_with_sizes_copy")
    rows.row("reduce 8 x 64 MB bf16", lambda: rows.reduce(BF16), "sum over a dimension")
    rows.row("reduce 8 x 64 MB f32", lambda: rows.reduce(F32), "sum over a dimension")
    rows.row("reduce 8 x 64 MB bf16 into f32", rows.reduce_by_adds, "copy_, 7 add_")
    rows.row("AdamW GPT-2 124M", rows.adamw, "fused AdamW")
    rows.row("squares GPT-2 124M", rows.squares, "_foreach_norm")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--only", default="")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--divisor", type=int, default=1)
    with torch.no_grad():
        run(parser.parse_args())
