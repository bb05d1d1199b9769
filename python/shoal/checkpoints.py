# SPDX-License-Identifier: MIT
"""Checkpoints: dicts of arrays, saved by all ranks together and loaded on any number of ranks.

>>> import numpy, shoal, tempfile
>>> with shoal.World() as world, tempfile.TemporaryDirectory() as folder:
...     state = {"w": numpy.arange(3.0), "epoch": 7}
...     shoal.save(world.group, folder, state, step=100)
...     fresh = {"w": numpy.zeros(3), "epoch": 0}
...     print(shoal.load(world.group, folder, fresh).step, fresh["w"], fresh["epoch"])
...     print(shoal.read(folder)["model"]["w"])
100 [0. 1. 2.] 7
[0. 1. 2.]

A state is a dict. Arrays at its top belong to the section "model"; a dict in it is another section, named by its key:
``{"model": {"w": w}, "optimizer": {"w.m": m}, "epoch": 3}``. Values are

- arrays that every rank has whole, with the same values;
- ``Item(...)``: a part of an array, or elements of another dtype (bf16 over uint16);
- ``Alias("w")``: a second name of the array "w", which comes before it in the same dict (a tied parameter);
- ``param.item(array)``: an array that is cut as a parameter of FSDP is;
- a context of FSDP, as the section "model", or in it with a prefix of names as its key;
- numbers and strings, at the top.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import json
import math
import numbers
import os
import time
import uuid
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from . import _api, _interrupts, safetensors
from ._api import SECTION_MODEL, CheckpointFormat, Dtype
from ._arrays import take
from ._fsdp_context import WHOLE, Context
from ._library import check, check_generation, generation, lib
from ._uses import Uses, wait_for_others
from ._views import new_array, shape_of
from .errors import InvalidError
from .fsdp import Fsdp, ParamItem
from .groups import Group
from .worlds import World

__all__ = ["Alias", "CheckpointInfo", "Item", "Progress", "Saving", "load", "newest", "read", "save", "save_start", "steps"]

_STRING_BYTES = 1 << 20
# How often a thread that waits asks whether a save has ended: in the library it would not run Python's signal handlers.
_SLICE_S = 0.01
_PATIENCE_S = 5.0
_INDEX = "shoal.index.json"
_formats = {"pieces": CheckpointFormat.CHECKPOINT_PIECES, "whole": CheckpointFormat.CHECKPOINT_WHOLE}


class Item:
    """An array of a state that is not simply whole.

    With `shape`, `data` is the part that this rank has of an array of that shape: indices from `offset` on along `dim`.
    The parts of all ranks together are the whole. `dtype` reads elements as another dtype of the same size. A load
    leaves an item that `may_be_missing` alone if the checkpoint does not have it. Ranks with different `owners`, from 1
    up, have arrays of their own under this name.
    """

    __slots__ = ("data", "dim", "dtype", "may_be_missing", "offset", "owners", "shape")

    def __init__(
        self, data: Any, shape: tuple[int, ...] | None = None, *, dim: int = 0, offset: int = 0,
        dtype: str | None = None, may_be_missing: bool = False, owners: int = 0,
    ) -> None:  # fmt: skip
        self.data = data
        self.shape = shape
        self.dim = dim
        self.offset = offset
        self.dtype = dtype
        self.may_be_missing = may_be_missing
        self.owners = owners


class Alias(NamedTuple):
    """Another name of an array of the same section: saved once, loaded from either name."""

    of: str


class Progress(NamedTuple):
    """How far a run has come: a step uses n_ranks x batch x n_accumulate samples, `sample` is the first unused one."""

    n_ranks: int = 0
    batch: int = 0
    n_accumulate: int = 0
    sample: int = 0


class CheckpointInfo(NamedTuple):
    """What was loaded, or is there. The step is -1 if there is no checkpoint."""

    step: int
    format: str
    progress: Progress
    n_missing: int
    n_unexpected: int
    n_damaged: int


def _info(native: Any) -> CheckpointInfo:
    progress = Progress(*[getattr(native.progress, name) for name in Progress._fields])
    name = next(name for name, number in _formats.items() if number == native.format)
    return CheckpointInfo(native.step, name, progress, native.n_missing, native.n_unexpected, native.n_damaged)


def _text(text: str, what: str) -> bytes:
    """A text for the library, which would cut it at a NUL."""
    if "\0" in text:
        raise ValueError(f"{what} {ascii(text)} has a NUL")
    return text.encode()


# The list of items ---------------------------------------------------------------------------------------------------


class _List:
    """The items of a state, for one call."""

    def __init__(self, state: Mapping[str, Any], writes: bool) -> None:
        self._writes = writes
        self._keep: list[Any] = []
        self._values: list[tuple[str, Any]] = []
        self.contexts: list[Fsdp] = []
        self._used: list[Context] = []  # by items
        handle = ctypes.c_void_p()
        check(lib.shoal_items_create(ctypes.byref(handle)))
        self.handle = handle.value or 0
        self._add_state(state)

    def _add_state(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            if isinstance(value, Mapping):
                for inner, entry in value.items():
                    self._add(name, inner, entry)
            elif isinstance(value, Fsdp):
                if name != SECTION_MODEL:
                    raise ValueError(f"'{name}': a context of FSDP is the section 'model', or in it")
                self._add(SECTION_MODEL, "", value)
            elif isinstance(value, (str, numbers.Real)):
                self._add_value(name, value)
            else:
                self._add(SECTION_MODEL, name, value)

    def _add(self, section: str, name: str, value: Any) -> None:
        if isinstance(value, Fsdp):
            if section != SECTION_MODEL:
                raise ValueError(f"'{section}': parameters of FSDP belong to the section 'model'")
            self.contexts.append(value)
            self._used.append(value._context)
            with value._context._uses:
                check(lib.shoal_items_add_fsdp(self.handle, _text(name, "the prefix"), value._context.live()))
        elif isinstance(value, ParamItem):
            self._add_cut(section, name, value)
        elif isinstance(value, Alias):
            names = _text(section, "the section"), _text(value.of, "the name"), _text(name, "the name")
            check(lib.shoal_items_add_alias(self.handle, *names))
        elif isinstance(value, (str, numbers.Real, Mapping)):
            kind = type(value).__name__
            raise ValueError(f"'{name}' of section '{section}' is a {kind}: only arrays are in sections")
        else:
            self._add_array(section, name, value if isinstance(value, Item) else Item(value))

    def _add_cut(self, section: str, name: str, value: ParamItem) -> None:
        memory = value.param._own(value.data, value.dtype, self._writes)
        self._keep.append(memory)
        self._used.append(value.param._context)
        names = _text(section, "the section"), _text(name, "the name")
        with value.param._context._uses:
            status = lib.shoal_items_add_fsdp_array(
                self.handle, *names, value.param._handle(), memory.dtype, memory.address
            )
        check(status)

    def _add_array(self, section: str, name: str, value: Item) -> None:
        memory = take(value.data, f"'{name}'", value.dtype, writes=self._writes)
        own = shape_of(value.data)
        shape, dim = (own, -1) if value.shape is None else (value.shape, value.dim)
        others = [size for i, size in enumerate(shape) if i != dim]
        if dim >= 0 and (len(own) != len(shape) or [size for i, size in enumerate(own) if i != dim] != others):
            raise ValueError(f"'{name}' has shape {own}, which is no part of {tuple(shape)} along dimension {dim}")
        sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        self._keep.append((memory, sizes))
        item = _api.shoal_item(
            struct_size=ctypes.sizeof(_api.shoal_item), section=_text(section, "the section"),
            name=_text(name, "the name"), dtype=memory.dtype, n_dims=len(shape), shape=sizes, dim=dim,
            offset=value.offset if dim >= 0 else 0, length=own[dim] if dim >= 0 else 0, data=memory.address or None,
            may_be_missing=value.may_be_missing, owners=value.owners,
        )  # fmt: skip
        if item.data is None:  # an empty array may have no address
            room = ctypes.create_string_buffer(16)
            self._keep.append(room)
            item.data = ctypes.addressof(room)
        check(lib.shoal_items_add(self.handle, ctypes.byref(item)))

    def _add_value(self, name: str, value: Any) -> None:
        native: Any
        encoded = _text(name, "the name")
        if isinstance(value, str):
            text = value.encode() if self._writes else _text(value, f"'{name}':")
            native = ctypes.create_string_buffer(text, max(len(text) + 1, _STRING_BYTES if self._writes else 0))
            status = lib.shoal_items_add_string(self.handle, encoded, native, len(native))
        elif isinstance(value, numbers.Integral):
            native = ctypes.c_int64(int(value))
            if native.value != int(value):
                raise ValueError(f"'{name}': {value} has more than 64 bits")
            status = lib.shoal_items_add_integer(self.handle, encoded, ctypes.byref(native))
        else:
            native = ctypes.c_double(float(value))
            status = lib.shoal_items_add_real(self.handle, encoded, ctypes.byref(native))
        check(status)
        self._values.append((name, native))

    def put_values(self, state: MutableMapping[str, Any]) -> None:
        """Sets the numbers and strings of the state to what was loaded."""
        for name, native in self._values:
            loaded = native.value.decode() if isinstance(native.value, bytes) else native.value
            kind = type(state[name])
            if not _is_same(state[name], loaded) or not isinstance(loaded, kind):
                state[name] = kind(loaded)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Contexts of FSDP are not freed meanwhile."""
        with contextlib.ExitStack() as stack:
            for context in self._used:
                stack.enter_context(context._uses)
                context.live()
            yield

    def __del__(self) -> None:
        if getattr(self, "handle", 0):
            lib.shoal_items_free(self.handle)


