/* SPDX-License-Identifier: MIT */
/* Memory of the GPU, and host memory from and to which it copies by itself. */
#ifndef CUDA_MEMORY_H
#define CUDA_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "device/row.h"
#include "shoal/status.h"

struct CUstream_st;

/* Makes the pool. */
shoal_status cuda_memory_open(void);

/* For the row. */
void *cuda_allocate(size_t bytes, enum device_cause cause, void *stream);
shoal_status cuda_report(struct device_report *report_out, bool resets_most);
void cuda_release(void *data, void *stream);
shoal_status cuda_copy_in(void *target, const void *source, size_t bytes);
shoal_status cuda_copy_out(void *target, const void *source, size_t bytes);

/* When the driver has no memory left: waits until the stream has done its work, for some time, and gives what no
   allocation uses any more back to the driver. Inside of cuda_enter. */
void cuda_make_room(struct CUstream_st *stream);

/* Pinned memory: a copy from or to it goes on while the host does something else. NULL, with the error text set, if there is
   none. */
void *cuda_pinned_take(size_t bytes);
/* Nothing uses it any more. */
void cuda_pinned_give(void *memory);
/* Bytes that were made: they are kept. */
uint64_t cuda_pinned_bytes(void);
/* What the stream has been told so far uses it. */
void cuda_pinned_give_later(void *memory, struct CUstream_st *stream);

#endif
