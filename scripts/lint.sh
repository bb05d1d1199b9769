#!/bin/bash
# SPDX-License-Identifier: MIT
# Every check that needs no run of the program. All of them run, even after a failure.
#
#   scripts/lint.sh            all of them
#   scripts/lint.sh layers     one
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

check_format() { scripts/check_format.sh; }
# References between files are read from objects of clang's build: of the libraries, the modules and the tool.
check_layers() {
    configure_clang || return
    for part in src nn tools; do
        make -C "build/clang/$part" -j "$(nproc)" >/dev/null || return
    done
    scripts/check_layers.pl . build/clang
}
check_banned() { scripts/check_banned.pl .; }
check_words() { scripts/check_words.pl .; }
check_symbols() { scripts/check_symbols.sh; }
check_api() { scripts/make_api.pl --check && scripts/make_python.pl --check; }
# Each public function has a caller, a row in docs/pytorch.md or a reason.
check_callers() { scripts/check_callers.pl .; }
check_version() { scripts/check_version.sh; }
check_conformance() { scripts/check_conformance.pl; }
check_arguments() {
    scripts/check_arguments.pl tests/conformance/deviation/arguments.def \
        include/shoal/{fsdp,fsdp_comm,fsdp_unit,fully_shard,ddp,collective,compile}.h include/shoal_compat/torch.h
}
check_ptx() { scripts/make_ptx.sh --check; }
check_shell() { find scripts tests bench .ci \( -name '*.sh' -o -path .ci/run \) -exec shellcheck -x {} +; }
check_tidy() { scripts/tidy.sh --quick; }

# clang sees other things than gcc. Its build must be as silent.
# Nobody runs it, and warnings do not depend on optimization, which would take two thirds of the time.
configure_clang() {
    cmake --preset dev -B build/clang -DCMAKE_C_COMPILER=clang-14 \
        "-DCMAKE_C_FLAGS_DEV=-O0 -DSHOAL_FAIL_POINTS" >/dev/null
}
check_clang() { configure_clang && cmake --build build/clang -j "$(nproc)" >/dev/null; }

failed=()
checks=("$@")
if [[ ${#checks[@]} -eq 0 ]]; then
    checks=(format layers banned words symbols api callers version conformance arguments ptx shell tidy clang)
fi
for check in "${checks[@]}"; do
    if ! declare -F "check_$check" >/dev/null; then
        echo "scripts/lint.sh: no check '$check'" >&2
        exit 2
    fi
    begin=$SECONDS
    if "check_$check"; then
        echo "lint: $check ok ($((SECONDS - begin)) s)"
    else
        echo "lint: $check FAILED ($((SECONDS - begin)) s)"
        failed+=("$check")
    fi
done
if [[ ${#failed[@]} -gt 0 ]]; then
    echo "lint: failed: ${failed[*]}" >&2
    exit 1
fi
