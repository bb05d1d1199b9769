/* SPDX-License-Identifier: MIT */
/* The GPU of this process, and the driver's context for it. */
#ifndef CUDA_GPU_H
#define CUDA_GPU_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda/driver_types.h"
#include "shoal/status.h"

/* What is known of it since cuda_open. */
struct cuda_gpu {
    int driver_version; /* 12080 is 12.8 */
    char name[128];
    int ordinal; /* among the GPUs of the process */
    cuda_device device;
    struct CUctx_st *context;
    int multiprocessors;
    int capability; /* 90 is 9.0 */
    size_t memory_bytes;
};
extern struct cuda_gpu cuda_gpu;

/* Opens the driver and takes the GPU of this process. The error text says what is missing: SHOAL_ERR_UNSUPPORTED. */
shoal_status cuda_open(void);

/*
 * Calls of the driver that need its context stand between these two. The context is the one that every user of the driver
 * shares in a process. It is current only meanwhile: a thread of the program may have another one. False if the device has
 * failed: then nothing is to be called, cuda_leave neither.
 */
bool cuda_enter(void);
void cuda_leave(void);
/* For calls that give something back, which are made after a failure too. */
bool cuda_enter_to_free(void);

#endif
