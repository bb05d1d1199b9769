/* SPDX-License-Identifier: MIT */
/*
 * Each part becomes an item of the fastest kernel that can move it, with the largest unit that its addresses allow. A
 * part with more elements than an item may have becomes several items.
 */
#include "cuda/items.h"

#include <string.h>

#include "cuda/divisor.h"
#include "cuda/kernels/target.h"
#include "cuda/launch.h"
#include "tensor/dtype.h"

_Static_assert(sizeof(struct move_table) <= CUDA_ARGUMENT_BYTES, "what a kernel takes");

/* A part whose kernel has been chosen. A kernel that moves bytes takes bytes for elements. */
struct chosen {
    enum items_way way;
    shoal_dtype dst_dtype;
    shoal_dtype src_dtype;
    uint32_t dst_bytes; /* of an element */
    uint32_t src_bytes;
};

static const struct way_row {
    enum cuda_kernel kernel;
    uint8_t unit_log2_most;
} ways[ITEMS_WAYS] = {
    [ITEMS_BYTES] = {CUDA_KERNEL_move_bytes, 4},
    [ITEMS_FLOATS] = {CUDA_KERNEL_move_floats, 2},
    [ITEMS_ELEMENTS] = {CUDA_KERNEL_move_elements, 0},
};

static void empty_table(struct items *items, enum items_way way)
{
    items->tables[way].n_items = 0;
    items->tables[way].n_tiles = 0;
}

void items_begin(struct items *items)
{
    items->row_bytes = 0;
    items->is_src_in_rows = false;
    items->is_added = false;
    memset(items->fill, 0, sizeof items->fill);
    for (enum items_way way = 0; way < ITEMS_WAYS; way++) {
        empty_table(items, way);
    }
}

static void launch(struct items *items, enum items_way way)
{
    struct move_table *table = &items->tables[way];
    table->row_bytes = items->row_bytes;
    table->is_src_in_rows = items->is_src_in_rows;
    table->is_added = items->is_added;
    memcpy(table->fill, items->fill, sizeof table->fill);
    cuda_launch(ways[way].kernel, table,
                (struct cuda_grid){.n_blocks = table->n_tiles, .n_threads = MOVE_THREADS});
    empty_table(items, way);
}

void items_end(struct items *items)
{
    for (enum items_way way = 0; way < ITEMS_WAYS; way++) {
        launch(items, way);
    }
}

/* Choosing --------------------------------------------------------------------------------------------- */

static bool has_rows(const struct items_part *part)
{
    return part->n_elems > part->row_elems;
}

/* Whether every unit of 1 << unit_log2 elements is in one row, at a multiple of its size. */
static bool is_aligned(const struct items *items, const struct chosen *chosen, const struct items_part *part,
                       uint32_t unit_log2)
{
    uint64_t dst_mask = ((uint64_t)chosen->dst_bytes << unit_log2) - 1;
    uint64_t src_mask = ((uint64_t)chosen->src_bytes << unit_log2) - 1;
    uint64_t row_mask = items->is_src_in_rows ? src_mask : dst_mask;
    uint64_t elems_mask = ((uint64_t)1 << unit_log2) - 1;
    bool are_rows_aligned =
        !has_rows(part) || ((items->row_bytes & row_mask) == 0 && (part->row_elems & elems_mask) == 0);
    bool is_src_aligned = part->n_filled == 0 || (part->src & src_mask) == 0;
    return are_rows_aligned && is_src_aligned && (part->dst & dst_mask) == 0;
}

static bool is_short_float(shoal_dtype dtype)
{
    return dtype == SHOAL_F32 || dtype == SHOAL_F16 || dtype == SHOAL_BF16;
}

