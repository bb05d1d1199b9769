/* SPDX-License-Identifier: MIT */
/* Lists of items: what the program adds itself, names and aliases, numbers and strings, functions, every error. */
#include "checkpoint/items/items.h"

#include <stdio.h>
#include <string.h>

#include "fixtures/scoped.h"
#include "harness/test.h"
#include "shoal/ops.h"

static shoal_items *make_items(void)
{
    shoal_items *items = NULL;
    CHECK_OK(shoal_items_create(&items));
    return items;
}

static const int64_t shape_2x3[] = {2, 3};

/* Rows 1 and 2 of a 4 x 3 tensor. */
static shoal_item make_rows(const char *name, float *data)
{
    static const int64_t shape[] = {4, 3};
    shoal_item item = SHOAL_ITEM_INIT;
    item.name = name;
    item.dtype = SHOAL_F32;
    item.n_dims = 2;
    item.shape = shape;
    item.dim = 0;
    item.offset = 1;
    item.length = 2;
    item.data = data;
    return item;
}

/* What was added --------------------------------------------------------------------------------------- */

TEST(an_empty_list)
{
    shoal_items *items = make_items();
    CHECK_INT(shoal_items_count(items), 0);
    CHECK_INT(shoal_items_find(items, NULL, "a"), -1);
    CHECK_INT(items_n_values(items), 0);
    CHECK_OK(items_loaded(items));
    shoal_items_free(items);
    shoal_items_free(NULL);
    CHECK_INT(shoal_items_count(NULL), 0);
    CHECK_INT(shoal_items_find(NULL, NULL, "a"), -1);
    CHECK_INT(shoal_items_find_tensor(NULL, NULL), -1);
}

TEST(memory_of_the_program)
{
    shoal_items *items = make_items();
    float data[6] = {1, 2, 3, 4, 5, 6};
    shoal_item item = make_rows("rows", data);
    struct item_info info;
    struct item_part part;
    struct region region;
    item.may_be_missing = true;
    CHECK_OK(shoal_items_add(items, &item));
    CHECK_INT(shoal_items_count(items), 1);
    CHECK_INT(shoal_items_find(items, "model", "rows"), 0);
    items_info(items, 0, &info);
    CHECK_STRING(info.section, "model");
    CHECK_STRING(info.name, "rows");
    CHECK_INT(info.dtype, SHOAL_F32);
    CHECK_INT(info.n_dims, 2);
    CHECK_INT(info.shape[0], 4);
    CHECK_INT(info.shape[1], 3);
    CHECK_INT(info.n_aliases, 0);
    CHECK(info.may_be_missing);
    CHECK_OK(items_region(items, 0, &region));
    CHECK_OK(items_part(items, 0, 0.0, &part));
    CHECK(region_equals(&region, &part.region, 2));
    CHECK_INT(region.begin[0], 1);
    CHECK_INT(region.length[0], 2);
    CHECK_INT(region.begin[1], 0);
    CHECK_INT(region.length[1], 3);
    CHECK(part.data == data);
    CHECK_INT(part.strides[0], 3);
    CHECK_INT(part.strides[1], 1);
    CHECK_OK(items_mutable_part(items, 0, 0.0, &part));
    CHECK(part.data == data);

    shoal_item got = SHOAL_ITEM_INIT;
    CHECK_OK(shoal_items_get(items, 0, &got));
    CHECK_INT(got.struct_size, sizeof(got));
    CHECK_STRING(got.name, "rows");
    CHECK_INT(got.dim, 0);
    CHECK_INT(got.offset, 1);
    CHECK_INT(got.length, 2);
    CHECK(got.data == data && !got.tensor && got.may_be_missing);
    shoal_items_free(items);
}

