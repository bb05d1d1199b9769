# SPDX-License-Identifier: MIT
"""Safetensors files: named arrays, in the format that PyTorch and transformers use, without ranks.

>>> import numpy, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     write_file(f"{folder}/a.safetensors", {"w": numpy.arange(3.0)}, metadata={"format": "pt"})
...     print(read_file(f"{folder}/a.safetensors"), read_metadata(f"{folder}/a.safetensors"))
{'w': array([0., 1., 2.])} {'format': 'pt'}
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from . import _api
from ._api import Dtype
from ._arrays import find_dtype, take
from ._library import check, lib
from ._views import new_array, shape_of

__all__ = ["describe", "read_file", "read_metadata", "write_file"]

# The names of the format that are not Shoal's in capital letters.
_format_names = {"C64": Dtype.C64, "F8_E4M3": Dtype.F8_E4M3FN}


def dtype_of(name: str) -> Dtype:
    """A dtype by its name in files: "F32", "F8_E4M3"."""
    return _format_names.get(name) or find_dtype(name.lower())


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[int]:
    file = ctypes.c_void_p()
    check(lib.shoal_safetensors_open(os.fsencode(path), ctypes.byref(file)))
    try:
        yield file.value or 0
    finally:
        lib.shoal_safetensors_close(file)


def _entries(file: int) -> Iterator[tuple[int, str, Dtype, tuple[int, ...]]]:
    for index in range(lib.shoal_safetensors_count(file)):
        info = _api.shoal_safetensors_info(struct_size=ctypes.sizeof(_api.shoal_safetensors_info))
        check(lib.shoal_safetensors_get(file, index, ctypes.byref(info)))
        yield index, info.name.decode(), Dtype(info.dtype), tuple(info.shape[: info.n_dims])


def describe(path: str | os.PathLike[str]) -> dict[str, tuple[Dtype, tuple[int, ...]]]:
    """The dtypes and shapes of the tensors of a file, by name."""
    with _opened(path) as file:
        return {name: (dtype, shape) for _, name, dtype, shape in _entries(file)}


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The strings about a file."""
    found: dict[str, str] = {}
    with _opened(path) as file:
        while key := lib.shoal_safetensors_metadata_key(file, len(found)):
            found[key.decode()] = lib.shoal_safetensors_metadata(file, key).decode()
    return found


def read_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The tensors of a file as numpy arrays. bf16 and f8 are uint16 and uint8: ``describe`` tells the dtypes."""
    arrays: dict[str, Any] = {}
    with _opened(path) as file:
        for index, name, dtype, shape in _entries(file):
            arrays[name] = new_array(shape, dtype, "numpy")
            memory = take(arrays[name], name, dtype, writes=True)
            check(lib.shoal_safetensors_read_range(file, index, 0, memory.address, memory.bytes))
    return arrays


def write_file(
    path: str | os.PathLike[str], arrays: Mapping[str, Any], *, dtypes: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Writes arrays to a file, which is complete and on the disk then, or as it was before.

    `dtypes` reads elements of some arrays as another dtype of the same size: ``{"w": "bf16"}`` over uint16.
    """
    memories = {name: take(array, f"'{name}'", (dtypes or {}).get(name)) for name, array in arrays.items()}
    layout = ctypes.c_void_p()
    writer = ctypes.c_void_p()
    check(lib.shoal_safetensors_layout_create(ctypes.byref(layout)))
    try:
        for name, array in arrays.items():
            shape = shape_of(array)
            sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
            check(lib.shoal_safetensors_layout_add(layout, name.encode(), sizes, len(shape), memories[name].dtype))
        for key, value in (metadata or {}).items():
            check(lib.shoal_safetensors_layout_add_metadata(layout, key.encode(), value.encode()))
        check(lib.shoal_safetensors_writer_create(os.fsencode(path), layout, ctypes.byref(writer)))
        for index, memory in enumerate(memories.values()):
            check(lib.shoal_safetensors_write(writer, index, 0, memory.address, memory.bytes))
        check(lib.shoal_safetensors_writer_finish(writer))
    finally:
        lib.shoal_safetensors_writer_close(writer)
        lib.shoal_safetensors_layout_free(layout)
