# SPDX-License-Identifier: MIT
"""Checkpoints as dicts: parts, other numbers of ranks, without ranks, and files of other tools."""

import gc
import json
import threading

import pytest
import shoal
from shoal import checkpoints, safetensors

numpy = pytest.importorskip("numpy")
TIMEOUT = 60.0


def part_of(world, values):
    """This rank's rows, as evenly as they can be cut."""
    rows = len(values) * world.rank // world.n_ranks, len(values) * (world.rank + 1) // world.n_ranks
    return values[rows[0] : rows[1]].copy(), rows[0]


def test_parts_are_cut_anew(tmp_path):
    whole = numpy.arange(7 * 3, dtype="f8").reshape(7, 3)

    def save(world):
        part, offset = part_of(world, whole)
        state = {
            "w": shoal.Item(part, (7, 3), offset=offset), "whole": numpy.arange(4, dtype="i4"),
            "optimizer": {"w": numpy.ones(2, dtype="f4"), "empty": numpy.zeros((0, 3))}, "epoch": 3, "loss": 0.1,
            "run": "a run \u2713", "scalar": numpy.array(2.5),
        }  # fmt: skip
        shoal.save(world.group, tmp_path, state, step=12, progress=shoal.Progress(3, 4, 1, 144))
        return True

    def load(world):
        part, offset = part_of(world, numpy.zeros_like(whole))
        address = part.ctypes.data
        state = {
            "w": shoal.Item(part, (7, 3), offset=offset), "whole": numpy.zeros(4, dtype="i4"),
            "optimizer": {"w": numpy.zeros(2, dtype="f4"), "empty": numpy.zeros((0, 3))}, "epoch": 0, "loss": 0.0,
            "run": "", "scalar": numpy.array(0.0),
        }  # fmt: skip
        info = shoal.load(world.group, tmp_path, state)
        assert info == (12, "pieces", (3, 4, 1, 144), 0, 0, 0)
        assert part.ctypes.data == address and (part == part_of(world, whole)[0]).all()
        assert state["whole"].tolist() == [0, 1, 2, 3] and state["optimizer"]["w"].tolist() == [1.0, 1.0]
        return state["epoch"], state["loss"], state["run"], state["scalar"].item()

    assert all(shoal.launch(save, 3, timeout=TIMEOUT))
    for n_ranks in (1, 2, 5):
        assert shoal.launch(load, n_ranks, timeout=TIMEOUT) == [(3, 0.1, "a run \u2713", 2.5)] * n_ranks
    found = shoal.read(tmp_path)
    assert (found["model"]["w"] == whole).all() and found["model"]["w"].dtype == "f8"
    assert found["optimizer"]["empty"].shape == (0, 3) and found["model"]["scalar"].shape == ()
    assert (found["epoch"], found["loss"], found["run"]) == (3, 0.1, "a run \u2713")
    assert shoal.checkpoints.steps(tmp_path) == [12] and checkpoints.newest(tmp_path).step == 12


def make_fsdp(world, **options):
    fsdp = shoal.Fsdp(world.group, **options)
    for i in range(2):
        fsdp.add_unit({f"{i}.w": (5, 3), f"{i}.b": (3,)})
    return fsdp


def values_of(name, shape):
    return numpy.arange(numpy.prod(shape), dtype="f4").reshape(shape) + (100 if "w" in name else 0)


