/* SPDX-License-Identifier: MIT */
/* What a server keeps by name: finding, removing one and several, failing allocations. */
#include "bootstrap/server/entries.h"

#include <stdio.h>
#include <string.h>

#include "harness/test.h"

enum {
    N_ENTRIES = 100
};

static struct entry *find(const struct entries *entries, const char *name)
{
    return entries_find(entries, name, strlen(name));
}

static struct entry *obtain(struct entries *entries, const char *name)
{
    struct entry *entry = NULL;
    CHECK_OK(entries_obtain(entries, name, strlen(name), &entry));
    return entry;
}

TEST(entries_are_found_by_all_bytes_of_their_names)
{
    struct entries entries = {.first = NULL};
    CHECK(find(&entries, "") == NULL);
    struct entry *empty = obtain(&entries, "");
    struct entry *plain = obtain(&entries, "a");
    struct entry *other = NULL;
    CHECK_OK(entries_obtain(&entries, "a\0b", 3, &other));
    CHECK(empty && plain && other && empty != plain && plain != other);
    CHECK(find(&entries, "") == empty && find(&entries, "a") == plain && obtain(&entries, "a") == plain);
    CHECK(entries_find(&entries, "a\0b", 3) == other && entries_find(&entries, "a\0c", 3) == NULL);
    CHECK_OK(entry_set_value(plain, "value", 5));
    CHECK_STRING(plain->value, "value");
    entries_clear(&entries);
    CHECK(find(&entries, "a") == NULL && entries.first == NULL);
}

TEST(entries_are_removed_in_any_order)
{
    struct entries entries = {.first = NULL};
    bool is_there[N_ENTRIES] = {false};
    struct test_random random = test_random_begin(2);
    for (int round = 0; round < 2000 && !test_has_failed(); round++) {
        char name[16];
        size_t number = (size_t)test_random_below(&random, N_ENTRIES);
        (void)snprintf(name, sizeof name, "name %zu", number);
        CHECK((find(&entries, name) != NULL) == is_there[number]);
        if (is_there[number]) {
            entries_remove(&entries, find(&entries, name));
        } else {
            CHECK_STRING(obtain(&entries, name)->name, name);
        }
        is_there[number] = !is_there[number];
        size_t n_listed = 0;
        size_t n_there = 0;
        for (const struct entry *entry = entries.first; entry; entry = entry->next) {
            CHECK(!entry->next || entry->next->before == entry);
            n_listed++;
        }
        for (size_t i = 0; i < N_ENTRIES; i++) {
            n_there += is_there[i] ? 1 : 0;
        }
        CHECK_INT(n_listed, n_there);
        CHECK_INT(entries.by_name.count, n_there);
    }
    entries_clear(&entries);
}

TEST(all_entries_of_a_suffix_are_removed)
{
    struct entries entries = {.first = NULL};
    char name[32];
    for (int i = 0; i < N_ENTRIES; i++) {
        (void)snprintf(name, sizeof name, "%d of %s", i, i % 3 ? "one" : "two");
        CHECK(obtain(&entries, name) != NULL);
    }
    CHECK(obtain(&entries, "none") && obtain(&entries, "1 2 of one"));
    entries_remove_all(&entries, " of one", 7);
    for (int i = 0; i < N_ENTRIES; i++) {
        (void)snprintf(name, sizeof name, "%d of %s", i, i % 3 ? "one" : "two");
        CHECK((find(&entries, name) != NULL) == (i % 3 == 0));
    }
    CHECK(find(&entries, "none") && find(&entries, "1 2 of one"));
    entries_clear(&entries);
}

static shoal_status fill(void *context)
{
    struct entries entries = {.first = NULL};
    shoal_status status = SHOAL_OK;
    (void)context;
    for (int i = 0; i < 20 && status == SHOAL_OK; i++) {
        char name[16];
        struct entry *entry = NULL;
        (void)snprintf(name, sizeof name, "%d", i);
        status = entries_obtain(&entries, name, strlen(name), &entry);
        CHECK((find(&entries, name) != NULL) == (status == SHOAL_OK));
        CHECK(i == 0 || find(&entries, "0"));
    }
    entries_clear(&entries);
    return status;
}

TEST(a_failing_allocation_keeps_the_entries)
{
    CHECK(test_sweep_allocations(fill, NULL) >= 20);
}
