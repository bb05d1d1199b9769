#!/bin/bash
# SPDX-License-Identifier: MIT
# Completion for shells (`shoal --completion SHELL`): that of bash is sourced and asked, with the words as bash gives them. That of
# fish is asked, and that of zsh read, if they are here. Each must know every option that the usage of a command shows.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 HOME=$scratch
failed=false
complain() {
    echo "$1"
    failed=true
}

for shell in bash zsh fish; do
    "$SHOAL_TEST_TOOL" --completion "$shell" >"shoal.$shell"
    [[ -s shoal.$shell ]] || complain "nothing for $shell"
done
for words in '--completion' '--completion ksh' '--completion bash zsh'; do
    status=0
    # shellcheck disable=SC2086 # words
    "$SHOAL_TEST_TOOL" $words >out 2>err || status=$?
    [[ $status -eq 2 && ! -s out && $(<err) == 'shoal: --completion: '*'bash, zsh or fish expected' ]] ||
        complain "shoal $words: status $status, $(<err)"
done

# shellcheck source=/dev/null
. ./shoal.bash

# asks WORD...: sets `reply` to what could stand for the last word. As in bash, "=" is a word of its own.
asks() {
    COMP_WORDS=(shoal "$@")
    COMP_CWORD=$#
    _shoal
    reply=$(printf '%s\n' "${COMPREPLY[@]}" | sort | paste -sd' ')
}

# completes TEXT WORD...
completes() {
    local wanted=$1
    shift
    asks "$@"
    [[ $reply == "$wanted" ]] || complain "shoal $*: '$reply', wanted '$wanted'"
}

completes 'trace train' tr
completes '--help --version' --
completes 'train' help trai
completes '--json' info --j
completes 'ddp' train --mode d
completes 'ddp' train --mode = d
completes 'ddp fsdp hsdp none single zero1 zero2' train --mode =
completes 'bf16' bench fsdp --ranks 2 overlap --dtype b
completes 'fsdp functional' bench f
for command in 'run -n 2' train generate info 'bench probe' 'bench all_reduce'; do
    # shellcheck disable=SC2086 # perhaps several words
    completes 'shm socket' $command --transport s
