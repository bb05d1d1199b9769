/* SPDX-License-Identifier: MIT */
/*
 * The layout in which full parameters are sent when they are not written into a window: [ranks, bytes]. The row of a
 * rank is its shard of every parameter, padded, in the dtype of compute. If all have one dtype, the shards lie one
 * after the other; if not, they are bytes, and each shard begins at a multiple of 16. A unit that stayed sharded
 * over neighbours sends the slices that it kept.
 */
#ifndef PARALLEL_FSDP_ENGINE_ROWS_H
#define PARALLEL_FSDP_ENGINE_ROWS_H

#include <stdbool.h>
#include <stddef.h>

#include "parallel/fsdp/engine/context.h"

/* Who gathers what. */
struct fsdp_rows {
    shoal_group *group;
    size_t n_rows;
    size_t mine;
    bool is_kept;
    bool is_mixed; /* parameters of several dtypes: bytes */
    shoal_dtype dtype;
    size_t bytes; /* of a row */
};

struct fsdp_rows fsdp_rows_of(const struct fsdp_unit *unit);
/* Writes this rank's row. */
void fsdp_rows_pack(const struct fsdp_rows *rows, const struct fsdp_unit *unit, char *row);
/* Unpacks all rows into the unit's memory for full parameters. */
void fsdp_rows_unpack(const struct fsdp_rows *rows, const struct fsdp_unit *unit, const char *gathered);

#endif
