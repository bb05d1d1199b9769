# SPDX-License-Identifier: MIT
"""``python -m shoal.torch build``: compiles the backend now, instead of at its first use."""

from __future__ import annotations

import argparse
import os
import shlex
import sys

from . import building


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m shoal.torch", description="The backend of torch.distributed.")
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="compile the backend, unless that has been done")
    try:
        usual = str(building.cache_folder())
    except building.BuildError:
        usual = "~/.cache/shoal/torch"
    build.add_argument("--folder", help=f"where to keep it, instead of {usual}")
    build.add_argument("--again", action="store_true", help="compile it even if that has been done")
    options = parser.parse_args()
    if options.folder:
        os.environ["SHOAL_TORCH_CACHE"] = options.folder
    try:
        print(building.build(options.again))
    except building.BuildError as error:
        sys.exit(f"python -m shoal.torch: {error}")
    if options.folder:
        settings = [f"SHOAL_TORCH_CACHE={shlex.quote(os.path.abspath(options.folder))}"]
        settings += [f"{name}={shlex.quote(os.environ[name])}" for name in ("CXX", "CXXFLAGS") if os.environ.get(name)]
        print(f"where it is used, set {' '.join(settings)}", file=sys.stderr)


if __name__ == "__main__":
    main()
