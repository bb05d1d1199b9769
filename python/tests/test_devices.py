# SPDX-License-Identifier: MIT
"""Memory of a GPU: FSDP there, collectives, and DLPack both ways, on the CUDA driver for tests (tests/fakecuda).

The host cannot read memory of that driver, and torch cannot use it: arrays are compared after copies by the library.
"""

import gc
import os
import pathlib
import subprocess
import sys
import types

import pytest
import shoal
from shoal import devices

numpy = pytest.importorskip("numpy")
TIMEOUT = 60.0
FAKE = pathlib.Path(__file__).resolve().parents[2] / "build/dev/tests/fakecuda/libcuda.so.1"

pytestmark = pytest.mark.skipif(not FAKE.exists(), reason="make test builds the CUDA driver for tests: build/dev")


@pytest.fixture(autouse=True, params=["threads", "lazy"])
def driver(request, monkeypatch):
    monkeypatch.setenv("SHOAL_CUDA", str(FAKE))
    monkeypatch.setenv("FAKECUDA_MODE", request.param)
    monkeypatch.setenv("TEST_APART_SEED", "7")


class Consumer:
    """Another library, as far as DLPack sees it: it has the memory of an array until `free`."""

    def __init__(self, array, stream=1):
        self.device = array.__dlpack_device__()
        self.capsule = array.__dlpack__(stream=stream, max_version=(1, 0))

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None):
        assert stream is not None  # the one of the library, which it follows
        return self.capsule

    def free(self):
        self.capsule = None


def whole(rows, columns):
    return numpy.arange(rows * columns, dtype="f4").reshape(rows, columns) / 8


def add(array, number):
    """A kernel: adds to every element."""
    array.write(array.read() + numpy.float32(number))


def train(world, **options):
    """Two steps whose gradients are the weights and the rank; gives the whole weights."""
    fsdp = shoal.Fsdp(world.group, **options)
    unit = fsdp.add_unit({"w": whole(5, 3), "b": numpy.ones(2, dtype="f4")})
    for _ in range(2):
        with unit.forward():
            seen = [param.full.read() if options else param.full.copy() for param in unit]
        with unit.backward():
            for param, values in zip(unit, seen):
                if options:
                    add(param.full_grad, 0)
                    param.full_grad.write(param.full_grad.read() + values + world.rank)
                else:
                    param.full_grad[...] += values + world.rank
        fsdp.end_backward()
        norm = fsdp.clip_grad_norm(1e9)
        for param in unit:
            shard, grad = param.update(), param.grad
            if options:
                shard.write(shard.read() - grad.read() / 4)
            else:
                shard -= grad / 4
            del shard, grad
        fsdp.zero_grad()
    return [param.gather().tolist() for param in unit], norm


def test_fsdp_has_the_bits_of_the_host():
    def ranks(world):
        return train(world, device="cuda"), train(world)

    for there, here in shoal.launch(ranks, 3, timeout=TIMEOUT):
        assert there == here


def test_arrays_say_what_they_are():
    def rank(world):
        fsdp = shoal.Fsdp(world.group, device="cuda")
        unit = fsdp.add_unit({"w": whole(4, 2), "empty": (0, 3)})
        shard = unit["w"].shard
        assert isinstance(shard, shoal.DeviceArray) and repr(shard) == "<shoal.DeviceArray: f32[4, 2] on cuda>"
        assert (shard.shape, shard.dtype, shard.device, shard.nbytes) == ((4, 2), "f32", "cuda", 32)
        assert shard.__dlpack_device__() == (2, 0) and shard.address != 0
        assert (shard.read() == whole(4, 2)).all() and unit["empty"].shard.read().shape == (0, 3)
        with pytest.raises(ValueError, match="values has 3 elements, the array 8"):
            shard.write(numpy.zeros(3, dtype="f4"))
        with pytest.raises(TypeError):
            memoryview(shard)
        with pytest.raises(TypeError, match="makes no arrays on devices"):
            unit["w"].zeros()
        with pytest.raises(BufferError, match="no copies"):
            shard.__dlpack__(copy=True)
        with pytest.raises(BufferError, match="no copies"):
            shard.__dlpack__(dl_device=(1, 0))
        with pytest.raises(shoal.InvalidError, match="0 is no stream"):
            shard.__dlpack__(stream=0)
        return True

    assert shoal.launch(rank, 1, timeout=TIMEOUT) == [True]


