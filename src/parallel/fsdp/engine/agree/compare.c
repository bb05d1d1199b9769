/* SPDX-License-Identifier: MIT */
/* Compares calls that are made by hand, and makes all lanes fail when ranks differ on one. */
#include "parallel/fsdp/engine/agree/compare.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "comm/lane/handles.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/lanes.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/agree/purpose.h"
#include "parallel/fsdp/engine/state/unit.h"

/* Telling ------------------------------------------------------------------------------------------------ */

/* Poisons a lane, unless it has failed already: the lane on which ranks were found to differ has. */
static void tell_lane(shoal_group *lane, shoal_status status, const char *text)
{
    if (lane && group_failure(lane) == SHOAL_OK) {
        group_poison(lane, status, text);
    }
}

static bool has_failed(shoal_group *lane)
{
    return lane && group_failure(lane) != SHOAL_OK;
}

shoal_status fsdp_tell_lanes(const struct fsdp_mesh *mesh, shoal_status status)
{
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    tell_lane(mesh->gather, status, text);
    tell_lane(mesh->reduce, status, text);
    tell_lane(mesh->replicate, status, text);
    tell_lane(mesh->calls, status, text);
    return error_set(status, "%s", text);
}

shoal_status fsdp_tell(const struct fsdp_mesh *mesh, shoal_status status)
{
    bool is_told = status == SHOAL_ERR_MISMATCH && (has_failed(mesh->gather) || has_failed(mesh->reduce) ||
                                                    has_failed(mesh->replicate) || has_failed(mesh->calls));
    return is_told ? fsdp_tell_lanes(mesh, status) : status;
}

shoal_status fsdp_tell_of(const struct fsdp_unit *unit, shoal_status status)
{
    bool is_told = status == SHOAL_ERR_MISMATCH && unit->gather.neighbours &&
                   has_failed(unit->gather.neighbours->windows.group);
    return is_told ? fsdp_tell_lanes(&unit->context->mesh, status) : fsdp_tell(&unit->context->mesh, status);
}

/* Names the unit, because the failure may be found in a call on another unit. */
shoal_status fsdp_tell_reduction(const struct fsdp_unit *unit, shoal_status status)
{
    return status == SHOAL_OK
               ? SHOAL_OK
               : error_prefix(fsdp_tell(&unit->context->mesh, status), "%s: reducing gradients", unit->name);
}

/* Comparing ---------------------------------------------------------------------------------------------- */

shoal_status fsdp_compare_replicas(const struct fsdp_mesh *mesh, const struct purpose *purpose)
{
    const struct purpose common = fsdp_replica_purpose(mesh, *purpose);
    return collectives_barrier(mesh->replicate, &common);
}

/*
 * For ranks that keep everything. Ranks that have shards would compare on the lane of gathers, which is mesh->calls
 * here; ranks that keep everything but make another call wait on the lane of replicas. So this rank issues a barrier
 * on both lanes before it waits on either.
 */
static shoal_status compare_replicated(const struct fsdp_mesh *mesh, const struct purpose *purpose)
{
    const struct purpose call = {.id = PURPOSE_FSDP_REPLICATED, .words = purpose->words};
    const struct purpose common = fsdp_replica_purpose(mesh, *purpose);
    shoal_work *compared = NULL;
    TRY(collectives_barrier_start(mesh->replicate, &common, &compared));
    shoal_status status = collectives_barrier(mesh->calls, &call);
    if (status == SHOAL_OK) {
        status = shoal_work_wait(compared, -1);
    } else {
        work_forget(compared); /* a barrier, which uses no memory of ours */
    }
    shoal_work_free(compared);
    return status;
}

static shoal_status compare_shards(const struct fsdp_mesh *mesh, const struct purpose *purpose)
{
    if (mesh->gather) {
        TRY(collectives_barrier(mesh->gather, purpose));
    }
    return mesh->replicate ? fsdp_compare_replicas(mesh, purpose) : SHOAL_OK;
}

