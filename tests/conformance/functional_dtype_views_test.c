/* SPDX-License-Identifier: MIT */
/*
 * What is in flight, seen as another dtype: the view waits for nothing, waiting for it is waiting for the collective, and
 * nothing stays behind, however often. A collective may be given such a view, and may write through one.
 */
#include <stdatomic.h>

#include "comm/lane/work.h"
#include "comm/group/world.h"
#include "fixtures/functional.h"
#include "harness/test.h"

enum {
    N_FLOATS = 6,
    WARM_UP = 20,
    ROUNDS = 100,
    SPARE_BLOCKS = 16 /* kept for the next small result; they do not add up */
};

static uint64_t n_unawaited(const struct functional *self)
{
    return atomic_load(&self->world->works->n_unawaited);
}

static shoal_tensor *floats_of(const struct functional *self, int64_t count)
{
    return shoal_full(&count, 1, self->rank + 1, SHOAL_F32);
}

/* The bits of 1.0f, 2.0f, ...: those of rank r, where n elements are each rank's. */
static void check_gathered_bits(const struct functional *self, const shoal_tensor *bits, int64_t n)
{
    const uint32_t *words = shoal_data(bits);
    REQUIRE(words);
    for (int64_t i = 0; i < n * self->n_ranks; i++) {
        float value = (float)(i / n + 1);
        uint32_t expected;
        memcpy(&expected, &value, sizeof expected);
        CHECK_INT(words[i], expected);
    }
}

/* A gather, seen as another dtype, waited for through what it is seen as. */
static void gather_and_look(struct functional *self, int64_t n, int way)
{
    CASE_BEGIN();
    shoal_tensor *gathered = shoal_all_gather_tensor(floats_of(self, n), 0, self->group);
    shoal_tensor *bits = shoal_view_dtype(gathered, SHOAL_U32);
    shoal_tensor *bytes = shoal_view_dtype(bits, SHOAL_U8);
    REQUIRE(bytes);
    CHECK_INT(n_unawaited(self), 1);
    if (way == 0) {
        CHECK(shoal_wait_tensor(bits) == bits);
    } else if (way == 1) {
        CHECK_OK(shoal_wait(bytes));
    } else {
        CHECK(shoal_data(gathered));
    }
    CHECK_INT(n_unawaited(self), 0);
    check_gathered_bits(self, bits, n);
    CASE_END();
}

/* Everybody is here and has let go of everything. */
static size_t count_blocks(const struct functional *self)
{
    test_barrier(self->harness);
    size_t blocks = test_live_blocks();
    test_barrier(self->harness);
    return blocks;
}

static void gather_again_and_again(struct functional *self, int64_t n, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        gather_and_look(self, n, i % 3);
    }
}

FUNCTIONAL(views_of_gathers_leave_nothing, 3)
{
    for (int64_t n = N_FLOATS; n < 100000; n = n * 1000) {
        gather_again_and_again(self, n, WARM_UP);
        size_t blocks = count_blocks(self);
        gather_again_and_again(self, n, ROUNDS);
        CHECK(count_blocks(self) <= blocks + SPARE_BLOCKS);
    }
}

/* Only the view is left when the data comes. */
FUNCTIONAL(a_view_outlives_what_it_was_taken_of, 2)
{
    for (int i = 0; i < WARM_UP; i++) {
        CASE_BEGIN();
        shoal_tensor *bits = shoal_tensor_ref(
            shoal_view_dtype(shoal_all_gather_tensor(floats_of(self, N_FLOATS), 0, self->group), SHOAL_U32));
        CASE_END();
        check_gathered_bits(self, bits, N_FLOATS);
        shoal_tensor_unref(bits);
    }
    CHECK_INT(n_unawaited(self), 0);
}

FUNCTIONAL(views_are_inputs_of_collectives, 3)
{
    /* Of what is in flight: the sum as bytes, from everybody. */
    shoal_tensor *sum = shoal_all_reduce(floats_of(self, N_FLOATS), SHOAL_SUM, self->group);
    shoal_tensor *bytes = shoal_view_dtype(sum, SHOAL_U8);
    CHECK_INT(shoal_tensor_count(bytes), N_FLOATS * 4);
    shoal_tensor *gathered = shoal_all_gather_tensor(bytes, 0, self->group);
    const float *values = shoal_data(shoal_view_dtype(gathered, SHOAL_F32));
    REQUIRE(values);
    for (int i = 0; i < N_FLOATS * self->n_ranks; i++) {
        CHECK(values[i] == 6);
    }
    CHECK(shoal_data(sum));
}

FUNCTIONAL(collectives_write_through_views, 2)
{
    /* 4 MiB too: a collective that is not over when the call returns */
    for (int64_t n = N_FLOATS; n <= 1 << 20; n = n == N_FLOATS ? 1 << 20 : n + 1) {
        CASE_BEGIN();
        shoal_tensor *words = shoal_full(&n, 1, self->rank == 0 ? 0x0f0f : 0xf0f0, SHOAL_I32);
        uint64_t version = shoal_tensor_version(words);
        shoal_tensor *halves = shoal_view_dtype(words, SHOAL_U16);
        CHECK(shoal_all_reduce_(halves, SHOAL_BOR, self->group) == halves);
        CHECK(shoal_tensor_version(words) > version);
        /* The wait is the storage's: reading it as what it was waits as well. */
        const int32_t *data = shoal_data(words);
        CHECK(data && data[0] == 0xffff && data[n - 1] == 0xffff);
        CHECK_INT(n_unawaited(self), 0);
        CASE_END();
    }
}
