# SPDX-License-Identifier: MIT
"""Fully sharded training of tensors of torch on a GPU, by explicit calls: each rank keeps a part of every parameter.

shoal run -n 2 python3 torch_gpu.py                    on GPUs, or several ranks on one
shoal run -n 2 python3 torch_gpu.py --device cpu

Parameters and gradients are memory of the library. They come to torch by DLPack, without copies: torch's stream waits
for the library's work on them, and the library's stream for torch's. Nothing waits on the host.
"""

import argparse
import sys
import zlib

import shoal
import torch

SIZES, ROWS, RATE, MOMENTUM = (32, 200, 100, 4), 64, 0.1, 0.9


def start(layer, device):
    """The first values of a layer, the same on every rank."""
    random = torch.Generator().manual_seed(layer)
    weight = torch.randn(SIZES[layer], SIZES[layer + 1], generator=random) / SIZES[layer] ** 0.5
    return {f"{layer}.w": weight.to(device), f"{layer}.b": torch.zeros(SIZES[layer + 1], device=device)}


def draw(step, part, device):
    """The rows of one part of a batch, and what the network is to say about them."""
    random = torch.Generator().manual_seed(1000 * step + part)
    x = torch.rand(ROWS, SIZES[0], generator=random) * 2 - 1
    return x.to(device), torch.sin(x[:, : SIZES[-1]] * 2).to(device)


def forward(x, w, b):
    return torch.tanh(x @ w + b)


def backward(d, x, params, add):
    """Computes a layer again, with autograd, and adds to its gradients. Gives the gradient of its input.

    Whole parameters end with this function: nothing may use them when the library gives their memory up.
    """
    inputs = [tensor.detach().requires_grad_() for tensor in (x, *params)]
    d_x, *found = torch.autograd.grad(forward(*inputs), inputs, d)
    add(found)
    return d_x


def add_to(layer, found):
    for param, grad in zip(layer, found):
        param.full_grad.add_(grad)


def update(weights, moment, grad):
    """SGD with momentum, of this rank's part."""
    moment.mul_(MOMENTUM).add_(grad)
    weights.sub_(moment, alpha=RATE)


def train(world, n_steps, device=None, one_stream=False):
    """Gives the loss of the last step, and all parameters, in host memory."""
    place = torch.device("cpu") if device is None else torch.device(device, shoal.dlpack_device(device)[1])
    if place.type == "cuda":
        torch.cuda.set_device(place)
        if one_stream:  # the library's work goes to torch's stream: there is nothing to wait for
            shoal.use_stream(device, torch.cuda.current_stream())
    fsdp = shoal.Fsdp(world.group, device=device)
    layers = [fsdp.add_unit(start(layer, place)) for layer in range(len(SIZES) - 1)]
    moments = {param.name: param.zeros() for param in fsdp}  # of this rank's shards
    for step in range(n_steps):
        x, target = draw(step, world.rank, place)
        values = [x]
        for layer in layers:
            with layer.forward():  # gathers its parameters, and gives them up at the end
                values.append(forward(values[-1], *[param.full for param in layer]))
        d = (values[-1] - target) / ROWS
        for i, layer in reversed(list(enumerate(layers))):
            with layer.backward():  # gathers them again, and starts to average its gradients
                d = backward(d, values[i], [param.full for param in layer], lambda found: add_to(layer, found))
        fsdp.end_backward()  # all gradients are in the shards
        fsdp.update(lambda param, shard, grad: update(shard, moments[param.name], grad))
    loss = torch.square(values[-1] - target).mean().reshape(1)
    world.group.all_reduce(loss, op="avg")  # a tensor of the GPU is taken as it is
    return loss.item(), {param.name: param.gather() for param in fsdp}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--one-stream", action="store_true", help="let the library use torch's stream")
    given = parser.parse_args()
    device = None if given.device == "cpu" else given.device
    with shoal.World() as world:
        try:
            _ = device and shoal.dlpack_device(device)
        except shoal.UnsupportedError as error:
            print(f"This example needs a GPU of NVIDIA, or --device cpu: {error}")
            sys.exit(77)  # what tests take for "not here"
        loss, params = train(world, given.steps, device, given.one_stream)
        digest = zlib.crc32(b"".join(params[name].numpy().tobytes() for name in sorted(params)))
        print(f"rank {world.rank} of {world.n_ranks}: loss {loss:.4f}, parameters {digest:08x}")


if __name__ == "__main__":
    main()
