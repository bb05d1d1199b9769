/* SPDX-License-Identifier: MIT */
/* Pools of windows and of buffers. */
#include "parallel/fsdp/pool.h"

#include <string.h>

#include "base/mem.h"
#include "base/try.h"
#include "comm/collectives.h"
#include "parallel/fsdp/param.h"

/* Windows ---------------------------------------------------------------------------------------------- */

void fsdp_windows_init(struct fsdp_windows *windows, shoal_group *group)
{
    *windows = (struct fsdp_windows){.group = group};
}

void fsdp_windows_free(struct fsdp_windows *windows)
{
    for (size_t i = 0; i < windows->n_slots; i++) {
        shoal_window_free(windows->slots[i]->window);
        mem_free(windows->slots[i]);
    }
    mem_free(windows->slots);
    *windows = (struct fsdp_windows){.group = NULL};
}

void fsdp_windows_forget(struct fsdp_windows *windows)
{
    for (size_t i = 0; i < windows->n_slots; i++) {
        windows->slots[i]->window = NULL;
    }
}

static shoal_status add_slot(struct fsdp_windows *windows, size_t bytes, uint32_t label)
{
    TRY(mem_grow((void **)&windows->slots, &windows->capacity, windows->n_slots + 1,
                 sizeof windows->slots[0]));
    struct fsdp_slot *slot = mem_alloc_zeroed(1, sizeof *slot);
    if (!slot) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = collectives_barrier(windows->group, label);
    if (status == SHOAL_OK) {
        status = shoal_window_create(windows->group, bytes, &slot->window);
    }
    if (status != SHOAL_OK) {
        mem_free(slot);
        return status;
    }
    slot->bytes = bytes;
    windows->slots[windows->n_slots++] = slot;
    return SHOAL_OK;
}

shoal_status fsdp_windows_take(struct fsdp_windows *windows, size_t bytes, size_t new_bytes, uint32_t label,
                               struct fsdp_slot **slot_out)
{
    struct fsdp_slot *best = NULL;
    for (size_t i = 0; i < windows->n_slots; i++) {
        struct fsdp_slot *slot = windows->slots[i];
        bool fits = !slot->is_taken && slot->bytes >= bytes;
        best = fits && (!best || slot->bytes < best->bytes) ? slot : best;
    }
    if (!best) {
        TRY(add_slot(windows, new_bytes, label));
        best = windows->slots[windows->n_slots - 1];
    }
    best->is_taken = true;
    *slot_out = best;
    return SHOAL_OK;
}

shoal_status fsdp_windows_release(struct fsdp_slot *slot)
{
    slot->is_taken = false;
    return shoal_window_release(slot->window);
}

/* Buffers ---------------------------------------------------------------------------------------------- */

void fsdp_buffers_init(struct fsdp_buffers *buffers, shoal_group *group)
{
    *buffers = (struct fsdp_buffers){.group = group};
}

static void free_buffer(struct fsdp_buffer *buffer)
{
    if (buffer->symmetric) {
        shoal_symmetric_free(buffer->symmetric);
    } else {
        mem_free(buffer->data);
    }
    mem_free(buffer);
}

void fsdp_buffers_free(struct fsdp_buffers *buffers)
{
    for (size_t i = 0; i < buffers->n_buffers; i++) {
        free_buffer(buffers->buffers[i]);
    }
    mem_free(buffers->buffers);
    *buffers = (struct fsdp_buffers){.group = NULL};
}

void fsdp_buffers_forget(struct fsdp_buffers *buffers)
{
    for (size_t i = 0; i < buffers->n_buffers; i++) {
        if (buffers->buffers[i]->symmetric) {
            buffers->buffers[i]->symmetric = NULL;
            buffers->buffers[i]->data = NULL;
        }
    }
}

static shoal_status allocate(struct fsdp_buffers *buffers, struct fsdp_buffer *buffer, uint32_t label)
{
    if (buffers->group) {
        TRY(collectives_barrier(buffers->group, label));
        TRY(shoal_symmetric_create(buffers->group, buffer->bytes, &buffer->symmetric));
        buffer->data = shoal_symmetric_data(buffer->symmetric);
        return SHOAL_OK;
    }
    buffer->data = mem_alloc_aligned(buffer->bytes > 0 ? buffer->bytes : 1, FSDP_ALIGNMENT);
    return buffer->data ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

static shoal_status add_buffer(struct fsdp_buffers *buffers, size_t bytes, uint32_t label)
{
    TRY(mem_grow((void **)&buffers->buffers, &buffers->capacity, buffers->n_buffers + 1,
                 sizeof buffers->buffers[0]));
    struct fsdp_buffer *buffer = mem_alloc_zeroed(1, sizeof *buffer);
    if (!buffer) {
        return SHOAL_ERR_NO_MEMORY;
    }
    buffer->bytes = bytes;
    shoal_status status = allocate(buffers, buffer, label);
    if (status != SHOAL_OK) {
        mem_free(buffer);
        return status;
    }
    buffers->buffers[buffers->n_buffers++] = buffer;
    return SHOAL_OK;
}

shoal_status fsdp_buffers_take(struct fsdp_buffers *buffers, size_t bytes, size_t new_bytes, uint32_t label,
                               struct fsdp_buffer **buffer_out)
{
    struct fsdp_buffer *best = NULL;
    for (size_t i = 0; i < buffers->n_buffers; i++) {
        struct fsdp_buffer *buffer = buffers->buffers[i];
        bool fits = !buffer->is_taken && buffer->bytes >= bytes;
        best = fits && (!best || buffer->bytes < best->bytes) ? buffer : best;
    }
    if (!best) {
        TRY(add_buffer(buffers, new_bytes, label));
        best = buffers->buffers[buffers->n_buffers - 1];
    }
    best->is_taken = true;
    *buffer_out = best;
    return SHOAL_OK;
}