def _is_same(value: Any, loaded: Any) -> bool:
    """Whether a number or string is what was loaded; 0.0 and -0.0 are not the same."""
    is_zero = isinstance(loaded, float) and loaded == 0
    return bool(value == loaded) and not (is_zero and math.copysign(1, value) != math.copysign(1, loaded))


def _call(ranks: World | Group, function: Any, directory: str | os.PathLike[str], items: _List, *arguments: Any) -> None:
    """Calls a function of the library on the group, which cannot be freed meanwhile, nor can contexts of FSDP."""
    group = ranks.group if isinstance(ranks, World) else ranks
    with group._uses, items.in_use():
        native = group._live(), _directory(directory), items.handle, *arguments
        check(_interrupts.call([group], function, *native))


def _directory(path: str | os.PathLike[str]) -> bytes:
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise ValueError(f"the directory {ascii(os.fspath(path))} has a NUL")
    return encoded


# Saving --------------------------------------------------------------------------------------------------------------


def _save_options(
    step: int, format: str, replaces: bool, keep: int, max_file_bytes: int, progress: Progress | None,
    fails_if_busy: bool,
) -> Any:  # fmt: skip
    if format not in _formats:
        raise ValueError(f"format is '{format}': {', '.join(_formats)}")
    return _api.shoal_checkpoint_options(
        struct_size=ctypes.sizeof(_api.shoal_checkpoint_options), step=step, format=_formats[format], replaces=replaces,
        keep=keep, max_file_bytes=max_file_bytes, progress=tuple(progress or Progress()), fails_if_busy=fails_if_busy,
    )  # fmt: skip


