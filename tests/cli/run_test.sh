#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal run`: what ranks print and where it comes out, which exit code it has, and that nothing outlives it.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=false
limit_s=$((60 * ${SHOAL_TEST_TIME_SCALE:-1}))
# Looking for leaks takes seconds per run on some machines.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0

complain() {
    echo "$1"
    sed 's/^/  out: /' "$scratch/out"
    sed 's/^/  err: /' "$scratch/err"
    failed=true
}

# expect STATUS ARGS...: runs `shoal run ARGS`; its outputs are left in $scratch/out and $scratch/err.
expect() {
    local wanted=$1 status=0
    shift
    timeout "$limit_s" "$SHOAL_TEST_TOOL" run "$@" >"$scratch/out" 2>"$scratch/err" || status=$?
    if [[ $status -ne $wanted ]]; then
        complain "shoal run $*: exit status $status, expected $wanted"
    fi
}

# says FILE LINE: a whole line
says() {
    if ! grep -qxF -- "$2" "$scratch/$1"; then
        complain "standard $1 has no line '$2'"
    fi
}

# counts FILE NUMBER: lines
counts() {
    local lines
    lines=$(wc -l <"$scratch/$1")
    if [[ $lines -ne $2 ]]; then
        complain "standard $1 has $lines lines, expected $2"
    fi
}

# Waits until a command succeeds.
await() {
    local end=$((SECONDS + limit_s))
    until "$@"; do
        if [[ $SECONDS -ge $end ]]; then
            echo "waited in vain: $*"
            failed=true
            return 1
        fi
        read -rt 0.01 <> <(:) || true
    done
}

# Nothing runs under this number; one that nobody has collected yet does not run.
is_gone() {
    local state
    state=$(sed -nE 's/^State:\s+(.).*/\1/p' "/proc/$1/status" 2>/dev/null) || true
    [[ -z $state || $state == Z || $state == X ]]
}

# all_gone FILES...: the processes that wrote their numbers there
all_gone() {
    local file
    for file in "$@"; do
        is_gone "$(<"$file")" || return 1
    done
}

have_lines() {
    local file
    for file in "$@"; do
        [[ -s $file ]] || return 1
    done
}

# shellcheck disable=SC2016 # the programs of ranks expand their own variables
test_output() {
    expect 0 -n 3 -- sh -c 'echo "rank $SHOAL_RANK of $SHOAL_RANKS"; echo "$SHOAL_RANK complains" >&2'
    for rank in 0 1 2; do
        says out "[$rank] rank $rank of 3"
        says err "[$rank] $rank complains"
    done
    counts out 3
    counts err 3

    # As mpirun calls it.
    expect 0 -np 2 --no-label sh -c 'echo "$SHOAL_RANKS"'
    counts out 2
    says out 2
    # The library of the ranks would be silent about it.
    SHOAL_TIMEOTU=7 expect 0 -n1 true
    grep -q SHOAL_TIMEOTU "$scratch/err" || complain "is silent about a misspelt option"

    # One key for all ranks of a run, another one for the next run; it replaces what was there.
    SHOAL_KEY=old SHOAL_RANK=77 expect 0 -n 2 --no-label sh -c 'echo "$SHOAL_KEY"'
    [[ $(sort -u "$scratch/out" | wc -l) -eq 1 ]] || complain "ranks of one run have different keys"
    first=$(head -n 1 "$scratch/out")
    [[ $first =~ ^[0-9a-f]{32}$ ]] || complain "a key that is no key"
    expect 0 -n 1 --no-label sh -c 'echo "$SHOAL_KEY"'
    [[ $first != "$(<"$scratch/out")" ]] || complain "two runs with one key"

    expect 0 -n 1 printf '%s|' 'a b' '' "it's" '*' '-n'
    says out "[0] a b||it's|*|-n|"

    # The last line has no end; the label mode gives it one, the other mode leaves the bytes alone.
    expect 0 -n 2 printf 'one\ntwo'
    says out "[1] two"
    counts out 4
    expect 0 -n 1 --no-label printf 'one\ntwo'
    [[ $(<"$scratch/out") == $'one\ntwo' && $(wc -c <"$scratch/out") -eq 7 ]] || complain "bytes were added"
    expect 0 -n 2 printf ''
    counts out 0
    expect 0 -n 1 printf '\n\n'
    counts out 2
    [[ $(<"$scratch/out") == $'[0] \n[0] ' ]] || complain "empty lines are lines"
}