def test_contexts_and_their_moments(tmp_path):
    def save(world):
        fsdp = make_fsdp(world)
        moments = {param.name: param.zeros("f64") for param in fsdp}
        for param in fsdp:
            param.load(values_of(param.name, param.shape))
            moments[param.name][...] = 2 * param.shard
        optimizer = {f"{param.name}.m": param.item(moments[param.name]) for param in fsdp}
        shoal.save(world.group, tmp_path, {"model": fsdp, "optimizer": optimizer, "updates": 9}, step=1)
        prefixed = {"model": {"net.": fsdp, "extra": numpy.ones(1)}}
        shoal.save(world.group, tmp_path, prefixed, step=2, format="whole")
        return True

    def load(world, options):
        fsdp = make_fsdp(world, **options)
        moments = {param.name: param.zeros("f64") for param in fsdp}
        optimizer = {f"{param.name}.m": param.item(moments[param.name]) for param in fsdp}
        state = {"model": fsdp, "optimizer": optimizer, "updates": 0}
        assert shoal.load(world.group, tmp_path, state, step=1).step == 1 and state["updates"] == 9
        for param in fsdp:
            assert (param.gather() == values_of(param.name, param.shape)).all()
            assert (param.gather_array(moments[param.name]) == 2 * values_of(param.name, param.shape)).all()
        fsdp.units[0].unshard()
        fsdp.units[0].wait()
        view = fsdp["0.w"].full
        with pytest.raises(BufferError, match="load: arrays still use whole parameters of 0.w"):
            shoal.load(world.group, tmp_path, state, step=1)
        assert view[0, 0] == 100
        return True

    assert all(shoal.launch(save, 3, timeout=TIMEOUT))
    for n_ranks, options in ((1, {}), (2, {}), (2, {"replicated": True}), (4, {"sharded": "state"})):
        assert all(shoal.launch(load, n_ranks, options, timeout=TIMEOUT))
    found = shoal.read(tmp_path, step=1)
    assert (found["model"]["1.w"] == values_of("1.w", (5, 3))).all() and found["optimizer"]["1.w.m"].dtype == "f8"
    newest = shoal.read(tmp_path)
    assert sorted(newest["model"]) == ["extra", "net.0.b", "net.0.w", "net.1.b", "net.1.w"]
    file = safetensors.read_file(tmp_path / "step-000000002" / "model.safetensors")
    assert file["net.0.b"].tolist() == [0.0, 1.0, 2.0]
    with shoal.World() as world:
        with pytest.raises(ValueError, match="belong to the section 'model'"):
            shoal.save(world.group, tmp_path, {"optimizer": {"": make_fsdp(world)}}, step=3)
        with pytest.raises(ValueError, match="is the section 'model'"):
            shoal.save(world.group, tmp_path, {"net": make_fsdp(world)}, step=3)


def test_bf16_and_f8(tmp_path):
    bf16 = numpy.array([0x3F80, 0x4000, 0xC040], dtype="u2")  # 1, 2, -3
    f8 = numpy.array([0x38, 0x40], dtype="u1")  # 1, 2 of e4m3fn

    with shoal.World() as world:
        state = {"a": shoal.Item(bf16, dtype="bf16"), "b": shoal.Item(f8, dtype="f8_e4m3fn")}
        shoal.save(world.group, tmp_path, state, format="whole")
        with pytest.raises(shoal.InvalidError, match="bf16"):
            shoal.load(world.group, tmp_path, {"a": numpy.zeros(3, "u2"), "b": shoal.Item(f8, dtype="f8_e4m3fn")})
        wide = {"a": numpy.zeros(3, "f4"), "b": numpy.zeros(2, "f8")}
        shoal.load(world.group, tmp_path, wide, casts=True)
        assert wide["a"].tolist() == [1.0, 2.0, -3.0] and wide["b"].tolist() == [1.0, 2.0]
    raw = shoal.read(tmp_path)["model"]
    assert (raw["a"] == bf16).all() and (raw["b"] == f8).all() and raw["a"].dtype == "u2"
    wide = shoal.read(tmp_path, widen=True)["model"]
    assert wide["a"].tolist() == [1.0, 2.0, -3.0] and wide["b"].tolist() == [1.0, 2.0] and wide["a"].dtype == "f4"


def test_torch(tmp_path):
    torch = pytest.importorskip("torch")
    with shoal.World() as world:
        saved = {"w": torch.arange(6, dtype=torch.bfloat16).view(2, 3), "mask": torch.tensor([True, False])}
        shoal.save(world.group, tmp_path, saved)
        loaded = {"w": torch.zeros(2, 3, dtype=torch.bfloat16), "mask": torch.zeros(2, dtype=torch.bool)}
        shoal.load(world.group, tmp_path, loaded)
        assert all(torch.equal(saved[name], loaded[name]) for name in saved)
        with pytest.raises(ValueError, match=r"'w' is a tensor that requires grad: use .detach\(\)"):
            shoal.save(world.group, tmp_path, {"w": torch.ones(2, requires_grad=True)}, step=1)


def test_saves_in_the_background(tmp_path):
    def ranks(world):
        data = numpy.full(1000, world.rank, dtype="f4")
        state = {"w": shoal.Item(data, (2000,), offset=1000 * world.rank)}
        saving = shoal.save_start(world.group, tmp_path, state, step=1)
        data[:] = 7  # it was copied
        saving.wait()
        saving.wait()
        assert saving.done()
        shoal.save_start(world.group, tmp_path, state, step=2)  # nobody waits: closing the world does
        gc.collect()
        return True

    assert all(shoal.launch(ranks, 2, timeout=TIMEOUT))
    assert shoal.read(tmp_path, step=1)["model"]["w"].tolist() == [0.0] * 1000 + [1.0] * 1000
    assert (shoal.read(tmp_path)["model"]["w"] == 7).all()


def test_a_world_is_closed_while_another_thread_waits_for_a_save(tmp_path):
    for step in range(40):
        world = shoal.World()
        saving = shoal.save_start(world, tmp_path, {"w": numpy.zeros(4)}, step=step, keep=1)
        closer = threading.Thread(target=world.close, daemon=True)
        closer.start()
        saving.wait()
        closer.join(TIMEOUT)
        assert not closer.is_alive()


