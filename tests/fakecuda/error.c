/* SPDX-License-Identifier: MIT */
/* Failures, names of errors, and the functions by their names. */
#include "fakecuda/fake.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INTERFACE_VERSION 12000

/* Failures ----------------------------------------------------------------------------------------------- */

static _Atomic int failure;

static void forget_failure(void)
{
    atomic_store(&failure, CUDA_OK);
}

static void *reach(const void *data, size_t bytes)
{
    return fake_reach((cuda_address)(uintptr_t)data, bytes);
}

FAKE_EXPORT const int fakecuda_has_controls = 1;
FAKE_EXPORT struct apart_settings fakecuda_settings = {.forget_failure = forget_failure, .reach = reach};

__attribute__((constructor)) static void set_seed(void)
{
    const char *seed = getenv("TEST_APART_SEED");
    atomic_store(&fakecuda_settings.seed, seed ? strtoull(seed, NULL, 10) : 0);
}

void fake_fail(cuda_result result, const char *format, ...)
{
    int none = CUDA_OK;
    if (atomic_compare_exchange_strong(&failure, &none, result) && format) {
        va_list arguments;
        va_start(arguments, format);
        (void)fprintf(stderr, "fakecuda: the device has failed (%d): ", result);
        (void)vfprintf(stderr, format, arguments);
        (void)fprintf(stderr, "\n");
        va_end(arguments);
    }
}

cuda_result fake_failure(void)
{
    /* Relaxed, here and below: what tests set stands for itself, and a failure is no order between streams. */
    return atomic_load_explicit(&failure, memory_order_relaxed);
}

bool fake_has_memory(void)
{
    int64_t left = atomic_load_explicit(&fakecuda_settings.no_memory_at, memory_order_relaxed);
    return left <= 0 ||
           atomic_fetch_sub_explicit(&fakecuda_settings.no_memory_at, 1, memory_order_relaxed) != 1;
}

uint64_t fake_random(uint64_t *state)
{
    uint64_t seed = atomic_load_explicit(&fakecuda_settings.seed, memory_order_relaxed);
    *state = (*state ^ seed) * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* Names -------------------------------------------------------------------------------------------------- */

static const struct {
    cuda_result result;
    const char *name;
    const char *text;
} errors[] = {
    {CUDA_OK, "CUDA_SUCCESS", "no error"},
    {CUDA_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {FAKE_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {FAKE_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {FAKE_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {FAKE_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {FAKE_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {FAKE_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {CUDA_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

static size_t find_error(cuda_result result)
{
    size_t n_errors = sizeof errors / sizeof errors[0];
    size_t i = 0;
    while (i < n_errors && errors[i].result != result) {
        i++;
    }
    return i < n_errors ? i : SIZE_MAX;
}

cuda_result cuGetErrorName(cuda_result result, const char **name_out)
{
    size_t i = find_error(result);
    *name_out = i == SIZE_MAX ? NULL : errors[i].name;
    return i == SIZE_MAX ? CUDA_INVALID_VALUE : CUDA_OK;
}

cuda_result cuGetErrorString(cuda_result result, const char **text_out)
{
    size_t i = find_error(result);
    *text_out = i == SIZE_MAX ? NULL : errors[i].text;
    return i == SIZE_MAX ? CUDA_INVALID_VALUE : CUDA_OK;
}

/* Functions by their names --------------------------------------------------------------------------------- */

cuda_result cuDriverGetVersion(int *version_out)
{
    if (!version_out) {
        return CUDA_INVALID_VALUE;
    }
    *version_out = INTERFACE_VERSION;
    return CUDA_OK;
}

/* The status says why there is no function: 1, nothing has that name; 2, it is newer than the version that was asked
   for. */
static cuda_result give_function(void *function, int status, void **function_out, int *status_out)
{
    *function_out = function;
    if (status_out) {
        *status_out = status;
    }
    return function ? CUDA_OK : CUDA_NOT_FOUND;
}

cuda_result cuGetProcAddress_v2(const char *symbol, void **function_out, int version, uint64_t flags,
                                int *status_out)
{
    static const struct {
        const char *name;
        void (*function)(void);
    } functions[] = {
#define CUDA_CALL(name, parameters) {#name, (void (*)(void))(name)},
#include "cuda/driver.def"
#undef CUDA_CALL
        {"cuEventElapsedTime", (void (*)(void))cuEventElapsedTime},
        {"cuGetProcAddress", (void (*)(void))cuGetProcAddress_v2},
    };
    if (!symbol || !function_out || flags > 2) {
        return CUDA_INVALID_VALUE;
    }
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (strcmp(functions[i].name, symbol) == 0) {
            void *found = NULL;
            memcpy(&found, &functions[i].function, sizeof found);
            return version < INTERFACE_VERSION ? give_function(NULL, 2, function_out, status_out)
                                               : give_function(found, 0, function_out, status_out);
        }
    }
    return give_function(NULL, 1, function_out, status_out);
}
