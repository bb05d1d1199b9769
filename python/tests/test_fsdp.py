# SPDX-License-Identifier: MIT
"""Explicit contexts of FSDP: views without copies, their lifetimes, settings, and ranks that differ."""

import gc
import os
import subprocess
import sys
import weakref

import pytest
import shoal

numpy = pytest.importorskip("numpy")
TIMEOUT = 60.0


def whole(rows, columns, seed=0):
    return numpy.random.default_rng(seed).normal(size=(rows, columns)).astype("f4")


def step(fsdp, unit, rank):
    """A step whose gradient of every element is rank + 1."""
    with unit.forward():
        pass
    with unit.backward():
        for param in unit:
            param.full_grad[...] += rank + 1
    fsdp.end_backward()


# Views ---------------------------------------------------------------------------------------------------------------


def test_arrays_are_views_of_the_shards():
    def ranks(world):
        fsdp = shoal.Fsdp(world.group)
        start = whole(7, 3)
        unit = fsdp.add_unit({"w": start, "b": numpy.arange(2, dtype="f4")})
        w = unit["w"]
        assert (w.shape, w.dtype, w.full_dtype, w.dim, w.n_shards) == ((7, 3), "f32", "f32", 0, 2)
        assert w.shard_shape == ((4, 3), (3, 3))[world.rank] and w.rows == (slice(0, 4), slice(4, 7))[world.rank]
        assert (w.shard == start[w.rows]).all() and not w.shard.flags.writeable
        address = w.shard.ctypes.data
        with unit.forward():
            first, again = w.full, w.full
            assert first.ctypes.data == again.ctypes.data and not first.flags.writeable and first.flags.c_contiguous
            with pytest.raises(ValueError, match="read-only"):
                first[0, 0] = 1
            assert (first == start).all() and unit["b"].full.tolist() == [0.0, 1.0]
            del first, again
        with unit.backward():
            assert w.full_grad.ctypes.data == w.full_grad.ctypes.data and w.full_grad.flags.writeable
            w.full_grad[...] += world.rank + 1
            assert (w.full_grad == world.rank + 1).all()
            stored, has_values = w.full_grad_to_store()
            assert has_values and stored.ctypes.data == w.full_grad.ctypes.data
            del stored
            other, has_values = unit["b"].full_grad_to_store()
            assert not has_values
            other[...] = 4
            del other
        fsdp.end_backward()
        assert (w.grad == 1.5).all() and w.grad.shape == w.shard_shape and (unit["b"].grad == 4).all()
        shard = w.update()
        assert shard.ctypes.data == address and shard.flags.writeable
        shard -= w.grad
        del shard
        fsdp.zero_grad()
        assert w.grad is None and w.shard.ctypes.data == address
        return (w.gather() == start - 1.5).all(), w.gather(root=1) is not None

    assert shoal.launch(ranks, 2, timeout=TIMEOUT) == [(True, False), (True, True)]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_gradients_are_changed_where_they_are(kind):
    """``param.full_grad += values`` works, and another array is refused. So with ``param.grad``."""
    make = numpy.ones if kind == "numpy" else pytest.importorskip("torch").ones

    def ranks(world):
        fsdp = shoal.Fsdp(world.group)
        unit = fsdp.add_unit({"w": make((5, 2)), "e": make((3, 0))})
        w, refused = unit["w"], []

        def refuse(name, value):
            with pytest.raises(AttributeError, match=f"{name} of the parameter 'w'.*{name} [+]= values") as raised:
                setattr(w, name, value)
            refused.append(str(raised.value))

        with unit.forward():
            pass
        with unit.backward():
            w.full_grad += make((5, 2))
            w.full_grad *= world.rank + 1
            unit["e"].full_grad += make((3, 0))
            for value in (make((5, 2)), w.full_grad + 1, w.full_grad[:1], 3.0, None):
                refuse("full_grad", value)
            del value
            with pytest.raises(AttributeError):
                w.full = w.full_grad
        fsdp.end_backward()
        w.grad *= 2
        refuse("grad", make(w.shard_shape))
        return w.grad.tolist() == [[3.0, 3.0]] * w.shard_shape[0], len(refused)

    assert shoal.launch(ranks, 2, timeout=TIMEOUT) == [(True, 6)] * 2