class Tensor:
    """A tensor of a library that takes memory of a GPU as torch does, on its stream 1."""

    dtype = "float32"

    def __init__(self, array):
        self.array = array
        self.capsule = array.__dlpack__(stream=1, max_version=(1, 0))
        self.shape = array.shape

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, stream):
        return self.array.__dlpack__(stream=stream)

    def cpu(self):
        return self.array.read()


def make_torch():
    """What is used of torch where it has a GPU."""
    torch = types.ModuleType("torch")
    torch.Tensor, torch.from_dlpack, torch.float32 = Tensor, Tensor, "float32"
    torch.cuda = types.SimpleNamespace(
        is_initialized=lambda: True, current_stream=lambda index: types.SimpleNamespace(cuda_stream=index)
    )
    torch.zeros = lambda shape, dtype, device: (shape, dtype, device)
    return torch


def test_parameters_of_torch():
    def rank(world):
        sys.modules["torch"] = make_torch()
        memory = shoal.Fsdp(world.group, device="cuda").add_unit({"w": whole(4, 2)})["w"]
        fsdp = shoal.Fsdp(world.group, device="cuda")
        unit = fsdp.add_unit({"w": Tensor(memory.shard)})
        w = unit["w"]
        assert type(w.shard) is Tensor and (w.shard.cpu() == whole(4, 2)).all()
        assert w.zeros() == ((4, 2), "float32", "cuda:0")
        with unit.forward():
            assert (w.full.cpu() == whole(4, 2)).all()
        with unit.backward():
            add(w.full_grad.array, 1)
            w.full_grad = w.full_grad  # as += ends
            with pytest.raises(AttributeError, match="write into it"):
                w.full_grad = w.full
        fsdp.end_backward()
        fsdp.update(lambda param, shard, grad: shard.array.write(shard.cpu() - grad.cpu()))
        data = w.update()
        world.group.all_reduce(data, factor=2.0)
        assert (data.cpu() == 2 * (whole(4, 2) - 1)).all()
        kept = w.shard
        with pytest.raises(BufferError, match="parameters of the context: w"):
            fsdp.close()
        del kept, data
        fsdp.close()
        return True

    assert shoal.launch(rank, 1, timeout=TIMEOUT) == [True]


def test_memory_that_is_in_use_is_not_given_up():
    def rank(world):
        fsdp = shoal.Fsdp(world.group, device="cuda")
        unit = fsdp.add_unit({"w": whole(4, 2)})
        unit.pre_forward()
        array = unit["w"].full
        with pytest.raises(BufferError, match="arrays still use whole parameters of w"):
            unit.post_forward()
        consumer = Consumer(array)
        del array
        with pytest.raises(BufferError, match="arrays still use whole parameters of w"):
            unit.post_forward()
        consumer.free()
        unit.post_forward()
        unit.pre_backward()
        Consumer(unit["w"].full_grad)  # dropped at once
        add(unit["w"].full_grad, 3)
        unit.post_backward()
        fsdp.end_backward()
        consumer = Consumer(unit["w"].grad)
        with pytest.raises(BufferError, match="gradients of w"):
            fsdp.zero_grad()
        del consumer
        fsdp.zero_grad()
        consumer = Consumer(unit["w"].shard)
        with pytest.raises(BufferError, match="parameters of the context: w"):
            fsdp.close()
        consumer.free()
        fsdp.close()
        return True

    assert shoal.launch(rank, 1, timeout=TIMEOUT) == [True]


