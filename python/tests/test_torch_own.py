# SPDX-License-Identifier: MIT
"""PyTorch's own tests of torch.distributed, those for CPU tensors, on this backend (see torch_own.py)."""

import json
import os
import subprocess
import sys
from pathlib import Path

from shoal.torch import building

N_SHARDS = 2
# What does not pass, and why. One that passes is an error here, so that the list stays true.
EXPECTED = {}


def test_distributed_test():
    building.build()
    runner = str(Path(__file__).with_name("torch_own.py"))
    shards = [
        subprocess.Popen([sys.executable, runner, "run", str(shard), str(N_SHARDS)], stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        for shard in range(N_SHARDS)
    ]  # fmt: skip
    texts = [shard.communicate(timeout=900)[0] for shard in shards]
    results = [json.loads(line[len("RESULT ") :]) for text in texts for line in text.splitlines() if "RESULT " in line]
    failed = {result["test"]: result["why"] for result in results if result["outcome"] == "fail"}
    assert {name: why for name, why in failed.items() if name not in EXPECTED} == {}
    assert not [name for name in EXPECTED if name not in failed]
    assert [shard.returncode for shard in shards] == [0] * N_SHARDS
    assert sum(result["outcome"] == "ok" for result in results) >= 90
