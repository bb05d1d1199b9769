/* SPDX-License-Identifier: MIT */
/*
 * The kernels by their names: the rows of src/cuda/kernels/kernels.def, whose sources this library is built with, and those
 * of programs.
 */
#include "fakecuda/example.h"
#include "fakecuda/fake.h"

#include <string.h>

/* The structs that are arguments: a header for each family. */
#include "cuda/kernels/copy.h"
#include "cuda/kernels/elements.h"
#include "cuda/kernels/lists.h"
#include "cuda/kernels/move.h"
#include "cuda/kernels/reduce.h"
#include "cuda/kernels/sum.h"
#include "cuda/kernels/update.h"

#define CUDA_KERNEL_ROW(family, name, type, n_phases) \
    void cuda_host_##name(const void *arguments, const struct cuda_thread *self, int phase);
#include "cuda/kernels/kernels.def"
CUDA_KERNEL_ROW(example, example_add, struct example_add, 1)
#undef CUDA_KERNEL_ROW

static const struct fake_kernel kernels[] = {
#define CUDA_KERNEL_ROW(family, name, type, n_phases) {#name, sizeof(type), n_phases, cuda_host_##name},
#include "cuda/kernels/kernels.def"
    CUDA_KERNEL_ROW(example, example_add, struct example_add, 1)
#undef CUDA_KERNEL_ROW
        {NULL, 0, 0, NULL}};

const struct fake_kernel *fake_kernel_find(const char *name, size_t length)
{
    for (const struct fake_kernel *kernel = kernels; kernel->name; kernel++) {
        if (strlen(kernel->name) == length && memcmp(kernel->name, name, length) == 0) {
            return kernel;
        }
    }
    return NULL;
}
