#!/bin/bash
# SPDX-License-Identifier: MIT
# The manual keeps up with the tool: every command has its place, every option of the library and of the commands is
# on its page, and no page has an error.
set -euo pipefail

pages=$SHOAL_TEST_SOURCE_DIR/docs/man
failed=false
# Looking for leaks takes seconds per run on some machines.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0

# The page as words, without what makes it bold.
plain() {
    sed -E 's/\\f[A-Z]//g; s/\\-/-/g; s/\\([a-z]{2})//g' "$pages/$1.1"
}

# mentions PAGE WORDS...
mentions() {
    local page=$1 word
    shift
    for word in "$@"; do
        if ! plain "$page" | grep -E -- "(^|[^A-Za-z_-])$word([^A-Za-z_-]|\$)" >/dev/null; then
            echo "$page.1 does not mention $word"
            failed=true
        fi
    done
}

# The options that a command's help names.
options_of() {
    "$SHOAL_TEST_TOOL" "$@" --help | grep -oE -- '(^|[[ ])--?[a-z][a-z-]*' | tr -d '[ ' | grep -v -- '^--help$' | sort -u
}

mapfile -t variables < <("$SHOAL_TEST_TOOL" info --options-md | grep -oE 'SHOAL_[A-Z_]+`' | tr -d '`')
mapfile -t commands < <("$SHOAL_TEST_TOOL" help | sed -nE 's/^  ([a-z]+) .*/\1/p')
mapfile -t benches < <("$SHOAL_TEST_TOOL" bench --help | sed -nE 's/^  ([a-z_]+) .*/\1/p')
[[ ${#variables[@]} -gt 5 && ${#commands[@]} -gt 3 && ${#benches[@]} -gt 5 ]]
mentions shoal "${variables[@]}" "${commands[@]}"
mentions shoal-bench "${benches[@]}"
for command in "bench all_gather" "bench overlap" "bench fsdp" "bench compiled" "bench checkpoint" "bench kernels" "bench nn" "bench passes" export generate info opt report run tokens trace train; do
    # shellcheck disable=SC2086 # two words on purpose
    mapfile -t options < <(options_of $command)
    [[ ${#options[@]} -gt 2 ]]
    mentions "shoal-${command%% *}" "${options[@]}"
done

if command -v groff >/dev/null; then
    for page in "$pages"/*.1; do
        complaints=$(groff -man -ww -Tascii "$page" 2>&1 >/dev/null)
        if [[ -n $complaints ]]; then
            echo "$complaints"
            failed=true
        fi
    done
else
    echo "groff is not here: the pages were not formatted"
fi

! $failed
