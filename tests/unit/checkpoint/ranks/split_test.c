/* SPDX-License-Identifier: MIT */
/* Who writes what: every element once, by a rank that has it, and as much by one rank as by another. */
#include "checkpoint/ranks/split.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/io/tiling.h"
#include "harness/test.h"
#include "tensor/dtype.h"

enum {
    MAX_RANKS = 16,
    MAX_TENSORS = 40,
    MAX_REGIONS = 64,
    MIB = 1 << 20
};

/* Tables that tests make. Every rank list has a memory of its own. */
struct made {
    struct table table;
    struct table_tensor tensors[MAX_TENSORS];
    struct table_region regions[MAX_TENSORS][MAX_REGIONS];
    int ranks[MAX_TENSORS][MAX_REGIONS][MAX_RANKS];
};

static struct made *make_table(int n_ranks)
{
    struct made *made = calloc(1, sizeof *made);
    if (made) {
        made->table.n_ranks = n_ranks;
        made->table.tensors = made->tensors;
    }
    return made;
}

static size_t add_tensor(struct made *made, shoal_dtype dtype, int n_dims, const int64_t *shape)
{
    size_t number = made->table.n_tensors++;
    struct table_tensor *tensor = &made->tensors[number];
    *tensor = (struct table_tensor){
        .section = "model", .name = "t", .dtype = dtype, .n_dims = n_dims, .regions = made->regions[number]};
    for (int i = 0; i < n_dims; i++) {
        tensor->shape[i] = shape[i];
    }
    return number;
}

/* Of ranks first, first + step, ... */
static void add_region(struct made *made, size_t number, int dim, int64_t offset, int64_t length, int first,
                       int step)
{
    struct table_tensor *tensor = &made->tensors[number];
    struct table_region *region = &tensor->regions[tensor->n_regions];
    int *ranks = made->ranks[number][tensor->n_regions++];
    region_make(&region->region, tensor->n_dims, tensor->shape, dim, offset, length);
    region->ranks = ranks;
    for (int rank = first; rank < made->table.n_ranks; rank += step) {
        ranks[region->n_ranks++] = rank;
    }
}

/* What all ranks have. */
static void add_replicated(struct made *made, shoal_dtype dtype, int n_dims, const int64_t *shape)
{
    add_region(made, add_tensor(made, dtype, n_dims, shape), -1, 0, 0, 0, 1);
}

/* Cut among n_shards ranks, in equal parts as far as they go; rank r has shard r % n_shards. */
static void add_sharded(struct made *made, shoal_dtype dtype, int n_dims, const int64_t *shape, int dim,
                        int n_shards)
{
    size_t number = add_tensor(made, dtype, n_dims, shape);
    int64_t length = (shape[dim] + n_shards - 1) / n_shards;
    for (int i = 0; i < n_shards && i * length < shape[dim]; i++) {
        int64_t rest = shape[dim] - i * length;
        add_region(made, number, dim, i * length, rest < length ? rest : length, i, n_shards);
    }
}

/* Checks ---------------------------------------------------------------------------------------------------- */

static bool has_rank(const struct table_region *region, int rank)
{
    for (int i = 0; i < region->n_ranks; i++) {
        if (region->ranks[i] == rank) {
            return true;
        }
    }
    return false;
}

static void check_owner(const struct table_tensor *tensor, const struct split_piece *piece)
{
    struct region both;
    bool is_owned = false;
    for (size_t i = 0; i < tensor->n_regions; i++) {
        const struct table_region *region = &tensor->regions[i];
        is_owned |= region_intersect(&region->region, &piece->region, tensor->n_dims, &both) &&
                    region_equals(&both, &piece->region, tensor->n_dims) && has_rank(region, piece->rank);
    }
    CHECK(is_owned);
}

/* Counts every element of a tensor in its pieces, if it is not too large for that. */
static void check_elements(const struct table_tensor *tensor, const struct split_piece *pieces,
                           size_t n_pieces)
{
    int64_t count = 1;
    for (int i = 0; i < tensor->n_dims; i++) {
        count *= tensor->shape[i];
    }
    if (count > 2 * MIB) {
        struct tiling_fault fault;
        CHECK_OK(tiling_check(tensor->n_dims, tensor->shape, &pieces[0].region, sizeof pieces[0], n_pieces,
                              &fault));
        CHECK_INT(fault.n_regions, 1);
        return;
    }
    unsigned char *counts = calloc((size_t)count + 1, 1);
    REQUIRE(counts);
    for (size_t p = 0; p < n_pieces; p++) {
        int64_t piece_count = region_count(&pieces[p].region, tensor->n_dims);
        CHECK(piece_count > 0);
        for (int64_t number = 0; number < piece_count; number++) {
            int64_t rest = number;
            int64_t at = 0;
            int64_t stride = 1;
            for (int i = tensor->n_dims - 1; i >= 0; i--) {
                at += (pieces[p].region.begin[i] + rest % pieces[p].region.length[i]) * stride;
                rest /= pieces[p].region.length[i];
                stride *= tensor->shape[i];
            }
            counts[at]++;
        }
    }
    int64_t n_wrong = 0;
    for (int64_t i = 0; i < count; i++) {
        n_wrong += counts[i] != 1;
    }
    CHECK_INT(n_wrong, 0);
    free(counts);
}