def save(
    ranks: World | Group, directory: str | os.PathLike[str], state: Mapping[str, Any], *, step: int = 0,
    format: str = "pieces", replaces: bool = False, keep: int = 0, max_file_bytes: int = 0,
    progress: Progress | None = None,
) -> None:  # fmt: skip
    """Saves a state as the checkpoint ``directory/step-NNNNNNNNN``. Collective; it is on the disk then, or absent.

    All ranks that have a part of the model call it, those of a world or of one group. `format` "whole" has files that
    other tools read. With `keep` only this and the newest of earlier steps stay. An existing checkpoint is an error
    unless it `replaces`.
    """
    items = _List(state, writes=False)
    options = _save_options(step, format, replaces, keep, max_file_bytes, progress, False)
    _call(ranks, lib.shoal_checkpoint_save, directory, items, ctypes.byref(options))


# Saves that were dropped before they had ended, with their worlds' uses. The world waits for them when it is closed.
_dropped: collections.deque[tuple[int, Uses, Uses]] = collections.deque()


def _free(handle: int, uses: Uses, ends: Uses) -> Any:
    """Frees a save that has ended, and gives its status. Closing its world waits for the same thread of the library, so it
    is not done while another thread closes it: None."""
    with uses:
        return None if ends.has_others() else lib.shoal_checkpoint_save_wait(handle)


def _sweep() -> None:
    for _ in range(len(_dropped)):
        handle, uses, ends = _dropped.popleft()
        if not lib.shoal_checkpoint_save_test(handle) or _free(handle, uses, ends) is None:
            _dropped.append((handle, uses, ends))


os.register_at_fork(after_in_child=_dropped.clear)


