#!/bin/bash
# SPDX-License-Identifier: MIT
# The tests of the Python package, on the libraries and the tool in build/.
#
#   scripts/test_python.sh                 all of them, and the types
#   scripts/test_python.sh -k works        options of pytest
set -euo pipefail
cd "$(dirname "$0")/.."

# Debian's Python may not be the first in the path.
for python in python3 /usr/bin/python3; do
    if "$python" -c 'import numpy, pytest' 2>/dev/null; then
        break
    fi
done
export SHOAL_LIBRARY=$PWD/build/lib/libshoal.so.0.1 SHOAL_TOOL=$PWD/build/bin/shoal PYTHONPATH=$PWD/python
export PYTHONDONTWRITEBYTECODE=1 SHOAL_TORCH_CACHE=$PWD/build/torch-backend
cd python
mypy --cache-dir=/dev/null
"$python" -m pytest "$@"
