# SPDX-License-Identifier: MIT
"""State dicts of PyTorch as what Shoal's checkpoints have: named tensors in sections, and values.

A state dict is a tree of dicts, lists and tuples. Its leaves are tensors and values: numbers, strings, booleans, None,
and lists of these. Tensors become items of a section; the rest of the tree is a text, which describes where each tensor
belongs. A save writes both, so that a checkpoint can be read without a state dict to load into.

Everything here is local to a rank and changes nothing but, at the end of a load, the values of a state dict.
"""

from __future__ import annotations

import json
import math
import numbers
import re
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

import torch

from .._api import SECTION_MODEL, Dtype
from .._views import _torch_names

# The string of a checkpoint that has the tree.
TREE = "shoal.torch"
_VERSION = 1
_INT64 = range(-(1 << 63), 1 << 63)
_section = re.compile(r"[A-Za-z0-9_-]{1,63}")
# c128 is left out: the file format does not have it.
_dtypes: dict[Any, str] = {
    getattr(torch, name): dtype.name.lower()
    for dtype, name in _torch_names.items()
    if dtype != Dtype.C128 and hasattr(torch, name)
}
_bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Refused(ValueError):
    """A state dict has something that a checkpoint cannot have."""


# Tensors -------------------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A tensor of a state dict, and the part of it that this rank has: a box of indices."""

    section: str
    name: str
    path: str
    whole: Any
    dtype: str
    shape: tuple[int, ...]
    # Dimensions along which ranks have parts, the same on all ranks.
    dims: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def dim(self) -> int | None:
        """The dimension along which this rank has a part, or None if it has the whole."""
        if self.dims:
            return self.dims[0]
        return 0 if self.sizes != self.shape else None  # it is on a mesh without this rank

    def describe(self) -> str:
        """What all ranks must agree on."""
        cut = f", cut along {', '.join(map(str, self.dims))}" if self.dims else ""
        return f"'{self.path}': {self.dtype} {list(self.shape)}{cut}"


def dtype_of(tensor: Any, path: str) -> str:
    """Shoal's name of a tensor's dtype."""
    found = _dtypes.get(tensor.dtype)
    if found is None or tensor.is_quantized:
        raise Refused(f"'{path}' has elements of {tensor.dtype}, which the file format does not have")
    return found


def torch_dtype_of(dtype: Dtype) -> Any:
    """torch's dtype of Shoal's."""
    return getattr(torch, _torch_names[dtype])


def as_bits(tensor: Any) -> Any:
    """The same memory as integers: DLPack does not export every dtype."""
    return tensor if tensor.dtype in (torch.uint8, torch.int64) else tensor.view(_bits[tensor.element_size()])


def _is_cut(tensor: Any) -> bool:
    return hasattr(tensor, "placements") and hasattr(tensor, "to_local")


