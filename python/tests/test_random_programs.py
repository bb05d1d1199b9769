# SPDX-License-Identifier: MIT
"""A sample of the programs and exits that `make soak-python` runs by the thousand."""

from concurrent.futures import ThreadPoolExecutor

import exits
import pytest

pytest.importorskip("numpy")
import random_programs  # noqa: E402

N_PROGRAMS = 20
N_EXITS = 20


def test_random_programs():
    with ThreadPoolExecutor(2) as pool:
        problems = list(pool.map(random_programs.run_program, range(N_PROGRAMS)))
    assert "".join(problems) == ""


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_exits_with_works_pending(n_ranks):
    step = len(exits.STATES) * len(exits.ENDS) // N_EXITS * 2 + 1
    with ThreadPoolExecutor(2) as pool:
        problems = list(pool.map(lambda i: exits.run_exit(i * step + n_ranks, n_ranks), range(N_EXITS // 2)))
    assert "".join(problems) == ""
