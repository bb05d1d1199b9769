#!/bin/bash
# SPDX-License-Identifier: MIT
# Writes debian/*.symbols, from which Debian's tools learn which version of a library a program needs. Names come from the
# maps of the libraries (src/shoal.map and the others). A name that has a version there keeps it; a new one gets the
# version of include/shoal/version.h. A name that has gone goes there, too: that is a break, see scripts/abi.sh.
#
#   scripts/make_symbols.sh [--check] [ROOT]     --check writes nothing, and fails if something would change
set -euo pipefail

is_check=false
if [[ ${1:-} == --check ]]; then
    is_check=true
    shift
fi
cd "${1:-$(dirname "$0")/..}"
export LC_ALL=C

version=$(sed -nE 's/^#define SHOAL_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)$/\2/p' include/shoal/version.h | paste -sd.)
# Before 1.0 the minor version is part of the library's name (CMakeLists.txt).
soversion=${version%%.*}
if [[ $version == 0.* ]]; then
    soversion=${version%.*}
fi

# print_symbols NAME MAP FILE: what FILE should be; it may be absent.
print_symbols() {
    local package=lib${1//_/-}$soversion old=$3
    [[ -e $old ]] || old=/dev/null
    echo "lib$1.so.$soversion $package #MINVER#"
    echo "* Build-Depends-Package: libshoal-dev"
    awk -v version="$version" '
        FNR == 1 { n_files++ }
        n_files == 1 && /^ / { since[$1] = $2; next }
        n_files == 2 && /^[A-Z_0-9.]+ \{$/ { node = $1; names[++n] = node "@" node }
        n_files == 2 && /^ +[A-Za-z_][A-Za-z0-9_]*;$/ { sub(/;/, ""); names[++n] = $1 "@" node }
        END {
            for (i = 1; i <= n; i++)
                print " " names[i], names[i] in since ? since[names[i]] : version
        }' <(cat "$old" <(echo)) "$2" | sort -u
}

failed=false
while read -r name map; do
    [[ -e $map ]] || continue
    file=debian/lib${name//_/-}$soversion.symbols
    text=$(print_symbols "$name" "$map" "$file")
    if [[ -e $file && $text == "$(<"$file")" ]]; then
        continue
    fi
    if $is_check; then
        echo "$file does not fit $map: run scripts/make_symbols.sh" >&2
        failed=true
    else
        echo "$text" >"$file"
    fi
done <<'EOT'
shoal src/shoal.map
shoal_nn nn/shoal_nn.map
shoal_compat compat/shoal_compat.map
EOT
! $failed