done
completes 'oneshot' bench all_reduce --algorithm o
mkdir models
: >models.txt
completes 'models' generate mod
completes 'models' export mod
completes 'models' export models mod
completes 'models models.txt' tokens x --tokenizer mod
completes '' nothing --
completes '' train --width 6
completes '--width' train --mode fsdp --wi
completes '--width' train --compile --wi
completes '--width' train -n 2 --wi
completes 'all_gather all_reduce all_to_all' info --explain all_
# Files: any, with blanks; only folders. A value that may be left out stands behind "=".
mkdir 'a folder' && touch 'a file' another.graph
completes 'a file a folder another.graph' opt a
completes 'a file a folder' train --data 'a f'
completes 'a folder' train --checkpoint a
completes 'a file a folder another.graph' opt --dot = a
completes 'a file a folder another.graph' opt --dot a
completes '--dot --dot-prefix' opt --do
completes '' opt --bucket-mb a
completes 'a file a folder another.graph' report a
completes 'a folder' generate a
completes 'a folder' export 'a folder' a
# Several words in one, and names of several lines.
completes 'default' opt --passes def
completes 'default,fuse_ddp_communication' opt --passes default,fuse_ddp_com
completes 'default,fuse_ddp_communication' opt --passes = default,fuse_ddp_com
completes 'fuse_ddp_communication' opt --print-after fuse_ddp_com
touch $'two\nlines' twofold
asks train --data tw
[[ ${#COMPREPLY[@]} -eq 2 && " $(printf '<%s>' "${COMPREPLY[@]}")" == *$'<two\nlines>'* ]] || complain "names of two lines: $reply"
rm $'two\nlines' twofold
# The program of shoal run is a command or a file; what follows is its own.
completes 'a file a folder another.graph' run -n 2 ./program a
asks run -n 2 bas
[[ " $reply " == *' bash '* ]] || complain "run does not complete commands: '$reply'"

# shows COMMAND...: its options, as the usage shows them.
shows() {
    "$SHOAL_TEST_TOOL" "$@" --help | sed -nE 's/^  (-[a-z-]+)(, (-[a-z-]+))?.*/\1\n\3/p' | sed '/^$/d' | sort -u
}
mapfile -t commands < <("$SHOAL_TEST_TOOL" help | sed -nE 's/^  ([a-z]+) .*/\1/p')
mapfile -t benches < <("$SHOAL_TEST_TOOL" bench --help | sed -nE 's/^  ([a-z_]+)  .*/bench \1/p' | grep -vx 'bench all')
((${#commands[@]} > 5 && ${#benches[@]} > 10)) || complain "the tool has ${#commands[@]} commands and ${#benches[@]} benchmarks"
n_options=0
for command in "${commands[@]}" "${benches[@]}"; do
    read -r -a words <<<"$command"
    asks "${words[@]}" -
    for option in $(shows "${words[@]}"); do
        n_options=$((n_options + 1))
        [[ " $reply " == *" $option "* ]] || complain "bash: shoal $command has $option"
        case $option in
        --*) in_fish="-l ${option#--}" ;;
        -?) in_fish="-s ${option#-}" ;;
        *) in_fish="-o ${option#-}" ;;
        esac
        grep -E -- "^complete -c shoal -n '__shoal_is $command' .*$in_fish( |\$)" shoal.fish >/dev/null ||
            complain "fish: shoal $command has $option"
        sed -n "/^    ${words[0]}${words[1]:+\\/${words[1]}})\$/,/;;/p" shoal.zsh |
            grep -E -- "'(\*|\([^)]*\))?$option(=-?|\+)?\[" >/dev/null || complain "zsh: shoal $command has $option"
    done
done
((n_options > 100)) || complain "only $n_options options were looked at"

if command -v zsh >/dev/null; then
    zsh -n shoal.zsh || complain "zsh cannot read it"
    mkdir functions && cp shoal.zsh functions/_shoal
    # What a tab makes of a line, on a terminal.
    cat >tab.zsh <<'END'
zmodload zsh/zpty
zpty shell 'zsh -f -i'
zpty -w shell 'PS1=; fpath=($PWD/functions $fpath); autoload -U compinit; compinit -u -D; print -r -- BE"GUN"'
zpty -r -m shell text '*BEGUN*'
zpty -w -n shell "$1"$'\t'
zpty -r -m shell text "*$2*"
zpty -d shell
END
    # in_zsh TEXT LINE
    in_zsh() {
        timeout "$((60 * ${SHOAL_TEST_TIME_SCALE:-1}))" zsh -f tab.zsh "$2" "$1" </dev/null || complain "zsh: $2: is not completed to $1"
    }
    in_zsh 'all_reduce all_gather' 'shoal bench all_reduce all_g'
    in_zsh 'default,fuse_ddp_communication' 'shoal opt --passes default,fuse_ddp_com'
fi
if command -v fish >/dev/null; then
    # in_fish TEXT LINE: the words that fish offers
    in_fish() {
        fish --no-config -c "source shoal.fish; complete -C '$2'" | cut -f 1 | sort | paste -sd' ' >out
        [[ $(<out) == "$1" ]] || complain "fish: $2: '$(<out)', wanted '$1'"
    }
    in_fish 'trace train' 'shoal tr'
    in_fish 'ddp' 'shoal train --mode d'
    in_fish '--wrapping' 'shoal bench compiled --wr'
    in_fish 'another.graph' 'shoal opt ano'
    in_fish 'default,fuse_ddp_communication' 'shoal opt --passes default,fuse_ddp_com'
    in_fish 'a folder/' 'shoal train --checkpoint a'
fi
! $failed
