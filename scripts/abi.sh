#!/bin/bash
# SPDX-License-Identifier: MIT
# Compares the binary interface of the libraries with that of an older commit, and prints what would break programs that were built
# with the older one: functions that are gone or take other arguments, structs that lie otherwise in memory, enumerators
# with other values. Exit status 1 if there is something. New functions, new enumerators and fields at the end of structs
# that begin with struct_size (docs/support.md) break nothing.
#
#   scripts/abi.sh COMMIT           needs Debian's abigail-tools (scripts/deps.sh abi)
#
# Both are built with debug information below build/abi; a commit that was built before is not built again. The new one is the
# tree as it is, committed or not.
set -euo pipefail

if [[ $# -ne 1 || $1 == -* ]]; then
    echo "usage: scripts/abi.sh COMMIT" >&2
    exit 2
fi
cd "$(dirname "$0")/.."
commit=$(git rev-parse --verify --quiet "$1^{commit}") || { echo "scripts/abi.sh: there is no commit '$1'" >&2 && exit 2; }
command -v abidiff >/dev/null || { echo "scripts/abi.sh: needs abidiff (scripts/deps.sh abi)" >&2 && exit 2; }
libraries=(shoal shoal_nn shoal_compat)
work=$PWD/build/abi
mkdir -p "$work"

# build SOURCE BUILD: the shared libraries that it has, without optimization.
build() {
    local name
    cmake -S "$1" --preset release -B "$2" -DCMAKE_BUILD_TYPE=Abi -DCMAKE_C_FLAGS_ABI='-O0 -g -gdwarf-4' >"$2.log" 2>&1 ||
        { cat "$2.log" >&2 && return 1; }
    for name in "${libraries[@]}"; do
        if cmake --build "$2" --target help | grep -E "^(\.\.\. )?$name\$" >/dev/null; then
            cmake --build "$2" --target "$name" -j "${JOBS:-$(nproc)}" >"$2.log" 2>&1 || { tail -n 40 "$2.log" >&2 && return 1; }
        fi
    done
}

old=$work/$commit
if [[ ! -e $old/done ]]; then
    echo "building $(git log -1 --format='%h (%as, %s)' "$commit")"
    rm -rf "$old"
    mkdir -p "$old/source"
    git archive "$commit" | tar -x -C "$old/source"
    build "$old/source" "$old/build"
    touch "$old/done"
fi
echo "building this tree"
build "$PWD" "$work/tree"

# What is no break: structs that grow at their end and begin with struct_size, as the headers of the older commit say, and the
# insides of those that programs know by pointers only. abidiff would take them for public: it compares names of headers
# without their folders.
api=$old/source/include/shoal-api.json
[[ -e $api ]] || api=include/shoal-api.json
perl -MJSON::PP -0777 -ne '
    my (@growing, @opaque);
    for my $library (@{ decode_json($_)->{libraries} }) {
        push @opaque, map { $_->{name} } @{ $library->{opaque} };
        for my $struct (@{ $library->{structs} }) {
            my $fields = $struct->{fields} // [];
            push @growing, $struct->{name} if @$fields && $fields->[0]{name} eq "struct_size";
        }
    }
    print "[suppress_type]\n  type_kind = struct\n  name_regexp = ^(", join("|", @growing), ")\$\n",
        "  has_data_member_inserted_at = end\n",
        "[suppress_type]\n  type_kind = struct\n  name_regexp = ^(", join("|", @opaque), ")\$\n";
' "$api" >"$work/no_break.abignore"

n_broken=0
for name in "${libraries[@]}"; do
    before=$old/build/lib/lib$name.so
    after=$work/tree/lib/lib$name.so
    if [[ ! -e $before ]]; then
        echo "lib$name: new"
        continue
    fi
    status=0
    abidiff --no-added-syms --suppressions "$work/no_break.abignore" --headers-dir1 "$old/source/include" --headers-dir2 include \
        "$before" "$after" >"$work/$name.txt" || status=$?
    # Bits: 1 an error, 2 a wrong call, 4 a change, 8 a change that certainly breaks.
    if [[ $((status & 3)) -ne 0 ]]; then
        cat "$work/$name.txt" >&2
        exit 2
    fi
    if [[ $status -eq 0 ]]; then
        echo "lib$name: nothing breaks"
    else
        n_broken=$((n_broken + 1))
        echo "lib$name: breaks"
        sed 's/^/    /' "$work/$name.txt"
    fi
done
[[ $n_broken -eq 0 ]]
