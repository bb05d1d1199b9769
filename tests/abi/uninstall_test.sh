#!/bin/bash
# SPDX-License-Identifier: MIT
# `make uninstall` takes away what `make install` has brought, and nothing else: files of others stay, and so do folders that were
# there before, empty or not.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
failed=false
# ctest may itself run below make.
unset MAKEFLAGS MAKELEVEL MFLAGS DESTDIR

# run TARGET VARIABLE...: with what it says in "log".
run() {
    make -C "$SHOAL_TEST_SOURCE_DIR" "$@" >log 2>&1
}

must() {
    run "$@" || { cat log && exit 1; }
}

# The rest of `make install`, which has built everything when it was called once.
again() {
    cmake --install "$SHOAL_TEST_SOURCE_DIR/build" --prefix "$1" >log 2>&1 || { cat log && exit 1; }
}

# is_as_before FOLDER: nothing was added, and nothing is gone.
is_as_before() {
    (cd "$1" && find . | sort) >after
    if ! cmp -s before after; then
        diff before after || true
        failed=true
    fi
}

echo "a prefix that is not there before, with a blank"
mkdir here
(cd here && find . | sort) >before
must install PREFIX="$scratch/here/made/pre fix"
[[ -x here/made/pre\ fix/bin/shoal && -e here/made/pre\ fix/lib/libshoal.so ]]
compgen -G 'here/made/pre fix/lib/shoal/libshoal_transport_socket-*.so' >/dev/null
must uninstall PREFIX="$scratch/here/made/pre fix"
is_as_before here

echo "a prefix with folders and files of others"
mkdir -p used/{bin,lib/pkgconfig,share/doc}
touch used/bin/other used/lib/libother.so
(cd used && find . | sort) >before
again "$scratch/used"
# Twice: the list of the first installation is not lost. One file comes from an earlier version.
touch used/include/shoal/older.h
printf '\n%s' "$scratch/used/include/shoal/older.h" >>"$SHOAL_TEST_SOURCE_DIR/build/install_manifest.txt"
again "$scratch/used"
must uninstall PREFIX="$scratch/used"
is_as_before used

echo "something new in a folder of ours"
again "$scratch/used"
touch used/share/doc/shoal/mine
printf '%s\n' ./share/doc/shoal ./share/doc/shoal/mine >>before
LC_ALL=C sort -o before before
must uninstall PREFIX="$scratch/used"
(cd used && find . | LC_ALL=C sort) >after
cmp before after || { diff before after && failed=true; }

echo "DESTDIR"
mkdir root
(cd root && find . | sort) >before
DESTDIR=$scratch/root again /opt/shoal
[[ -x root/opt/shoal/bin/shoal ]]
# Not there: without DESTDIR it is another place, from which nothing may be taken.
if run uninstall PREFIX=/opt/shoal || ! grep -F "below /opt/shoal" log >/dev/null; then
    echo "uninstall without DESTDIR did not stop, or does not say where it looked"
    cat log
    failed=true
fi
[[ -x root/opt/shoal/bin/shoal ]]
must uninstall DESTDIR="$scratch/root" PREFIX=/opt/shoal
is_as_before root

echo "DESTDIR that is relative, with characters that mean something elsewhere"
DESTDIR='root/a & b|c' again /opt/shoal
[[ -x root/a\ \&\ b\|c/opt/shoal/bin/shoal ]]
must uninstall DESTDIR="$scratch/root/a & b|c" PREFIX=/opt/shoal
is_as_before root

echo "twice"
if run uninstall DESTDIR="$scratch/root" PREFIX=/opt/shoal; then
    echo "a second uninstall found something"
    failed=true
fi
! $failed