SCOPED_TEST(tensors_count_writes)
{
    shoal_items *items = make_items();
    shoal_tensor *tensor = shoal_zeros(shape_2x3, 2, SHOAL_F32);
    struct item_part part;
    CHECK_OK(shoal_items_add_tensor(items, "own", "t", tensor));
    CHECK_INT(shoal_items_find(items, "own", "t"), 0);
    CHECK_INT(shoal_items_find(items, NULL, "t"), -1);
    CHECK_INT(shoal_items_find_tensor(items, tensor), 0);
    uint64_t version = shoal_tensor_version(tensor);
    CHECK_OK(items_part(items, 0, 0.0, &part));
    CHECK(part.data == shoal_data(tensor));
    CHECK(shoal_tensor_version(tensor) == version);
    CHECK_OK(items_mutable_part(items, 0, 0.0, &part));
    CHECK(shoal_tensor_version(tensor) == version + 1);
    shoal_item got = SHOAL_ITEM_INIT;
    CHECK_OK(shoal_items_get(items, 0, &got));
    CHECK(got.tensor == tensor && !got.data && got.dim == -1 && got.offset == 0 && got.length == 0);
    shoal_items_free(items);
}

/* The list keeps the tensor. */
SCOPED_TEST(tensors_are_referenced)
{
    shoal_items *items = make_items();
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = shoal_full(shape_2x3, 2, 7.0, SHOAL_F32);
    struct item_part part;
    CHECK_OK(shoal_items_add_tensor(items, NULL, "t", tensor));
    CHECK_OK(shoal_scope_end());
    CHECK_OK(items_part(items, 0, 0.0, &part));
    CHECK_DOUBLE((double)((const float *)part.data)[5], 7.0);
    shoal_items_free(items);
}

