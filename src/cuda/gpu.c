/* SPDX-License-Identifier: MIT */
/* Takes the GPU of the process, and its context. */
#include "cuda/gpu.h"

#include <stdlib.h>

#include "base/options.h"
#include "base/try.h"
#include "cuda/driver.h"
#include "cuda/failure.h"
#include "cuda/services.h"

struct cuda_gpu cuda_gpu;

/* The GPU ---------------------------------------------------------------------------------------------- */

/* A failure before there is a device. */
static shoal_status check(const char *call, cuda_result result)
{
    const char *name = NULL;
    const char *text = NULL;
    if (result == CUDA_OK) {
        return SHOAL_OK;
    }
    (void)cuda.cuGetErrorName(result, &name);
    (void)cuda.cuGetErrorString(result, &text);
    return cuda_services->set_error(SHOAL_ERR_UNSUPPORTED, "%s of %s: %s (%d): %s", call, cuda_driver_path(),
                                    name ? name : "unknown", result, text ? text : "no text");
}

/* Names that launchers give to the number of a rank among those of its host. */
static const char *const local_ranks[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                          "SLURM_LOCALID", "SHOAL_RANK"};

/* SHOAL_CUDA_DEVICE, or else the local rank, over and over if there are more ranks than GPUs. */
static shoal_status choose(int n_gpus, int *ordinal_out)
{
    int64_t given = option_int(OPTION_CUDA_DEVICE);
    if (given >= n_gpus) {
        return cuda_services->set_error(SHOAL_ERR_UNSUPPORTED,
                                        "SHOAL_CUDA_DEVICE is %d, but there are %d GPUs", (int)given, n_gpus);
    }
    *ordinal_out = given >= 0 ? (int)given : 0;
    for (size_t i = 0; given < 0 && i < sizeof local_ranks / sizeof local_ranks[0]; i++) {
        const char *text = getenv(local_ranks[i]);
        if (text && *text) {
            *ordinal_out = (int)(strtoul(text, NULL, 10) % (unsigned long)n_gpus);
            break;
        }
    }
    return SHOAL_OK;
}

static shoal_status take_gpu(void)
{
    int n_gpus = 0;
    int major = 0;
    int minor = 0;
    int has_pools = 0;
    TRY(check("cuInit", cuda.cuInit(0)));
    TRY(check("cuDriverGetVersion", cuda.cuDriverGetVersion(&cuda_gpu.driver_version)));
    TRY(check("cuDeviceGetCount", cuda.cuDeviceGetCount(&n_gpus)));
    if (n_gpus == 0) {
        return cuda_services->set_error(SHOAL_ERR_UNSUPPORTED, "%s has no GPU", cuda_driver_path());
    }
    TRY(choose(n_gpus, &cuda_gpu.ordinal));
    TRY(check("cuDeviceGet", cuda.cuDeviceGet(&cuda_gpu.device, cuda_gpu.ordinal)));
    TRY(check("cuDeviceGetName", cuda.cuDeviceGetName(cuda_gpu.name, sizeof cuda_gpu.name, cuda_gpu.device)));
    TRY(check("cuDeviceTotalMem", cuda.cuDeviceTotalMem(&cuda_gpu.memory_bytes, cuda_gpu.device)));
    const struct {
        int attribute;
        int *value;
    } attributes[] = {{CUDA_MULTIPROCESSORS, &cuda_gpu.multiprocessors},
                      {CUDA_CAPABILITY_MAJOR, &major},
                      {CUDA_CAPABILITY_MINOR, &minor},
                      {CUDA_HAS_POOLS, &has_pools}};
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
        TRY(check("cuDeviceGetAttribute",
                  cuda.cuDeviceGetAttribute(attributes[i].value, attributes[i].attribute, cuda_gpu.device)));
    }
    cuda_gpu.capability = 10 * major + minor;
    if (cuda_gpu.capability < 80 || !has_pools) {
        return cuda_services->set_error(
            SHOAL_ERR_UNSUPPORTED,
            "%s has compute capability %d.%d%s: 8.0 is the least, with pools of memory", cuda_gpu.name, major,
            minor, has_pools ? "" : " and no pools of memory");
    }
    return check("cuDevicePrimaryCtxRetain",
                 cuda.cuDevicePrimaryCtxRetain(&cuda_gpu.context, cuda_gpu.device));
}

shoal_status cuda_open(void)
{
    TRY(cuda_driver_open());
    return take_gpu();
}

/* The context ------------------------------------------------------------------------------------------ */

bool cuda_enter(void)
{
    return !cuda_has_failed() && cuda_enter_to_free();
}

bool cuda_enter_to_free(void)
{
    cuda_result result = cuda.cuCtxPushCurrent(cuda_gpu.context);
    if (result != CUDA_OK) {
        cuda_fail("cuCtxPushCurrent", result, NULL);
    }
    return result == CUDA_OK;
}

void cuda_leave(void)
{
    struct CUctx_st *context;
    (void)cuda.cuCtxPopCurrent(&context); /* fails only if the context was destroyed, which later calls say */
}