/* A bool becomes 0 or 1, which is more than copying its byte. */
static struct chosen choose(const struct items *items, shoal_dtype dst_dtype, shoal_dtype src_dtype,
                            struct items_part *part)
{
    struct chosen chosen = {.way = ITEMS_ELEMENTS,
                            .dst_dtype = dst_dtype,
                            .src_dtype = src_dtype,
                            .dst_bytes = (uint32_t)dtype_bytes(dst_dtype),
                            .src_bytes = (uint32_t)dtype_bytes(src_dtype)};
    if (dst_dtype == src_dtype && dst_dtype != SHOAL_BOOL && !items->is_added) {
        part->n_filled *= chosen.dst_bytes;
        part->n_elems *= chosen.dst_bytes;
        part->row_elems *= chosen.dst_bytes;
        chosen.way = ITEMS_BYTES;
        chosen.dst_bytes = 1;
        chosen.src_bytes = 1;
    } else if (is_short_float(dst_dtype) && is_short_float(src_dtype) &&
               is_aligned(items, &chosen, part, 0)) {
        chosen.way = ITEMS_FLOATS;
    }
    return chosen;
}

/* Adding ----------------------------------------------------------------------------------------------- */

static uint32_t divide_up(uint64_t n, uint64_t divisor)
{
    return (uint32_t)((n + divisor - 1) / divisor);
}

static void add_item(struct items *items, const struct chosen *chosen, const struct items_part *part)
{
    struct move_table *table = &items->tables[chosen->way];
    if (table->n_items == MOVE_ITEMS) {
        launch(items, chosen->way);
    }
    uint8_t unit_log2 = ways[chosen->way].unit_log2_most;
    while (unit_log2 > 0 && !is_aligned(items, chosen, part, unit_log2)) {
        unit_log2--;
    }
    uint64_t unit_elems = (uint64_t)1 << unit_log2;
    uint32_t row_units = divide_up(part->row_elems, unit_elems);
    struct divisor divisor = divisor_of(row_units);
    table->items[table->n_items++] = (struct move_item){.dst = part->dst,
                                                        .src = part->src,
                                                        .n_filled = (uint32_t)part->n_filled,
                                                        .n_elems = (uint32_t)part->n_elems,
                                                        .row_units = row_units,
                                                        .magic = divisor.magic,
                                                        .first_tile = table->n_tiles,
                                                        .shift = (uint8_t)divisor.shift,
                                                        .unit_log2 = unit_log2,
                                                        .dst_dtype = (uint8_t)chosen->dst_dtype,
                                                        .src_dtype = (uint8_t)chosen->src_dtype};
    table->n_tiles += divide_up(divide_up(part->n_elems, unit_elems), MOVE_TILE_UNITS);
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Takes n_elems elements off the beginning, which are whole rows or a part of the only one. */
static struct items_part split(const struct items *items, const struct chosen *chosen,
                               struct items_part *part, uint64_t n_elems)
{
    struct items_part taken = *part;
    bool has_row_steps = has_rows(part);
    taken.n_elems = n_elems;
    taken.n_filled = smaller(part->n_filled, n_elems);
    uint64_t dst_step = n_elems * chosen->dst_bytes;
    uint64_t src_step = n_elems * chosen->src_bytes;
    if (has_row_steps) {
        *(items->is_src_in_rows ? &src_step : &dst_step) = n_elems / part->row_elems * items->row_bytes;
    } else {
        taken.row_elems = n_elems;
        part->row_elems -= n_elems;
    }
    part->dst += dst_step;
    part->src += src_step;
    part->n_elems -= n_elems;
    part->n_filled -= taken.n_filled;
    return taken;
}

/* One row. */
static void add_row(struct items *items, const struct chosen *chosen, struct items_part row)
{
    while (row.n_elems > 0) {
        struct items_part piece = split(items, chosen, &row, smaller(row.n_elems, MOVE_ELEMS_MOST));
        add_item(items, chosen, &piece);
    }
}

void items_add(struct items *items, shoal_dtype dst_dtype, shoal_dtype src_dtype, struct items_part part)
{
    struct chosen chosen = choose(items, dst_dtype, src_dtype, &part);
    while (has_rows(&part)) {
        uint64_t n_rows = smaller(part.n_elems / part.row_elems, MOVE_ELEMS_MOST / part.row_elems);
        struct items_part rows = split(items, &chosen, &part, (n_rows > 0 ? n_rows : 1) * part.row_elems);
        if (n_rows > 0) {
            add_item(items, &chosen, &rows);
        } else {
            add_row(items, &chosen, rows);
        }
    }
    add_row(items, &chosen, part);
}
