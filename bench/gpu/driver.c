/* SPDX-License-Identifier: MIT */
#include "driver.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "device/device.h"
#include "shoal/dlpack.h"
#include "shoal/status.h"

#define DRIVER_FILE "libcuda.so.1"
#define INTERFACE_VERSION 12000
#define POISON 0xa5

struct gpu_driver cu;
static shoal_device device;
static struct CUstream_st *stream;

void gpu_end(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)fflush(stdout);
    (void)vfprintf(stderr, format, arguments);
    (void)fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

void gpu_need(shoal_status status, const char *what)
{
    if (status != SHOAL_OK) {
        gpu_end("%s: %s", what, shoal_error_text());
    }
}

void gpu_check(cuda_result result, const char *call)
{
    const char *name = NULL;
    if (result != CUDA_OK) {
        (void)cu.cuGetErrorName(result, &name);
        gpu_end("%s: %s (%d)", call, name ? name : "unknown", result);
    }
}

/* Opening ------------------------------------------------------------------------------------------------ */

typedef cuda_result find_function(const char *name, void **function_out, int version, uint64_t flags,
                                  int *status_out);

/* The library that the module has opened: it is not loaded twice. */
static void *open_again(void)
{
    const char *given = getenv("SHOAL_CUDA");
    const char *path = given && *given ? given : DRIVER_FILE;
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (!library) {
        gpu_end("%s is not what the module has opened", path);
    }
    return library;
}

static void find_functions(void *library)
{
    find_function *find = NULL;
    *(void **)&find = dlsym(library, "cuGetProcAddress_v2");
#define CUDA_CALL(name, parameters)                                                                   \
    if (!find || find(#name, (void **)&cu.name, INTERFACE_VERSION, 0, NULL) != CUDA_OK || !cu.name) { \
        gpu_end("the driver has no " #name);                                                          \
    }
#include "cuda/driver.def"
    CUDA_CALL(cuEventElapsedTime, ())
#undef CUDA_CALL
}

shoal_device gpu_open(void)
{
    struct CUctx_st *context = NULL;
    int64_t number = 0;
    cuda_device ordinal = 0;
    gpu_need(shoal_device_find("cuda", &device), "device cuda");
    find_functions(open_again());
    GPU(cuDeviceGet(&ordinal, device_row(device)->dlpack_id));
    GPU(cuDevicePrimaryCtxRetain(&context, ordinal));
    GPU(cuCtxPushCurrent(context));
    gpu_need(shoal_device_stream(device, &number), "the stream of device cuda");
    stream = (struct CUstream_st *)(uintptr_t)number;
    return device;
}

struct counted *gpu_counted(void)
{
    return dlsym(open_again(), COUNTED_SYMBOL);
}

struct CUstream_st *gpu_stream(void)
{
    return stream;
}

void gpu_wait(void)
{
    GPU(cuStreamSynchronize(stream));
}

/* Memory ------------------------------------------------------------------------------------------------- */

struct address gpu_allocate(size_t bytes)
{
    struct address memory = ADDRESS_NONE;
    gpu_need(device_memory_allocate(device, bytes, &memory), "memory of the device");
    return memory;
}

void gpu_free(struct address memory)
{
    device_memory_free(device, memory);
}

void gpu_upload(struct address target, const void *source, size_t bytes)
{
    GPU(cuMemcpyHtoDAsync(address_number(target), source, bytes, stream));
    gpu_wait();
}

void gpu_download(void *target, struct address source, size_t bytes)
{
    GPU(cuMemcpyDtoHAsync(target, address_number(source), bytes, stream));
    gpu_wait();
}

void gpu_poison(struct address target, size_t bytes)
{
    GPU(cuMemsetD8Async(address_number(target), POISON, bytes, stream));
}

/* Times -------------------------------------------------------------------------------------------------- */

struct gpu_timer gpu_timer_make(void)
{
    struct gpu_timer timer;
    GPU(cuEventCreate(&timer.begin, 0));
    GPU(cuEventCreate(&timer.end, 0));
    return timer;
}

void gpu_timer_begin(const struct gpu_timer *timer)
{
    GPU(cuEventRecord(timer->begin, stream));
}

double gpu_timer_end_us(const struct gpu_timer *timer)
{
    float ms = 0;
    GPU(cuEventRecord(timer->end, stream));
    gpu_wait();
    GPU(cuEventElapsedTime(&ms, timer->begin, timer->end));
    return (double)ms * 1e3;
}

static int compare(const void *a, const void *b)
{
    double first = *(const double *)a;
    double second = *(const double *)b;
    return (first > second) - (first < second);
}

double gpu_median(double *values, size_t n_values)
{
    qsort(values, n_values, sizeof values[0], compare);
    return n_values % 2 == 1 ? values[n_values / 2] : (values[n_values / 2 - 1] + values[n_values / 2]) / 2;
}
