#!/bin/bash
# SPDX-License-Identifier: MIT
# Removes what was installed from a build below a prefix: files that its lists name, then the folders that the installation made,
# if they are empty. What somebody else has put there stays.
#
#   scripts/uninstall.sh BUILD PREFIX       PREFIX begins with DESTDIR, if the installation had one
set -euo pipefail

if [[ $# -ne 2 || $2 != /* ]]; then
    echo "usage: scripts/uninstall.sh BUILD PREFIX (an absolute path)" >&2
    exit 2
fi
build=$1
prefix=${2%/}
record=$build/installed
if [[ ! -e $record/root.txt ]]; then
    echo "make uninstall: nothing was installed from $build" >&2
    exit 1
fi

# All files that were installed, by this installation and earlier ones.
list_files() {
    local root file
    if [[ -e $build/install_manifest.txt ]]; then
        root=$(<"$record/root.txt")
        # CMake ends the last line without a newline.
        while IFS= read -r file || [[ -n $file ]]; do
            [[ -z $file ]] || printf '%s%s\n' "$root" "$file"
        done <"$build/install_manifest.txt"
    fi
    [[ ! -e $record/files.txt ]] || cat "$record/files.txt"
}
mapfile -t files < <(list_files | sort -u)
mapfile -t made < <(sort -u "$record/folders.txt" 2>/dev/null)

# is_made FOLDER: by an installation.
is_made() {
    local folder
    for folder in "${made[@]}"; do
        [[ $1 != "$folder" && $1 != "$folder"/* ]] || return 0
    done
    return 1
}

declare -A folders=()
kept=()
failed=()
n_removed=0
for file in "${files[@]}"; do
    if [[ $file != "$prefix"/* ]]; then
        kept+=("$file")
        continue
    fi
    if [[ -f $file || -L $file ]]; then
        rm -f -- "$file" || { failed+=("$file") && continue; }
        n_removed=$((n_removed + 1))
    fi
    folder=${file%/*}
    while [[ -n $folder ]] && is_made "$folder"; do
        folders[$folder]=1
        folder=${folder%/*}
    done
done
if [[ ${#kept[@]} -eq ${#files[@]} ]]; then
    echo "make uninstall: nothing was installed from $build below $prefix; the last installation has ${files[0]:-no files}" >&2
    exit 1
fi

# The deepest first. One that is not empty holds what others have put there.
n_folders=0
while IFS= read -r folder; do
    if [[ -d $folder ]] && rmdir -- "$folder" 2>/dev/null; then
        n_folders=$((n_folders + 1))
    fi
done < <(printf '%s\n' "${!folders[@]}" | sort -r)

# What is left, to be removed another time.
print_existing() {
    local path
    for path in "$@"; do
        [[ ! -e $path && ! -L $path ]] || printf '%s\n' "$path"
    done
}
print_existing "${kept[@]}" "${failed[@]}" >"$record/files.txt"
print_existing "${made[@]}" >"$record/folders.txt"
rm -f "$build/install_manifest.txt"
echo "removed $n_removed files and $n_folders folders below $prefix"
if [[ ${#failed[@]} -gt 0 ]]; then
    echo "make uninstall: could not remove ${#failed[@]} files, ${failed[0]} the first" >&2
    exit 1
fi