def test_a_consumer_keeps_the_context():
    def rank(world):
        consumers = []
        for number in range(40):  # exports that have ended are forgotten meanwhile
            fsdp = shoal.Fsdp(world.group, device="cuda")
            unit = fsdp.add_unit({"w": numpy.full(1000, number, dtype="f4")})
            consumers.append(Consumer(unit["w"].shard))
            if number % 4:
                consumers[-1].free()
            del fsdp, unit
        gc.collect()
        assert len(devices._exports) < 30
        kept = [consumer for consumer in consumers if consumer.capsule is not None]
        for number, consumer in enumerate(kept):
            world.group.all_reduce(consumer)
        assert sum(export() is not None for export in devices._exports) == len(kept)
        for consumer in kept:
            consumer.free()
        return sum(export() is not None for export in devices._exports)

    assert shoal.launch(rank, 1, timeout=TIMEOUT) == [0]


def test_collectives():
    def ranks(world):
        group, n = world.group, world.n_ranks
        fsdp = shoal.Fsdp(group, device="cuda", replicated=True)
        unit = fsdp.add_unit({"a": numpy.ones(6, dtype="f4"), "b": numpy.zeros(6 * n, dtype="f4")})
        a, b = unit["a"].update(), unit["b"].update()
        a.write(numpy.full(6, world.rank + 1, dtype="f4"))
        group.all_reduce(a)
        assert a.read().tolist() == [sum(range(1, n + 1))] * 6
        a.write(numpy.full(6, world.rank, dtype="f4"))
        group.all_gather(Consumer(a), b)
        assert b.read().tolist() == numpy.repeat(numpy.arange(n), 6).tolist()
        group.reduce_scatter(b, a, op="max")
        assert a.read().tolist() == [world.rank] * 6
        group.broadcast(a, root=1)
        group.barrier()
        assert a.read().tolist() == [1] * 6
        host = numpy.ones(6, dtype="f4")
        with pytest.raises(ValueError, match="data and out are on cuda and cpu, not on one device"):
            group.all_reduce(a, host)
        with pytest.raises(ValueError, match="data is not in host memory"):
            group.send(a, to=0)
        with pytest.raises(TypeError, match="makes no arrays on devices"):
            group.all_gather(a)
        with pytest.raises(ValueError, match="SHOAL_CUDA_DEVICE"):
            other = Consumer(a)
            other.device = (2, 5)
            group.all_reduce(other)
        with pytest.raises(ValueError, match="DLPack device 10"):
            other.device = (10, 0)
            group.all_reduce(other)
        del other
        group.all_reduce(host)
        return host.tolist() == [n] * 6

    assert shoal.launch(ranks, 2, timeout=TIMEOUT) == [True, True]


def test_ranks_that_differ_in_the_device():
    def ranks(world):
        fsdp = shoal.Fsdp(world.group, device="cuda")
        unit = fsdp.add_unit({"a": numpy.ones(8, dtype="f4")})
        with pytest.raises(shoal.MismatchError):
            world.group.all_reduce(unit["a"].update() if world.rank else numpy.ones(4, dtype="f4"))
        return True

    assert shoal.launch(ranks, 2, timeout=TIMEOUT) == [True, True]


def test_hooks_get_arrays_of_the_device():
    def ranks(world):
        fsdp = shoal.Fsdp(world.group, device="cuda")
        unit = fsdp.add_unit({"w": whole(4, 2)})
        seen = []

        def accumulated(param, shard, grad):
            seen.append((type(shard), grad.read().tolist()))
            shard.write(shard.read() - grad.read())
            return True

        def reduced(gradients):
            add(gradients.data, 1)
            assert gradients.parts["w"].shape == (4,)

        fsdp.set_accumulated_hook(accumulated)
        fsdp.set_all_reduce_hook(reduced)
        with unit.forward():
            pass
        with unit.backward():
            add(unit["w"].full_grad, world.rank)
        fsdp.end_backward()
        assert unit["w"].grad is None
        kind, grad = seen[0]
        assert kind is shoal.DeviceArray and grad == [[1.5, 1.5]] * 2
        return (unit["w"].gather() == whole(4, 2) - 1.5).all()

    assert shoal.launch(ranks, 2, timeout=TIMEOUT) == [True, True]