# Bytes that are no text pass, and many writers never mix their lines.
# shellcheck disable=SC2016,SC2046
test_much_output() {
    head -c 1000000 /dev/urandom >"$scratch/bytes"
    expect 0 -n 1 --no-label cat "$scratch/bytes"
    cmp "$scratch/out" "$scratch/bytes" || complain "bytes were changed"
    tr -d '\n' <"$scratch/bytes" | fold -b -w 3000 >"$scratch/lines"
    sed 's/^/[0] /' "$scratch/lines" | LC_ALL=C sort >"$scratch/wanted"
    expect 0 -n 1 cat "$scratch/lines"
    LC_ALL=C sort "$scratch/out" | cmp - "$scratch/wanted" || complain "lines were changed"

    chatter='line=$(printf "%01500d" "$SHOAL_RANK"); for i in $(seq 300); do echo "$line"; echo "$line" >&2; done'
    for rank in 0 1 2 3; do
        printf "[$rank] %01500d\n%.0s" $(for i in $(seq 300); do echo "$rank" "$i"; done)
    done >"$scratch/wanted"
    expect 0 -n 4 sh -c "$chatter"
    for out in out err; do
        sort "$scratch/$out" | cmp - "$scratch/wanted" || complain "lines were mixed on $out"
    done
    # Both into one pipe.
    timeout "$limit_s" "$SHOAL_TEST_TOOL" run -n 4 sh -c "$chatter" 2>&1 | sort | uniq >"$scratch/out"
    uniq "$scratch/wanted" | cmp - "$scratch/out" || complain "lines were mixed in one pipe"

    # A line of 5 MB is broken into pieces; nothing is lost, and the pieces are labelled.
    expect 0 -n 2 sh -c 'head -c 5000000 /dev/zero | tr "\0" "$SHOAL_RANK"'
    for rank in 0 1; do
        total=$(grep "^\[$rank\] $rank*\$" "$scratch/out" | sed 's/^....//' | tr -d '\n' | wc -c)
        [[ $total -eq 5000000 ]] || complain "rank $rank: $total of 5000000 bytes of a long line"
    done
}

# shellcheck disable=SC2016
test_exit_codes() {
    expect 0 -n 1 true
    expect 0 -n 64 true
    expect 1 -n 1 false
    says err "shoal run: rank 0 ended with exit code 1"
    expect 3 -n 4 sh -c 'if [ "$SHOAL_RANK" = 2 ]; then echo "last words" >&2; exit 3; fi; exec sleep 1000'
    says err "shoal run: rank 2 ended with exit code 3"
    [[ $(head -n 1 "$scratch/err") == "[2] last words" ]] || complain "the last words of a rank come first"
    counts err 2
    expect 137 -n 3 sh -c 'if [ "$SHOAL_RANK" = 1 ]; then kill -9 $$; fi; exec sleep 1000'
    says err "shoal run: rank 1 was killed by signal 9 (Killed)"
    expect 134 -n 2 sh -c 'if [ "$SHOAL_RANK" = 0 ]; then kill -ABRT $$; fi; exec sleep 1000'
    # One that ends well is no reason to end the others.
    expect 0 -n 2 sh -c 'if [ "$SHOAL_RANK" = 0 ]; then echo $$ >"$0/first"; exit 0; fi
        until grep -qs "^State:.Z" "/proc/$(cat "$0/first")/status"; do :; done; echo "still here"' "$scratch"
    says out "[1] still here"

    # Who does not listen is killed after the grace.
    expect 4 -n 3 --grace 0.2 sh -c 'trap "" TERM; : >"$0/up$SHOAL_RANK"
        if [ "$SHOAL_RANK" = 0 ]; then until [ -e "$0/up1" ] && [ -e "$0/up2" ]; do :; done; exit 4; fi
        while :; do sleep 1000; done' "$scratch"
    says err "shoal run: rank 0 ended with exit code 4"
    says err "shoal run: 2 ranks did not end within 0.2 s, and were killed"
    # Who cleans up has the time for it.
    rm -f "$scratch"/up*
    expect 4 -n 2 --grace 1000 sh -c 'trap "echo cleaned; exit 0" TERM; : >"$0/up$SHOAL_RANK"
        if [ "$SHOAL_RANK" = 0 ]; then until [ -e "$0/up1" ]; do :; done; exit 4; fi
        while :; do sleep 0.01; done' "$scratch"
    says out "[1] cleaned"
}

