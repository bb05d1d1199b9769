/* SPDX-License-Identifier: MIT */
/* Moves, packing and unpacking of device `cuda` against the CPU's: every dtype, any alignment, odd sizes, padding, many
   items. */
#include "fixtures/device_sides.h"

/* On the driver that SHOAL_CUDA names. */
__attribute__((constructor)) static void set_options(void)
{
    (void)setenv("SHOAL_TEST_DEVICE", "cuda", 0);
}

enum {
    ITEMS_MOST = 220, /* more than one launch takes */
    ROUNDS = 150
};

/* Moves ---------------------------------------------------------------------------------------------------- */

static struct drawn_move {
    size_t in_at;
    size_t out_at;
    struct kernel_move move;
    bool is_zero;
} moves[ITEMS_MOST];
static size_t n_moves;

static void run_moves(const struct side *side)
{
    struct kernel_move list[ITEMS_MOST];
    for (size_t i = 0; i < n_moves; i++) {
        list[i] = moves[i].move;
        list[i].dst = address_add(side->out, (ptrdiff_t)moves[i].out_at);
        list[i].src = moves[i].is_zero ? ADDRESS_NONE : address_add(side->in, (ptrdiff_t)moves[i].in_at);
    }
    side->kernels->move(list, n_moves);
}

static bool draw_move(struct test_random *random, struct drawn_move *drawn, size_t count, size_t *in_end,
                      size_t *out_end)
{
    shoal_dtype dtype = draw_dtype(random);
    shoal_dtype src_dtype = test_random_below(random, 2) ? dtype : draw_dtype(random);
    bool can_add = dtype_kind(dtype) == DTYPE_KIND_FLOAT || dtype_kind(dtype) == DTYPE_KIND_COMPLEX;
    *drawn = (struct drawn_move){.in_at = draw_place(random, *in_end, src_dtype),
                                 .out_at = draw_place(random, *out_end, dtype),
                                 .is_zero = test_random_below(random, 6) == 0};
    drawn->move = (struct kernel_move){.count = count,
                                       .dst_dtype = dtype,
                                       .src_dtype = src_dtype,
                                       .is_added = can_add && test_random_below(random, 3) == 0};
    if (!has_room(drawn->in_at, src_dtype, count) || !has_room(drawn->out_at, dtype, count)) {
        return false;
    }
    make_values(random, src_dtype, in + drawn->in_at, count);
    make_values(random, dtype, out + drawn->out_at, count);
    mark(drawn->out_at, dtype, count);
    *in_end = drawn->in_at + count * dtype_bytes(src_dtype);
    *out_end = drawn->out_at + count * dtype_bytes(dtype);
    return true;
}

TEST(lists_of_moves)
{
    struct test_random random = test_random_begin(1);
    for (int round = 0; round < ROUNDS && !test_has_failed(); round++) {
        bool are_many = test_random_below(&random, 4) == 0;
        size_t wanted = test_random_below(&random, are_many ? ITEMS_MOST + 1 : 6);
        size_t in_end = GUARD_BYTES;
        size_t out_end = GUARD_BYTES;
        begin(&random);
        for (n_moves = 0; n_moves < wanted; n_moves++) {
            size_t count = are_many ? test_random_below(&random, 60) : draw_count(&random);
            if (!draw_move(&random, &moves[n_moves], count, &in_end, &out_end)) {
                break;
            }
        }
        compare_sides(run_moves);
        check_out("move");
    }
}

TEST(every_pair_of_dtypes)
{
    struct test_random random = test_random_begin(2);
    for (int i = 0; i < (DTYPE_COUNT - 1) * (DTYPE_COUNT - 1) && !test_has_failed(); i++) {
        shoal_dtype dtype = (shoal_dtype)(1 + i % (DTYPE_COUNT - 1));
        shoal_dtype src_dtype = (shoal_dtype)(1 + i / (DTYPE_COUNT - 1));
        begin(&random);
        make_values(&random, src_dtype, in + GUARD_BYTES, 700);
        mark(GUARD_BYTES, dtype, 700);
        n_moves = 1;
        moves[0] = (struct drawn_move){.in_at = GUARD_BYTES, .out_at = GUARD_BYTES};
        moves[0].move = (struct kernel_move){.count = 700, .dst_dtype = dtype, .src_dtype = src_dtype};
        compare_sides(run_moves);
        check_out("a cast");
    }
}

/* Packing -------------------------------------------------------------------------------------------------- */

static const int64_t rank_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1024};

/* An item has rows x row_elems elements; of unpacking, n_rows x row_elems. */
static struct {
    shoal_dtype dtype;
    shoal_dtype src_dtype;
    int64_t n_ranks;
    int64_t first_rank;
    int64_t n_rows;
    size_t rows_at;
    size_t n_items;
    struct kernel_pack_item items[ITEMS_MOST];
    size_t items_at[ITEMS_MOST];
} packing;

static void run_pack(const struct side *side)
{
    for (size_t i = 0; i < packing.n_items; i++) {
        packing.items[i].data = address_add(side->in, (ptrdiff_t)packing.items_at[i]);
    }
    side->kernels->pack(packing.dtype, address_add(side->out, (ptrdiff_t)packing.rows_at), packing.src_dtype,
                        packing.items, packing.n_items, packing.n_ranks, packing.first_rank, packing.n_rows);
}

