# SPDX-License-Identifier: MIT
"""In a child of fork() every use of a parent's object raises, and nothing of the parent's is freed.

Classes and their methods are found by introspection: a new class needs a row in OBJECTS, a new kind of parameter one in
ARGUMENTS.
"""

import enum
import gc
import inspect
import os
import signal
import tempfile
import threading
import traceback
from array import array

import pytest
import shoal

numpy = pytest.importorskip("numpy")
TIMEOUT = 60.0

# How an object of each class is made, in a world.
OBJECTS = {
    "World": lambda world: world,
    "Group": lambda world: world.group,
    "Work": lambda world: world.group.recv_start(array("d", [0.0]), 0, 5),
    "Symmetric": lambda world: world.group.symmetric(64, reserve=4096),
    "Window": lambda world: world.group.window(64),
    "Store": lambda world: world.store,
    "Mesh": lambda world: world.make_mesh((1, world.n_ranks), ("dp", "tp")),
    "Fsdp": lambda world: make_fsdp(world),
    "Unit": lambda world: make_fsdp(world).units[0],
    "Param": lambda world: make_fsdp(world)["w"],
    "Saving": lambda world: shoal.save_start(world.group, FOLDER.name, {"step": 1}),
}
# Classes of values, which have nothing of the library's; and DeviceArray, which needs a device (test_devices.py).
VALUES = {
    "Alias", "CheckpointInfo", "DeviceArray", "GatherExtension", "GatherRows", "Item", "MemoryReport", "Progress", "ReducedGradients",
}  # fmt: skip
FOLDER = tempfile.TemporaryDirectory()


def make_fsdp(world):
    fsdp = shoal.Fsdp(world.group)
    fsdp.add_unit({"w": numpy.ones((2, 2), dtype="f4")})
    return fsdp


# What a parameter of this name is given, if it has no default.
ARGUMENTS = {
    "data": array("d", [0.0] * 2),
    "out": array("d", [0.0] * 2),
    "key": "a",
    "keys": ["a"],
    "value": b"b",
    "amount": 1,
    "expected": b"",
    "desired": b"b",
    "name": "a",
    "names": "dp",
    "ranks": [0],
    "rank": 0,
    "to": 0,
    "reason": "none",
    "shape": (1,),
    "size": 128,
    "seconds": 1.0,
    "pieces": [(array("f", [0.0]), 0)],
    "full": numpy.ones((2, 2), dtype="f4"),
    "shard": numpy.ones((2, 2), dtype="f4"),
    "part": numpy.ones((2, 2), dtype="f4"),
    "values": (2,),
    "offset": 0,
    "is_required": True,
    "function": print,
    "hook": print,
    "extension": shoal.GatherExtension("none", [("f32", 2)], print, print),
    "max_norm": 1.0,
    "max_value": 1.0,
    "other": None,  # itself
}
# What a child may do, and why.
ALLOWED = {
    "World.close": "closing what is not its own does nothing",
    "World.__exit__": "closing what is not its own does nothing",
    "World.__enter__": "every use inside raises",
    "World.is_open": "says that it is not",
    "World.from_mpi": "makes a world",
    "Symmetric.free": "freeing what is not its own does nothing",
    "Window.free": "freeing what is not its own does nothing",
    "Symmetric.is_viewed": "asks this process about its views",
    "Window.is_viewed": "asks this process about its views",
    "Fsdp.close": "freeing what is not its own does nothing",
    "Fsdp.__exit__": "freeing what is not its own does nothing",
    "Fsdp.__enter__": "every use inside raises",
    "Fsdp.units": "a list of this process",
    "Fsdp.__iter__": "a list of this process",
    "Unit.number": "a number of this process",
    "Unit.__iter__": "a list of this process",
    "Unit.__getitem__": "a list of this process",
    "Unit.__len__": "a list of this process",
    "Param.item": "a value, which cannot be saved here",
    "Param.id": "a number of this process",
    "Param.name": "a name of this process",
}
SPECIAL = ("__getitem__", "__iter__", "__len__", "__eq__", "__str__", "__await__", "__enter__", "__exit__")


def public_classes():
    found = [getattr(shoal, name) for name in shoal.__all__]
    return [
        kind
        for kind in found
        if inspect.isclass(kind) and not issubclass(kind, (Exception, enum.Enum)) and kind.__name__ not in VALUES
    ]


def uses_of(kind, instance):
    """(name, function without arguments) for every public property and method."""
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        if name.startswith("_") and not (name in SPECIAL and name in vars(kind)):
            continue
        if isinstance(member, property):
            yield name, lambda name=name: getattr(instance, name)
            if member.fset is not None:
                yield f"{name} =", lambda name=name: setattr(instance, name, 1.0)
        elif inspect.isfunction(member):
            yield name, make_call(instance, name)


