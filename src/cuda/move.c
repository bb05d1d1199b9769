/* SPDX-License-Identifier: MIT */
#include "cuda/items.h"
#include "cuda/table.h"
#include "tensor/dtype.h"

/* As on the CPU, zeros are written, not added, and a bool that is only moved keeps its byte. */
static bool is_added(const struct kernel_move *move)
{
    return move->is_added && !address_is_none(move->src);
}

static void add_move(struct items *items, const struct kernel_move *move)
{
    bool is_zero = address_is_none(move->src);
    shoal_dtype dst_dtype = move->dst_dtype;
    shoal_dtype src_dtype = is_zero ? dst_dtype : move->src_dtype;
    if (dst_dtype == SHOAL_BOOL && src_dtype == SHOAL_BOOL) {
        dst_dtype = src_dtype = SHOAL_U8;
    }
    items_add(items, dst_dtype, src_dtype,
              (struct items_part){.dst = address_number(move->dst),
                                  .src = address_number(move->src),
                                  .n_filled = is_zero ? 0 : move->count,
                                  .n_elems = move->count,
                                  .row_elems = move->count});
}

void cuda_move(const struct kernel_move *moves, size_t n_moves)
{
    for (int adding = 0; adding < 2; adding++) {
        struct items items;
        items_begin(&items);
        items.is_added = adding;
        for (size_t i = 0; i < n_moves; i++) {
            if (moves[i].count > 0 && is_added(&moves[i]) == adding) {
                add_move(&items, &moves[i]);
            }
        }
        items_end(&items);
    }
}
