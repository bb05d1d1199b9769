/* SPDX-License-Identifier: MIT */
/* Memory for full parameters that are not in a window. */
#include "parallel/fsdp/engine/gather/full.h"

#include "base/mem.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/memory.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/state/unit.h"

shoal_status fsdp_full_allocate(struct fsdp_unit *unit)
{
    size_t bytes = unit->gather.bytes;
    unit->gather.full = mem_alloc_aligned(bytes > 0 ? bytes : 1, FSDP_ALIGNMENT);
    if (!unit->gather.full) {
        return SHOAL_ERR_NO_MEMORY;
    }
    fsdp_memory_add(&unit->context->memory, FSDP_MEMORY_OTHER, bytes);
    return SHOAL_OK;
}

void fsdp_full_free(struct fsdp_unit *unit)
{
    if (unit->gather.full) {
        fsdp_memory_remove(&unit->context->memory, FSDP_MEMORY_OTHER, unit->gather.bytes);
        mem_free(unit->gather.full);
        unit->gather.full = NULL;
    }
}
