/* SPDX-License-Identifier: MIT */
/*
 * Memory that units use in turn. Which of it a unit gets depends on the order of calls alone, which is the same on all
 * ranks, never on time: windows and symmetric memory are made by all ranks together, and all must pick the same one.
 *
 *   windows   where full parameters are gathered: once per host
 *   buffers   where gradients are reduced from: symmetric, one block per rank
 *
 * A pool grows when nothing of it is free, and does not shrink.
 */
#ifndef PARALLEL_FSDP_POOL_H
#define PARALLEL_FSDP_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/group.h"
#include "shoal/window.h"

struct fsdp_slot {
    shoal_window *window;
    size_t bytes;
    bool is_taken;
};

struct fsdp_windows {
    shoal_group *group;
    struct fsdp_slot **slots; /* their addresses stay */
    size_t n_slots;
    size_t capacity;
};

void fsdp_windows_init(struct fsdp_windows *windows, shoal_group *group);
void fsdp_windows_free(struct fsdp_windows *windows);
/* The world is closed, and has ended them. */
void fsdp_windows_forget(struct fsdp_windows *windows);
/* The smallest free one that is large enough, or a new one of `new_bytes`. Collective when it has to be made: all ranks
   have the same label then. */
shoal_status fsdp_windows_take(struct fsdp_windows *windows, size_t bytes, size_t new_bytes, uint32_t label,
                               struct fsdp_slot **slot_out);
/* This rank has no further use for what was gathered. */
shoal_status fsdp_windows_release(struct fsdp_slot *slot);

struct fsdp_buffer {
    shoal_symmetric *symmetric; /* NULL: plain memory */
    char *data;
    size_t bytes;
    bool is_taken;
};

struct fsdp_buffers {
    shoal_group *group; /* NULL: plain memory */
    struct fsdp_buffer **buffers;
    size_t n_buffers;
    size_t capacity;
};

void fsdp_buffers_init(struct fsdp_buffers *buffers, shoal_group *group);
void fsdp_buffers_free(struct fsdp_buffers *buffers);
void fsdp_buffers_forget(struct fsdp_buffers *buffers); /* likewise */
/* The same. */
shoal_status fsdp_buffers_take(struct fsdp_buffers *buffers, size_t bytes, size_t new_bytes, uint32_t label,
                               struct fsdp_buffer **buffer_out);
static inline void fsdp_buffers_release(struct fsdp_buffer *buffer)
{
    buffer->is_taken = false;
}

#endif
