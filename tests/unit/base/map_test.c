/* SPDX-License-Identifier: MIT */
/* Maps: growth, collisions, equal keys, removal, failing allocations. */
#include "base/map.h"

#include <string.h>

#include "base/hash.h"
#include "harness/test.h"

/* What the map multiplies keys by, twice, and the inverse of it. */
#define FACTOR UINT64_C(0x9e3779b97f4a7c15)
#define INVERSE UINT64_C(0xf1de83e19937733d)

/* Returns the key of which the map makes `product`, and then the slot of its upper bits. */
static uint64_t key_of_product(uint64_t product)
{
    uint64_t key = product * INVERSE;
    return (key ^ key >> 32) * INVERSE;
}

static uint64_t plain_key(size_t number)
{
    return number;
}

/* All of these want the first slot. */
static uint64_t first_key(size_t number)
{
    return key_of_product(number);
}

/* All of these want the last slot, so that the search goes on at the first one. */
static uint64_t last_key(size_t number)
{
    return key_of_product(UINT64_MAX - number);
}

static size_t get(const struct map *map, uint64_t key)
{
    size_t value = 12345;
    bool is_there = map_get(map, key, &value);
    CHECK(is_there || value == 12345);
    return is_there ? value : SIZE_MAX;
}

TEST(an_empty_map_has_nothing)
{
    struct map map = {.slots = NULL};
    CHECK_INT(get(&map, 0), SIZE_MAX);
    CHECK_INT(get(&map, UINT64_MAX), SIZE_MAX);
    CHECK(!map_remove(&map, 0, 0));
    map_clear(&map);
    map_free(&map);
    map_free(&map);
    CHECK_INT(map.count, 0);
}

TEST(nothing_is_allocated_for_nothing)
{
    struct map map = {.slots = NULL};
    size_t n_before = test_count_allocations();
    CHECK_OK(map_reserve(&map, 0));
    CHECK_INT(test_count_allocations(), n_before);
    CHECK(map.slots == NULL);
}

TEST(zero_and_the_largest_keys_and_values_are_ordinary)
{
    struct map map = {.slots = NULL};
    CHECK_OK(map_add(&map, 0, 0));
    CHECK_INT(get(&map, 0), 0);
    CHECK_INT(get(&map, UINT64_MAX), SIZE_MAX);
    CHECK_OK(map_add(&map, UINT64_MAX, SIZE_MAX - 1));
    CHECK_INT(get(&map, UINT64_MAX), SIZE_MAX - 1);
    CHECK_INT(get(&map, 1), SIZE_MAX);
    CHECK_INT(map.count, 2);
    CHECK_OK(map_add(&map, map_key(NULL) + 1, (size_t)map_key(&map)));
    CHECK(map_pointer(get(&map, 1)) == &map);
    map_free(&map);
    CHECK_INT(get(&map, 0), SIZE_MAX);
}

/* Adds many keys, looks for all of them after each growth and for others, and removes every second one. */
static void use_many(uint64_t (*key_of)(size_t number), size_t n_keys)
{
    struct map map = {.slots = NULL};
    size_t capacity = 0;
    for (size_t i = 0; i < n_keys; i++) {
        REQUIRE_OK(map_add(&map, key_of(i), i));
        for (size_t k = 0; capacity != map.capacity && k <= i; k++) {
            CHECK_INT(get(&map, key_of(k)), k);
        }
        capacity = map.capacity;
        REQUIRE(map.count == i + 1 && 2 * map.count <= capacity && (capacity & (capacity - 1)) == 0);
    }
    for (size_t i = 0; i < n_keys && !test_has_failed(); i++) {
        CHECK_INT(get(&map, key_of(i)), i);
        CHECK_INT(get(&map, key_of(n_keys + i)), SIZE_MAX);
    }
    for (size_t i = 0; i < n_keys; i += 2) {
        CHECK(map_remove(&map, key_of(i), i));
        CHECK(!map_remove(&map, key_of(i), i));
    }
    for (size_t i = 0; i < n_keys && !test_has_failed(); i++) {
        CHECK_INT(get(&map, key_of(i)), i % 2 ? i : SIZE_MAX);
    }
    CHECK_INT(map.count, n_keys / 2);
    CHECK_INT(map.capacity, capacity);
    map_free(&map);
}

