# SPDX-License-Identifier: MIT
"""The example runs, and n ranks give the bits of one process that computes the n parts one after the other."""

import importlib.util
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import shoal

numpy = pytest.importorskip("numpy")
ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "fsdp_from_scratch.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("fsdp_from_scratch", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train_alone(example, n_parts, n_steps):
    """The same training without Shoal: a buffer of gradients for each part, added in the order of ranks."""
    layers = [example.start(layer) for layer in range(len(example.SIZES) - 1)]
    params = {name: values for layer in layers for name, values in layer.items()}
    moments = {name: numpy.zeros_like(values) for name, values in params.items()}
    for step in range(n_steps):
        parts = []
        for part in range(n_parts):
            grads = {name: numpy.zeros_like(values) for name, values in params.items()}
            x, target = example.draw(step, part)
            values = [x]
            for layer in layers:
                values.append(example.forward(values[-1], *layer.values()))
            d = (values[-1] - target) / numpy.float32(example.ROWS)
            for i in reversed(range(len(layers))):
                buffers = [grads[name] for name in layers[i]]
                d = example.backward(d, values[i], values[i + 1], *layers[i].values(), *buffers)
            parts.append(grads)
        for name in params:
            total = parts[0][name]
            for grads in parts[1:]:
                total = total + grads[name]
            example.update(params[name], moments[name], total / numpy.float32(n_parts))
    return params


def digest_of(params):
    return f"{zlib.crc32(b''.join(params[name].tobytes() for name in sorted(params))):08x}"


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_fsdp_from_scratch_gives_the_bits_of_one_process(example, n_ranks):
    wanted = train_alone(example, n_ranks, 20)
    for loss, params in shoal.launch(example.train, n_ranks, 20, timeout=60.0):
        assert {name: values.tobytes() for name, values in params.items()} == {
            name: values.tobytes() for name, values in wanted.items()
        }


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_the_script_learns_and_has_the_bits_of_one_process(example, n_ranks):
    command = [sys.executable, "-m", "shoal", "run", "--no-label", "-n", str(n_ranks), sys.executable, str(EXAMPLE)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120, check=True, env=os.environ)
    lines = sorted(done.stdout.splitlines())
    assert len(lines) == n_ranks
    for rank, line in enumerate(lines):
        found = re.fullmatch(rf"rank {rank} of {n_ranks}: loss (\d\.\d+), parameters ([0-9a-f]{{8}})", line)
        assert found and float(found[1]) < 0.1
        assert found[2] == digest_of(train_alone(example, n_ranks, 100))


def test_it_fits_on_a_page():
    assert len(EXAMPLE.read_text().splitlines()) <= 60