class Saving:
    """A save in the background. Wait for each; closing the world waits for the others."""

    __slots__ = ("_ends", "_generation", "_handle", "_uses", "_world_uses")

    def __init__(self, handle: int, world: World) -> None:
        self._handle = handle
        self._uses = Uses()
        self._world_uses, self._ends = world._uses, world._ends
        self._generation = generation()
        _sweep()

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        check_generation(self._generation, "save")
        with self._uses:
            handle = self._handle
            return not handle or bool(lib.shoal_checkpoint_save_test(handle))

    def wait(self) -> None:
        """Waits for the end, and raises its error. Again: nothing. After Ctrl-C the save goes on."""
        while not self.done():  # also where another thread waits, who gets the error
            time.sleep(_SLICE_S)
        handle, self._handle = self._handle, 0
        if not handle:
            return
        wait_for_others([self._uses], _PATIENCE_S)  # they are in `done`
        while (status := _free(handle, self._world_uses, self._ends)) is None:
            time.sleep(_SLICE_S)
        check(status)

    def __del__(self) -> None:
        if getattr(self, "_handle", 0) and self._generation == generation():
            _dropped.append((self._handle, self._world_uses, self._ends))


def save_start(
    ranks: World | Group, directory: str | os.PathLike[str], state: Mapping[str, Any], *, step: int = 0,
    format: str = "pieces", replaces: bool = False, keep: int = 0, max_file_bytes: int = 0,
    progress: Progress | None = None, fails_if_busy: bool = False,
) -> Saving:  # fmt: skip
    """``save`` in the background: copies what this rank writes, and returns. The arrays may be changed at once."""
    items = _List(state, writes=False)
    options = _save_options(step, format, replaces, keep, max_file_bytes, progress, fails_if_busy)
    handle = ctypes.c_void_p()
    _call(ranks, lib.shoal_checkpoint_save_start, directory, items, ctypes.byref(options), ctypes.byref(handle))
    return Saving(handle.value or 0, ranks if isinstance(ranks, World) else ranks._world)


# Loading -------------------------------------------------------------------------------------------------------------


def _load_options(
    step: int | None, allows_missing: bool, allows_unexpected: bool, casts: bool, skips_sums: bool, section: str | None,
    progress: Progress | None, allows_other_batch: bool, allows_none: bool, skips_damaged: bool,
) -> Any:  # fmt: skip
    return _api.shoal_checkpoint_load_options(
        struct_size=ctypes.sizeof(_api.shoal_checkpoint_load_options), has_step=step is not None, step=step or 0,
        allows_missing=allows_missing, allows_unexpected=allows_unexpected, casts=casts, skips_sums=skips_sums,
        section=None if section is None else _text(section, "the section"), progress=tuple(progress or Progress()),
        allows_other_batch=allows_other_batch, allows_none=allows_none, skips_damaged=skips_damaged,
    )  # fmt: skip


def load(
    ranks: World | Group, directory: str | os.PathLike[str], state: MutableMapping[str, Any], *,
    step: int | None = None, allows_missing: bool = False, allows_unexpected: bool = False, casts: bool = False,
    skips_sums: bool = False, section: str | None = None, progress: Progress | None = None,
    allows_other_batch: bool = False, allows_none: bool = False, skips_damaged: bool = False,
) -> CheckpointInfo:  # fmt: skip
    """Loads the newest checkpoint of a directory, or that of `step`, into the arrays of a state. Collective.

    Arrays are written in place; numbers and strings of the state are replaced. Everything is checked before anything
    changes. Names that are missing or not expected, and other shapes or dtypes, are errors unless the options allow
    them: `casts` converts floating dtypes. With `allows_none` a directory without a checkpoint is no error, and the
    step is -1. shoal/checkpoint.h explains the rest.
    """
    items = _List(state, writes=True)
    for context in items.contexts:
        context._refuse_views(WHOLE, "load")
    options = _load_options(
        step, allows_missing, allows_unexpected, casts, skips_sums, section, progress, allows_other_batch, allows_none,
        skips_damaged,
    )  # fmt: skip
    info = _api.shoal_checkpoint_info(struct_size=ctypes.sizeof(_api.shoal_checkpoint_info))
    _call(ranks, lib.shoal_checkpoint_load, directory, items, ctypes.byref(options), ctypes.byref(info))
    items.put_values(state)
    return _info(info)


