/* SPDX-License-Identifier: MIT */
/*
 * Items of which sets of ranks have values of their own: each set gets its own back, also after a save that a thread
 * writes, and names say whose they are. Items that all ranks have in common are saved once.
 */
#include "checkpoint/ranks/copies.h"

#include "fixtures/rank_world.h"
#include "fixtures/shared_directory.h"
#include "shoal/checkpoint.h"

enum {
    COUNT = 4
};

/* An expert of ranks 0 and 2, half of it each, and of rank 1, which has all of it; and a number that all have. */
struct values {
    float expert[COUNT];
    float common;
};

static shoal_items *make_items(const struct rank *self, struct values *values, uint64_t owners)
{
    static const int64_t shape[] = {COUNT};
    shoal_items *items = NULL;
    bool is_half = self->rank != 1;
    shoal_item item = SHOAL_ITEM_INIT;
    CHECK_OK(shoal_items_create(&items));
    item.name = "expert";
    item.dtype = SHOAL_F32;
    item.n_dims = 1;
    item.shape = shape;
    item.dim = is_half ? 0 : -1;
    item.offset = is_half ? self->rank / 2 * (COUNT / 2) : 0;
    item.length = is_half ? COUNT / 2 : 0;
    item.data = values->expert;
    item.owners = owners;
    CHECK_OK(shoal_items_add(items, &item));
    CHECK_OK(shoal_items_add_alias(items, NULL, "expert", "e"));
    item = (shoal_item){
        .struct_size = sizeof item, .name = "common", .dtype = SHOAL_F32, .dim = -1, .data = &values->common};
    CHECK_OK(shoal_items_add(items, &item));
    return items;
}

static uint64_t owners_of(const struct rank *self)
{
    return self->rank == 1 ? 77 : 5;
}

static void fill(const struct rank *self, struct values *values)
{
    for (int i = 0; i < COUNT; i++) {
        values->expert[i] = (float)(10 * self->rank + i);
    }
    values->common = 3.5F;
}

static void check_values(const struct rank *self, const struct values *values)
{
    int n = self->rank == 1 ? COUNT : COUNT / 2;
    for (int i = 0; i < n; i++) {
        CHECK(values->expert[i] == (float)(10 * self->rank + i));
    }
    CHECK(values->common == 3.5F);
}

static void save_and_load(struct rank *self, bool is_started)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    const char *directory = share_directory(self);
    struct values values;
    struct values loaded = {{0}, 0};
    fill(self, &values);
    shoal_items *items = make_items(self, &values, owners_of(self));
    if (is_started) {
        shoal_checkpoint_saving *saving = NULL;
        CHECK_OK(shoal_checkpoint_save_start(shoal_world_group(world), directory, items, NULL, &saving));
        shoal_items_free(items); /* the save has copies */
        items = NULL;
        CHECK_OK(shoal_checkpoint_save_wait(saving));
    } else {
        CHECK_OK(shoal_checkpoint_save(shoal_world_group(world), directory, items, NULL));
    }
    shoal_items *other = make_items(self, &loaded, owners_of(self) + 1000); /* other numbers, the same sets */
    CHECK_OK(shoal_checkpoint_load(shoal_world_group(world), directory, other, NULL, NULL));
    check_values(self, &loaded);
    shoal_items_free(items);
    shoal_items_free(other);
    CHECK_OK(shoal_world_close(world));
    remove_directory(self, directory);
}

TEST_RANKS(each_set_gets_its_own, 3)
{
    save_and_load(self, false);
    save_and_load(self, true);
}

TEST_RANKS(names, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    struct values values;
    shoal_items *spread = NULL;
    shoal_items *items = make_items(self, &values, owners_of(self));
    CHECK_OK(copies_make(shoal_world_group(world), items, &spread));
    REQUIRE(spread);
    CHECK_INT((int)shoal_items_count(spread), 3);
    CHECK_INT((int)shoal_items_find(spread, NULL, "expert"), 0);
    CHECK_INT((int)shoal_items_find(spread, NULL, "expert#1"), 1);
    CHECK_INT((int)shoal_items_find(spread, NULL, "e#1"), 1);
    CHECK_INT((int)shoal_items_find(spread, NULL, "common"), 2);
    struct region region;
    CHECK_OK(items_region(spread, self->rank == 1 ? 0 : 1, &region)); /* nothing of the other set's */
    CHECK_INT(region.length[0], 0);
    shoal_items_free(spread);
    shoal_items_free(items);
    CHECK_OK(shoal_world_close(world));
}

/* One set, none, and a rank that has it in common with all: nothing to tell apart. */
TEST_RANKS(no_copies, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    const uint64_t owners[] = {9, 0, self->rank == 2 ? 0 : 4};
    for (size_t i = 0; i < sizeof owners / sizeof owners[0]; i++) {
        struct values values;
        shoal_items *spread = NULL;
        shoal_items *items = make_items(self, &values, owners[i]);
        CHECK_OK(copies_make(shoal_world_group(world), items, &spread));
        CHECK(spread == NULL);
        shoal_items_free(items);
    }
    CHECK_OK(shoal_world_close(world));
}

/* The name of a copy is taken: an error on all ranks. */
TEST_RANKS(a_name_is_taken, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    struct values values;
    float more = 0;
    shoal_items *spread = NULL;
    shoal_items *items = make_items(self, &values, owners_of(self));
    const shoal_item item = {
        .struct_size = sizeof item, .name = "expert#1", .dtype = SHOAL_F32, .dim = -1, .data = &more};
    CHECK_OK(shoal_items_add(items, &item));
    CHECK_STATUS(copies_make(shoal_world_group(world), items, &spread), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("expert#1");
    CHECK(spread == NULL);
    shoal_items_free(items);
    CHECK_OK(shoal_world_close(world));
}
