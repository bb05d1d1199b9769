/* SPDX-License-Identifier: MIT */
/* Kernels of the program, launched on the stream of the library's work. What the driver refuses is the program's mistake, and does
   not make the device fail. */
#include "cuda/programs.h"

#include "base/try.h"
#include "cuda/driver.h"
#include "cuda/failure.h"
#include "cuda/gpu.h"
#include "cuda/launch.h"
#include "cuda/services.h"

static shoal_status judge(const char *call, cuda_result result, const char *what, const char *complaint)
{
    const char *name = NULL;
    const char *text = NULL;
    if (result == CUDA_OUT_OF_MEMORY) {
        return cuda_services->set_error(SHOAL_ERR_NO_MEMORY, "%s: no memory of the GPU for %s", what, call);
    }
    if (!cuda_is_refusal(result)) {
        if (result != CUDA_OK) {
            cuda_fail(call, result, what);
        }
        return cuda_failure();
    }
    (void)cuda.cuGetErrorName(result, &name);
    (void)cuda.cuGetErrorString(result, &text);
    return cuda_services->set_error(SHOAL_ERR_INVALID, "%s: %s (%d): %s%s%s", what, name ? name : "unknown",
                                    result, text ? text : "no text", *complaint ? ": " : "", complaint);
}

static shoal_status load(const void *image, void **program_out)
{
    struct CUmod_st *module = NULL;
    if (!cuda_enter()) {
        return cuda_failure();
    }
    struct cuda_complaint complaint;
    cuda_result result = cuda_load_image(image, &module, &complaint);
    cuda_leave();
    *program_out = module;
    return judge("cuModuleLoadDataEx", result, "image", complaint.text);
}

/* The driver unloads the code when what was launched is done. */
static void unload(void *program)
{
    if (cuda_enter_to_free()) {
        (void)cuda.cuModuleUnload(program);
        cuda_leave();
    }
}

/* A block that takes much shared memory is launched only if the function was told so. */
static cuda_result allow_shared(struct CUfunc_st *function, uint32_t shared_bytes)
{
    if (shared_bytes <= CUDA_DYNAMIC_SHARED_PLAIN) {
        return CUDA_OK;
    }
    return shared_bytes <= INT32_MAX
               ? cuda.cuFuncSetAttribute(function, CUDA_DYNAMIC_SHARED_MOST, (int)shared_bytes)
               : CUDA_INVALID_VALUE;
}

static shoal_status launch(void *program, const char *kernel, const uint32_t blocks[3],
                           const uint32_t threads[3], uint32_t shared_bytes, void **arguments)
{
    struct CUfunc_st *function = NULL;
    const char *call = "cuModuleGetFunction";
    if (!cuda_enter()) {
        return cuda_failure();
    }
    cuda_result result = cuda.cuModuleGetFunction(&function, program, kernel);
    if (result == CUDA_OK) {
        call = "cuFuncSetAttribute";
        result = allow_shared(function, shared_bytes);
    }
    if (result == CUDA_OK) {
        call = "cuLaunchKernel";
        result = cuda.cuLaunchKernel(function, blocks[0], blocks[1], blocks[2], threads[0], threads[1],
                                     threads[2], shared_bytes, cuda_stream(), arguments, NULL);
    }
    cuda_leave();
    return judge(call, result, kernel, "");
}

const struct device_programs cuda_programs = {.load = load, .unload = unload, .launch = launch};
