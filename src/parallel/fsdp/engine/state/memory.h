/* SPDX-License-Identifier: MIT */
/* What a context holds, counted where it is allocated and freed. All numbers are one rank's share in bytes. */
#ifndef PARALLEL_FSDP_ENGINE_STATE_MEMORY_H
#define PARALLEL_FSDP_ENGINE_STATE_MEMORY_H

#include <stddef.h>

#include "shoal/fsdp.h"

/* Shards are not counted as they are made, but when somebody asks: their size does not change. */
enum fsdp_memory_kind {
    FSDP_MEMORY_GRADIENTS,
    FSDP_MEMORY_WINDOWS,
    FSDP_MEMORY_BUFFERS,
    FSDP_MEMORY_OTHER,
    FSDP_MEMORY_KINDS
};

struct fsdp_memory {
    size_t now[FSDP_MEMORY_KINDS];
    size_t peak[FSDP_MEMORY_KINDS];
    size_t total; /* of all kinds */
    size_t total_peak;
};

void fsdp_memory_add(struct fsdp_memory *memory, enum fsdp_memory_kind kind, size_t bytes);
void fsdp_memory_remove(struct fsdp_memory *memory, enum fsdp_memory_kind kind, size_t bytes);

struct fsdp_context;

/* Fills in the fields that the caller's struct has. SHOAL_ERR_INVALID, with `call` in front, if it is NULL or
   too small. */
shoal_status fsdp_memory_report(const char *call, const struct fsdp_context *context,
                                shoal_fsdp_memory_report *report_out);

#endif
