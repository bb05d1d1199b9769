# SPDX-License-Identifier: MIT
"""Checkpoints of FSDP2: torch.distributed.checkpoint on Shoal, and Shoal's own checkpoints of its state dicts."""

import json
import pickle
import traceback

import pytest
import shoal
import torch
import torch.distributed as dist
from shoal.torch import checkpoint
from test_torch_two import make_batch, make_model
from torch_ranks import run_ranks

pytestmark = pytest.mark.skipif(int(torch.__version__.split(".")[0]) < 2, reason="needs torch 2")


def make(kind, seed=0):
    """A model and its optimizer: cut by FSDP2, with replicas, along the other dimension, or with two dimensions."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    n, model, options = dist.get_world_size(), make_model(seed), {}
    if kind == "tiny":  # fewer rows than ranks, and a scalar per layer
        model = torch.nn.Sequential(torch.nn.Linear(33, 2), torch.nn.Linear(2, 1))
    if kind in ("fsdp", "other", "tiny"):
        mesh = init_device_mesh("cpu", (n,))
    elif kind == "hsdp":
        mesh = init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("replicate", "shard"))
    else:
        both = init_device_mesh("cpu", (n // 2, 2), mesh_dim_names=("dp", "tp"))
        model = torch.nn.Sequential(torch.nn.Linear(33, 16), torch.nn.GELU(), torch.nn.Linear(16, 33))
        parallelize_module(model, both["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        mesh = both["dp"]
    if kind == "other":
        options["shard_placement_fn"] = lambda param: Shard(param.ndim - 1) if param.shape[-1] % n == 0 else None
    for layer in [*model, model]:
        fully_shard(layer, mesh=mesh, **options)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model, optimizer, begin, end):
    for step in range(begin, end):
        model(make_batch(step, 0)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def state_of(model, optimizer, step):
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, "step": step, "about": {"note": "x", "none": None}}


def put(model, optimizer, state):
    from torch.distributed.checkpoint.state_dict import set_state_dict

    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def whole(value):
    """Whole tensors as numpy arrays: what a pipe takes."""
    if isinstance(value, dict):
        return {key: whole(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [whole(entry) for entry in value]
    if hasattr(value, "full_tensor"):
        value = value.full_tensor()
    return value.detach().numpy().tolist() if isinstance(value, torch.Tensor) else value


def save(rank, n, folder, kind, how):
    import torch.distributed.checkpoint as dcp

    model, optimizer = make(kind)
    train(model, optimizer, 0, 2)
    optimizer.param_groups[0]["lr"] = 0.02
    state = state_of(model, optimizer, 2)
    if how == "shoal":
        checkpoint.save(state, folder, step=2)
    elif how == "whole":
        checkpoint.save(state, folder, step=2, format="whole")
    elif how == "start":
        saving = checkpoint.save_start(state, folder, step=2)
    elif how == "dcp":
        dcp.save(state, checkpoint_id=folder)
    else:
        group = dist.new_group()
        future = dcp.async_save(state, checkpoint_id=folder, process_group=group)
        expected = whole(state)
        train(model, optimizer, 2, 4)  # on the default group meanwhile
        future.result()
        return expected
    expected = whole(state)
    if how == "start":
        train(model, optimizer, 2, 4)
        saving.wait()
    return expected


def load(rank, n, folder, kind, how):
    import torch.distributed.checkpoint as dcp

    model, optimizer = make(kind, seed=7)
    state = state_of(model, optimizer, 0)
    if how == "shoal":
        checkpoint.load(state, folder)
    else:
        source = {"checkpoint_id": folder} if how == "dcp" else {"storage_reader": checkpoint.Reader(folder)}
        dcp.load(state, **source)
    put(model, optimizer, state)
    assert optimizer.param_groups[0]["lr"] == 0.02
    return whole(state_of(model, optimizer, state["step"]))


# torch.distributed.checkpoint ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["dcp", "async"])
def test_dcp_on_shoal_as_on_gloo(tmp_path, how):
    saved = run_ranks(save, 3, str(tmp_path), "fsdp", how)[0]
    for n, backend in ((3, "gloo"), (2, "shoal")) if how == "dcp" else ((3, "shoal"),):
        assert run_ranks(load, n, str(tmp_path), "fsdp", "dcp", backend=backend)[0] == saved


def test_dcp_saved_on_gloo(tmp_path):
    saved = run_ranks(save, 2, str(tmp_path), "fsdp", "dcp", backend="gloo")[0]
    assert run_ranks(load, 4, str(tmp_path), "hsdp", "dcp")[0] == saved


# Shoal's checkpoints -------------------------------------------------------------------------------------------------

LOADS = [(1, "fsdp", "shoal"), (4, "hsdp", "shoal"), (2, "other", "reader")]


@pytest.mark.parametrize(
    "n, kind, how",
    [(3, "fsdp", "shoal"), (3, "fsdp", "whole"), (3, "fsdp", "start"), (4, "hsdp", "shoal"), (3, "other", "shoal")],
)
def test_another_number_of_ranks(tmp_path, n, kind, how):
    saved = run_ranks(save, n, str(tmp_path), kind, how)[0]
    for m, other, reads in LOADS:
        assert run_ranks(load, m, str(tmp_path), other, reads)[0] == saved
    found = checkpoint.read(tmp_path)
    assert whole(found) == saved
    assert sorted(shoal.read(tmp_path)["optimizer"])[:3] == ["0.0.bias.exp_avg", "0.0.bias.exp_avg_sq", "0.0.bias.step"]


def test_a_reader_on_gloo_and_without_ranks(tmp_path):
    import torch.distributed.checkpoint as dcp

    saved = run_ranks(save, 2, str(tmp_path), "fsdp", "shoal")[0]
    assert run_ranks(load, 2, str(tmp_path), "fsdp", "reader", backend="gloo")[0] == saved
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    state = {}
    _load_state_dict(state, checkpoint.Reader(tmp_path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    state["optimizer"]["param_groups"] = list(state["optimizer"]["param_groups"])
    assert whole(state) == saved
    with pytest.raises(dcp.api.CheckpointException, match=r"Missing key in checkpoint state_dict: model.none"):
        dcp.load({"model": {"none": torch.zeros(1)}}, storage_reader=checkpoint.Reader(tmp_path))
    part = {"model": {"0.0.bias": torch.zeros(17, dtype=torch.float64)}}
    dcp.load(part, storage_reader=checkpoint.Reader(tmp_path))
    assert part["model"]["0.0.bias"].tolist() == saved["model"]["0.0.bias"]


def test_more_ranks_than_rows(tmp_path):
    saved = run_ranks(save, 4, str(tmp_path), "tiny", "shoal")[0]
    assert run_ranks(load, 3, str(tmp_path), "tiny", "shoal")[0] == saved
    assert run_ranks(load, 4, str(tmp_path), "tiny", "reader")[2] == saved


@pytest.mark.parametrize("how", ["shoal", "reader"])
def test_two_dimensions(tmp_path, how):
    """FSDP2 over tensor parallelism: one weight is cut twice along its rows, one along both dimensions."""
    saved = run_ranks(save, 4, str(tmp_path), "2d", "shoal")[0]
    assert run_ranks(load, 4, str(tmp_path), "2d", how)[0] == saved
    assert whole(checkpoint.read(tmp_path)) == saved


def damaged(rank, n, folder, how):
    model, optimizer = make("fsdp", seed=7)
    state = state_of(model, optimizer, 0)
    before = whole(state)
    with pytest.raises(Exception) as caught:
        if how == "load":
            checkpoint.load(state, folder)
        else:
            import torch.distributed.checkpoint as dcp

            dcp.load(state, storage_reader=checkpoint.Reader(folder))
    assert how != "load" or whole(state) == before
    return str(caught.value)


def can_pickle_tracebacks():
    """DCP sends them to the other ranks; those of Python 3.13 cannot be sent."""
    try:
        raise ValueError
    except ValueError as error:
        try:
            pickle.dumps(traceback.extract_tb(error.__traceback__))
        except TypeError:
            return False
        return True


needs_tracebacks = pytest.mark.skipif(not can_pickle_tracebacks(), reason="this Python cannot pickle tracebacks")


@pytest.mark.parametrize("how", ["load", pytest.param("reader", marks=needs_tracebacks)])
def test_a_damaged_file_is_an_error_on_all_ranks(tmp_path, how):
    run_ranks(save, 2, str(tmp_path), "fsdp", "shoal")
    path = tmp_path / "step-000000002" / "pieces-00002-of-00002.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    for text in run_ranks(damaged, 2, str(tmp_path), how):
        assert "pieces-00002-of-00002.safetensors" in text


def placements(rank, n, folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (n,))
    partial = DTensor.from_local(torch.ones(3), mesh, [Partial()])
    with pytest.raises(ValueError, match=r"^'model.w' has the placement Partial\(sum\): redistribute it"):
        checkpoint.save({"model": {"w": partial}}, folder)
    values = torch.arange(10.0).reshape(5, 2)
    cut = {"a": distribute_tensor(values, mesh, [Shard(0)]), "b": distribute_tensor(values, mesh, [Replicate()])}
    cut["scalar"] = distribute_tensor(torch.tensor(3.0), mesh, [Replicate()])
    cut["turned"] = distribute_tensor(values, mesh, [Shard(0)]).t()
    other = distribute_tensor(values, mesh, [Shard(1)])
    with pytest.raises(ValueError, match="rank 1 has 'model.w': f32 .5, 2., cut along 1, rank 0 does not"):
        checkpoint.save({"model": {"w": other if rank == 1 else cut["a"]}}, folder)
    checkpoint.save({"model": cut}, folder)
    found = {"a": distribute_tensor(torch.zeros(5, 2), mesh, [Shard(1)]), "b": torch.zeros(5, 2)}
    found |= {"scalar": torch.zeros(()), "turned": distribute_tensor(torch.zeros(2, 5), mesh, [Shard(0)])}
    checkpoint.load({"model": found}, folder)
    assert torch.equal(found["a"].full_tensor(), values) and torch.equal(found["b"], values)
    assert torch.equal(found["turned"].full_tensor(), values.t()) and found["scalar"].item() == 3.0


def test_placements(tmp_path):
    run_ranks(placements, 3, str(tmp_path))


def other_sizes(rank, n, folder):
    """Local tensors that are not what the placements say: rows 0 to 1, 2 to 3 and none."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (n,))

    def make(local):
        return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=(4,), stride=(1,))

    texts = []
    checkpoint.save({"model": {"w": distribute_tensor(torch.ones(4), mesh, [Shard(0)])}}, folder)
    wrong = {"model": {"w": make(torch.zeros(2 if rank == 0 else 1))}}
    for call in (checkpoint.save, checkpoint.load):
        with pytest.raises(ValueError) as caught:
            call(wrong, folder)
        texts.append(str(caught.value))
        dist.barrier()
    assert wrong["model"]["w"].to_local().sum() == 0
    return texts


