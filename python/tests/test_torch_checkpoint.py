# SPDX-License-Identifier: MIT
"""shoal.torch.checkpoint on one rank, and on ranks with plain tensors: what every version of torch has."""

import json
import os
import re
import signal
import types

import pytest
import shoal
import torch
import torch.distributed as dist
from shoal.torch import checkpoint
from torch_ranks import killed, run_ranks

_named = ("float64 float32 float16 bfloat16 int8 int16 int32 int64 uint8 bool complex64 uint16 uint32 uint64 float8_e4m3fn "
          "float8_e5m2").split()  # fmt: skip
DTYPES = [getattr(torch, name) for name in _named if hasattr(torch, name)]


def make_state():
    state = {"model": {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in DTYPES}}
    state["model"]["scalar"] = torch.tensor(2.5)
    state["model"]["empty"] = torch.zeros(0, 3)
    state["model"]["turned"] = torch.arange(6.0).reshape(2, 3).t()
    state["optimizer"] = {
        "state": {"w": {"step": torch.tensor(3.0), "exp_avg": torch.ones(2)}},
        "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "foreach": None, "fused": True, "params": ["w"]}],
    }
    state["misc"] = {1: torch.ones(1), "list": [torch.ones(2), {"x": [1, [2, "a"]]}], "pair": (torch.zeros(1), 7), "no": {}}
    state["misc"]["long"] = "x" * (3 << 20)  # the texts of a checkpoint may be long
    return {**state, "epoch": 7, "loss": float("inf"), "name": "a run \u2713", "big": 1 << 70, "ok": True, "none": None}


def zeros_of(value):
    """The same tree with other values."""
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return {key: zeros_of(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)) and any(isinstance(entry, (torch.Tensor, dict)) for entry in value):
        return type(value)(zeros_of(entry) for entry in value)
    return type(value)() if isinstance(value, (int, float, str)) else value