static void run_unpack(const struct side *side)
{
    struct kernel_unpack_item items[ITEMS_MOST];
    for (size_t i = 0; i < packing.n_items; i++) {
        items[i].data = address_add(side->out, (ptrdiff_t)packing.items_at[i]);
        items[i].elems = packing.items[i].row_elems;
    }
    side->kernels->unpack(packing.dtype, items, packing.n_items, packing.src_dtype,
                          address_add(side->in, (ptrdiff_t)packing.rows_at), packing.n_rows);
}

/* All but the items. */
static void draw_packing(struct test_random *random)
{
    packing.dtype = draw_dtype(random);
    packing.src_dtype = test_random_below(random, 2) ? packing.dtype : draw_dtype(random);
    packing.n_ranks = rank_counts[test_random_below(random, sizeof rank_counts / sizeof *rank_counts)];
    packing.first_rank =
        test_random_below(random, 2) ? 0 : (int64_t)test_random_below(random, (uint64_t)packing.n_ranks);
    packing.n_rows = packing.n_ranks - packing.first_rank;
    packing.n_items = 0;
    begin(random);
}

/* Short rows if there are many, and sometimes ones that are multiples of a vector. */
static int64_t draw_row_elems(struct test_random *random, int64_t most)
{
    if (test_random_below(random, 2)) {
        return (int64_t)test_random_below(random, (uint64_t)most);
    }
    return test_random_below(random, 2) ? 4 : 16;
}

TEST(packing_rows)
{
    struct test_random random = test_random_begin(3);
    for (int round = 0; round < ROUNDS && !test_has_failed(); round++) {
        draw_packing(&random);
        size_t wanted = test_random_below(&random, test_random_below(&random, 5) ? 8 : ITEMS_MOST + 1);
        bool are_large = wanted < 8 && packing.n_ranks < 10;
        size_t end = GUARD_BYTES;
        packing.rows_at = draw_place(&random, GUARD_BYTES, packing.dtype);
        for (size_t i = 0; i < wanted; i++) {
            int64_t rows = (int64_t)test_random_below(&random, are_large ? 60 : 6);
            int64_t row_elems = draw_row_elems(&random, are_large ? 90 : 5);
            size_t at = draw_place(&random, end, packing.src_dtype);
            packing.items[i] = (struct kernel_pack_item){.rows = rows, .row_elems = row_elems};
            size_t packed =
                (size_t)(kernel_pack_row_elems(packing.items, i + 1, packing.n_ranks) * packing.n_rows);
            if (!has_room(at, packing.src_dtype, (size_t)(rows * row_elems)) ||
                !has_room(packing.rows_at, packing.dtype, packed)) {
                break;
            }
            packing.items_at[i] = at;
            packing.n_items = i + 1;
            make_values(&random, packing.src_dtype, in + at, (size_t)(rows * row_elems));
            end = at + (size_t)(rows * row_elems) * dtype_bytes(packing.src_dtype);
        }
        mark(packing.rows_at, packing.dtype,
             (size_t)(kernel_pack_row_elems(packing.items, packing.n_items, packing.n_ranks) *
                      packing.n_rows));
        compare_sides(run_pack);
        check_out("pack");
    }
}

TEST(unpacking_rows)
{
    struct test_random random = test_random_begin(4);
    for (int round = 0; round < ROUNDS && !test_has_failed(); round++) {
        draw_packing(&random);
        size_t wanted = test_random_below(&random, test_random_below(&random, 5) ? 8 : ITEMS_MOST + 1);
        bool are_large = wanted < 8 && packing.n_ranks < 10;
        size_t end = GUARD_BYTES;
        size_t n_rows = (size_t)packing.n_rows;
        size_t row_elems = 0;
        packing.rows_at = draw_place(&random, GUARD_BYTES, packing.src_dtype);
        for (size_t i = 0; i < wanted; i++) {
            size_t elems = (size_t)draw_row_elems(&random, are_large ? 600 : 5);
            size_t at = draw_place(&random, end, packing.dtype);
            if (!has_room(at, packing.dtype, n_rows * elems) ||
                !has_room(packing.rows_at, packing.src_dtype, n_rows * (row_elems + elems))) {
                break;
            }
            packing.items[i].row_elems = (int64_t)elems;
            packing.items_at[i] = at;
            packing.n_items = i + 1;
            row_elems += elems;
            mark(at, packing.dtype, n_rows * elems);
            end = at + n_rows * elems * dtype_bytes(packing.dtype);
        }
        make_values(&random, packing.src_dtype, in + packing.rows_at, n_rows * row_elems);
        compare_sides(run_unpack);
        check_out("unpack");
    }
}

/* Empty lists, items without elements, and no rows. */
static void run_nothing(const struct side *side)
{
    const struct kernel_move none = {.dst_dtype = SHOAL_F32, .src_dtype = SHOAL_BF16};
    const struct kernel_pack_item empty[] = {{.rows = 0, .row_elems = 3}, {.rows = 3, .row_elems = 0}};
    const struct kernel_unpack_item no_elems = {.elems = 0};
    side->kernels->move(NULL, 0);
    side->kernels->move(&none, 1);
    side->kernels->pack(SHOAL_F32, side->out, SHOAL_F32, NULL, 0, 4, 0, 4);
    side->kernels->pack(SHOAL_F32, side->out, SHOAL_BF16, empty, 2, 4, 0, 4);
    side->kernels->unpack(SHOAL_F32, NULL, 0, SHOAL_F32, side->in, 4);
    side->kernels->unpack(SHOAL_F32, &no_elems, 1, SHOAL_F32, side->in, 0);
}

TEST(nothing_is_moved)
{
    struct test_random random = test_random_begin(5);
    begin(&random);
    compare_sides(run_nothing);
    check_out("nothing");
}
