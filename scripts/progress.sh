# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# Progress of long targets, to be sourced: on a terminal one line on standard error that changes, in a pipe a plain line every 30
# seconds (SHOAL_PROGRESS_SECONDS).
#
#   progress_run LABEL COMMAND...     runs it, and returns its exit status; programs of tests/harness say how far they are
#   progress_say LABEL DONE TOTAL     a step of the script itself: "bench: 3 of 12: all_gather"

# 75 -> 1:15
progress_time() {
    printf '%d:%02d' $(($1 / 60)) $(($1 % 60))
}

# progress_text LABEL SECONDS: how far the file $progress_file says that the program is.
progress_text() {
    local label=$1 seconds=$2 begun=0 cases=0 ended=0 total=0 name="" percent
    read -r begun cases ended total name 2>/dev/null <"$progress_file" || true
    if [[ ${cases:-0} -eq 0 ]]; then
        echo "$label: $(progress_time "$seconds")"
        return
    fi
    percent=$((100 * (begun - 1) / cases))
    [[ $total -gt 0 ]] && percent=$(((100 * (begun - 1) + 100 * ended / total) / cases))
    local bar
    bar=$(printf '%*s' $((percent / 5)) '')
    echo "$label: [$(printf '%-20s' "${bar// /#}")] $percent %, $(progress_time "$seconds"), $begun of $cases: $name"
}

# Lines of the program, in place of the line that changes.
progress_lines() {
    local line
    while IFS= read -r line; do
        printf '\r\033[K%s\n' "$line"
    done
}

progress_run() {
    local label=$1 begin=$SECONDS shown=$SECONDS status=0 every=${SHOAL_PROGRESS_SECONDS:-30} process text
    shift
    progress_file=$(mktemp)
    if [[ -t 1 && -t 2 ]]; then
        SHOAL_TEST_PROGRESS=$progress_file "$@" > >(progress_lines) 2>&1 &
    else
        SHOAL_TEST_PROGRESS=$progress_file "$@" &
    fi
    process=$!
    # The shell makes commands in the background deaf to an interrupt.
    trap 'kill "$process" 2>/dev/null; exit 130' INT TERM
    while kill -0 "$process" 2>/dev/null; do
        # Whoever has ended is noticed at once.
        sleep 0.5 &
        wait -n "$process" $! 2>/dev/null || true
        kill -0 "$process" 2>/dev/null || break
        if [[ -t 2 ]]; then
            text=$(progress_text "$label" $((SECONDS - begin)))
            printf '\r\033[K%s' "${text:0:$((${COLUMNS:-$(tput cols 2>/dev/null || echo 80)} - 1))}" >&2
        elif ((SECONDS - shown >= every)); then
            shown=$SECONDS
            progress_text "$label" $((SECONDS - begin)) >&2
        fi
    done
    [[ -t 2 ]] && printf '\r\033[K' >&2
    wait "$process" || status=$?
    trap - INT TERM
    rm -f "$progress_file"
    return "$status"
}

progress_say() {
    if [[ -t 2 ]]; then
        printf '\r\033[K%s, %d of %d' "$1" "$2" "$3" >&2
    else
        echo "$1, $2 of $3" >&2
    fi
}

progress_end() {
    [[ ! -t 2 ]] || printf '\r\033[K' >&2
}
