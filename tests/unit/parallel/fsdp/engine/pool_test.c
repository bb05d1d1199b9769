/* SPDX-License-Identifier: MIT */
/* Pools: which block a unit gets, what is replaced, and that it settles below the limit. No groups: plain memory. */
#include "parallel/fsdp/engine/state/pool.h"

#include "base/mem.h"
#include "base/try.h"
#include "harness/test.h"

enum {
    N_UNITS = 12,
    MAX_HELD = 4
};

struct bench {
    struct fsdp_pool pool;
    struct fsdp_memory memory;
};

static void bench_open(struct bench *bench)
{
    *bench = (struct bench){.memory.total = 0};
    fsdp_pool_init(&bench->pool, FSDP_BUFFERS, NULL, &bench->memory);
}

/* NULL: there is no memory. */
static struct fsdp_block *get(struct bench *bench, size_t bytes, size_t limit)
{
    struct fsdp_block *block = fsdp_pool_take(&bench->pool, bytes);
    if (!block && fsdp_pool_make(&bench->pool, bytes, limit, NULL, &block) != SHOAL_OK) {
        return NULL;
    }
    return block;
}

static struct fsdp_block *get_and_return(struct bench *bench, size_t bytes, size_t limit)
{
    struct fsdp_block *block = get(bench, bytes, limit);
    if (block) {
        fsdp_pool_give_back(block);
    }
    return block;
}

TEST(blocks_have_the_size_of_the_unit)
{
    struct bench bench;
    bench_open(&bench);
    struct fsdp_block *first = get(&bench, 100, 300);
    struct fsdp_block *second = get(&bench, 60, 300);
    REQUIRE(first && second);
    CHECK_INT(first->bytes, 100);
    CHECK_INT(second->bytes, 60);
    CHECK_INT(bench.pool.bytes, 160);
    CHECK_INT(bench.memory.now[FSDP_MEMORY_BUFFERS], 160);
    fsdp_pool_free(&bench.pool);
}

TEST(the_smallest_that_is_large_enough)
{
    struct bench bench;
    bench_open(&bench);
    struct fsdp_block *blocks[] = {get(&bench, 100, 900), get(&bench, 60, 900), get(&bench, 80, 900)};
    for (int i = 0; i < 3; i++) {
        REQUIRE(blocks[i] != NULL);
        fsdp_pool_give_back(blocks[i]);
    }
    CHECK(get(&bench, 70, 900) == blocks[2]);
    CHECK(get(&bench, 70, 900) == blocks[0]);
    CHECK(get(&bench, 60, 900) == blocks[1]);
    fsdp_pool_free(&bench.pool);
}

/* The largest of those that are too small goes, others stay. */
TEST(one_that_is_too_small_is_replaced)
{
    struct bench bench;
    bench_open(&bench);
    struct fsdp_block *small = get(&bench, 10, 900);
    struct fsdp_block *larger = get(&bench, 40, 900);
    REQUIRE(small && larger);
    fsdp_pool_give_back(small);
    fsdp_pool_give_back(larger);
    struct fsdp_block *block = get(&bench, 50, 900);
    REQUIRE(block != NULL);
    CHECK_INT(block->bytes, 50);
    CHECK_INT(bench.pool.n_blocks, 2);
    CHECK_INT(bench.pool.bytes, 60);
    CHECK_INT(bench.memory.now[FSDP_MEMORY_BUFFERS], 60);
    CHECK_INT(bench.memory.peak[FSDP_MEMORY_BUFFERS], 60); /* the old one goes before the new one comes */
    fsdp_pool_free(&bench.pool);
}

TEST(one_that_is_taken_is_not_replaced)
{
    struct bench bench;
    bench_open(&bench);
    struct fsdp_block *small = get(&bench, 10, 900);
    struct fsdp_block *large = get(&bench, 50, 900);
    REQUIRE(small && large);
    CHECK_INT(bench.pool.n_blocks, 2);
    CHECK_INT(small->bytes, 10);
    fsdp_pool_free(&bench.pool);
}