def test_values_and_parts():
    def ranks(world):
        fsdp = shoal.Fsdp(world.group, device="cuda", sharded="state")
        unit = fsdp.add_unit({"w": whole(4, 2)})
        w = unit["w"]
        w.load(whole(4, 2) + 1)
        w.broadcast(whole(4, 2) * 2 if world.rank == 0 else None)
        w.load_slice(3, whole(1, 2))
        expected = whole(4, 2) * 2
        expected[3] = whole(1, 2)
        assert (w.gather() == expected).all() and (w.gather_array(w.shard) == expected).all()
        moments = shoal.Fsdp(world.group, device="cuda").add_unit({"w": (4, 2)})
        moment = moments["w"].update()
        w.load_array(whole(4, 2), moment)
        assert (moment.read() == whole(4, 2)[w.rows]).all()
        with pytest.raises(ValueError, match="shard is in host memory, not on cuda"):
            w.gather_array(numpy.zeros(w.shard_shape, dtype="f4"))
        here = shoal.Fsdp(world.group).add_unit({"w": whole(4, 2)})
        with pytest.raises(ValueError, match="shard is not in host memory"):
            here["w"].gather_array(moment)
        with pytest.raises(ValueError, match="other is not in host memory"):
            here.add("other", moment)
        return True

    assert shoal.launch(ranks, 2, timeout=TIMEOUT) == [True, True]


def test_a_child_of_fork_uses_no_array_of_its_parent():
    def rank(world):
        fsdp = shoal.Fsdp(world.group, device="cuda")
        array = fsdp.add_unit({"w": whole(4, 2)})["w"].shard
        consumer = Consumer(array)
        child = os.fork()
        if child == 0:
            wrong = len(devices._exports)
            uses = [array.read, array.__dlpack__]
            uses += [lambda: array.write(whole(4, 2)), lambda: world.group.all_reduce(array)]
            for use in uses:
                try:
                    use()
                    wrong += 1
                except shoal.StateError:
                    pass
            consumer.free()
            os._exit(wrong)
        consumer.free()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert shoal.launch(rank, 1, timeout=TIMEOUT) == [0]


def test_the_stream_of_the_library():
    def rank(world):
        fsdp = shoal.Fsdp(world.group, device="cuda")
        unit = fsdp.add_unit({"w": whole(4, 2)})
        own = devices.stream_of(devices.find_device("cuda"))
        shoal.use_stream("cuda", 1)
        assert devices.stream_of(devices.find_device("cuda")) == 1
        assert (unit["w"].shard.read() == whole(4, 2)).all()

        class Stream:
            cuda_stream = 0  # as torch has it: the legacy one

        shoal.use_stream("cuda", Stream())
        assert devices.stream_of(devices.find_device("cuda")) == 1
        shoal.use_stream("cuda")
        assert devices.stream_of(devices.find_device("cuda")) == own
        with pytest.raises(shoal.InvalidError):
            shoal.use_stream("cuda", -5)
        return True

    assert shoal.launch(rank, 1, timeout=TIMEOUT) == [True]


def test_a_device_that_is_not_there(monkeypatch):
    monkeypatch.setenv("SHOAL_CUDA", "off")

    def rank(world):
        with pytest.raises(shoal.UnsupportedError, match="SHOAL_CUDA"):
            shoal.Fsdp(world.group, device="cuda")
        with pytest.raises(shoal.Error, match="no_such"):
            shoal.Fsdp(world.group, device="no_such")
        with pytest.raises(TypeError):
            shoal.Fsdp(world.group, device=2)
        return True

    assert shoal.launch(rank, 1, timeout=TIMEOUT) == [True]


def test_an_exit_with_arrays_in_use():
    program = """
import numpy, shoal
world = shoal.World()
fsdp = shoal.Fsdp(world.group, device="cuda")
unit = fsdp.add_unit({"w": numpy.ones(100, dtype="f4")})
array = unit["w"].shard
capsule = array.__dlpack__(stream=1)
kept = [unit["w"].shard.__dlpack__(stream=-1) for _ in range(50)]
print(array.read().sum())
"""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "100.0\n", "")
