/* SPDX-License-Identifier: MIT */
/* For tests of the CUDA driver for tests: its functions, and what most tests begin with. */
#ifndef FAKECUDA_OPENED_H
#define FAKECUDA_OPENED_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/driver_types.h"
#include "harness/test.h"
#include "modules/apart/settings.h"

typedef cuda_result find_function(const char *name, void **function_out, int version, uint64_t flags,
                                  int *status_out);

static struct {
#define CUDA_CALL(name, parameters) cuda_result(*name) parameters;
#include "cuda/driver.def"
#undef CUDA_CALL
} cu;
static find_function *find;
static struct apart_settings *settings;
static bool is_lazy;

/* A test calls it in a constructor: no test can do without. */
static inline void open_driver(void)
{
    void *library = dlopen(TEST_FAKECUDA, RTLD_NOW | RTLD_LOCAL);
    const char *mode = getenv("FAKECUDA_MODE");
    is_lazy = mode && strcmp(mode, "lazy") == 0;
    settings = library ? dlsym(library, "fakecuda_settings") : NULL;
    *(void **)&find = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    if (!settings || !find) {
        (void)fprintf(stderr, "%s: %s\n", TEST_FAKECUDA, dlerror());
        abort();
    }
#define CUDA_CALL(name, parameters) (void)find(#name, (void **)&cu.name, 12000, 0, NULL);
#include "cuda/driver.def"
#undef CUDA_CALL
}

#define CHECK_CU(call) CHECK_INT(call, CUDA_OK)
#define BYTES 1000

enum {
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    INVALID_PTX = 218,
    INVALID_HANDLE = 400,
    CONTEXT_IS_DESTROYED = 709
};

static struct CUctx_st *context;
static struct CUmemPoolHandle_st *pool;

/* The context becomes current, and a pool is made that keeps what it has reserved. */
static inline void begin(void)
{
    const struct cuda_pool_properties properties = {.allocation = CUDA_ALLOCATION_PINNED,
                                                    .location = CUDA_LOCATION_DEVICE};
    uint64_t keeps = UINT64_MAX;
    CHECK_CU(cu.cuInit(0));
    CHECK_CU(cu.cuDevicePrimaryCtxRetain(&context, 0));
    CHECK_CU(cu.cuCtxPushCurrent(context));
    CHECK_CU(cu.cuMemPoolCreate(&pool, &properties));
    CHECK_CU(cu.cuMemPoolSetAttribute(pool, CUDA_POOL_KEEPS, &keeps));
}

static inline void end(void)
{
    atomic_store(&settings->seed, 0);
    CHECK_CU(cu.cuMemPoolDestroy(pool));
    CHECK_CU(cu.cuCtxPopCurrent(NULL));
    CHECK_CU(cu.cuDevicePrimaryCtxRelease(0));
}

static inline struct CUstream_st *make_stream(void)
{
    struct CUstream_st *stream = NULL;
    CHECK_CU(cu.cuStreamCreateWithPriority(&stream, CUDA_STREAM_NON_BLOCKING, 0));
    return stream;
}

static inline struct CUevent_st *make_event(void)
{
    struct CUevent_st *event = NULL;
    CHECK_CU(cu.cuEventCreate(&event, CUDA_EVENT_DISABLE_TIMING));
    return event;
}

static inline cuda_address allocate(struct CUstream_st *stream)
{
    cuda_address memory = 0;
    CHECK_CU(cu.cuMemAllocFromPoolAsync(&memory, BYTES, pool, stream));
    return memory;
}

static inline void hold(struct CUstream_st *stream)
{
    atomic_store(&settings->held_stream, stream);
}

/* Tests look at memory, and change it, while a stream may use it. The thread sanitizer is not to see that. */
#define UNSEEN __attribute__((noinline, unused, no_sanitize("thread")))

UNSEEN static bool is_filled(const unsigned char *bytes, unsigned char value)
{
    size_t i = 0;
    while (i < BYTES && bytes[i] == value) {
        i++;
    }
    return i == BYTES;
}

UNSEEN static void fill(unsigned char *bytes, unsigned char value)
{
    for (size_t i = 0; i < BYTES; i++) {
        ((volatile unsigned char *)bytes)[i] = value;
    }
}

/* All bytes of the memory, when a stream has done its work. */
static inline bool holds(struct CUstream_st *stream, cuda_address memory, unsigned char value)
{
    unsigned char bytes[BYTES];
    CHECK_CU(cu.cuMemcpyDtoHAsync(bytes, memory, BYTES, stream));
    return is_filled(bytes, value);
}

static inline uint64_t attribute(int number)
{
    uint64_t value = 0;
    CHECK_CU(cu.cuMemPoolGetAttribute(pool, number, &value));
    return value;
}

#endif
