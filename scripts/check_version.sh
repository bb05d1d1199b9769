#!/bin/bash
# SPDX-License-Identifier: MIT
# The newest version in CHANGELOG.md ("## 0.1.0 ...") is the one of include/shoal/version.h. So is that of the package
# (debian/changelog), and the name of the library that the number of the modules' interface belongs to.
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

# Before 1.0 the minor version is part of the library's name (CMakeLists.txt).
name=libshoal.so.${in_header%%.*}
if [[ $in_header == 0.* ]]; then
    name=libshoal.so.${in_header%.*}
fi
if ! grep -E "^#define TRANSPORT_INTERFACE [0-9]+ /\* $name \*/\$" src/transport/transport.h >/dev/null; then
    echo "src/transport/transport.h: TRANSPORT_INTERFACE is not that of $name: modules of two versions would have one name" >&2
    exit 1
fi
in_package=$(sed -nE '1s/^shoal \(([0-9.]+)\) .*/\1/p' debian/changelog)
if [[ $in_header != "$in_package" ]]; then
    echo "debian/changelog starts with '$in_package', include/shoal/version.h says '$in_header'" >&2
    exit 1
fi
