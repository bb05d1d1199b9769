/* SPDX-License-Identifier: MIT */
/*
 * Launching kernels. A kernel is put behind the work of the thread's current stream, and the call returns. What fails is a
 * failure of the device (cuda/failure.h): callers need not look.
 */
#ifndef CUDA_LAUNCH_H
#define CUDA_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

#include "cuda/driver_types.h"

enum cuda_kernel {
#define CUDA_KERNEL_ROW(family, name, type, n_phases) CUDA_KERNEL_##name,
#include "cuda/kernels/kernels.def"
#undef CUDA_KERNEL_ROW
    CUDA_KERNEL_COUNT
};

struct cuda_grid {
    uint32_t n_blocks; /* 0: nothing is launched */
    uint32_t n_threads;
    uint32_t shared_bytes;
};

/* `arguments` is the kernel's struct, which is copied. */
void cuda_launch(enum cuda_kernel kernel, const void *arguments, struct cuda_grid grid);

struct CUmod_st;

/* What the driver's compiler has said of an image that it refused: the first line, or nothing. */
struct cuda_complaint {
    char text[400];
};

/* Loads an image, and has it compiled if it is PTX. Inside of cuda_enter. */
cuda_result cuda_load_image(const void *image, struct CUmod_st **module_out,
                            struct cuda_complaint *complaint_out);

/* So many blocks of a kernel whose threads go on until all elements are done keep the GPU busy. */
uint32_t cuda_blocks_most(void);

/* A copy of host memory on the device, for arguments that are longer than a struct may be. It may be used by what is launched
   until cuda_unstage, which does not wait. 0 if the device has failed, or has no memory. */
uint64_t cuda_stage(const void *bytes, size_t n_bytes);
void cuda_unstage(uint64_t staged);

#endif
