/* SPDX-License-Identifier: MIT */
/*
 * Whole parameters on one rank, shards on all. Whole ones exist on the rank that gives or wants them and nowhere else: what
 * travels are shards, padded so that all are as long, inside one replica; replicas then copy from each other.
 */
#include "parallel/fsdp/whole.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "tensor/dtype.h"

/* Ranks -------------------------------------------------------------------------------------------------- */

static int replica_of(const struct fsdp_mesh *mesh)
{
    return mesh->replicate ? shoal_group_rank(mesh->replicate) : 0;
}

static bool is_replica_of(const struct fsdp_mesh *mesh, int rank)
{
    return replica_of(mesh) == rank / mesh->n_shards;
}

bool fsdp_mesh_is_rank(const struct fsdp_mesh *mesh, int rank)
{
    return is_replica_of(mesh, rank) && mesh->shard == rank % mesh->n_shards;
}

shoal_status fsdp_check_rank(const struct fsdp_mesh *mesh, const char *call, const char *what, int rank)
{
    int n_ranks = fsdp_mesh_n_ranks(mesh);
    return rank >= 0 && rank < n_ranks
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "%s: %s %d of %d ranks", call, what, rank, n_ranks);
}

/* Slices ------------------------------------------------------------------------------------------------- */

shoal_status fsdp_check_slice(const struct fsdp_param *param, const char *call, int64_t offset,
                              int64_t length, const void *slice)
{
    if (offset < 0 || length < 0 || offset > param->size || length > param->size - offset) {
        return error_set(SHOAL_ERR_INVALID,
                         "%s: parameter %s has %" PRId64 " indices along dimension %d, not %" PRId64
                         " from %" PRId64 " on",
                         call, param->name, param->size, param->dim, length, offset);
    }
    return slice || param->outer * length * param->inner == 0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "%s: slice is NULL", call);
}

bool fsdp_param_load_slice(struct fsdp_param *param, int64_t offset, int64_t length, const void *slice)
{
    int64_t begin = offset > param->begin ? offset : param->begin;
    int64_t end = offset + length;
    end = end < param->begin + param->length ? end : param->begin + param->length;
    if (begin >= end) {
        return false;
    }
    size_t row = (size_t)param->inner * dtype_bytes(param->dtype);
    for (int64_t o = 0; o < param->outer && row > 0; o++) {
        memcpy(param->shard + (size_t)(o * param->length + begin - param->begin) * row,
               (const char *)slice + (size_t)(o * length + begin - offset) * row,
               (size_t)(end - begin) * row);
    }
    return true;
}

/* Broadcasting ------------------------------------------------------------------------------------------- */

size_t fsdp_param_blocks_bytes(const struct fsdp_param *param, const struct fsdp_mesh *mesh)
{
    return (size_t)mesh->n_shards * param->padded_count * dtype_bytes(param->dtype);
}

/* Between the whole and blocks of shards, whose padding is left alone. */
static void copy_blocks(const struct fsdp_param *param, int n_shards, char *blocks, char *full, bool is_cut)
{
    size_t row = (size_t)param->inner * dtype_bytes(param->dtype);
    size_t block = param->padded_count * dtype_bytes(param->dtype);
    for (int64_t w = 0; w < n_shards; w++) {
        int64_t begin;
        int64_t end;
        fsdp_param_rows(param, w, &begin, &end);
        size_t bytes = (size_t)(end - begin) * row;
        for (int64_t o = 0; o < param->outer && bytes > 0; o++) {
            char *in_block = blocks + (size_t)w * block + (size_t)(o * (end - begin)) * row;
            char *in_full = full + (size_t)(o * param->size + begin) * row;
            memcpy(is_cut ? in_block : in_full, is_cut ? in_full : in_block, bytes);
        }
    }
}

/* Inside the source's replica. */
static shoal_status scatter(struct fsdp_param *param, const struct fsdp_mesh *mesh, const void *full,
                            char *blocks, int source)
{
    if (!mesh->gather) {
        fsdp_param_load(param, full);
        return SHOAL_OK;
    }
    if (blocks && fsdp_mesh_is_rank(mesh, source)) { /* there they are */
        memset(blocks, 0, fsdp_param_blocks_bytes(param, mesh));
        copy_blocks(param, mesh->n_shards, blocks, (char *)(uintptr_t)full, true);
    }
    return shoal_group_scatter(mesh->gather, blocks, param->shard, param->padded_count, param->dtype,
                               source % mesh->n_shards);
}

shoal_status fsdp_param_broadcast(struct fsdp_param *param, const struct fsdp_mesh *mesh, const void *full,
                                  char *blocks, int source)
{
    if (is_replica_of(mesh, source)) {
        TRY(scatter(param, mesh, full, blocks, source));
    }
    return mesh->replicate ? shoal_group_broadcast(mesh->replicate, param->shard, param->shard_count,
                                                   param->dtype, source / mesh->n_shards)
                           : SHOAL_OK;
}

