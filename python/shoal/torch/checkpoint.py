# SPDX-License-Identifier: MIT
"""Shoal's checkpoints of PyTorch state dicts: saved by all ranks together, loaded on any number of ranks.

>>> import tempfile, torch
>>> from shoal.torch import checkpoint
>>> state = {"model": torch.nn.Linear(3, 2).state_dict(), "epoch": 7}
>>> with tempfile.TemporaryDirectory() as folder:
...     checkpoint.save(state, folder, step=100)
...     fresh = {"model": torch.nn.Linear(3, 2).state_dict(), "epoch": 0}
...     print(checkpoint.load(fresh, folder).step, fresh["epoch"])
...     print(torch.equal(fresh["model"]["weight"], checkpoint.read(folder)["model"]["weight"]))
100 7
True

A state is a dict as ``torch.distributed.checkpoint`` takes it: nested dicts, lists and tuples of tensors, DTensors,
numbers, strings and None. Objects at its top that have ``state_dict`` and ``load_state_dict`` are asked for theirs.
Each rank writes and reads its own parts. Nothing is pickled.

``save``, ``save_start`` and ``load`` are collectives of a process group with backend "shoal"; a program without process
groups is one rank. ``Reader`` is for ``torch.distributed.checkpoint.load``, and works with any backend.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from .. import _library, checkpoints
from .._api import SECTION_MODEL
from .._uses import Uses
from ..checkpoints import Alias, CheckpointInfo, Item, Progress, Saving
from ..errors import Error, InvalidError, StateError
from ..worlds import World
from . import _backend_of, building
from ._states import (
    TREE, Part, Refused, Tree, as_bits, compare_values, decode, decode_text, dotted, dtype_of, is_leaf, leaves_of,
    local_of, put_values, torch_dtype_of, values_of,
)  # fmt: skip

try:
    from torch.distributed.checkpoint.metadata import (
        BytesStorageMetadata, ChunkStorageMetadata, Metadata, TensorProperties, TensorStorageMetadata,
    )  # fmt: skip
    from torch.distributed.checkpoint.planner import LoadItemType
    from torch.distributed.checkpoint.storage import StorageReader
except ImportError:  # before torch 2
    StorageReader = object

__all__ = ["Reader", "load", "read", "save", "save_start"]

_Path = str | os.PathLike[str]
_T = TypeVar("_T")


# Ranks ---------------------------------------------------------------------------------------------------------------


class _Borrowed:
    """The group of a process group, as the functions of shoal.checkpoints use groups."""

    def __init__(self, backend: Any) -> None:
        self._kept = building.load().borrow(backend)
        self._handle: int = self._kept.handle
        self._uses = Uses()
        # Of its world, which the backend closes, and no thread through this package.
        self._world, self._ends = self, Uses()

    def _live(self) -> int:
        return self._handle


_alone: World | None = None


def _world_alone() -> World:
    """A world of this process, which is closed when the interpreter exits."""
    global _alone
    if _alone is None or not _alone.is_open:
        _alone = World(1, 0, key=f"alone-{uuid.uuid4().hex}")
    return _alone


class _Ranks:
    """The ranks that save or load together."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.is_alone = group is None and not (dist.is_available() and dist.is_initialized())
        self.n_ranks: int = 1 if self.is_alone else dist.get_world_size(group)
        self.rank: int = 0 if self.is_alone else dist.get_rank(group)
        if self.rank < 0:
            raise ValueError("this rank is not a member of the group")

    def open(self) -> Any:
        """What the functions of shoal.checkpoints take."""
        if self.is_alone:
            return _world_alone()
        group = self.group if self.group is not None else dist.distributed_c10d._get_default_group()
        backend = _backend_of(group)
        if backend is None or not (building.is_loaded() and building.load().is_ours(backend)):
            raise StateError('the process group has no backend "shoal" for CPU tensors: pass '
                             'group=dist.new_group(backend="shoal"), made once by all ranks')  # fmt: skip
        return _Borrowed(backend)

    def gather(self, value: Any) -> list[Any]:
        """What each rank gives, on all ranks."""
        if self.n_ranks == 1:
            return [value]
        found: list[Any] = [None] * self.n_ranks
        dist.all_gather_object(found, value, group=self.group)
        return found


