#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Reads what tests/interop/export_model.c has saved with safetensors, PyTorch and transformers, and prints a report.

    mkdir -p /tmp/export
    for dtype in f32 bf16; do
        build/dev/bin/shoal run --no-label -n 4 build/dev/tests/interop/export_model /tmp/export/$dtype $dtype
    done
    python3 scripts/check_export.py /tmp/export/f32 /tmp/export/bf16 > docs/export.md

Needs Python packages that the library does not: `make test` does not run it. tests/cli/export_test.sh reads the same
files without any. The exit status is 0 if all that was tried is right.
"""
import json
import os
import platform
import shutil
import sys
import tempfile

import safetensors
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import nn
from torch.nn import functional

# As in tests/interop/export_model.c.
N_BLOCKS, N_TOKENS, WIDTH, HIDDEN, ROWS, N_STEPS = 2, 61, 22, 44, 30, 3
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
TOLERANCE = 1e-5

INTRODUCTION = """\
Whether PyTorch, safetensors and transformers read Shoal's whole checkpoints (`SHOAL_CHECKPOINT_WHOLE` in
`shoal/checkpoint.h`) as they are. `scripts/check_export.py` writes this page. Four ranks of
`tests/interop/export_model.c` train a network with a tied embedding, layer norms and linear layers, fully sharded along
both dimensions, for three steps of AdamW, and save it. "files" is a checkpoint with several files,
`model-0000i-of-0000n.safetensors` and `model.safetensors.index.json`; "file" is one with `model.safetensors`. The
optimizer has files of its own. Tensors are compared with values that were gathered without the code of checkpoints.
Losses are computed in f32 from the loaded model, and may differ from Shoal's by 1e-5 of their value.
"""


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def fill(model):
    """The parts of the model, in a module of PyTorch or of transformers."""
    model.embedding = nn.Embedding(N_TOKENS, WIDTH)
    model.blocks = nn.ModuleList(Block() for _ in range(N_BLOCKS))
    model.norm = nn.LayerNorm(WIDTH)
    model.head = nn.Linear(WIDTH, N_TOKENS, bias=False)
    model.head.weight = model.embedding.weight


def compute(model, tokens):
    x = model.embedding(tokens)
    for block in model.blocks:
        x = block(x)
    return model.head(model.norm(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        fill(self)

    def forward(self, tokens):
        return compute(self, tokens)


def measure_loss(model):
    places = torch.arange(ROWS)
    with torch.no_grad():
        logits = model((7 * places + 3) % N_TOKENS)
        return functional.cross_entropy(logits, (5 * places + 1) % N_TOKENS).item()


def read_values(directory):
    """The loss, and a dict of tensors by (section, name), of which checkpoints know nothing."""
    values = {}
    path = os.path.join(directory, "values")
    with open(path + ".txt") as lines, open(path + ".bin", "rb") as data:
        loss = float(next(lines).split()[1])
        for line in lines:
            section, name, dtype, *shape = line.split()
            shape = [int(size) for size in shape]
            count = 1
            for size in shape:
                count *= size
            size = torch.empty(0, dtype=DTYPES[dtype]).element_size()
            raw = bytearray(data.read(count * size))
            values[section, name] = torch.frombuffer(raw, dtype=DTYPES[dtype]).reshape(shape)
        if data.read(1):
            raise ValueError("values.bin is longer than its list")
    return loss, values


def read_section(directory, section):
    """All tensors of a section as the index, or the one file, gives them; and how many files there are."""
    index_path = os.path.join(directory, section + ".safetensors.index.json")
    if not os.path.exists(index_path):
        return load_file(os.path.join(directory, section + ".safetensors")), 1
    with open(index_path) as file:
        index = json.load(file)
    tensors = {}
    files = sorted(set(index["weight_map"].values()))
    for name in files:
        for key, tensor in load_file(os.path.join(directory, name)).items():
            if index["weight_map"][key] != name:
                raise ValueError(f"{key} is in {name}, the index says {index['weight_map'][key]}")
            tensors[key] = tensor
    if set(tensors) != set(index["weight_map"]):
        raise ValueError("the index names tensors that no file has")
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if total != index["metadata"]["total_size"]:
        raise ValueError(f"total_size is {index['metadata']['total_size']}, tensors have {total} bytes")
    return tensors, len(files)


def is_same(one, other):
    """Bit for bit."""
    return (one.dtype == other.dtype and one.shape == other.shape
            and torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)))


def compare_tensors(tensors, values, section):
    wanted = {name: value for (of, name), value in values.items() if of == section}
    steps = {name for name in tensors if section == "optimizer" and name.endswith(".step")}
    if set(tensors) - steps != set(wanted) or (section == "optimizer" and 2 * len(steps) != len(wanted)):
        return False, f"other names: {sorted(set(tensors) ^ set(wanted))[:8]}"
    wrong = [name for name in wanted if not is_same(tensors[name], wanted[name])]
    wrong += [name for name in steps if tensors[name].shape != () or tensors[name].item() != N_STEPS]
    if wrong:
        return False, f"other values: {wrong[:8]}"
    return True, f"{len(tensors)} tensors, bit for bit"


def check_loss(loss, wanted):
    difference = abs(loss - wanted) / abs(wanted)
    return difference <= TOLERANCE, f"loss {loss:.9g}, Shoal {wanted:.9g}, relative difference {difference:.1e}"


def check_sections(directory, values):
    for section in ("model", "optimizer"):
        tensors, n_files = read_section(directory, section)
        is_right, text = compare_tensors(tensors, values, section)
        yield f"{section}: `safetensors.torch.load_file`, {n_files} file{'s' if n_files > 1 else ''}", is_right, text


def check_metadata(directory):
    names = sorted(name for name in os.listdir(directory) if name.startswith("model") and name.endswith(".safetensors"))
    for name in names:
        with safe_open(os.path.join(directory, name), "pt") as file:
            metadata = file.metadata()
        if metadata.get("format") != "pt":
            return False, f"{name}: {metadata}"
    return True, f"`format` is `pt` in {len(names)} file{'s' if len(names) > 1 else ''}"


def check_state_dict(directory, loss):
    tensors, _ = read_section(directory, "model")
    tensors["head.weight"] = tensors["embedding.weight"]  # tied: in the files once, under its first name
    model = Model()
    model.load_state_dict(tensors, strict=True)
    return check_loss(measure_loss(model), loss)


def check_load_model(directory, loss):
    model = Model()
    load_model(model, os.path.join(directory, "model.safetensors"), strict=True)
    return check_loss(measure_loss(model), loss)


def check_transformers(directory, loss):
    from transformers import PretrainedConfig, PreTrainedModel

    class ExportedConfig(PretrainedConfig):
        model_type = "shoal_export"

    class Exported(PreTrainedModel):
        config_class = ExportedConfig
        _tied_weights_keys = {"head.weight": "embedding.weight"}

        def __init__(self, config):
            super().__init__(config)
            fill(self)
            self.post_init()

        def _init_weights(self, module):
            pass

        def get_input_embeddings(self):
            return self.embedding

        def get_output_embeddings(self):
            return self.head

        def forward(self, tokens):
            return compute(self, tokens)

    with tempfile.TemporaryDirectory() as scratch:
        copy = os.path.join(scratch, "model")
        shutil.copytree(directory, copy)
        ExportedConfig(tie_word_embeddings=True).save_pretrained(copy)
        model, info = Exported.from_pretrained(copy, dtype=torch.float32, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        names = set(map(str, info.get(kind) or ())) - {"head.weight"}  # which is tied after loading
        if names:
            return False, f"{kind}: {sorted(names)[:8]}"
    return check_loss(measure_loss(model.eval()), loss)


def attempt(function, *arguments):
    try:
        return function(*arguments)
    except Exception as error:  # what a reader refuses is a row of the report
        return False, f"{type(error).__name__}: {error}".replace("\n", " ").replace("|", "/")


def check_directory(directory):
    """Rows: what was read, how, whether that is right, and what came out."""
    loss, values = read_values(directory)
    for kind in ("files", "file"):
        path = os.path.join(directory, kind, f"step-{N_STEPS:09d}")
        is_right, rows = attempt(lambda: (True, list(check_sections(path, values))))
        for row in rows if is_right else [("safetensors", False, rows)]:
            yield kind, *row
        yield kind, "metadata: `safetensors.safe_open`", *attempt(check_metadata, path)
        yield kind, "`load_state_dict(strict=True)`, forward", *attempt(check_state_dict, path, loss)
        if kind == "file":
            yield kind, "`safetensors.torch.load_model(strict=True)`, forward", *attempt(check_load_model, path, loss)
        try:
            import transformers  # noqa: F401
        except ImportError:
            continue
        yield kind, "`PreTrainedModel.from_pretrained`, forward", *attempt(check_transformers, path, loss)


def version_of(name):
    try:
        return __import__(name).__version__
    except ImportError:
        return "not there"


def main(directories):
    print("# Exports, read by PyTorch\n")
    print(INTRODUCTION)
    print(f"safetensors {safetensors.__version__}, PyTorch {torch.__version__}, "
          f"transformers {version_of('transformers')}, Python {platform.python_version()}, {platform.machine()}, "
          f"{os.cpu_count()} processors.\n")
    print("| dtype | checkpoint | read by | result | |\n|---|---|---|---|---|")
    all_right = True
    for directory in directories:
        for kind, what, is_right, text in check_directory(directory):
            all_right = all_right and is_right
            print(f"| {os.path.basename(os.path.normpath(directory))} | {kind} | {what} | {text} | "
                  f"{'ok' if is_right else 'WRONG'} |")
    return 0 if all_right else 1


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
