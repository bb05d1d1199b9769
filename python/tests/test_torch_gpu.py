# SPDX-License-Identifier: MIT
"""Tensors of torch on a GPU: the example, and exchanges by DLPack. Without a GPU the same programs run on the CPU."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import shoal

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "torch_gpu.py"
EXCHANGES = ROOT / "tests" / "torch_dlpack_gpu.py"
TIMEOUT = 300.0


def load_example():
    spec = importlib.util.spec_from_file_location("torch_gpu", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train_alone(example, n_steps, place):
    """The same training without Shoal."""
    layers = [example.start(layer, place) for layer in range(len(example.SIZES) - 1)]
    moments = {name: torch.zeros_like(values) for layer in layers for name, values in layer.items()}
    for step in range(n_steps):
        x, target = example.draw(step, 0, place)
        values = [x]
        for layer in layers:
            values.append(example.forward(values[-1], *layer.values()))
        d = (values[-1] - target) / example.ROWS
        grads = {}
        for i, layer in reversed(list(enumerate(layers))):
            d = example.backward(d, values[i], list(layer.values()), lambda found: grads.update(zip(layer, found)))
        for layer in layers:
            for name, weights in layer.items():
                example.update(weights, moments[name], grads[name])
    return {name: values.cpu() for layer in layers for name, values in layer.items()}


def compare(device, one_stream):
    """One rank has the values of torch alone; the bits, on the CPU."""
    example = load_example()
    try:
        _ = device and shoal.dlpack_device(device)
    except shoal.UnsupportedError as error:
        print(error)
        sys.exit(77)
    with shoal.World() as world:
        loss, found = example.train(world, 30, device, one_stream)
    place = torch.device("cpu") if device is None else torch.device(device, torch.cuda.current_device())
    expected = train_alone(example, 30, place)
    assert found.keys() == expected.keys() and loss < 0.5
    for name, values in expected.items():
        assert torch.equal(found[name], values) if device is None else torch.allclose(found[name], values, atol=1e-4)


def run(*command):
    """Runs a program of Python beside this file; skips if it says that there is no GPU."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    ended = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=TIMEOUT, env=environment
    )
    if ended.returncode == 77:
        pytest.skip(ended.stdout.strip())
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def on_gpu(*command):
    if not torch.version.cuda:
        pytest.skip("this torch has no CUDA")
    return run(*command)


def test_the_example_on_the_cpu():
    compare(None, False)
    example = load_example()

    def ranks(world):
        torch.set_num_threads(1)
        loss, params = example.train(world, 60)
        return loss, {name: values.numpy().tobytes() for name, values in params.items()}

    results = shoal.launch(ranks, 2, timeout=TIMEOUT)
    assert results[0] == results[1] and results[0][0] < 0.1


@pytest.mark.parametrize("one_stream", [False, True])
def test_the_example_on_a_gpu(one_stream):
    on_gpu("-c", f"import test_torch_gpu; test_torch_gpu.compare('cuda', {one_stream})")


def test_two_ranks_on_gpus():
    output = on_gpu("-m", "shoal", "run", "--no-label", "-n", "2", sys.executable, str(EXAMPLE), "--steps", "30")
    digests = [line.split()[-1] for line in output.splitlines() if "parameters" in line]
    assert len(digests) == 2 and digests[0] == digests[1]


def test_exchanges_on_the_cpu():
    output = run(str(EXCHANGES), "--device", "cpu", "--count", "300")
    assert output.splitlines()[-1] == "300 exchanges, 0 wrong"


def test_exchanges_on_a_gpu():
    output = on_gpu(str(EXCHANGES), "--count", "200", "--seed", "100000")
    assert output.splitlines()[-1] == "200 exchanges, 0 wrong"