def test_memory_in_use_is_not_given_up():
    def ranks(world):
        fsdp = shoal.Fsdp(world.group)
        unit = fsdp.add_unit({"w": whole(4, 3)})
        w = unit["w"]
        unit.pre_forward()
        row = w.full[1]
        with pytest.raises(BufferError, match="post_forward: arrays still use whole parameters of w"):
            unit.post_forward()
        assert row[0] == w.full[1, 0]  # nothing has changed
        with pytest.raises(BufferError, match="shared memory"):
            world.close()
        del row
        unit.post_forward()
        with pytest.raises(shoal.StateError, match="only whole between"):
            w.full
        unit.pre_backward()
        grad = w.full_grad
        with pytest.raises(BufferError, match="post_backward"):
            unit.post_backward()
        with pytest.raises(BufferError, match="end_backward"):
            fsdp.end_backward()
        grad += 1
        del grad
        unit.post_backward()
        fsdp.end_backward()
        grad = w.grad
        with pytest.raises(BufferError, match="zero_grad: arrays still use gradients of w"):
            fsdp.zero_grad()
        with pytest.raises(BufferError, match="parameters of the context: w"):
            fsdp.close()
        assert grad[0, 0] == 1 if len(grad) else True
        del grad
        fsdp.zero_grad()
        unit.unshard()
        unit.wait()
        view = memoryview(w.full)
        with pytest.raises(BufferError, match="reshard"):
            unit.reshard()
        with pytest.raises(BufferError, match="pre_forward"):
            unit.pre_forward()
        with pytest.raises(BufferError, match="load"):
            w.load(whole(4, 3))
        view.release()
        unit.reshard()
        fsdp.close()
        fsdp.close()
        with pytest.raises(shoal.StateError, match="was closed"):
            unit.pre_forward()
        assert repr(fsdp) == "<shoal.Fsdp, closed>" and "closed" in repr(w)
        return True

    assert all(shoal.launch(ranks, 2, timeout=TIMEOUT))


def test_arrays_of_a_traceback_are_not_in_the_way():
    with shoal.World() as world:
        fsdp = shoal.Fsdp(world.group)
        unit = fsdp.add_unit({"w": whole(4, 3)})

        def kernel(w):
            raise ArithmeticError("in a kernel")

        with pytest.raises(ArithmeticError):
            with unit.forward():
                kernel(unit["w"].full)
        fsdp.reset()
        step(fsdp, unit, 0)
        assert (unit["w"].grad == 1).all()


def test_inner_forward_of_a_backward_pass_keeps_views():
    with shoal.World() as world:
        fsdp = shoal.Fsdp(world.group)
        unit = fsdp.add_unit({"w": whole(4, 3)})
        with unit.forward():
            pass
        with unit.backward():
            w = unit["w"].full
            with unit.forward():  # recomputes activations
                pass
            assert (w == unit["w"].full).all()
            del w
        fsdp.end_backward()


@pytest.mark.parametrize("order", range(4))
def test_objects_go_in_any_order(order):
    def ranks(world):
        fsdp = shoal.Fsdp(world.group)
        unit = fsdp.add_unit({"w": whole(5, 3)})
        param, context = unit["w"], weakref.ref(fsdp._context)
        step(fsdp, unit, world.rank)
        if order == 0:  # a view is the last
            shard = param.shard
            total = shard.sum()
            del fsdp, unit, param
            gc.collect()
            assert context() is not None and shard.sum() == total
            del shard
        elif order == 1:  # a cycle, with a hook that knows the context
            fsdp.set_accumulated_hook(lambda *_: bool(fsdp and unit))
            del fsdp, unit, param
            gc.collect()
        elif order == 2:  # the world is the first
            world.close()
            assert fsdp.memory().rank.shards > 0 and param.shape == (5, 3)
            with pytest.raises(shoal.StateError, match="the world was closed"):
                unit.pre_forward()
            fsdp.zero_grad()
            del fsdp, unit, param
        else:
            del unit, param, fsdp
        assert context() is None
        return True

    assert all(shoal.launch(ranks, 2, timeout=TIMEOUT))


def test_a_child_frees_nothing():
    with shoal.World() as world:
        fsdp = shoal.Fsdp(world.group)
        unit = fsdp.add_unit({"w": whole(4, 3)})
        child = os.fork()
        if child == 0:
            code = 1
            try:
                unit["w"].shard
            except shoal.StateError as error:
                code = 0 if "parent" in str(error) else 2
            finally:
                del unit, fsdp
                gc.collect()
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        step(fsdp, unit, 0)


