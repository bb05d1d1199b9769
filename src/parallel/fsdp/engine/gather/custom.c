/* SPDX-License-Identifier: MIT */
/* Gathers by an object of the program (shoal/fsdp_comm.h), which fills memory with rows (rows.h). These are then
   unpacked. */
#include "base/error.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "parallel/fsdp/engine/state/custom.h"
#include "parallel/fsdp/engine/gather/full.h"
#include "parallel/fsdp/engine/gather/way.h"
#include "parallel/fsdp/engine/agree/common.h"
#include "parallel/fsdp/engine/agree/marks.h"
#include "parallel/fsdp/engine/agree/purpose.h"
#include "parallel/fsdp/engine/gather/rows.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "tensor/dtype.h"

static void drop(struct fsdp_unit *unit)
{
    const shoal_custom_all_gather *custom = &unit->hooks.all_gather;
    shoal_work_free(unit->gather.compared); /* a barrier, which uses no memory of ours */
    unit->gather.compared = NULL;
    if (!address_is_none(unit->gather.staged)) {
        fsdp_custom_drop_work(&unit->gather.work);
        fsdp_custom_release(unit, custom->release, custom->context, &unit->gather.staged,
                            unit->gather.staged_bytes);
    }
}

static shoal_status call_object(struct fsdp_unit *unit)
{
    const shoal_custom_all_gather *custom = &unit->hooks.all_gather;
    struct fsdp_rows rows = fsdp_rows_of(unit);
    unit->gather.staged_bytes = fsdp_custom_bytes(rows.n_rows * rows.bytes);
    TRY(fsdp_custom_allocate(unit, custom->allocate, custom->context, unit->gather.staged_bytes,
                             &unit->gather.staged));
    struct address mine = address_add(unit->gather.staged, (ptrdiff_t)(rows.mine * rows.bytes));
    TRY(fsdp_rows_pack(&rows, unit, mine));
    struct purpose purpose = fsdp_unit_purpose(unit, PURPOSE_FSDP_GATHER);
    TRY(collectives_barrier_start(rows.group, &purpose, &unit->gather.compared));
    error_clear();
    unit->context->n_callbacks++;
    shoal_status status =
        custom->call(custom->context, address_pointer(unit->gather.staged), address_pointer(mine),
                     rows.bytes / dtype_bytes(rows.dtype), rows.dtype, rows.group, &unit->gather.work);
    unit->context->n_callbacks--;
    return status;
}

static shoal_status start(struct fsdp_unit *unit)
{
    shoal_status status = call_object(unit);
    if (status != SHOAL_OK) {
        status = fsdp_mark_failure(unit, error_prefix(status, "a custom all-gather"));
        drop(unit);
    }
    return status;
}

static shoal_status finish(struct fsdp_unit *unit)
{
    struct fsdp_rows rows = fsdp_rows_of(unit);
    shoal_status status = fsdp_common_wait(unit->context, unit->gather.compared);
    status = status == SHOAL_OK ? fsdp_custom_end_comparison(&unit->gather.compared) : status;
    if (status == SHOAL_OK) {
        status = fsdp_full_allocate(unit);
    }
    if (status == SHOAL_OK) {
        status = fsdp_rows_unpack(&rows, unit, unit->gather.staged);
    }
    drop(unit);
    if (status != SHOAL_OK) {
        fsdp_full_free(unit);
    }
    return status;
}

const struct fsdp_gather_way fsdp_gather_custom = {
    .name = "custom", .start = start, .finish = finish, .drop = drop};
