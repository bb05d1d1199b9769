/* SPDX-License-Identifier: MIT */
/* Tables of saves: the same on all ranks, or the same error, which says what differs. */
#include "checkpoint/ranks/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures/rank_world.h"

static shoal_group *open_group(struct rank *self, shoal_world **world_out)
{
    *world_out = rank_world_open(self, 0);
    return *world_out ? shoal_world_group(*world_out) : NULL;
}

static shoal_items *make_items(void)
{
    shoal_items *items = NULL;
    CHECK_OK(shoal_items_create(&items));
    return items;
}

/* Values do not matter to a table. */
static char memory[4096];

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__})

static void add(shoal_items *items, const char *name, int n_dims, const int64_t *shape, int dim,
                int64_t offset, int64_t length)
{
    shoal_item item = SHOAL_ITEM_INIT;
    item.name = name;
    item.dtype = SHOAL_F32;
    item.n_dims = n_dims;
    item.shape = shape;
    item.dim = dim;
    item.offset = offset;
    item.length = length;
    item.data = memory;
    CHECK_OK(shoal_items_add(items, &item));
}

static void check_region(const struct table_tensor *tensor, size_t index, const int64_t *begin,
                         const int64_t *length, const char *ranks)
{
    char text[64] = "";
    REQUIRE(index < tensor->n_regions);
    const struct table_region *region = &tensor->regions[index];
    for (int i = 0; i < tensor->n_dims; i++) {
        CHECK_INT(region->region.begin[i], begin[i]);
        CHECK_INT(region->region.length[i], length[i]);
    }
    for (int i = 0; i < region->n_ranks; i++) {
        size_t used = strlen(text);
        (void)snprintf(text + used, sizeof text - used, "%d ", region->ranks[i]);
    }
    CHECK_STRING(text, ranks);
}

/* Tables ---------------------------------------------------------------------------------------------------- */