def test_contexts_leave_nothing():
    def ranks(world):
        def count():
            gc.collect()
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), len(world._shared)

        def use(i):
            fsdp = shoal.Fsdp(world.group, sharded=("parameters", "gradients", "state")[i % 3])
            unit = fsdp.add_unit({"w": whole(5, 3)})
            unit["w"].set_gather_extension(int8_rows(3))
            fsdp.set_accumulated_hook(lambda param, shard, grad: i % 2 == 0 and fsdp is not None)
            if i % 5 == 0:
                unit.pre_forward()  # a step that is never ended
            else:
                step(fsdp, unit, world.rank)

        for i in range(6):
            use(i)
        before = count()
        for i in range(30):
            use(i)
        return before, count()

    for before, after in shoal.launch(ranks, 2, timeout=TIMEOUT):
        assert before == after and after[2] == 0


EXIT = """
import sys, numpy, shoal
world = shoal.World()
fsdp = shoal.Fsdp(world.group)
units = [fsdp.add_unit({f"{i}": numpy.ones((50, 30), dtype="f4")}) for i in range(3)]
for i, unit in enumerate(units):
    copy = lambda rows, left, right: numpy.copyto(right[0] if isinstance(right, list) else right,
                                                  left[0] if isinstance(left, list) else left)
    unit[f"{i}"].set_gather_extension(shoal.GatherExtension("copy", [("f32", 30)], copy, copy))
fsdp.set_accumulated_hook(lambda *given: None)
for unit in units:
    with unit.forward():
        pass
if sys.argv[1] == "gathers":
    fsdp.end_forward()
    for unit in units:
        unit.unshard()
elif sys.argv[1] == "reductions":
    for unit in reversed(units):
        with unit.backward():
            pass
elif sys.argv[1] == "views":
    kept = [units[1]["1"].shard]
    units[0].pre_backward()
    kept += [units[0]["0"].full, units[0]["0"].full_grad]
    circle = [fsdp, kept]
    circle.append(circle)
elif sys.argv[1] == "save":
    saving = shoal.save_start(world.group, sys.argv[2], {"model": fsdp})
print("end")
"""


