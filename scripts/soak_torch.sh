#!/bin/bash
# SPDX-License-Identifier: MIT
# The soak of the backend of torch.distributed, on the libraries in build/: random programs
# (python/tests/torch_programs.py), some of them again and again in one process, where memory must not grow.
#
#   scripts/soak_torch.sh [PROGRAMS [REPEATED]]      default: 1000, and 20 others 12 times
set -euo pipefail
cd "$(dirname "$0")/.."

for python in python3 /usr/bin/python3; do
    if "$python" -c 'import torch' 2>/dev/null; then
        break
    fi
done
export SHOAL_LIBRARY=$PWD/build/lib/libshoal.so.0.1 PYTHONPATH=$PWD/python PYTHONDONTWRITEBYTECODE=1
export SHOAL_TORCH_CACHE=$PWD/build/torch-backend
"$python" python/tests/torch_programs.py --count "${1:-1000}"
"$python" python/tests/torch_programs.py --count "${2:-20}" --first 100000 --repeat 12
