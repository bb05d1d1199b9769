/* SPDX-License-Identifier: MIT */
/* Packs and unpacks the rows of a gather: rows.h has the layout. */
#include "parallel/fsdp/engine/gather/rows.h"

#include "base/try.h"
#include "kernel/moves.h"
#include "parallel/fsdp/engine/agree/marks.h"
#include "parallel/fsdp/engine/gather/encoded.h"
#include "parallel/fsdp/engine/gather/full.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/extension.h"
#include "parallel/fsdp/engine/state/lanes.h"
#include "parallel/fsdp/engine/state/memory.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "tensor/dtype.h"

/* In rows of several dtypes each shard begins at a multiple of this, so that it is aligned for its dtype. */
#define BYTES_ALIGNMENT 16

static bool is_mixed(const struct fsdp_unit *unit)
{
    for (size_t i = 1; i < unit->n_params; i++) {
        if (unit->params[i].compute != unit->params[0].compute) {
            return true;
        }
    }
    return unit->state != FSDP_KEPT && fsdp_has_extension(unit);
}

/* What is encoded in rows: the slices that neighbours kept are not. */
static const struct fsdp_extension *extension_of(const struct fsdp_rows *rows, const struct fsdp_param *param)
{
    return rows->is_kept ? NULL : param->extension;
}

/* How many elements a parameter has in a row. */
static size_t count_in_row(const struct fsdp_rows *rows, const struct fsdp_unit *unit,
                           const struct fsdp_param *param)
{
    return rows->is_kept ? (size_t)unit->mesh->n_shards * param->padded_count / rows->n_rows
                         : param->padded_count;
}

static size_t bytes_in_row(const struct fsdp_rows *rows, const struct fsdp_unit *unit,
                           const struct fsdp_param *param)
{
    const struct fsdp_extension *extension = extension_of(rows, param);
    size_t bytes =
        extension ? extension->bytes : count_in_row(rows, unit, param) * dtype_bytes(param->compute);
    return rows->is_mixed ? (bytes + BYTES_ALIGNMENT - 1) / BYTES_ALIGNMENT * BYTES_ALIGNMENT : bytes;
}

struct fsdp_rows fsdp_rows_of(const struct fsdp_unit *unit)
{
    const struct fsdp_mesh *mesh = unit->mesh;
    bool is_kept = unit->state == FSDP_KEPT;
    int n_rows = is_kept ? unit->config.reshard_ranks : mesh->n_shards;
    struct fsdp_rows rows = {.group = is_kept ? unit->gather.neighbours->windows.group : mesh->gather,
                             .n_rows = (size_t)n_rows,
                             .mine = (size_t)(mesh->shard % n_rows),
                             .is_kept = is_kept,
                             .is_mixed = is_mixed(unit)};
    rows.dtype = rows.is_mixed ? SHOAL_U8 : unit->params[0].compute;
    for (size_t i = 0; i < unit->n_params; i++) {
        rows.bytes += bytes_in_row(&rows, unit, &unit->params[i]);
    }
    return rows;
}

/* A parameter's own elements in its row. */
static struct kernel_move pack_one(const struct fsdp_rows *rows, const struct fsdp_param *param,
                                   struct address place)
{
    return (struct kernel_move){.dst = place,
                                .src = rows->is_kept ? param->kept : param->shard,
                                .count = rows->is_kept ? param->kept_count : param->padded_count,
                                .dst_dtype = param->compute,
                                .src_dtype = rows->is_kept ? param->compute : param->dtype};
}

shoal_status fsdp_rows_pack(const struct fsdp_rows *rows, const struct fsdp_unit *unit, struct address row)
{
    struct moves moves;
    moves_begin(&moves, unit->device);
    moves_clear(&moves, row, rows->bytes);
    moves_end(&moves);
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        if (extension_of(rows, param)) {
            TRY(fsdp_encode(unit, param, row));
        } else {
            moves_add(&moves, pack_one(rows, param, row));
        }
        row = address_add(row, (ptrdiff_t)bytes_in_row(rows, unit, param));
    }
    moves_end(&moves);
    return SHOAL_OK;
}

/* Copies shard `w`, without its padding, to its places in the whole: one for each index of the outer dimension. */
static void unpack_shard(struct moves *moves, const struct fsdp_param *param, size_t w, struct address from,
                         struct address full)
{
    size_t element_bytes = dtype_bytes(param->compute);
    int64_t begin;
    int64_t end;
    fsdp_param_rows(param, (int64_t)w, &begin, &end);
    size_t piece = (size_t)((end - begin) * param->inner);
    for (int64_t o = 0; o < param->outer && piece > 0; o++) {
        size_t to = (size_t)((o * param->size + begin) * param->inner) * element_bytes;
        moves_copy(moves, param->compute, address_add(full, (ptrdiff_t)to),
                   address_add(from, (ptrdiff_t)((size_t)o * piece * element_bytes)), piece);
    }
}

/* Copies the slice that neighbour `w` kept, which is a contiguous range of the whole, to its place. */
static void unpack_kept(struct moves *moves, const struct fsdp_param *param, size_t w, size_t length,
                        struct address from, struct address full)
{
    size_t begin = w * length;
    if (begin < param->count) {
        size_t count = param->count - begin < length ? param->count - begin : length;
        moves_copy(moves, param->compute, address_add(full, (ptrdiff_t)(begin * dtype_bytes(param->compute))),
                   from, count);
    }
}

static void unpack_row(struct moves *moves, const struct fsdp_rows *rows, const struct fsdp_unit *unit,
                       size_t w, struct address row)
{
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        struct address full = fsdp_full_at(unit, param);
        if (rows->is_kept) {
            unpack_kept(moves, param, w, count_in_row(rows, unit, param), row, full);
        } else if (!param->extension) {
            unpack_shard(moves, param, w, row, full);
        }
        row = address_add(row, (ptrdiff_t)bytes_in_row(rows, unit, param));
    }
}

/* Decodes parameters with extensions, of all rows. */
static shoal_status decode(const struct fsdp_rows *rows, const struct fsdp_unit *unit,
                           struct address gathered)
{
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        const struct fsdp_extension *extension = extension_of(rows, param);
        if (extension) {
            /* What is put side by side for it. */
            size_t joined = extension->given.is_by_rows ? 0 : rows->n_rows * extension->bytes;
            fsdp_memory_add(&unit->context->memory, FSDP_MEMORY_OTHER, joined);
            shoal_status status = fsdp_extension_decode_all(param, address_pointer(gathered), rows->bytes,
                                                            address_pointer(fsdp_full_at(unit, param)));
            fsdp_memory_remove(&unit->context->memory, FSDP_MEMORY_OTHER, joined);
            TRY(status);
        }
        gathered = address_add(gathered, (ptrdiff_t)bytes_in_row(rows, unit, param));
    }
    return SHOAL_OK;
}

shoal_status fsdp_rows_unpack(const struct fsdp_rows *rows, const struct fsdp_unit *unit,
                              struct address gathered)
{
    struct moves moves;
    moves_begin(&moves, unit->device);
    for (size_t w = 0; w < rows->n_rows; w++) {
        unpack_row(&moves, rows, unit, w, address_add(gathered, (ptrdiff_t)(w * rows->bytes)));
    }
    moves_end(&moves);
    shoal_status status = rows->is_kept ? SHOAL_OK : decode(rows, unit, gathered);
    return status == SHOAL_OK ? SHOAL_OK : fsdp_mark_failure(unit, status);
}