TEST(a_map_grows)
{
    use_many(plain_key, 3001);
}

TEST(keys_that_all_want_one_slot_are_found)
{
    struct map map = {.slots = NULL};
    CHECK_OK(map_reserve(&map, 1));
    CHECK_INT(FACTOR * INVERSE, 1);
    CHECK_INT(map_first_slot(&map, first_key(999)), 0);
    CHECK_INT(map_first_slot(&map, last_key(999)), map.capacity - 1);
    map_free(&map);
    use_many(first_key, 1001);
    use_many(last_key, 1001);
}

TEST(keys_at_any_regular_distance_are_near_their_slots)
{
    enum {
        N = 1024
    };
    for (unsigned i = 0; i < 2048 + 50; i++) {
        uint64_t distance = i < 2048 ? 8 * i + 8 : UINT64_C(1) << (i - 2048);
        struct map map = {.slots = NULL};
        size_t n_steps = 0;
        for (size_t k = 0; k < N; k++) {
            REQUIRE_OK(map_add(&map, UINT64_C(0xaaaab0c02a0) + k * distance, k));
        }
        for (size_t at = 0; at < map.capacity; at++) {
            size_t first = map_first_slot(&map, map.slots[at].key);
            n_steps += map.slots[at].value ? (at - first) & (map.capacity - 1) : 0;
        }
        CHECK(n_steps <= N); /* N / 2 for random keys */
        map_free(&map);
    }
}

TEST(a_key_gets_a_value_once)
{
    struct map map = {.slots = NULL};
    size_t value = 77;
    test_fail_allocation(1, /*is_lasting=*/false);
    CHECK_STATUS(map_get_or_add(&map, 5, 1, &value), SHOAL_ERR_NO_MEMORY);
    CHECK_INT(value, 77);
    CHECK_INT(map.count, 0);
    for (size_t i = 0; i < 1000; i++) {
        REQUIRE_OK(map_get_or_add(&map, first_key(i % 100), map.count, &value));
        CHECK_INT(value, i % 100);
    }
    CHECK_INT(map.count, 100);
    CHECK_INT(get(&map, first_key(99)), 99);
    map_free(&map);
}

/* Names by hash --------------------------------------------------------------------------------------------- */

static bool is_name(const void *context, const void *wanted, size_t value)
{
    const char *const *names = context;
    return strcmp(names[value], wanted) == 0;
}

TEST(equal_hashes_are_told_apart_by_the_caller)
{
    static const char *const names[] = {"", "a", "b", "longer", "c"};
    struct map map = {.slots = NULL};
    size_t value = 77;
    CHECK(!map_find(&map, 5, is_name, names, "a", &value));
    for (size_t i = 0; i < 4; i++) {
        REQUIRE_OK(map_add(&map, 5, i));
    }
    for (size_t i = 0; i < 4; i++) {
        CHECK(map_find(&map, 5, is_name, names, names[i], &value));
        CHECK_INT(value, i);
    }
    value = 77;
    CHECK(!map_find(&map, 5, is_name, names, "c", &value));
    CHECK(!map_find(&map, 6, is_name, names, "a", &value));
    CHECK_INT(value, 77);
    /* One value of the key goes. */
    CHECK(!map_remove(&map, 5, 4));
    CHECK(map_remove(&map, 5, 1));
    CHECK(!map_find(&map, 5, is_name, names, "a", &value));
    CHECK(map_find(&map, 5, is_name, names, "longer", &value));
    CHECK_INT(value, 3);
    map_free(&map);
}

/* Against a list ------------------------------------------------------------------------------------------------ */

enum {
    N_KEYS = 97, /* so few that keys come again, often in clusters */
    N_CHANGES = 20000
};

static uint64_t mixed_key(size_t number)
{
    return number % 3 == 0   ? first_key(number)
           : number % 3 == 1 ? hash_bytes(0, &number, sizeof number)
                             : number;
}

