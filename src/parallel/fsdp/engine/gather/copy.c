/* SPDX-License-Identifier: MIT */
/* Gathers by an all-gather of rows (rows.h) into memory of this rank, which are then unpacked: for transports without
   windows, and with SHOAL_FSDP_GATHER=copy. */
#include "base/error.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "device/device.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/gather/full.h"
#include "parallel/fsdp/engine/gather/way.h"
#include "parallel/fsdp/engine/agree/marks.h"
#include "parallel/fsdp/engine/state/memory.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/agree/purpose.h"
#include "parallel/fsdp/engine/gather/rows.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "tensor/dtype.h"

static void drop(struct fsdp_unit *unit)
{
    if (!address_is_none(unit->gather.staged)) {
        fsdp_memory_remove(&unit->context->memory, FSDP_MEMORY_OTHER, unit->gather.staged_bytes);
        device_memory_free(unit->device, unit->gather.staged);
        unit->gather.staged = ADDRESS_NONE;
    }
}

/* Allocates memory for the rows. If there is none, tells the other ranks, which would wait for this one. */
static shoal_status stage(struct fsdp_unit *unit, size_t bytes)
{
    shoal_status status = device_memory_allocate(unit->device, bytes, &unit->gather.staged);
    if (status != SHOAL_OK) {
        return fsdp_mark_failure(unit, error_prefix(status, "memory to gather parameters"));
    }
    unit->gather.staged_bytes = bytes;
    fsdp_memory_add(&unit->context->memory, FSDP_MEMORY_OTHER, bytes);
    return SHOAL_OK;
}

static shoal_status start(struct fsdp_unit *unit)
{
    struct fsdp_rows rows = fsdp_rows_of(unit);
    TRY(stage(unit, rows.n_rows * rows.bytes));
    struct address mine = address_add(unit->gather.staged, (ptrdiff_t)(rows.mine * rows.bytes));
    shoal_status packed = fsdp_rows_pack(&rows, unit, mine);
    if (packed != SHOAL_OK) {
        drop(unit);
        return fsdp_mark_failure(unit, packed);
    }
    struct purpose purpose = fsdp_unit_purpose(unit, PURPOSE_FSDP_GATHER);
    struct collective call = {.kind = COLLECTIVE_ALL_GATHER,
                              .dtype = SHOAL_U8,
                              .device = unit->device,
                              .single = {.send = address_pointer(mine),
                                         .recv = address_pointer(unit->gather.staged),
                                         .count = rows.bytes},
                              .purpose = &purpose};
    shoal_status status = collectives_start(rows.group, &call, &unit->gather.work);
    if (status != SHOAL_OK) {
        drop(unit);
    }
    return status;
}

static shoal_status finish(struct fsdp_unit *unit)
{
    struct fsdp_rows rows = fsdp_rows_of(unit);
    shoal_status status = fsdp_full_allocate(unit);
    if (status == SHOAL_OK) {
        status = fsdp_rows_unpack(&rows, unit, unit->gather.staged);
    }
    drop(unit);
    if (status != SHOAL_OK) {
        fsdp_full_free(unit);
    }
    return status;
}

const struct fsdp_gather_way fsdp_gather_copy = {
    .name = "copy", .start = start, .finish = finish, .drop = drop};
