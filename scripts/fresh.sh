#!/bin/bash
# SPDX-License-Identifier: MIT
# Does what a newcomer does, on a machine that has nothing: a bare Debian with gcc, make, cmake and git, made by
# debootstrap from the archive that apt is configured with, and a clone of HEAD in it. `scripts/fresh.sh --help` lists
# the parts and the options.
#
# The system lives in a directory and is entered by chroot, in a mount and a process namespace of its own. So /proc,
# /dev and /dev/shm are never mounted where others see them, and the kernel unmounts them, and ends every process
# inside, however this script ends.
# shellcheck disable=SC2317 # functions are called by name, in another process, and by trap
set -euo pipefail

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

say() {
    echo "fresh: $*"
}

die() {
    echo "scripts/fresh.sh: $*" >&2
    exit 1
}

# What goes onto the bare machine, beside what Debian calls required.
packages=(gcc libc6-dev make cmake git)
user=newcomer

# ---- Inside the namespaces. `dir`, `root`, `source`, `cache`, `tests` and `chosen` are in the environment.

# run_in [--user] COMMAND...: in the system, with an environment that holds nothing of this machine's.
run_in() {
    local options=() home=/root
    if [[ $1 == --user ]]; then
        options=(--userspec="$user:$user")
        home=/home/$user
        shift
    fi
    chroot "${options[@]}" "$root" env -i HOME="$home" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@" \
        </dev/null
}

