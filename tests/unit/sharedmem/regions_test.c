/* SPDX-License-Identifier: MIT */
/* The table of symmetric memory, against a list that is searched naively, and under readers while it changes. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/error.h"
#include "harness/test.h"
#include "sharedmem/regions.h"

/* Regions are only addresses to the table: nothing here is ever read or written. */
static char space[1 << 20];

TEST(nothing_is_found_in_an_empty_table)
{
    struct regions *regions = regions_create();
    REQUIRE(regions != NULL);
    CHECK_INT(regions_find(regions, space, 8).id, 0);
    CHECK_INT(regions_find(regions, NULL, 0).id, 0);
    CHECK(regions_peer(regions, (struct region_place){.id = 7}, 0, 1) == NULL);
    regions_remove(regions, 7);
    regions_free(regions);
    regions_free(NULL);
}

TEST(a_place_is_found_on_every_rank)
{
    struct regions *regions = regions_create();
    REQUIRE(regions != NULL);
    const int ranks[] = {5, 2, 9};
    REQUIRE_OK(regions_add(regions, 77, space, 4096, 1000, ranks, 3, 1));
    char *own = space + 4096;

    struct region_place place = regions_find(regions, own + 10, 90);
    CHECK_INT(place.id, 77);
    CHECK_INT(place.offset, 10);
    CHECK(regions_peer(regions, place, 5, 90) == space + 10);
    CHECK(regions_peer(regions, place, 2, 90) == own + 10);
    CHECK(regions_peer(regions, place, 9, 90) == space + 8192 + 10);

    /* Exactly to the end, and one byte more. */
    CHECK_INT(regions_find(regions, own, 1000).id, 77);
    CHECK_INT(regions_find(regions, own + 1000, 0).id, 77);
    CHECK_INT(regions_find(regions, own, 1001).id, 0);
    CHECK_INT(regions_find(regions, own + 1001, 0).id, 0);
    CHECK_INT(regions_find(regions, own - 1, 2).id, 0);
    CHECK_INT(regions_find(regions, own + 1, SIZE_MAX).id, 0);
    /* A peer's block is not the caller's. */
    CHECK_INT(regions_find(regions, space, 8).id, 0);
    CHECK_INT(regions_find(regions, space + 8192, 8).id, 0);

    CHECK(regions_peer(regions, place, 4, 90) == NULL);
    CHECK(regions_peer(regions, (struct region_place){.id = 76, .offset = 0}, 5, 1) == NULL);
    CHECK(regions_peer(regions, (struct region_place){.id = 77, .offset = 991}, 5, 10) == NULL);
    CHECK(regions_peer(regions, (struct region_place){.id = 77, .offset = UINT64_MAX}, 5, 2) == NULL);

    CHECK_STATUS(regions_add(regions, 77, space + 65536, 4096, 10, ranks, 3, 0), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("77");
    regions_remove(regions, 77);
    CHECK_INT(regions_find(regions, own + 10, 90).id, 0);
    CHECK(regions_peer(regions, place, 5, 90) == NULL);
    regions_free(regions);
}

#define N_SLOTS 64
#define SLOT_BYTES 4096

TEST(many_regions_are_found_like_in_a_list)
{
    struct regions *regions = regions_create();
    REQUIRE(regions != NULL);
    struct test_random random = test_random_begin(1);
    uint32_t ids[N_SLOTS] = {0};
    size_t bytes[N_SLOTS] = {0};
    const int rank = 3;
    for (int step = 0; step < 4000 && !test_has_failed(); step++) {
        size_t slot = (size_t)test_random_below(&random, N_SLOTS);
        if (ids[slot]) {
            regions_remove(regions, ids[slot]);
            ids[slot] = 0;
        } else {
            ids[slot] = regions_propose_id(regions, 3);
            bytes[slot] = 1 + (size_t)test_random_below(&random, SLOT_BYTES);
            CHECK_OK(regions_add(regions, ids[slot], space + slot * SLOT_BYTES, SLOT_BYTES, bytes[slot],
                                 &rank, 1, 0));
        }
        for (int probe = 0; probe < 20; probe++) {
            size_t at = (size_t)test_random_below(&random, N_SLOTS * SLOT_BYTES);
            size_t length = (size_t)test_random_below(&random, 64);
            size_t in_slot = at % SLOT_BYTES;
            size_t expected = at / SLOT_BYTES;
            bool is_in = ids[expected] && in_slot + length <= bytes[expected];
            struct region_place place = regions_find(regions, space + at, length);
            CHECK_INT(place.id, is_in ? ids[expected] : 0);
            if (is_in) {
                CHECK_INT(place.offset, in_slot);
                CHECK(regions_peer(regions, place, 3, length) == space + at);
            }
        }
    }
    regions_free(regions);
}

TEST(proposed_ids_differ_and_pass_over_what_is_there)
{
    struct regions *regions = regions_create();
    REQUIRE(regions != NULL);
    const int rank = 2;
    uint32_t first = regions_propose_id(regions, 2);
    CHECK_INT(first, 3 << 16 | 1);
    REQUIRE_OK(regions_add(regions, first, space, 64, 64, &rank, 1, 0));
    for (int i = 0; i < 3 * 65536; i++) {
        uint32_t id = regions_propose_id(regions, 2);
        if (id == first || id >> 16 != 3) {
            CHECK_INT(id, first + 1);
            break;
        }
    }
    regions_free(regions);
}

static shoal_status add_and_remove(void *context)
{
    struct regions *regions = regions_create();
    if (!regions) {
        return SHOAL_ERR_NO_MEMORY;
    }
    const int rank = 0;
    shoal_status status = SHOAL_OK;
    for (uint32_t id = 1; id <= 3 && status == SHOAL_OK; id++) {
        status = regions_add(regions, id, space + id * 64, 64, 64, &rank, 1, 0);
    }
    if (status == SHOAL_OK) {
        /* Removing never fails, whether or not there is memory for a smaller table. */
        regions_remove(regions, 2);
        CHECK_INT(regions_find(regions, space + 2 * 64, 64).id, 0);
        CHECK_INT(regions_find(regions, space + 3 * 64, 64).id, 3);
        status = regions_add(regions, 2, space + 9 * 64, 64, 64, &rank, 1, 0);
        if (status == SHOAL_OK) {
            CHECK_INT(regions_find(regions, space + 9 * 64, 64).id, 2);
            CHECK_INT(regions_find(regions, space + 2 * 64, 64).id, 0);
        }
    }
    regions_free(regions);
    return status;
}

TEST(allocations_may_fail)
{
    CHECK(test_sweep_allocations(add_and_remove, NULL) > 5);
}

/* Readers of a region that stays, while others come and go ---------------------------------------------- */

struct readers {
    struct regions *regions;
    _Atomic bool is_over;
};

static void *read_on(void *context)
{
    struct readers *readers = context;
    while (!atomic_load(&readers->is_over)) {
        struct region_place place = regions_find(readers->regions, space + 100, 50);
        if (place.id != 1 || regions_peer(readers->regions, place, 8, 50) != space + 4096 + 100) {
            CHECK_INT(place.id, 1);
            break;
        }
        /* May or may not be there. */
        place = regions_find(readers->regions, space + 65536, 10);
        (void)regions_peer(readers->regions, place, 7, 10);
    }
    return NULL;
}

TEST(readers_do_not_mind_writers)
{
    struct readers readers = {.regions = regions_create()};
    REQUIRE(readers.regions != NULL);
    const int ranks[] = {7, 8};
    REQUIRE_OK(regions_add(readers.regions, 1, space, 4096, 4096, ranks, 2, 0));
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        CHECK_INT(pthread_create(&threads[i], NULL, read_on, &readers), 0);
    }
    for (uint32_t i = 0; i < 3000; i++) {
        CHECK_OK(regions_add(readers.regions, 2 + i, space + 65536, 64, 64, ranks, 2, 0));
        regions_remove(readers.regions, 2 + i);
    }
    atomic_store(&readers.is_over, true);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    }
    /* Nothing piles up: a change without readers frees all that went before. */
    size_t n_before = test_live_blocks();
    CHECK_OK(regions_add(readers.regions, 1000000, space + 65536, 64, 64, ranks, 2, 0));
    regions_remove(readers.regions, 1000000);
    CHECK(test_live_blocks() <= n_before);
    regions_free(readers.regions);
}
