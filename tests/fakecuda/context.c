/* SPDX-License-Identifier: MIT */
/*
 * Start, devices and contexts. Each device has its primary context only, which lives while somebody retains it; what
 * was made in it stays when it ends. Which context is current is a stack of each thread.
 */
#include "fakecuda/fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEVICES_MOST 8
#define STACK_MOST 16

struct CUctx_st {
    _Atomic int64_t n_retained;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of cuInit */
static _Atomic pid_t process;                            /* that has called cuInit; 0: none has */
static int n_devices;
static struct CUctx_st contexts[DEVICES_MOST];

static FAKE_OF_THREAD struct CUctx_st *current[STACK_MOST];
static FAKE_OF_THREAD size_t n_current;

/* What calls check --------------------------------------------------------------------------------------- */

/* A process that was forked off cannot use the driver. */
static cuda_result check_process(void)
{
    /* Acquire: pairs with the release in cuInit. */
    pid_t known = atomic_load_explicit(&process, memory_order_acquire);
    if (known == getpid()) {
        return CUDA_OK;
    }
    if (known != 0) {
        (void)atomic_fetch_add(&fakecuda_settings.n_inherited, 1);
    }
    return CUDA_NOT_INITIALIZED;
}

static cuda_result check_context(void)
{
    cuda_result result = check_process();
    if (result != CUDA_OK) {
        return result;
    }
    if (n_current == 0) {
        return FAKE_INVALID_CONTEXT;
    }
    /* Relaxed: a context that another thread ends meanwhile is that thread's mistake. */
    bool is_alive = atomic_load_explicit(&current[n_current - 1]->n_retained, memory_order_relaxed) > 0;
    return is_alive ? CUDA_OK : FAKE_CONTEXT_IS_DESTROYED;
}

/* Relaxed: what tests set and read stands for itself. */
static void count_call(void)
{
    (void)atomic_fetch_add_explicit(&fakecuda_settings.n_calls, 1, memory_order_relaxed);
    int64_t left = atomic_load_explicit(&fakecuda_settings.fail_at, memory_order_relaxed);
    if (left > 0 && atomic_fetch_sub_explicit(&fakecuda_settings.fail_at, 1, memory_order_relaxed) == 1) {
        fake_fail(CUDA_LAUNCH_FAILED, NULL);
    }
}

cuda_result fake_begin(void)
{
    cuda_result result = check_context();
    if (result != CUDA_OK) {
        return result;
    }
    count_call();
    return fake_failure();
}

cuda_result fake_begin_device(void)
{
    cuda_result result = check_process();
    if (result != CUDA_OK) {
        return result;
    }
    count_call();
    return fake_failure();
}

cuda_result fake_begin_query(void)
{
    cuda_result result = check_context();
    return result == CUDA_OK ? fake_failure() : result;
}

bool fake_may_free(cuda_result begun)
{
    return begun == CUDA_OK || begun == fake_failure();
}

/* Devices ------------------------------------------------------------------------------------------------ */

static bool read_mode(void)
{
    const char *mode = getenv("FAKECUDA_MODE");
    fake_is_lazy = mode && strcmp(mode, "lazy") == 0;
    if (mode && !fake_is_lazy && strcmp(mode, "threads") != 0) {
        (void)fprintf(stderr, "fakecuda: FAKECUDA_MODE is \"%s\", and not threads or lazy\n", mode);
        return false;
    }
    return true;
}

/* Under the lock. */
static cuda_result start(void)
{
    const char *wanted = getenv("FAKECUDA_DEVICES");
    unsigned long number = wanted ? strtoul(wanted, NULL, 10) : 1;
    n_devices = (int)(number < DEVICES_MOST ? number : DEVICES_MOST);
    if (n_devices == 0) {
        return CUDA_NO_DEVICE;
    }
    if (!read_mode()) {
        return CUDA_INVALID_VALUE;
    }
    if (!fake_memory_open()) {
        return CUDA_OUT_OF_MEMORY;
    }
    /* Release: pairs with the acquire in check_process. */
    atomic_store_explicit(&process, getpid(), memory_order_release);
    return CUDA_OK;
}

cuda_result cuInit(unsigned flags)
{
    pid_t known = atomic_load(&process);
    if (known != 0 && known != getpid()) {
        return check_process();
    }
    if (flags != 0) {
        return CUDA_INVALID_VALUE;
    }
    (void)pthread_mutex_lock(&lock);
    cuda_result result = atomic_load(&process) == 0 ? start() : CUDA_OK;
    (void)pthread_mutex_unlock(&lock);
    if (result != CUDA_OK) {
        return result;
    }
    return fake_begin_device();
}

cuda_result cuDeviceGetCount(int *count_out)
{
    cuda_result result = fake_begin_device();
    if (result == CUDA_OK && !count_out) {
        return CUDA_INVALID_VALUE;
    }
    if (result == CUDA_OK) {
        *count_out = n_devices;
    }
    return result;
}

bool fake_is_device(cuda_device device)
{
    return device >= 0 && device < n_devices;
}

static cuda_result begin_of(const void *out, cuda_device device)
{
    cuda_result result = fake_begin_device();
    if (result != CUDA_OK) {
        return result;
    }
    if (!out) {
        return CUDA_INVALID_VALUE;
    }
    return fake_is_device(device) ? CUDA_OK : FAKE_INVALID_DEVICE;
}

cuda_result cuDeviceGet(cuda_device *device_out, int ordinal)
{
    cuda_result result = begin_of(device_out, ordinal);
    if (result == CUDA_OK) {
        *device_out = ordinal;
    }
    return result;
}

cuda_result cuDeviceGetName(char *name, int bytes, cuda_device device)
{
    cuda_result result = begin_of(name, device);
    if (result == CUDA_OK && bytes <= 0) {
        return CUDA_INVALID_VALUE;
    }
    if (result == CUDA_OK) {
        (void)snprintf(name, (size_t)bytes, "Fake GPU");
    }
    return result;
}

cuda_result cuDeviceGetAttribute(int *value_out, int attribute, cuda_device device)
{
    /* Few multiprocessors, so that threads of small kernels have several elements each. */
    static const int values[][2] = {{CUDA_MULTIPROCESSORS, 2},
                                    {CUDA_CAPABILITY_MAJOR, 8},
                                    {CUDA_CAPABILITY_MINOR, 0},
                                    {CUDA_HAS_POOLS, 1}};
    cuda_result result = begin_of(value_out, device);
    if (result != CUDA_OK) {
        return result;
    }
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        if (values[i][0] == attribute) {
            *value_out = values[i][1];
            return CUDA_OK;
        }
    }
    return CUDA_INVALID_VALUE;
}

