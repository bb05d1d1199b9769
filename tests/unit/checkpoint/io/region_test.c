/* SPDX-License-Identifier: MIT */
/* Ranges of indices in every dimension. */
#include "checkpoint/io/region.h"

#include <string.h>

#include "harness/test.h"

static struct region make(int n_dims, const int64_t *begin, const int64_t *length)
{
    struct region region;
    /* What lies beyond the dimensions must not matter. */
    memset(&region, 0x5a, sizeof(region));
    for (int i = 0; i < n_dims; i++) {
        region.begin[i] = begin[i];
        region.length[i] = length[i];
    }
    return region;
}

#define REGION1(begin, length) make(1, (const int64_t[]){begin}, (const int64_t[]){length})
#define REGION2(b0, l0, b1, l1) make(2, (const int64_t[]){b0, b1}, (const int64_t[]){l0, l1})

TEST(counts_elements)
{
    struct region region = REGION2(5, 3, 7, 4);
    CHECK_INT(region_count(&region, 2), 12);
    CHECK_INT(region_count(&region, 1), 3);
    CHECK_INT(region_count(&region, 0), 1);
    region = REGION2(0, 0, 0, 4);
    CHECK_INT(region_count(&region, 2), 0);
    /* The product of the other lengths does not fit. */
    region = make(4, (const int64_t[]){0, 0, 0, 0}, (const int64_t[]){INT64_MAX, INT64_MAX, INT64_MAX, 0});
    CHECK_INT(region_count(&region, 4), 0);
}

TEST(orders_by_begin_then_by_length)
{
    const struct region sorted[] = {REGION2(0, 2, 0, 1), REGION2(0, 2, 0, 2), REGION2(0, 3, 0, 1),
                                    REGION2(0, 1, 4, 1), REGION2(1, 0, 0, 0), REGION2(1, 1, 0, 0)};
    const int n = (int)(sizeof(sorted) / sizeof(sorted[0]));
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            int order = region_compare(&sorted[i], &sorted[j], 2);
            CHECK((order < 0) == (i < j) && (order > 0) == (i > j));
            CHECK(region_equals(&sorted[i], &sorted[j], 2) == (i == j));
            CHECK(region_equals(&sorted[i], &sorted[j], 0));
        }
    }
}

TEST(makes_parts_of_tensors)
{
    static const int64_t shape[] = {4, 6, 2};
    const struct region whole = make(3, (const int64_t[]){0, 0, 0}, shape);
    const struct region rows = make(3, (const int64_t[]){0, 2, 0}, (const int64_t[]){4, 3, 2});
    struct region region;
    region_make(&region, 3, shape, -1, 0, 0);
    CHECK(region_equals(&region, &whole, 3));
    region_make(&region, 3, shape, 1, 2, 3);
    CHECK(region_equals(&region, &rows, 3));
    region_make(&region, 3, shape, 0, 4, 0);
    CHECK_INT(region_count(&region, 3), 0);
    CHECK_INT(region.begin[0], 4);
    region_make(&region, 0, NULL, -1, 0, 0);
    CHECK_INT(region_count(&region, 0), 1);
}

TEST(intersects)
{
    struct region both = REGION1(77, 77);
    const struct region a = REGION1(0, 4);
    const struct region b = REGION1(4, 4);
    const struct region c = REGION1(3, 2);
    const struct region empty = REGION1(2, 0);
    CHECK(!region_intersect(&a, &b, 1, &both));
    CHECK(!region_intersect(&a, &empty, 1, &both));
    CHECK_INT(both.begin[0], 77);
    CHECK(region_intersect(&a, &c, 1, &both));
    CHECK_INT(both.begin[0], 3);
    CHECK_INT(both.length[0], 1);
    CHECK(region_intersect(&b, &c, 1, &both));
    CHECK_INT(both.begin[0], 4);
    CHECK_INT(both.length[0], 1);
    CHECK(region_intersect(&a, &b, 0, &both));
    const struct region rows = REGION2(2, 4, 0, 8);
    const struct region columns = REGION2(0, 8, 3, 2);
    const struct region expected = REGION2(2, 4, 3, 2);
    CHECK(region_intersect(&rows, &columns, 2, &both));
    CHECK(region_equals(&both, &expected, 2));
}

/* Against a count of the indices that both have. */
TEST(random_intersections)
{
    struct test_random random = test_random_begin(1);
    for (int round = 0; round < 2000; round++) {
        int64_t numbers[8];
        int64_t count = 0;
        for (int i = 0; i < 8; i++) {
            numbers[i] = (int64_t)test_random_below(&random, 5);
        }
        const struct region a = REGION2(numbers[0], numbers[1], numbers[2], numbers[3]);
        const struct region b = REGION2(numbers[4], numbers[5], numbers[6], numbers[7]);
        for (int64_t x = 0; x < 10; x++) {
            for (int64_t y = 0; y < 10; y++) {
                count += x >= a.begin[0] && x < a.begin[0] + a.length[0] && x >= b.begin[0] &&
                         x < b.begin[0] + b.length[0] && y >= a.begin[1] && y < a.begin[1] + a.length[1] &&
                         y >= b.begin[1] && y < b.begin[1] + b.length[1];
            }
        }
        struct region both;
        bool is_there = region_intersect(&a, &b, 2, &both);
        CHECK(is_there == (count > 0));
        CHECK_INT(is_there ? region_count(&both, 2) : 0, count);
    }
}
