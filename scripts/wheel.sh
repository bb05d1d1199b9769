#!/bin/bash
# SPDX-License-Identifier: MIT
# Builds the wheel of the Python package, without a network: build/dist/shoal-VERSION-py3-none-linux_MACHINE.whl. It has
# libshoal with the libraries that it needs, which find each other by their own place ($ORIGIN), the tool, the socket
# module, the headers and the C++ source of the backend of torch.distributed. Modules for MPI come from an installed
# Shoal: they belong to the MPI of a machine.
#
#   scripts/wheel.sh                builds it
#   scripts/wheel.sh --try          also installs it into an empty environment, uses it, and removes it
#   scripts/wheel.sh --try WHEEL    only tries that one, with the Python that PYTHON names
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/progress.sh

build_wheel() {
    for python in /usr/bin/python3 python3; do
        if "$python" -c 'import build, setuptools, wheel' 2>/dev/null; then
            break
        fi
    done
    stage=build/wheel/stage
    prefix=$PWD/build/wheel/prefix
    # shellcheck disable=SC2016 # the loader expands it
    cmake --preset release -B build/wheel -DCMAKE_INSTALL_RPATH='$ORIGIN;$ORIGIN/../lib' >/dev/null
    progress_run "wheel: building" cmake --build build/wheel -j "${JOBS:-$(nproc)}" >/dev/null
    rm -rf "$stage" "$prefix" build/dist
    cmake --install build/wheel --prefix "$prefix" >/dev/null

    mkdir -p "$stage"
    cp -r python/pyproject.toml python/setup.py python/shoal "$stage"
    find "$stage" -name __pycache__ -prune -exec rm -r {} +
    cp LICENSE "$stage"
    package=$stage/shoal
    mkdir -p "$package"/{bin,lib/shoal}
    cp "$prefix/bin/shoal" "$package/bin"
    cp -r "$prefix/include" "$package/include"
    cp "$prefix"/lib/shoal/libshoal_transport_*.so "$prefix"/lib/shoal/libshoal_cuda-*.so "$package/lib/shoal"
    for library in libshoal.so.0.1 libshoal_nn.so.0.1; do
        cp -L "$prefix/lib/$library" "$package/lib"
    done
    # Those that come with no distribution: libc is everybody's.
    ldd "$package/bin/shoal" | awk '/jansson|xxhash/ { print $3 }' | while read -r library; do
        cp -L "$library" "$package/lib"
    done
    (cd "$stage" && "$python" -m build --wheel --no-isolation --outdir ../../dist >../build.log 2>&1) ||
        { cat build/wheel/build.log >&2 && exit 1; }
}

if [[ ${1:-} == --try && -n ${2:-} ]]; then
    wheel=$(realpath "$2") python=${PYTHON:-python3}
else
    build_wheel
    wheel=$(ls "$PWD"/build/dist/*.whl)
    echo "${wheel#"$PWD"/}: $(stat -c %s "$wheel") bytes"
    [[ ${1:-} == --try ]] || exit 0
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unset SHOAL_LIBRARY SHOAL_TOOL PYTHONPATH
"$python" -m venv "$scratch/venv"
find "$scratch/venv" | sort >"$scratch/before"
pip=("$scratch/venv/bin/python" -m pip --disable-pip-version-check -q)
"${pip[@]}" install --no-index --no-compile "$wheel"
cat >"$scratch/program.py" <<'TEXT'
from array import array
import shoal
with shoal.World() as world:
    data = array("f", [world.rank + 1.0] * 4)
    print(world.rank, world.group.all_reduce(data).tolist())
TEXT
cd "$scratch"
for transport in shm socket; do
    SHOAL_TRANSPORT=$transport PYTHONDONTWRITEBYTECODE=1 "$scratch/venv/bin/python" -m shoal run --no-label -n 2 \
        "$scratch/venv/bin/python" program.py | sort >"$scratch/out"
    printf '%d [3.0, 3.0, 3.0, 3.0]\n' 0 1 | diff - "$scratch/out"
done
"$scratch/venv/bin/python" -B -m shoal train --ranks 2 --steps 3 --layers 1 --width 16 --heads 2 --context 16 --data program.py >/dev/null
# The backend of torch.distributed is compiled where it is used.
[[ -f $(echo "$scratch"/venv/lib/python3*/site-packages/shoal/torch/source/backend.cpp) ]]
"${pip[@]}" uninstall -y shoal
find "$scratch/venv" -name __pycache__ -prune -o -print | sort >"$scratch/after"
grep -v __pycache__ "$scratch/before" | diff - "$scratch/after"
echo "wheel: installed, used on 2 ranks, removed ($("$scratch/venv/bin/python" --version))"