def test_local_tensors_of_other_sizes(tmp_path):
    text = "rank 1: 'model.w' has a part of [1] on this rank, but its placements say [2]"
    assert run_ranks(other_sizes, 3, str(tmp_path)) == [[text] * 2] * 3


def some_ranks(rank, n, folder):
    """Tensors on a mesh that has not all ranks of the group."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = DeviceMesh("cpu", [[0, 1], [2, 3]])
    values = torch.arange(12.0).reshape(4, 3)
    cuts = [[Shard(0), Shard(1)], [Shard(1), Replicate()], [Replicate(), Replicate()]]
    state = {str(i): distribute_tensor(values, mesh, cut) for i, cut in enumerate(cuts)}
    checkpoint.save({"model": state}, folder)
    found = {str(i): distribute_tensor(torch.zeros(4, 3), mesh, cut) for i, cut in enumerate(cuts)}
    checkpoint.load({"model": found}, folder)
    if rank < 4:
        assert all(torch.equal(tensor.full_tensor(), values) for tensor in found.values())
    return sorted(checkpoint.read(folder)["model"])


def test_ranks_without_a_part(tmp_path):
    assert run_ranks(some_ranks, 5, str(tmp_path)) == [["0", "1", "2"]] * 5


def tied(rank, n, folder):
    from torch.distributed.fsdp import fully_shard

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(2, 3)  # a rank has no row of it
            self.head = torch.nn.Linear(3, 2, bias=False)
            self.head.weight = self.embedding.weight

    model = Model()
    with torch.no_grad():
        model.head.weight.copy_(torch.arange(6.0).reshape(2, 3))
    fully_shard(model)
    checkpoint.save({"model": model.state_dict()}, folder, format="whole")
    for param in model.parameters():
        param.to_local().detach().zero_()
    checkpoint.load({"model": model.state_dict()}, folder)
    return model.head.weight.full_tensor().tolist()


def test_tied_parameters(tmp_path):
    assert run_ranks(tied, 3, str(tmp_path)) == [[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]] * 3
    assert list(shoal.safetensors.describe(tmp_path / "step-000000000/model.safetensors")) == ["embedding.weight"]


def from_hugging_face(rank, n, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    answers = []
    for how in ("flat", "nested", "load"):
        model = fully_shard(torch.nn.Linear(5, 3))
        state = model.state_dict()
        if how == "load":
            checkpoint.load(state, folder, casts=True, allows_unexpected=True)
        else:
            dcp.load(state if how == "flat" else {"model": state}, storage_reader=checkpoint.Reader(folder))
        answers.append(model.weight.full_tensor().tolist())
    return answers


def test_files_of_hugging_face(tmp_path):
    """Two files in bf16 with an index, and a tensor that the model does not have."""
    weight = torch.arange(15.0).reshape(3, 5)
    parts = {"model-1.safetensors": {"weight": weight, "mask": torch.ones(2)}}
    parts["model-2.safetensors"] = {"bias": torch.zeros(3)}
    for file, tensors in parts.items():
        arrays = {name: tensor.to(torch.bfloat16).view(torch.int16).numpy() for name, tensor in tensors.items()}
        shoal.safetensors.write_file(tmp_path / file, arrays, dtypes=dict.fromkeys(arrays, "bf16"))
    index = {"weight_map": {name: file for file, tensors in parts.items() for name in tensors}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert run_ranks(from_hugging_face, 2, str(tmp_path)) == [[weight.tolist()] * 3] * 2
    assert checkpoint.read(tmp_path)["model"]["weight"].dtype == torch.bfloat16
    assert checkpoint.read(tmp_path)["model"]["mask"].tolist() == [1.0, 1.0]
