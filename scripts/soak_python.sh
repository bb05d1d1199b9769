#!/bin/bash
# SPDX-License-Identifier: MIT
# The soak of the Python package, on the libraries in build/: interpreters that exit with works pending, on 1 and 2 ranks
# (python/tests/exits.py), and random programs (python/tests/random_programs.py), some of them again and again in one
# process, where memory must not grow.
#
#   scripts/soak_python.sh [EXITS [PROGRAMS [REPEATED]]]      default: 1000 of each, 40 of the programs 12 times
set -euo pipefail
cd "$(dirname "$0")/.."

for python in /usr/bin/python3 python3; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        break
    fi
done
export SHOAL_LIBRARY=$PWD/build/lib/libshoal.so.0.1 PYTHONPATH=$PWD/python PYTHONDONTWRITEBYTECODE=1
for ranks in 1 2; do
    "$python" python/tests/exits.py --count "${1:-1000}" --ranks "$ranks"
done
"$python" python/tests/random_programs.py --count "${2:-1000}"
"$python" python/tests/random_programs.py --count "${3:-40}" --first 100000 --repeat 12
