/* SPDX-License-Identifier: MIT */
/* Allocates and frees memory for the full parameters of a unit that are not in a window. */
#ifndef PARALLEL_FSDP_ENGINE_GATHER_FULL_H
#define PARALLEL_FSDP_ENGINE_GATHER_FULL_H

#include "parallel/fsdp/engine/state/unit.h"

shoal_status fsdp_full_allocate(struct fsdp_unit *unit);
void fsdp_full_free(struct fsdp_unit *unit);

/* Where a parameter has its place there. */
static inline struct address fsdp_full_at(const struct fsdp_unit *unit, const struct fsdp_param *param)
{
    return address_add(unit->gather.full, (ptrdiff_t)param->window_offset);
}

#endif