SCOPED_TEST(strides_of_views)
{
    shoal_items *items = make_items();
    int64_t numbers[24];
    for (int i = 0; i < 24; i++) {
        numbers[i] = i;
    }
    shoal_tensor *tensor = shoal_from_memory(numbers, (const int64_t[]){24}, 1, SHOAL_I64, NULL, NULL, NULL);
    shoal_tensor *view = shoal_transpose(shoal_view(tensor, (const int64_t[]){4, 6}, 2), 0, 1);
    struct item_part part;
    view = shoal_narrow(view, 0, 2, 3);
    CHECK_OK(shoal_items_add_tensor(items, NULL, "t", view));
    CHECK_OK(items_part(items, 0, 0.0, &part));
    REQUIRE(part.data);
    CHECK_INT(*(const int64_t *)part.data, 2);
    CHECK_INT(part.strides[0], 1);
    CHECK_INT(part.strides[1], 6);
    CHECK_OK(items_mutable_part(items, 0, 0.0, &part));

    /* Elements that overlap can be read only. */
    shoal_tensor *row = shoal_narrow(tensor, 0, 0, 1);
    CHECK_OK(shoal_items_add_tensor(items, NULL, "wide", shoal_expand(row, (const int64_t[]){5}, 1)));
    CHECK_OK(items_part(items, 1, 0.0, &part));
    CHECK_INT(part.strides[0], 0);
    CHECK_STATUS(items_mutable_part(items, 1, 0.0, &part), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("item model 'wide': elements of its tensor overlap");
    shoal_items_free(items);
}

SCOPED_TEST(meta_and_released_tensors)
{
    shoal_items *items = make_items();
    shoal_tensor *meta = shoal_empty_on(shape_2x3, 2, SHOAL_F32, SHOAL_META);
    shoal_tensor *released = shoal_zeros(shape_2x3, 2, SHOAL_F32);
    struct item_part part = {0};
    struct region region;
    CHECK_OK(shoal_items_add_tensor(items, NULL, "meta", meta));
    CHECK_OK(shoal_items_add_tensor(items, NULL, "released", released));
    CHECK_OK(shoal_items_add_tensor(items, NULL, "nothing",
                                    shoal_empty_on((const int64_t[]){0, 3}, 2, SHOAL_F32, SHOAL_META)));
    CHECK_OK(shoal_tensor_release_data(released));
    CHECK_OK(items_region(items, 0, &region));
    CHECK_STATUS(items_part(items, 0, 0.0, &part), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("item model 'meta': it is on the meta device: there is no memory with values");
    CHECK_STATUS(items_mutable_part(items, 0, 0.0, &part), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("item model 'meta': it is on the meta device: there is no memory to load into");
    CHECK(items_part(items, 1, 0.0, &part) != SHOAL_OK);
    CHECK_ERROR_TEXT("item model 'released'");
    CHECK(!part.data);
    CHECK_OK(items_part(items, 2, 0.0, &part));
    CHECK(!part.data);
    CHECK_OK(items_mutable_part(items, 2, 0.0, &part));
    shoal_items_free(items);
}

TEST(parts_without_elements)
{
    shoal_items *items = make_items();
    shoal_item item = make_rows("none", NULL);
    struct item_part part;
    item.offset = 4;
    item.length = 0;
    CHECK_OK(shoal_items_add(items, &item));
    CHECK_OK(items_part(items, 0, 0.0, &part));
    CHECK(!part.data);
    CHECK_INT(part.region.begin[0], 4);
    CHECK_INT(region_count(&part.region, 2), 0);
    CHECK_OK(items_mutable_part(items, 0, 0.0, &part));
    shoal_items_free(items);
}

TEST(single_numbers_have_no_dimensions)
{
    shoal_items *items = make_items();
    double value = 3.5;
    const shoal_item item = {.struct_size = sizeof(item),
                             .section = SHOAL_SECTION_OPTIMIZER,
                             .name = "t",
                             .dtype = SHOAL_F64,
                             .dim = -1,
                             .data = &value};
    struct item_part part;
    CHECK_OK(shoal_items_add(items, &item));
    CHECK_OK(items_part(items, 0, 0.0, &part));
    CHECK(part.data == &value);
    CHECK_INT(region_count(&part.region, 0), 1);
    shoal_items_free(items);
}

/* Names ------------------------------------------------------------------------------------------------ */

TEST(sections_keep_names_apart)
{
    shoal_items *items = make_items();
    float data[6];
    int64_t number = 1;
    shoal_item item = make_rows("a", data);
    CHECK_OK(shoal_items_add(items, &item));
    item.section = SHOAL_SECTION_OPTIMIZER;
    CHECK_OK(shoal_items_add(items, &item));
    item.section = "my-own_2";
    CHECK_OK(shoal_items_add(items, &item));
    CHECK_OK(shoal_items_add_integer(items, "a", &number));
    CHECK_INT(shoal_items_find(items, NULL, "a"), 0);
    CHECK_INT(shoal_items_find(items, "optimizer", "a"), 1);
    CHECK_INT(shoal_items_find(items, "my-own_2", "a"), 2);
    CHECK_INT(shoal_items_find(items, "other", "a"), -1);
    CHECK_INT(shoal_items_find(items, "", "a"), -1);
    CHECK_STATUS(shoal_items_add(items, &item), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("items_add: name: there is an item my-own_2 'a' already");
    CHECK_INT(shoal_items_count(items), 3);
    shoal_items_free(items);
}

TEST(aliases_find_their_item)
{
    shoal_items *items = make_items();
    float data[6];
    struct item_info info;
    shoal_item item = make_rows("first", data);
    CHECK_OK(shoal_items_add(items, &item));
    item.name = "second";
    CHECK_OK(shoal_items_add(items, &item));
    CHECK_OK(shoal_items_add_alias(items, NULL, "second", "also"));
    CHECK_OK(shoal_items_add_alias(items, NULL, "also", "and"));
    CHECK_INT(shoal_items_count(items), 2);
    CHECK_INT(shoal_items_find(items, NULL, "also"), 1);
    CHECK_INT(shoal_items_find(items, NULL, "and"), 1);
    items_info(items, 1, &info);
    REQUIRE(info.n_aliases == 2);
    CHECK_STRING(info.aliases[0], "also");
    CHECK_STRING(info.aliases[1], "and");

    CHECK_STATUS(shoal_items_add_alias(items, NULL, "none", "x"), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("items_add_alias: name: there is no item model 'none'");
    CHECK_STATUS(shoal_items_add_alias(items, "other", "first", "x"), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("there is no item other 'first'");
    CHECK_STATUS(shoal_items_add_alias(items, NULL, "first", "and"), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("items_add_alias: alias: there is an item model 'and' already");
    CHECK_STATUS(shoal_items_add_alias(items, NULL, "first", "first"), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_items_add_alias(items, NULL, "first", NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("items_add_alias: alias is NULL");
    CHECK_STATUS(shoal_items_add_alias(items, NULL, NULL, "x"), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("items_add_alias: name is NULL");
    CHECK_STATUS(shoal_items_add_alias(items, "a b", "first", "x"), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_items_add_alias(NULL, NULL, "first", "x"), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("items_add_alias: items is NULL");
    item.name = "also";
    CHECK_STATUS(shoal_items_add(items, &item), SHOAL_ERR_INVALID);
    shoal_items_free(items);
}

TEST(many_names)
{
    enum {
        N = 3000
    };
    shoal_items *items = make_items();
    float data[6];
    char name[32];
    char alias[32];
    for (int i = 0; i < N; i++) {
        (void)snprintf(name, sizeof(name), "layers.%d.weight", i);
        (void)snprintf(alias, sizeof(alias), "alias.%d", i);
        shoal_item item = make_rows(name, data);
        item.section = i % 2 == 0 ? "even" : "odd";
        CHECK_OK(shoal_items_add(items, &item));
        CHECK_OK(shoal_items_add_alias(items, item.section, name, alias));
    }
    for (int i = 0; i < N && !test_has_failed(); i++) {
        (void)snprintf(name, sizeof(name), "layers.%d.weight", i);
        (void)snprintf(alias, sizeof(alias), "alias.%d", i);
        CHECK_INT(shoal_items_find(items, i % 2 == 0 ? "even" : "odd", name), i);
        CHECK_INT(shoal_items_find(items, i % 2 == 0 ? "even" : "odd", alias), i);
        CHECK_INT(shoal_items_find(items, i % 2 == 0 ? "odd" : "even", name), -1);
    }
    shoal_items_free(items);
}

/* Numbers, strings, functions ---------------------------------------------------------------------------- */

TEST(numbers_and_strings)
{
    shoal_items *items = make_items();
    int64_t integer = 3;
    double real = 0.5;
    char string[16] = "words";
    CHECK_OK(shoal_items_add_integer(items, "i", &integer));
    CHECK_OK(shoal_items_add_real(items, "r", &real));
    CHECK_OK(shoal_items_add_string(items, "s", string, sizeof(string)));
    CHECK_INT(shoal_items_count(items), 0);
    REQUIRE(items_n_values(items) == 3);
    CHECK_INT(items_value(items, 0)->kind, ITEM_INTEGER);
    CHECK(items_value(items, 0)->value == &integer);
    CHECK_INT(items_value(items, 1)->kind, ITEM_REAL);
    CHECK(items_value(items, 1)->value == &real);
    CHECK_INT(items_value(items, 2)->kind, ITEM_STRING);
    CHECK_STRING(items_value(items, 2)->name, "s");
    CHECK_INT(items_value(items, 2)->bytes, 16);
    CHECK_STATUS(shoal_items_add_real(items, "i", &real), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("items_add_real: name: there is an item 'i' already");
    CHECK_STATUS(shoal_items_add_integer(items, "j", NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("items_add_integer: 'j': value is NULL");
    CHECK_STATUS(shoal_items_add_integer(items, NULL, &integer), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_items_add_integer(items, "", &integer), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("items_add_integer: name is empty");
    CHECK_STATUS(shoal_items_add_integer(NULL, "j", &integer), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_items_add_string(items, "t", string, 0), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("items_add_string: bytes is 0");
    CHECK_STATUS(shoal_items_add_string(items, "t", NULL, 4), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_items_add_string(items, "\xff", string, 4), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("not UTF-8");
    CHECK_INT(items_n_values(items), 3);
    shoal_items_free(items);
}

struct counter {
    int n_calls;
    int n_destroyed;
    int order;
    shoal_status status;
};
static int calls_so_far;

static shoal_status count_call(void *context)
{
    struct counter *counter = context;
    counter->n_calls++;
    counter->order = calls_so_far++;
    return counter->status;
}

static void count_destroy(void *context)
{
    ((struct counter *)context)->n_destroyed++;
}

/* Whoever has an empty part learns of a load as the others do: a backward pass that it spoils fails on every rank. */
TEST(empty_parts_count_as_changed)
{
    struct item_part part;
    REQUIRE_OK(shoal_scope_begin());
    shoal_items *items = make_items();
    shoal_tensor *empty = shoal_empty((int64_t[]){0, 3}, 2, SHOAL_F32);
    REQUIRE(empty);
    CHECK_OK(shoal_items_add_tensor(items, NULL, "empty", empty));
    uint64_t version = shoal_tensor_version(empty);
    CHECK_OK(items_part(items, 0, 0.0, &part));
    CHECK_INT(shoal_tensor_version(empty), version);
    CHECK_OK(items_mutable_part(items, 0, 0.0, &part));
    CHECK(shoal_tensor_version(empty) > version);
    shoal_items_free(items);
    CHECK_OK(shoal_scope_end());
}

TEST(functions_after_a_load)
{
    shoal_items *items = make_items();
    struct counter counters[3] = {{0}, {0}, {0}};
    calls_so_far = 0;
    for (int i = 0; i < 3; i++) {
        CHECK_OK(shoal_items_on_loaded(items, count_call, &counters[i], i == 1 ? NULL : count_destroy));
    }
    CHECK_OK(items_loaded(items));
    CHECK_INT(counters[0].order, 0);
    CHECK_INT(counters[2].order, 2);
    /* The first refusal is the error; what comes after it must not keep halves of two states. */
    counters[1].status = SHOAL_ERR_STATE;
    counters[2].status = SHOAL_ERR_INVALID;
    CHECK_STATUS(items_loaded(items), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("function 1 of items_on_loaded");
    CHECK_INT(counters[1].n_calls, 2);
    CHECK_INT(counters[2].n_calls, 2);
    CHECK_STATUS(shoal_items_on_loaded(items, NULL, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_items_on_loaded(NULL, count_call, NULL, NULL), SHOAL_ERR_INVALID);
    shoal_items_free(items);
    CHECK_INT(counters[0].n_destroyed, 1);
    CHECK_INT(counters[1].n_destroyed, 0);
    CHECK_INT(counters[2].n_destroyed, 1);
}

/* Putting lists together --------------------------------------------------------------------------------- */

TEST(one_list_behind_another)
{
    shoal_items *items = make_items();
    shoal_items *more = make_items();
    struct counter counter = {0};
    float data[6];
    int64_t integers[2] = {0, 0};
    shoal_item item = make_rows("a", data);
    struct item_info info;
    CHECK_OK(shoal_items_add(items, &item));
    CHECK_OK(shoal_items_add_integer(items, "i", &integers[0]));
    item.name = "b";
    CHECK_OK(shoal_items_add(more, &item));
    CHECK_OK(shoal_items_add_alias(more, NULL, "b", "c"));
    CHECK_OK(shoal_items_add_integer(more, "j", &integers[1]));
    CHECK_OK(shoal_items_on_loaded(more, count_call, &counter, count_destroy));

    CHECK_OK(shoal_items_append(items, more));
    CHECK_INT(shoal_items_count(more), 0);
    CHECK_INT(shoal_items_find(more, NULL, "b"), -1);
    CHECK_INT(items_n_values(more), 0);
    CHECK_INT(shoal_items_find(items, NULL, "b"), 1);
    CHECK_INT(shoal_items_find(items, NULL, "c"), 1);
    items_info(items, 1, &info);
    CHECK_INT(info.n_aliases, 1);
    CHECK_STRING(items_value(items, 1)->name, "j");

    /* The alias, a number: what both have changes neither. */
    item.name = "c";
    CHECK_OK(shoal_items_add(more, &item));
    CHECK_STATUS(shoal_items_append(items, more), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("items_append: name: there is an item model 'c' already");
    CHECK_INT(shoal_items_count(more), 1);
    shoal_items_free(more);
    more = make_items();
    CHECK_OK(shoal_items_add_integer(more, "j", &integers[1]));
    CHECK_STATUS(shoal_items_append(items, more), SHOAL_ERR_INVALID);
    CHECK_INT(items_n_values(items), 2);
    CHECK_STATUS(shoal_items_append(items, items), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_items_append(NULL, items), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_items_append(items, NULL), SHOAL_ERR_INVALID);
    shoal_items_free(more);
    CHECK_INT(counter.n_destroyed, 0);
    CHECK_OK(items_loaded(items));
    CHECK_INT(counter.n_calls, 1);
    shoal_items_free(items);
    CHECK_INT(counter.n_destroyed, 1);
}

/* What is refused ---------------------------------------------------------------------------------------- */

TEST(wrong_names_and_sections)
{
    static const struct {
        const char *section;
        const char *name;
        const char *text;
    } rows[] = {{NULL, NULL, "items_add: name is NULL"},
                {NULL, "", "items_add: name is empty"},
                {NULL, "\xc3(", "is not UTF-8 at byte 0"},
                {NULL, "__metadata__", "is reserved for the metadata"},
                {"", "a", "section: '' is not 1 to 63 letters"},
                {"a/b", "a", "section: 'a/b' is not 1 to 63"},
                {"..", "a", "section"},
                {"0123456789012345678901234567890123456789012345678901234567890123", "a", "section"}};
    shoal_items *items = make_items();
    float data[6];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        shoal_item item = make_rows(rows[i].name, data);
        item.section = rows[i].section;
        CHECK_STATUS(shoal_items_add(items, &item), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(rows[i].text);
    }
    CHECK_INT(shoal_items_count(items), 0);
    shoal_items_free(items);
}

static void check_refused(shoal_items *items, const shoal_item *item, shoal_status status, const char *text)
{
    CHECK_STATUS(shoal_items_add(items, item), status);
    CHECK_ERROR_TEXT(text);
    CHECK_INT(shoal_items_count(items), 0);
}

TEST(wrong_parts)
{
    shoal_items *items = make_items();
    float data[6];
    const shoal_item right = make_rows("a", data);
#define REFUSE(status, text, ...)                  \
    do {                                           \
        shoal_item item = right;                   \
        __VA_ARGS__;                               \
        check_refused(items, &item, status, text); \
    } while (0)
    REFUSE(SHOAL_ERR_INVALID, "items_add: item model 'a': dtype", item.dtype = 0);
    REFUSE(SHOAL_ERR_UNSUPPORTED, "checkpoints do not support c128", item.dtype = SHOAL_C128);
    REFUSE(SHOAL_ERR_INVALID, "shape is NULL", item.shape = NULL);
    REFUSE(SHOAL_ERR_INVALID, "9", item.n_dims = 9);
    REFUSE(SHOAL_ERR_INVALID, "-1", item.n_dims = -1);
    REFUSE(SHOAL_ERR_INVALID, "", item.shape = ((const int64_t[]){4, -3}));
    REFUSE(SHOAL_ERR_INVALID, "dim: 2 is not within -1..1", item.dim = 2);
    REFUSE(SHOAL_ERR_INVALID, "dim: -2 is not within -1..1", item.dim = -2);
    REFUSE(SHOAL_ERR_INVALID, "dim: 0 is not within -1..-1", item.n_dims = 0);
    REFUSE(SHOAL_ERR_INVALID, "offset: -1 is not within 0..4", item.offset = -1);
    REFUSE(SHOAL_ERR_INVALID, "offset: 5 is not within 0..4", item.offset = 5);
    REFUSE(SHOAL_ERR_INVALID, "length: 4 is not within 0..3, what is left from 1", item.length = 4);
    REFUSE(SHOAL_ERR_INVALID, "length: -1 is not within", item.length = -1);
    REFUSE(SHOAL_ERR_INVALID, "offset: 1 is not within 0..0", item.dim = -1);
    REFUSE(SHOAL_ERR_INVALID, "tensor and data are both NULL", item.data = NULL);
    REFUSE(SHOAL_ERR_INVALID, "is not aligned to 4 bytes", item.data = (char *)data + 1);
    REFUSE(SHOAL_ERR_INVALID, "items_add: item: struct_size", item.struct_size = 4);
#undef REFUSE
    CHECK_STATUS(shoal_items_add(items, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_items_add(NULL, &right), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("items_add: items is NULL");
    CHECK_STATUS(shoal_items_create(NULL), SHOAL_ERR_INVALID);
    shoal_items_free(items);
}

SCOPED_TEST(wrong_tensors)
{
    shoal_items *items = make_items();
    float data[6];
    shoal_item item = make_rows("a", data);
    item.tensor = shoal_zeros(shape_2x3, 2, SHOAL_F32);
    check_refused(items, &item, SHOAL_ERR_INVALID, "tensor and data are both given");
    item.data = NULL;
    item.dtype = SHOAL_F16;
    check_refused(items, &item, SHOAL_ERR_INVALID, "tensor: its dtype is f32 instead of f16");
    item.dtype = SHOAL_F32;
    item.length = 3;
    check_refused(items, &item, SHOAL_ERR_INVALID, "tensor: its shape is [2, 3] instead of [3, 3]");
    CHECK_STATUS(shoal_items_add_tensor(items, NULL, "a", NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("items_add_tensor: tensor is NULL");
    CHECK_STATUS(shoal_items_add_tensor(NULL, NULL, "a", item.tensor), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_items_add_tensor(items, NULL, NULL, item.tensor), SHOAL_ERR_INVALID);
    shoal_items_free(items);
}

TEST(wrong_questions)
{
    shoal_items *items = make_items();
    float data[6];
    const shoal_item item = make_rows("a", data);
    shoal_item got = SHOAL_ITEM_INIT;
    CHECK_OK(shoal_items_add(items, &item));
    CHECK_STATUS(shoal_items_get(items, 1, &got), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("items_get: index: 1 is not within the 1 items of the list");
    CHECK_STATUS(shoal_items_get(NULL, 0, &got), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_items_get(items, 0, NULL), SHOAL_ERR_INVALID);
    CHECK(!got.name);
    got.struct_size = 0;
    CHECK_STATUS(shoal_items_get(items, 0, &got), SHOAL_ERR_INVALID);
    CHECK_INT(shoal_items_find(items, NULL, NULL), -1);
    CHECK_INT(shoal_items_find_tensor(items, NULL), -1);
    shoal_items_free(items);
}

/* Memory ------------------------------------------------------------------------------------------------- */

/* What a call that fails has left is what was there. */
static shoal_status add_several(void *context)
{
    shoal_items *items = NULL;
    shoal_items *more = NULL;
    char name[16];
    int64_t integer = 0;
    shoal_status status = shoal_items_create(&items);
    if (status == SHOAL_OK) {
        status = shoal_items_create(&more);
    }
    for (int i = 0; status == SHOAL_OK && i < 20; i++) {
        (void)snprintf(name, sizeof(name), "n%d", i);
        shoal_item item = make_rows(name, context);
        shoal_items *to = i % 3 == 0 ? more : items;
        size_t count = shoal_items_count(to);
        status = shoal_items_add(to, &item);
        CHECK_INT(shoal_items_count(to), count + (status == SHOAL_OK));
        CHECK((shoal_items_find(to, NULL, name) >= 0) == (status == SHOAL_OK));
        if (status == SHOAL_OK) {
            (void)snprintf(name, sizeof(name), "a%d", i);
            status = shoal_items_add_alias(to, NULL, item.name = i % 3 == 0 ? "n0" : "n1", name);
            CHECK((shoal_items_find(to, NULL, name) >= 0) == (status == SHOAL_OK));
        }
        if (status == SHOAL_OK) {
            status = shoal_items_add_integer(to, name, &integer);
        }
        if (status == SHOAL_OK) {
            status = shoal_items_on_loaded(to, count_call, NULL, NULL);
        }
    }
    if (status == SHOAL_OK) {
        size_t count = shoal_items_count(more);
        status = shoal_items_append(items, more);
        CHECK_INT(shoal_items_count(more), status == SHOAL_OK ? 0 : count);
        CHECK_INT(shoal_items_count(items), status == SHOAL_OK ? 20 : 20 - count);
        CHECK((shoal_items_find(items, NULL, "n18") >= 0) == (status == SHOAL_OK));
    }
    shoal_items_free(items);
    shoal_items_free(more);
    return status;
}

TEST(survives_failing_allocations)
{
    float data[6];
    CHECK(test_sweep_allocations(add_several, data) >= 60);
}
