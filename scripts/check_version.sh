#!/bin/bash
# SPDX-License-Identifier: MIT
# The newest version in CHANGELOG.md ("## 0.1.0 ...") is the one of include/shoal/version.h.
#
#   scripts/check_version.sh [ROOT]
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

in_header=$(sed -nE 's/^#define SHOAL_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)$/\2/p' include/shoal/version.h | paste -sd.)
in_changelog=$(sed -nE '/^## \[?[0-9]+\.[0-9]+\.[0-9]+/{s/^## \[?([0-9]+\.[0-9]+\.[0-9]+).*/\1/p;q}' CHANGELOG.md)
if [[ $in_header != "$in_changelog" ]]; then
    echo "CHANGELOG.md starts with '$in_changelog', include/shoal/version.h says '$in_header'" >&2
    exit 1
fi
