# SPDX-License-Identifier: MIT
"""What pytest does not read: the program torch_own.py, and, where there is no torch, all that needs it."""

import importlib.util

collect_ignore = ["tests/torch_own.py"]
if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["shoal/torch/*", "tests/*torch*"]