# The suite and archive of the line that apt gets this machine's own packages from.
find_archive() {
    local signed_by
    suite=$(sed -nE 's/^VERSION_CODENAME="?([^"]*)"?$/\1/p' /etc/os-release)
    # shellcheck disable=SC2016 # apt-get expands the words of its format
    archive=$(apt-get indextargets --format '$(RELEASE) $(CODENAME) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk -v suite="$suite" '($1 == suite || $2 == suite) && $3 == "main" && !found { print $4; found = 1 }')
    case $archive in
    http://*) ;;
    https://*) packages+=(ca-certificates) ;;
    '') die "apt is configured with no archive of '$suite' (the suite that /etc/os-release names)" ;;
    *) die "apt is configured with $archive for $suite; debootstrap needs http or https" ;;
    esac
    # Keys of Debian that are not where debootstrap looks for them.
    keyring=()
    signed_by=$(awk 'tolower($1) == "signed-by:" && $2 ~ /^\// && !found { print $2; found = 1 }' \
        /etc/apt/sources.list.d/*.sources 2>/dev/null || true)
    if [[ -n $signed_by ]]; then
        keyring=(--keyring "$signed_by")
    fi
}

# debootstrap fetches by wget, which knows the proxy from the environment only.
export_proxy() {
    local kind proxy
    for kind in http https; do
        proxy=$(apt-config dump --format '%v%n' "Acquire::$kind::Proxy")
        if [[ -n $proxy && $proxy != DIRECT ]]; then
            export "${kind}_proxy=$proxy"
        fi
    done
}

bootstrap() {
    local options
    find_archive
    export_proxy
    say "debootstrap $suite from $archive"
    options=(--variant=minbase "${keyring[@]}" "--include=$(IFS=, && echo "${packages[*]}")")
    if ! debootstrap "${options[@]}" "$suite" "$root" "$archive" >"$dir/debootstrap.log" 2>&1; then
        tail -n 20 "$dir/debootstrap.log" >&2
        die "debootstrap failed"
    fi
    # What apt needs to reach the archive from here it needs in there: its proxy, and whose certificates it trusts.
    apt-config dump | grep -E '^Acquire::https?::([^ ]*::)?Proxy' >"$root/etc/apt/apt.conf.d/90proxy" || true
    if [[ $archive == https://* ]]; then
        cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    fi
    run_in useradd --create-home --shell /bin/bash "$user"
}

make_system() {
    mkdir "$root"
    if [[ -n $cache && -e $cache ]]; then
        say "unpacking $cache"
        tar -C "$root" --numeric-owner -xpf "$cache"
        return
    fi
    bootstrap
    if [[ -n $cache ]]; then
        tar -C "$root" --numeric-owner --exclude=./proc/* --exclude=./sys/* -cf "$cache.new" .
        mv "$cache.new" "$cache"
        say "wrote $cache"
    fi
}

mount_system() {
    local node
    mount -t proc proc "$root/proc"
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    for node in null zero full random urandom tty; do
        : >"$root/dev/$node"
        mount --bind "/dev/$node" "$root/dev/$node"
    done
    mkdir "$root/dev/pts" "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    ln -s fd/0 "$root/dev/stdin"
    ln -s fd/1 "$root/dev/stdout"
    ln -s fd/2 "$root/dev/stderr"
    # Names are resolved in there as they are here.
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/" || true
}

# git_here ...: in the tree, whoever owns it: root tries what somebody else has cloned.
git_here() {
    git -c safe.directory="$source" -C "$source" "$@"
}

# clone FOLDER: HEAD, and nothing that is not committed.
clone() {
    git init -q "$root$1"
    git -C "$root$1" fetch -q "$dir/head.bundle" HEAD
    git -C "$root$1" checkout -q --detach FETCH_HEAD
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

# The first process of the namespaces. Each part is a shell of its own, in which every command must succeed.
run_parts() {
    local part begin commit results=() failed=false
    # Now: HEAD may move meanwhile.
    commit=$(git_here rev-parse --short HEAD)
    git_here bundle create -q "$dir/head.bundle" HEAD
    make_system
    mount_system
    for part in $chosen; do
        say "==== $part"
        begin=$SECONDS
        if "$source/scripts/fresh.sh" --inside "part_$part"; then
            results+=("$part ok ($((SECONDS - begin)) s)")
        else
            results+=("$part FAILED ($((SECONDS - begin)) s)")
            failed=true
        fi
    done
    say "==== Debian $(cat "$root/etc/debian_version"), commit $commit"
    printf 'fresh: %s\n' "${results[@]}"
    ! $failed
}

if [[ ${1:-} == --inside ]]; then
    "$2"
    exit
fi

# ---- Outside

# Ends what still runs inside, then removes the directory. Nothing is mounted in it that this namespace could see.
clean_up() {
    local first
    set +e
    trap '' INT TERM HUP
    if [[ -n $child ]]; then
        # The first process of the namespace takes all others with it; unshare ends when it has.
        first=$(<"/proc/$child/task/$child/children")
        first=${first%% *}
        kill -KILL "${first:-$child}"
        wait "$child"
    fi 2>/dev/null
    if $keep; then
        say "kept $dir"
    else
        rm -rf --one-file-system "$dir"
    fi
}

# One function, so that the script may be edited while it runs.
main() {
    keep=false cache='' dir='' tests='' parts=()
    while [[ $# -gt 0 ]]; do
        case $1 in
        --cache | --dir | --tests)
            [[ $# -gt 1 ]] || { usage >&2 && exit 2; }
            declare -g "${1#--}=$2"
            shift
            ;;
        --keep) keep=true ;;
        --help | -h) usage && exit 0 ;;
        user | run | test) parts+=("$1") ;;
        *)
            echo "scripts/fresh.sh: unknown part or option '$1'" >&2
            usage >&2
            exit 2
            ;;
        esac
        shift
    done
    chosen=
    for part in user run test; do
        if [[ ${#parts[@]} -eq 0 || " ${parts[*]} " == *" $part "* ]]; then
            chosen+=" $part"
        fi
    done

    source=$(cd "$(dirname "$0")/.." && pwd)
    [[ $(id -u) -eq 0 ]] || die "needs root, for debootstrap and chroot"
    for command in debootstrap unshare setpriv git apt-get; do
        command -v "$command" >/dev/null || die "needs the command $command (Debian: apt-get install debootstrap util-linux git)"
    done
    if [[ -n $(git_here status --porcelain) ]]; then
        say "note: the working tree has changes; only what is committed is tried"
    fi
    [[ -z $cache ]] || cache=$(realpath -m "$cache")
    if [[ -n $dir ]]; then
        mkdir "$dir" || die "--dir needs the name of a directory that does not exist yet"
        dir=$(realpath "$dir")
    else
        dir=$(mktemp -d "${TMPDIR:-/var/tmp}/shoal_fresh.XXXXXX")
    fi
    root=$dir/root
    child=

    trap clean_up EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM

    # A job of its own, so that signals come here at once, and so that SIGINT is not ignored inside. It dies with this shell.
    export dir root source cache tests chosen
    set -m
    setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child "$source/scripts/fresh.sh" --inside run_parts </dev/null &
    child=$!
    set +m
    status=0
    wait "$child" || status=$?
    child=
    exit "$status"
}

main "$@"
