#!/bin/bash
# SPDX-License-Identifier: MIT
# The release libraries: what they export, how large they are, what they need, and whether the soname is
# right.
set -euo pipefail

lib=$SHOAL_TEST_RELEASE_DIR/lib
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=false
fail() {
    echo "$1"
    failed=true
}

for file in libshoal.so libshoal.a libshoal_compat.so libshoal_compat.a libshoal_nn.so libshoal_nn.a; do
    if [[ ! -e $lib/$file ]]; then
        echo "$lib/$file is missing: run make first"
        exit 1
    fi
done

"$SHOAL_TEST_SOURCE_DIR/scripts/check_symbols.sh" --lib "$lib" || fail "exported names differ"

if ! nm -D --defined-only "$lib/libshoal.so" | grep ' shoal_version@@SHOAL_0\.1$' >/dev/null; then
    fail "shoal_version is not exported under the version SHOAL_0.1"
fi

# The tool has libshoal inside and exports its functions, to modules. Others, such as a malloc, would take the place of
# those that libraries call.
interposed=$(nm -D --defined-only "$SHOAL_TEST_RELEASE_DIR/bin/shoal" |
    awk '$2 ~ /[TWi]/ && $3 !~ /^(shoal_.*|_start|_init|_fini|data_start)$/ { print $3 }')
[[ -z $interposed ]] || fail "the tool exports ${interposed//$'\n'/ }"

strip -o "$scratch/stripped.so" "$lib/libshoal.so"
bytes=$(stat -c %s "$scratch/stripped.so")
echo "libshoal.so stripped: $bytes bytes"
[[ $bytes -lt 2097152 ]] || fail "libshoal.so stripped is not under 2 MiB"

# The soname carries the minor version too until 1.0.
version_part() { sed -nE "s/^#define SHOAL_VERSION_$1 ([0-9]+)$/\1/p" "$SHOAL_TEST_SOURCE_DIR/include/shoal/version.h"; }
soversion=$(version_part MAJOR)
[[ $soversion != 0 ]] || soversion=0.$(version_part MINOR)

# check_library FILE NEEDED: what it needs, with what those need; its soname, its segments.
check_library() {
    local file=$1 allowed=" $2 " needed name soname tls
    needed=$(ldd "$lib/$file" | awk '{ print $1 }')
    echo "$file needs: ${needed//$'\n'/ }"
    while read -r name; do
        case $name in
        linux-vdso.so.1 | */ld-linux-*) ;; # the kernel and the loader themselves
        *) [[ $allowed == *" $name "* ]] || fail "$file needs $name" ;;
        esac
    done <<<"$needed"
    soname=$(objdump -p "$lib/$file" | awk '$1 == "SONAME" { print $2 }')
    [[ $soname == "$file.$soversion" ]] || fail "soname '$soname', expected $file.$soversion"
    if readelf -lW "$lib/$file" | grep 'GNU_STACK' | grep 'RWE' >/dev/null; then
        fail "$file wants an executable stack"
    fi
    # A loader has room for little more where programs load the library while they run.
    tls=$(readelf -lW "$lib/$file" | awk '$1 == "TLS" { print $6 }')
    ((${tls:-0} <= 1024)) || fail "$file has $((tls)) bytes of variables of threads, more than 1024"
    if ! readelf -d "$lib/$file" | grep NODELETE >/dev/null; then
        fail "$file would be taken out of memory by dlclose"
    fi
    if readelf -d "$lib/$file" | grep TEXTREL >/dev/null; then
        fail "$file has text relocations"
    fi
}

check_library libshoal.so "libc.so.6 libm.so.6 libjansson.so.4 libxxhash.so.0"
check_library libshoal_compat.so "libc.so.6 libm.so.6 libjansson.so.4 libxxhash.so.0 libshoal.so.$soversion"
# No BLAS: it is looked for at run time.
check_library libshoal_nn.so "libc.so.6 libm.so.6 libjansson.so.4 libxxhash.so.0 libshoal.so.$soversion"

! $failed
