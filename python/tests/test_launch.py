# SPDX-License-Identifier: MIT
"""Ranks as processes: results, exceptions with their tracebacks, deaths."""

import os
import signal

import pytest
import shoal


def test_results_in_rank_order():
    assert shoal.launch(lambda world, a, b: (world.rank, a + b), 3, 1, 2) == [(0, 3), (1, 3), (2, 3)]


def fail(world):
    if world.rank == 1:
        raise KeyError("the reason")
    world.group.barrier()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_exception_arrives_with_its_traceback(method):
    with pytest.raises(KeyError, match="the reason") as caught:
        shoal.launch(fail, 3, timeout=60.0, method=method)
    assert "in fail" in str(caught.value.__cause__) and "rank 1" in str(caught.value.__cause__)


def test_a_rank_that_dies_is_named():
    def die(world):
        if world.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        world.group.barrier()

    with pytest.raises(shoal.LaunchError, match="rank 2 was killed by signal 9") as caught:
        shoal.launch(die, 3, timeout=60.0)
    assert caught.value.rank == 2


def test_the_others_name_it_too():
    def die(world):
        if world.rank == 0:
            os._exit(3)
        with pytest.raises(shoal.PeerError) as caught:
            world.group.barrier()
        assert caught.value.ranks == (0,)

    with pytest.raises(shoal.LaunchError, match="rank 0 exited with status 3"):
        shoal.launch(die, 2, timeout=60.0)


def test_what_cannot_be_sent():
    with pytest.raises(TypeError, match="rank 0: what it gives cannot be sent"):
        shoal.launch(lambda world: (lambda: 0), 1)
    with pytest.raises(ValueError, match="n_ranks is 0"):
        shoal.launch(fail, 0)


def test_errors_are_pickled_whole():
    def refuse(world):
        world.make_group([5])

    with pytest.raises(shoal.InvalidError) as caught:
        shoal.launch(refuse, 1)
    assert caught.value.status == shoal.Status.ERR_INVALID and "5" in caught.value.text


def test_nothing_is_left_behind():
    before = set(os.listdir("/dev/shm"))
    shoal.launch(lambda world: world.group.barrier(), 3)
    assert set(os.listdir("/dev/shm")) <= before
