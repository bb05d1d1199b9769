#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal run --hosts` with an agent that stays on this machine: where ranks come, what they get, how failures are told and what
# becomes of the others, and that nothing outlives the launcher. Real hosts are in tests/hosts.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
limit_s=$((60 * ${SHOAL_TEST_TIME_SCALE:-1}))
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0

complain() {
    echo "$1"
    sed 's/^/  out: /' "$scratch/out"
    sed 's/^/  err: /' "$scratch/err"
    : >"$scratch/failed" # also from a subshell
}

# expect STATUS ARGS...: runs `shoal run ARGS`; its outputs are left in $scratch/out and $scratch/err.
expect() {
    local wanted=$1 status=0
    shift
    timeout "$limit_s" "$SHOAL_TEST_TOOL" run "$@" >"$scratch/out" 2>"$scratch/err" || status=$?
    [[ $status -eq $wanted ]] || complain "shoal run $*: exit status $status, expected $wanted"
}

# says FILE LINE: a whole line
says() {
    grep -qxF -- "$2" "$scratch/$1" || complain "standard $1 has no line '$2'"
}

await() {
    local end=$((SECONDS + limit_s))
    until "$@"; do
        if [[ $SECONDS -ge $end ]]; then
            echo "waited in vain: $*"
            : >"$scratch/failed"
            return 1
        fi
        read -rt 0.01 <> <(:) || true
    done
}

is_gone() {
    local state
    state=$(sed -nE 's/^State:\s+(.).*/\1/p' "/proc/$1/status" 2>/dev/null) || true
    [[ -z $state || $state == Z || $state == X ]]
}

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

# As ssh: options, a host, a command for a shell, another environment and directory. It writes down how it was called.
cat >"$scratch/agent" <<'END'
#!/bin/bash
echo "$*" >>"${0%/*}/calls"
while [[ $1 == -* ]]; do shift; done
host=$1
shift
if [[ $host == nowhere ]]; then
    echo "agent: nowhere: no such host" >&2
    exit 255
fi
cd /
exec env -i PATH="$PATH" ASAN_OPTIONS="$ASAN_OPTIONS" FAKE_HOST="$host" sh -c "$*"
END
chmod +x "$scratch/agent"
export SHOAL_RSH="$scratch/agent -x"

# hosts LINES: the file of hosts
hosts() {
    printf '%b' "$1" >"$scratch/hosts"
}

over_ssh() {
    local wanted=$1
    shift
    expect "$wanted" --hosts "$scratch/hosts" --launcher ssh "$@"
}

# shellcheck disable=SC2016 # the programs of ranks expand their own variables
test_places() {
    hosts '# the hosts\n a slots=2\nb # one\n\n c\tslots=1\n'
    MINE=1 OTHER=2 SHOAL_SYNC=1 over_ssh 0 -x MINE -x 'SET=a b' sh -c \
        'echo "$SHOAL_RANK of $SHOAL_RANKS on $FAKE_HOST: <$MINE><$OTHER><$SET><$SHOAL_SYNC> $PWD"; echo "$SHOAL_RANK" >&2'
    for place in '0 a' '1 a' '2 b' '3 c'; do
        read -r rank host <<<"$place"
        says out "[$rank] $rank of 4 on $host: <1><><a b><1> $PWD"
        says err "[$rank] $rank"
    done
    [[ $(wc -l <"$scratch/out") -eq 4 && $(wc -l <"$scratch/err") -eq 4 ]] || complain "more lines than ranks wrote"
    # Hosts are filled in order; those without ranks are left alone.
    rm -f "$scratch/calls"
    over_ssh 0 -n 3 --no-label sh -c 'echo "$FAKE_HOST $SHOAL_RANK $SHOAL_RANKS"'
    [[ $(sort "$scratch/out" | tr '\n' ,) == "a 0 3,a 1 3,b 2 3," ]] || complain "3 ranks on other places"
    [[ $(wc -l <"$scratch/calls") -eq 2 ]] || complain "a host without ranks was called"
    # One place to meet and one token for all, which no command line has.
    rm -f "$scratch/calls"
    # Last words without an end of line: the report of the rank's end follows them in the line.
    over_ssh 0 -n 1 --no-label sh -c 'printf last >&2'
    [[ $(<"$scratch/err") == last ]] || complain "standard error is not 'last'"
    over_ssh 0 --no-label sh -c 'echo "$SHOAL_ADDRESS $SHOAL_TOKEN $SHOAL_KEY"'
    [[ $(sort -u "$scratch/out" | wc -l) -eq 1 ]] || complain "ranks that cannot meet"
    [[ $(head -n 1 "$scratch/out") =~ ^a:2[0-9]{4}\ ([0-9a-f]{32})\ ([0-9a-f]{32})$ || $(<"$scratch/out") =~ ^a:3[01][0-9]{3} ]] ||
        complain "no address, token and key"
    token=$(head -n 1 "$scratch/out" | cut -d ' ' -f 2)
    ! grep -q "$token" "$scratch/calls" || complain "the token is on a command line"
    over_ssh 0 -n 1 --address '10.0.0.1' --no-label sh -c 'echo "${SHOAL_ADDRESS%:*}"'
    says out 10.0.0.1
    over_ssh 0 -n 1 --address '[::1]:77' --no-label sh -c 'echo "$SHOAL_ADDRESS"'
    says out '[::1]:77'
    # No agent is needed for this machine.
    hosts 'localhost slots=2\n'
    rm -f "$scratch/calls"
    over_ssh 0 printf '%s|' 'a b' '' "it's" '*' '-n'
    says out "[1] a b||it's|*|-n|"
    [[ ! -e $scratch/calls ]] || complain "an agent was called for localhost"
}

