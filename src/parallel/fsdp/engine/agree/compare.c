/* SPDX-License-Identifier: MIT */
/* Compares calls that are made by hand, and makes all lanes fail when ranks differ on one. */
#include "parallel/fsdp/engine/agree/compare.h"

#include <stdio.h>

#include "base/error.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "comm/lane/handles.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/lanes.h"
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

static void tell_lanes(const struct fsdp_mesh *mesh, shoal_status status, const char *text)
{
    tell_lane(mesh->gather, status, text);
    tell_lane(mesh->reduce, status, text);
    tell_lane(mesh->replicate, status, text);
    tell_lane(mesh->calls, status, text);
}

static bool has_failed_lane(const struct fsdp_mesh *mesh)
{
    return has_failed(mesh->gather) || has_failed(mesh->reduce) || has_failed(mesh->replicate) ||
           has_failed(mesh->calls);
}

shoal_status fsdp_tell_mesh(const struct fsdp_mesh *mesh, shoal_status status)
{
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    tell_lanes(mesh, status, text);
    return error_set(status, "%s", text);
}

shoal_status fsdp_tell(const struct fsdp_mesh *mesh, shoal_status status)
{
    return status == SHOAL_ERR_MISMATCH && has_failed_lane(mesh) ? fsdp_tell_mesh(mesh, status) : status;
}

shoal_status fsdp_tell_every_lane(const struct fsdp_context *context, shoal_status status)
{
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    tell_lane(context->common, status, text);
    for (size_t i = 0; i < context->n_domains; i++) {
        const struct fsdp_pools *pools = &context->domains[i]->pools;
        tell_lanes(&context->domains[i]->mesh, status, text);
        for (size_t k = 0; k < pools->n_kept; k++) {
            tell_lane(pools->kept[k]->windows.group, status, text);
        }
    }
    return error_set(status, "%s", text);
}

shoal_status fsdp_tell_all(const struct fsdp_context *context, shoal_status status)
{
    /* With several domains a lane may have failed of which not all ranks are members, for any reason. */
    bool may_tell = status == SHOAL_ERR_MISMATCH || (context->common && status != SHOAL_OK);
    bool has_any = has_failed(context->common);
    for (size_t i = 0; i < context->n_domains && may_tell; i++) {
        has_any = has_any || has_failed_lane(&context->domains[i]->mesh);
    }
    return may_tell && has_any ? fsdp_tell_every_lane(context, status) : status;
}

shoal_status fsdp_check_lanes(const struct fsdp_context *context)
{
    shoal_status status = context->common ? group_failure(context->common) : SHOAL_OK;
    for (size_t i = 0; i < context->n_domains && status == SHOAL_OK; i++) {
        const struct fsdp_mesh *mesh = &context->domains[i]->mesh;
        shoal_group *const lanes[] = {mesh->gather, mesh->reduce, mesh->replicate};
        for (size_t k = 0; k < sizeof lanes / sizeof lanes[0] && status == SHOAL_OK; k++) {
            status = lanes[k] ? group_failure(lanes[k]) : SHOAL_OK;
        }
    }
    return status == SHOAL_OK ? SHOAL_OK : fsdp_tell_all(context, status);
}

shoal_status fsdp_tell_of(const struct fsdp_unit *unit, shoal_status status)
{
    bool is_told = status == SHOAL_ERR_MISMATCH && unit->gather.neighbours &&
                   has_failed(unit->gather.neighbours->windows.group);
    return is_told ? fsdp_tell_every_lane(unit->context, status) : fsdp_tell_all(unit->context, status);
}

/* Names the unit, because the failure may be found in a call on another unit. */
shoal_status fsdp_tell_reduction(const struct fsdp_unit *unit, shoal_status status)
{
    return status == SHOAL_OK
               ? SHOAL_OK
               : error_prefix(fsdp_tell_all(unit->context, status), "%s: reducing gradients", unit->name);
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
