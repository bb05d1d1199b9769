/* SPDX-License-Identifier: MIT */
/* How gradients are put into buckets. */
#include <stdio.h>
#include <string.h>

#include "harness/test.h"
#include "parallel/ddp/plan.h"
#include "shoal/dtype.h"

enum {
    MAX_ITEMS = 40
};

/* "0 2 | 1 3": items by bucket. */
static void check_plan(const struct ddp_item *items, const size_t *order, size_t n_items, size_t first_bytes,
                       size_t bytes, const char *expected)
{
    struct ddp_plan plan;
    char text[256] = "";
    REQUIRE_OK(ddp_plan_create(items, order, n_items, first_bytes, bytes, &plan));
    for (size_t i = 0; i < plan.n_buckets; i++) {
        const struct ddp_range *bucket = &plan.buckets[i];
        for (size_t k = 0; k < bucket->n_items; k++) {
            size_t length = strlen(text);
            (void)snprintf(text + length, sizeof text - length, "%s%zu",
                           k > 0   ? " "
                           : i > 0 ? " | "
                                   : "",
                           plan.members[bucket->first + k]);
        }
    }
    CHECK_STRING(text, expected);
    ddp_plan_free(&plan);
}

TEST(buckets_are_cut_by_size)
{
    static const struct ddp_item items[] = {{SHOAL_F32, 64},  {SHOAL_F32, 64}, {SHOAL_F32, 64},
                                            {SHOAL_F32, 640}, {SHOAL_F32, 4},  {SHOAL_F32, 4}};
    static const size_t order[] = {0, 1, 2, 3, 4, 5};
    static const size_t reversed[] = {5, 4, 3, 2, 1, 0};
    check_plan(items, order, 6, 1, 1, "0 | 1 | 2 | 3 | 4 | 5");
    check_plan(items, order, 6, 1, 128, "0 | 1 2 | 3 | 4 5");
    check_plan(items, order, 6, 128, 1, "0 1 | 2 | 3 | 4 | 5");
    check_plan(items, order, 6, 129, 200, "0 1 2 | 3 | 4 5");
    check_plan(items, order, 6, SIZE_MAX, 1, "0 1 2 3 4 5");
    check_plan(items, reversed, 6, 1, 128, "5 | 4 3 | 2 1 | 0");
}

/* One dtype each; who is complete first leaves first; each dtype has a first bucket of its own. */
TEST(buckets_have_one_dtype)
{
    static const struct ddp_item items[] = {
        {SHOAL_F32, 64}, {SHOAL_BF16, 64}, {SHOAL_F32, 64}, {SHOAL_F32, 64}, {SHOAL_BF16, 64}};
    static const size_t order[] = {0, 1, 2, 3, 4};
    check_plan(items, order, 5, 128, 192, "0 2 | 3 | 1 4");
    check_plan(items, order, 5, 1, 1, "0 | 1 | 2 | 3 | 4");
    check_plan(items, order, 5, SIZE_MAX, SIZE_MAX, "0 2 3 | 1 4");
    check_plan(items, order, 5, 64, SIZE_MAX, "0 | 1 | 2 3 | 4");
}

TEST(items_without_elements)
{
    static const struct ddp_item items[] = {{SHOAL_F32, 0}, {SHOAL_F32, 4}, {SHOAL_F32, 0}, {SHOAL_F64, 0}};
    static const size_t order[] = {0, 1, 2, 3};
    check_plan(items, order, 4, 1, 1, "0 1 | 2 | 3");
    check_plan(items, order, 0, 1, 1, "");
}

static void check_layout(const struct ddp_plan *plan, const struct ddp_item *items, size_t total)
{
    size_t end = 0;
    size_t n_members = 0;
    CHECK_INT(plan->bytes, total);
    for (size_t i = 0; i < plan->n_buckets; i++) {
        const struct ddp_range *bucket = &plan->buckets[i];
        CHECK_INT(bucket->offset, end);
        CHECK_INT(bucket->first, n_members);
        CHECK(bucket->n_items > 0);
        size_t place = bucket->offset;
        for (size_t k = 0; k < bucket->n_items; k++) {
            size_t item = plan->members[bucket->first + k];
            CHECK_INT(plan->places[item].bucket, i);
            CHECK_INT(plan->places[item].offset, place);
            CHECK_INT(items[item].dtype, bucket->dtype);
            place += ddp_round_up(items[item].bytes);
        }
        end += bucket->bytes;
        CHECK_INT(place, end);
        n_members += bucket->n_items;
    }
    CHECK_INT(n_members, plan->n_items);
    CHECK_INT(end, total);
}

static void shuffle(struct test_random *random, size_t *order, size_t n_items)
{
    for (size_t i = 0; i < n_items; i++) {
        order[i] = i;
    }
    for (size_t i = n_items; i > 1; i--) {
        size_t other = test_random_below(random, i);
        size_t kept = order[i - 1];
        order[i - 1] = order[other];
        order[other] = kept;
    }
}

/* Every item once, at its own aligned place, whatever the numbers; the same plan for the same numbers. */
TEST(every_item_has_a_place)
{
    static const shoal_dtype dtypes[] = {SHOAL_F64, SHOAL_F32, SHOAL_F16, SHOAL_BF16};
    struct test_random random = test_random_begin(1);
    for (int round = 0; round < 300 && !test_has_failed(); round++) {
        struct ddp_item items[MAX_ITEMS];
        size_t order[MAX_ITEMS];
        size_t total = 0;
        struct ddp_plan plan;
        struct ddp_plan again;
        size_t n_items = 1 + test_random_below(&random, MAX_ITEMS);
        for (size_t i = 0; i < n_items; i++) {
            items[i] = (struct ddp_item){.dtype = dtypes[test_random_below(&random, 4)],
                                         .bytes = test_random_below(&random, 1000)};
            total += ddp_round_up(items[i].bytes);
        }
        shuffle(&random, order, n_items);
        size_t first = 1 + test_random_below(&random, 2000);
        size_t others = 1 + test_random_below(&random, 5000);
        REQUIRE_OK(ddp_plan_create(items, order, n_items, first, others, &plan));
        REQUIRE_OK(ddp_plan_create(items, order, n_items, first, others, &again));
        check_layout(&plan, items, total);
        CHECK(ddp_plan_is_same(&plan, &again));
        ddp_plan_free(&again);
        size_t kept = order[0];
        order[0] = order[n_items - 1];
        order[n_items - 1] = kept;
        REQUIRE_OK(ddp_plan_create(items, order, n_items, 1, 1, &again));
        check_layout(&again, items, total);
        ddp_plan_free(&again);
        ddp_plan_free(&plan);
    }
}

TEST(plans_that_differ)
{
    static const struct ddp_item items[] = {{SHOAL_F32, 64}, {SHOAL_F32, 64}, {SHOAL_F32, 64}};
    static const size_t order[] = {0, 1, 2};
    static const size_t other[] = {1, 0, 2};
    struct ddp_plan a;
    struct ddp_plan b;
    struct ddp_plan c;
    REQUIRE_OK(ddp_plan_create(items, order, 3, 1, 1, &a));
    REQUIRE_OK(ddp_plan_create(items, other, 3, 1, 1, &b));
    REQUIRE_OK(ddp_plan_create(items, order, 3, 128, 1, &c));
    CHECK(!ddp_plan_is_same(&a, &b) && !ddp_plan_is_same(&a, &c) && ddp_plan_is_same(&a, &a));
    ddp_plan_free(&a);
    ddp_plan_free(&b);
    ddp_plan_free(&c);
}
