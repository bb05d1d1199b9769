/* SPDX-License-Identifier: MIT */
/*
 * Moves parameters, and arrays of their shape, between whole copies on one rank (or on all) and shards on every rank.
 * Only ranks that pass or receive a whole copy have memory for it. What is sent are shards, padded to the same length,
 * within one replica. After a broadcast the other replicas copy their shards from that one.
 */
#include "parallel/fsdp/engine/step/transfer.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/try.h"
#include "comm/agree/agree.h"
#include "comm/call/collectives.h"
#include "device/device.h"
#include "device/stream.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/lanes.h"
#include "parallel/fsdp/engine/state/param.h"
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

shoal_status fsdp_check_rank(const struct fsdp_mesh *mesh, const char *what, int rank)
{
    int n_ranks = fsdp_mesh_n_ranks(mesh);
    return rank >= 0 && rank < n_ranks
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "%s %d is outside of the %d ranks", what, rank, n_ranks);
}

shoal_status fsdp_check_full(const struct fsdp_param *param, const void *full)
{
    return full || param->count == 0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "full is NULL, but has %zu elements", param->count);
}

shoal_status fsdp_check_root(const struct fsdp_mesh *mesh, const struct fsdp_param *param, const char *what,
                             int rank, const void *full)
{
    TRY(fsdp_check_rank(mesh, what, rank));
    return full || param->count == 0 || !fsdp_mesh_is_rank(mesh, rank)
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "full is NULL on the %s, rank %d, but has %zu elements", what,
                           rank, param->count);
}

/* Shapes ------------------------------------------------------------------------------------------------- */

shoal_shard_layout fsdp_layout_of(const struct fsdp_param *param, const struct fsdp_mesh *mesh, int unit)
{
    shoal_shard_layout layout = {.struct_size = sizeof layout,
                                 .unit = unit,
                                 .dtype = param->dtype,
                                 .n_dims = param->n_dims,
                                 .dim = param->dim,
                                 .offset = param->begin,
                                 .length = param->length,
                                 .count = param->count,
                                 .shard_count = param->shard_count,
                                 .n_shards = mesh->n_shards,
                                 .owners = mesh->owners,
                                 .shard = mesh->shard,
                                 .device = param->device};
    for (int i = 0; i < param->n_dims; i++) {
        layout.shape[i] = param->shape[i];
        layout.shard_shape[i] = i == param->dim ? param->length : param->shape[i];
    }
    return layout;
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
               : error_set(SHOAL_ERR_INVALID, "%s: parameter %s: slice is NULL, but has %" PRId64 " elements",
                           call, param->name, param->outer * length * param->inner);
}

/* Blocks of shards ---------------------------------------------------------------------------------------- */

size_t fsdp_array_blocks_bytes(const struct fsdp_array *array, const struct fsdp_mesh *mesh)
{
    return (size_t)mesh->n_shards * array->param->padded_count * dtype_bytes(array->dtype);
}

static size_t shard_bytes(const struct fsdp_array *array)
{
    return array->param->shard_count * dtype_bytes(array->dtype);
}