def test_a_failed_save_in_the_background(tmp_path):
    with shoal.World() as world:
        shoal.save(world.group, tmp_path, {"w": numpy.ones(1)})
        with pytest.raises(shoal.StateError, match="exists"):
            shoal.save_start(world.group, tmp_path, {"w": numpy.ones(1)}).wait()
        with pytest.raises(shoal.StateError, match="exists"):
            shoal.save(world.group, tmp_path, {"w": numpy.ones(1)})
        shoal.save(world.group, tmp_path, {"w": numpy.zeros(1)}, replaces=True)
        for step in range(1, 5):
            shoal.save(world.group, tmp_path, {"w": numpy.ones(1)}, step=step, keep=2)
        assert checkpoints.steps(tmp_path) == [3, 4]


def test_a_load_that_fails_changes_nothing(tmp_path):
    with shoal.World() as world:
        group = world.group
        state = {"w": numpy.zeros(3), "epoch": 5}
        assert shoal.load(group, tmp_path, state, allows_none=True).step == -1 and state["epoch"] == 5
        with pytest.raises(shoal.StateError, match="no complete checkpoint|there is no"):
            shoal.load(group, tmp_path, state)
        shoal.save(group, tmp_path, {"w": numpy.ones(3), "v": numpy.ones(1), "epoch": 1})
        with pytest.raises(shoal.InvalidError, match="v"):
            shoal.load(group, tmp_path, state)
        with pytest.raises(shoal.InvalidError, match="u"):
            shoal.load(group, tmp_path, {**state, "u": numpy.zeros(1), "v": numpy.zeros(1)})
        frozen = numpy.zeros(3)
        frozen.flags.writeable = False
        with pytest.raises(ValueError, match="'w' is read-only"):
            shoal.load(group, tmp_path, {"w": frozen})
        with pytest.raises(ValueError, match="'w' is not contiguous"):
            shoal.save(group, tmp_path, {"w": numpy.zeros((4, 4))[:, 1]}, step=1)
        assert not state["w"].any() and state["epoch"] == 5
        info = shoal.load(group, tmp_path, state, allows_unexpected=True)
        assert info.n_unexpected == 1 and state["w"].all() and state["epoch"] == 1
        damaged = next((tmp_path / "step-000000000").glob("pieces*"))
        content = bytearray(damaged.read_bytes())
        content[-1] ^= 1
        damaged.write_bytes(content)
        with pytest.raises(shoal.InvalidError, match="pieces-00001"):
            shoal.load(group, tmp_path, state, allows_unexpected=True)
    with pytest.raises(shoal.InvalidError, match="pieces-00001"):
        shoal.read(tmp_path)


@pytest.mark.parametrize("what", ["name", "shape", "step", "missing"])
def test_ranks_that_differ_get_a_mismatch(tmp_path, what):
    def ranks(world):
        odd = world.rank == 1
        state = {"v" if odd and what == "name" else "w": numpy.zeros(4 if odd and what == "shape" else 3)}
        if odd and what == "missing":
            state["more"] = numpy.zeros(1)
        with pytest.raises(shoal.MismatchError):
            shoal.save(world.group, tmp_path, state, step=int(odd and what == "step"))
        shoal.save(world.group, tmp_path, {"w": numpy.zeros(3)}, step=9)  # the group can still be used
        return True

    assert all(shoal.launch(ranks, 3, timeout=TIMEOUT))
    assert checkpoints.steps(tmp_path) == [9]


def test_wrong_states(tmp_path):
    with shoal.World() as world:
        group = world.group
        with pytest.raises(TypeError, match="'w' is a list"):
            shoal.save(group, tmp_path, {"w": [1.0]})
        with pytest.raises(ValueError, match="only arrays are in sections"):
            shoal.save(group, tmp_path, {"model": {"n": 3}})
        with pytest.raises(ValueError, match="more than 64 bits"):
            shoal.save(group, tmp_path, {"n": 1 << 70})
        with pytest.raises(ValueError, match=r"shape \(2, 3\), which is no part of \(4, 4\) along dimension 0"):
            shoal.save(group, tmp_path, {"w": shoal.Item(numpy.zeros((2, 3)), (4, 4))})
        with pytest.raises(shoal.UnsupportedError):
            shoal.save(group, tmp_path, {"w": numpy.zeros(2, "c16")})
        with pytest.raises(ValueError, match="format is 'zip'"):
            shoal.save(group, tmp_path, {"w": numpy.zeros(2)}, format="zip")
        with pytest.raises(shoal.InvalidError, match="do not|gap|cover|whole|missing|no rank"):
            shoal.save(group, tmp_path, {"w": shoal.Item(numpy.zeros((2, 3)), (4, 3))})
    assert checkpoints.steps(tmp_path) == []