test_not_started() {
    expect 127 -n 3 shoal-no-such-program
    says err "shoal run: cannot start 'shoal-no-such-program': No such file or directory"
    expect 127 -n 1 "$scratch/nothing/here"
    printf '#!/bin/sh\n' >"$scratch/of_this_folder"
    chmod +x "$scratch/of_this_folder"
    (
        cd "$scratch"
        expect 127 -n 2 of_this_folder
        says err "shoal run: cannot start 'of_this_folder': No such file or directory; did you mean './of_this_folder'?"
        expect 0 -n 2 ./of_this_folder
        ! $failed
    ) || failed=true
    echo data >"$scratch/data"
    expect 126 -n 2 "$scratch/data"
    says err "shoal run: cannot start '$scratch/data': Permission denied"
    expect 126 -n 1 "$scratch"
    for bad in 0 -1 1025 two '' 99999999999999999999; do
        expect 2 -n "$bad" true
        says err "shoal run: -n: '$bad' is not a whole number from 1 to 1024"
    done
    expect 2 true
    says err "shoal run: -n N is missing"
    expect 2 -n 2
    says err "shoal run: the program is missing"
    expect 2 -n 2 --
    expect 2 -n
    says err "shoal run: -n needs a value"
    expect 2 -n 2 --grace soon true
    expect 2 -n 2 --lable true
    says err "shoal run: '--lable' is not an option; there are: -n --transport --grace --no-label --hosts --launcher --mpirun --address -x --help"
    expect 2 -n 1 --transport shmm touch "$scratch/started"
    says err "shoal run: 'shmm' is not a transport; did you mean 'shm'?"
    [[ ! -e $scratch/started ]] || complain "a rank was started"
    # shellcheck disable=SC2016 # the rank's
    SHOAL_TRANSPORT=fake expect 0 -n 1 --transport shm sh -c 'echo "<$SHOAL_TRANSPORT>"'
    says out "[0] <shm>"
    expect 0 --help
    grep -q '^usage: shoal run -n N' "$scratch/out" || complain "--help does not help"
    expect 0 -n2 true
    expect 0 -n 1 -- true
}