def bytes_of(tensor):
    return tensor.reshape(-1).contiguous().view(torch.uint8).tolist() if tensor.dtype != torch.bool else tensor.tolist()


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bytes_of(a) == bytes_of(b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("format", ["pieces", "whole"])
def test_every_kind_of_value_and_dtype(tmp_path, format):
    state = make_state()
    checkpoint.save(state, tmp_path, step=3, format=format)
    found = zeros_of(make_state())
    tensor = found["model"]["torch.float32"]
    assert checkpoint.load(found, tmp_path).step == 3
    assert same(found, state) and found["model"]["torch.float32"] is tensor
    assert same(checkpoint.read(tmp_path), state)
    # The package without torch sees the same tensors and numbers.
    whole = shoal.read(tmp_path)
    assert whole["epoch"] == 7 and whole["optimizer"]["w.exp_avg"].tolist() == [1.0, 1.0]


def test_a_flat_state_dict_is_the_model(tmp_path):
    model = torch.nn.Linear(3, 2)
    checkpoint.save(model.state_dict(), tmp_path, format="whole")
    file = shoal.safetensors.read_file(tmp_path / "step-000000000/model.safetensors")
    assert file["bias"].tolist() == model.bias.tolist()
    other = torch.nn.Linear(3, 2)
    checkpoint.load(other.state_dict(), tmp_path)  # in place
    assert torch.equal(other.weight, model.weight)
    assert same(checkpoint.read(tmp_path), dict(model.state_dict()))


def test_objects_with_a_state_dict(tmp_path):
    def make():
        made = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(made.parameters(), lr=0.5)
        return {"model": made, "optimizer": optimizer, "schedule": torch.optim.lr_scheduler.StepLR(optimizer, 1)}

    state = make()
    for _ in range(2):
        state["optimizer"].step()
        state["schedule"].step()
    checkpoint.save(state, tmp_path)
    other = make()
    checkpoint.load(other, tmp_path)
    assert torch.equal(other["model"].weight, state["model"].weight)
    assert other["schedule"].last_epoch == 2 and other["optimizer"].param_groups[0]["lr"] == pytest.approx(0.005)


def test_tied_parameters_are_saved_once(tmp_path):
    embedding = torch.nn.Embedding(5, 3)
    head = torch.nn.Linear(3, 5, bias=False)
    head.weight = embedding.weight
    model = torch.nn.ModuleDict({"embedding": embedding, "head": head})
    checkpoint.save({"model": model.state_dict()}, tmp_path, format="whole")
    assert list(shoal.safetensors.describe(tmp_path / "step-000000000/model.safetensors")) == ["embedding.weight"]
    found = checkpoint.read(tmp_path)["model"]
    assert found["head.weight"] is found["embedding.weight"] and torch.equal(found["head.weight"], head.weight)
    untied = {"model": {"embedding.weight": torch.zeros(5, 3), "head.weight": torch.zeros(5, 3)}}
    checkpoint.load(untied, tmp_path)
    assert torch.equal(untied["model"]["head.weight"], head.weight)
    # Files of transformers have a tied parameter once, without saying so.
    os.remove(tmp_path / "step-000000000/shoal.index.json")
    with torch.no_grad():
        embedding.weight.zero_()
    checkpoint.load({"model": model.state_dict()}, tmp_path / "step-000000000")
    assert torch.equal(head.weight, found["head.weight"])


def refused(tmp_path, state, text):
    with pytest.raises(ValueError, match=text):
        checkpoint.save(state, tmp_path, step=9)
    assert shoal.checkpoints.steps(tmp_path) == []


def test_what_is_refused_is_named(tmp_path):
    tensors = {
        "has elements of torch.complex128": torch.zeros(2, dtype=torch.complex128),
        "is on the meta device": torch.zeros(2, device="meta"),
        "has the layout torch.sparse_coo": torch.eye(2).to_sparse(),
        "has elements of torch.quint8": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
    }
    for text, tensor in tensors.items():
        refused(tmp_path, {"model": {"w": tensor}}, f"'model.w' {text}")
    refused(tmp_path, {"a": {"b": [1, {"c": object()}]}}, "'a.b.1.c' is a object: a checkpoint has tensors, numbers")
    refused(tmp_path, {"a b": {"c": 1}}, "'a b' is the name of a dict at the top")
    one = torch.ones(1)
    refused(tmp_path, {"w": one, "model": {"w": one}}, "'w' and 'model.w' would both be 'w' of section 'model'")
    both = r"\['a'\]\['b.c'\] and \['a'\]\['b'\]\['c'\] would both be 'a.b.c'"
    refused(tmp_path, {"a": {"b.c": one, "b": {"c": one}}}, both)
    refused(tmp_path, {"shoal.torch": 1}, "'shoal.torch' is a name that Shoal uses itself")
    refused(tmp_path, {"a": {(1, 2): 1}}, r"'a' has the key \(1, 2\)")
    refused(tmp_path, [torch.ones(1)], "the state is a list, not a dict")
    refused(tmp_path, {"model": 1, "w": torch.ones(1)}, "'model' is a number or string, and 'w' needs a section")


def test_values_whose_names_would_be_one(tmp_path):
    cases = {
        r"\['a'\]\['b.c'\] and \['a'\]\['b'\]\['c'\] would both be 'a.b.c'": {"a": {"b.c": 1, "b": {"c": 2}}},
        r"\['a'\]\[1\] and \['a'\]\['1'\] would both be 'a.1'": {"a": {1: 1, "1": 2}},
        r"\['a.b'\] and \['a'\]\['b'\] would both be 'a.b'": {"a.b": 1, "a": {"b": 2}},
        r"\['a.b'\] and \['a'\]\['b'\] would both": {"a.b": [1], "a": {"b": [2]}},
        r"\[1\] and \['1'\] would both be '1'": {1: 1, "1": 2},
        r"\['a'\]\['b'\]\[1\] and \['a'\]\['b.1'\] would both": {"a": {"b": [torch.ones(1), 1], "b.1": 2}},
    }
    for text, state in cases.items():
        refused(tmp_path, state, text)
    checkpoint.save({"a": {1: 5}}, tmp_path)
    state = {"a": {1: 0, "1": 0}}
    with pytest.raises(ValueError, match="would both be 'a.1'"):
        checkpoint.load(state, tmp_path)
    assert state == {"a": {1: 0, "1": 0}}


def test_texts_that_would_be_cut_or_cannot_be_written(tmp_path):
    one = torch.ones(1)
    refused(tmp_path, {"a\0b": 1}, r"\['a.x00b'\]: a name cannot have a NUL")
    refused(tmp_path, {"model": {"a\0b": one}}, r"\['model'\]\['a.x00b'\]: a name cannot have a NUL")
    refused(tmp_path, {"m": {"\udcff": 1}}, r"\['m'\]\['.udcff'\]: a name cannot have a lone surrogate")
    refused(tmp_path, {"name": "\udcff"}, "'name' is a string with a lone surrogate")
    folder = str(tmp_path / "run")
    for call in (checkpoint.save, checkpoint.save_start, checkpoint.load):
        with pytest.raises(ValueError, match="directory .* has a NUL"):
            call({"w": one}, folder + "\0x")
    assert not os.path.exists(folder)
    checkpoint.save({"model": {"w": one}, "text": "a\0b"}, folder)
    assert checkpoint.read(folder)["text"] == "a\0b"
    with pytest.raises(ValueError, match="the section .* has a NUL"):
        checkpoint.load({"model": {"w": one}}, folder, section="model\0x")
    numpy = pytest.importorskip("numpy")
    with shoal.World() as world:
        ones = numpy.ones(1)
        for state in ({"w\0x": ones}, {"s\0x": {"w": ones}}, {"n\0x": 1}, {"t": "a\0b"}):
            with pytest.raises(ValueError, match="has a NUL"):
                shoal.save(world.group, tmp_path / "numpy", state)
    assert not (tmp_path / "numpy").exists()


def test_zeros_keep_their_signs(tmp_path):
    checkpoint.save({"x": -0.0, "y": 0.0, "m": {"z": [-0.0]}}, tmp_path)
    state = {"x": 0.0, "y": -0.0, "m": {"z": None}}
    checkpoint.load(state, tmp_path)
    assert repr(state) == repr(checkpoint.read(tmp_path)) == "{'x': -0.0, 'y': 0.0, 'm': {'z': [-0.0]}}"


def test_what_cannot_be_written_to(tmp_path):
    saved = {"model": {"a": torch.ones(5), "b": torch.ones(2, 2)}, "m": {"v": 1, "pair": (torch.ones(1), 2)}}
    checkpoint.save(saved, tmp_path)

    def fails(text, **changed):
        a, values = torch.zeros(5), {"v": 0, "pair": (torch.zeros(1), 0)}
        state = {"model": {"a": a, "b": changed.get("b", torch.zeros(2, 2))}, "m": changed.get("m", values)}
        with pytest.raises(ValueError, match=text):
            checkpoint.load(state, tmp_path, allows_unexpected=True)
        assert a.sum() == 0 and values["v"] == 0 and values["pair"][0].item() == 0

    fails("elements of 'model.b' share memory", b=torch.zeros(1).expand(2, 2))
    fails("elements of 'model.b' share memory", b=torch.zeros(3).as_strided((2, 2), (1, 1)))
    with torch.inference_mode():
        turned = torch.zeros(2, 2).t()
    fails("'model.b' is a tensor of torch.inference_mode", b=turned)
    fails(r"\['m'\]\['v'\] cannot be replaced: it is in a mappingproxy", m=types.MappingProxyType({"v": 0}))
    pair = types.MappingProxyType({"pair": (torch.zeros(1), 0)})
    fails(r"\['m'\]\['pair'\] cannot be replaced", m=pair)
    # Tensors in such a mapping are written in place.
    fixed = types.MappingProxyType({"a": torch.zeros(5), "b": torch.zeros(12).as_strided((2, 2), (3, 2))})
    state = types.MappingProxyType({"model": fixed, "m": {"v": 0, "pair": (torch.zeros(1), 0)}})
    checkpoint.load(state, tmp_path)
    assert fixed["a"].sum() == 5 and fixed["b"].sum() == 4 and state["m"]["v"] == 1
    checkpoint.save({"w": torch.ones(1), "epoch": 2}, tmp_path, step=1)
    top = types.MappingProxyType({"w": torch.zeros(1), "epoch": 0})
    with pytest.raises(ValueError, match=r"\['epoch'\] cannot be replaced"):
        checkpoint.load(top, tmp_path)
    assert top["w"].item() == 0


def test_names_and_shapes_that_do_not_fit(tmp_path):
    checkpoint.save({"model": {"a": torch.ones(2), "b": torch.ones(3)}, "extra": {"x": 1, "y": [2]}}, tmp_path)

    def load(state, text, **options):
        kept = json.dumps(repr(state))
        with pytest.raises((ValueError, shoal.Error), match=text):
            checkpoint.load(state, tmp_path, **options)
        assert json.dumps(repr(state)) == kept  # nothing has changed

    extra = {"x": 0, "y": []}
    load({"model": {"a": torch.zeros(2)}, "extra": extra}, "1 not expected: b")
    more = {"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.zeros(1)}
    load({"model": more, "extra": extra}, "missing in the checkpoint: c")
    load({"model": {"a": torch.zeros(2), "b": torch.zeros(2)}, "extra": extra}, r"b \(\[2\] here, \[3\] there\)")
    load({"model": {"a": torch.zeros(2).double(), "b": torch.zeros(3)}, "extra": extra}, r"a \(f64 here, f32 there\)")
    tensors = {"model": {"a": torch.zeros(2), "b": torch.zeros(3)}}
    load({**tensors, "extra": {"x": 0}}, "1 values are not expected: 'extra.y'")
    load({**tensors, "extra": {**extra, "z": None}}, "1 values are missing in the checkpoint: 'extra.z'")
    load({**tensors, "extra": extra}, "there is no complete checkpoint", step=4)
    state = {"model": {"a": torch.zeros(2).double(), "c": torch.full((2, 2), 5.0).t()}, "extra": {"x": 0, "z": 4}}
    info = checkpoint.load(state, tmp_path, allows_missing=True, allows_unexpected=True, casts=True)
    assert (info.n_missing, state["model"]["a"].tolist()) == (1, [1.0, 1.0])
    assert state["model"]["c"].tolist() == [[5.0, 5.0]] * 2 and state["extra"] == {"x": 1, "z": 4}
    only = {"model": {"a": torch.zeros(2), "b": torch.zeros(3)}}
    checkpoint.load(only, tmp_path, section="model")
    assert only["model"]["b"].tolist() == [1.0] * 3
    assert checkpoint.load({"w": torch.zeros(1)}, tmp_path / "none", allows_none=True).step == -1


def damage(folder, step):
    path = os.path.join(folder, f"step-{step:09d}/pieces-00001-of-00001.safetensors")
    with open(path, "r+b") as file:
        file.seek(-5, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-5, os.SEEK_END)
        file.write(bytes([byte ^ 1]))


def test_damage(tmp_path):
    for step in (1, 2):
        checkpoint.save({"model": {"a": torch.full((1000,), float(step))}, "x": {"y": [step]}}, tmp_path, step=step)
    damage(tmp_path, 2)
    state = {"model": {"a": torch.zeros(1000)}, "x": {"y": None}}
    with pytest.raises(shoal.InvalidError, match="pieces-00001-of-00001.safetensors"):
        checkpoint.load(state, tmp_path)
    with pytest.raises(shoal.InvalidError, match="pieces-00001-of-00001.safetensors"):
        checkpoint.read(tmp_path)
    assert state["x"]["y"] is None and state["model"]["a"].sum() == 0
    info = checkpoint.load(state, tmp_path, skips_damaged=True)
    assert (info.step, info.n_damaged, state["x"]["y"], state["model"]["a"][0].item()) == (1, 1, [1], 1.0)
    (tmp_path / "step-000000002/shoal.index.json").write_text("{")
    assert checkpoint.load(state, tmp_path, skips_damaged=True).step == 1


def check_skipped(folder, saves):
    """Values are those of the checkpoint that is loaded, not those of a damaged one, which is newer."""
    if saves:
        for step in (1, 2):
            values = {"a": 1} if step == 1 else {"a": 2, "b": 3}
            top = {} if step == 1 else {"loss": 0.5}
            checkpoint.save({"model": {"w": torch.full((1000,), float(step))}, "x": values, **top}, folder, step=step)
        damage(folder, 2)

    def load(x, top, **options):
        state = {"model": {"w": torch.zeros(1000).reshape(10, 100).t().reshape(1000)}, "x": x, **top}
        try:
            info = checkpoint.load(state, folder, skips_damaged=True, **options)
        except ValueError as error:
            assert state == {**state, "x": x, **top} and state["model"]["w"].sum() == 0
            return str(error).partition(": ")[2]
        values = {**state["x"], **{name: state[name] for name in top}}
        return info.step, info.n_damaged, values, state["model"]["w"][0].item()

    assert load({"a": 0}, {}) == (1, 1, {"a": 1}, 1.0)
    missing = "1 values are missing in the checkpoint: 'x.b'"
    assert load({"a": 0, "b": 0}, {}) == missing
    assert load({"a": 0, "b": 0}, {}, allows_missing=True) == (1, 1, {"a": 1, "b": 0}, 1.0)
    assert load({"a": 0}, {"loss": 0.0}) == "1 values are missing in the checkpoint: 'loss'"
    assert load({"a": 0}, {"loss": 0.0}, allows_missing=True) == (1, 1, {"a": 1, "loss": 0.0}, 1.0)
    return True


def test_values_before_damage(tmp_path):
    check_skipped(tmp_path, True)
    # A checkpoint whose values do not fit is not passed over if it is not damaged.
    checkpoint.save({"model": {"w": torch.ones(1000)}, "x": {"c": 1}}, tmp_path, step=3)
    state = {"model": {"w": torch.zeros(1000)}, "x": {"a": 0}}
    with pytest.raises(ValueError, match="missing in the checkpoint: 'x.a'; 1 values are not expected: 'x.c'"):
        checkpoint.load(state, tmp_path, skips_damaged=True)
    assert state["x"] == {"a": 0} and state["model"]["w"].sum() == 0
    for step in (1, 3):
        damage(tmp_path, step)
    with pytest.raises(shoal.InvalidError, match="only 3 damaged checkpoints found; the newest: .*pieces-00001"):
        checkpoint.load(state, tmp_path, skips_damaged=True, allows_none=True)
    with pytest.raises(shoal.InvalidError, match="skips_damaged is set, but has_step asks for step 3"):
        checkpoint.load({"model": state["model"], "x": {"c": 0}}, tmp_path, skips_damaged=True, step=3)


def test_a_replacement_that_was_interrupted(tmp_path):
    checkpoint.save({"w": torch.ones(2), "epoch": 2}, tmp_path, step=4)
    (tmp_path / "step-000000004").rename(tmp_path / ".replaced-step-000000004")
    state = {"w": torch.zeros(2), "epoch": 0}
    assert checkpoint.load(state, tmp_path).step == 4 and state["epoch"] == 2
    assert checkpoint.read(tmp_path)["epoch"] == 2


def test_checkpoints_of_the_library(tmp_path):
    """A checkpoint that Shoal's own trainer wrote: the optimizer counts updates in integers."""
    numpy = pytest.importorskip("numpy")
    with shoal.World() as world:
        state = {"model": {"w": numpy.ones(2, "f4")}, "epoch": 3,
                 "optimizer": {"w.exp_avg": numpy.ones(2, "f4"), "w.step": numpy.array(12, "i8")}}  # fmt: skip
        shoal.save(world.group, tmp_path, state, step=5)
    found = {"model": {"w": torch.zeros(2)}, "epoch": 0, "optimizer": {
        "state": {"w": {"exp_avg": torch.zeros(2), "step": torch.tensor(0.0)}}, "param_groups": [{"lr": 0.5}]}}  # fmt: skip
    checkpoint.load(found, tmp_path, casts=True)
    assert found["optimizer"]["state"]["w"]["step"].item() == 12.0 and found["epoch"] == 3
    assert found["optimizer"]["param_groups"] == [{"lr": 0.5}]
    assert checkpoint.read(tmp_path)["optimizer"]["w.step"].item() == 12


# Ranks ---------------------------------------------------------------------------------------------------------------


def plain(rank, n, folder):
    state = {"model": {"w": torch.arange(10.0)}, "epoch": 4, "list": [1, rank * 0]}
    saving = checkpoint.save_start(state, folder, step=1)
    state["model"]["w"].zero_()
    value = torch.ones(3)
    dist.all_reduce(value)  # on the same group
    saving.wait()
    checkpoint.save(state, folder, step=2, keep=1)
    found = {"model": {"w": torch.ones(10)}, "epoch": 0, "list": None}
    assert checkpoint.load(found, folder).step == 2 and found["epoch"] == 4 and found["list"] == [1, 0]
    assert value[0].item() == n and found["model"]["w"].sum() == 0
    group = dist.new_group([0, 1])
    if rank < 2:
        checkpoint.save(state, folder, step=3, group=group)
    dist.barrier()
    last = checkpoint.save_start(state, folder, step=4)
    dist.destroy_process_group()
    last.wait()
    return shoal.checkpoints.steps(folder)


def test_ranks_save_and_load(tmp_path):
    assert run_ranks(plain, 3, str(tmp_path)) == [[2, 3, 4]] * 3


def differ(rank, n, folder):
    found = []

    def fails(call, *arguments, **options):
        try:
            call(*arguments, **options)
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
        else:
            found.append("none")

    w = torch.ones(4)
    fails(checkpoint.save, {"model": {"w": w, **({"b": w} if rank == 1 else {})}}, folder)
    fails(checkpoint.save, {"model": {"w": torch.ones(4 + rank)}}, folder)
    fails(checkpoint.save, {"model": {"w": w.to(torch.complex128) if rank == 1 else w}}, folder)
    fails(checkpoint.save, {"model": {"w": w}, "misc": {"n": rank}}, folder)
    fails(checkpoint.save, {"model": {"w": w}, "loss": 0.5 * rank}, folder)
    fails(checkpoint.save, {"model": {"w": w}, "a": object()}, folder)
    fails(checkpoint.save, {"model": {"w": w}}, folder, step=rank)
    checkpoint.save({"model": {"w": w}}, folder, step=7)
    fails(checkpoint.save, {"model": {"w": w}}, folder, step=7)
    fails(checkpoint.load, {"model": {"w": w, "c": w} if rank == 2 else {"w": w}}, folder)
    fails(checkpoint.load, {"model": {"x": w}}, folder)
    fails(checkpoint.save, {"model": {"w": w}}, os.path.join(folder, "file", "below"))
    checkpoint.load({"model": {"w": w}}, folder)  # the group goes on
    return found


def test_an_error_of_one_rank_is_one_of_all(tmp_path):
    (tmp_path / "file").write_text("")
    found = run_ranks(differ, 3, str(tmp_path))
    expected = [
        "the ranks have different state dicts: rank 1 has 'model.b': f32 [4], rank 0 does not",
        "the ranks have different state dicts: rank 1 has 'model.w': f32 [5], rank 0 does not",
        "rank 1: 'model.w' has elements of torch.complex128",
        "the ranks have different state dicts: rank 1 has 'misc.n' = 1, rank 0 does not",
        "the ranks have different state dicts: rank 1 has 'loss' = 0.5, rank 0 does not",
        "Refused: 'a' is a object",
        "options.step",
        "exists",
        "rank 2 has 'model.c': f32 [4], rank 0 does not",
        "missing in the checkpoint: x",
        "below",
    ]
    for answers in zip(*found):
        assert len({re.sub(r": (on )?rank \d", "", answer) for answer in answers}) == 1, answers
    assert all(text in answer for text, answer in zip(expected, found[0])), found[0]


def wrong_on_one(rank, n, folder):
    """Something is wrong on rank 1 only: what all ranks raise. The group goes on."""
    found = []

    def fails(call, *arguments, **options):
        with pytest.raises(Exception) as caught:
            call(*arguments, **options)
        found.append(f"{type(caught.value).__name__}: {caught.value}")
        dist.barrier()

    wrong = rank == 1
    w = torch.ones(5)
    fails(checkpoint.save, {"model": {"w": w}, "x": {"\udcff" if wrong else "q": 1}}, folder)
    fails(checkpoint.save, {"model": {"w": w}, "x": "\udcff" if wrong else "q"}, folder)
    fails(checkpoint.save, {"model": {"w": w}}, folder, format="bad" if wrong else "pieces")
    fails(checkpoint.save, {"model": {"w": w}}, folder, step="7" if wrong else 7)
    fails(checkpoint.save_start, {"model": {"w": w}}, folder, progress=3 if wrong else None)
    fails(checkpoint.save, {"model": {"w": w}}, None if wrong else folder)
    checkpoint.save({"model": {"a": w, "b": torch.ones(3)}, "x": {"v": 1}}, folder, step=1)
    a, b, x = torch.zeros(5), torch.zeros(3), {"v": 0}
    state = {"model": {"a": torch.zeros(1).expand(5) if wrong else a, "b": b}, "x": x}
    fails(checkpoint.load, state, folder)
    state = {"model": {"a": a, "b": b}, "x": types.MappingProxyType(x) if wrong else x}
    fails(checkpoint.load, state, folder)
    state = {"model": {"a": a, "b": b}, "x": x}
    fails(checkpoint.load, state, folder, section=1 if wrong else "model")
    fails(checkpoint.load, state, folder, step=1.5 if wrong else None)
    fails(checkpoint.load, state, folder, step=1 if wrong else None)
    fails(checkpoint.load, state, folder, skips_damaged=wrong)
    fails(checkpoint.load, state, folder if wrong else os.path.join(folder, "other"))
    assert a.sum() == 0 and b.sum() == 0 and x == {"v": 0}
    assert checkpoint.load(state, folder).step == 1
    assert a.sum() == 5 and b.sum() == 3 and x == {"v": 1}
    return found


def test_what_is_wrong_on_one_rank_is_an_error_on_all(tmp_path):
    found = run_ranks(wrong_on_one, 2, str(tmp_path))
    expected = [
        r"rank 1: ['x']['\udcff']: a name cannot have a lone surrogate",
        "rank 1: 'x' is a string with a lone surrogate",
        "rank 1: format is 'bad'",
        "rank 1: TypeError",
        "rank 1: TypeError",
        "rank 1: TypeError",
        "rank 1: elements of 'model.a' share memory",
        "rank 1: ['x']['v'] cannot be replaced: it is in a mappingproxy",
        "rank 1: TypeError",
        "rank 1: TypeError",
        "options.has_step is 0 on rank 0, but 1 on rank 1",
        "options.skips_damaged is 0 on rank 0, but 1 on rank 1",
        "directory is ",
    ]
    assert found[0] == found[1] and len(found[0]) == len(expected)
    assert all(text in answer for text, answer in zip(expected, found[0])), found[0]


def skipped(rank, n, folder):
    return check_skipped(folder, False)


def test_values_before_damage_on_ranks(tmp_path):
    check_skipped(tmp_path, True)
    assert run_ranks(skipped, 2, str(tmp_path)) == [True] * 2


def other_call(rank, n, folder):
    try:
        if rank == 1:
            dist.all_reduce(torch.ones(3))
        else:
            checkpoint.save({"model": {"w": torch.ones(3)}}, folder)
    except RuntimeError as error:
        return str(error)
    return None


def test_a_rank_that_calls_something_else(tmp_path):
    for answer in run_ranks(other_call, 3, str(tmp_path)):
        assert answer is not None and "rank 1 called all_reduce" in answer


def die_before_a_save(rank, n, folder):
    checkpoint.save({"model": {"w": torch.ones(3)}}, folder, step=1)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        checkpoint.save({"model": {"w": torch.ones(3)}}, folder, step=2)
    except RuntimeError as error:
        return str(error), shoal.checkpoints.steps(folder)
    return None


def test_a_rank_that_is_killed(tmp_path):
    found = run_ranks(die_before_a_save, 3, str(tmp_path))
    assert found[1] == killed()
    for answer in (found[0], found[2]):
        assert "rank 1" in answer[0] and answer[1] == [1]


def on_gloo(rank, n, folder):
    with pytest.raises(shoal.StateError, match=r'no backend "shoal" for CPU tensors: pass group=dist.new_group'):
        checkpoint.save({"w": torch.ones(2)}, folder)
    group = dist.new_group(backend="shoal")
    checkpoint.save({"w": torch.ones(2)}, folder, group=group)
    return sorted(checkpoint.read(folder))


def test_a_group_of_shoal_beside_gloo(tmp_path):
    assert run_ranks(on_gloo, 2, str(tmp_path), backend="gloo") == [["w"]] * 2