# Files of other tools ------------------------------------------------------------------------------------------------


def test_safetensors(tmp_path):
    arrays = {
        "f": numpy.arange(6, dtype="f4").reshape(2, 3), "h": numpy.ones(3, "f2"), "b": numpy.array([True, False]),
        "i": numpy.array(-5, dtype="i8"), "e": numpy.zeros((0, 2)), "bf": numpy.array([0x3F80], dtype="u2"),
    }  # fmt: skip
    path = tmp_path / "model.safetensors"
    safetensors.write_file(path, arrays, dtypes={"bf": "bf16"}, metadata={"format": "pt", "x": "\u2713"})
    size = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + size])
    assert header["bf"]["dtype"] == "BF16" and header["f"]["shape"] == [2, 3]
    found = safetensors.read_file(path)
    assert {name: (a.dtype, a.shape, a.tobytes()) for name, a in found.items()} == {
        name: (a.dtype, a.shape, a.tobytes()) for name, a in arrays.items()
    }
    assert safetensors.read_metadata(path) == {"format": "pt", "x": "\u2713"}
    assert safetensors.describe(path)["bf"] == (shoal.Dtype.BF16, (1,))
    # A directory with such a file is a checkpoint.
    assert shoal.read(tmp_path, widen=True)["model"]["bf"].tolist() == [1.0]
    with pytest.raises(shoal.UnsupportedError):
        safetensors.write_file(tmp_path / "c", {"c": numpy.zeros(1, "c16")})
    with pytest.raises(shoal.SystemCallError):
        safetensors.read_file(tmp_path / "none")
    (tmp_path / "bad").write_bytes(b"nothing")
    with pytest.raises(shoal.InvalidError):
        safetensors.read_file(tmp_path / "bad")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bad", "model.safetensors"]


def test_files_with_an_index_of_another_tool(tmp_path):
    for i, name in enumerate(("a", "b")):
        safetensors.write_file(tmp_path / f"part-{i}.safetensors", {name: numpy.full(2, i, dtype="f4")})
    weights = {"a": "part-0.safetensors", "b": "part-1.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    found = shoal.read(tmp_path)["model"]
    assert found["a"].tolist() == [0.0, 0.0] and found["b"].tolist() == [1.0, 1.0]


def test_a_directory_without_a_checkpoint(tmp_path):
    with pytest.raises(shoal.Error):
        shoal.read(tmp_path)
    with pytest.raises(shoal.Error):
        shoal.read(tmp_path / "none")
    assert checkpoints.newest(tmp_path / "none").step == -1 and checkpoints.steps(tmp_path / "none") == []


def test_ranks_with_values_of_their_own(tmp_path):
    def ranks(world):
        shoal.save(world, tmp_path, {"e": shoal.Item(numpy.full(2, world.rank), owners=world.rank + 1)})
        mine = numpy.zeros(2, dtype=int)
        shoal.load(world, tmp_path, {"e": shoal.Item(mine, owners=world.rank + 1)})
        return mine.tolist()

    assert shoal.launch(ranks, 2, timeout=TIMEOUT) == [[0, 0], [1, 1]]
    found = shoal.read(tmp_path)["model"]
    assert {name: array.tolist() for name, array in found.items()} == {"e": [0, 0], "e#1": [1, 1]}


def test_a_rank_reads_without_the_others(tmp_path):
    def ranks(world):
        shoal.save(world.group, tmp_path, {"w": numpy.arange(3)})
        return shoal.read(tmp_path)["model"]["w"].tolist() if world.rank == 1 else None

    assert shoal.launch(ranks, 2, timeout=TIMEOUT) == [None, [0, 1, 2]]


def test_aliases_and_long_strings(tmp_path):
    """A tied array is saved once, and loaded from either name."""
    w, text = numpy.arange(6.0).reshape(2, 3), "x" * (3 << 20)
    with shoal.World() as world:
        state = {"model": {"w": w, "head": shoal.Alias("w")}, "text": text}
        shoal.save(world.group, tmp_path, state, format="whole")
        for names in (["w"], ["head"], ["w", "head"]):
            found = {"model": {name: numpy.zeros((2, 3)) for name in names}, "text": text}
            shoal.load(world.group, tmp_path, found)
            assert all((array == w).all() for array in found["model"].values())
        with pytest.raises(shoal.InvalidError, match="none"):
            shoal.save(world.group, tmp_path, {"model": {"w": w, "b": shoal.Alias("none")}}, step=1)
    found = shoal.read(tmp_path)
    assert list(found["model"]) == ["w"] and found["text"] == text