/* Copies between the whole and blocks of shards; padding is not touched. */
static void copy_blocks(const struct fsdp_array *array, int n_shards, char *blocks, char *full, bool is_cut)
{
    const struct fsdp_param *param = array->param;
    size_t row = (size_t)param->inner * dtype_bytes(array->dtype);
    size_t block = param->padded_count * dtype_bytes(array->dtype);
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

/* The memory of a transfer, all of it the host's. */
struct staging {
    char *blocks; /* all shards, on ranks that have the whole */
    /* A padded copy of this rank's part; NULL if it is not needed, because that has room for padding and is host
       memory. */
    char *padded;
};

static shoal_status stage_part(const struct fsdp_array *array, const struct fsdp_mesh *mesh,
                               struct staging *staging)
{
    const struct fsdp_param *param = array->param;
    bool has_room = array->is_padded || param->shard_count == param->padded_count;
    if (has_room && device_is_host(array->device)) {
        return SHOAL_OK;
    }
    staging->padded = mem_alloc_zeroed(param->padded_count, dtype_bytes(array->dtype));
    if (!staging->padded) {
        return SHOAL_ERR_NO_MEMORY;
    }
    return param->shard_count > 0 ? fsdp_array_read(array, staging->padded, fsdp_mesh_timeout(mesh))
                                  : SHOAL_OK;
}

static shoal_status allocate_staging(const struct fsdp_array *array, const struct fsdp_mesh *mesh,
                                     bool has_whole, struct staging *staging)
{
    *staging = (struct staging){.blocks = NULL};
    if (has_whole) {
        staging->blocks = mem_alloc(fsdp_array_blocks_bytes(array, mesh) + 1);
        if (!staging->blocks) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    return stage_part(array, mesh, staging);
}

static void free_staging(struct staging *staging)
{
    mem_free(staging->blocks);
    mem_free(staging->padded);
}

/* Collective over the mesh. If a rank has no memory, all ranks are told, and none waits for it. */
static shoal_status begin_staging(const struct fsdp_array *array, const struct fsdp_mesh *mesh,
                                  bool has_whole, struct staging *staging)
{
    shoal_status status = fsdp_mesh_confirm(mesh, allocate_staging(array, mesh, has_whole, staging));
    if (status != SHOAL_OK) {
        free_staging(staging);
    }
    return status;
}

/* Broadcasting ------------------------------------------------------------------------------------------- */

static void *part_of(const struct fsdp_array *array, const struct staging *staging)
{
    return staging->padded ? staging->padded : address_pointer(array->shard);
}

/* Gives the ranks of the source's replica their shards. */
static shoal_status scatter(const struct fsdp_array *array, const struct fsdp_mesh *mesh, const void *full,
                            const struct staging *staging, int source)
{
    if (!mesh->gather && !staging->padded) {
        return fsdp_array_load(array, full);
    }
    if (!mesh->gather) { /* the only shard is the whole */
        if (array->param->count > 0) {
            memcpy(staging->padded, full, shard_bytes(array));
        }
        return SHOAL_OK;
    }
    if (staging->blocks && fsdp_mesh_is_rank(mesh, source)) { /* only the source has the whole */
        memset(staging->blocks, 0, fsdp_array_blocks_bytes(array, mesh));
        copy_blocks(array, mesh->n_shards, staging->blocks, (char *)(uintptr_t)full, true);
    }
    return shoal_group_scatter(mesh->gather, staging->blocks, part_of(array, staging),
                               array->param->padded_count, array->dtype, source % mesh->n_shards);
}

static shoal_status broadcast(const struct fsdp_array *array, const struct fsdp_mesh *mesh, const void *full,
                              const struct staging *staging, int source)
{
    if (is_replica_of(mesh, source)) {
        TRY(scatter(array, mesh, full, staging, source));
    }
    if (mesh->replicate) {
        TRY(shoal_group_broadcast(mesh->replicate, part_of(array, staging), array->param->shard_count,
                                  array->dtype, source / mesh->n_shards));
    }
    return staging->padded ? stream_write(array->device, array->shard, staging->padded, shard_bytes(array))
                           : SHOAL_OK;
}

shoal_status fsdp_param_broadcast(const struct fsdp_param *param, const struct fsdp_mesh *mesh,
                                  const void *full, char *blocks, char *padded, int source)
{
    const struct fsdp_array values = fsdp_param_values(param);
    bool is_staged = !device_is_host(param->device);
    const struct staging staging = {.blocks = blocks, .padded = is_staged ? padded : NULL};
    return broadcast(&values, mesh, full, &staging, source);
}

shoal_status fsdp_array_broadcast(const struct fsdp_array *array, const struct fsdp_mesh *mesh,
                                  const void *full, int source)
{
    struct staging staging = {.blocks = NULL};
    if (mesh->gather || (mesh->replicate && !device_is_host(array->device))) {
        TRY(begin_staging(array, mesh, mesh->gather && fsdp_mesh_is_rank(mesh, source), &staging));
    }
    shoal_status status = broadcast(array, mesh, full, &staging, source);
    free_staging(&staging);
    return status;
}

/* Gathering ---------------------------------------------------------------------------------------------- */

/* Passed as `root` if every rank gets the whole. */
#define ALL_RANKS (-1)

/* Gathers the shards of one replica on `root`, or on all its ranks. */
static shoal_status gather_blocks(const struct fsdp_array *array, const struct fsdp_mesh *mesh, void *full,
                                  const struct staging *staging, int root)
{
    size_t count = array->param->padded_count;
    const char *padded = part_of(array, staging);
    TRY(root == ALL_RANKS ? shoal_group_all_gather(mesh->gather, padded, staging->blocks, count, array->dtype)
                          : shoal_group_gather(mesh->gather, padded, staging->blocks, count, array->dtype,
                                               root % mesh->n_shards));
    if (staging->blocks) {
        copy_blocks(array, mesh->n_shards, staging->blocks, full, false);
    }
    return SHOAL_OK;
}

static shoal_status gather(const struct fsdp_array *array, const struct fsdp_mesh *mesh, void *full, int root)
{
    bool has_whole = root == ALL_RANKS || fsdp_mesh_is_rank(mesh, root);
    if (!mesh->gather) {
        return has_whole && array->param->count > 0 ? fsdp_array_read(array, full, fsdp_mesh_timeout(mesh))
                                                    : SHOAL_OK;
    }
    struct staging staging;
    TRY(begin_staging(array, mesh, has_whole, &staging));
    bool takes_part = root == ALL_RANKS || is_replica_of(mesh, root);
    shoal_status status = takes_part ? gather_blocks(array, mesh, full, &staging, root) : SHOAL_OK;
    free_staging(&staging);
    return status;
}

shoal_status fsdp_array_gather(const struct fsdp_array *array, const struct fsdp_mesh *mesh, void *full)
{
    return gather(array, mesh, full, ALL_RANKS);
}

shoal_status fsdp_array_gather_to(const struct fsdp_array *array, const struct fsdp_mesh *mesh, void *full,
                                  int root)
{
    return gather(array, mesh, full, root);
}

/* Any bytes ---------------------------------------------------------------------------------------------- */

/* Of the reason of another rank, in an error text. */
#define REASON_BYTES (ERROR_TEXT_BYTES / 2 - 1)

shoal_status fsdp_mesh_broadcast(const struct fsdp_mesh *mesh, void *data, size_t bytes, int source)
{
    if (mesh->gather && is_replica_of(mesh, source)) {
        TRY(shoal_group_broadcast(mesh->gather, data, bytes, SHOAL_U8, source % mesh->n_shards));
    }
    return mesh->replicate
               ? shoal_group_broadcast(mesh->replicate, data, bytes, SHOAL_U8, source / mesh->n_shards)
               : SHOAL_OK;
}

/* Runs a collective of an agreement: among the shards of each replica, then among replicas. */
static shoal_status run_on_mesh(const void *context, struct collective *call)
{
    const struct fsdp_mesh *mesh = context;
    shoal_group *const lanes[] = {mesh->gather, mesh->replicate};
    if (call->kind == COLLECTIVE_BROADCAST) {
        return fsdp_mesh_broadcast(mesh, call->single.recv, call->single.count, call->root);
    }
    for (int i = 0; i < 2; i++) {
        struct collective own = *call;
        TRY(lanes[i] ? collectives_run(lanes[i], &own) : SHOAL_OK);
    }
    return SHOAL_OK;
}

static shoal_status confirm(const struct agreement *agreement, shoal_status mine)
{
    struct agree_failure failure;
    TRY(agree_outcome(agreement, AGREE_LEAST_STATUS, mine, &failure));
    return failure.status == SHOAL_OK
               ? SHOAL_OK
               : error_set(failure.status, "rank %d: %.*s", failure.world_rank, REASON_BYTES, failure.text);
}

shoal_status fsdp_context_confirm(const struct fsdp_context *context, shoal_status mine)
{
    if (!context->common) {
        return fsdp_mesh_confirm(&context->domains[0]->mesh, mine);
    }
    const struct agreement agreement = agreement_on(context->common);
    return confirm(&agreement, mine);
}

shoal_status fsdp_mesh_confirm(const struct fsdp_mesh *mesh, shoal_status mine)
{
    const struct agreement agreement = {.rank = replica_of(mesh) * mesh->n_shards + mesh->shard,
                                        .n_ranks = fsdp_mesh_n_ranks(mesh),
                                        .world_rank = shoal_world_rank(mesh->world),
                                        .run = run_on_mesh,
                                        .context = mesh};
    return confirm(&agreement, mine);
}
