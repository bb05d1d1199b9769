#!/bin/bash
# SPDX-License-Identifier: MIT
# Uses the packages as somebody who has installed them: the programs of the README, built by pkg-config and by CMake, the tool, the
# modules of both MPIs, manuals and completion. Knows nothing of the tree: all it has comes from the packages. It is run by
# scripts/packages.sh, in a system where nothing else of Shoal is.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
export HOME=$scratch OMPI_MCA_plm_rsh_agent=true OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
readme=/usr/share/doc/shoal/README.md
export SHOAL_MACHINE=neoverse_v1 # where the programs of the README printed what it shows

fail() {
    echo "try_packages.sh: $*" >&2
    exit 1
}

# says FILE TEXT
says() {
    grep -F -- "$2" "$1" >/dev/null || { cat "$1" && fail "no '$2'"; }
}

echo "programs of the README, by pkg-config"
perl -0ne 'print "$1\0" while /^```c\n(.*?)^```$/gms' "$readme" >blocks
mapfile -d '' -t blocks <blocks
[[ ${#blocks[@]} -eq 4 ]] || fail "the README has ${#blocks[@]} blocks of C"
n_programs=0
for name in ranks sharded compiled; do
    n_programs=$((n_programs + 1))
    printf '%s%s' "${blocks[0]}" "${blocks[n_programs]}" >"$name.c"
    # shellcheck disable=SC2046 # words
    cc -std=c99 "$name.c" -o "$name" $(pkg-config --cflags --libs shoal_nn)
    # shellcheck disable=SC2046 # words
    cc -std=c99 "$name.c" -o "$name.static" -Wl,-Bstatic -lshoal_nn -lshoal -Wl,-Bdynamic \
        $(pkg-config --static --libs shoal_nn | tr ' ' '\n' | grep -vE '^-lshoal')
    perl -0ne "print \"\$1\n\$2\" if /^\\\$ shoal run ([^\n]* )\.\/$name\n(.*?)^(?:\\\$ |\`)/ms" "$readme" >shown
    read -r -a options <shown
    for program in "$name" "$name.static"; do
        shoal run "${options[@]}" "./$program" | sort -V >printed
        # The last digits of losses are those of a BLAS.
        diff <(sed -E '1d;s/(loss [0-9]\.[0-9])[0-9]/\1/' shown) <(sed -E 's/(loss [0-9]\.[0-9])[0-9]/\1/' printed)
    done
    if ldd "$name.static" | grep libshoal; then
        fail "$name.static needs libshoal.so"
    fi
done

echo "the same, by CMake"
mkdir project
cat >project/CMakeLists.txt <<'EOT'
cmake_minimum_required(VERSION 3.20)
project(user LANGUAGES C)
find_package(shoal REQUIRED)
foreach(name ranks sharded compiled)
    add_executable(${name} ../${name}.c)
    target_link_libraries(${name} PRIVATE shoal::shoal_nn)
    add_executable(${name}_static ../${name}.c)
    target_link_libraries(${name}_static PRIVATE shoal::nn_static)
endforeach()
EOT
{ cmake -S project -B project/build && cmake --build project/build; } >cmake.log 2>&1 || { cat cmake.log && exit 1; }
shoal run -n 2 project/build/compiled_static >printed
says printed "collectives"
project/build/ranks >printed
says printed "rank 0: 0"

echo "every header and example"
for header in /usr/include/shoal/*.h /usr/include/shoal_nn/*.h /usr/include/shoal_compat/*.h; do
    echo "#include <${header#/usr/include/}>"
done >all.c
cc -std=c99 -Wall -Werror -fsyntax-only all.c
for example in /usr/share/doc/shoal/examples/*.c; do
    # shellcheck disable=SC2046 # words
    cc -std=gnu11 "$example" -o example $(pkg-config --cflags --libs shoal_nn) -lm
done

echo "the tool"
shoal --version >printed
says printed "$(pkg-config --modversion shoal)"
shoal info >printed
for module in socket mpi_openmpi mpi_mpich; do
    grep -E "^(module)? +$module " printed | grep -vF 'cannot be used' >/dev/null || { cat printed && fail "no module $module"; }
done
says printed "/shoal/libshoal_transport_socket-"
shoal train --ranks 2 --layers 1 --width 16 --heads 2 --context 16 --batch 2 --steps 4 --verify --verify-steps 2 >printed
says printed "gave the same bits"
SHOAL_TRANSPORT=socket shoal run -n 3 ./ranks >printed
says printed "[2] rank 2: 3"

echo "the modules of MPI"
for flavour in openmpi mpich; do
    options=(-n 3)
    [[ $flavour != openmpi ]] || options+=(--oversubscribe)
    SHOAL_TRANSPORT=mpi SHOAL_LOG=info "mpirun.$flavour" "${options[@]}" ./ranks >printed 2>&1 || { cat printed && exit 1; }
    says printed "transport mpi_$flavour loaded from "
    [[ $(grep -cE 'rank [012]: 3$' printed) -eq 3 ]] || { cat printed && fail "$flavour: not three sums"; }
done

echo "manuals"
n_pages=0
while read -r command; do
    page=shoal${command:+-$command}
    [[ -s /usr/share/man/man1/$page.1.gz ]] || fail "no manual $page"
    n_pages=$((n_pages + 1))
done < <(echo && shoal help | sed -nE 's/^  ([a-z]+) .*/\1/p' | grep -vx help)
[[ $n_pages -ge 11 ]] || fail "only $n_pages manuals were looked for"
[[ $(find /usr/share/man/man1 -name 'shoal*' | wc -l) -eq $n_pages ]] || fail "a manual of no command"

echo "completion"
bash -c '
    . /usr/share/bash-completion/bash_completion
    _completion_loader shoal || true
    COMP_WORDS=(shoal train --mode f) COMP_CWORD=3
    _shoal
    [[ ${COMPREPLY[*]} == fsdp ]]' || fail "bash does not complete shoal train --mode f"
fish -c "complete -C 'shoal train --mode f'" >printed
says printed fsdp
zsh -fc 'autoload -Uz compinit && compinit -u -D && [[ $_comps[shoal] == _shoal ]]' || fail "zsh has no completion"