/* A block more than twice as large is left to those that need it, as long as the limit allows another one. */
TEST(far_too_large_is_the_last_resort)
{
    struct bench bench;
    bench_open(&bench);
    struct fsdp_block *large = get_and_return(&bench, 100, 109);
    REQUIRE(large != NULL);
    CHECK(get_and_return(&bench, 50, 109) == large);
    CHECK(get_and_return(&bench, 10, 109) == large);
    CHECK_INT(bench.pool.bytes, 100);
    struct fsdp_block *small = get_and_return(&bench, 10, 110);
    REQUIRE(small != NULL);
    CHECK_INT(small->bytes, 10);
    CHECK_INT(bench.pool.bytes, 110);
    CHECK(get_and_return(&bench, 10, 110) == small);
    CHECK(get_and_return(&bench, 60, 110) == large);
    fsdp_pool_free(&bench.pool);
}

TEST(free_blocks_go_where_the_limit_asks_for_it)
{
    struct bench bench;
    bench_open(&bench);
    struct fsdp_block *blocks[] = {get(&bench, 10, 120), get(&bench, 20, 120), get(&bench, 30, 120)};
    for (int i = 0; i < 3; i++) {
        REQUIRE(blocks[i] != NULL);
        fsdp_pool_give_back(blocks[i]);
    }
    REQUIRE(get(&bench, 95, 120) != NULL); /* 30 goes, and 20: 95 + 20 + 10 are too many, 95 + 10 are not */
    CHECK_INT(bench.pool.n_blocks, 2);
    CHECK_INT(bench.pool.bytes, 105);
    fsdp_pool_free(&bench.pool);
}

TEST(a_block_with_gradients_stays_taken)
{
    struct bench bench;
    bench_open(&bench);
    struct fsdp_block *block = get(&bench, 10, 90);
    REQUIRE(block != NULL);
    fsdp_block_keep(block);
    fsdp_block_keep(block);
    fsdp_pool_give_back(block);
    CHECK(fsdp_pool_take(&bench.pool, 10) == NULL);
    fsdp_block_drop(block);
    CHECK(fsdp_pool_take(&bench.pool, 10) == NULL);
    fsdp_block_drop(block);
    CHECK(fsdp_pool_take(&bench.pool, 10) == block);
    fsdp_pool_free(&bench.pool);
}

/* Steps -------------------------------------------------------------------------------------------------- */

struct order {
    size_t sizes[N_UNITS];
    size_t largest;
    int n_ahead;
};

/* Units there and back, so many of them held at a time. */
static shoal_status run_step(struct bench *bench, const struct order *order)
{
    struct fsdp_block *held[MAX_HELD] = {NULL};
    size_t limit = (size_t)(2 + order->n_ahead) * order->largest;
    for (int i = 0; i < 2 * N_UNITS; i++) {
        struct fsdp_block **place = &held[i % (1 + order->n_ahead)];
        int unit = i < N_UNITS ? i : 2 * N_UNITS - 1 - i;
        if (*place) {
            fsdp_pool_give_back(*place);
        }
        *place = fsdp_pool_take(&bench->pool, order->sizes[unit]);
        if (!*place) {
            TRY(fsdp_pool_make(&bench->pool, order->sizes[unit], limit, NULL, place));
        }
        CHECK((*place)->bytes >= order->sizes[unit]);
        CHECK(bench->pool.bytes <= limit);
    }
    for (int i = 0; i < MAX_HELD; i++) {
        if (held[i]) {
            fsdp_pool_give_back(held[i]);
        }
    }
    return SHOAL_OK;
}

static void find_largest(struct order *order)
{
    order->largest = 0;
    for (int i = 0; i < N_UNITS; i++) {
        order->largest = order->sizes[i] > order->largest ? order->sizes[i] : order->largest;
    }
}

/* Below the limit at every call, and after some steps nothing is made any more. */
static void check_settles(const struct order *order, int n_steps)
{
    struct bench bench;
    size_t n_before = 0;
    bench_open(&bench);
    for (int step = 0; step <= n_steps; step++) {
        test_fail_allocation(0, false);
        CHECK_OK(run_step(&bench, order));
        n_before = test_count_allocations();
    }
    CHECK_INT(n_before, 0);
    CHECK_INT(bench.memory.now[FSDP_MEMORY_BUFFERS], bench.pool.bytes);
    CHECK(bench.memory.peak[FSDP_MEMORY_BUFFERS] <= (size_t)(2 + order->n_ahead) * order->largest);
    fsdp_pool_free(&bench.pool);
}