shoal_status fsdp_compare(const struct fsdp_mesh *mesh, const struct purpose *purpose)
{
    shoal_status status = mesh->calls ? compare_replicated(mesh, purpose) : compare_shards(mesh, purpose);
    return status == SHOAL_OK ? SHOAL_OK : fsdp_tell(mesh, status);
}

/* What ranks compare in a call on a parameter: dtype, shape, sharded dimension and name. Such calls may come before the
   first forward pass, in which all parameters are compared. Longer names are cut. */
enum {
    NAME_WORDS = 16,
    PLACE_DETAILS = 2 + 3 + SHOAL_MAX_DIMS + NAME_WORDS
};

static size_t say_param(const struct fsdp_param *param, shoal_dtype dtype, int64_t *details)
{
    size_t n = 2;
    size_t length = strlen(param->name);
    length = length < NAME_WORDS * sizeof(int64_t) ? length : NAME_WORDS * sizeof(int64_t);
    details[n++] = (int64_t)dtype;
    details[n++] = param->dim;
    details[n++] = param->n_dims;
    for (int i = 0; i < param->n_dims; i++) {
        details[n++] = param->shape[i];
    }
    memset(&details[n], 0, NAME_WORDS * sizeof details[0]);
    memcpy(&details[n], param->name, length);
    n += (length + sizeof(int64_t) - 1) / sizeof(int64_t);
    details[0] = DETAIL_SET;
    details[1] = (int64_t)n - 2;
    return n;
}

static shoal_status compare_param(const struct fsdp_mesh *mesh, struct purpose *call, shoal_dtype dtype,
                                  const struct fsdp_param *param, int rank)
{
    int64_t details[PLACE_DETAILS + 2];
    call->details = details;
    call->n_details = say_param(param, dtype, details);
    if (rank >= 0) {
        details[call->n_details++] = DETAIL_NUMBER;
        details[call->n_details++] = rank;
    }
    return fsdp_compare(mesh, call);
}

/* "weight [4,8] along 1": the name, and with more than one dimension the shape and the sharded dimension. */
static void write_place(const struct fsdp_param *param, char *words)
{
    size_t at = (size_t)snprintf(words, PURPOSE_WORDS_BYTES, "%.96s", param->name);
    for (int i = 0; param->n_dims > 1 && i < param->n_dims && at < PURPOSE_WORDS_BYTES; i++) {
        at += (size_t)snprintf(words + at, PURPOSE_WORDS_BYTES - at, "%s%" PRId64, i == 0 ? " [" : ",",
                               param->shape[i]);
    }
    if (param->n_dims > 1 && at < PURPOSE_WORDS_BYTES) {
        (void)snprintf(words + at, PURPOSE_WORDS_BYTES - at, "] along %d", param->dim);
    }
}

shoal_status fsdp_compare_param(const struct fsdp_mesh *mesh, const struct purpose *purpose,
                                const struct fsdp_param *param, size_t index, int rank)
{
    char words[PURPOSE_WORDS_BYTES];
    struct purpose call = *purpose;
    write_place(param, words);
    call.argument = (uint32_t)index + 1;
    call.words = words;
    return compare_param(mesh, &call, param->dtype, param, rank);
}

shoal_status fsdp_compare_array(const struct fsdp_mesh *mesh, const struct purpose *purpose,
                                const struct fsdp_array *array, size_t index, int rank)
{
    char place[PURPOSE_WORDS_BYTES];
    char words[PURPOSE_WORDS_BYTES];
    struct purpose call = *purpose;
    write_place(array->param, place);
    (void)snprintf(words, sizeof words, "%.160s as %s", place, shoal_dtype_name(array->dtype));
    call.argument = (uint32_t)index + 1;
    call.words = words;
    return compare_param(mesh, &call, array->dtype, array->param, rank);
}