struct result {
    int64_t loads[MAX_RANKS];
    size_t n_pieces;
};

/* Everything but the balance. */
static struct result check_split(const struct made *made)
{
    const struct table *table = &made->table;
    struct result result = {.n_pieces = 0};
    struct split_piece *pieces = NULL;
    struct split_piece *again = NULL;
    size_t n_again;
    if (!CHECK_OK(split_make(table, &pieces, &result.n_pieces)) ||
        !CHECK_OK(split_make(table, &again, &n_again))) {
        return result;
    }
    CHECK(n_again == result.n_pieces && memcmp(pieces, again, n_again * sizeof pieces[0]) == 0);
    size_t begin = 0;
    for (size_t t = 0; t < table->n_tensors; t++) {
        const struct table_tensor *tensor = &table->tensors[t];
        size_t end = begin;
        for (; end < result.n_pieces && pieces[end].tensor == t; end++) {
            const struct split_piece *piece = &pieces[end];
            check_owner(tensor, piece);
            CHECK(end == begin ||
                  region_compare(&pieces[end - 1].region, &piece->region, tensor->n_dims) < 0);
            result.loads[piece->rank] +=
                region_count(&piece->region, tensor->n_dims) * (int64_t)dtype_bytes(tensor->dtype);
        }
        check_elements(tensor, &pieces[begin], end - begin);
        begin = end;
    }
    CHECK_INT(begin, result.n_pieces);
    mem_free(pieces);
    mem_free(again);
    return result;
}

/* Within so many bytes of the mean. */
static void check_balance(const struct made *made, const struct result *result, int64_t bytes)
{
    int64_t total = 0;
    for (int i = 0; i < made->table.n_ranks; i++) {
        total += result->loads[i];
    }
    int64_t mean = total / made->table.n_ranks;
    for (int i = 0; i < made->table.n_ranks; i++) {
        if (result->loads[i] > mean + bytes || result->loads[i] < mean - bytes) {
            test_failed(__FILE__, __LINE__, "rank %d writes %lld bytes, not %lld within %lld", i,
                        (long long)result->loads[i], (long long)mean, (long long)bytes);
        }
    }
}

/* Tests ----------------------------------------------------------------------------------------------------- */

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__})

TEST(nothing_numbers_and_one_rank)
{
    struct made *made = make_table(1);
    REQUIRE(made);
    CHECK_INT(check_split(made).n_pieces, 0);
    (void)add_tensor(made, SHOAL_F32, 2, SHAPE(4, 0));
    add_replicated(made, SHOAL_F64, 0, NULL);
    add_replicated(made, SHOAL_F32, 3, SHAPE(1, 1, 1));
    add_replicated(made, SHOAL_U8, 2, SHAPE(3, MIB));
    struct result result = check_split(made);
    CHECK_INT(result.n_pieces, 3);
    CHECK_INT(result.loads[0], 8 + 4 + 3 * MIB);
    free(made);
}

/* One tensor that all have is cut among them; small ones are not. */
TEST(large_ones_are_cut)
{
    struct made *made = make_table(4);
    REQUIRE(made);
    add_replicated(made, SHOAL_U8, 3, SHAPE(1, 1024, 8192));
    struct result result = check_split(made);
    CHECK_INT(result.n_pieces, 4);
    check_balance(made, &result, 0);
    free(made);

    made = make_table(4);
    REQUIRE(made);
    add_replicated(made, SHOAL_U8, 2, SHAPE(1024, 1023));
    CHECK_INT(check_split(made).n_pieces, 1);
    free(made);

    /* 1 MiB is two halves. */
    made = make_table(4);
    REQUIRE(made);
    add_replicated(made, SHOAL_U8, 2, SHAPE(1024, 1024));
    result = check_split(made);
    CHECK_INT(result.n_pieces, 2);
    check_balance(made, &result, MIB / 4);
    free(made);
}

