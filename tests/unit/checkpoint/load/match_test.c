/* SPDX-License-Identifier: MIT */
/* Names of lists against names of checkpoints: both ways of aliases, sections, and what the errors list. */
#include "checkpoint/load/match.h"

#include <stdio.h>
#include <string.h>

#include "harness/test.h"

#define MAX_TENSORS 32

/* An index made by hand. */
struct names {
    struct checkpoint_index index;
    struct index_tensor tensors[MAX_TENSORS];
    const char *aliases[MAX_TENSORS][2];
    struct index_value values[4];
};

/* An index without tensors, and a list without items, which the caller frees. */
static shoal_items *begin(struct names *names)
{
    shoal_items *items = NULL;
    memset(names, 0, sizeof *names);
    names->index.tensors = names->tensors;
    names->index.values = names->values;
    (void)CHECK_OK(shoal_items_create(&items));
    return items;
}

/* A tensor f32 [2, 3]. */
static struct index_tensor *add_name(struct names *names, const char *section, const char *name,
                                     const char *alias)
{
    size_t number = names->index.n_tensors++;
    struct index_tensor *tensor = &names->tensors[number];
    *tensor = (struct index_tensor){
        .section = section, .name = name, .dtype = SHOAL_F32, .n_dims = 2, .shape = {2, 3}};
    names->aliases[number][0] = alias;
    tensor->aliases = names->aliases[number];
    tensor->n_aliases = alias != NULL;
    return tensor;
}

static float data[6];

static void add_item(shoal_items *items, const char *section, const char *name, bool may_be_missing)
{
    const int64_t shape[] = {2, 3};
    shoal_item item = SHOAL_ITEM_INIT;
    item.section = section;
    item.name = name;
    item.dtype = SHOAL_F32;
    item.n_dims = 2;
    item.shape = shape;
    item.dim = -1;
    item.data = data;
    item.may_be_missing = may_be_missing;
    CHECK_OK(shoal_items_add(items, &item));
}

/* Which tensor the item of that number gets; NULL: none. */
static const char *want_of(const struct load_match *match, size_t item)
{
    for (size_t i = 0; i < match->n_wants; i++) {
        if (match->wants[i].item == item) {
            return match->wants[i].tensor->name;
        }
    }
    return "";
}