shoal_status fsdp_param_broadcast_alone(struct fsdp_param *param, const struct fsdp_mesh *mesh,
                                        const void *full, int source)
{
    char *blocks = NULL;
    if (mesh->gather && fsdp_mesh_is_rank(mesh, source)) {
        blocks = mem_alloc(fsdp_param_blocks_bytes(param, mesh) + 1);
        if (!blocks) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    shoal_status status = fsdp_param_broadcast(param, mesh, full, blocks, source);
    mem_free(blocks);
    return status;
}

/* Gathering ---------------------------------------------------------------------------------------------- */

static shoal_status gather_blocks(const struct fsdp_param *param, const struct fsdp_mesh *mesh, void *full,
                                  int root)
{
    char *blocks = NULL;
    bool is_here = fsdp_mesh_is_rank(mesh, root);
    if (is_here) {
        blocks = mem_alloc(fsdp_param_blocks_bytes(param, mesh) + 1);
        if (!blocks) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    shoal_status status = shoal_group_gather(mesh->gather, param->shard, blocks, param->padded_count,
                                             param->dtype, root % mesh->n_shards);
    if (status == SHOAL_OK && is_here) {
        copy_blocks(param, mesh->n_shards, blocks, full, false);
    }
    mem_free(blocks);
    return status;
}

shoal_status fsdp_param_gather_to(const struct fsdp_param *param, const struct fsdp_mesh *mesh, void *full,
                                  int root)
{
    if (!is_replica_of(mesh, root)) {
        return SHOAL_OK;
    }
    if (mesh->gather) {
        return gather_blocks(param, mesh, full, root);
    }
    if (param->count > 0) {
        memcpy(full, param->shard, param->count * dtype_bytes(param->dtype));
    }
    return SHOAL_OK;
}

/* Of anything -------------------------------------------------------------------------------------------- */

shoal_status fsdp_mesh_broadcast(const struct fsdp_mesh *mesh, void *data, size_t bytes, int source)
{
    if (mesh->gather && is_replica_of(mesh, source)) {
        TRY(shoal_group_broadcast(mesh->gather, data, bytes, SHOAL_U8, source % mesh->n_shards));
    }
    return mesh->replicate
               ? shoal_group_broadcast(mesh->replicate, data, bytes, SHOAL_U8, source / mesh->n_shards)
               : SHOAL_OK;
}

static shoal_status find_worst(const struct fsdp_mesh *mesh, int64_t *number)
{
    if (mesh->gather) {
        TRY(shoal_group_all_reduce(mesh->gather, number, number, 1, SHOAL_I64, SHOAL_MIN));
    }
    return mesh->replicate ? shoal_group_all_reduce(mesh->replicate, number, number, 1, SHOAL_I64, SHOAL_MIN)
                           : SHOAL_OK;
}

/* Statuses are negative, and above this apart, so that ranks can be added to them. */
#define MOST_RANKS ((int64_t)1 << 32)

/* Why a rank failed, for the others. */
struct reason {
    int32_t rank; /* in the world */
    char text[ERROR_TEXT_BYTES / 2];
};

/* Of the least number the rank can be read, so all know whose words come. */
static shoal_status tell_reason(const struct fsdp_mesh *mesh, int64_t number, struct reason *reason,
                                shoal_status *status_out)
{
    int64_t status = -((-number + MOST_RANKS - 1) / MOST_RANKS);
    *status_out = (shoal_status)status;
    return fsdp_mesh_broadcast(mesh, reason, sizeof *reason, (int)(number - status * MOST_RANKS));
}

shoal_status fsdp_mesh_confirm(const struct fsdp_mesh *mesh, shoal_status mine)
{
    char text[ERROR_TEXT_BYTES];
    struct reason reason = {.rank = shoal_world_rank(mesh->world)};
    shoal_status theirs = SHOAL_OK;
    int64_t me = (int64_t)replica_of(mesh) * mesh->n_shards + mesh->shard;
    int64_t number = mine == SHOAL_OK ? 0 : (int64_t)mine * MOST_RANKS + me;
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    (void)snprintf(reason.text, sizeof reason.text, "%.*s", (int)sizeof reason.text - 1, text);
    shoal_status status = find_worst(mesh, &number);
    if (status == SHOAL_OK && number != 0) {
        status = tell_reason(mesh, number, &reason, &theirs);
    }
    if (mine != SHOAL_OK) {
        return error_set(mine, "%s", text);
    }
    TRY(status);
    return theirs == SHOAL_OK ? SHOAL_OK : error_set(theirs, "rank %d: %s", (int)reason.rank, reason.text);
}