TEST(changes_in_any_order_agree_with_a_list)
{
    struct test_random random = test_random_begin(1);
    struct map map = {.slots = NULL};
    size_t values[N_KEYS] = {0}; /* + 1; 0: none */
    size_t count = 0;
    for (size_t i = 0; i < N_CHANGES && !test_has_failed(); i++) {
        size_t number = (size_t)test_random_below(&random, N_KEYS);
        if (values[number] > 0) {
            CHECK(map_remove(&map, mixed_key(number), values[number] - 1));
            values[number] = 0;
            count--;
        } else {
            CHECK_OK(map_add(&map, mixed_key(number), i));
            values[number] = i + 1;
            count++;
        }
        if (test_random_below(&random, 4000) == 0) {
            map_clear(&map);
            memset(values, 0, sizeof values);
            count = 0;
        }
        CHECK_INT(map.count, count);
        for (size_t k = 0; k < N_KEYS; k++) {
            CHECK_INT(get(&map, mixed_key(k)), values[k] - 1);
        }
    }
    CHECK(map.capacity <= 256);
    map_free(&map);
}

/* Memory ---------------------------------------------------------------------------------------------------- */

TEST(nothing_is_lost_when_growth_fails)
{
    struct map map = {.slots = NULL};
    test_fail_allocation(1, /*is_lasting=*/false);
    CHECK_STATUS(map_add(&map, 1, 1), SHOAL_ERR_NO_MEMORY);
    CHECK_ERROR_TEXT("256 bytes");
    CHECK_INT(map.count, 0);
    for (size_t i = 0; i < 8; i++) {
        CHECK_OK(map_add(&map, i, i));
    }
    struct map before = map;
    test_fail_allocation(1, /*is_lasting=*/true);
    CHECK_STATUS(map_add(&map, 8, 8), SHOAL_ERR_NO_MEMORY);
    CHECK_STATUS(map_reserve(&map, 1), SHOAL_ERR_NO_MEMORY);
    test_fail_allocation(0, false);
    CHECK_BYTES(&map, &before, sizeof map);
    for (size_t i = 0; i < 9; i++) {
        CHECK_INT(get(&map, i), i < 8 ? i : SIZE_MAX);
    }
    CHECK_OK(map_add(&map, 8, 8));
    CHECK_INT(get(&map, 8), 8);
    map_free(&map);
}

TEST(after_a_reservation_adding_cannot_fail)
{
    struct map map = {.slots = NULL};
    CHECK_OK(map_add(&map, 1000, 1000));
    CHECK_OK(map_reserve(&map, 100));
    test_fail_allocation(1, /*is_lasting=*/true);
    for (size_t i = 0; i < 50; i++) {
        CHECK_OK(map_add(&map, i, i));
        map_put(&map, 50 + i, 50 + i);
    }
    CHECK_INT(map.count, 101);
    CHECK_INT(get(&map, 99), 99);
    map_clear(&map);
    CHECK_INT(get(&map, 1000), SIZE_MAX);
    for (size_t i = 0; i < 101; i++) {
        CHECK_OK(map_add(&map, i, i + 1));
    }
    CHECK_INT(get(&map, 100), 101);
    test_fail_allocation(0, false);
    map_free(&map);
}

TEST(more_than_memory_can_hold_is_refused)
{
    struct map map = {.slots = NULL};
    CHECK_OK(map_add(&map, 3, 4));
    CHECK_STATUS(map_reserve(&map, SIZE_MAX), SHOAL_ERR_NO_MEMORY);
    CHECK_STATUS(map_reserve(&map, SIZE_MAX / 2), SHOAL_ERR_NO_MEMORY);
    CHECK_STATUS(map_reserve(&map, SIZE_MAX / 64), SHOAL_ERR_NO_MEMORY);
    CHECK_INT(get(&map, 3), 4);
    map_free(&map);
}

static shoal_status fill(void *context)
{
    struct map map = {.slots = NULL};
    shoal_status status = SHOAL_OK;
    (void)context;
    for (size_t i = 0; i < 100 && status == SHOAL_OK; i++) {
        status = map_add(&map, i, i);
        CHECK_INT(map.count, status == SHOAL_OK ? i + 1 : i);
    }
    map_free(&map);
    return status;
}

TEST(failing_allocations_leak_nothing)
{
    CHECK_INT(test_sweep_allocations(fill, NULL), 5); /* 16, 32, 64, 128 and 256 slots */
}
