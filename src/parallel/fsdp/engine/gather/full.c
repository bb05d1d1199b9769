/* SPDX-License-Identifier: MIT */
/* Memory for full parameters that are not in a window. */
#include "parallel/fsdp/engine/gather/full.h"

#include "base/try.h"
#include "device/device.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/memory.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/state/unit.h"

shoal_status fsdp_full_allocate(struct fsdp_unit *unit)
{
    size_t bytes = unit->gather.bytes;
    TRY(device_memory_allocate(unit->device, bytes, &unit->gather.full));
    fsdp_memory_add(&unit->context->memory, FSDP_MEMORY_OTHER, bytes);
    return SHOAL_OK;
}

void fsdp_full_free(struct fsdp_unit *unit)
{
    if (!address_is_none(unit->gather.full)) {
        fsdp_memory_remove(&unit->context->memory, FSDP_MEMORY_OTHER, unit->gather.bytes);
        device_memory_free(unit->device, unit->gather.full);
        unit->gather.full = ADDRESS_NONE;
    }
}