TEST(ascending_and_descending_sizes)
{
    for (int ahead = 0; ahead < MAX_HELD; ahead++) {
        struct order up = {.n_ahead = ahead};
        struct order down = {.n_ahead = ahead};
        for (int i = 0; i < N_UNITS; i++) {
            up.sizes[i] = 64 * (size_t)(i + 1);
            down.sizes[i] = 64 * (size_t)(N_UNITS - i);
        }
        find_largest(&up);
        find_largest(&down);
        check_settles(&up, 3);
        check_settles(&down, 3);
    }
}

TEST(any_sizes)
{
    struct test_random random = test_random_begin(1);
    for (int round = 0; round < 2000 && !test_has_failed(); round++) {
        struct order order = {.n_ahead = (int)test_random_below(&random, MAX_HELD)};
        for (int i = 0; i < N_UNITS; i++) {
            order.sizes[i] = (size_t)1 << test_random_below(&random, 16);
            order.sizes[i] += test_random_below(&random, order.sizes[i]);
        }
        find_largest(&order);
        check_settles(&order, 12);
    }
}

/* One large unit at both ends of many small ones: it does not make the others large. */
TEST(one_large_unit_stays_alone)
{
    struct order order = {.n_ahead = 1, .sizes = {1600}};
    struct bench bench;
    for (int i = 1; i < N_UNITS; i++) {
        order.sizes[i] = 300;
    }
    find_largest(&order);
    bench_open(&bench);
    for (int step = 0; step < 3; step++) {
        CHECK_OK(run_step(&bench, &order));
    }
    CHECK_INT(bench.pool.bytes, 1600 + 2 * 300);
    fsdp_pool_free(&bench.pool);
}

/* Failures ----------------------------------------------------------------------------------------------- */

/* After a failure in the middle of a replacement the pool is smaller, and as good as before. */
static shoal_status step_with_little_memory(void *context)
{
    struct bench bench;
    struct order order = {.n_ahead = 1};
    (void)context;
    for (int i = 0; i < N_UNITS; i++) {
        order.sizes[i] = 64 * (size_t)(i + 1);
    }
    find_largest(&order);
    bench_open(&bench);
    shoal_status status = run_step(&bench, &order);
    size_t bytes = 0;
    for (size_t i = 0; i < bench.pool.n_blocks; i++) {
        bytes += bench.pool.blocks[i]->bytes;
    }
    CHECK_INT(bench.pool.bytes, bytes);
    CHECK_INT(bench.memory.now[FSDP_MEMORY_BUFFERS], bytes);
    fsdp_pool_free(&bench.pool);
    return status;
}

TEST(memory_that_runs_out_leaves_a_pool)
{
    CHECK(test_sweep_allocations(step_with_little_memory, NULL) > N_UNITS);
}

/* Nobody else takes a block that is owned, nor is it replaced; given back, it is the owner's again. */
TEST(an_owned_block_is_left_alone)
{
    struct bench bench;
    bench_open(&bench);
    struct fsdp_block *own = get(&bench, 100, 300);
    REQUIRE(own != NULL);
    fsdp_block_own(own);
    CHECK(!fsdp_block_take(own));
    fsdp_pool_give_back(own);
    struct fsdp_block *other = get(&bench, 100, 300);
    CHECK(other && other != own);
    CHECK_INT(bench.pool.n_blocks, 2);
    fsdp_pool_give_back(other);
    struct fsdp_block *larger = get(&bench, 150, 1);
    CHECK(larger && larger != own && larger->bytes == 150);
    CHECK_INT(bench.pool.bytes, 250); /* the other one was replaced */
    CHECK(fsdp_block_take(own) && !fsdp_block_take(own));
    fsdp_pool_give_back(own);
    fsdp_block_disown(own);
    CHECK(get(&bench, 90, 300) == own);
    fsdp_pool_free(&bench.pool);
}
