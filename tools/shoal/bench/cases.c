/* SPDX-License-Identifier: MIT */
/*
 * The cases of `shoal bench kernels`. Sizes follow from the number of bytes that a run should touch: it determines the
 * number of elements of casts and reductions, and the width C of the layer for packing and unpacking.
 */
#include "bench/cases.h"

#include "base/mem.h"
#include "tensor/dtype.h"

#include <stdint.h>
#include <string.h>

/* rows x row_elems of the twelve tensors of a GPT-2 layer, in units of C; 0 stands for one element. */
static const struct {
    int rows;
    int row_elems;
} layer[BENCH_TENSORS] = {
    {1, 0}, {1, 0}, /* ln1 weight, bias */
    {3, 1}, {3, 0}, /* attention */
    {1, 1}, {1, 0}, /* projection */
    {1, 0}, {1, 0}, /* ln2 */
    {4, 1}, {4, 0}, /* fc */
    {1, 4}, {1, 0}, /* fc projection */
};

static size_t align_up(size_t bytes)
{
    return (bytes + MEM_DATA_ALIGNMENT - 1) / MEM_DATA_ALIGNMENT * MEM_DATA_ALIGNMENT;
}

/* Packing and unpacking ---------------------------------------------------------------------------------- */

/* The layer of width C; returns its elements. */
static int64_t make_layer(struct kernel_pack_item *items, int64_t width)
{
    int64_t elems = 0;
    for (size_t i = 0; i < BENCH_TENSORS; i++) {
        items[i].rows = layer[i].rows * width;
        items[i].row_elems = layer[i].row_elems == 0 ? 1 : layer[i].row_elems * width;
        elems += items[i].rows * items[i].row_elems;
    }
    return elems;
}

/* The widest layer for which `elems * src_bytes + packed * dst_bytes` stays within the budget. */
static int64_t find_width(size_t touched_bytes, size_t src_element_bytes, size_t dst_element_bytes,
                          bool is_packed_twice)
{
    struct kernel_pack_item items[BENCH_TENSORS];
    int64_t width = 1;
    for (int64_t step = (int64_t)1 << 16; step > 0; step /= 2) {
        size_t elems = (size_t)make_layer(items, width + step);
        size_t packed = (size_t)(BENCH_RANKS * kernel_pack_row_elems(items, BENCH_TENSORS, BENCH_RANKS));
        size_t src_elems = is_packed_twice ? packed : elems;
        if (src_elems * src_element_bytes + packed * dst_element_bytes <= touched_bytes) {
            width += step;
        }
    }
    return width;
}

static void size_pack(struct bench_case *one, size_t touched_bytes)
{
    size_t src_element_bytes = dtype_bytes(one->row->src_dtype);
    size_t dst_element_bytes = dtype_bytes(one->row->dst_dtype);
    int64_t width = find_width(touched_bytes, src_element_bytes, dst_element_bytes, false);
    size_t elems = (size_t)make_layer(one->pack_items, width);
    int64_t row_elems = kernel_pack_row_elems(one->pack_items, BENCH_TENSORS, BENCH_RANKS);
    one->dst_bytes = (size_t)(BENCH_RANKS * row_elems) * dst_element_bytes;
    one->touched_bytes = elems * src_element_bytes + one->dst_bytes;
    one->src_bytes = 0;
    for (size_t i = 0; i < BENCH_TENSORS; i++) {
        const struct kernel_pack_item *item = &one->pack_items[i];
        one->src_bytes += align_up((size_t)(item->rows * item->row_elems) * src_element_bytes);
    }
}

static void run_pack(struct bench_case *one)
{
    size_t offset_bytes = 0;
    for (size_t i = 0; i < BENCH_TENSORS; i++) {
        struct kernel_pack_item *item = &one->pack_items[i];
        item->data = address_of(one->srcs[0] + offset_bytes);
        offset_bytes += align_up((size_t)(item->rows * item->row_elems) * dtype_bytes(one->row->src_dtype));
    }
    kernel_pack(one->row->dst_dtype, address_of(one->dst), one->row->src_dtype, one->pack_items,
                BENCH_TENSORS, BENCH_RANKS, 0, BENCH_RANKS);
}

static void size_unpack(struct bench_case *one, size_t touched_bytes)
{
    size_t src_element_bytes = dtype_bytes(one->row->src_dtype);
    size_t dst_element_bytes = dtype_bytes(one->row->dst_dtype);
    (void)make_layer(one->pack_items, find_width(touched_bytes, src_element_bytes, dst_element_bytes, true));
    one->dst_bytes = 0;
    size_t packed = 0;
    for (size_t i = 0; i < BENCH_TENSORS; i++) {
        one->unpack_items[i].elems = kernel_pack_row_elems(&one->pack_items[i], 1, BENCH_RANKS);
        size_t elems = (size_t)(BENCH_RANKS * one->unpack_items[i].elems);
        one->dst_bytes += align_up(elems * dst_element_bytes);
        packed += elems;
    }
    one->src_bytes = packed * src_element_bytes;
    one->touched_bytes = packed * (src_element_bytes + dst_element_bytes);
}

static void run_unpack(struct bench_case *one)
{
    size_t offset_bytes = 0;
    for (size_t i = 0; i < BENCH_TENSORS; i++) {
        struct kernel_unpack_item *item = &one->unpack_items[i];
        item->data = address_of(one->dst + offset_bytes);
        offset_bytes += align_up((size_t)(BENCH_RANKS * item->elems) * dtype_bytes(one->row->dst_dtype));
    }
    kernel_unpack(one->row->dst_dtype, one->unpack_items, BENCH_TENSORS, one->row->src_dtype,
                  address_of(one->srcs[0]), BENCH_RANKS);
}