# shellcheck disable=SC2016
test_failures() {
    hosts 'a slots=2\nb slots=2\n'
    # The others have time to say what they know.
    over_ssh 137 --grace 1000 sh -c 'if [ "$SHOAL_RANK" = 1 ]; then kill -9 $$; fi
        until [ -e "$0/killed" ]; do sleep 0.01; done; echo "$SHOAL_RANK has noticed"; exit 5' "$scratch" &
    run=$!
    await grep -qs 'rank 1 on a was killed' "$scratch/err"
    : >"$scratch/killed"
    wait "$run"
    says err "shoal run: rank 1 on a was killed by signal 9 (Killed)"
    for rank in 0 2 3; do
        says out "[$rank] $rank has noticed"
    done
    [[ $(wc -l <"$scratch/err") -eq 1 ]] || complain "more than the first failure was told"
    # All that were killed are named, and the first gives the exit code.
    rm -f "$scratch/err"
    over_ssh 137 --grace 1000 sh -c 'case $SHOAL_RANK in
        1) kill -9 $$ ;;
        2) until [ -e "$0/second" ]; do sleep 0.01; done; kill -6 $$ ;;
        esac
        until [ -e "$0/third" ]; do sleep 0.01; done' "$scratch" &
    run=$!
    await grep -qs 'rank 1 on a was killed by signal 9' "$scratch/err"
    : >"$scratch/second"
    await grep -qs 'rank 2 on b was killed by signal 6' "$scratch/err"
    : >"$scratch/third"
    wait "$run"
    # Not for ever.
    over_ssh 4 --grace 0.2 sh -c 'if [ "$SHOAL_RANK" = 2 ]; then exit 4; fi; trap "" TERM
        echo $$ >"$0/deaf.$SHOAL_RANK"; while :; do sleep 1000; done' "$scratch"
    says err "shoal run: rank 2 on b ended with exit code 4"
    says err "shoal run: 3 ranks did not end within 0.2 s after that, and are told to"
    have_lines "$scratch"/deaf.* && await all_gone "$scratch"/deaf.*
}

test_not_started() {
    hosts 'a slots=2\nnowhere slots=2\n'
    over_ssh 255 --grace 0.2 sleep 1000
    says err "agent: nowhere: no such host"
    says err "shoal run: the agent of nowhere ($scratch/agent) ended with exit code 255 before 2 of its 2 ranks"
    hosts 'a\n'
    over_ssh 127 shoal-no-such-program
    says err "shoal run: a: cannot start 'shoal-no-such-program': No such file or directory"
    SHOAL_RSH="$scratch/none" over_ssh 127 true
    says err "shoal run: cannot start '$scratch/none': No such file or directory"
    expect 2 --hosts "$scratch/nothing" true
    says err "shoal run: --hosts: $scratch/nothing: No such file or directory"
    # Not for calling by hand.
    status=0
    "$SHOAL_TEST_TOOL" run --worker stdin </dev/null >"$scratch/out" 2>"$scratch/err" || status=$?
    [[ $status -eq 1 ]] || complain "a worker without a plan: $status"
    status=0
    printf 'shoal-run 1 5\nabcde' | "$SHOAL_TEST_TOOL" run --worker stdin >"$scratch/out" 2>"$scratch/err" || status=$?
    [[ $status -eq 1 ]] || complain "a worker with a wrong plan: $status"
}

# wrong LINES TEXT: what is said of a file of hosts
wrong() {
    hosts "$1"
    over_ssh 2 true
    says err "shoal run: $scratch/hosts$2"
}

test_wrong_lines() {
    wrong '\n# none\n' " names no host"
    wrong 'a\nb\na slots=2\n' ":3: a is there already, in line 1"
    wrong 'a slots=0\n' ":1: 'slots=0': 1 to 1024 slots expected"
    wrong 'a slots=two\n' ":1: 'slots=two': 1 to 1024 slots expected"
    wrong 'a slot=2\n' ":1: 'slot=2' is not slots=N"
    wrong 'a slots=2 b\n' ":1: 'b' is more than NAME slots=N"
    wrong 'a\n-oProxyCommand=x\n' ":2: '-oProxyCommand=x' is not the name of a host"
    wrong 'a;b\n' ":1: 'a;b' is not the name of a host"
    hosts 'a slots=2\nb\n'
    over_ssh 2 -n 4 true
    says err "shoal run: 4 ranks, but $scratch/hosts has 3 slots, and there are at most 1024 ranks"
    over_ssh 2
    says err "shoal run: the program is missing"
    over_ssh 2 --lauch ssh true
    grep -q "shoal run: '--lauch' is not an option" "$scratch/err" || complain "an unknown option"
    expect 2 --hosts "$scratch/hosts" --launcher rsh true
    says err "shoal run: 'rsh' is not a launcher; did you mean 'ssh'?"
    expect 2 -n 2 -x HOME true
    says err "shoal run: -x is for several hosts, and there is no --hosts FILE"
    expect 2 --hosts
    says err "shoal run: --hosts needs a value"
    over_ssh 2 -x '=1' true
    says err "shoal run: -x: '=1' is not NAME or NAME=VALUE"
    expect 1 --hosts "$scratch/hosts" --mpirun "$scratch/none" true
    says err "shoal run: '$scratch/none --version' names neither Open MPI nor MPICH; --launcher ssh needs no MPI"
}

