# SPDX-License-Identifier: MIT
"""How fast a Python thread computes while another one of its process waits in Shoal, compared with computing alone.

    bench/python_threads.py [ROUNDS [SECONDS]]      on the library that SHOAL_LIBRARY names

Each line is the median over rounds of counts with a waiting thread / counts without one, both of SECONDS; a round
measures them one after the other. "main" waits in the main thread, which comes back ten times a second for Ctrl-C.
"""

import asyncio
import statistics
import sys
import threading
import time
from array import array

import shoal


def compute(seconds):
    """Counts in pure Python: how far it gets."""
    counted = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(1000):
            counted += 1
    return counted


def compute_in_thread(seconds, out):
    out.append(compute(seconds))


def receive(group):
    group.recv(array("d", [0.0]), 0, 1)


async def receive_by_await(group):
    await group.recv_start(array("d", [0.0]), 0, 1)


WAITS = {
    "recv": (receive, lambda group: group.send(array("d", [0.0]), 0, 1)),
    "await": (lambda group: asyncio.run(receive_by_await(group)), lambda group: group.send(array("d", [0.0]), 0, 1)),
    "Store.get": (lambda group: group.world.store.get("key"), lambda group: group.world.store.set("key", b"1")),
}


def measure(group, wait, end, in_main, seconds):
    """Counts while another thread waits."""
    out = []

    def use():
        compute_in_thread(seconds, out)
        end(group)

    if in_main:
        worker = threading.Thread(target=use)
        worker.start()
        wait(group)
    else:
        worker = threading.Thread(target=wait, args=(group,))
        worker.start()
        use()
    worker.join()
    group.world.store.delete("key")
    return out[0]


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.5
    with shoal.World() as world:
        for name, (wait, end) in WAITS.items():
            for in_main in (False, True):
                ratios = [measure(world.group, wait, end, in_main, seconds) / compute(seconds) for _ in range(rounds)]
                where = "main" if in_main else "a thread"
                print(f"{name:10} in {where:9} {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