@pytest.mark.parametrize("what", ["gathers", "reductions", "views", "save"])
def test_exits_in_the_middle(tmp_path, what):
    program = tmp_path / "program.py"
    program.write_text(EXIT)
    command = [sys.executable, "-m", "shoal", "run", "--no-label", "-n", "2", sys.executable, str(program), what]
    done = subprocess.run(
        [*command, str(tmp_path / "save")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\nend\n", "")
    if what == "save":
        assert (shoal.read(tmp_path / "save")["model"]["1"] == 1).all()


# Values --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1,), (2,), (5, 1), (3, 0, 2), (1, 2, 3), (4, 2, 1, 1)])
def test_odd_shapes(shape):
    def ranks(world):
        fsdp = shoal.Fsdp(world.group)
        start = numpy.arange(numpy.prod(shape), dtype="f8").reshape(shape)
        unit = fsdp.add_unit({"w": start})
        unit.add("zeros", shape, dtype="f64", requires_grad=False)
        with unit.forward():
            assert unit["w"].full.shape == shape and (unit["w"].full == start).all()
        with unit.backward():
            unit["w"].full_grad[...] = start
            with pytest.raises(shoal.StateError, match="gets no gradient"):
                unit["zeros"].full_grad
        fsdp.end_backward()
        assert (unit["w"].grad == unit["w"].shard).all() and unit["zeros"].grad is None
        return unit["w"].gather().tobytes() == start.tobytes(), bool(fsdp["zeros"].gather().any())

    assert shoal.launch(ranks, 3, timeout=TIMEOUT) == [(True, False)] * 3


def test_another_dimension_is_cut():
    def ranks(world):
        fsdp = shoal.Fsdp(world.group)
        start = whole(3, 4)
        w = fsdp.add_unit().add("w", start, dim=1)
        assert w.dim == 1 and (w.shard == start[:, w.rows]).all()
        step(fsdp, fsdp.units[0], world.rank)
        assert (w.grad == 1.5).all()
        return (w.gather() == start).all()

    assert shoal.launch(ranks, 2, timeout=TIMEOUT) == [True, True]


def to_bf16(values):
    bits = numpy.asarray(values, dtype="f4").view("u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("u2")


def test_bf16_over_uint16():
    def ranks(world):
        fsdp = shoal.Fsdp(world.group, param_dtype="bf16", reduce_dtype="f32")
        start = whole(6, 3)
        unit = fsdp.add_unit({"w": start})
        w = unit["w"]
        with unit.forward():
            assert w.full.dtype == "u2" and w.full_dtype == "bf16" and (w.full == to_bf16(start)).all()
        with unit.backward():
            w.full_grad[...] = to_bf16(numpy.full((6, 3), world.rank + 1.0))
        fsdp.end_backward()
        assert w.grad.dtype == "f4" and (w.grad == 1.5).all()
        other = shoal.Fsdp(world.group)
        stored = other.add_unit().add("v", to_bf16(start), dtype="bf16")
        assert stored.dtype == "bf16" and (stored.gather() == to_bf16(start)).all()
        return True

    assert all(shoal.launch(ranks, 2, timeout=TIMEOUT))


def test_torch():
    pytest.importorskip("torch")

    def ranks(world):
        import torch

        fsdp = shoal.Fsdp(world.group, param_dtype="bf16", reduce_dtype="f32")
        unit = fsdp.add_unit({"w": torch.ones(5, 2), "e": torch.ones(3, 0)})
        w = unit["w"]
        with unit.forward():
            assert w.full.dtype == torch.bfloat16 and w.full.shape == (5, 2)
            kept = w.full
            with pytest.raises(BufferError, match="whole parameters of w"):
                unit.post_forward()
            x = (torch.ones(1, 5, dtype=torch.bfloat16) @ kept).float()
            del kept
        with unit.backward():
            w.full_grad.add_(world.rank + 1)
        fsdp.end_backward()
        moment = w.zeros("f64")
        assert moment.dtype == torch.float64 and tuple(moment.shape) == w.shard_shape
        address = w.shard.data_ptr()
        fsdp.update(lambda param, shard, grad: shard.sub_(grad))
        assert w.shard.data_ptr() == address
        return x.tolist(), w.gather().tolist()

    assert shoal.launch(ranks, 2, timeout=TIMEOUT) == [([[5.0, 5.0]], [[-0.5, -0.5]] * 5)] * 2


def test_values_come_and_go():
    def ranks(world):
        fsdp = shoal.Fsdp(world.group)
        start, root = whole(7, 3), 1
        w = fsdp.add_unit({"w": (7, 3)})["w"]
        w.broadcast(start if world.rank == root else None, root)
        assert (w.gather() == start).all()
        w.load(2 * start)
        w.load_slice(2, start[2:4].copy())
        expected = 2 * start
        expected[2:4] = start[2:4]
        assert (w.gather() == expected).all()
        moment = w.zeros("f64")
        w.load_array(start.astype("f8"), moment)
        assert (moment == start[w.rows]).all() and (w.gather_array(moment) == start).all()
        assert (w.gather_array(moment, 2) is None) == (world.rank != 2)
        w.broadcast_array(numpy.ones((7, 3)) if world.rank == 0 else None, moment)
        assert (moment == 1).all()
        frozen = start.copy()
        frozen.flags.writeable = False
        w.load(frozen)
        with pytest.raises(ValueError, match="shard is read-only"):
            w.load_array(start, w.shard)
        with pytest.raises(ValueError, match=r"full has shape \(3, 7\), not \(7, 3\)"):
            w.load(numpy.zeros((3, 7), dtype="f4"))
        with pytest.raises(ValueError, match="8 bytes"):
            w.load(numpy.zeros((7, 3)))
        with pytest.raises(ValueError, match="not contiguous"):
            w.load(numpy.zeros((3, 7), dtype="f4").T)
        with pytest.raises(shoal.InvalidError, match="holds the values of parameter w itself"):
            w.load_array(start, w.update())
        return True

    assert all(shoal.launch(ranks, 3, timeout=TIMEOUT))


# Settings ------------------------------------------------------------------------------------------------------------


def test_accumulation_clipping_and_memory():
    def ranks(world):
        fsdp = shoal.Fsdp(world.group, reshard="never")
        units = [fsdp.add_unit({f"{i}": whole(6, 4, i)}, name=f"layer {i}") for i in range(3)]
        for last in (False, True):
            fsdp.set(sync=last)
            for unit in units:
                with unit.forward():
                    pass
            for unit in reversed(units):
                with unit.backward():
                    for param in unit:
                        param.full_grad[...] += 1
            fsdp.end_backward()
            assert (fsdp["1"].grad is None) == (not last)
        assert all((param.grad == 2).all() for param in fsdp)
        norm = fsdp.clip_grad_norm(1.0)
        assert norm == pytest.approx((3 * 24 * 4) ** 0.5)
        fsdp.clip_grad_value(0.1)
        assert all(param.grad.max(initial=0) <= numpy.float32(0.1) for param in fsdp)
        with pytest.raises(shoal.InvalidError):
            fsdp.clip_grad_norm(-1.0)
        report = fsdp.memory()
        assert report.n_ranks == 2 and report.rank.shards >= 3 * 12 * 4 and "shards" in str(report)
        assert report.host.total >= report.rank.total
        fsdp.zero_grad()
        for unit in units:
            with unit.forward():
                pass
        fsdp.end_forward()
        units[0].set(reshard="always", divide_factor=1.0)
        units[0].set_prefetch(forward=[units[1]], backward=[])
        step(fsdp, units[0], world.rank)
        assert (fsdp["0"].grad == 3).all()
        with pytest.raises(KeyError, match="no parameter"):
            fsdp["none"]
        with pytest.raises(ValueError, match="reshard is 'now'"):
            units[0].set(reshard="now")
        return [param.name for param in fsdp]

    assert shoal.launch(ranks, 2, timeout=TIMEOUT) == [["0", "1", "2"]] * 2


@pytest.mark.parametrize(
    "options", [{"sharded": "gradients"}, {"sharded": "state"}, {"replicated": True}, {"reshard": 2}]
)
def test_kinds_of_contexts(options):
    def ranks(world):
        fsdp = shoal.Fsdp(world.group, **options)
        start = whole(5, 3)
        unit = fsdp.add_unit({"w": start})
        for _ in range(3):
            step(fsdp, unit, world.rank)
            fsdp.update(lambda param, shard, grad: numpy.subtract(shard, grad, out=shard))
        with unit.forward():
            assert (unit["w"].full == start - 2.5 - 2.5 - 2.5).all()
        fsdp.end_forward()
        return True

    assert all(shoal.launch(ranks, 4, timeout=TIMEOUT))


def test_meshes_and_units_over_other_ranks():
    def ranks(world):
        mesh = world.make_mesh((2, 2), ("replicas", "shards"))
        fsdp = shoal.Fsdp(mesh)
        common = fsdp.add_unit({"w": whole(4, 2)})
        expert = fsdp.add_unit(ranks=mesh["shards"], name="expert")
        expert.add("e", numpy.full((2, 2), mesh.coordinate[0], dtype="f4"))
        with common.forward(), expert.forward():
            own = float(expert["e"].full[0, 0])
        with expert.backward():
            expert["e"].full_grad[...] += world.rank + 1
        with common.backward():
            common["w"].full_grad[...] += world.rank + 1
        fsdp.end_backward()
        assert common["w"].n_shards == 2 and (common["w"].grad == 2.5).all()
        assert (common["w"].gather(root=3) is None) == (world.rank != 3)
        return own, float(expert["e"].grad[0, 0])

    assert shoal.launch(ranks, 4, timeout=TIMEOUT) == [(0.0, 1.5), (0.0, 1.5), (1.0, 3.5), (1.0, 3.5)]


# Ranks that differ, and wrong calls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["shape", "dtype", "option", "call", "asked", "clip", "root"])
def test_ranks_that_differ_get_a_mismatch(what):
    def ranks(world):
        odd = world.rank == 1
        fsdp = shoal.Fsdp(world.group, reduce_dtype="bf16" if odd and what == "option" else None)
        shape = (4, 3) if odd and what == "shape" else (4, 2)
        dtype = "f64" if odd and what == "dtype" else "f32"
        unit, other = fsdp.add_unit(), fsdp.add_unit({"v": (4,)})
        unit.add("w", shape, dtype=dtype)
        with pytest.raises(shoal.MismatchError) as caught:
            if what == "call" and odd:
                unit, other = other, unit
            unit.set(reshard_after_backward=False)
            for _ in range(2):
                for chosen in (unit, other):
                    with chosen.forward():
                        pass
                for chosen in (other, unit):
                    with chosen.backward():
                        pass
                fsdp.end_backward()
                if what == "asked" and odd:
                    unit["w"].update()
                if what == "clip":
                    fsdp.clip_grad_norm(1.0 + odd)
                if what == "root":
                    unit["w"].gather(root=int(odd))
        return str(caught.value)

    texts = shoal.launch(ranks, 3, timeout=TIMEOUT)
    assert all(text for text in texts)


def test_wrong_calls():
    with shoal.World() as world:
        fsdp = shoal.Fsdp(world.group)
        unit = fsdp.add_unit({"w": whole(2, 2)})
        with pytest.raises(ValueError, match="parameter w already"):
            unit.add("w", (3,))
        with pytest.raises(KeyError, match="no parameter b: w"):
            unit["b"]
        with pytest.raises(ValueError, match="not contiguous"):
            unit.add("b", numpy.zeros((4, 4))[:, 1])
        with pytest.raises(TypeError, match="b is a list"):
            unit.add("b", [1.0])
        with pytest.raises(shoal.InvalidError):
            unit.add("b", ())
        with pytest.raises(shoal.StateError, match="no pre_forward"):
            unit.post_forward()
        with pytest.raises(shoal.StateError, match="no forward pass"):
            unit.pre_backward()
        with pytest.raises(ValueError, match="sharded is 'all'"):
            shoal.Fsdp(world.group, sharded="all")
        with pytest.raises(ValueError, match="on a group"):
            shoal.Fsdp(world.make_mesh((1,)), replicated=True)
        step(fsdp, unit, 0)
        with pytest.raises(shoal.StateError, match="after the first forward pass"):
            unit.add("late", (3,))
        with pytest.raises(shoal.StateError, match="after the first forward pass"):
            fsdp.add_unit()
        assert [param.name for param in fsdp] == ["w"] and len(fsdp.units) == 1


# Functions of the program --------------------------------------------------------------------------------------------


def test_hooks():
    def ranks(world):
        fsdp = shoal.Fsdp(world.group)
        unit = fsdp.add_unit({"w": numpy.ones((5, 2), dtype="f4"), "b": numpy.ones(3, dtype="f4")}, name="first")
        seen = []

        def reduced(gradients):
            seen.append((gradients.unit, gradients.dtype, sorted(gradients.parts)))
            gradients.parts["b"][...] *= 10
            if len(seen) == 1:
                return world.group.all_reduce_start(gradients.data, op="max")
            gradients.data[...] *= 1

        def accumulated(param, shard, grad):
            seen.append((param.name, shard.shape == param.shard_shape, float(grad.max(initial=0))))
            shard -= grad
            return True

        fsdp.set_all_reduce_hook(reduced)
        fsdp.set_accumulated_hook(accumulated)
        for _ in range(2):
            step(fsdp, unit, world.rank)
            assert unit["w"].grad is None  # was used
        fsdp.set_all_reduce_hook(None)
        fsdp.set_accumulated_hook(None)
        step(fsdp, unit, world.rank)
        assert unit["w"].grad.max() == 1.5
        return seen, unit["w"].gather()[0, 0].item(), unit["b"].gather()[0].item()

    seen = [("first", "f32", ["b", "w"]), ("w", True, 1.5), ("b", True, 15.0)] * 2
    assert shoal.launch(ranks, 2, timeout=TIMEOUT) == [(seen, -2.0, -29.0)] * 2


@pytest.mark.parametrize("kind", ["accumulated", "all_reduce"])
def test_exceptions_of_hooks(kind):
    def ranks(world):
        fsdp = shoal.Fsdp(world.group)
        units = [fsdp.add_unit({f"w{i}": whole(4, 2)}) for i in range(2)]

        def hook(*given):
            local = given  # a frame that holds the arrays
            if world.rank == 1 and is_angry:
                raise ArithmeticError("100% wrong")
            del local

        getattr(fsdp, f"set_{kind}_hook")(hook)
        is_angry = True

        def both():
            for unit in units:
                with unit.forward():
                    pass
            for unit in reversed(units):
                with unit.backward():
                    pass
            fsdp.end_backward()
            world.group.barrier()
            for unit in units:  # at the latest
                with unit.forward():
                    pass
            fsdp.end_forward()

        wanted = ArithmeticError if world.rank == 1 else shoal.Error
        with pytest.raises(wanted, match="100% wrong"):
            both()
        return True

    assert all(shoal.launch(ranks, 2, timeout=TIMEOUT))


def test_a_hook_that_keeps_an_array():
    with shoal.World() as world:
        fsdp = shoal.Fsdp(world.group)
        unit = fsdp.add_unit({"w": whole(4, 2)})
        kept = []
        fsdp.set_accumulated_hook(lambda param, shard, grad: kept.append(grad))
        with pytest.raises(BufferError, match="the hook has kept an array of the gradient"):
            step(fsdp, unit, 0)
        kept.clear()
        fsdp.reset()
        fsdp.set_accumulated_hook(None)
        fsdp.zero_grad()
        step(fsdp, unit, 0)
        assert (unit["w"].grad == 1).all()


def int8_rows(columns, fails=None):
    def encode(rows, shard, buffers):
        if fails == "encode":
            raise ArithmeticError("cannot encode")
        assert shard.shape == (rows.count, columns) and not shard.flags.writeable and rows.metadata == b"v1"
        scales = numpy.abs(shard).max(axis=1, initial=0) / 127
        buffers[1][:, 0] = scales
        buffers[0][...] = numpy.rint(shard / numpy.where(scales > 0, scales, 1)[:, None])

    def decode(rows, buffers, out):
        if fails == "decode":
            raise ArithmeticError("cannot decode")
        assert not buffers[0].flags.writeable
        out[...] = buffers[0] * buffers[1]

    return shoal.GatherExtension("int8 rows", [("i8", columns), ("f32", 1)], encode, decode, metadata=b"v1")


def test_gather_extension():
    def ranks(world):
        fsdp = shoal.Fsdp(world.group)
        start = whole(5, 3)
        unit = fsdp.add_unit({"w": start})
        unit["w"].set_gather_extension(int8_rows(3))
        with unit.forward():
            rounded = unit["w"].full.copy()
        assert not (rounded == start).all() and numpy.abs(rounded - start).max() < numpy.abs(start).max() / 127
        fsdp.end_forward()
        return (unit["w"].gather() == start).all(), rounded.tobytes()

    found = shoal.launch(ranks, 2, timeout=TIMEOUT)
    assert all(exact for exact, _ in found) and found[0] == found[1]


def test_gather_extension_of_all_ranks_at_once():
    def ranks(world):
        def encode(rows, shard, buffers):
            buffers[0][: shard.size] = shard.ravel()

        def decode(rows, buffers, out):
            assert buffers[0].shape == (rows.n_shards, 6) and rows.count == 5
            out[...] = numpy.concatenate([buffers[0][0], buffers[0][1]])[: out.size].reshape(out.shape)

        fsdp = shoal.Fsdp(world.group)
        start = whole(5, 2)
        unit = fsdp.add_unit({"w": start})
        unit["w"].set_gather_extension(shoal.GatherExtension("all", [("f32", 6)], encode, decode, by_rows=False))
        with unit.forward():
            same = (unit["w"].full == start).all()
        fsdp.end_forward()
        return same

    assert shoal.launch(ranks, 2, timeout=TIMEOUT) == [True, True]


@pytest.mark.parametrize("what", ["encode", "decode"])
def test_exceptions_of_extensions(what):
    def ranks(world):
        fsdp = shoal.Fsdp(world.group)
        unit = fsdp.add_unit({"w": whole(4, 3)})
        unit["w"].set_gather_extension(int8_rows(3, what if world.rank == 1 else None))
        with pytest.raises(ArithmeticError if world.rank == 1 else shoal.Error, match=f"cannot {what}"):
            for _ in range(3):  # others hear of it as soon as they need that rank
                with unit.forward():
                    pass
                fsdp.end_forward()
        return True

    assert all(shoal.launch(ranks, 2, timeout=TIMEOUT))


def test_extensions_that_differ():
    def ranks(world):
        fsdp = shoal.Fsdp(world.group)
        unit = fsdp.add_unit({"w": whole(4, 3)})
        if world.rank == 0:
            unit["w"].set_gather_extension(int8_rows(3))
        with pytest.raises(shoal.MismatchError):
            unit.pre_forward()
        return True

    assert all(shoal.launch(ranks, 2, timeout=TIMEOUT))


def test_launch_raises_the_exception_and_not_what_others_heard():
    def ranks(world):
        fsdp = shoal.Fsdp(world.group)
        unit = fsdp.add_unit({"w": whole(4, 3)})
        unit["w"].set_gather_extension(int8_rows(3, "encode" if world.rank == 1 else None))
        with unit.forward():
            pass

    with pytest.raises(ArithmeticError, match="cannot encode"):
        shoal.launch(ranks, 2, timeout=TIMEOUT)
