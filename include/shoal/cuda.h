/* SPDX-License-Identifier: MIT */
/*
 * GPUs of NVIDIA: device "cuda" (shoal_device_find), and what only they have. A process uses one of them:
 * SHOAL_CUDA_DEVICE, or else the number of the rank among those of its host. The driver is opened when the device is
 * found, or by the first call of this header; the library needs nothing of CUDA otherwise. SHOAL_ERR_UNSUPPORTED says
 * what is missing.
 *
 * The library shares the driver's primary context with everybody in the process (the CUDA runtime, PyTorch, cuBLAS),
 * so addresses and streams of theirs are good here, and the other way round. Its work goes to one stream
 * (shoal_device_stream in shoal/dlpack.h).
 *
 *     shoal_device cuda;
 *     if (shoal_device_find("cuda", &cuda) != SHOAL_OK) {
 *         fprintf(stderr, "%s\n", shoal_error_text());
 *     }
 *     shoal_tensor *weights = shoal_to_device(here, cuda);
 *
 * Ownership: the caller ends a program by shoal_cuda_unload.
 * Threads: any.
 * Errors: each call returns a status. A GPU that has failed stays so: each later call gives the first reason.
 */
#ifndef SHOAL_CUDA_H
#define SHOAL_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/status.h"

SHOAL_BEGIN_DECLS

/* From now on the library's work goes to a cudaStream_t of the program, as shoal_device_use_stream says. NULL is the
   legacy default stream, as everywhere in CUDA. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_cuda_set_stream(void *stream);

/* Bytes: now, and the most at a time. */
typedef struct shoal_cuda_usage {
    uint64_t now;
    uint64_t most;
} shoal_cuda_usage;

/* The memory that this process uses by the library. */
typedef struct shoal_cuda_memory {
    size_t struct_size;        /* sizeof(shoal_cuda_memory) */
    shoal_cuda_usage tensors;  /* of tensors, and of ops while they run */
    shoal_cuda_usage buffers;  /* shards, gathered parameters and gradients of FSDP and DDP */
    shoal_cuda_usage reserved; /* that the driver keeps for both */
    shoal_cuda_usage pinned;   /* of the host, for copies */
    uint64_t free_bytes;       /* of the GPU, whose memory other processes use too */
    uint64_t total_bytes;
} shoal_cuda_memory;

#define SHOAL_CUDA_MEMORY_INIT SHOAL_SIZED(shoal_cuda_memory)

/* With `resets_most`, the most of each begins anew with what is used now. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_cuda_get_memory(shoal_cuda_memory *memory, bool resets_most);

/* Kernels of the program --------------------------------------------------------------------------------- */

/* An image of kernels. */
typedef struct shoal_cuda_program shoal_cuda_program;

/* Loads PTX, which ends with a zero byte, a cubin or a fatbin: what cuModuleLoadData takes. SHOAL_ERR_INVALID: the
   driver refuses it; of PTX, the error text has the first line of what its compiler says. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_cuda_load(const void *image,
                                                        SHOAL_GIVES shoal_cuda_program **program_out);
/* Behind the work that was launched. NULL is allowed. */
SHOAL_API void shoal_cuda_unload(SHOAL_TAKES shoal_cuda_program *program);

typedef struct shoal_cuda_grid {
    uint32_t blocks[3];
    uint32_t threads[3];
    uint32_t shared_bytes; /* dynamic */
} shoal_cuda_grid;

/*
 * Puts a kernel behind the library's work, and the library's later work behind it. `arguments` has the address of
 * each argument, as for cuLaunchKernel; addresses of tensors are those of shoal_device_data and
 * shoal_device_mutable_data (shoal/tensor.h). What they point to is copied. SHOAL_ERR_INVALID: there is no such
 * kernel, or the driver refuses the grid.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_cuda_launch(shoal_cuda_program *program, const char *kernel,
                                                          const shoal_cuda_grid *grid, void **arguments);

SHOAL_END_DECLS

#endif