TEST(names_and_aliases_match_both_ways)
{
    struct names names;
    struct load_match match;
    struct load_rules rules = {0};
    shoal_items *items = begin(&names);
    add_item(items, "model", "a", false);
    add_item(items, "model", "tied", false);
    CHECK_OK(shoal_items_add_alias(items, "model", "tied", "other"));
    add_item(items, "model", "x", false);
    add_item(items, "model", "y", false);
    add_item(items, "optimizer", "a", false);
    add_item(items, "model", "both", false);
    CHECK_OK(shoal_items_add_alias(items, "model", "both", "second"));
    add_name(&names, "optimizer", "a", NULL);
    add_name(&names, "model", "a", NULL);
    add_name(&names, "model", "other", NULL); /* an alias of the list */
    add_name(&names, "model", "x", "y");      /* tied there, not here */
    add_name(&names, "model", "second", NULL);
    add_name(&names, "model", "both", NULL); /* tied here, not there: its own name wins */
    CHECK_STATUS(load_match_make(items, &names.index, &rules, &match), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("1 not expected: second"); /* it would be lost */
    rules.allows_unexpected = true;
    REQUIRE_OK(load_match_make(items, &names.index, &rules, &match));
    CHECK_INT(match.n_unexpected, 1);
    load_match_free(&match);
    rules = (struct load_rules){.is_foreign = true}; /* others save tied ones twice */
    REQUIRE_OK(load_match_make(items, &names.index, &rules, &match));
    CHECK_INT(match.n_wants, 6);
    CHECK_INT(match.n_missing, 0);
    CHECK_INT(match.n_unexpected, 0);
    CHECK_STRING(want_of(&match, 0), "a");
    CHECK_STRING(match.wants[0].tensor->section, "model");
    CHECK_STRING(want_of(&match, 1), "other");
    CHECK_STRING(want_of(&match, 2), "x");
    CHECK_STRING(want_of(&match, 3), "x");
    CHECK_STRING(match.wants[4].tensor->section, "optimizer");
    CHECK_STRING(want_of(&match, 5), "both");
    load_match_free(&match);
    shoal_items_free(items);
}

TEST(what_is_missing_and_unexpected_is_listed_or_allowed)
{
    struct names names;
    struct load_match match;
    struct load_rules rules = {0};
    char text[16][16];
    shoal_items *items = begin(&names);
    for (int i = 0; i < 10; i++) {
        (void)snprintf(text[i], sizeof text[i], "weight.%d", i);
        add_item(items, "model", text[i], i == 9);
    }
    add_name(&names, "model", "weigth.0", NULL);
    add_name(&names, "extra", "thing", NULL);
    CHECK_STATUS(load_match_make(items, &names.index, &rules, &match), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("9 missing in the checkpoint: weight.0, weight.1, ");
    CHECK_ERROR_TEXT("weight.7, ...; 2 not expected: weigth.0, extra/thing");
    CHECK_ERROR_TEXT("(for weight.0 the nearest is \"weigth.0\"");
    CHECK(strstr(shoal_error_text(), "weight.8") == NULL);
    rules.allows_missing = true;
    CHECK_STATUS(load_match_make(items, &names.index, &rules, &match), SHOAL_ERR_INVALID);
    CHECK(strstr(shoal_error_text(), "missing") == NULL);
    rules.allows_unexpected = true;
    REQUIRE_OK(load_match_make(items, &names.index, &rules, &match));
    CHECK_INT(match.n_wants, 0);
    CHECK_INT(match.n_missing, 10);
    CHECK_INT(match.n_unexpected, 2);
    load_match_free(&match);
    shoal_items_free(items);
}

TEST(long_names_leave_room_for_all_lists)
{
    struct names names;
    struct load_match match;
    const struct load_rules rules = {0};
    char text[20][120];
    shoal_items *items = begin(&names);
    for (int i = 0; i < 20; i++) {
        (void)snprintf(text[i], sizeof text[i], "%0*d.a.name.as.long.as.some.are", 60, i);
        if (i < 10) {
            add_item(items, "model", text[i], false);
        } else {
            add_name(&names, "model", text[i], NULL);
        }
    }
    CHECK_STATUS(load_match_make(items, &names.index, &rules, &match), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("10 missing in the checkpoint: 000");
    CHECK_ERROR_TEXT("; 10 not expected: 000");
    shoal_items_free(items);
}

/* One "..." for both: those behind the eighth, and those of the eight that do not fit. */
TEST(a_list_ends_in_one_ellipsis)
{
    struct names names;
    struct load_match match;
    const struct load_rules rules = {0};
    char text[10][80];
    shoal_items *items = begin(&names);
    for (int i = 0; i < 10; i++) {
        (void)snprintf(text[i], sizeof text[i], "transformer.h.%d.attention.projection.weight", i);
        add_item(items, "model", text[i], false);
        add_name(&names, "model", text[i], NULL)->shape[1] = 4;
    }
    CHECK_STATUS(load_match_make(items, &names.index, &rules, &match), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("10 of another shape: transformer.h.0.");
    CHECK_ERROR_TEXT(" there), ...");
    CHECK(!strstr(shoal_error_text(), "..., ..."));
    shoal_items_free(items);
}

TEST(shapes_and_dtypes)
{
    struct names names;
    struct load_match match;
    struct load_rules rules = {0};
    shoal_items *items = begin(&names);
    add_item(items, "model", "a", false);
    add_item(items, "model", "b", false);
    struct index_tensor *a = add_name(&names, "model", "a", NULL);
    struct index_tensor *b = add_name(&names, "model", "b", NULL);
    a->shape[1] = 4;
    b->dtype = SHOAL_BF16;
    CHECK_STATUS(load_match_make(items, &names.index, &rules, &match), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT(
        "1 of another shape: a ([2, 3] here, [2, 4] there); 1 of another dtype: b (f32 here, bf16 there)");
    a->n_dims = 1;
    CHECK_STATUS(load_match_make(items, &names.index, &rules, &match), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("a ([2, 3] here, [2] there)");
    a->n_dims = 2;
    a->shape[1] = 3;
    rules.casts = true;
    REQUIRE_OK(load_match_make(items, &names.index, &rules, &match));
    load_match_free(&match);
    b->dtype = SHOAL_I32;
    CHECK_STATUS(load_match_make(items, &names.index, &rules, &match), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("b (f32 here, i32 there)");
    shoal_items_free(items);
}

TEST(a_section_alone)
{
    struct names names;
    struct load_match match;
    const struct load_rules rules = {.section = "optimizer"};
    int64_t epoch = 0;
    shoal_items *items = begin(&names);
    add_item(items, "model", "a", false);
    add_item(items, "optimizer", "m", false);
    CHECK_OK(shoal_items_add_integer(items, "epoch", &epoch));
    add_name(&names, "optimizer", "m", NULL);
    add_name(&names, "model", "b", NULL);
    REQUIRE_OK(load_match_make(items, &names.index, &rules, &match));
    CHECK_INT(match.n_wants, 1);
    CHECK_INT(match.n_values, 0);
    CHECK_INT(match.n_missing, 0);
    CHECK_INT(match.n_unexpected, 0);
    load_match_free(&match);
    shoal_items_free(items);
}

TEST(checkpoints_of_other_tools_have_only_the_model)
{
    struct names names;
    struct load_match match;
    const struct load_rules rules = {.is_foreign = true};
    int64_t epoch = 0;
    shoal_items *items = begin(&names);
    add_item(items, "model", "a", false);
    add_item(items, "optimizer", "m", false);
    CHECK_OK(shoal_items_add_integer(items, "epoch", &epoch));
    add_name(&names, "model", "a", NULL);
    REQUIRE_OK(load_match_make(items, &names.index, &rules, &match));
    CHECK_INT(match.n_wants, 1);
    CHECK_INT(match.n_missing, 2);
    load_match_free(&match);
    names.tensors[0].name = "b";
    CHECK_STATUS(load_match_make(items, &names.index, &rules, &match), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("1 missing in the checkpoint: a; 1 not expected: b");
    shoal_items_free(items);
}

TEST(numbers_and_strings)
{
    struct names names;
    struct load_match match;
    struct load_rules rules = {0};
    int64_t epoch = 1;
    double loss = 2;
    char run[4] = "?";
    shoal_items *items = begin(&names);
    CHECK_OK(shoal_items_add_string(items, "run", run, sizeof run));
    CHECK_OK(shoal_items_add_integer(items, "epoch", &epoch));
    CHECK_OK(shoal_items_add_real(items, "loss", &loss));
    names.values[0] = (struct index_value){.name = "loss", .kind = ITEM_REAL, .real = 0.5};
    names.values[1] = (struct index_value){.name = "epoch", .kind = ITEM_INTEGER, .integer = 7};
    names.values[2] = (struct index_value){.name = "run", .kind = ITEM_STRING, .string = "abc"};
    names.values[3] = (struct index_value){.name = "more", .kind = ITEM_STRING, .string = "abc"};
    names.index.n_values = 3;
    REQUIRE_OK(load_match_make(items, &names.index, &rules, &match));
    CHECK_INT(epoch, 1);
    load_match_set_values(&match);
    CHECK_INT(epoch, 7);
    CHECK_DOUBLE(loss, 0.5);
    CHECK_STRING(run, "abc");
    load_match_free(&match);

    names.index.n_values = 4;
    CHECK_STATUS(load_match_make(items, &names.index, &rules, &match), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("1 not expected: more");
    rules.allows_unexpected = true;
    REQUIRE_OK(load_match_make(items, &names.index, &rules, &match));
    CHECK_INT(match.n_unexpected, 0);
    load_match_free(&match);
    names.values[2].string = "abcd";
    names.values[1].kind = ITEM_REAL;
    CHECK_STATUS(load_match_make(items, &names.index, &rules, &match), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT(
        "2 of another dtype: run (a string of 4 bytes, room for 3), epoch (an integer here, a real there)");
    names.index.n_values = 1;
    CHECK_STATUS(load_match_make(items, &names.index, &rules, &match), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("2 missing in the checkpoint: run, epoch");
    shoal_items_free(items);
}

struct sweep {
    shoal_items *items;
    struct names *names;
};

static shoal_status match_once(void *context)
{
    struct sweep *sweep = context;
    const struct load_rules rules = {0};
    struct load_match match;
    shoal_status status = load_match_make(sweep->items, &sweep->names->index, &rules, &match);
    if (status == SHOAL_OK) {
        load_match_free(&match);
    }
    return status;
}

TEST(allocations_that_fail)
{
    struct names names;
    shoal_items *items = begin(&names);
    add_item(items, "model", "a", false);
    add_name(&names, "model", "a", NULL);
    struct sweep sweep = {.items = items, .names = &names};
    CHECK(test_sweep_allocations(match_once, &sweep) > 0);
    shoal_items_free(items);
}