/* Rank 0 has bytes of its own: others take more of what all have. */
TEST(what_ranks_have_alone_counts)
{
    struct made *made = make_table(4);
    REQUIRE(made);
    size_t number = add_tensor(made, SHOAL_U8, 2, SHAPE(6, MIB));
    int *ranks = made->ranks[number][0];
    add_region(made, number, -1, 0, 0, 0, 4);
    CHECK_INT(ranks[0], 0);
    add_replicated(made, SHOAL_U8, 2, SHAPE(18 * 1024, 1024));
    struct result result = check_split(made);
    check_balance(made, &result, 0);
    free(made);
    /* More than its share: it gets nothing else. */
    made = make_table(3);
    REQUIRE(made);
    add_region(made, add_tensor(made, SHOAL_U8, 2, SHAPE(40, MIB)), -1, 0, 0, 1, 3);
    add_replicated(made, SHOAL_U8, 2, SHAPE(8 * 1024, 1024));
    result = check_split(made);
    CHECK_INT(result.loads[0], 4 * MIB);
    CHECK_INT(result.loads[1], 40 * MIB);
    CHECK_INT(result.loads[2], 4 * MIB);
    free(made);
}

/* Shards on four ranks, twice: the two replicas of a shard share it. */
TEST(replicas_of_shards)
{
    struct made *made = make_table(8);
    REQUIRE(made);
    for (int i = 0; i < 12; i++) {
        add_sharded(made, SHOAL_F32, 2, SHAPE(1000 + i, 1024), i % 2, 4);
        add_sharded(made, SHOAL_BF16, 1, SHAPE(1000 + i), 0, 4);
    }
    add_replicated(made, SHOAL_F32, 0, NULL);
    struct result result = check_split(made);
    check_balance(made, &result, MIB);
    free(made);
}

static int64_t add_random_tensor(struct made *made, struct test_random *random)
{
    static const shoal_dtype dtypes[] = {SHOAL_U8, SHOAL_BF16, SHOAL_F32, SHOAL_F64};
    shoal_dtype dtype = dtypes[test_random_below(random, 4)];
    int n_dims = (int)test_random_below(random, 4);
    int64_t shape[3];
    for (int i = 0; i < n_dims; i++) {
        shape[i] = 1 + (int64_t)test_random_below(random, test_random_below(random, 3) == 0 ? 2000 : 12);
    }
    add_replicated(made, dtype, n_dims, shape);
    /* The size of a row. */
    int64_t bytes = (int64_t)dtype_bytes(dtype);
    for (int i = n_dims - 1; i >= 0; i--) {
        int k = 0;
        while (k < i && shape[k] == 1) {
            k++;
        }
        bytes *= k < i ? shape[i] : 1;
    }
    return bytes;
}

/* Of random tensors that all ranks have. */
TEST(all_ranks_write_the_same)
{
    struct test_random random = test_random_begin(5);
    int n_rounds = (int)(40 / test_time_scale());
    for (int round = 0; round < n_rounds && !test_has_failed(); round++) {
        struct made *made = make_table(1 + (int)test_random_below(&random, MAX_RANKS));
        REQUIRE(made);
        int64_t largest_row = 0;
        uint64_t n_tensors = 1 + test_random_below(&random, MAX_TENSORS);
        for (uint64_t i = 0; i < n_tensors; i++) {
            int64_t row = add_random_tensor(made, &random);
            largest_row = row > largest_row ? row : largest_row;
        }
        struct result result = check_split(made);
        check_balance(made, &result, largest_row > MIB ? largest_row : MIB);
        free(made);
    }
}

/* Random tensors, some replicated, some sharded over all or some, along any dimension. */
TEST(every_element_is_written_once)
{
    struct test_random random = test_random_begin(6);
    int n_rounds = (int)(20 / test_time_scale());
    for (int round = 0; round < n_rounds && !test_has_failed(); round++) {
        int n_shards = 1 + (int)test_random_below(&random, 4);
        struct made *made = make_table(n_shards * (1 + (int)test_random_below(&random, 4)));
        REQUIRE(made);
        for (int i = 0; i < 10; i++) {
            int64_t shape[3];
            for (int k = 0; k < 3; k++) {
                shape[k] = 1 + (int64_t)test_random_below(&random, k == 1 ? 300 : 60);
            }
            int dim = (int)test_random_below(&random, 4) - 1;
            if (dim < 0) {
                add_replicated(made, SHOAL_F64, 3, shape);
            } else {
                add_sharded(made, SHOAL_F64, 3, shape, dim, n_shards);
            }
        }
        (void)check_split(made);
        free(made);
    }
}

static shoal_status split_once(void *context)
{
    struct split_piece *pieces;
    size_t n_pieces;
    shoal_status status = split_make(context, &pieces, &n_pieces);
    if (status == SHOAL_OK) {
        mem_free(pieces);
    }
    return status;
}

TEST(every_allocation_may_fail)
{
    struct made *made = make_table(4);
    REQUIRE(made);
    for (int i = 0; i < 20; i++) {
        add_replicated(made, SHOAL_U8, 2, SHAPE(64, MIB));
    }
    CHECK(test_sweep_allocations(split_once, &made->table) > 4);
    free(made);
}
