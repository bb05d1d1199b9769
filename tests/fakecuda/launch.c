/* SPDX-License-Identifier: MIT */
/*
 * Kernels run block after block, in an order by the seed. Within a block all threads do a phase one after the other,
 * forwards or backwards, before the first does the next phase.
 */
#include "fakecuda/fake.h"

#include <stdlib.h>
#include <string.h>

#define BLOCKS_MOST 0x7fffffffu

struct launch {
    struct fake_job job;
    const struct fake_kernel *kernel;
    uint32_t n_blocks;
    uint32_t n_threads;
    size_t shared_bytes;
    unsigned char *shared; /* a block of its own, so that the address sanitizer sees who goes beyond it */
    uint64_t random;
    _Alignas(16) unsigned char arguments[];
};

/* Running ------------------------------------------------------------------------------------------------ */

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static void run_block(struct launch *launch, uint32_t block, bool is_backwards)
{
    struct cuda_thread self = {.n_threads = launch->n_threads,
                               .block = block,
                               .n_blocks = launch->n_blocks,
                               .shared = launch->shared};
    if (launch->shared_bytes > 0) {
        memset(launch->shared, FAKE_POISON, launch->shared_bytes);
    }
    for (int phase = 0; phase < launch->kernel->n_phases; phase++) {
        for (uint32_t i = 0; i < launch->n_threads; i++) {
            self.thread = is_backwards ? launch->n_threads - 1 - i : i;
            launch->kernel->run(launch->arguments, &self, phase);
        }
    }
}

/* With steps that have no divisor in common with the number of blocks, each block has its turn. */
static void run_launch(struct fake_job *job)
{
    struct launch *launch = (struct launch *)job;
    uint64_t n_blocks = launch->n_blocks;
    bool has_order = atomic_load_explicit(&fakecuda_settings.seed, memory_order_relaxed) == 0;
    uint64_t block = has_order ? 0 : fake_random(&launch->random) % n_blocks;
    uint64_t step = has_order ? 1 : 1 + fake_random(&launch->random) % n_blocks;
    while (common_divisor(n_blocks, step) != 1) {
        step++;
    }
    for (uint64_t i = 0; i < n_blocks; i++) {
        run_block(launch, (uint32_t)block, !has_order && fake_random(&launch->random) % 2 == 0);
        block = (block + step) % n_blocks;
    }
    free(launch->shared);
}

/* Launching ---------------------------------------------------------------------------------------------- */

static struct launch *make_launch(const struct fake_kernel *kernel, const void *arguments,
                                  size_t shared_bytes)
{
    static _Atomic uint64_t n_launches;
    struct launch *launch = fake_job(sizeof *launch + kernel->argument_bytes, run_launch);
    unsigned char *shared = launch && shared_bytes > 0 ? malloc(shared_bytes) : NULL;
    if (!launch || (shared_bytes > 0 && !shared)) {
        free(launch);
        return NULL;
    }
    launch->kernel = kernel;
    launch->shared_bytes = shared_bytes;
    launch->shared = shared;
    launch->random = atomic_fetch_add_explicit(&n_launches, 1, memory_order_relaxed);
    memcpy(launch->arguments, arguments, kernel->argument_bytes);
    return launch;
}

cuda_result cuLaunchKernel(struct CUfunc_st *function, unsigned blocks_x, unsigned blocks_y,
                           unsigned blocks_z, unsigned threads_x, unsigned threads_y, unsigned threads_z,
                           unsigned shared_bytes, struct CUstream_st *handle, void **parameters, void **extra)
{
    cuda_result result = fake_begin();
    if (result != CUDA_OK) {
        return result;
    }
    const struct fake_function found = fake_function_of(function);
    const struct fake_kernel *kernel = found.kernel;
    struct CUstream_st *stream = fake_stream(handle);
    if (!kernel || !stream) {
        return FAKE_INVALID_HANDLE;
    }
    if (blocks_x - 1 >= BLOCKS_MOST || blocks_y != 1 || blocks_z != 1 ||
        threads_x - 1 >= found.threads_most || threads_y != 1 || threads_z != 1 ||
        shared_bytes > found.shared_most || extra || !parameters || !parameters[0]) {
        return CUDA_INVALID_VALUE;
    }
    struct launch *launch = make_launch(kernel, parameters[0], shared_bytes);
    if (!launch) {
        return CUDA_OUT_OF_MEMORY;
    }
    launch->n_blocks = blocks_x;
    launch->n_threads = threads_x;
    fake_push(stream, &launch->job);
    return CUDA_OK;
}
