/* SPDX-License-Identifier: MIT */
#include "cuda/failure.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "cuda/driver.h"
#include "cuda/services.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char reason[240]; /* under the lock until has_failed is set, and then constant */
static _Atomic uint32_t has_failed;

void cuda_fail(const char *call, cuda_result result, const char *what)
{
    const char *name = NULL;
    const char *text = NULL;
    (void)cuda.cuGetErrorName(result, &name);
    (void)cuda.cuGetErrorString(result, &text);
    (void)pthread_mutex_lock(&lock);
    if (!atomic_load_explicit(&has_failed, memory_order_relaxed)) {
        (void)snprintf(reason, sizeof reason, "%s%s%s: %s (%d): %s", call, what ? " of " : "",
                       what ? what : "", name ? name : "unknown", result, text ? text : "no text");
        /* Release: pairs with the acquire in cuda_has_failed. The reason is there. */
        atomic_store_explicit(&has_failed, 1, memory_order_release);
    }
    (void)pthread_mutex_unlock(&lock);
}

bool cuda_has_failed(void)
{
    return atomic_load_explicit(&has_failed, memory_order_acquire) != 0;
}

bool cuda_is_refusal(cuda_result result)
{
    bool is_of_image_or_name = result >= CUDA_INVALID_IMAGE && result < CUDA_NOT_READY &&
                               result != CUDA_MEMORY_DAMAGED && result != CUDA_LINK_FAILED;
    return result == CUDA_INVALID_VALUE || result == CUDA_OUT_OF_RESOURCES || result == CUDA_NOT_PERMITTED ||
           result == CUDA_NOT_SUPPORTED || is_of_image_or_name;
}

shoal_status cuda_failure(void)
{
    return cuda_has_failed() ? cuda_services->set_error(SHOAL_ERR_SYSTEM, "device %s has failed: %s",
                                                        cuda_row->name, reason)
                             : SHOAL_OK;
}

shoal_status cuda_pass_on(shoal_status status)
{
    return status == SHOAL_OK ? SHOAL_OK : cuda_services->set_error(status, "%s", shoal_error_text());
}

#ifdef SHOAL_FAIL_POINTS
/* For tests: a driver that has forgotten its failure can be used again. */
DEVICE_MODULE_EXPORT void cuda_forget_failure(void);
void cuda_forget_failure(void)
{
    (void)pthread_mutex_lock(&lock);
    atomic_store_explicit(&has_failed, 0, memory_order_relaxed);
    (void)pthread_mutex_unlock(&lock);
}
#endif
