# SPDX-License-Identifier: MIT
"""Arrays are used where they are, and what cannot be used is refused before anything starts."""

import ctypes
from array import array

import pytest
import shoal
from shoal import Dtype, _arrays
from shoal._arrays import find_dtype, take
from shoal._library import lib

numpy = pytest.importorskip("numpy")

FORMATS = {
    "float64": Dtype.F64, "float32": Dtype.F32, "float16": Dtype.F16, "int8": Dtype.I8, "int16": Dtype.I16,
    "int32": Dtype.I32, "int64": Dtype.I64, "uint8": Dtype.U8, "uint16": Dtype.U16, "uint32": Dtype.U32,
    "uint64": Dtype.U64, "bool": Dtype.BOOL, "complex64": Dtype.C64, "complex128": Dtype.C128,
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_numpy(name):
    data = numpy.zeros((3, 5), dtype=name)
    memory = take(data, "data")
    assert (memory.address, memory.count, memory.dtype) == (data.ctypes.data, 15, FORMATS[name])


def test_types_that_others_set(monkeypatch):
    # The functions of ctypes.pythonapi are the whole process's.
    for name in ("PyObject_GetBuffer", "PyBuffer_Release", "PyCapsule_New", "PyCapsule_GetPointer"):
        monkeypatch.setattr(getattr(ctypes.pythonapi, name), "argtypes", (ctypes.c_char_p,))
    data = numpy.zeros(3, dtype="f4")
    assert take(data, "data").address == data.ctypes.data

    class Other:
        def __dlpack__(self, **_):
            return data.__dlpack__()

        def __dlpack_device__(self):
            return data.__dlpack_device__()

    assert take(Other(), "data").address == data.ctypes.data


def test_views_begin_where_they_begin():
    data = numpy.zeros((4, 6), dtype="f4")
    assert take(data[2:], "data").address == data.ctypes.data + 48
    assert take(data[1, 2:5], "data").count == 3


@pytest.mark.parametrize("code", "bBhHiIlLqQfd")
def test_array(code):
    data = array(code, [1, 2, 3])
    memory = take(data, "data")
    assert (memory.address, memory.count) == (data.buffer_info()[0], 3)
    assert memory.bytes == 3 * data.itemsize


def test_empty_arrays_have_no_elements():
    for data in (numpy.zeros((0, 4)), array("f"), bytearray()):
        assert take(data, "data", writes=True).count == 0


def test_what_is_not_taken():
    with pytest.raises(ValueError, match="out is not contiguous"):
        take(numpy.zeros((4, 4))[:, 1], "out")
    with pytest.raises(ValueError, match="not contiguous"):
        take(numpy.zeros((4, 3)).T, "out")
    with pytest.raises(ValueError, match="out is read-only"):
        take(b"abc", "out", writes=True)
    with pytest.raises(TypeError, match="data is a list"):
        take([1.0], "data")
    with pytest.raises(TypeError, match="out is a str, not an array: .* op='avg'"):
        take("avg", "out")
    with pytest.raises(TypeError, match="no dtype"):
        take(numpy.zeros(3, dtype=">f4"), "data")
    with pytest.raises(TypeError, match="no dtype"):
        take(numpy.zeros(3, dtype=[("a", "f4")]), "data")


def test_every_dtype_has_a_size():
    for dtype in Dtype:
        assert _arrays._bytes_of[dtype] == lib.shoal_dtype_bytes(dtype)


def test_bf16_over_uint16():
    assert take(numpy.zeros(3, dtype="u1"), "data", "f8_e5m2").dtype == Dtype.F8_E5M2
    assert take(numpy.zeros(3, dtype="u2"), "data", "bf16").dtype == Dtype.BF16
    with pytest.raises(ValueError, match="elements of 4 bytes, bf16 has 2"):
        take(numpy.zeros(3, dtype="f4"), "data", "bf16")
    with pytest.raises(ValueError, match="no dtype 'f33'"):
        find_dtype("f33")


def test_a_buffer_in_use_keeps_its_place():
    data = bytearray(8)
    memory = take(data, "data", writes=True)
    with pytest.raises(BufferError):
        data.extend(b"more")
    del memory
    data.extend(b"more")


def test_torch():
    torch = pytest.importorskip("torch")
    kinds = {
        torch.float32: Dtype.F32, torch.bfloat16: Dtype.BF16, torch.float16: Dtype.F16, torch.bool: Dtype.BOOL,
        torch.int64: Dtype.I64, torch.uint8: Dtype.U8, torch.complex64: Dtype.C64,
    }  # fmt: skip
    for kind, dtype in kinds.items():
        tensor = torch.zeros(3, 4, dtype=kind)
        memory = take(tensor, "data")
        assert (memory.address, memory.count, memory.dtype) == (tensor.data_ptr(), 12, dtype)
    part = torch.zeros(8)[3:6]
    assert take(part, "data").address == part.data_ptr()
    with pytest.raises(ValueError, match=r"requires grad: use .detach\(\)"):
        take(torch.zeros(3, requires_grad=True), "data")
    with pytest.raises(ValueError, match="not contiguous"):
        take(torch.zeros(3, 4).t(), "data")
    assert take(torch.zeros(5, 1).t(), "data").count == 5
    assert take(torch.zeros(3, 0, 2), "data").count == 0  # strides of empty tensors say nothing


def test_nothing_starts_with_a_bad_out():
    with shoal.World() as world:
        before = world.group.sequence
        for out in (numpy.zeros((4, 4))[:, 1], b"0123", numpy.zeros(3)):
            with pytest.raises(ValueError):
                world.group.all_reduce(numpy.zeros(4), out)
        assert world.group.sequence == before
