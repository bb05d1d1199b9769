# SPDX-License-Identifier: MIT
"""Random exchanges of memory with torch by DLPack, both ways, on streams of both: a wait that is missing shows as a
wrong value, because kernels are slow, memory is given back at once, and whoever gets it next fills it with something
else.

    python3 torch_dlpack_gpu.py [--count 1000] [--seed 1] [--only KIND,...] [--device cuda]

The last line says "N exchanges, W wrong"; the status is 1 if one was wrong, and 77 without a GPU. An exchange that is
wrong is named with its seed: --count 1 --seed S does it again. With --device cpu the same program runs without a GPU
and without streams, as a test of itself.
"""

import argparse
import contextlib
import ctypes
import random
import sys
import traceback

import shoal
import torch
from shoal import devices
from shoal._cpython import declare
from shoal._dlpack import NO_ORDER
from shoal._library import check, lib

# DLPack's dtypes as both libraries have them. Doubling is exact in the floating ones.
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
GARBAGE = 77

_get = declare("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_set_name = declare("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_new = declare("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_USED = b"used_dltensor"


# Places --------------------------------------------------------------------------------------------------------------


class Gpu:
    """Streams of torch, and that of the library, which is made slow as well."""

    name = "cuda"

    def __init__(self):
        kind, index = shoal.dlpack_device("cuda")
        torch.cuda.set_device(index)
        self.place = torch.device("cuda", index)
        self.number = devices.find_device("cuda")
        torch.zeros(1, device=self.place)
        self.streams = [torch.cuda.default_stream()] + [torch.cuda.Stream() for _ in range(3)]
        self.library = torch.cuda.ExternalStream(devices.stream_of(self.number))

    def use(self, stream):
        return torch.cuda.stream(stream)

    def number_of(self, stream):
        return stream.cuda_stream or 1

    def library_number(self):
        return devices.stream_of(self.number)

    def slow(self, rng):
        """On torch's current stream: up to about 2 ms."""
        if rng.random() < 0.8:
            torch.cuda._sleep(rng.randrange(10_000, 4_000_000))

    def slow_library(self, rng):
        with torch.cuda.stream(self.library):
            self.slow(rng)

    def follow(self, stream):
        check(lib.shoal_device_follow(self.number, self.number_of(stream)))

    def settle(self):
        torch.cuda.synchronize()


class Cpu:
    """No streams: what the calls do is done when they return."""

    name = "cpu"
    place = torch.device("cpu")
    number = devices.CPU
    streams = [None]

    def use(self, stream):
        return contextlib.nullcontext()

    def number_of(self, stream):
        return NO_ORDER

    library_number = number_of

    def slow(self, rng):
        pass

    slow_library = slow

    def follow(self, stream):
        pass

    def settle(self):
        pass


# Tensors of the library ----------------------------------------------------------------------------------------------


def need(tensor):
    """A tensor that an op has made; its error if there is none."""
    if not tensor:
        check(lib.shoal_scope_error())
        raise AssertionError("there is no tensor, and no error")
    return tensor


@contextlib.contextmanager
def scope():
    check(lib.shoal_scope_begin())
    try:
        yield
    except BaseException:
        lib.shoal_scope_end()
        raise
    check(lib.shoal_scope_end())


def from_capsule(capsule):
    """A tensor of the library over what a capsule of torch has, which belongs to it from now on."""
    tensor = need(lib.shoal_from_dlpack(_get(capsule, b"dltensor")))
    _set_name(capsule, _USED)
    return tensor


class Given:
    """A tensor of the library, as torch.from_dlpack wants one."""

    def __init__(self, tensor, kind, library_orders):
        self.tensor, self.kind, self.library_orders = tensor, kind, library_orders
        self.seen = None

    def __dlpack_device__(self):
        return self.kind

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.seen = stream
        managed = ctypes.c_void_p()
        number = stream if stream is not None and self.library_orders else NO_ORDER
        check(lib.shoal_to_dlpack_on(self.tensor, number, ctypes.byref(managed)))
        return _new(managed.value, b"dltensor", None)


def to_torch(gpu, tensor, stream, library_orders=True):
    """A tensor of torch over one of the library, on torch's current stream."""
    kind = (1, 0) if gpu.name == "cpu" else shoal.dlpack_device("cuda")
    given = Given(tensor, kind, library_orders)
    made = torch.from_dlpack(given)
    assert gpu.name == "cpu" or given.seen == gpu.number_of(stream), f"torch has asked for stream {given.seen}"
    if not library_orders and gpu.name != "cpu":  # by hand: an event on the library's stream
        event = torch.cuda.Event()
        event.record(gpu.library)
        torch.cuda.current_stream().wait_event(event)
    return made


# Random tensors ------------------------------------------------------------------------------------------------------


def draw_values(rng, shape, dtype):
    """Values in host memory whose doubles are exact."""
    made = torch.Generator().manual_seed(rng.randrange(1 << 30))
    return torch.randint(-30, 31, shape, generator=made).abs().to(dtype) if dtype == torch.uint8 else torch.randint(
        -30, 31, shape, generator=made
    ).to(dtype)  # fmt: skip


def draw_shape(rng):
    if rng.random() < 0.15:
        return (rng.choice([0, 1, 1 << 18, 3 * (1 << 16) + 1]),)
    return tuple(rng.choice([1, 2, 3, 5, 8, 17, 64]) for _ in range(rng.randrange(0, 5)))


def draw_place(rng, shape, dtype, place):
    """Memory for values of this shape: with an offset, gaps between rows, or dimensions in another order."""
    kind = rng.randrange(4)
    if kind == 0 or not shape:
        return torch.empty(shape, dtype=dtype, device=place)
    if kind == 1:  # an offset
        size = 1
        for length in shape:
            size *= length
        offset = rng.randrange(1, 9)
        return torch.empty(size + offset, dtype=dtype, device=place)[offset:].view(shape)
    if kind == 2:  # gaps
        wide = torch.empty((*shape[:-1], shape[-1] * 2 + 3), dtype=dtype, device=place)
        return wide[..., 1 : 2 * shape[-1] : 2] if shape[-1] else wide[..., :0]
    order = list(range(len(shape)))
    rng.shuffle(order)
    back = [order.index(dim) for dim in range(len(shape))]
    return torch.empty([shape[dim] for dim in order], dtype=dtype, device=place).permute(back)


def scribble(gpu, rng, nbytes):
    """Whoever gets memory that was just freed fills it with something else, on a stream of torch and the library's."""
    count = max(nbytes // 4, 1)
    with gpu.use(rng.choice(gpu.streams)):
        torch.full((count,), float(GARBAGE), device=gpu.place)
    if gpu.name != "cpu":
        with scope():
            sizes = (ctypes.c_int64 * 1)(count)
            empty = need(lib.shoal_empty_on(sizes, 1, shoal.Dtype.F32, gpu.number))
            need(lib.shoal_add_scalar_(need(lib.shoal_mul_scalar_(empty, 0.0)), float(GARBAGE)))


def same(found, expected):
    return found.shape == expected.shape and torch.equal(found.cpu(), expected)


# Exchanges: each gives whether the values are right ------------------------------------------------------------------


def produce(gpu, rng, stream, dtype=None):
    """A tensor of torch with known values, which its stream writes late."""
    dtype = dtype or rng.choice(FLOATS + INTEGERS)
    shape = draw_shape(rng)
    values = draw_values(rng, shape, dtype)
    with gpu.use(stream):
        there = values.to(gpu.place)  # host memory that is not pinned: it is there when the call returns
        tensor = draw_place(rng, shape, dtype, gpu.place)
        tensor.fill_(GARBAGE)
        gpu.slow(rng)
        tensor.copy_(there)
    return tensor, values


def export(gpu, rng, stream, tensor):
    """The capsule of a tensor of torch. Its stream is waited for by either library."""
    with gpu.use(stream):
        if gpu.name == "cpu":
            return tensor.__dlpack__()
        if rng.random() < 0.5:
            return tensor.__dlpack__(stream=gpu.library_number())
        capsule = tensor.__dlpack__(stream=NO_ORDER)
        gpu.follow(stream)
        return capsule


def compute(rng, tensor, values):
    """An op of the library on one of its tensors: a new tensor, and the values that it must have."""
    if values.dtype in FLOATS and rng.random() < 0.7:
        return need(lib.shoal_mul_scalar(tensor, 2.0)), values * 2
    return need(lib.shoal_clone(tensor)), values


def read(tensor, like):
    """A contiguous tensor of the library, in host memory."""
    found = torch.empty(like.shape, dtype=like.dtype)
    check(lib.shoal_read(tensor, found.data_ptr(), found.numel() * found.element_size()))
    return found


def torch_to_library(gpu, rng):
    """The library reads memory of torch, which is dropped at once; what it has made is read on the host."""
    stream = rng.choice(gpu.streams)
    tensor, values = produce(gpu, rng, stream)
    nbytes = tensor.numel() * tensor.element_size()
    with scope():
        gpu.slow_library(rng)
        borrowed = from_capsule(export(gpu, rng, stream, tensor))
        if rng.random() < 0.7:
            del tensor
        result, expected = compute(rng, borrowed, values)
        lib.shoal_tensor_ref(result)
    # `borrowed` is gone: torch gets its memory back when the library has read it.
    try:
        scribble(gpu, rng, nbytes)
        return same(read(result, expected), expected)
    finally:
        lib.shoal_tensor_unref(result)


def library_to_torch(gpu, rng):
    """Torch reads memory of the library on any stream; the library's tensor is dropped at once."""
    stream, dtype = rng.choice(gpu.streams), rng.choice(FLOATS + INTEGERS)
    values = draw_values(rng, draw_shape(rng), dtype)
    here = values.contiguous()
    with scope():
        sizes = (ctypes.c_int64 * max(len(here.shape), 1))(*here.shape)
        number = from_torch_dtype(dtype)
        made = need(lib.shoal_empty_on(sizes, len(here.shape), number, gpu.number))
        check(lib.shoal_write(made, here.data_ptr(), here.numel() * here.element_size()))
        gpu.slow_library(rng)
        result, expected = compute(rng, made, values)
        with gpu.use(stream):
            seen = to_torch(gpu, result, stream, library_orders=rng.random() < 0.6)
    # Its tensors are gone. The memory is torch's alone.
    scribble(gpu, rng, here.numel() * here.element_size())
    with gpu.use(stream):
        gpu.slow(rng)
        copy = seen.clone()
    gpu.follow(stream)  # before the deleter: the library may give the memory out again at once
    nbytes = seen.numel() * seen.element_size()
    del seen
    scribble(gpu, rng, nbytes)
    with gpu.use(stream):
        return same(copy, expected)


def back_and_forth(gpu, rng):
    """Both write the same memory in turn."""
    stream = rng.choice(gpu.streams)
    tensor, values = produce(gpu, rng, stream, rng.choice(FLOATS))
    with scope():
        borrowed = from_capsule(export(gpu, rng, stream, tensor))
        expected = values
        for _ in range(rng.randrange(1, 4)):
            gpu.slow_library(rng)
            need(lib.shoal_add_scalar_(borrowed, 1.0))
            stream = rng.choice(gpu.streams)
            with gpu.use(stream):
                seen = to_torch(gpu, borrowed, stream, library_orders=rng.random() < 0.6)
                gpu.slow(rng)
                seen.add_(2)
                expected = expected + 3
            gpu.follow(stream)
            if rng.random() < 0.7:
                del seen
        result = need(lib.shoal_clone(borrowed))
        return same(read(result, expected), expected)


def collective(gpu, rng, world):
    """A tensor of torch in an all_reduce of one rank, which multiplies by a factor."""
    stream = rng.choice(gpu.streams)
    dtype = rng.choice(FLOATS)
    values = draw_values(rng, draw_shape(rng) or (1,), dtype)
    with gpu.use(stream):
        there, tensor = values.to(gpu.place), torch.full(values.shape, GARBAGE, dtype=dtype, device=gpu.place)
        gpu.slow(rng)
        tensor.copy_(there)
        if rng.random() < 0.5:
            world.group.all_reduce(tensor, factor=2.0)
            result = tensor
        else:
            result = torch.full(values.shape, GARBAGE, dtype=dtype, device=gpu.place)
            work = world.group.all_reduce_start(tensor, result, factor=2.0)
            del tensor, there
            scribble(gpu, rng, values.numel() * values.element_size())
            work.wait()
        return same(result.clone(), values * 2)


def sharded(gpu, rng, world):
    """A step of explicit FSDP with slow kernels of torch on any stream."""
    values = draw_values(rng, (rng.choice([1, 7, 4096]), rng.choice([1, 5])), torch.float32)
    given = values.clone() if rng.random() < 0.5 else values.to(gpu.place)
    device, reshard = None if gpu.name == "cpu" else gpu.name, rng.choice(["default", "never"])
    with shoal.Fsdp(world.group, device=device, reshard=reshard) as fsdp:
        unit = fsdp.add_unit({"w": given})
        param, expected = unit["w"], values
        for _ in range(rng.randrange(1, 4)):
            stream = rng.choice(gpu.streams)
            with gpu.use(stream):
                with unit.forward():
                    gpu.slow(rng)
                    out = param.full * 3
                if not same(out, expected * 3):
                    return False
            stream = rng.choice(gpu.streams)
            with gpu.use(stream):
                with unit.backward():
                    gpu.slow(rng)
                    param.full_grad.add_(param.full).add_(1)
                fsdp.end_backward()
                fsdp.update(lambda param, shard, grad: (gpu.slow(rng), shard.sub_(grad, alpha=2)))
            expected = expected - 2 * (expected + 1)
        return same(param.gather(), expected)


def from_torch_dtype(dtype):
    names = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64", "int8": "I8", "int16": "I16",
             "int32": "I32", "int64": "I64", "uint8": "U8"}  # fmt: skip
    return shoal.Dtype[names[str(dtype).split(".")[1]]]


KINDS = {
    "torch_to_library": (torch_to_library, 4),
    "library_to_torch": (library_to_torch, 4),
    "back_and_forth": (back_and_forth, 2),
    "collective": (collective, 2),
    "sharded": (sharded, 1),
}


# The program ---------------------------------------------------------------------------------------------------------


def run_one(gpu, world, seed, only):
    """Whether an exchange has failed; says how."""
    rng = random.Random(seed)
    name = rng.choice([kind for kind in only for _ in range(KINDS[kind][1])])
    function = KINDS[name][0]
    try:
        arguments = (gpu, rng, world) if name in ("collective", "sharded") else (gpu, rng)
        if function(*arguments):
            return False
        print(f"seed {seed}: {name}: a wrong value", flush=True)
    except Exception:
        print(f"seed {seed}: {name}:\n{traceback.format_exc()}", flush=True)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="of the first exchange; the others have the next numbers")
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    given = parser.parse_args()
    try:
        gpu = Cpu() if given.device == "cpu" else Gpu()
    except shoal.UnsupportedError as error:
        print(f"there is no GPU: {error}")
        sys.exit(77)
    n_wrong = 0
    with shoal.World() as world:
        for seed in range(given.seed, given.seed + given.count):
            n_wrong += run_one(gpu, world, seed, given.only.split(","))
        gpu.settle()
    print(f"{given.count} exchanges, {n_wrong} wrong", flush=True)
    sys.exit(n_wrong > 0)


if __name__ == "__main__":
    main()