def make_call(instance, name):
    method = getattr(instance, name)
    arguments, named = [], {}
    for parameter in inspect.signature(method).parameters.values():
        if parameter.kind == parameter.VAR_POSITIONAL:
            arguments.append("a")
        elif parameter.default is parameter.empty and parameter.kind != parameter.KEYWORD_ONLY:
            given = ARGUMENTS.get(parameter.name)
            arguments.append(instance if given is None else given)
        elif parameter.name == "out":
            named["out"] = ARGUMENTS["out"]

    def call():
        result = method(*arguments, **named)
        if name == "__await__":
            next(result)
        elif hasattr(result, "__enter__"):
            result.__enter__()

    return call


def find_unrefused(objects):
    """The uses that did not raise as they should, as lines."""
    wrong = []
    for name, instance in objects.items():
        for member, use in uses_of(type(instance), instance):
            full = f"{name}.{member}"
            try:
                use()
                wrong += [] if full in ALLOWED else [f"{full} did not raise"]
            except shoal.StateError as error:
                wrong += [] if "belongs to the parent" in str(error) and full not in ALLOWED else [f"{full}: {error}"]
            except Exception as error:
                wrong += [] if full in ALLOWED else [f"{full}: {type(error).__name__}: {error}"]
    return wrong


def test_every_class_has_a_row():
    assert {kind.__name__ for kind in public_classes()} == set(OBJECTS)


def test_every_use_in_a_child_raises():
    with shoal.World() as world:
        objects = {name: make(world) for name, make in OBJECTS.items()}
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                text = "\n".join(find_unrefused(objects))
                for instance in objects.values():
                    repr(instance)
            except BaseException:
                text = traceback.format_exc()
            os.write(writer, text.encode())
            os._exit(0)
        os.close(writer)
        with open(reader) as pipe:
            assert pipe.read() == ""
        os.waitpid(child, 0)
        # Nothing was freed: everything still works here.
        assert objects["Symmetric"].size == 64 and objects["Window"].size == 64
        assert objects["Mesh"].shape == (1, 1)
        world.group.send(array("d", [7.0]), 0, 5)
        assert objects["Work"].wait() == 0


def test_functions_refuse_groups_of_the_parent():
    with shoal.World() as world:
        group = world.group
        child = os.fork()
        if child == 0:
            n_refused = 0
            for use in (shoal.save, shoal.save_start, shoal.load):
                try:
                    use(group, FOLDER.name, {"step": 1})
                except shoal.StateError as error:
                    n_refused += "belongs to the parent" in str(error)
            os._exit(n_refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_child_drops_and_exits(n_ranks):
    """The child lets go of everything, collects, and exits as an interpreter does, while works are in flight."""

    def ranks(world):
        objects = {name: make(world) for name, make in OBJECTS.items() if name != "Saving"}
        view = objects["Symmetric"].buffer
        works = [world.group.all_reduce_start(array("d", [1.0] * 1000)) for _ in range(5)]
        dropped = array("d", [1.0] * 1000)
        world.group.all_reduce_start(dropped)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                del objects, works, view
                gc.collect()
                world.close()
                del world
                gc.collect()
                shoal.worlds.close_all()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        view[0] = 3
        assert [work.wait()[999] for work in works] == [float(n_ranks)] * 5
        if world.rank == 0:
            for rank in range(n_ranks):
                world.group.send(array("d", [7.0]), rank, 5)
        assert objects["Work"].wait() == 0
        assert objects["Mesh"].shape == (1, n_ranks)
        world.group.barrier()
        del view
        return dropped[0]

    assert shoal.launch(ranks, n_ranks, timeout=TIMEOUT) == [float(n_ranks)] * n_ranks


def open_and_close():
    with shoal.World(1, 0) as world:
        data = array("d", [2.0] * 10)
        world.group.all_reduce(data)
        return data[9]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of threads in a process that forks
@pytest.mark.parametrize("call", ["open", "symmetric"])
def test_a_child_opens_a_world_whatever_threads_of_the_parent_do(call):
    """They may be in the library, and have its locks."""
    with shoal.World() as world:
        group, is_over = world.group, threading.Event()

        def use():
            while not is_over.is_set():
                open_and_close() if call == "open" else group.symmetric(4096).free()

        worker = threading.Thread(target=use)
        worker.start()
        try:
            for _ in range(60):
                child = os.fork()
                if child == 0:
                    signal.alarm(30)
                    os._exit(0 if open_and_close() == 2.0 else 1)
                assert os.waitpid(child, 0)[1] == 0
        finally:
            is_over.set()
            worker.join()
