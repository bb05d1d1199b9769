/* SPDX-License-Identifier: MIT */
/* The chunks of an item follow each other in its memory, and are a row apart in the packed memory: one item for the
   kernel, whatever the number of ranks. */
#include "cuda/items.h"
#include "cuda/table.h"
#include "tensor/dtype.h"

/* The elements of an item before chunk `rank`; all of them if the chunk is beyond the item. */
static int64_t find_first_elem(const struct kernel_pack_item *item, int64_t chunk_rows, int64_t rank)
{
    int64_t first_row;
    bool is_beyond = __builtin_mul_overflow(rank, chunk_rows, &first_row) || first_row > item->rows;
    return (is_beyond ? item->rows : first_row) * item->row_elems;
}

void cuda_pack(shoal_dtype dst_dtype, struct address dst, shoal_dtype src_dtype,
               const struct kernel_pack_item *items, size_t n_items, int64_t n_ranks, int64_t first_rank,
               int64_t n_rows)
{
    struct items packed;
    uint64_t column = address_number(dst);
    items_begin(&packed);
    packed.row_bytes = (uint64_t)kernel_pack_row_elems(items, n_items, n_ranks) * dtype_bytes(dst_dtype);
    for (size_t i = 0; i < n_items; i++) {
        int64_t chunk_rows = items[i].rows / n_ranks + (items[i].rows % n_ranks != 0);
        uint64_t chunk_elems = (uint64_t)chunk_rows * (uint64_t)items[i].row_elems;
        uint64_t first_elem = (uint64_t)find_first_elem(&items[i], chunk_rows, first_rank);
        uint64_t left = (uint64_t)items[i].rows * (uint64_t)items[i].row_elems - first_elem;
        uint64_t n_elems = chunk_elems * (uint64_t)n_rows;
        if (n_elems > 0) {
            items_add(&packed, dst_dtype, src_dtype,
                      (struct items_part){.dst = column,
                                          .src = address_number(items[i].data) +
                                                 first_elem * dtype_bytes(src_dtype),
                                          .n_filled = left < n_elems ? left : n_elems,
                                          .n_elems = n_elems,
                                          .row_elems = chunk_elems});
        }
        column += chunk_elems * dtype_bytes(dst_dtype);
    }
    items_end(&packed);
}

void cuda_unpack(shoal_dtype dst_dtype, const struct kernel_unpack_item *items, size_t n_items,
                 shoal_dtype src_dtype, struct address src, int64_t n_rows)
{
    struct items unpacked;
    uint64_t column = address_number(src);
    items_begin(&unpacked);
    unpacked.is_src_in_rows = true;
    for (size_t i = 0; i < n_items; i++) {
        unpacked.row_bytes += (uint64_t)items[i].elems * dtype_bytes(src_dtype);
    }
    for (size_t i = 0; i < n_items; i++) {
        uint64_t elems = (uint64_t)items[i].elems;
        uint64_t n_elems = elems * (uint64_t)n_rows;
        if (n_elems > 0) {
            items_add(&unpacked, dst_dtype, src_dtype,
                      (struct items_part){.dst = address_number(items[i].data),
                                          .src = column,
                                          .n_filled = n_elems,
                                          .n_elems = n_elems,
                                          .row_elems = elems});
        }
        column += elems * dtype_bytes(src_dtype);
    }
    items_end(&unpacked);
}
