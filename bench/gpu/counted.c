/* SPDX-License-Identifier: MIT */
/*
 * A CUDA driver that counts: it has the functions of another one, and some of them count, or take the time, before they call
 * that one. SHOAL_CUDA names this library; COUNTED_DRIVER the other one, libcuda.so.1 by default. The library under test needs
 * no counters of its own, and is timed without these.
 */
#include "counted.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/driver_types.h"

#define COUNTED_EXPORT __attribute__((visibility("default")))
#define FUNCTIONS_MOST 256

typedef cuda_result find_function(const char *name, void **function_out, int version, uint64_t flags,
                                  int *status_out);
COUNTED_EXPORT find_function cuGetProcAddress_v2;

extern COUNTED_EXPORT struct counted counted_calls;
struct counted counted_calls;

static struct {
#define CUDA_CALL(name, parameters) cuda_result(*name) parameters;
#include "cuda/driver.def"
#undef CUDA_CALL
} real;

static void add(_Atomic uint64_t *counter, uint64_t n)
{
    /* Relaxed: a number that stands for itself. */
    (void)atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Loading ------------------------------------------------------------------------------------------------ */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct CUfunc_st *launched[FUNCTIONS_MOST]; /* under the lock */

static bool is_first(const struct CUfunc_st *function)
{
    size_t i = 0;
    (void)pthread_mutex_lock(&lock);
    while (i < FUNCTIONS_MOST && launched[i] && launched[i] != function) {
        i++;
    }
    bool is_new = i < FUNCTIONS_MOST && !launched[i];
    if (is_new) {
        launched[i] = function;
    }
    (void)pthread_mutex_unlock(&lock);
    return is_new;
}

static cuda_result load(struct CUmod_st **module_out, const void *image, unsigned n_options, int *options,
                        void **values)
{
    uint64_t begin_ns = now_ns();
    cuda_result result = real.cuModuleLoadDataEx(module_out, image, n_options, options, values);
    add(&counted_calls.image_ns, now_ns() - begin_ns);
    add(&counted_calls.n_images, 1);
    return result;
}

static cuda_result find_in_module(struct CUfunc_st **function_out, struct CUmod_st *module, const char *name)
{
    uint64_t begin_ns = now_ns();
    cuda_result result = real.cuModuleGetFunction(function_out, module, name);
    add(&counted_calls.function_ns, now_ns() - begin_ns);
    add(&counted_calls.n_functions, 1);
    return result;
}

static cuda_result launch(struct CUfunc_st *function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z,
                          unsigned threads_x, unsigned threads_y, unsigned threads_z, unsigned shared_bytes,
                          struct CUstream_st *stream, void **parameters, void **extra)
{
    bool is_loaded = !is_first(function);
    uint64_t begin_ns = is_loaded ? 0 : now_ns();
    cuda_result result = real.cuLaunchKernel(function, blocks_x, blocks_y, blocks_z, threads_x, threads_y,
                                             threads_z, shared_bytes, stream, parameters, extra);
    if (!is_loaded) {
        add(&counted_calls.first_launch_ns, now_ns() - begin_ns);
    }
    add(&counted_calls.n_launches, 1);
    return result;
}

/* Counting ----------------------------------------------------------------------------------------------- */

static cuda_result copy_in(cuda_address target, const void *source, size_t bytes, struct CUstream_st *stream)
{
    add(&counted_calls.n_copies, 1);
    return real.cuMemcpyHtoDAsync(target, source, bytes, stream);
}

static cuda_result copy_out(void *target, cuda_address source, size_t bytes, struct CUstream_st *stream)
{
    add(&counted_calls.n_copies, 1);
    return real.cuMemcpyDtoHAsync(target, source, bytes, stream);
}

static cuda_result copy(cuda_address target, cuda_address source, size_t bytes, struct CUstream_st *stream)
{
    add(&counted_calls.n_copies, 1);
    return real.cuMemcpyDtoDAsync(target, source, bytes, stream);
}

static cuda_result fill(cuda_address target, unsigned char value, size_t count, struct CUstream_st *stream)
{
    add(&counted_calls.n_copies, 1);
    return real.cuMemsetD8Async(target, value, count, stream);
}

static cuda_result allocate(cuda_address *memory_out, size_t bytes, struct CUmemPoolHandle_st *pool,
                            struct CUstream_st *stream)
{
    add(&counted_calls.n_allocations, 1);
    return real.cuMemAllocFromPoolAsync(memory_out, bytes, pool, stream);
}

static cuda_result record(struct CUevent_st *event, struct CUstream_st *stream)
{
    add(&counted_calls.n_events, 1);
    return real.cuEventRecord(event, stream);
}

static cuda_result follow(struct CUstream_st *stream, struct CUevent_st *event, unsigned flags)
{
    add(&counted_calls.n_events, 1);
    return real.cuStreamWaitEvent(stream, event, flags);
}

/* Functions by their names ------------------------------------------------------------------------------- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static find_function *find;

static void open_driver(void)
{
    const char *given = getenv("COUNTED_DRIVER");
    void *library = dlopen(given && *given ? given : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    *(void **)&find = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
}

/* Where the other driver's function is kept, and the one that counts. */
#define COUNTS(name, function)                                 \
    {                                                          \
#name, (void **)&real.name, (void (*)(void))(function) \
    }
static const struct {
    const char *name;
    void **real;
    void (*function)(void);
} counting[] = {
    COUNTS(cuModuleLoadDataEx, load),    COUNTS(cuModuleGetFunction, find_in_module),
    COUNTS(cuLaunchKernel, launch),      COUNTS(cuMemcpyHtoDAsync, copy_in),
    COUNTS(cuMemcpyDtoHAsync, copy_out), COUNTS(cuMemcpyDtoDAsync, copy),
    COUNTS(cuMemsetD8Async, fill),       COUNTS(cuMemAllocFromPoolAsync, allocate),
    COUNTS(cuEventRecord, record),       COUNTS(cuStreamWaitEvent, follow),
};

cuda_result cuGetProcAddress_v2(const char *name, void **function_out, int version, uint64_t flags,
                                int *status_out)
{
    (void)pthread_once(&once, open_driver);
    cuda_result result = find ? find(name, function_out, version, flags, status_out) : CUDA_NOT_FOUND;
    for (size_t i = 0; result == CUDA_OK && i < sizeof counting / sizeof counting[0]; i++) {
        if (strcmp(counting[i].name, name) == 0) {
            *counting[i].real = *function_out;
            memcpy(function_out, &counting[i].function, sizeof *function_out);
        }
    }
    return result;
}
