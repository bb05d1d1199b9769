# SPDX-License-Identifier: MIT
"""``python -m shoal`` is the tool ``shoal``: that of this package, that of SHOAL_TOOL or beside SHOAL_LIBRARY, or the
one in the path."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def find_tool() -> str:
    own = Path(__file__).resolve().parent / "bin" / "shoal"
    if own.exists():
        return str(own)
    named, library = os.environ.get("SHOAL_TOOL"), os.environ.get("SHOAL_LIBRARY", "")
    beside = Path(library).absolute().parent.parent / "bin" / "shoal"  # of a build folder, or an installed prefix
    return named or (str(beside) if os.sep in library and beside.is_file() else "shoal")


def main() -> None:
    tool = find_tool()
    try:
        os.execvp(tool, [tool, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"python -m shoal: {tool}: {error.strerror}: install Shoal's tool, or set SHOAL_TOOL to its path")


if __name__ == "__main__":
    main()