# start NAME: ranks on two hosts that wait, each with a child; the number of the launcher in $launcher.
# shellcheck disable=SC2016
start() {
    "$SHOAL_TEST_TOOL" run --hosts "$scratch/hosts" --launcher ssh --grace "$2" sh -c 'trap "" HUP
        sleep 1000 & echo $! >"$0.$SHOAL_RANK.child"; echo $$ >"$0.$SHOAL_RANK.shell"; wait; wait' "$scratch/$1" \
        >"$scratch/out" 2>"$scratch/err" &
    launcher=$!
    await have_lines "$scratch/$1".{0,1}.{child,shell}
}

test_ends() {
    local status=0
    hosts 'a\nb\n'
    # Signals reach ranks through the agents.
    start term 1000
    kill -s TERM "$launcher"
    wait "$launcher" || status=$?
    [[ $status -eq 143 ]] || complain "SIGTERM: exit status $status"
    await all_gone "$scratch"/term.*
    # Ranks that save are waited for, on their hosts and here.
    "$SHOAL_TEST_TOOL" run --hosts "$scratch/hosts" --launcher ssh --grace 0 perl "${BASH_SOURCE[0]%/*}/holder.pl" "$scratch/hold" 3 \
        >"$scratch/out" 2>"$scratch/err" &
    launcher=$!
    await have_lines "$scratch"/hold.{0,1}
    kill -s TERM "$launcher"
    status=0
    wait "$launcher" || status=$?
    [[ $status -eq 143 ]] || complain "SIGTERM, ranks that save: exit status $status"
    says out "[0] saved"
    says out "[1] saved"
    ! grep -q 'does the host answer' "$scratch/err" || complain "a host that waits is taken for a silent one"
    # A signal that is passed on, and by which ranks end: they have not failed.
    # shellcheck disable=SC2016
    "$SHOAL_TEST_TOOL" run --hosts "$scratch/hosts" --launcher ssh --grace 1000 sh -c 'trap "exit 138" USR1
        echo $$ >"$0.$SHOAL_RANK"; while :; do sleep 0.01; done' "$scratch/usr1" >"$scratch/out" 2>"$scratch/err" &
    launcher=$!
    await have_lines "$scratch"/usr1.{0,1}
    kill -s USR1 "$launcher"
    status=0
    wait "$launcher" || status=$?
    [[ $status -eq 138 ]] || complain "SIGUSR1: exit status $status"
    ! grep -q 'shoal run:' "$scratch/err" || complain "SIGUSR1: ranks have failed"
    # A launcher or an agent that is killed takes its ranks along.
    start killed 0.2
    kill -s KILL "$launcher"
    wait "$launcher" 2>/dev/null || true
    await all_gone "$scratch"/killed.*
}

# What mpirun does with the lines and codes; no rank needs MPI.
# shellcheck disable=SC2016
test_mpirun() {
    local flavour rank='${OMPI_COMM_WORLD_RANK:-$PMI_RANK}'
    hosts 'localhost slots=3\n'
    for flavour in openmpi mpich; do
        command -v "mpirun.$flavour" >/dev/null || { echo "mpirun.$flavour is not here" && continue; }
        # Of another job, as after an export: they are not for this one.
        SHOAL_ADDRESS=127.0.0.1:1 SHOAL_TOKEN=old expect 137 --hosts "$scratch/hosts" --mpirun "mpirun.$flavour" sh -c "if [ $rank = 1 ]; then kill -9 \$\$; fi
            until [ -e \"\$0/$flavour.1\" ]; do sleep 0.01; done; echo \"$rank: <\$SHOAL_RANK\$SHOAL_ADDRESS\$SHOAL_TOKEN><\$SHOAL_SYNC>\"" "$scratch" &
        run=$!
        await grep -qs 'rank 1 on .* was killed by signal 9' "$scratch/err"
        : >"$scratch/$flavour.1"
        wait "$run"
        says out "[0] 0: <><1>"
        says out "[2] 2: <><1>"
    done
}

for test in test_places test_failures test_not_started test_wrong_lines test_ends test_mpirun; do
    begin=$SECONDS
    SHOAL_SYNC=1 "$test"
    echo "$test: $((SECONDS - begin)) s"
done
[[ ! -e $scratch/failed ]]
