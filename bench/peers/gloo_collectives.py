#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The collectives of Gloo, through PyTorch, measured as `shoal bench` measures ours.

    gloo_collectives.py OP --library libmeasure.so [--ranks 2] [--sizes 1K:64M:4 ...]

The measuring itself is bench/measure/ as a shared library: what is written here is how Gloo is called. Ranks are
processes that this program forks. Exit status 3: this PyTorch has no such collective for Gloo.
"""
import ctypes
import os
import shutil
import sys
import tempfile

ABSENT = 3
TORCH_NAMES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i8": "int8", "i16": "int16",
    "i32": "int32", "i64": "int64", "u8": "uint8",
}
RUN = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p,
                       ctypes.c_size_t)


def load(path):
    library = ctypes.CDLL(os.path.abspath(path))
    library.measure_simple_open.restype = ctypes.c_void_p
    library.measure_simple_open.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    library.measure_simple_ranks.argtypes = [ctypes.c_void_p]
    library.measure_simple_dtype.argtypes = [ctypes.c_void_p]
    library.measure_simple_dtype.restype = ctypes.c_char_p
    library.measure_simple_fail.argtypes = [ctypes.c_void_p]
    library.measure_simple_run.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, RUN, RUN]
    library.measure_simple_run.restype = ctypes.c_bool
    return library


class Tensors:
    """The buffers as tensors. Made once per place: Gloo is not charged for it."""

    def __init__(self, torch, dtype):
        self.torch = torch
        self.dtype = dtype
        self.known = {}

    def at(self, address, size):
        if size == 0:
            return None
        key = (address, size)
        if key not in self.known:
            memory = (ctypes.c_char * size).from_address(address)
            self.known[key] = self.torch.frombuffer(memory, dtype=self.dtype)
        return self.known[key]


def make_calls(torch, dist, n_ranks):
    """op -> function(send, recv). PyTorch's all_reduce is in place: see prepare() in run_rank."""
    gather = getattr(dist, "all_gather_into_tensor", None) or getattr(dist, "_all_gather_base", None)
    scatter = getattr(dist, "reduce_scatter_tensor", None) or getattr(dist, "_reduce_scatter_base", None)

    def all_gather_list(send, recv):
        dist.all_gather(list(recv.chunk(n_ranks)), send)

    calls = {
        "all_reduce": lambda send, recv: dist.all_reduce(recv),
        "all_gather": lambda send, recv: gather(recv, send),
        "reduce_scatter": lambda send, recv: scatter(recv, send),
        "all_to_all": lambda send, recv: dist.all_to_all_single(recv, send),
        "broadcast": lambda send, recv: dist.broadcast(recv, 0),
        "barrier": lambda send, recv: dist.barrier(),
    }
    # Older versions have no gather into one tensor for Gloo; the list form is what their users call.
    if not works(torch, calls["all_gather"], 1, n_ranks):
        calls["all_gather"] = all_gather_list
    return calls


def works(torch, call, n_send, n_recv):
    try:
        call(torch.zeros(n_send), torch.zeros(n_recv))
        return True
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return False


def run_rank(library, handle, op, rank, meeting):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    n_ranks = library.measure_simple_ranks(handle)
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=n_ranks)
    call = make_calls(torch, dist, n_ranks)[op]
    if op != "barrier" and not works(torch, call, 1 if op == "all_gather" else n_ranks,
                                     1 if op == "reduce_scatter" else n_ranks):
        return ABSENT
    dtype = getattr(torch, TORCH_NAMES[library.measure_simple_dtype(handle).decode()])
    tensors = Tensors(torch, dtype)

    # Not timed: PyTorch reduces in place, so the input has to be where the result will be.
    def prepare(_, send, send_bytes, recv, recv_bytes):
        if op == "all_reduce":
            ctypes.memmove(recv, send, send_bytes)
        return True

    def run(_, send, send_bytes, recv, recv_bytes):
        try:
            call(tensors.at(send, send_bytes), tensors.at(recv, recv_bytes))
            return True
        except Exception as error:  # an exception must not pass through C
            print(f"gloo_collectives: rank {rank}: {error}", file=sys.stderr)
            return False

    is_good = library.measure_simple_run(handle, rank, b"gloo", RUN(prepare), RUN(run))
    dist.destroy_process_group()
    return 0 if is_good else 1


def wait_for(children, library, handle):
    worst = 0
    for _ in children:
        pid, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        if code != 0:
            library.measure_simple_fail(handle)
        worst = code if worst == 0 else worst
    return worst


def main():
    arguments = sys.argv[1:]
    if len(arguments) < 3 or "--library" not in arguments:
        print(__doc__, file=sys.stderr)
        return 2
    at = arguments.index("--library")
    library = load(arguments[at + 1])
    del arguments[at:at + 2]
    words = (ctypes.c_char_p * len(arguments))(*[word.encode() for word in arguments])
    handle = library.measure_simple_open(len(arguments), words)
    if not handle:
        return 2
    # Another interface would leave the machine, or resolve its name.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    folder = tempfile.mkdtemp()
    children = []
    for rank in range(library.measure_simple_ranks(handle)):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = run_rank(library, handle, arguments[0], rank, os.path.join(folder, "meeting"))
            except BaseException as error:
                print(f"gloo_collectives: rank {rank}: {error}", file=sys.stderr)
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(pid)
    try:
        return wait_for(children, library, handle)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
