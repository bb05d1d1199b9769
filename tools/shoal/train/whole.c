/* SPDX-License-Identifier: MIT */
/* Gathers one parameter after the other, so that memory for one whole parameter is enough, besides the result. */
#include "train/whole.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/try.h"
#include "shoal/fsdp_unit.h"
#include "shoal/scope.h"

#include <stdlib.h>
#include <string.h>

struct gathering {
    struct train_job *job;
    shoal_module *whole; /* NULL if only the digest is wanted */
    bool is_root;
    uint64_t digest;
    float *buffer; /* on the root */
    size_t capacity;
};

static shoal_status make_room(struct gathering *gathering, size_t count)
{
    if (!gathering->is_root || count <= gathering->capacity) {
        return SHOAL_OK;
    }
    free(gathering->buffer);
    gathering->buffer = malloc(count * sizeof(gathering->buffer[0]));
    gathering->capacity = gathering->buffer ? count : 0;
    return gathering->buffer ? SHOAL_OK : error_set(SHOAL_ERR_NO_MEMORY, "no memory for %zu values", count);
}

/* The whole parameter into the buffer of the root. */
static shoal_status fetch(struct gathering *gathering, const shoal_module_entry *entry, size_t *count_out)
{
    shoal_fsdp_param *param = NULL;
    shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
    TRY(shoal_fully_shard_find_param(gathering->job->module, entry, &param));
    if (param) {
        TRY(shoal_fsdp_get_layout(param, &layout));
        *count_out = layout.count;
        TRY(make_room(gathering, layout.count));
        return shoal_fsdp_gather(param, gathering->buffer, 0);
    }
    *count_out = (size_t)shoal_tensor_count(entry->tensor);
    TRY(make_room(gathering, *count_out));
    const float *values = shoal_data(entry->tensor);
    if (!values) {
        return error_set(SHOAL_ERR_STATE, "%s cannot be read: %s", entry->path, shoal_error_text());
    }
    if (gathering->is_root) {
        memcpy(gathering->buffer, values, *count_out * sizeof(values[0]));
    }
    return SHOAL_OK;
}

static shoal_status visit(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct gathering *gathering = context;
    size_t count = 0;
    (void)next;
    TRY(fetch(gathering, entry, &count));
    if (!gathering->is_root) {
        return SHOAL_OK;
    }
    size_t n_bytes = count * sizeof(gathering->buffer[0]);
    gathering->digest = hash_bytes(gathering->digest, gathering->buffer, n_bytes);
    shoal_tensor *target = gathering->whole ? shoal_module_parameter(gathering->whole, entry->path) : NULL;
    float *to = target ? shoal_mutable_data(target) : NULL;
    if (gathering->whole && !to) {
        return error_set(SHOAL_ERR_STATE, "%s cannot be written: %s", entry->path, shoal_error_text());
    }
    if (to) {
        memcpy(to, gathering->buffer, n_bytes);
    }
    return SHOAL_OK;
}

static shoal_status gather(struct gathering *gathering, bool is_wanted)
{
    if (is_wanted && gathering->is_root) {
        shoal_nn_gpt_options gpt = gathering->job->gpt;
        gpt.device = SHOAL_CPU;
        gpt.dropout = 0.0;
        TRY(shoal_nn_gpt_create(&gpt, &gathering->whole));
    }
    return shoal_module_walk(gathering->job->module, SHOAL_WALK_PARAMETERS, visit, gathering);
}

/* Shards of replicated units are whole: their ranks gather them all the same. */
shoal_status train_whole(struct train_job *job, uint64_t *digest_out, shoal_module **whole_out)
{
    struct gathering gathering = {.job = job, .is_root = job->rank == 0 || job->mode == TRAIN_NONE};
    *digest_out = 0;
    TRY(shoal_scope_begin());
    shoal_status status = gather(&gathering, whole_out != NULL);
    shoal_status ended = shoal_scope_end();
    status = status == SHOAL_OK ? ended : status;
    free(gathering.buffer);
    if (status != SHOAL_OK || !whole_out) {
        shoal_module_unref(gathering.whole);
    } else {
        *whole_out = gathering.whole;
    }
    *digest_out = gathering.digest;
    return status;
}
