#!/bin/bash
# SPDX-License-Identifier: MIT
# Makes the packages of debian/ in a bare Debian (scripts/bare.sh), looks at them, installs them, uses them and purges them.
# `scripts/packages.sh --help` lists the parts and the options.
# shellcheck disable=SC2034,SC2317 # what bare.sh reads, and functions that it calls by name
set -euo pipefail
script=$0
label=packages
parts_known=(build again lintian try)
options_known=(out)
# shellcheck source-path=SCRIPTDIR source=bare.sh
. "$(dirname "$0")/bare.sh"

usage() {
    cat <<'EOT'
usage: scripts/packages.sh [OPTIONS] [PART...]

Makes Debian packages of HEAD in a bare Debian, and tries them. Needs root and debootstrap. Parts, in the order in which
they run; without any, all of them. The later ones need the packages of the first:
  build    builds the packages and the source package, without a network
  again    builds them a second time, in another folder, time zone, locale and on another host, and compares all bits
  lintian  runs lintian, which must not complain
  try      installs them, runs the programs of the README against them (scripts/try_packages.sh), purges them, and compares
           all files of the system with what there was before

options:
  --cache FILE    unpack the bare Debian from the tar archive FILE; without that file, make the system and write it
  --dir DIR       make the system in the new directory DIR (default: a directory below $TMPDIR or /var/tmp)
  --keep          do not remove the directory at the end
  --out DIR       copy the packages to DIR
  --help          print this
EOT
}

first=/home/$user/first
second=/srv/again/below/second

apt_in() {
    run_in DEBIAN_FRONTEND=noninteractive apt-get -y -q --no-install-recommends "$@" >>"$dir/apt.log" 2>&1 ||
        { tail -n 20 "$dir/apt.log" >&2 && die "apt-get $1 failed"; }
}

# In the system as the user, with no network but for a loopback that is down: a build that would fetch something fails.
build_in() {
    local folder=$1
    shift
    # shellcheck disable=SC2016 # the shell inside expands it
    unshare --net --uts bash -c 'hostname "$1" && shift && exec chroot "$@"' - "$(basename "$folder")" \
        --userspec="$user:$user" "$root" env -i PATH=/usr/bin:/bin "$@" \
        bash -c "umask \$UMASK && cd $folder/shoal && exec dpkg-buildpackage --build=full -I --no-sign -j$(nproc)" </dev/null
}

# make_packages FOLDER VARIABLE...
make_packages() {
    local folder=$1
    shift
    clone "$folder/shoal"
    run_in chown -R "$user:$user" "$folder"
    build_in "$folder" "$@" >"$dir/build.log" 2>&1 || { tail -n 40 "$dir/build.log" | cut -c 1-500 >&2 && die "the build failed"; }
    if grep -E '(warning|dpkg-[a-z]+: error):' "$dir/build.log" | grep -vF 'dpkg-shlibdeps: warning'; then
        die "the build has warnings"
    fi
}

part_build() {
    apt_in update
    clone /srv/source
    apt_in build-dep /srv/source
    make_packages "$first" HOME="/home/$user" LC_ALL=C.UTF-8 TZ=UTC UMASK=022
    (cd "$root$first" && ls -s --block-size=K ./*.deb)
    if [[ -n $out ]]; then
        mkdir -p "$out"
        cp "$root$first"/*.deb "$out"
    fi
}

part_again() {
    local file failed=false n_files=0
    run_in mkdir -p "$second"
    make_packages "$second" HOME=/nonexistent LC_ALL=C TZ=ABC-13:30 UMASK=027
    for file in "$root$first"/*.deb; do
        n_files=$((n_files + 1))
        if ! cmp "$file" "$root$second/${file##*/}"; then
            failed=true
            diff <(list_contents "$file") <(list_contents "$root$second/${file##*/}") || true
        fi
    done
    $failed || say "again: $n_files packages have the same bits"
    ! $failed
}

# list_contents PACKAGE: a sum for each file, and what the package says of itself.
list_contents() {
    local folder
    folder=$(mktemp -d -p "$dir")
    dpkg-deb -R "$1" "$folder"
    (cd "$folder" && find . -type f -exec sha256sum {} + | sort -k 2 && find . -printf '%p %m %T+\n' | sort)
    rm -rf "$folder"
}

part_lintian() {
    apt_in install lintian
    # shellcheck disable=SC2016 # expanded inside
    run_in --user LC_ALL=C.UTF-8 bash -c 'cd '"$first"' && lintian --fail-on error,warning --show-overrides *.changes'
}

# snapshot FILE: all files with their kinds, modes and owners, and the contents of /etc. What apt and dpkg keep for themselves
# is left out, but for the list of packages that they know.
snapshot() {
    # shellcheck disable=SC2016 # dpkg-query expands it
    {
        run_in find / -xdev \( -path /proc -o -path /sys -o -path /var/cache -o -path /var/log -o -path /var/lib/apt \) -prune \
            -o -printf '%y %m %u %g %p %l\n' | grep -vE ' /var/lib/dpkg/[a-z]+(-(old|new))? $' | sort
        run_in find /dev/shm -mindepth 1
        run_in find /etc -type f ! -name ld.so.cache -exec sha256sum {} + | sort -k 2
        run_in dpkg-query -W -f '${Package}:${Architecture} ${Version} ${Status}\n'
    } >"$1"
}

part_try() {
    local files=() names dependencies
    mapfile -t files < <(find "$root$first" -maxdepth 1 -name '*.deb' ! -name '*-dbgsym_*' -printf '%f\n' | sort)
    [[ ${#files[@]} -gt 0 ]] || die "there are no packages: run the part build first"
    names=$(for file in "${files[@]}"; do dpkg-deb -f "$root$first/$file" Package; done | sort)
    # What ours depend on, without ours, comes from the archive; so do the programs of the try.
    dependencies=$(for file in "${files[@]}"; do
        dpkg-deb -f "$root$first/$file" Depends Pre-Depends | sed -E 's/^[A-Za-z-]+: //;s/, */\n/g'
    done | grep -vE "^($(paste -sd'|' <<<"$names"))( |$)" | sort -u | paste -sd,)
    apt_in satisfy "$dependencies"
    apt_in install pkg-config perl openmpi-bin mpich libopenblas0-pthread bash-completion zsh fish
    cp "$source/scripts/try_packages.sh" "$root/usr/local/bin/"
    snapshot "$dir/before"
    (cd "$root$first" && printf '%s\n' "${files[@]}")
    run_in bash -c "cd $first && dpkg -i ${files[*]}" >"$dir/install.log" 2>&1 ||
        { cat "$dir/install.log" >&2 && die "dpkg -i failed"; }
    run_in dpkg --audit
    # shellcheck disable=SC2086 # words
    run_in dpkg --verify $names
    run_in --user try_packages.sh
    # shellcheck disable=SC2086 # words
    run_in dpkg --purge $names >"$dir/purge.log" 2>&1 || { cat "$dir/purge.log" >&2 && die "dpkg --purge failed"; }
    if grep -i 'not empty' "$dir/purge.log"; then
        die "something of a package stayed"
    fi
    snapshot "$dir/after"
    diff "$dir/before" "$dir/after" || die "something stayed, or something else is gone"
    say "try: after the purge all $(grep -c . "$dir/after") files are as before"
}

bare_main "$@"