# shellcheck disable=SC2016
test_input() {
    expect 0 -n 3 sh -c 'printf "<%s>\n" "$(cat)"' <<<"typed"
    says out "[0] <typed>"
    says out "[1] <>"
    says out "[2] <>"
    # What rank 0 does not read stays for the next command.
    { expect 0 -n 2 true; read -r rest; } <<<"left"
    [[ ${rest:-} == left ]] || complain "the launcher has read what no rank wanted"
    expect 0 -n 2 true <&-
    # Closed outputs are no reason to fail, a full one is.
    "$SHOAL_TEST_TOOL" run -n 2 sh -c 'echo out; echo err >&2' >&- 2>&- || complain "failed without outputs"
    if [[ -e /dev/full ]] && "$SHOAL_TEST_TOOL" run -n 2 echo x >/dev/full 2>"$scratch/err"; then
        complain "succeeded although nothing could be written"
    fi
    # A reader that goes away ends the ranks that write.
    { timeout "$limit_s" "$SHOAL_TEST_TOOL" run -n 2 yes 2>"$scratch/err" || echo $? >"$scratch/status"; } |
        head -n 1 >"$scratch/out"
    [[ $(<"$scratch/status") -eq 141 ]] || complain "yes, without a reader: $(<"$scratch/status")"
}

# heeding COMMAND...: a shell lets what it starts in the background ignore SIGINT and SIGQUIT, which would stay so.
heeding() {
    exec perl -e '$SIG{INT} = $SIG{QUIT} = "DEFAULT"; exec @ARGV' "$@"
}

# start NAME ARGS...: `shoal run ARGS` in the background, number in $launcher; waits until two ranks and what they
# started have written their numbers to $scratch/NAME.*
start() {
    name=$1
    shift
    heeding "$SHOAL_TEST_TOOL" run -n 2 "$@" >"$scratch/out" 2>"$scratch/err" &
    launcher=$!
    await have_lines "$scratch/$name.0.shell" "$scratch/$name.1.shell" "$scratch/$name.0.child" "$scratch/$name.1.child"
}

# A rank through a shell: the shell and the program that it waits for.
# shellcheck disable=SC2016
rank_program='mkdir -p "${1%/*}"; sleep 1000 & echo $! >"$1.$SHOAL_RANK.child"; echo $$ >"$1.$SHOAL_RANK.shell"
wait; wait'

test_signals() {
    local number status
    for number in INT TERM HUP QUIT; do
        # A shell lets what it starts in the background ignore SIGINT: the grace ends it.
        start "$number" --grace 0.2 sh -c "$rank_program" sh "$scratch/$number"
        kill -s "$number" "$launcher"
        status=0
        wait "$launcher" || status=$?
        [[ $status -eq $((128 + $(kill -l "$number"))) ]] || complain "SIG$number: exit status $status"
        await all_gone "$scratch/$number".*
    done
    # Ranks that ignore it are killed after the grace, and a second Ctrl-C needs none.
    start deaf --grace 1000 sh -c "trap '' INT; $rank_program" sh "$scratch/deaf"
    kill -s INT "$launcher"
    kill -s INT "$launcher"
    # Two that come at once are one: ask until it has heard twice.
    while ! is_gone "$launcher"; do
        kill -s INT "$launcher" 2>/dev/null || true
        read -rt 0.01 <> <(:) || true
    done
    status=0
    wait "$launcher" || status=$?
    [[ $status -eq 130 ]] || complain "SIGINT twice: exit status $status"
    await all_gone "$scratch"/deaf.*
    start patient --grace 0.1 sh -c "trap '' TERM; $rank_program" sh "$scratch/patient"
    kill -s TERM "$launcher"
    status=0
    wait "$launcher" || status=$?
    [[ $status -eq 143 ]] || complain "SIGTERM, ignored: exit status $status"
    await all_gone "$scratch"/patient.*
}

