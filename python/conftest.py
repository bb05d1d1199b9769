# SPDX-License-Identifier: MIT
"""What needs torch is left out where there is none."""

import importlib.util

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["shoal/torch/*", "tests/*torch*"]