cuda_result cuDeviceTotalMem(size_t *bytes_out, cuda_device device)
{
    cuda_result result = begin_of(bytes_out, device);
    if (result == CUDA_OK) {
        *bytes_out = FAKE_SPACE_BYTES;
    }
    return result;
}

/* Contexts ----------------------------------------------------------------------------------------------- */

cuda_result cuDevicePrimaryCtxRetain(struct CUctx_st **context_out, cuda_device device)
{
    cuda_result result = begin_of(context_out, device);
    if (result == CUDA_OK) {
        (void)atomic_fetch_add(&contexts[device].n_retained, 1);
        *context_out = &contexts[device];
    }
    return result;
}

/* Frees, and needs no current context. */
cuda_result cuDevicePrimaryCtxRelease(cuda_device device)
{
    cuda_result result = check_process();
    if (result != CUDA_OK) {
        return result;
    }
    if (!fake_is_device(device)) {
        return FAKE_INVALID_DEVICE;
    }
    int64_t n_retained = atomic_load(&contexts[device].n_retained);
    while (n_retained > 0 &&
           !atomic_compare_exchange_weak(&contexts[device].n_retained, &n_retained, n_retained - 1)) {
    }
    return n_retained > 0 ? fake_failure() : FAKE_INVALID_CONTEXT;
}

static bool is_context(const struct CUctx_st *context)
{
    for (int i = 0; i < n_devices; i++) {
        if (context == &contexts[i]) {
            return atomic_load_explicit(&context->n_retained, memory_order_relaxed) > 0;
        }
    }
    return false;
}

cuda_result cuCtxPushCurrent(struct CUctx_st *context)
{
    cuda_result result = check_process();
    if (result != CUDA_OK) {
        return result;
    }
    if (!is_context(context)) {
        return FAKE_INVALID_CONTEXT;
    }
    if (n_current == STACK_MOST) {
        (void)fprintf(stderr, "fakecuda: a thread has %d current contexts, as if it never gave one up\n",
                      STACK_MOST);
        return CUDA_OUT_OF_MEMORY;
    }
    current[n_current++] = context;
    return CUDA_OK;
}

cuda_result cuCtxPopCurrent(struct CUctx_st **context_out)
{
    cuda_result result = check_process();
    if (result != CUDA_OK) {
        return result;
    }
    if (n_current == 0) {
        return FAKE_INVALID_CONTEXT;
    }
    n_current--;
    if (context_out) {
        *context_out = current[n_current];
    }
    return CUDA_OK;
}
