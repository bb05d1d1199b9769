/* SPDX-License-Identifier: MIT */
/*
 * The layout in which full parameters are sent when they are not written into a window: [ranks, bytes]. The row of a
 * rank is its shard of every parameter, padded, in the dtype of compute. If all parameters have one dtype, the shards
 * lie one after the other; if not, a row is sent as bytes, and each shard begins at a multiple of 16. A parameter with
 * an extension has its encoded shard there (state/extension.h), and rows are bytes then. In a unit that stayed sharded
 * over neighbours, a row is the slices that a rank kept.
 */
#ifndef PARALLEL_FSDP_ENGINE_GATHER_ROWS_H
#define PARALLEL_FSDP_ENGINE_GATHER_ROWS_H

#include <stdbool.h>
#include <stddef.h>

#include "parallel/fsdp/engine/state/context.h"

/* Who gathers what. */
struct fsdp_rows {
    shoal_group *group;
    size_t n_rows;
    size_t mine; /* the number of this rank's row */
    bool is_kept;
    bool is_mixed; /* parameters have several dtypes: rows are bytes */
    shoal_dtype dtype;
    size_t bytes; /* of a row */
};

struct fsdp_rows fsdp_rows_of(const struct fsdp_unit *unit);
/* Writes this rank's row. It fails only if a function of an extension does. */
shoal_status fsdp_rows_pack(const struct fsdp_rows *rows, const struct fsdp_unit *unit, struct address row);
/* Unpacks all rows into the unit's memory for full parameters. If this fails, the other ranks are told. */
shoal_status fsdp_rows_unpack(const struct fsdp_rows *rows, const struct fsdp_unit *unit,
                              struct address gathered);

#endif
