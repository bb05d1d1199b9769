/* SPDX-License-Identifier: MIT */
/* Images of kernels are loaded when they are needed, by whichever thread is the first. */
#include "cuda/launch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "cuda/driver.h"
#include "cuda/failure.h"
#include "cuda/gpu.h"
#include "cuda/image.h"
#include "cuda/memory.h"
#include "cuda/services.h"

/* Enough threads that a multiprocessor always has some that need not wait for memory. */
#define BLOCKS_PER_MULTIPROCESSOR 16

static const struct kernel_row {
    const char *name;
    enum cuda_family family;
} rows[] = {
#define CUDA_KERNEL_ROW(family, name, type, n_phases) {#name, CUDA_FAMILY_##family},
#include "cuda/kernels/kernels.def"
#undef CUDA_KERNEL_ROW
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUmod_st *modules[CUDA_FAMILY_COUNT]; /* under the lock */
/* Each is set once, under the lock. */
static _Atomic(struct CUfunc_st *) functions[CUDA_KERNEL_COUNT];

/* Loading ---------------------------------------------------------------------------------------------- */

static cuda_result load(const void *image, const int *level, struct CUmod_st **module_out,
                        struct cuda_complaint *complaint_out)
{
    int options[] = {CUDA_JIT_ERRORS, CUDA_JIT_ERRORS_BYTES, CUDA_JIT_OPTIMIZATION};
    void *values[] = {complaint_out->text, (void *)(uintptr_t)(sizeof complaint_out->text - 1),
                      (void *)(uintptr_t)(level ? *level : 0)};
    memset(complaint_out, 0, sizeof *complaint_out);
    cuda_result result = cuda.cuModuleLoadDataEx(module_out, image, level ? 3 : 2, options, values);
    complaint_out->text[strcspn(complaint_out->text, "\n")] = '\0';
    return result;
}

cuda_result cuda_load_image(const void *image, struct CUmod_st **module_out,
                            struct cuda_complaint *complaint_out)
{
    return load(image, NULL, module_out, complaint_out);
}

/* The driver compiles PTX when it is loaded, at its lowest level that keeps values in registers: higher ones take longer, and
   kernels that wait for memory gain nothing. */
static cuda_result load_ptx(const struct cuda_image *image, struct CUmod_st **module_out)
{
    const int level = 1;
    struct cuda_complaint complaint;
    cuda_result result = load(image->ptx, &level, module_out, &complaint);
    if (complaint.text[0] != '\0') {
        cuda_services->log(SHOAL_LOG_ERROR, "cuda kernels %s refused %s", image->family, complaint.text);
    }
    return result;
}

/* Under the lock, inside of cuda_enter. Machine code of another kind of GPU is refused by the driver. */
static bool need_module(enum cuda_family family)
{
    const struct cuda_image *image = &cuda_images[family];
    const char *kind = "cubin";
    if (modules[family]) {
        return true;
    }
    cuda_result result = image->cubin ? cuda.cuModuleLoadDataEx(&modules[family], image->cubin, 0, NULL, NULL)
                                      : CUDA_NOT_FOUND;
    if (result != CUDA_OK) {
        kind = "ptx";
        result = load_ptx(image, &modules[family]);
    }
    if (result != CUDA_OK) {
        modules[family] = NULL;
        cuda_fail("cuModuleLoadDataEx", result, image->family);
        return false;
    }
    cuda_services->log(SHOAL_LOG_INFO, "cuda kernels %s loaded from %s", image->family, kind);
    return true;
}

/* Inside of cuda_enter. NULL, and the device has failed, if there is none. */
static struct CUfunc_st *find_function(enum cuda_kernel kernel)
{
    /* Acquire: pairs with the release below. What the driver has loaded is there. */
    struct CUfunc_st *function = atomic_load_explicit(&functions[kernel], memory_order_acquire);
    if (function) {
        return function;
    }
    (void)pthread_mutex_lock(&lock);
    function = atomic_load_explicit(&functions[kernel], memory_order_relaxed);
    if (!function && need_module(rows[kernel].family)) {
        cuda_result result =
            cuda.cuModuleGetFunction(&function, modules[rows[kernel].family], rows[kernel].name);
        if (result == CUDA_OK) {
            atomic_store_explicit(&functions[kernel], function, memory_order_release);
        } else {
            function = NULL;
            cuda_fail("cuModuleGetFunction", result, rows[kernel].name);
        }
    }
    (void)pthread_mutex_unlock(&lock);
    return function;
}

/* Launching -------------------------------------------------------------------------------------------- */

void cuda_launch(enum cuda_kernel kernel, const void *arguments, struct cuda_grid grid)
{
    if (grid.n_blocks == 0 || !cuda_enter()) {
        return;
    }
    struct CUfunc_st *function = find_function(kernel);
    if (function) {
        void *parameters[] = {(void *)(uintptr_t)arguments};
        cuda_result result = cuda.cuLaunchKernel(function, grid.n_blocks, 1, 1, grid.n_threads, 1, 1,
                                                 grid.shared_bytes, cuda_stream(), parameters, NULL);
        if (result != CUDA_OK) {
            cuda_fail("cuLaunchKernel", result, rows[kernel].name);
        }
    }
    cuda_leave();
}

uint32_t cuda_blocks_most(void)
{
    return (uint32_t)cuda_gpu.multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
}

uint64_t cuda_stage(const void *bytes, size_t n_bytes)
{
    void *staged = cuda_allocate(n_bytes, DEVICE_TENSORS, cuda_stream());
    if (staged && cuda_copy_in(staged, bytes, n_bytes) != SHOAL_OK) {
        cuda_release(staged, cuda_stream());
        staged = NULL;
    }
    return (uint64_t)(uintptr_t)staged;
}

void cuda_unstage(uint64_t staged)
{
    cuda_release((void *)(uintptr_t)staged, cuda_stream());
}
