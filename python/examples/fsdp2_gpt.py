# SPDX-License-Identifier: MIT
"""A small GPT on n CPU ranks with PyTorch's FSDP2, a checkpoint every ten steps, and restarts.

    torchrun --standalone --nproc-per-node 2 --max-restarts 3 fsdp2_gpt.py --text book.txt --folder run

It learns to write the text, character by character. A run that was ended goes on at its last checkpoint, also on
another number of ranks: --batch is the number of sequences of all ranks together.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from shoal.torch import checkpoint  # shoal.torch registers the backend "shoal"

WIDTH, HEADS, LAYERS, CONTEXT = 64, 4, 2, 64


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        wide = 4 * WIDTH
        self.mlp = torch.nn.Sequential(torch.nn.Linear(WIDTH, wide), torch.nn.GELU(), torch.nn.Linear(wide, WIDTH))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class GPT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, WIDTH)  # bytes
        self.places = torch.nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, 256)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x.flatten(0, 1))  # a row per character; FSDP2 warns if a module returns a view


def draw(text, step, rows, begin, end):
    """Sequences number `begin` to `end` of the `rows` of a step: the same ones on any number of ranks."""
    places = torch.randint(len(text) - CONTEXT, (rows,), generator=torch.Generator().manual_seed(step))
    tokens = torch.stack([text[place : place + CONTEXT + 1] for place in places[begin:end].tolist()]).long()
    return tokens[:, :-1], tokens[:, 1:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=12)
    options = parser.parse_args()

    if "OMP_NUM_THREADS" not in os.environ:  # torchrun sets it to 1 if there are several ranks
        n_cores = len(os.sched_getaffinity(0))
        torch.set_num_threads(max(1, n_cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    dist.init_process_group("shoal")
    rank, n_ranks = dist.get_rank(), dist.get_world_size()
    begin, end = options.batch * rank // n_ranks, options.batch * (rank + 1) // n_ranks
    text = torch.frombuffer(bytearray(options.text.read_bytes()), dtype=torch.uint8)

    torch.manual_seed(0)  # the same initial values on all ranks
    model = GPT()
    for module in [*model.blocks, model]:
        fully_shard(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "step": 0}
    if checkpoint.load(state, options.folder, allows_none=True, skips_damaged=True).step >= 0:
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        if rank == 0:
            print(f"goes on at step {state['step']} on {n_ranks} ranks", flush=True)

    saving, last = None, time.monotonic()
    for step in range(state["step"], options.steps):
        inputs, targets = draw(text, step, options.batch, begin, end)
        loss = F.cross_entropy(model(inputs), targets.flatten(), reduction="sum")
        loss = loss * n_ranks / (options.batch * CONTEXT)  # FSDP2 averages gradients over ranks
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 10 == 0 or step + 1 == options.steps:
            if saving is not None:
                saving.wait()  # the one before
            model_state, optimizer_state = get_state_dict(model, optimizer)
            state = {"model": model_state, "optimizer": optimizer_state, "step": step + 1}
            saving = checkpoint.save_start(state, options.folder, step=step + 1, keep=2, replaces=True)
            total = loss.detach() / n_ranks
            dist.all_reduce(total)
            if rank == 0:
                print(f"step {step + 1}: loss {total.item():.4f}, {time.monotonic() - last:.2f} s", flush=True)
            last = time.monotonic()
    if saving is not None:
        saving.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