def _problem_of(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def _refuse(problems: list[str | None]) -> None:
    """Raises the first of the problems of all ranks."""
    found = [(rank, problem) for rank, problem in enumerate(problems) if problem is not None]
    if found:
        rank, text = found[0]
        everywhere = len(found) == len(problems) and len({text for _, text in found}) == 1
        raise Refused(text if everywhere else f"rank {rank}: {text}")


def _together(ranks: _Ranks, make: Callable[[], _T]) -> _T:
    """Does something on all ranks; an error of one is raised on all of them."""
    made: list[_T] = []
    problem = None
    try:
        made.append(make())
    except Exception as error:
        problem = _problem_of(error)
    _refuse(ranks.gather(problem))
    return made[0]


class _Arguments(NamedTuple):
    """Arguments of a load that decide what the ranks do together, and the checkpoints that the first rank sees."""

    folder: str
    step: int | None
    skips_damaged: bool
    candidates: list[_Candidate]

    def agree(self, other: _Arguments) -> bool:
        return self[:3] == other[:3]


class _Candidate(NamedTuple):
    """A checkpoint that a load may take: a folder of checkpoints with a step, or the folder of one."""

    folder: str
    step: int | None


class _Note(NamedTuple):
    """What a rank tells the others before a save or load begins."""

    problem: str | None
    digest: bytes
    ties: list[tuple[str, str, str]]
    unknown: list[tuple[str, str]]
    arguments: _Arguments | None


class _Peeked(NamedTuple):
    """What the first rank has seen of a checkpoint: numbers and strings of the kinds, and as long as, those in it."""

    values: dict[str, Any]
    integers: dict[tuple[str, str], str]  # tensors that are single integers
    problem: str | None


def _agree(
    ranks: _Ranks, make: Callable[[], tuple[Tree, _Arguments | None]], saves: bool
) -> tuple[Tree, list[_Note]]:
    """Flattens the state on all ranks; an error of one is raised on all of them, and so is a difference."""
    tree: Tree | None = None
    lines: list[str] = []
    note = _Note(None, b"", [], [], None)
    try:
        tree, arguments = make()
        lines = tree.lines + (tree.values if saves else [])
        digest = hashlib.sha256("\n".join(lines).encode()).digest()
        note = _Note(None, digest, *_ties_of(tree), arguments)
    except Exception as error:
        note = note._replace(problem=_problem_of(error))
    notes: list[_Note] = ranks.gather(note)
    _refuse([note.problem for note in notes])
    if any(note.digest != notes[0].digest for note in notes):
        raise Refused(_difference(ranks.gather(lines)))
    assert tree is not None
    return tree, notes


def _difference(lines: list[list[str]]) -> str:
    for rank, found in enumerate(lines):
        here, there = set(found), set(lines[0])
        if only := sorted(here - there):
            return f"the ranks have different state dicts: rank {rank} has {only[0]}, rank 0 does not"
        if only := sorted(there - here):
            return f"the ranks have different state dicts: rank 0 has {only[0]}, rank {rank} does not"
    return "the ranks have different state dicts: their entries have different orders"


# What is refused -----------------------------------------------------------------------------------------------------


def _leaves(value: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The tensors and values of a state dict with the keys that lead to them."""
    if isinstance(value, torch.Tensor) or is_leaf(value):
        yield keys, value
        return
    for key, entry in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from _leaves(entry, (*keys, key))


def _shown(keys: tuple[Any, ...]) -> str:
    return "".join(f"[{ascii(key)}]" for key in keys)


def _is_text(value: str) -> bool:
    """Whether it can be encoded: a lone surrogate cannot."""
    return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)


def _check_names(state: Mapping[Any, Any]) -> None:
    """Refuses names that a checkpoint cannot have, and two names that would be one there."""
    seen: dict[str, tuple[Any, ...]] = {}
    for keys, leaf in _leaves(state):
        path = dotted(keys)
        if "\0" in path:
            raise Refused(f"{_shown(keys)}: a name cannot have a NUL")
        if not _is_text(path):
            raise Refused(f"{_shown(keys)}: a name cannot have a lone surrogate")
        if len(keys) == 1 and isinstance(leaf, str) and not _is_text(leaf):
            raise Refused(f"'{path}' is a string with a lone surrogate")
        other = seen.setdefault(path, keys)
        if other is not keys:
            raise Refused(f"{_shown(other)} and {_shown(keys)} would both be '{path}'")


def _check_sizes(part: Part) -> None:
    """Refuses a DTensor whose local tensor is not what its placements say."""
    local = local_of(part.whole)
    if tuple(local.shape) != part.sizes and (local.numel() > 0 or math.prod(part.sizes) > 0):
        raise Refused(f"'{part.path}' has a part of {list(local.shape)} on this rank, but its placements say "
                      f"{list(part.sizes)}")  # fmt: skip


def _overlaps(tensor: Any) -> bool:
    """Whether elements of a tensor share memory, as those of an expanded one do."""
    dims = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1)
    last = 0  # element of the dimensions before
    for stride, size in dims:
        if stride == 0:
            return bool(tensor.numel() > 0)
        if stride <= last:
            break
        last += stride * (size - 1)
    else:
        return False
    places = torch.zeros(1, dtype=torch.int64)
    for stride, size in dims:
        places = (places.unsqueeze(-1) + torch.arange(size) * stride).reshape(-1)
    return bool(len(places.unique()) < tensor.numel())


def _check_memory(part: Part) -> None:
    """Refuses a tensor that cannot be written to."""
    if _overlaps(local_of(part.whole)):
        raise Refused(f"elements of '{part.path}' share memory, as in an expanded tensor: it cannot be loaded into")


def _check_values(state: Any, inner: Any, names: set[str], keys: tuple[Any, ...] = ()) -> None:
    """Refuses a mapping that is read-only and has one of these values, or a tuple, which would be made again."""
    if isinstance(inner, torch.Tensor) or is_leaf(inner):
        return
    is_mapping = isinstance(inner, Mapping)
    is_fixed = is_mapping and not isinstance(state, MutableMapping)
    for key, entry in inner.items() if is_mapping else enumerate(inner):
        path = (*keys, key)
        is_value = is_leaf(entry) and dotted(path) in names
        if is_fixed and (is_value or (isinstance(entry, tuple) and not is_leaf(entry))):
            raise Refused(f"{_shown(path)} cannot be replaced: it is in a {type(state).__name__}, which is read-only")
        _check_values(entry, entry, names, path)


# Tied tensors --------------------------------------------------------------------------------------------------------


def _ties_of(tree: Tree) -> tuple[list[tuple[str, str, str]], list[tuple[str, str]]]:
    """Tensors of a section that share memory: (section, first name, other name). And those that are empty here."""
    seen: dict[tuple[Any, ...], str] = {}
    ties, unknown = [], []
    for part in tree.parts:
        local = local_of(part.whole)
        if local.numel() == 0:
            unknown.append((part.section, part.name))
            continue
        place = (part.section, local.data_ptr(), part.shape, local.shape, local.stride(), part.dtype, part.dims)
        first = seen.setdefault(place, part.name)
        if first != part.name:
            ties.append((part.section, first, part.name))
    return ties, unknown


def _merge_ties(notes: list[_Note]) -> dict[tuple[str, str], str]:
    """(section, name) -> the name that it is tied to: on all ranks that can tell, and on at least one."""
    found: dict[tuple[str, str], str] = {}
    for section, first, name in dict.fromkeys(tie for note in notes for tie in note.ties):
        can_tell = [note for note in notes if (section, name) not in note.unknown]
        if all((section, first, name) in note.ties for note in can_tell):
            found[section, name] = first
    return found


# Items ---------------------------------------------------------------------------------------------------------------


def _gathered(part: Part) -> Part:
    """A tensor that is cut along several dimensions, gathered along all but one of them. Collective."""
    whole = part.whole
    sizes = [part.shape[dim] for dim in part.dims]
    kept = part.dims[sizes.index(max(sizes))]
    if whole.device_mesh.get_coordinate() is None:  # this rank is not in the mesh
        shape = tuple(0 if i == kept else size for i, size in enumerate(part.shape))
        return part._replace(whole=torch.empty(shape, dtype=whole.dtype), dims=(kept,), sizes=shape)
    from torch.distributed.tensor import Replicate

    placements = [Replicate() if getattr(p, "dim", kept) != kept else p for p in whole.placements]
    moved = whole.detach().redistribute(placements=placements)
    chunk = moved.__create_chunk_list__()[0]
    return part._replace(whole=moved, dims=(kept,), offsets=tuple(chunk.offsets), sizes=tuple(chunk.sizes))


def _is_here(local: Any) -> bool:
    return local.device.type == "cpu" and bool(local.is_contiguous()) and not (local.is_conj() or local.is_neg())


def _item(memory: Any, part: Part) -> Item:
    if part.dim is None:
        return Item(as_bits(memory), dtype=part.dtype)
    return Item(as_bits(memory), part.shape, dim=part.dim, offset=part.offsets[part.dim], dtype=part.dtype)


def _item_to_save(part: Part) -> Item:
    part = _gathered(part) if len(part.dims) > 1 else part
    local = local_of(part.whole)
    if not _is_here(local):
        local = local.cpu().resolve_conj().resolve_neg().contiguous()
    return _item(local.reshape(part.sizes), part)


def _item_to_load(part: Part, dtype: Any = None, is_trial: bool = False) -> tuple[Item, Callable[[], None] | None]:
    """An item, and what copies it to the tensor if it is not in its memory. That of a trial is in memory of its own."""
    local = local_of(part.whole)
    if _is_here(local) and len(part.dims) < 2 and dtype is None and not is_trial:
        return _item(local.reshape(part.sizes), part), None
    dim = part.dim  # slices along it are read whole
    shape = [part.sizes[i] if i == dim else size for i, size in enumerate(part.shape)]
    room = torch.empty(shape, dtype=local.dtype if dtype is None else dtype)
    box = tuple(
        slice(None) if i == dim else slice(offset, offset + size)
        for i, (offset, size) in enumerate(zip(part.offsets, part.sizes))
    )
    if not is_trial:
        if local.is_inference() and not torch.is_inference_mode_enabled():
            raise Refused(f"'{part.path}' is a tensor of torch.inference_mode, which cannot be copied to outside of it")
        room[box].copy_(local.reshape(part.sizes))  # what is missing keeps its values

    def copy() -> None:
        local.copy_(room[box].reshape(local.shape))

    read = part if dtype is None else part._replace(dtype=dtype_of(room, part.path))
    return _item(room, read), copy


def _add_item(
    sections: dict[str, Any], part: Part, ties: Mapping[tuple[str, str], str], item: Callable[[], Item]
) -> None:  # fmt: skip
    tied = ties.get((part.section, part.name))
    sections.setdefault(part.section, {})[part.name] = Alias(tied) if tied is not None else item()


# Saving --------------------------------------------------------------------------------------------------------------


def _is_stateful(value: Any) -> bool:
    return not isinstance(value, Mapping) and hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _opened(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state with the state dicts of the objects at its top."""
    if not isinstance(state, Mapping):
        raise Refused(f"the state is a {type(state).__name__}, not a dict")
    return {key: value.state_dict() if _is_stateful(value) else value for key, value in state.items()}


def _flatten(state: Mapping[Any, Any]) -> Tree:
    _check_names(state)
    tree = Tree(state)
    for part in tree.parts:
        _check_sizes(part)
    return tree


def _to_save(ranks: _Ranks, state: Mapping[str, Any], folder: _Path, *options: Any) -> dict[str, Any]:
    def make() -> tuple[Tree, None]:
        checkpoints._directory(folder)
        checkpoints._save_options(*options)  # so that a wrong argument is an error on all ranks
        return _flatten(_opened(state)), None

    tree, notes = _agree(ranks, make, saves=True)
    ties = _merge_ties(notes)

    def fill() -> dict[str, Any]:
        items: dict[str, Any] = {}
        for part in tree.parts:
            _add_item(items, part, ties, lambda part=part: _item_to_save(part))  # type: ignore[misc]
        return items

    return _together(ranks, fill) | tree.natives | {TREE: tree.text}


def save(
    state: Mapping[str, Any], folder: _Path, *, step: int = 0, group: Any = None, format: str = "pieces",
    replaces: bool = False, keep: int = 0, max_file_bytes: int = 0, progress: Progress | None = None,
) -> None:  # fmt: skip
    """Saves a state dict as the checkpoint ``folder/step-NNNNNNNNN``. All ranks of the group call it.

    When it returns, the checkpoint is on the disk, or an error was raised on all ranks and what was there before still
    is. `format` "whole" has files that other tools read, one for each dict at the top of the state. With `keep` only
    this and the newest of earlier steps stay. An existing checkpoint is an error unless it `replaces`.

    Plain tensors and values are those of the group's first rank, or of any: they must be the same on all ranks.
    """
    ranks = _Ranks(group)
    borrowed = ranks.open()
    items = _to_save(ranks, state, folder, step, format, replaces, keep, max_file_bytes, progress, False)
    checkpoints.save(
        borrowed, folder, items, step=step, format=format, replaces=replaces, keep=keep,
        max_file_bytes=max_file_bytes, progress=progress,
    )  # fmt: skip


def save_start(
    state: Mapping[str, Any], folder: _Path, *, step: int = 0, group: Any = None, format: str = "pieces",
    replaces: bool = False, keep: int = 0, max_file_bytes: int = 0, progress: Progress | None = None,
    fails_if_busy: bool = False,
) -> Saving:  # fmt: skip
    """``save`` in the background: copies what this rank writes, and returns. The tensors may be changed at once.

    Training goes on on the same group meanwhile. Wait for each save, before the next one and before the end.
    """
    ranks = _Ranks(group)
    borrowed = ranks.open()
    items = _to_save(ranks, state, folder, step, format, replaces, keep, max_file_bytes, progress, fails_if_busy)
    return checkpoints.save_start(
        borrowed, folder, items, step=step, format=format, replaces=replaces, keep=keep,
        max_file_bytes=max_file_bytes, progress=progress, fails_if_busy=fails_if_busy,
    )  # fmt: skip


# Loading -------------------------------------------------------------------------------------------------------------


# How the library says that the checkpoint is damaged whose folder it was given.
_DAMAGED = "only 1 damaged checkpoint found; the newest: "


def _candidates(folder: Path, step: int | None, skips_damaged: bool) -> list[_Candidate]:
    """The checkpoints that a load may take, the newest first. If there is none, the load says so."""
    if step is not None:
        return [_Candidate(str(folder), step)]
    try:
        steps = checkpoints.steps(folder)
    except (Error, OSError):  # it is a checkpoint itself, and damaged
        steps = []
    paths = [str(checkpoints._path_of(folder, step)) for step in reversed(steps)] or [str(folder)]
    return [_Candidate(path, None) for path in (paths if skips_damaged else paths[:1])]


def _peek(candidate: _Candidate) -> _Peeked:
    """What the first rank sees of a checkpoint."""
    try:
        found = checkpoints._find(Path(candidate.folder), candidate.step)
    except (Error, ValueError, OSError) as error:
        return _Peeked({}, {}, str(error))
    integers = {
        (section, name): dtype.name.lower()
        for section, tensors in found.sections.items()
        for name, (dtype, shape) in tensors.items()
        if not shape and dtype.name.lower() in ("i64", "i32")
    }
    return _Peeked(found.values if TREE in found.values else {}, integers, None)


def load(
    state: MutableMapping[str, Any], folder: _Path, *, step: int | None = None, group: Any = None,
    allows_missing: bool = False, allows_unexpected: bool = False, casts: bool = False, skips_sums: bool = False,
    section: str | None = None, progress: Progress | None = None, allows_other_batch: bool = False,
    allows_none: bool = False, skips_damaged: bool = False,
) -> CheckpointInfo:  # fmt: skip
    """Loads the newest checkpoint of a folder, or that of `step`, into a state dict. All ranks of the group call it.

    Tensors are written in place, however they are cut now; values of the state are replaced, and objects at its top get
    ``load_state_dict``. Everything is checked before anything changes. Names that are missing or not expected, and
    other shapes or dtypes, are errors on all ranks unless the options allow them; `casts` converts floating dtypes, and
    an optimizer's counts of updates. `section` loads one dict of the top only. With `allows_none` a folder without a
    checkpoint is no error, and the step is -1. With `skips_damaged` the checkpoint before a damaged one is loaded.

    Files of Hugging Face (``model.safetensors``) can be loaded, too. They have only the section "model".
    """
    ranks = _Ranks(group)
    borrowed = ranks.open()
    inner: dict[str, Any] = {}

    def make() -> tuple[Tree, _Arguments]:
        checkpoints._directory(folder)
        checkpoints._load_options(
            step, allows_missing, allows_unexpected, casts, skips_sums, section, progress, allows_other_batch,
            allows_none, skips_damaged,
        )  # fmt: skip
        inner.update(_opened(state))
        tree = _flatten(inner)
        for part in tree.parts:
            if section in (None, part.section):
                _check_memory(part)
        candidates = _candidates(Path(folder), step, skips_damaged) if ranks.rank == 0 else []
        return tree, _Arguments(os.fspath(folder), step, skips_damaged, candidates)

    tree, notes = _agree(ranks, make, saves=False)
    parts = [part for part in tree.parts if section in (None, part.section)]
    ties = _merge_ties(notes)

    def find_problem(peeked: _Peeked) -> None:
        if section is not None:
            return
        root = decode_text(peeked.values[TREE]) if peeked.values else None
        if root is not None:
            problem = compare_values(inner, root, allows_missing, allows_unexpected)
            if problem:
                raise Refused(f"{os.fspath(folder)}: {problem}")
        names = values_of(root, peeked.values) if root is not None else tree.natives
        _check_values(state, inner, set(names))

    def attempt(candidate: _Candidate, peeked: _Peeked, is_trial: bool) -> CheckpointInfo:
        """Loads a checkpoint; a trial only finds out whether it can be read."""
        items, copies = _together(ranks, lambda: _to_load(parts, ties, peeked if casts else None, is_trial))
        # Kinds of numbers are those of the checkpoint, if it was saved here: 0 may have become 0.5.
        values = {} if section is not None or peeked.problem else peeked.values or dict(tree.natives)
        loaded = items | values
        info = checkpoints.load(
            borrowed, candidate.folder, loaded, step=candidate.step, allows_missing=allows_missing,
            allows_unexpected=allows_unexpected or is_trial, casts=casts, skips_sums=skips_sums, section=section,
            progress=progress, allows_other_batch=allows_other_batch, allows_none=allows_none,
            skips_damaged=skips_damaged,
        )  # fmt: skip
        if info.step >= 0 and not is_trial:
            for copy in copies:
                copy()
            natives = {name: loaded[name] for name in values}
            put_values(inner, values_of(decode_text(natives.pop(TREE)), natives) if TREE in natives else natives)
            _put(state, inner)
        return info

    arguments = [note.arguments for note in notes if note.arguments is not None]
    if not all(other.agree(arguments[0]) for other in arguments):  # the library says how they differ
        return attempt(_Candidate(os.fspath(folder), step), _Peeked({}, {}, "the arguments differ"), True)
    damaged: list[str] = []
    for candidate in arguments[0].candidates:
        peeked: _Peeked = ranks.gather(_peek(candidate) if ranks.rank == 0 else None)[0]
        refused: Exception | None = Refused(peeked.problem) if peeked.problem else None
        try:
            if refused is None:
                _together(ranks, lambda peeked=peeked: find_problem(peeked))  # type: ignore[misc]
        except Refused as error:
            if not skips_damaged:
                raise
            refused = error
        # Values count only if the checkpoint is not damaged: a trial tells.
        try:
            info = attempt(candidate, peeked, refused is not None)
        except InvalidError as error:
            _, is_damaged, text = str(error).partition(_DAMAGED)
            if not is_damaged:
                raise
            damaged.append(text)
            continue
        if refused is not None and info.step >= 0:
            raise refused
        return info._replace(n_damaged=len(damaged))
    count = "1 damaged checkpoint" if len(damaged) == 1 else f"{len(damaged)} damaged checkpoints"
    raise InvalidError(f"{os.fspath(folder)}: only {count} found; the newest: {damaged[0]}")


def _to_load(
    parts: list[Part], ties: Mapping[tuple[str, str], str], peeked: _Peeked | None, is_trial: bool
) -> tuple[dict[str, Any], list[Callable[[], None]]]:
    items: dict[str, Any] = {}
    copies: list[Callable[[], None]] = []

    def make(part: Part) -> Item:
        stored = peeked.integers.get((part.section, part.name)) if peeked and not part.shape else None
        other = torch.int64 if stored == "i64" else torch.int32 if stored == "i32" else None
        is_other = other is not None and part.whole.is_floating_point()
        item, copy = _item_to_load(part, other if is_other else None, is_trial)
        if copy:
            copies.append(copy)
        return item

    for part in parts:
        _add_item(items, part, ties, lambda part=part: make(part))  # type: ignore[misc]
    return items, copies


def _put(state: MutableMapping[str, Any], inner: Mapping[str, Any]) -> None:
    for key, value in inner.items():
        if _is_stateful(state[key]):
            state[key].load_state_dict(value)
        elif state[key] is not value:
            state[key] = value


# Without ranks -------------------------------------------------------------------------------------------------------


class _Checkpoint:
    """A checkpoint as one process sees it."""

    def __init__(self, folder: _Path, step: int | None) -> None:
        self.found = checkpoints._find(Path(folder), step)
        text = self.found.values.get(TREE, "")
        self.root = decode_text(text) if text else None
        clash = next((name for name in self.found.sections if name in self.found.values), None)
        if clash is not None:
            raise Refused(f"{self.found.path} has a section and a number or string of the name '{clash}'")

    def tensors(self) -> dict[str, dict[str, Any]]:
        """New tensors for all that the checkpoint has."""
        return {
            section: {name: torch.empty(shape, dtype=torch_dtype_of(dtype)) for name, (dtype, shape) in tensors.items()}
            for section, tensors in self.found.sections.items()
        }

    def load(self, sections: Mapping[str, Mapping[str, Item]], skips_sums: bool = False) -> dict[str, Any]:
        """Reads into these items; gives the numbers and strings."""
        loaded: dict[str, Any] = {**sections, **self.found.values}
        with _reading:
            checkpoints.load(
                _world_alone(), self.found.path, loaded, allows_unexpected=True, casts=True, skips_sums=skips_sums
            )
        return {name: loaded[name] for name in self.found.values}


# One load at a time on the world of this process.
_reading = threading.Lock()


def read(folder: _Path, *, step: int | None = None, skips_sums: bool = False) -> dict[str, Any]:
    """The newest checkpoint of a folder, or that of `step`, as the state dict that was saved, with whole tensors.

    Local: no process group is needed, and none is used. Checksums are compared. Checkpoints that were not written by
    this module, and files of Hugging Face, have a dict for each section, ``{"model": {...}}``, and numbers and strings.
    """
    checkpoint = _Checkpoint(folder, step)
    tensors = checkpoint.tensors()
    items = {
        section: {name: _item_of(tensor, name) for name, tensor in inner.items()} for section, inner in tensors.items()
    }
    values = checkpoint.load(items, skips_sums)
    if checkpoint.root is None:
        return {**tensors, **values}
    for (section, alias), name in checkpoint.found.aliases.items():
        tensors[section][alias] = tensors[section][name]
    state: dict[str, Any] = decode(decode_text(values.pop(TREE)), tensors, values)
    return state


def _item_of(tensor: Any, name: str) -> Item:
    return Item(as_bits(tensor), dtype=dtype_of(tensor, name))


# For torch.distributed.checkpoint ------------------------------------------------------------------------------------


class _Entry(NamedTuple):
    """A tensor of a checkpoint, by the name that DCP has for it."""

    section: str
    name: str
    dtype: Any
    shape: tuple[int, ...]


class Reader(StorageReader):  # type: ignore[misc]
    """Lets ``torch.distributed.checkpoint.load`` read Shoal's checkpoints, and files of Hugging Face.

        dcp.load(state, storage_reader=Reader("run7"))            # the newest, or step=1000

    Works with process groups of any backend, and without one. Each rank reads what its parts need, and compares the
    checksums of what it reads. Other dtypes are converted, as DCP does. Names are those of the state dict that was
    saved. Where another program wrote the checkpoint they are SECTION.NAME, and for the section "model" also NAME.
    """

    def __init__(self, folder: _Path, *, step: int | None = None) -> None:
        if StorageReader is object:
            raise ImportError(f"torch.distributed.checkpoint.load needs torch 2, and this is torch {torch.__version__}")
        self._folder = folder
        self._step = step
        self._checkpoint: _Checkpoint | None = None
        self._tensors: dict[str, _Entry] = {}
        self._paths: dict[str, tuple[str | int, ...]] = {}
        self._values: dict[str, Any] = {}

    @property
    def checkpoint_id(self) -> _Path:
        """The folder."""
        return self._folder

    def reset(self, checkpoint_id: _Path | None = None) -> None:
        """A load begins."""
        if checkpoint_id is not None:
            self._folder = checkpoint_id
        self._checkpoint = None

    def read_metadata(self, *_: Any, **__: Any) -> Any:
        """What the checkpoint has."""
        self._checkpoint = _Checkpoint(self._folder, self._step)
        self._tensors, self._paths = {}, {}
        self._values = self._checkpoint.load({})
        if self._checkpoint.root is None:
            self._name_foreign(self._checkpoint)
        else:
            self._name_own(self._checkpoint)
        described: dict[str, Any] = {key: BytesStorageMetadata() for key in self._values}
        for key, entry in self._tensors.items():
            size = torch.Size(entry.shape)
            chunk = ChunkStorageMetadata(offsets=torch.Size([0] * len(size)), sizes=size)
            properties = TensorProperties(dtype=torch_dtype_of(entry.dtype))
            described[key] = TensorStorageMetadata(properties, size, [chunk])
        return Metadata(described, planner_data=self._paths)

    def _add(self, path: tuple[str | int, ...], section: str, name: str, checkpoint: _Checkpoint) -> None:
        name = checkpoint.found.aliases.get((section, name), name)
        self._tensors[dotted(path)] = _Entry(section, name, *checkpoint.found.sections[section][name])
        self._paths[dotted(path)] = path

    def _name_own(self, checkpoint: _Checkpoint) -> None:
        values = values_of(checkpoint.root, self._values)
        for path, leaf in leaves_of(checkpoint.root):
            if isinstance(leaf, tuple):
                self._add(path, leaf[0], leaf[1], checkpoint)
            else:
                self._paths[dotted(path)] = path
        self._values = values

    def _name_foreign(self, checkpoint: _Checkpoint) -> None:
        self._paths = {name: (name,) for name in self._values}
        names = [(section, name) for section, tensors in checkpoint.found.sections.items() for name in tensors]
        names += checkpoint.found.aliases
        for section, name in names:
            self._add((section, name), section, name, checkpoint)
        for section, name in names:
            if section == SECTION_MODEL and name not in self._tensors:
                self._add((name,), section, name, checkpoint)

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """Nothing is to be done."""

    def prepare_local_plan(self, plan: Any) -> Any:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """The plans as they are."""
        return plans

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Reads what a plan asks for."""
        assert self._checkpoint is not None
        wanted = [request for request in plan.items if request.type != LoadItemType.BYTE_IO]
        while wanted:  # a name can be read once in a round: tied tensors need several
            items: dict[str, dict[str, Item]] = {}
            commits, left = [], []
            for request in wanted:
                entry = self._tensors[request.storage_index.fqn]
                if entry.name in items.setdefault(entry.section, {}):
                    left.append(request)
                    continue
                items[entry.section][entry.name], commit = self._read_item(request, entry, planner)
                commits.append(commit)
            self._checkpoint.load(items)
            for commit in commits:
                commit()
            wanted = left
        for request in plan.items:
            if request.type == LoadItemType.BYTE_IO:
                self._give_value(request, planner)
        done: Any = torch.futures.Future()
        done.set_result(None)
        return done

    def _read_item(self, request: Any, entry: _Entry, planner: Any) -> tuple[Item, Callable[[], None]]:
        target = planner.resolve_tensor(request)
        place = target.detach()
        for dim, (offset, size) in enumerate(zip(request.dest_offsets, request.lengths)):
            if place.shape[dim] != size:
                place = place.narrow(dim, offset, size)
        key, dtype = request.dest_index.fqn, torch_dtype_of(entry.dtype)
        offsets, sizes = tuple(request.storage_offsets), tuple(request.lengths)
        dims = tuple(i for i, size in enumerate(sizes) if size != entry.shape[i])
        part = Part(entry.section, entry.name, key, place, dtype_of(place, key), entry.shape, dims, offsets, sizes)
        # The library converts floating dtypes, torch the others.
        is_same = place.dtype == dtype or (place.is_floating_point() and dtype.is_floating_point)
        item, copy = _item_to_load(part, None if is_same else dtype)

        def commit() -> None:
            if copy:
                copy()
            planner.commit_tensor(request, target)

        return item, commit

    def _give_value(self, request: Any, planner: Any) -> None:
        content = io.BytesIO()
        torch.save(self._values[request.storage_index.fqn], content)
        content.seek(0)
        planner.load_bytes(request, content)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: _Path) -> bool:
        """Whether it can be a folder."""
        return isinstance(checkpoint_id, (str, os.PathLike))
