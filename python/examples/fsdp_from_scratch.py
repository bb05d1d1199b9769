# SPDX-License-Identifier: MIT
"""Fully sharded training of two layers in numpy: each rank keeps a part of every parameter, and trains on its own rows.

shoal run -n 2 python3 fsdp_from_scratch.py
"""

import zlib

import numpy as np
import shoal

SIZES, ROWS, RATE, MOMENTUM = (5, 17, 3), 8, np.float32(0.2), np.float32(0.9)

def start(layer):  # the same values on every rank
    random = np.random.default_rng(layer)
    shape = SIZES[layer], SIZES[layer + 1]
    return {f"{layer}.w": random.normal(0, 0.4, shape).astype("f4"), f"{layer}.b": np.zeros(shape[1], "f4")}

def draw(step, part):  # the rows of one part of a batch, and what the network is to say about them
    x = np.random.default_rng((step, part)).uniform(-1, 1, (ROWS, SIZES[0])).astype("f4")
    return x, np.stack([x.max(1), x.min(1), x.mean(1)], axis=1)

def forward(x, w, b):
    return np.tanh(x @ w + b)

def backward(d_y, x, y, w, b, d_w, d_b):  # adds to the gradients of the parameters, and gives that of x
    d = d_y * (1 - y * y)
    d_w += x.T @ d
    d_b += d.sum(0)
    return d @ w.T

def update(weights, moment, grad):  # elements know nothing of each other, so each rank updates its own
    moment[...] = MOMENTUM * moment + grad
    weights -= RATE * moment

def train(world, n_steps):
    fsdp = shoal.Fsdp(world.group)
    layers = [fsdp.add_unit(start(layer)) for layer in range(len(SIZES) - 1)]
    moments = {param.name: param.zeros() for param in fsdp}  # of this rank's shards
    for step in range(n_steps):
        x, target = draw(step, world.rank)
        values = [x]
        for layer in layers:
            with layer.forward():  # gathers its parameters, and gives them up at the end
                values.append(forward(values[-1], *[param.full for param in layer]))
        d = (values[-1] - target) / np.float32(ROWS)
        for i, layer in reversed(list(enumerate(layers))):
            with layer.backward():  # gathers them again, and starts to average its gradients
                d = backward(d, values[i], values[i + 1], *[p.full for p in layer], *[p.full_grad for p in layer])
        fsdp.end_backward()  # all gradients are in the shards
        fsdp.update(lambda param, shard, grad: update(shard, moments[param.name], grad))
    loss = world.group.all_reduce(np.square(values[-1] - target).mean(keepdims=True), op="avg")
    return loss.item(), {param.name: param.gather() for param in fsdp}

if __name__ == "__main__":
    with shoal.World() as world:
        loss, params = train(world, n_steps=100)
        digest = zlib.crc32(b"".join(params[name].tobytes() for name in sorted(params)))
        print(f"rank {world.rank} of {world.n_ranks}: loss {loss:.4f}, parameters {digest:08x}")
