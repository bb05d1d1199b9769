# SPDX-License-Identifier: MIT
"""``python -m shoal`` is the tool ``shoal``: that of this package, or the one in the path."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    own = Path(__file__).resolve().parent / "bin" / "shoal"
    tool = str(own) if own.exists() else os.environ.get("SHOAL_TOOL", "shoal")
    try:
        os.execvp(tool, [tool, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"python -m shoal: {tool}: {error.strerror}: install Shoal's tool, or set SHOAL_TOOL to its path")


if __name__ == "__main__":
    main()
