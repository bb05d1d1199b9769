#!/bin/bash
# SPDX-License-Identifier: MIT
# Does what a newcomer does, on a machine that has nothing: a bare Debian (scripts/bare.sh), and a clone of HEAD in it.
# `scripts/fresh.sh --help` lists the parts and the options.
# shellcheck disable=SC2034,SC2317 # what bare.sh reads, and functions that it calls by name
set -euo pipefail
script=$0
label=fresh
parts_known=(user run test)
options_known=(tests)
# shellcheck source-path=SCRIPTDIR source=bare.sh
. "$(dirname "$0")/bare.sh"

usage() {
    cat <<'EOT'
usage: scripts/fresh.sh [OPTIONS] [PART...]

Makes a bare Debian (gcc, make, cmake, git) and tries a clone of HEAD in it. Needs root and debootstrap. Parts, in the
order in which they run; without any, all of them:
  user   `make run` and `make test` of an ordinary user must name every package that is missing, and stop
  run    `make run` as root: in less than three minutes without packages, and what it learns
  test   `make test` as root

options:
  --cache FILE    unpack the bare Debian from the tar archive FILE; without that file, make the system and write it
  --dir DIR       make the system in the new directory DIR (default: a directory below $TMPDIR or /var/tmp)
  --keep          do not remove the directory at the end
  --tests REGEX   the part test runs only the tests whose names match
  --help          print this
EOT
}

# refused TARGET PURPOSES...: `make TARGET` of the user stops, and names every package of these purposes that is missing.
refused() {
    local target=$1 missing package status=0
    shift
    mapfile -t missing < <(run_in --user "/home/$user/shoal/scripts/deps.sh" --list "$@")
    if [[ ${#missing[@]} -eq 0 ]]; then
        say "user: nothing is missing for make $target, so nothing was tried"
        return 1
    fi
    run_in --user make -C "/home/$user/shoal" "$target" >"$dir/user.log" 2>&1 || status=$?
    cat "$dir/user.log"
    if [[ $status -eq 0 ]]; then
        say "user: make $target succeeded without ${missing[*]}"
        return 1
    fi
    for package in "${missing[@]}"; do
        if ! grep 'apt-get install ' "$dir/user.log" | tr ' ' '\n' | grep -xF "$package" >/dev/null; then
            say "user: make $target does not name $package"
            return 1
        fi
    done
    if [[ -e $root/home/$user/shoal/build ]]; then
        say "user: make $target began to build"
        return 1
    fi
    say "user: make $target stopped with status $status and named: ${missing[*]}"
}

part_user() {
    clone "/home/$user/shoal"
    run_in chown -R "$user:$user" "/home/$user/shoal"
    refused run build && refused test build test
}

# Where the clone of the parts run and test lies, inside.
inside=/srv/shoal

# check_run LOG SECONDS: what a newcomer is promised of `make run`. Bytes that are not printable are written as \xNN.
check_run() {
    local log=$1 seconds=$2 first last text escapes bytes
    read -r first last < <(sed -nE 's/^  loss +([0-9.]+) at first, ([0-9.]+) at last$/\1 \2/p' "$log") ||
        die "run: no losses"
    text=$(sed -n '/^what it writes:$/,/^  run  /p' "$log" | sed '1d;$d')
    escapes=$(grep -oE '\\x[0-9a-f]{2}' <<<"$text" | wc -l || true)
    bytes=$((${#text} - 3 * escapes))
    say "run: $seconds s; loss $first, then $last; $((bytes - escapes)) of $bytes written bytes are printable"
    awk -v first="$first" -v last="$last" 'BEGIN { exit !(last <= first / 2) }' || die "run: the loss did not halve"
    [[ $bytes -gt 0 && $((100 * escapes)) -le $((5 * bytes)) ]] || die "run: too much is not printable"
    [[ $seconds -lt 180 ]] || die "run: it took three minutes or more"
}

# The time is that of building and training, without that of fetching packages.
part_run() {
    local begin
    [[ -e $root$inside ]] || clone "$inside"
    run_in "$inside/scripts/deps.sh" build
    run_in "$inside/scripts/deps.sh" run
    begin=$SECONDS
    run_in make -C "$inside" run | tee "$dir/run.log"
    check_run "$dir/run.log" $((SECONDS - begin))
}

part_test() {
    local options=()
    [[ -e $root$inside ]] || clone "$inside"
    if [[ -n $tests ]]; then
        # To make, $ is a variable.
        options=("TEST_OPTIONS=-R '${tests//\$/\$\$}'")
    fi
    run_in make -C "$inside" test "${options[@]}"
}

bare_main "$@"