def _cuts_of(tensor: Any, path: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The dimensions along which a DTensor is cut, and the offsets and sizes of this rank's part."""
    for placement in tensor.placements:
        if not (placement.is_replicate() or hasattr(placement, "dim")):
            raise Refused(f"'{path}' has the placement {placement!r}: redistribute it to Shard or Replicate first")
    dims = tuple(sorted({placement.dim for placement in tensor.placements if hasattr(placement, "dim")}))
    if tensor.device_mesh.get_coordinate() is None:  # this rank is not in the mesh
        if not tensor.shape:
            raise Refused(f"'{path}' is a single number on a mesh that has not all ranks of the group")
        empty = dims[0] if dims else 0
        return dims, (0,) * len(tensor.shape), tuple(0 if i == empty else size for i, size in enumerate(tensor.shape))
    for dim in dims:
        if any(hasattr(p, "split_factor") and p.dim == dim for p in tensor.placements):
            n_parts = math.prod(
                tensor.device_mesh.size(i) for i, p in enumerate(tensor.placements) if getattr(p, "dim", None) == dim
            )
            if tensor.shape[dim] % n_parts:
                raise Refused(f"'{path}' is cut twice along dimension {dim}, which has {tensor.shape[dim]} indices: that "
                              f"is no multiple of the {n_parts} parts")  # fmt: skip
    chunks = tensor.__create_chunk_list__()
    if len(chunks) != 1:
        raise Refused(f"'{path}' has {len(chunks)} parts on this rank")
    return dims, tuple(chunks[0].offsets), tuple(chunks[0].sizes)


def _part_of(section: str, name: str, path: str, tensor: Any) -> Part:
    if type(tensor).__name__ == "ShardedTensor":
        raise Refused(f"'{path}' is a ShardedTensor: use DTensors (fully_shard)")
    dtype = dtype_of(tensor, path)
    if tensor.layout != torch.strided:
        raise Refused(f"'{path}' has the layout {tensor.layout}: only dense tensors can be saved and loaded")
    if tensor.device.type == "meta":
        raise Refused(f"'{path}' is on the meta device and has no memory: call to_empty first")
    shape = tuple(tensor.shape)
    cuts = _cuts_of(tensor, path) if _is_cut(tensor) else ((), (0,) * len(shape), shape)
    return Part(section, name, path, tensor, dtype, shape, *cuts)


def local_of(tensor: Any) -> Any:
    """This rank's memory of a tensor, without autograd."""
    tensor = tensor.detach()
    local = tensor.to_local() if _is_cut(tensor) else tensor
    return local.wait() if hasattr(local, "wait") else local


# Trees ---------------------------------------------------------------------------------------------------------------


def is_leaf(value: Any) -> bool:
    """Whether it is a value: no tensor, and no dict or tensor in it."""
    if isinstance(value, (list, tuple)):
        return all(is_leaf(entry) for entry in value)
    return not isinstance(value, (Mapping, torch.Tensor))


def _native(value: Any) -> int | float | str | None:
    """A value that Shoal's checkpoints have by themselves: an integer of 64 bits, a real or a string."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return None if "\0" in value else value
    if isinstance(value, numbers.Integral):
        return int(value) if int(value) in _INT64 else None
    return float(value) if isinstance(value, numbers.Real) else None


class Tree:
    """A state dict, flattened."""

    def __init__(self, state: Mapping[Any, Any]) -> None:
        self.parts: list[Part] = []
        self.natives: dict[str, int | float | str] = {}
        self.n_leaves = 0
        self._paths: dict[tuple[str, str], str] = {}
        self._lines: list[str] = []
        if not isinstance(state, Mapping):
            raise Refused(f"the state is a {type(state).__name__}, not a dict")
        entries = [[self._key(key, ""), self._encode_top(key, value)] for key, value in state.items()]
        self._root = {"dict": entries}
        clash = next((part for part in self.parts if part.section in self.natives), None)
        if clash:
            raise Refused(f"'{clash.section}' is a number or string, and '{clash.path}' needs a section of this name")

    @property
    def text(self) -> str:
        """The tree without its tensors."""
        return json.dumps({"version": _VERSION, "state": self._root}, separators=(",", ":"))

    @property
    def lines(self) -> list[str]:
        """What all ranks must agree on: names, shapes and dtypes."""
        return [*[part.describe() for part in self.parts], *self._lines]

    @property
    def values(self) -> list[str]:
        """What they must agree on for a save, too: one of them saves the numbers and strings for all."""
        found = [*leaves_of(self._root), *(((name,), value) for name, value in self.natives.items())]
        return [f"'{'.'.join(map(str, path))}' = {node!r}" for path, node in found if not isinstance(node, tuple)]

    def _encode_top(self, key: Any, value: Any) -> Any:
        path = str(key)
        if path == TREE:
            raise Refused(f"'{TREE}' is a name that Shoal uses itself")
        if isinstance(value, torch.Tensor):
            return self._add(SECTION_MODEL, path, path, value)
        if is_leaf(value):
            native = _native(value)
            self._note(path)
            if native is None:
                return self._encode_value(path, value)
            self.natives[path] = native
            return {"value": path}
        if not _section.fullmatch(path):
            raise Refused(f"'{path}' is the name of a dict at the top: it has 1 to 63 letters, digits, '_' and '-'")
        # In the state of an optimizer names are as Shoal's own: PATH.exp_avg.
        is_optimizer = isinstance(value, Mapping) and {str(name) for name in value} == {"state", "param_groups"}
        return self._encode(path, "", path, value, skips="state" if is_optimizer else None)

    def _encode(self, section: str, name: str, path: str, value: Any, skips: str | None = None) -> Any:
        if isinstance(value, torch.Tensor):
            return self._add(section, name, path, value)
        if isinstance(value, Mapping):
            entries = []
            for key, entry in value.items():
                inner = name if key == skips else f"{name}.{key}" if name else str(key)
                entries.append([self._key(key, path), self._encode(section, inner, f"{path}.{key}", entry)])
            return {"dict": entries}
        if is_leaf(value):
            self._note(path)
            return self._encode_value(path, value)
        prefix = f"{name}." if name else ""
        listed = [self._encode(section, f"{prefix}{i}", f"{path}.{i}", entry) for i, entry in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": listed}

    def _encode_value(self, path: str, value: Any) -> Any:
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, (list, tuple)):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {kind: [self._encode_value(f"{path}.{i}", entry) for i, entry in enumerate(value)]}
        if isinstance(value, numbers.Integral):
            return int(value)
        if isinstance(value, numbers.Real):
            return float(value)
        raise Refused(f"'{path}' is a {type(value).__name__}: a checkpoint has tensors, numbers, strings and None, and "
                      "dicts, lists and tuples of them")  # fmt: skip

    def _key(self, key: Any, path: str) -> str | int:
        if isinstance(key, (str, int)) and not isinstance(key, bool):
            return key
        raise Refused(f"'{path}' has the key {key!r}: keys are strings or integers")

    def _note(self, path: str) -> None:
        self.n_leaves += 1
        self._lines.append(f"'{path}'")

    def _add(self, section: str, name: str, path: str, tensor: Any) -> Any:
        if (section, name) in self._paths:
            other = self._paths[section, name]
            raise Refused(f"'{other}' and '{path}' would both be '{name}' of section '{section}'")
        self._paths[section, name] = path
        self.parts.append(_part_of(section, name, path, tensor))
        return {"tensor": [section, name]}


# Reading a tree ------------------------------------------------------------------------------------------------------


def decode_text(text: str) -> Any:
    """The root of the tree of a checkpoint."""
    try:
        found = json.loads(text)
        version, root = found["version"], found["state"]
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"the string '{TREE}' of the checkpoint is damaged: {error}") from None
    if version != _VERSION:
        raise Refused(f"the string '{TREE}' of the checkpoint is of version {version}: this Shoal reads {_VERSION}")
    return root


def decode(node: Any, tensors: Mapping[str, Mapping[str, Any]], natives: Mapping[str, Any]) -> Any:
    """The state dict of a tree."""
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    if kind == "tensor":
        return tensors[content[0]][content[1]]
    if kind == "value":
        return natives[content]
    if kind == "dict":
        return {key: decode(entry, tensors, natives) for key, entry in content}
    listed = [decode(entry, tensors, natives) for entry in content]
    return tuple(listed) if kind == "tuple" else listed


def _is_value(node: Any) -> bool:
    if not isinstance(node, dict):
        return True
    ((kind, content),) = node.items()
    return kind == "value" or (kind in ("list", "tuple") and all(_is_value(entry) for entry in content))


def leaves_of(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """The leaves of a tree with their paths, tensors as (section, name) and values as nodes."""
    if _is_value(node):
        yield path, node
        return
    ((kind, content),) = node.items()
    if kind == "tensor":
        yield path, (content[0], content[1])
        return
    for key, entry in content if kind == "dict" else enumerate(content):
        yield from leaves_of(entry, (*path, key))


def dotted(path: tuple[str | int, ...]) -> str:
    """A path as a text, which is DCP's name of a leaf."""
    return ".".join(map(str, path))


# Values --------------------------------------------------------------------------------------------------------------


def _values_in(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _values_in(entry, f"{path}.{key}" if path else str(key))
    elif is_leaf(value):
        yield path
    elif not isinstance(value, torch.Tensor):
        for i, entry in enumerate(value):
            yield from _values_in(entry, f"{path}.{i}")


def values_of(root: Any, natives: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a tree by their paths."""
    return {
        dotted(path): decode(node, {}, natives) for path, node in leaves_of(root) if not isinstance(node, tuple)
    }  # fmt: skip


def compare_values(
    state: Mapping[Any, Any], root: Any, allows_missing: bool, allows_unexpected: bool
) -> str | None:  # fmt: skip
    """What is wrong with the values of a checkpoint for this state dict, or None."""
    here = list(_values_in(state, ""))
    there = [dotted(path) for path, node in leaves_of(root) if not isinstance(node, tuple)]
    problems = []
    missing, unexpected = sorted(set(here) - set(there)), sorted(set(there) - set(here))
    if missing and not allows_missing:
        problems.append(f"{len(missing)} values are missing in the checkpoint: {_list(missing)}")
    if unexpected and not allows_unexpected:
        problems.append(f"{len(unexpected)} values are not expected: {_list(unexpected)}")
    return "; ".join(problems) or None


def _list(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:8]) + (", ..." if len(names) > 8 else "")


def put_values(value: Any, values: Mapping[str, Any], path: str = "") -> Any:
    """Replaces the values in a state dict by those of these paths, in place; a tuple with tensors is made again."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, Mapping):
        for key, entry in value.items():
            found = put_values(entry, values, f"{path}.{key}" if path else str(key))
            if found is not entry:
                if not isinstance(value, MutableMapping):
                    raise Refused(f"'{path}' is a {type(value).__name__}, whose values cannot be replaced")
                value[key] = found
        return value
    if is_leaf(value):
        return values.get(path, value)
    listed = [put_values(entry, values, f"{path}.{i}") for i, entry in enumerate(value)]
    if isinstance(value, tuple):
        return type(value)(*listed) if hasattr(value, "_fields") else tuple(listed)
    value[:] = listed
    return value