/* Casts and reductions ----------------------------------------------------------------------------------- */

static void size_flat(struct bench_case *one, size_t touched_bytes, size_t n_srcs)
{
    size_t src_element_bytes = dtype_bytes(one->row->src_dtype);
    size_t dst_element_bytes = dtype_bytes(one->row->dst_dtype);
    one->count = touched_bytes / (n_srcs * src_element_bytes + dst_element_bytes);
    one->src_bytes = one->count * src_element_bytes;
    one->dst_bytes = one->count * dst_element_bytes;
    one->touched_bytes = n_srcs * one->src_bytes + one->dst_bytes;
}

static void size_cast(struct bench_case *one, size_t touched_bytes)
{
    size_flat(one, touched_bytes, 1);
}

static void run_cast(struct bench_case *one)
{
    kernel_cast(one->row->dst_dtype, one->dst, one->row->src_dtype, one->srcs[0], one->count);
}

static void size_reduce(struct bench_case *one, size_t touched_bytes)
{
    size_flat(one, touched_bytes, 2);
}

static void run_reduce(struct bench_case *one)
{
    const void *srcs[2] = {one->srcs[0], one->srcs[1]};
    /* The operator is offered for every dtype of the rows. */
    (void)kernel_reduce(SHOAL_SUM, one->row->dst_dtype, one->dst, srcs, 2, one->count, 1.0);
}

const struct bench_row bench_rows[] = {
    {"pack", SHOAL_F32, SHOAL_F32, 0.8, size_pack, run_pack},
    {"pack", SHOAL_BF16, SHOAL_BF16, 0.6, size_pack, run_pack},
    {"pack", SHOAL_F32, SHOAL_BF16, 0.6, size_pack, run_pack},
    {"unpack", SHOAL_F32, SHOAL_F32, 0.8, size_unpack, run_unpack},
    {"unpack", SHOAL_BF16, SHOAL_BF16, 0.6, size_unpack, run_unpack},
    {"unpack", SHOAL_BF16, SHOAL_F32, 0.6, size_unpack, run_unpack},
    {"cast", SHOAL_F32, SHOAL_BF16, 0.6, size_cast, run_cast},
    {"cast", SHOAL_BF16, SHOAL_F32, 0.6, size_cast, run_cast},
    {"cast", SHOAL_F32, SHOAL_F16, 0, size_cast, run_cast},
    {"cast", SHOAL_F16, SHOAL_F32, 0, size_cast, run_cast},
    {"reduce", SHOAL_F32, SHOAL_F32, 0.8, size_reduce, run_reduce},
    {"reduce", SHOAL_BF16, SHOAL_BF16, 0.6, size_reduce, run_reduce},
    {"reduce", SHOAL_F16, SHOAL_F16, 0, size_reduce, run_reduce},
};
const size_t bench_n_rows = sizeof(bench_rows) / sizeof(bench_rows[0]);

/* Cases -------------------------------------------------------------------------------------------------- */

/* Numbers in [-1, 1) in any of the four float dtypes: no NaN, so that equal results have equal bits. */
static void fill(shoal_dtype dtype, unsigned char *base, size_t bytes, uint64_t seed)
{
    size_t element_bytes = dtype_bytes(dtype);
    for (size_t offset = 0; offset + element_bytes <= bytes; offset += element_bytes) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        float value = (float)(int32_t)(seed >> 32) * 0x1p-31f;
        kernel_cast(dtype, base + offset, SHOAL_F32, &value, 1);
    }
}

shoal_status bench_case_init(struct bench_case *one, const struct bench_row *row, size_t touched_bytes)
{
    memset(one, 0, sizeof(*one));
    one->row = row;
    row->size(one, touched_bytes);
    const struct simd_table *in_use = simd_table();
    one->srcs[0] = mem_alloc_aligned(one->src_bytes, MEM_DATA_ALIGNMENT);
    one->srcs[1] = mem_alloc_aligned(one->src_bytes, MEM_DATA_ALIGNMENT);
    one->dst = mem_alloc_aligned(one->dst_bytes, MEM_DATA_ALIGNMENT);
    one->expected = mem_alloc_aligned(one->dst_bytes, MEM_DATA_ALIGNMENT);
    if (!one->srcs[0] || !one->srcs[1] || !one->dst || !one->expected) {
        bench_case_fini(one);
        return SHOAL_ERR_NO_MEMORY;
    }
    fill(row->src_dtype, one->srcs[0], one->src_bytes, 1);
    fill(row->src_dtype, one->srcs[1], one->src_bytes, 2);
    memset(one->dst, 0, one->dst_bytes);
    simd_table_set(&simd_plain);
    row->run(one);
    simd_table_set(in_use);
    memcpy(one->expected, one->dst, one->dst_bytes);
    memset(one->dst, 0, one->dst_bytes);
    return SHOAL_OK;
}

void bench_case_fini(struct bench_case *one)
{
    mem_free(one->srcs[0]);
    mem_free(one->srcs[1]);
    mem_free(one->dst);
    mem_free(one->expected);
    memset(one, 0, sizeof(*one));
}

size_t bench_case_count_wrong(const struct bench_case *one)
{
    size_t element_bytes = dtype_bytes(one->row->dst_dtype);
    size_t wrong = 0;
    for (size_t offset = 0; offset < one->dst_bytes; offset += element_bytes) {
        wrong += memcmp(one->dst + offset, one->expected + offset, element_bytes) != 0;
    }
    return wrong;
}
