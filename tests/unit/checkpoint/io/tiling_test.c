/* SPDX-License-Identifier: MIT */
/* Regions that are a tensor or not, against counting in every element. */
#include "checkpoint/io/tiling.h"

#include <stdlib.h>
#include <string.h>

#include "harness/test.h"

#define MAX_REGIONS 64

struct tensor {
    int n_dims;
    int64_t shape[SHOAL_MAX_DIMS];
    struct region regions[MAX_REGIONS];
    size_t n_regions;
};

/* The first element that is not in one region, by counting. */
static int64_t count_first_fault(const struct tensor *tensor, int64_t element[SHOAL_MAX_DIMS])
{
    int64_t count = 1;
    for (int i = 0; i < tensor->n_dims; i++) {
        count *= tensor->shape[i];
    }
    for (int64_t number = 0; number < count; number++) {
        int64_t rest = number;
        for (int i = tensor->n_dims - 1; i >= 0; i--) {
            element[i] = rest % tensor->shape[i];
            rest /= tensor->shape[i];
        }
        int64_t n_holding = 0;
        size_t from = 0;
        for (;;) {
            from = tiling_find(tensor->n_dims, element, tensor->regions, sizeof(tensor->regions[0]),
                               tensor->n_regions, from);
            if (from == tensor->n_regions) {
                break;
            }
            n_holding++;
            from++;
        }
        if (n_holding != 1) {
            return n_holding;
        }
    }
    return 1;
}

static void check_tiling(const struct tensor *tensor)
{
    struct tiling_fault fault;
    int64_t element[SHOAL_MAX_DIMS] = {0};
    REQUIRE_OK(tiling_check(tensor->n_dims, tensor->shape, tensor->regions, sizeof(tensor->regions[0]),
                            tensor->n_regions, &fault));
    REQUIRE(CHECK_INT(fault.n_regions, count_first_fault(tensor, element)));
    for (int i = 0; i < tensor->n_dims && fault.n_regions != 1; i++) {
        CHECK_INT(fault.element[i], element[i]);
    }
}

/* Cuts a region in two, anywhere. */
static void cut(struct tensor *tensor, struct test_random *random)
{
    size_t which = (size_t)test_random_below(random, tensor->n_regions);
    int dim = (int)test_random_below(random, (uint64_t)tensor->n_dims);
    struct region *region = &tensor->regions[which];
    if (region->length[dim] < 2 || tensor->n_regions == MAX_REGIONS) {
        return;
    }
    int64_t at = 1 + (int64_t)test_random_below(random, (uint64_t)region->length[dim] - 1);
    struct region *other = &tensor->regions[tensor->n_regions++];
    *other = *region;
    other->begin[dim] += at;
    other->length[dim] -= at;
    region->length[dim] = at;
}

/* Something that is probably wrong. */
static void spoil(struct tensor *tensor, struct test_random *random)
{
    size_t which = (size_t)test_random_below(random, tensor->n_regions);
    size_t other = (size_t)test_random_below(random, tensor->n_regions);
    int dim = (int)test_random_below(random, (uint64_t)tensor->n_dims);
    struct region *region = &tensor->regions[which];
    switch (test_random_below(random, 4)) {
    case 0: /* one is there twice, or in the place of another */
        *region = tensor->regions[other];
        break;
    case 1:
        *region = tensor->regions[--tensor->n_regions];
        break;
    case 2:
        region->length[dim] += region->begin[dim] + region->length[dim] < tensor->shape[dim];
        break;
    default:
        region->begin[dim] -= region->begin[dim] > 0;
        break;
    }
}

TEST(as_counting_says)
{
    struct test_random random = test_random_begin(3);
    int n_rounds = (int)(20000 / test_time_scale());
    for (int round = 0; round < n_rounds && !test_has_failed(); round++) {
        struct tensor tensor = {.n_dims = 1 + (int)test_random_below(&random, 4), .n_regions = 1};
        for (int i = 0; i < tensor.n_dims; i++) {
            tensor.shape[i] = 1 + (int64_t)test_random_below(&random, 6);
            tensor.regions[0].length[i] = tensor.shape[i];
        }
        uint64_t n_cuts = test_random_below(&random, 20);
        for (uint64_t i = 0; i < n_cuts; i++) {
            cut(&tensor, &random);
        }
        check_tiling(&tensor);
        uint64_t n_faults = test_random_below(&random, 4);
        for (uint64_t i = 0; i < n_faults && tensor.n_regions > 0; i++) {
            spoil(&tensor, &random);
            check_tiling(&tensor);
        }
    }
}

/* Five of them around one another, which no straight cut separates. */
TEST(a_pinwheel)
{
    struct tensor tensor = {
        .n_dims = 2,
        .shape = {3, 3},
        .regions = {{{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}},
        .n_regions = 5};
    check_tiling(&tensor);
    tensor.n_regions = 4;
    check_tiling(&tensor);
}

TEST(nothing_and_numbers)
{
    struct tensor scalar = {.n_dims = 0};
    struct tiling_fault fault;
    for (size_t n = 0; n < 4; n++) {
        REQUIRE_OK(tiling_check(0, scalar.shape, scalar.regions, sizeof(struct region), n, &fault));
        CHECK_INT(fault.n_regions, n);
    }
    struct tensor vector = {
        .n_dims = 1, .shape = {INT64_MAX}, .regions = {{{0}, {1}}, {{1}, {INT64_MAX - 1}}}};
    REQUIRE_OK(tiling_check(1, vector.shape, vector.regions, sizeof(struct region), 2, &fault));
    CHECK_INT(fault.n_regions, 1);
    REQUIRE_OK(tiling_check(1, vector.shape, vector.regions, sizeof(struct region), 1, &fault));
    CHECK(fault.n_regions == 0 && fault.element[0] == 1);
}

/* A grid of 400 by 250, in some order. */
TEST(many_regions)
{
    enum {
        ROWS = 400,
        COLUMNS = 250,
        N = ROWS * COLUMNS
    };
    const int64_t shape[] = {2 * ROWS, 7, 3 * COLUMNS};
    struct region *regions = calloc(N, sizeof *regions);
    struct tiling_fault fault;
    REQUIRE(regions);
    for (size_t i = 0; i < N; i++) {
        size_t number = i * 7919 % N;
        regions[i] = (struct region){
            {(int64_t)(2 * (number / COLUMNS)), 0, (int64_t)(3 * (number % COLUMNS))}, {2, 7, 3}};
    }
    CHECK_OK(tiling_check(3, shape, regions, sizeof *regions, N, &fault));
    CHECK_INT(fault.n_regions, 1);
    regions[N / 2].length[2] = 2;
    CHECK_OK(tiling_check(3, shape, regions, sizeof *regions, N, &fault));
    CHECK_INT(fault.n_regions, 0);
    CHECK_INT(fault.element[2], regions[N / 2].begin[2] + 2);
    free(regions);
}
