#!/bin/bash
# SPDX-License-Identifier: MIT
# Checks the layering of the tree over its #include lines.
#
#   scripts/check_layers.sh [ROOT]
#
# A folder of src/ may include itself and the folders before it in the list below. Public headers, examples
# and nn/ may include public headers only, besides what lies in their own folder. Nothing of Shoal itself may
# include shoal_nn/, the headers of the companion library.
set -euo pipefail

root=${1:-$(dirname "$0")/..}
cd "$root"

layers=(base tensor kernel transport comm op autograd collective module parallel checkpoint graph pass lower)
declare -A level
for i in "${!layers[@]}"; do
    level[${layers[$i]}]=$i
done

violations=0
report() {
    echo "$1" >&2
    violations=$((violations + 1))
}

# Prints "file:line:path" for every #include "path" below the folders.
list_includes() {
    local folders=() folder
    for folder in "$@"; do
        [[ -d $folder ]] && folders+=("$folder")
    done
    [[ ${#folders[@]} -gt 0 ]] || return 0
    { grep -rnE --include='*.[ch]' --include='*.def' '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' \
        "${folders[@]}" || true; } | sed -E 's/^([^:]*:[0-9]+):[^"]*"([^"]*)".*/\1:\2/'
}

check_src_include() {
    local file=$1 line=$2 path=$3
    local from=${file#src/}
    from=${from%%/*}
    local to=${path%%/*}
    [[ -n ${level[$from]:-} ]] || return 0 # its folder is reported below
    if [[ $to == shoal ]]; then
        return 0
    fi
    if [[ $path != */* || -z ${level[$to]:-} ]]; then
        report "$file:$line: \"$path\" is not a full path below src/"
    elif [[ ${level[$to]} -gt ${level[$from]} ]]; then
        report "$file:$line: $from may not include \"$path\": $to is a higher layer"
    fi
}

while IFS=: read -r file line path; do
    check_src_include "$file" "$line" "$path"
done < <(list_includes src)

while IFS=: read -r file line path; do
    if [[ $path == shoal_nn/* && $file != include/shoal/* ]]; then
        continue
    fi
    if [[ $path != shoal/* && ! ($file == nn/* && -e nn/$path) ]]; then
        report "$file:$line: \"$path\" is not a public header"
    fi
done < <(list_includes include examples nn)

if [[ -d src ]]; then
    while read -r file; do
        folder=${file#src/}
        folder=${folder%%/*}
        if [[ -z ${level[$folder]:-} ]]; then
            report "$file: src/$folder is not in the list of layers"
        fi
    done < <(find src -name '*.[ch]')
fi

if [[ $violations -ne 0 ]]; then
    echo "layers: $violations violations" >&2
    exit 1
fi
