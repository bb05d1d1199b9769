# SPDX-License-Identifier: MIT
"""Runs PyTorch's own distributed_test.py, which comes with torch, on this backend.

    torch_own.py list                      the tests for CPU tensors
    torch_own.py run SHARD N [NAME...]     every N-th of them, or those; a line of JSON for each

BACKEND (shoal) may be gloo, for comparison; WORLD_SIZE is 4 unless set; LIMIT_S is when no further test is begun.
The file names backends literally where it says what they can do. PATCHES adds this one where Gloo, or MPI, is allowed.
"""

import dataclasses
import json
import os
import re
import sys
import tempfile
import time
import types
import unittest

os.environ.setdefault("BACKEND", "shoal")
os.environ.setdefault("WORLD_SIZE", "4")
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "90")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
NAME = os.environ["BACKEND"]

# What is replaced in the file, and by what. A text that is not there has no effect: versions differ.
PATCHES = [
    ('BACKEND != "mpi" and BACKEND != "nccl" and BACKEND != "gloo"', 'BACKEND not in ("mpi", "nccl", "gloo", NAME)'),
    ('BACKEND != "mpi", "Only MPI supports', 'BACKEND not in ("mpi", NAME), "Only MPI supports'),
    ('BACKEND != "gloo", "GLOO Batch', 'BACKEND not in ("gloo", NAME), "GLOO Batch'),
    ('BACKEND != "gloo", "Only gloo backend supports timeouts"', 'BACKEND not in ("gloo", NAME), "timeouts"'),
    ('BACKEND != "gloo" and BACKEND != "nccl"', 'BACKEND not in ("gloo", "nccl", NAME)'),
    ('BACKEND != "nccl" and BACKEND != "gloo"', 'BACKEND not in ("gloo", "nccl", NAME)'),
    ('BACKEND != "gloo", "Only Gloo backend support sparse', 'BACKEND not in ("gloo", NAME), "sparse'),
    ('require_backend_is_available({"gloo"})', 'require_backend_is_available({"gloo", NAME})'),
    ('require_backend({"gloo"})', 'require_backend({"gloo", NAME})'),
]
NEEDS_GPU = re.compile(r"lt_x_gpu|n_gpus|no_gpu|skip_if_small_gpu|backend_feature\[\"gpu\"\]")


def mend_torch_1_13():
    """On Python 3.11 a dataclass of torch 1.13 has a default that cannot be hashed, which 3.11 refuses."""
    import torch

    if sys.version_info < (3, 11) or not torch.__version__.startswith("1."):
        return
    get_field = dataclasses._get_field

    def get_hashable(cls, name, *others):
        default = getattr(cls, name, dataclasses.MISSING)
        default = default.default if isinstance(default, dataclasses.Field) else default
        kind = type(default)
        if kind.__hash__ is None and kind.__module__.startswith("torch."):
            kind.__hash__ = object.__hash__
        return get_field(cls, name, *others)

    dataclasses._get_field = get_hashable


def stand_in_for_expecttest():
    """torch.testing imports it for what these tests do not use."""
    try:
        import expecttest  # noqa: F401
    except ImportError:
        module = types.ModuleType("expecttest")
        module.ACCEPT = False
        module.TestCase = unittest.TestCase
        sys.modules["expecttest"] = module


def load_tests_of_torch():
    import torch

    if NAME == "shoal":
        import shoal.torch  # noqa: F401
        from shoal.torch import building

        building.load()
    from torch.testing._internal.common_distributed import DistTestCases

    for feature in ("ddp", "subgroup", "plugin"):
        if NAME != "gloo":
            DistTestCases.backend_feature[feature].add(NAME)
    path = os.path.join(os.path.dirname(torch.__file__), "testing/_internal/distributed/distributed_test.py")
    with open(path) as file:
        text = file.read()
    for old, new in PATCHES:
        text = text.replace(old, new.replace("NAME", repr(NAME)))
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "patched_distributed_test.py"), "w") as file:
        file.write(text)
    sys.path.insert(0, folder)
    import patched_distributed_test

    return patched_distributed_test, text


mend_torch_1_13()
stand_in_for_expecttest()
tests, text = load_tests_of_torch()
import torch  # noqa: E402


class TestOwn(tests.TestDistBackend, tests.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        # PyTorch itself spawns, which imports torch again in every rank of every test.
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


def decorators_of(lines, line):
    found = []
    while line > 0 and re.match(r"        (@|    |\))", lines[line - 1]):
        line -= 1
        found.append(lines[line])
    return "\n".join(found)


def names():
    """The tests for CPU tensors that are not skipped for this backend."""
    found = set()
    lines = text.split("\n")
    for line, content in enumerate(lines):
        match = re.match(r"        def (test_\w+)\(", content)
        if not match or re.search("cuda|nccl|gpu", match[1]) or NEEDS_GPU.search(decorators_of(lines, line)):
            continue
        function = getattr(TestOwn, match[1], None)
        if function is not None and not getattr(function, "__unittest_skip__", False):
            found.add(match[1])
    return sorted(found)


def run(name):
    result = unittest.TestResult()
    begin = time.monotonic()
    unittest.defaultTestLoader.loadTestsFromName("TestOwn." + name, sys.modules[__name__]).run(result)
    outcome = "skip" if result.skipped else "ok" if result.wasSuccessful() else "fail"
    why = result.skipped[0][1] if result.skipped else ""
    for _, trace in result.errors + result.failures:
        why += "\n".join([line for line in trace.split("\n") if "Error" in line][:6])
    answer = {"test": name, "outcome": outcome, "seconds": round(time.monotonic() - begin, 1), "why": why[:900]}
    print("RESULT " + json.dumps(answer), flush=True)


def main():
    if sys.argv[1] == "list":
        print("\n".join(names()))
        return
    shard, n = int(sys.argv[2]), int(sys.argv[3])
    end = time.monotonic() + float(os.environ.get("LIMIT_S", "1e9"))
    for name in sys.argv[4:] or names()[shard::n]:
        if time.monotonic() < end:
            run(name)


if __name__ == "__main__":
    main()