def newest(directory: str | os.PathLike[str]) -> CheckpointInfo:
    """Describes the newest complete checkpoint of a directory. Local; the step is -1 if there is none."""
    info = _api.shoal_checkpoint_info(struct_size=ctypes.sizeof(_api.shoal_checkpoint_info))
    check(lib.shoal_checkpoint_newest(_directory(directory), ctypes.byref(info)))
    return _info(info)


def steps(directory: str | os.PathLike[str]) -> list[int]:
    """The steps of all complete checkpoints of a directory, ascending. Local."""
    count = ctypes.c_size_t()
    check(lib.shoal_checkpoint_list(_directory(directory), None, 0, ctypes.byref(count)))
    found = (ctypes.c_int64 * max(count.value, 1))()
    check(lib.shoal_checkpoint_list(_directory(directory), found, count.value, ctypes.byref(count)))
    return list(found[: count.value])


# Without ranks -------------------------------------------------------------------------------------------------------


class _Found(NamedTuple):
    """What a checkpoint has: tensors by section and name, initial numbers and strings, and names of aliases."""

    path: Path
    sections: dict[str, dict[str, tuple[Dtype, tuple[int, ...]]]]
    values: dict[str, Any]
    aliases: dict[tuple[str, str], str]


def _path_of(directory: Path, step: int) -> Path:
    """The folder of a step, also of one whose replacement was interrupted; or the directory itself."""
    names = f"step-{step:09d}", f".replaced-step-{step:09d}"
    return next((directory / name for name in names if (directory / name).is_dir()), directory)


def _find(directory: Path, step: int | None) -> _Found:
    path = _path_of(directory, newest(directory).step if step is None else step)
    if (path / _INDEX).exists():
        return _read_index(path)
    return _Found(path, {SECTION_MODEL: _read_foreign(path)}, {}, {})


def _read_index(path: Path) -> _Found:
    try:
        index = json.loads((path / _INDEX).read_bytes())
        sections = {
            section: {
                name: (safetensors.dtype_of(entry["dtype"]), tuple(int(size) for size in entry["shape"]))
                for name, entry in tensors.items()
            }
            for section, tensors in index["sections"].items()
        }
        aliases = {
            (section, alias): name
            for section, tensors in index["sections"].items()
            for name, entry in tensors.items()
            for alias in entry["aliases"]
        }
        values: dict[str, Any] = dict.fromkeys(index["integers"], 0)
        values |= dict.fromkeys(index["reals"], 0.0)
        values |= {name: str(text) for name, text in index["strings"].items()}  # as long as the room must be
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidError(f"{path / _INDEX} is damaged: {error}") from None
    return _Found(path, sections, values, aliases)


def _read_foreign(path: Path) -> dict[str, tuple[Dtype, tuple[int, ...]]]:
    files = ["model.safetensors"]
    listed = path / "model.safetensors.index.json"
    if listed.exists():
        try:
            files = sorted(set(json.loads(listed.read_bytes())["weight_map"].values()))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InvalidError(f"{listed} is damaged: {error}") from None
    found: dict[str, tuple[Dtype, tuple[int, ...]]] = {}
    for file in files:
        found |= safetensors.describe(path / file)
    return found


_wide = {Dtype.BF16: Dtype.F32, Dtype.F8_E4M3FN: Dtype.F32, Dtype.F8_E5M2: Dtype.F32}


def read(
    directory: str | os.PathLike[str], *, step: int | None = None, widen: bool = False, skips_sums: bool = False
) -> dict[str, Any]:
    """A checkpoint as a dict, without ranks: the newest of a directory, or that of `step`. Checksums are compared.

    Sections are dicts of numpy arrays; numbers and strings are beside them. numpy has no bf16 and f8: they are uint16
    and uint8, or, with `widen`, float32 of the same values.
    """
    found = _find(Path(directory), step)
    state: dict[str, Any] = dict(found.values)
    items: dict[str, Any] = dict(found.values)
    for section, tensors in found.sections.items():
        if section in found.values:
            raise InvalidError(f"{found.path} has a section and a number or string of the name '{section}': use load")
        state[section], items[section] = {}, {}
        for name, (dtype, shape) in tensors.items():
            kept = _wide.get(dtype, dtype) if widen else dtype
            array = state[section][name] = new_array(shape, kept, "numpy")
            items[section][name] = Item(array, dtype=kept.name.lower())
    with World(1, 0, key=f"read-{uuid.uuid4().hex}") as world:
        load(world.group, found.path, items, casts=widen, skips_sums=skips_sums)
    return {name: items[name] if name in found.values else value for name, value in state.items()}
