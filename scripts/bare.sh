# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# A bare Debian to try things in, for scripts that source this: gcc, make, cmake and git, made by debootstrap from the archive that
# apt is configured with.
#
# The system lives in a directory and is entered by chroot, in a mount and a process namespace of its own. So /proc,
# /dev and /dev/shm are never mounted where others see them, and the kernel unmounts them, and ends every process
# inside, however the script ends.
#
# The script sets `script` (its own path), `label` (what its lines begin with), `parts_known`, and `options_known` (names of
# options of its own that have a value), has a function `usage` and a function part_<PART> for each part, and ends with
# `bare_main "$@"`. A part runs inside the namespaces, as a shell of its own in which every command must succeed. It finds
# `dir` (a scratch folder), `root` (the system, in it), `source` (the tree) and the script's own options in the environment.
# shellcheck disable=SC2154 # whoever sources this sets it
# shellcheck disable=SC2317 # functions are called by name, in another process, and by trap

say() {
    echo "$label: $*"
}

die() {
    echo "$script: $*" >&2
    exit 1
}

# What goes onto the bare machine, beside what Debian calls required.
packages=(gcc libc6-dev make cmake git)
user=newcomer

# ---- Inside the namespaces

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
        if "$script" --inside "part_$part"; then
            results+=("$part ok ($((SECONDS - begin)) s)")
        else
            results+=("$part FAILED ($((SECONDS - begin)) s)")
            failed=true
        fi
    done
    say "==== Debian $(cat "$root/etc/debian_version"), commit $commit"
    printf '%s\n' "${results[@]/#/$label: }"
    ! $failed
}

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

# read_words WORD...: the options and parts of the command line.
read_words() {
    local name
    while [[ $# -gt 0 ]]; do
        name=${1#--}
        if [[ $1 == --* && " cache dir ${options_known[*]} " == *" $name "* ]]; then
            [[ $# -gt 1 ]] || { usage >&2 && exit 2; }
            declare -g "$name=$2"
            shift
        elif [[ $1 == --keep ]]; then
            keep=true
        elif [[ $1 == --help || $1 == -h ]]; then
            usage
            exit 0
        elif [[ $1 != --* && " ${parts_known[*]} " == *" $1 "* ]]; then
            chosen+=" $1"
        else
            echo "$script: unknown part or option '$1'" >&2
            usage >&2
            exit 2
        fi
        shift
    done
}

# In the order in which they stand in parts_known; all of them if none was named.
sort_parts() {
    local part sorted=
    for part in "${parts_known[@]}"; do
        if [[ -z $chosen || " $chosen " == *" $part "* ]]; then
            sorted+=" $part"
        fi
    done
    chosen=$sorted
}

# One function, so that the script may be edited while it runs.
bare_main() {
    local command status=0
    if [[ ${1:-} == --inside ]]; then
        "$2"
        exit
    fi
    keep=false cache='' dir='' chosen=
    for name in "${options_known[@]}"; do
        declare -g "$name="
    done
    read_words "$@"
    sort_parts

    source=$(cd "$(dirname "$script")/.." && pwd)
    script=$source/scripts/$(basename "$script")
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
        dir=$(mktemp -d "${TMPDIR:-/var/tmp}/shoal_$label.XXXXXX")
    fi
    root=$dir/root
    child=

    trap clean_up EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM

    # A job of its own, so that signals come here at once, and so that SIGINT is not ignored inside. It dies with this shell.
    export dir root source cache chosen "${options_known[@]}"
    set -m
    setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child "$script" --inside run_parts </dev/null &
    child=$!
    set +m
    wait "$child" || status=$?
    child=
    exit "$status"
}
