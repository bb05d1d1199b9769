# SPDX-License-Identifier: MIT
"""What scripts/make_python.pl makes agrees with the C compiler."""

import ctypes

import pytest
from shoal import _api
from shoal._library import lib


@pytest.mark.parametrize("struct", _api.SIZES, ids=lambda struct: struct.__name__)
def test_structs_have_the_sizes_of_c(struct):
    assert (ctypes.sizeof(struct), ctypes.alignment(struct)) == _api.SIZES[struct]


def test_every_function_is_in_the_library():
    for name in _api.FUNCTIONS:
        assert getattr(lib, name) is not None