# Ranks that save are waited for, however short the grace is; a second Ctrl-C waits for nobody.
test_holds() {
    local number status
    for number in INT TERM USR1; do
        heeding "$SHOAL_TEST_TOOL" run -n 2 --grace 0 perl "${BASH_SOURCE[0]%/*}/holder.pl" "$scratch/hold$number" 0.3 >"$scratch/out" 2>"$scratch/err" &
        launcher=$!
        await have_lines "$scratch/hold$number.0" "$scratch/hold$number.1"
        kill -s "$number" "$launcher"
        status=0
        wait "$launcher" || status=$?
        [[ $status -eq $((128 + $(kill -l "$number"))) ]] || complain "SIG$number, ranks that save: exit status $status"
        says out "[0] saved"
        says out "[1] saved"
        # After SIGUSR1 ranks end by themselves, and nobody has failed.
        ! grep -q 'exit code\|killed' "$scratch/err" || complain "SIG$number, ranks that save: some have failed"
    done
    for number in INT TERM USR1; do
        heeding "$SHOAL_TEST_TOOL" run -n 2 --grace 0 perl "${BASH_SOURCE[0]%/*}/holder.pl" "$scratch/forever$number" 1000 >"$scratch/out" 2>"$scratch/err" &
        launcher=$!
        await have_lines "$scratch/forever$number.0" "$scratch/forever$number.1"
        kill -s "$number" "$launcher"
        [[ $number == USR1 ]] ||
            await grep -qx 'shoal run: waits until ranks have saved; a second signal ends them at once' "$scratch/err"
        # So soon after the first one it would be the same.
        # shellcheck disable=SC2317 # await calls it
        tell_twice() {
            kill -s "$number" "$launcher" 2>/dev/null || true
            is_gone "$launcher"
        }
        await tell_twice || kill -s KILL "$launcher"
        status=0
        wait "$launcher" || status=$?
        [[ $status -eq $((128 + $(kill -l "$number"))) ]] || complain "SIG$number twice, ranks that save: exit status $status"
        await all_gone "$scratch/forever$number".*
    done
}

# On a terminal: what is typed reaches rank 0 although the terminal belongs to the launcher, and Ctrl-C is a key.
# shellcheck disable=SC2016
test_terminal() {
    command -v script >/dev/null || { echo "script is not here: no terminal" && return; }
    local status=0
    : >"$scratch/err"
    export PROGRAM='touch "$0/typing"; exec sleep 1000'
    echo typed | timeout "$limit_s" script -qefc "'$SHOAL_TEST_TOOL' run -n 2 cat" /dev/null >"$scratch/terminal"
    tr -d '\r' <"$scratch/terminal" >"$scratch/out"
    says out "[0] typed"
    { await test -e "$scratch/typing" && printf '\003'; } | timeout "$limit_s" script -qefc \
        "'$SHOAL_TEST_TOOL' run -n 2 sh -c \"\$PROGRAM\" '$scratch'" /dev/null >"$scratch/out" || status=$?
    [[ $status -eq 130 ]] || complain "Ctrl-C: exit status $status"
}

# However the launcher goes, its ranks go along, and what they started, and nothing of the launcher's own stays.
test_killed_launcher() {
    start killed sh -c "trap '' INT TERM HUP; $rank_program" sh "$scratch/killed"
    mapfile -t own < <(tr ' ' '\n' <"/proc/$launcher/task/$launcher/children" | sed '/^$/d')
    kill -s KILL "$launcher"
    wait "$launcher" 2>/dev/null || true
    await all_gone "$scratch"/killed.*
    for process in "${own[@]}"; do
        await is_gone "$process"
    done
}

# What ended ranks have left in the background does not stay.
# shellcheck disable=SC2016
test_left_behind() {
    expect 0 -n 2 --grace 0.1 sh -c 'sleep 1000 & echo $! >"$0/left.$SHOAL_RANK"' "$scratch"
    await all_gone "$scratch"/left.*
    # Unless it is about to end by itself.
    expect 0 -n 1 --grace 1000 sh -c '(until [ -e "$0/go" ]; do sleep 0.01; done; echo late) & : >"$0/go"' "$scratch"
    says out "[0] late"
}

for test in test_output test_much_output test_exit_codes test_not_started test_input test_signals test_holds \
    test_terminal test_killed_launcher test_left_behind; do
    begin=$SECONDS
    "$test"
    echo "$test: $((SECONDS - begin)) s"
done
! $failed