TEST_RANKS(who_has_what, 4)
{
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    shoal_items *items = make_items();
    int64_t rank = self->rank;
    int64_t epoch = 3;
    add(items, "rows", 2, SHAPE(8, 3), 0, 2 * rank, 2);
    add(items, "columns", 2, SHAPE(2, 8), 1, 6 - 2 * rank, 2);            /* the last rank has the first */
    add(items, "hybrid", 1, SHAPE(5), 0, rank % 2 * 3, rank % 2 ? 2 : 3); /* two replicas of two shards */
    add(items, "hybrid2", 1, SHAPE(5), 0, rank % 2 * 3, rank % 2 ? 2 : 3);
    add(items, "all", 2, SHAPE(4, 4), -1, 0, 0);
    add(items, "scalar", 0, NULL, -1, 0, 0);
    add(items, "short", 1, SHAPE(2), 0, rank < 2 ? rank : 2, rank < 2); /* the last two have nothing */
    add(items, "empty", 2, SHAPE(0, 7), 0, 0, 0);
    add(items, "one", 1, SHAPE(6), 0, 0, rank == 2 ? 6 : 0);
    CHECK_OK(shoal_items_add_alias(items, NULL, "all", "other"));
    CHECK_OK(shoal_items_add_integer(items, "epoch", &epoch));
    struct table table;
    REQUIRE_OK(table_make(group, items, &table));
    shoal_items_free(items); /* the table has copies */
    CHECK_INT(table.n_ranks, 4);
    REQUIRE(CHECK_INT(table.n_tensors, 9));
    const struct table_tensor *tensors = table.tensors;
    CHECK_INT(tensors[0].n_regions, 4);
    check_region(&tensors[0], 1, SHAPE(2, 0), SHAPE(2, 3), "1 ");
    check_region(&tensors[1], 0, SHAPE(0, 0), SHAPE(2, 2), "3 ");
    check_region(&tensors[1], 3, SHAPE(0, 6), SHAPE(2, 2), "0 ");
    for (int i = 2; i < 4; i++) {
        CHECK_INT(tensors[i].n_regions, 2);
        check_region(&tensors[i], 0, SHAPE(0), SHAPE(3), "0 2 ");
        check_region(&tensors[i], 1, SHAPE(3), SHAPE(2), "1 3 ");
    }
    /* Lists are kept once. */
    CHECK(tensors[2].regions[0].ranks == tensors[3].regions[0].ranks);
    CHECK_INT(tensors[4].n_regions, 1);
    check_region(&tensors[4], 0, SHAPE(0, 0), SHAPE(4, 4), "0 1 2 3 ");
    CHECK_STRING(tensors[4].name, "all");
    CHECK_STRING(tensors[4].section, "model");
    CHECK(tensors[4].n_aliases == 1 && strcmp(tensors[4].aliases[0], "other") == 0);
    CHECK_INT(tensors[5].n_regions, 1);
    check_region(&tensors[5], 0, NULL, NULL, "0 1 2 3 ");
    CHECK_INT(tensors[6].n_regions, 2);
    check_region(&tensors[6], 1, SHAPE(1), SHAPE(1), "1 ");
    CHECK_INT(tensors[7].n_regions, 0);
    CHECK_INT(tensors[8].n_regions, 1);
    check_region(&tensors[8], 0, SHAPE(0), SHAPE(6), "2 ");
    table_free(&table);
    table_free(&table);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(one_rank_and_no_items, 1)
{
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    shoal_items *items = make_items();
    struct table table;
    REQUIRE_OK(table_make(group, items, &table));
    CHECK(table.n_ranks == 1 && table.n_tensors == 0);
    table_free(&table);
    add(items, "a", 1, SHAPE(6), 0, 0, 6);
    REQUIRE_OK(table_make(group, items, &table));
    CHECK_INT(table.n_tensors, 1);
    check_region(&table.tensors[0], 0, SHAPE(0), SHAPE(6), "0 ");
    table_free(&table);
    add(items, "b", 1, SHAPE(6), 0, 0, 5);
    CHECK_STATUS(table_make(group, items, &table), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(), "item 'b' of section 'model': no rank has element [5] of [6]");
    shoal_items_free(items);
    CHECK_OK(shoal_world_close(world));
}

/* Lists that differ ----------------------------------------------------------------------------------------- */

struct deviation {
    void (*add)(shoal_items *items, bool deviates);
    const char *words;       /* if the last rank deviates */
    const char *first_words; /* if the first one does: the others differ from it */
};

static int64_t number;
static double real;
static char string[8];

static void other_name(shoal_items *items, bool deviates)
{
    add(items, deviates ? "b" : "a", 1, SHAPE(6), -1, 0, 0);
}

static void missing_item(shoal_items *items, bool deviates)
{
    add(items, "a", 1, SHAPE(6), -1, 0, 0);
    if (!deviates) {
        add(items, "b", 1, SHAPE(6), -1, 0, 0);
    }
}

static void missing_first_item(shoal_items *items, bool deviates)
{
    if (!deviates) {
        add(items, "a", 1, SHAPE(6), -1, 0, 0);
    }
    add(items, "b", 1, SHAPE(6), -1, 0, 0);
}

static void other_order(shoal_items *items, bool deviates)
{
    add(items, deviates ? "b" : "a", 1, SHAPE(6), -1, 0, 0);
    add(items, deviates ? "a" : "b", 1, SHAPE(6), -1, 0, 0);
}

static void other_shape(shoal_items *items, bool deviates)
{
    add(items, "a", 1, SHAPE(deviates ? 7 : 6), -1, 0, 0);
}

static void other_dims(shoal_items *items, bool deviates)
{
    add(items, "a", deviates ? 2 : 1, SHAPE(6, 1), -1, 0, 0);
}

static void add_other(shoal_items *items, const char *section, shoal_dtype dtype)
{
    shoal_item item = SHOAL_ITEM_INIT;
    item.section = section;
    item.name = "a";
    item.dtype = dtype;
    item.n_dims = 1;
    item.shape = SHAPE(6);
    item.dim = -1;
    item.data = memory;
    CHECK_OK(shoal_items_add(items, &item));
}

static void other_dtype(shoal_items *items, bool deviates)
{
    add_other(items, NULL, deviates ? SHOAL_BF16 : SHOAL_F32);
}

static void other_section(shoal_items *items, bool deviates)
{
    add_other(items, deviates ? "optimizer" : NULL, SHOAL_F32);
}

static void may_be_missing(shoal_items *items, bool deviates)
{
    shoal_item item = SHOAL_ITEM_INIT;
    item.name = "a";
    item.dtype = SHOAL_F32;
    item.dim = -1;
    item.data = memory;
    item.may_be_missing = deviates;
    CHECK_OK(shoal_items_add(items, &item));
}

static void other_alias(shoal_items *items, bool deviates)
{
    add_other(items, NULL, SHOAL_F32);
    CHECK_OK(shoal_items_add_alias(items, NULL, "a", deviates ? "y" : "x"));
}

static void missing_alias(shoal_items *items, bool deviates)
{
    add_other(items, NULL, SHOAL_F32);
    CHECK_OK(shoal_items_add_alias(items, NULL, "a", "x"));
    if (!deviates) {
        CHECK_OK(shoal_items_add_alias(items, NULL, "a", "y"));
    }
}

static void other_integer(shoal_items *items, bool deviates)
{
    CHECK_OK(shoal_items_add_integer(items, deviates ? "step" : "epoch", &number));
}

static void other_kind(shoal_items *items, bool deviates)
{
    if (deviates) {
        CHECK_OK(shoal_items_add_real(items, "epoch", &real));
    } else {
        CHECK_OK(shoal_items_add_integer(items, "epoch", &number));
    }
}

static void missing_string(shoal_items *items, bool deviates)
{
    CHECK_OK(shoal_items_add_integer(items, "epoch", &number));
    if (!deviates) {
        CHECK_OK(shoal_items_add_string(items, "run", string, sizeof string));
    }
}

static const struct deviation deviations[] = {
    {other_name, "the list has no item 'a' of section 'model', which is number 0 on rank 0",
     "the list has no item 'b' of section 'model', which is number 0 on rank 0"},
    {missing_item, "the list has no item 'b' of section 'model', which is number 1 on rank 0",
     "the list has the item 'b' of section 'model', which rank 0 does not have"},
    {missing_first_item, "the list has no item 'a' of section 'model', which is number 0 on rank 0",
     "item 0 of the list is 'a' of section 'model', and 'b' of section 'model' on rank 0"},
    {other_order, "item 0 of the list is 'b' of section 'model', and 'a' of section 'model' on rank 0",
     "item 0 of the list is 'a' of section 'model', and 'b' of section 'model' on rank 0"},
    {other_shape, "item 'a' of section 'model' has the shape [7], and [6] on rank 0",
     "item 'a' of section 'model' has the shape [6], and [7] on rank 0"},
    {other_dims, "item 'a' of section 'model' has the shape [6, 1], and [6] on rank 0",
     "item 'a' of section 'model' has the shape [6], and [6, 1] on rank 0"},
    {other_dtype, "item 'a' of section 'model' is bf16, and f32 on rank 0",
     "item 'a' of section 'model' is f32, and bf16 on rank 0"},
    {other_section, "the list has no item 'a' of section 'model'",
     "the list has no item 'a' of section 'optimizer'"},
    {may_be_missing, "item 'a' of section 'model' may be missing, and must not on rank 0",
     "item 'a' of section 'model' must not be missing, and may on rank 0"},
    {other_alias, "item 'a' of section 'model' has the alias 'y', and 'x' on rank 0",
     "item 'a' of section 'model' has the alias 'x', and 'y' on rank 0"},
    {missing_alias, "item 'a' of section 'model' has 1 aliases, and 2 on rank 0",
     "item 'a' of section 'model' has 2 aliases, and 1 on rank 0"},
    {other_integer, "number or string 0 of the list is the integer 'step', and the integer 'epoch' on rank 0",
     "number or string 0 of the list is the integer 'epoch', and the integer 'step' on rank 0"},
    {other_kind, "number or string 0 of the list is the real 'epoch', and the integer 'epoch' on rank 0",
     "number or string 0 of the list is the integer 'epoch', and the real 'epoch' on rank 0"},
    {missing_string, "the list has no string 'run', which rank 0 has",
     "the list has the number or string 'run', which rank 0 does not have"},
};

/* The rank that differs from rank 0 says so itself, and all others with its number. */
static void check_deviation(struct rank *self, shoal_group *group, const struct deviation *deviation,
                            int deviating)
{
    shoal_items *items = make_items();
    struct table table;
    deviation->add(items, self->rank == deviating);
    CHECK_STATUS(table_make(group, items, &table), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT(deviating == 0 ? deviation->first_words : deviation->words);
    if (deviating > 0 && self->rank != deviating) {
        char prefix[24];
        (void)snprintf(prefix, sizeof prefix, "rank %d: ", deviating);
        CHECK(strncmp(shoal_error_text(), prefix, strlen(prefix)) == 0);
    }
    shoal_items_free(items);
    /* The group goes on. */
    items = make_items();
    deviation->add(items, false);
    if (CHECK_OK(table_make(group, items, &table))) {
        table_free(&table);
    }
    shoal_items_free(items);
}

TEST_RANKS(lists_that_differ, 3)
{
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    for (size_t i = 0; i < sizeof deviations / sizeof deviations[0]; i++) {
        check_deviation(self, group, &deviations[i], 2);
        check_deviation(self, group, &deviations[i], 0);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Parts that are not the whole ------------------------------------------------------------------------------ */

TEST_RANKS(gaps_and_overlaps, 3)
{
    static const struct {
        int64_t begin[3];
        int64_t length[3];
        const char *words;
    } rows[] = {
        {{0, 2, 4}, {2, 2, 1}, "no rank has element [0, 5] of [2, 6]"},
        {{0, 3, 4}, {2, 1, 2}, "no rank has element [0, 2] of [2, 6]"},
        {{1, 2, 4}, {1, 2, 2}, "no rank has element [0, 0] of [2, 6]"},
        {{0, 0, 0}, {0, 0, 0}, "no rank has element [0, 0] of [2, 6]"},
        {{0, 2, 3}, {2, 2, 3}, "ranks 1 and 2 have parts that are not the same and share element [0, 3]"},
        {{0, 0, 2}, {2, 3, 4}, "ranks 0 and 1 have parts that are not the same and share element [0, 0]"},
        {{0, 0, 0}, {6, 6, 1}, "ranks 2 and 0 have parts that are not the same and share element [0, 0]"},
        {{0, 0, 3}, {3, 3, 3}, NULL},
        {{3, 0, 6}, {3, 3, 0}, NULL},
    };
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        shoal_items *items = make_items();
        struct table table;
        add(items, "fine", 1, SHAPE(3), 0, self->rank, 1);
        add(items, "w", 2, SHAPE(2, 6), 1, rows[i].begin[self->rank], rows[i].length[self->rank]);
        shoal_status status = table_make(group, items, &table);
        if (CHECK_STATUS(status, rows[i].words ? SHOAL_ERR_INVALID : SHOAL_OK) && status != SHOAL_OK) {
            CHECK_ERROR_TEXT("item 'w' of section 'model': ");
            CHECK_ERROR_TEXT(rows[i].words);
        }
        if (status == SHOAL_OK) {
            table_free(&table);
        }
        shoal_items_free(items);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Memory ---------------------------------------------------------------------------------------------------- */

struct attempt {
    shoal_group *group;
    shoal_items *items;
};

static shoal_status make_once(void *context)
{
    struct attempt *attempt = context;
    struct table table;
    shoal_status status = table_make(attempt->group, attempt->items, &table);
    if (status == SHOAL_OK) {
        table_free(&table);
    }
    return status;
}

TEST_RANKS(every_allocation_may_fail, 1)
{
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    struct attempt attempt = {.group = group, .items = make_items()};
    add(attempt.items, "a", 2, SHAPE(6, 2), 0, 0, 6);
    add(attempt.items, "b", 0, NULL, -1, 0, 0);
    CHECK_OK(shoal_items_add_alias(attempt.items, NULL, "b", "c"));
    struct table table; /* what the group makes on first use stays */
    REQUIRE_OK(table_make(group, attempt.items, &table));
    table_free(&table);
    CHECK(test_sweep_allocations(make_once, &attempt) > 5);
    shoal_items_free(attempt.items);
    CHECK_OK(shoal_world_close(world));
}

/* One rank has no memory: all get the error. */
TEST_PROCESSES(one_rank_has_no_memory, 3)
{
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    struct attempt attempt = {.group = group, .items = make_items()};
    add(attempt.items, "a", 2, SHAPE(6, 2), 0, 2 * self->rank, 2);
    CHECK_OK(make_once(&attempt));
    for (size_t k = 1; k <= 6; k++) {
        if (self->rank == 1) {
            test_fail_allocation(k, true);
        }
        shoal_status status = make_once(&attempt);
        test_fail_allocation(0, false);
        CHECK_STATUS(status, SHOAL_ERR_NO_MEMORY);
    }
    CHECK_OK(make_once(&attempt));
    shoal_items_free(attempt.items);
    CHECK_OK(shoal_world_close(world));
}

/* Many items on some ranks: nothing is quadratic. */
TEST_RANKS(many_items, 2)
{
    shoal_world *world;
    shoal_group *group = open_group(self, &world);
    REQUIRE(group);
    shoal_items *items = make_items();
    int n_items = (int)(20000 / test_time_scale());
    for (int i = 0; i < n_items && !test_has_failed(); i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "layers.%d", i);
        add(items, name, 2, SHAPE(6, 4), i % 2, i % 2 ? 2 * self->rank : 3 * self->rank, i % 2 ? 2 : 3);
    }
    struct table table;
    REQUIRE_OK(table_make(group, items, &table));
    CHECK_INT(table.n_tensors, n_items);
    check_region(&table.tensors[n_items - 1], 1, (n_items - 1) % 2 ? SHAPE(0, 2) : SHAPE(3, 0),
                 (n_items - 1) % 2 ? SHAPE(6, 2) : SHAPE(3, 4), "1 ");
    table_free(&table);
    shoal_items_free(items);
    CHECK_OK(shoal_world_close(world));
}
