# SPDX-License-Identifier: MIT
"""Random programs on contexts of FSDP, of which one rank may make another: all ranks end, with errors or with none."""

import gc
import os
import random

import pytest
import shoal

numpy = pytest.importorskip("numpy")
N_PROGRAMS = int(os.environ.get("SHOAL_TEST_PROGRAMS", "12"))
OPTIONS = [
    {}, {"sharded": "gradients"}, {"sharded": "state"}, {"reshard": "never"}, {"replicated": True},
    {"param_dtype": "bf16", "reduce_dtype": "f32"},
]  # fmt: skip


def draw_steps(rng, n_units):
    calls = []
    for _ in range(rng.randint(1, 4)):
        for unit in range(n_units):
            calls += [("pre_forward", unit), ("post_forward", unit)]
        if rng.random() < 0.2:
            calls.append(("end_forward", None))
            continue
        if rng.random() < 0.2:
            calls.append(("fail", None))
            continue
        for unit in reversed(range(n_units)):
            calls += [("pre_backward", unit), ("add", unit), ("post_backward", unit)]
        calls.append(("end_backward", None))
        calls += [("clip", None)] * (rng.random() < 0.5) + [("update", None)] * (rng.random() < 0.8)
        calls += [("gather", rng.randrange(n_units))] * (rng.random() < 0.3)
        calls += [("by_hand", rng.randrange(n_units))] * (rng.random() < 0.3)
    return calls


def deviate(rng, calls):
    at, how = rng.randrange(len(calls)), rng.choice(["skip", "twice", "swap", "raise"])
    if how == "skip":
        del calls[at]
    elif how == "twice":
        calls.insert(at, calls[at])
    elif how == "swap":
        calls.insert(max(at - 1, 0), calls.pop(at))
    else:
        calls.insert(at, ("raise", None))


def fail_and_reset(fsdp, unit):
    def kernel(arrays):
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        with unit.forward():
            kernel([param.full for param in unit])
    fsdp.reset()


def call(fsdp, unit, name):
    if name == "add":
        for param in unit:
            param.full_grad[...] += 1
    elif name == "update":
        fsdp.update(lambda param, shard, grad: numpy.subtract(shard, grad, out=shard))
    elif name == "clip":
        fsdp.clip_grad_norm(1.0)
    elif name == "gather":
        assert all(param.gather().shape == param.shape for param in unit)
    elif name == "by_hand":
        unit.unshard()
        unit.wait()
        assert all(param.full.shape == param.shape for param in unit)
        unit.reshard()
    elif name == "fail":
        fail_and_reset(fsdp, fsdp.units[0])
    elif name == "raise":
        raise KeyError("of the program")
    else:
        getattr(fsdp if unit is None else unit, name)()


def run(world, seed):
    rng, own = random.Random(seed), random.Random(seed * 7 + world.rank)
    fsdp = shoal.Fsdp(world.group, **rng.choice(OPTIONS))
    for i in range(rng.randint(1, 4)):
        shapes = [(rng.randint(0, 7), rng.randint(1, 3)) for _ in range(rng.randint(1, 3))]
        fsdp.add_unit({f"{i}.{k}": numpy.ones(shape, dtype="f4") for k, shape in enumerate(shapes)})
    if rng.random() < 0.3:
        fsdp.set_accumulated_hook(lambda param, shard, grad: None)
    calls = draw_steps(rng, len(fsdp.units))
    if seed % 3 != 0 and world.rank == 1:
        deviate(rng, calls)
    for name, unit in calls:
        if own.random() < 0.1:
            gc.collect()
        call(fsdp, None if unit is None else fsdp.units[unit], name)
    world.group.barrier()


@pytest.mark.parametrize("seed", range(N_PROGRAMS))
def test_program(seed):
    def ranks(world):
        try:
            run(world, seed)
        except (shoal.Error, KeyError) as error:
            return type(error).__name__
        return "fine"

    ends = shoal.launch(ranks, 3, timeout=10.0)
    assert len({end == "fine" for end in ends}) == 1, ends
    if seed % 3 == 0:
        assert ends == ["fine"] * 3
