#!/bin/bash
# SPDX-License-Identifier: MIT
# Tries the wheel of the Python package in a bare Debian (scripts/bare.sh) that has Python and no library of Shoal's.
# `scripts/try_wheel.sh --help` lists the parts and the options.
# shellcheck disable=SC2034,SC2317 # what bare.sh reads, and functions that it calls by name
set -euo pipefail
script=$0
label=wheel
parts_known=(use tests)
options_known=(wheel)
# shellcheck source-path=SCRIPTDIR source=bare.sh
. "$(dirname "$0")/bare.sh"
packages=(python3-venv)

usage() {
    cat <<'EOT'
usage: scripts/try_wheel.sh [OPTIONS] [PART...]

Installs the wheel that `make wheel` has made in a bare Debian, as a user, without a network. Needs root and debootstrap.
Parts, in the order in which they run; without any, both:
  use      an empty environment: pip install, all_reduce and a training on 2 ranks, pip uninstall, which leaves nothing
  tests    an environment with Debian's pytest and numpy: HEAD's python/tests on the wheel, which is of the same commit

options:
  --wheel FILE    the wheel (default: the one in build/dist)
  --cache FILE    unpack the bare Debian from the tar archive FILE; without that file, make the system and write it
  --dir DIR       make the system in the new directory DIR (default: a directory below $TMPDIR or /var/tmp)
  --keep          do not remove the directory at the end
  --help          print this
EOT
}

home=/home/$user

# In the system as the user, with no network but for the loopback.
run_offline() {
    # shellcheck disable=SC2016 # the shell inside expands it
    unshare --net bash -c 'ip link set lo up && exec chroot "$@"' - --userspec="$user:$user" "$root" env -i HOME="$home" PATH=/usr/bin:/bin \
        PYTHONDONTWRITEBYTECODE=1 "$@" </dev/null
}

# Finds the wheel, and copies it into the system.
copy_wheel() {
    local found=${wheel:-}
    [[ -n $found ]] || found=$(find "$source/build/dist" -name 'shoal-*.whl' | head -n 1)
    [[ -f $found ]] || die "there is no wheel: make wheel first, or name one by --wheel"
    name=$(basename "$found")
    cp "$found" "$root$home/$name"
    if run_in sh -c 'ldconfig -p' | grep -E 'shoal|jansson'; then # apt itself needs xxHash
        die "the system is not bare"
    fi
}

list_files() {
    run_in find "$home" /tmp /dev/shm -mindepth 1 ! -name __pycache__ ! -path '*/__pycache__/*' -printf '%y %m %p %l\n' | sort
}

part_use() {
    local transport python=$home/venv/bin/python
    copy_wheel
    cat >"$root$home/program.py" <<'TEXT'
from array import array
import shoal
with shoal.World() as world:
    data = array("f", [world.rank + 1.0] * 4)
    print(world.rank, world.group.all_reduce(data).tolist())
TEXT
    run_offline python3 -m venv "$home/venv"
    list_files >"$dir/before"
    run_offline "$python" -m pip --disable-pip-version-check --no-cache-dir -q install --no-index "$home/$name"
    for transport in shm socket; do
        run_offline SHOAL_TRANSPORT="$transport" "$python" -m shoal run --no-label -n 2 "$python" "$home/program.py" |
            sort >"$dir/out"
        printf '%d [3.0, 3.0, 3.0, 3.0]\n' 0 1 | diff - "$dir/out"
    done
    run_offline "$python" -m shoal train --ranks 2 --steps 3 --layers 1 --width 16 --heads 2 --context 16 \
        --data "$home/program.py" >/dev/null
    run_offline "$python" -m pip --disable-pip-version-check --no-cache-dir -q uninstall -y shoal
    list_files >"$dir/after"
    diff "$dir/before" "$dir/after" || die "something stayed, or something else is gone"
    say "use: installed, used on 2 ranks, removed; all $(grep -c . "$dir/after") files are as before"
}

part_tests() {
    local python=$home/tests/bin/python
    copy_wheel
    run_in DEBIAN_FRONTEND=noninteractive bash -c 'apt-get -q update && apt-get -y -q --no-install-recommends install python3-pytest python3-numpy' \
        >"$dir/apt.log" 2>&1 || { tail -n 20 "$dir/apt.log" >&2 && die "apt-get failed"; }
    clone /srv/source
    run_in chown -R "$user:$user" /srv/source
    run_offline python3 -m venv --system-site-packages "$home/tests"
    run_offline "$python" -m pip --disable-pip-version-check --no-cache-dir -q install --no-index "$home/$name"
    # Only the tests, not the package beside them.
    run_in rm -r /srv/source/python/shoal
    run_offline SHOAL_TOOL="$(run_offline "$python" -c 'import pathlib, shoal; print(pathlib.Path(shoal.__file__).parent / "bin/shoal")')" \
        bash -c "cd /srv/source/python && exec $python -m pytest tests --pyargs shoal"
}

bare_main "$@"
