#!/bin/bash
# SPDX-License-Identifier: MIT
# A program that is linked with the shared libraries can still choose its allocator when main begins: loading them allocates nothing
# through the library.
set -euo pipefail

lib=$SHOAL_TEST_RELEASE_DIR/lib
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for file in libshoal.so libshoal_nn.so; do
    if [[ ! -e $lib/$file ]]; then
        echo "$lib/$file is missing: run make first"
        exit 1
    fi
done

cat >"$scratch/program.c" <<'EOF'
#include <shoal/shoal.h>
#include <shoal_nn/nn.h>
#include <stdio.h>
#include <stdlib.h>

static int n_allocations;

static void *allocate(void *context, size_t bytes, size_t alignment)
{
    void *memory = NULL;
    (void)context;
    n_allocations++;
    return posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes) == 0 ? memory : NULL;
}

static void release(void *context, void *memory)
{
    (void)context;
    free(memory);
}

int main(void)
{
    int64_t shape[2] = {2, 2};
    shoal_allocator allocator = SHOAL_ALLOCATOR_INIT;
    allocator.allocate = allocate;
    allocator.release = release;
    if (shoal_allocator_set(&allocator) != SHOAL_OK) {
        printf("%s\n", shoal_error_text());
        return 1;
    }
    if (shoal_scope_begin() != SHOAL_OK) {
        return 2;
    }
    shoal_tensor *ones = shoal_full(shape, 2, 1.0, SHOAL_F32);
    const float *product = (const float *)shoal_data(shoal_nn_linear(ones, ones, NULL));
    int is_right = product && product[3] == 2;
    return shoal_scope_end() == SHOAL_OK && is_right && n_allocations > 0 ? 0 : 3;
}
EOF
# --no-as-needed: libshoal_nn is loaded whether or not it is used.
cc -std=c11 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror -I"$SHOAL_TEST_SOURCE_DIR/include" "$scratch/program.c" \
    -o "$scratch/program" -L"$lib" -Wl,--no-as-needed -lshoal_nn -lshoal -Wl,-rpath,"$lib"
"$scratch/program"
