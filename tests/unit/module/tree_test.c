/* SPDX-License-Identifier: MIT */
/* The tree: names, order, paths, ties, cycles, lifetimes, extras. */
#include "unit/module/fixture.h"

/* Making ----------------------------------------------------------------------------------------------- */

static void count_up(void *context)
{
    ++*(int *)context;
}

TEST(a_definition_is_copied_and_destroyed_once)
{
    char type[] = "block";
    int n_destroyed = 0;
    shoal_module *module;
    REQUIRE_OK(shoal_module_create(&(shoal_module_definition){.struct_size = sizeof(shoal_module_definition),
                                                              .type = type,
                                                              .n_inputs = 2,
                                                              .context = &n_destroyed,
                                                              .destroy = count_up},
                                   &module));
    type[0] = 'X';
    CHECK_STRING(shoal_module_type(module), "block");
    CHECK(shoal_module_context(module) == &n_destroyed);
    const shoal_module_definition *definition = shoal_module_get_definition(module);
    CHECK_INT(definition->struct_size, sizeof *definition);
    CHECK_STRING(definition->type, "block");
    CHECK(!definition->forward && definition->context == &n_destroyed && definition->destroy == count_up);
    CHECK_INT(definition->n_inputs, 2);
    CHECK_INT(definition->n_outputs, 1);
    CHECK(shoal_module_ref(module) == module);
    shoal_module_unref(module);
    CHECK_INT(n_destroyed, 0);
    shoal_module_unref(module);
    CHECK_INT(n_destroyed, 1);
    CHECK(!shoal_module_ref(NULL));
    shoal_module_unref(NULL);
}

TEST(bad_definitions)
{
    shoal_module *module = NULL;
    shoal_module_definition definition = {.struct_size = sizeof(definition), .type = "x"};
    CHECK_STATUS(shoal_module_create(NULL, &module), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_module_create(&definition, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("module_out is NULL");
    definition.type = NULL;
    CHECK_STATUS(shoal_module_create(&definition, &module), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("type is NULL");
    definition.type = "";
    CHECK_STATUS(shoal_module_create(&definition, &module), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("type is empty");
    definition.struct_size = 0;
    CHECK_STATUS(shoal_module_create(&definition, &module), SHOAL_ERR_INVALID);
    CHECK(!module);
}

TEST(getters_take_null)
{
    const char *name = "x";
    CHECK_STRING(shoal_module_type(NULL), "");
    CHECK(!shoal_module_context(NULL) && !shoal_module_get_definition(NULL));
    CHECK(!shoal_module_find_parameter(NULL, "a") && !shoal_module_find_buffer(NULL, "a"));
    CHECK(!shoal_module_find_child(NULL, "a") && !shoal_module_find_child(NULL, ""));
    CHECK(!shoal_module_parameter(NULL, "a"));
    CHECK_ERROR_TEXT("module_parameter: module is NULL");
    CHECK(!shoal_module_buffer(NULL, "a"));
    CHECK_ERROR_TEXT("module_buffer: module is NULL");
    CHECK(!shoal_module_child(NULL, "a") && !shoal_module_child(NULL, ""));
    CHECK_ERROR_TEXT("module_child: module is NULL");
    CHECK(!shoal_module_parameter_at(NULL, 0, &name) && !name);
    CHECK(!shoal_module_buffer_at(NULL, 0, NULL) && !shoal_module_child_at(NULL, 0, NULL));
    CHECK(!shoal_module_extra(NULL, &name));
}

/* Slots ------------------------------------------------------------------------------------------------ */

/* A name that is misspelt is an error, not an absent parameter. */
TEST(missing_names_are_errors)
{
    shoal_module *module = make_module("block", NULL, NULL);
    REQUIRE(module);
    REQUIRE_OK(shoal_scope_begin());
    CHECK_OK(shoal_module_add_parameter(module, "bias", make_leaf(1, 1, 0)));
    CHECK(shoal_module_find_parameter(module, "bias") && !shoal_module_find_parameter(module, "bais"));
    CHECK_OK(shoal_scope_error());
    CHECK(!shoal_module_parameter(module, "bais"));
    CHECK_ERROR_TEXT("module_parameter: block has no parameter \"bais\"");
    CHECK_STATUS(shoal_scope_error(), SHOAL_ERR_INVALID);
    CHECK(!shoal_neg(shoal_module_parameter(module, "bais")));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("block has no parameter \"bais\"");

    /* Without a scope the thread has the reason. */
    CHECK(!shoal_module_buffer(module, "bias"));
    CHECK_ERROR_TEXT("module_buffer: block has no buffer \"bias\"");
    CHECK(!shoal_module_child(module, "a.b"));
    CHECK_ERROR_TEXT("module_child: block has no child \"a.b\"");
    CHECK(!shoal_module_child(module, NULL));
    CHECK_ERROR_TEXT("module_child: block has no child \"NULL\"");
    shoal_module_unref(module);
}

static shoal_status visit_nothing(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    return SHOAL_OK;
}

static shoal_status keep_tensor(void *context, const shoal_module_entry *entry, shoal_tensor **tensor)
{
    return SHOAL_OK;
}

/* A call that is given the result of one that failed says why that did. */
TEST(calls_on_a_missing_child_say_why_it_is_missing)
{
#define CHILD shoal_module_child(block, "a.b")
#define CHECK_REASON(call, name)                                               \
    do {                                                                       \
        CHECK_STATUS((call), SHOAL_ERR_INVALID);                               \
        CHECK_STRING(shoal_error_text(), name ": block has no child \"a.b\""); \
    } while (0)
    static const int key = 1;
    size_t count = 1;
    int value = 1;
    shoal_module_hook_definition hook = SHOAL_MODULE_HOOK_DEFINITION_INIT;
    shoal_module *block = make_module("block", NULL, NULL);
    REQUIRE(block);
    CHECK_REASON(shoal_module_walk(CHILD, SHOAL_WALK_MODULES, visit_nothing, NULL), "module_walk");
    CHECK_REASON(shoal_module_count(CHILD, SHOAL_WALK_MODULES, &count), "module_count");
    CHECK_INT(count, 0);
    CHECK_REASON(shoal_module_apply(CHILD, SHOAL_WALK_PARAMETERS, keep_tensor, NULL), "module_apply");
    CHECK_REASON(shoal_module_add_hook(CHILD, &hook, NULL), "module_add_hook");
    CHECK_REASON(shoal_module_set_extra(CHILD, &key, &value, NULL), "module_set_extra");
    CHECK_REASON(shoal_module_add_child(block, "c", CHILD), "module_add_child");
    CHECK_REASON(shoal_module_add_parameter(block, "p", shoal_module_parameter(CHILD, "w")),
                 "module_add_parameter");
    CHECK_REASON(shoal_module_set_buffer(CHILD, "p", NULL), "module_set_buffer");
    CHECK(!shoal_module_child(CHILD, "c"));
    CHECK_STRING(shoal_error_text(), "module_child: block has no child \"a.b\"");

    /* Another call between the two has succeeded. */
    shoal_module *child = CHILD;
    CHECK_OK(shoal_module_count(block, SHOAL_WALK_MODULES, &count));
    CHECK_STATUS(shoal_module_count(child, SHOAL_WALK_MODULES, &count), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(), "module_count: module is NULL");
    shoal_module_unref(block);
#undef CHECK_REASON
#undef CHILD
}

SCOPED_TEST(slots_keep_their_order_and_their_tensors)
{
    static const char *const names[] = {"zeta", "alpha", "w2", "_0", "9"};
    shoal_module *module = make_module("block", NULL, NULL);
    shoal_tensor *tensors[5];
    for (int i = 0; i < 5; i++) {
        tensors[i] = make_leaf(1, i, 0);
        CHECK_OK(shoal_module_add_parameter(module, names[i], tensors[i]));
    }
    CHECK_OK(shoal_module_add_buffer(module, "mean", tensors[0]));
    for (size_t i = 0; i < 5; i++) {
        const char *name;
        CHECK(shoal_module_parameter_at(module, i, &name) == tensors[i]);
        CHECK_STRING(name, names[i]);
        CHECK(shoal_module_parameter(module, names[i]) == tensors[i]);
    }
    CHECK(!shoal_module_parameter_at(module, 5, NULL));
    CHECK(shoal_module_buffer(module, "mean") == tensors[0] &&
          shoal_module_buffer_at(module, 0, NULL) == tensors[0] && !shoal_module_buffer_at(module, 1, NULL));
    CHECK(!shoal_module_find_parameter(module, "mean") && !shoal_module_find_buffer(module, "zeta"));
    CHECK(!shoal_module_find_parameter(module, "zet") && !shoal_module_find_parameter(module, "zeta0"));
    CHECK(!shoal_module_find_parameter(module, "") && !shoal_module_find_parameter(module, NULL));
    shoal_module_unref(module);
}

TEST(a_module_holds_its_tensors)
{
    shoal_module *module = make_module("block", NULL, NULL);
    REQUIRE_OK(shoal_scope_begin());
    CHECK_OK(shoal_module_add_parameter(module, "weight", make_leaf(2, 3, 1)));
    CHECK_OK(shoal_module_add_buffer(module, "mean", make_vector((double[]){5}, 1)));
    CHECK_OK(shoal_scope_end());
    CHECK_DOUBLE(value_at(shoal_module_parameter(module, "weight"), 1), 4);
    CHECK_DOUBLE(value_at(shoal_module_buffer(module, "mean"), 0), 5);
    REQUIRE_OK(shoal_scope_begin());
    CHECK_OK(shoal_module_set_parameter(module, "weight", make_leaf(2, 7, 1)));
    CHECK_OK(shoal_module_set_buffer(module, "mean", shoal_module_parameter(module, "weight")));
    CHECK_OK(shoal_module_set_parameter(module, "weight", shoal_module_parameter(module, "weight")));
    CHECK_OK(shoal_scope_end());
    CHECK_DOUBLE(value_at(shoal_module_parameter(module, "weight"), 1), 8);
    CHECK_DOUBLE(value_at(shoal_module_buffer(module, "mean"), 0), 7);
    shoal_module_unref(module);
}

SCOPED_TEST(bad_names)
{
    char long_name[SHOAL_MAX_MODULE_NAME + 2];
    memset(long_name, 'n', sizeof(long_name));
    long_name[sizeof(long_name) - 1] = '\0';
    static const struct {
        const char *name;
        const char *words;
    } rows[] = {
        {NULL, "name is NULL"},
        {"", "name is empty"},
        {"a.b", "name \"a.b\": character 1 is not a letter, a digit or '_'"},
        {"a b", "character 1"},
        {"\xc3\xa9", "character 0"},
        {"weight", "block has a parameter \"weight\" already"},
        {"mean", "block has a buffer \"mean\" already"},
        {"fc", "block has a child \"fc\" already"},
    };
    shoal_module *module = make_module("block", NULL, NULL);
    shoal_module *child = make_module("linear", NULL, NULL);
    shoal_tensor *x = make_leaf(1, 1, 0);
    CHECK_OK(shoal_module_add_parameter(module, "weight", x));
    CHECK_OK(shoal_module_add_buffer(module, "mean", x));
    CHECK_OK(shoal_module_add_child(module, "fc", child));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        CHECK_STATUS(shoal_module_add_parameter(module, rows[i].name, x), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(rows[i].words);
        CHECK_ERROR_TEXT("module_add_parameter: ");
        CHECK_STATUS(shoal_module_add_buffer(module, rows[i].name, x), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(rows[i].words);
        CHECK_STATUS(shoal_module_add_child(module, rows[i].name, child), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(rows[i].words);
    }
    CHECK_STATUS(shoal_module_add_parameter(module, long_name, x), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("has more than 255 characters");
    long_name[SHOAL_MAX_MODULE_NAME] = '\0';
    CHECK_OK(shoal_module_add_parameter(module, long_name, x));
    CHECK(shoal_module_parameter_at(module, 1, NULL) && !shoal_module_parameter_at(module, 2, NULL));
    CHECK(shoal_module_buffer_at(module, 0, NULL) && !shoal_module_buffer_at(module, 1, NULL));
    CHECK(shoal_module_child_at(module, 0, NULL) && !shoal_module_child_at(module, 1, NULL));
    shoal_module_unref(child);
    shoal_module_unref(module);
}

SCOPED_TEST(bad_tensors_and_paths)
{
    shoal_module *module = make_module("block", NULL, NULL);
    shoal_tensor *x = make_leaf(1, 1, 0);
    CHECK_STATUS(shoal_module_add_parameter(NULL, "a", x), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("module is NULL");
    CHECK_STATUS(shoal_module_add_parameter(module, "a", NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("parameter is NULL");
    CHECK_STATUS(shoal_module_add_buffer(module, "a", NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("buffer is NULL");
    CHECK_STATUS(shoal_module_add_child(module, "a", NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("child is NULL");
    CHECK_STATUS(shoal_module_add_child(NULL, "a", module), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_module_add_parameter(module, "a", shoal_neg(x)), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("result of a recorded operation; parameters are leaves");
    CHECK_OK(shoal_module_add_parameter(module, "a", x));
    CHECK_OK(shoal_module_add_buffer(module, "b", shoal_neg(x)));
    CHECK_STATUS(shoal_module_set_parameter(module, "a", shoal_neg(x)), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_module_set_parameter(module, "b", x), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("module_set_parameter: block has no parameter \"b\"");
    CHECK_STATUS(shoal_module_set_buffer(module, "a", x), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("module_set_buffer: block has no buffer \"a\"");
    CHECK_STATUS(shoal_module_set_parameter(module, NULL, x), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_module_set_parameter(module, "a", NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_module_set_parameter(NULL, "a", x), SHOAL_ERR_INVALID);
    CHECK(shoal_module_parameter(module, "a") == x);
    shoal_module_unref(module);
}

/* The tree --------------------------------------------------------------------------------------------- */

SCOPED_TEST(paths_lead_into_children)
{
    shoal_module *root = make_module("net", NULL, NULL);
    shoal_module *layers = make_module("list", NULL, NULL);
    shoal_module *layer = make_module("linear", NULL, NULL);
    shoal_tensor *x = make_leaf(1, 1, 0);
    shoal_tensor *y = make_leaf(1, 2, 0);
    CHECK_OK(shoal_module_add_parameter(layer, "weight", x));
    CHECK_OK(shoal_module_add_buffer(layer, "mean", x));
    give_child(layers, "0", layer);
    give_child(root, "layers", layers);
    CHECK(shoal_module_parameter(root, "layers.0.weight") == x);
    CHECK(shoal_module_buffer(root, "layers.0.mean") == x);
    CHECK(shoal_module_child(root, "layers.0") == layer && shoal_module_child(root, "layers") == layers);
    CHECK(shoal_module_child(root, "") == root && shoal_module_find_child(root, "") == root);
    CHECK(!shoal_module_find_child(root, NULL));
    static const char *const wrong[] = {
        "layers.1.weight", "layers.0.",      "layers..weight", ".",
        "layers.weight",   "layers.0.0",     ".layers.0",      "layers.0.weight.",
        "layer.0.weight",  "layers.0.weigh", "weight"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        CHECK(!shoal_module_find_parameter(root, wrong[i]) && !shoal_module_find_child(root, wrong[i]));
    }
    CHECK_OK(shoal_module_set_parameter(root, "layers.0.weight", y));
    CHECK(shoal_module_parameter(layer, "weight") == y);
    const char *name;
    CHECK(shoal_module_child_at(root, 0, &name) == layers);
    CHECK_STRING(name, "layers");
    shoal_module_unref(root);
}

TEST(a_tree_has_no_cycles)
{
    shoal_module *modules[4];
    for (int i = 0; i < 4; i++) {
        modules[i] = make_module("block", NULL, NULL);
    }
    CHECK_STATUS(shoal_module_add_child(modules[0], "self", modules[0]), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("module_add_child: block cannot be its own child");
    for (int i = 0; i < 3; i++) {
        CHECK_OK(shoal_module_add_child(modules[i], "next", modules[i + 1]));
        CHECK_OK(shoal_module_add_child(modules[i], "again", modules[i + 1]));
    }
    for (int i = 1; i < 4; i++) {
        CHECK_STATUS(shoal_module_add_child(modules[i], "back", modules[0]), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("block contains the module itself");
    }
    CHECK_OK(shoal_module_add_child(modules[0], "last", modules[3]));
    for (int i = 0; i < 4; i++) {
        shoal_module_unref(modules[i]);
    }
}

/* Each level is inside the next one twice: two to the power of 40 paths, but 41 modules. */
TEST(shared_children_are_looked_at_once)
{
    shoal_module *module = make_module("block", NULL, NULL);
    for (int i = 0; i < 40; i++) {
        shoal_module *parent = make_module("block", NULL, NULL);
        CHECK_OK(shoal_module_add_child(parent, "left", module));
        give_child(parent, "right", module);
        module = parent;
    }
    size_t count;
    CHECK_OK(shoal_module_count(module, SHOAL_WALK_MODULES, &count));
    CHECK_INT(count, 41);
    shoal_module_unref(module);
}

TEST(a_deep_tree_is_no_trouble)
{
    enum {
        DEPTH = 2000
    };
    shoal_module *root = make_module("block", NULL, NULL);
    shoal_module *last = root;
    for (int i = 1; i < DEPTH; i++) {
        shoal_module *child = make_module("block", NULL, NULL);
        give_child(last, "0", child);
        last = child;
    }
    size_t count;
    CHECK_OK(shoal_module_count(root, SHOAL_WALK_MODULES, &count));
    CHECK_INT(count, DEPTH);
    CHECK_STATUS(shoal_module_add_child(last, "up", root), SHOAL_ERR_INVALID);
    shoal_module_unref(root);
}

TEST(a_shared_child_outlives_a_parent)
{
    int n_destroyed = 0;
    shoal_module *child;
    REQUIRE_OK(shoal_module_create(&(shoal_module_definition){.struct_size = sizeof(shoal_module_definition),
                                                              .type = "linear",
                                                              .context = &n_destroyed,
                                                              .destroy = count_up},
                                   &child));
    shoal_module *a = make_module("a", NULL, NULL);
    shoal_module *b = make_module("b", NULL, NULL);
    CHECK_OK(shoal_module_add_child(a, "fc", child));
    give_child(b, "fc", child);
    shoal_module_unref(a);
    CHECK_INT(n_destroyed, 0);
    CHECK(shoal_module_child(b, "fc") == child);
    shoal_module_unref(b);
    CHECK_INT(n_destroyed, 1);
}

/* Extras ----------------------------------------------------------------------------------------------- */

static char first_key;
static char second_key;

TEST(extras_are_found_by_key_and_destroyed_once)
{
    int values[3] = {0};
    shoal_module *module = make_module("block", NULL, NULL);
    CHECK(!shoal_module_extra(module, &first_key));
    CHECK_OK(shoal_module_set_extra(module, &first_key, &values[0], count_up));
    CHECK_OK(shoal_module_set_extra(module, &second_key, &values[1], count_up));
    CHECK(shoal_module_extra(module, &first_key) == &values[0]);
    CHECK(shoal_module_extra(module, &second_key) == &values[1]);
    CHECK_OK(shoal_module_set_extra(module, &first_key, &values[0], count_up));
    CHECK_INT(values[0], 0);
    CHECK_OK(shoal_module_set_extra(module, &first_key, &values[2], NULL));
    CHECK_INT(values[0], 1);
    CHECK_OK(shoal_module_set_extra(module, &first_key, NULL, NULL));
    CHECK_OK(shoal_module_set_extra(module, &first_key, NULL, NULL));
    CHECK(!shoal_module_extra(module, &first_key));
    CHECK(shoal_module_extra(module, &second_key) == &values[1]);
    CHECK_STATUS(shoal_module_set_extra(module, NULL, &values[0], NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("module_set_extra: key is NULL");
    CHECK_STATUS(shoal_module_set_extra(NULL, &first_key, &values[0], NULL), SHOAL_ERR_INVALID);
    shoal_module_unref(module);
    CHECK_INT(values[0], 1);
    CHECK_INT(values[1], 1);
    CHECK_INT(values[2], 0);
}

/* A value whose end takes another extra with it. */
struct pair {
    shoal_module *module;
    int n_ends;
};

static void end_pair(void *value)
{
    struct pair *pair = value;
    pair->n_ends++;
    CHECK_OK(shoal_module_set_extra(pair->module, &second_key, NULL, NULL));
}

TEST(the_end_of_an_extra_may_end_another)
{
    int n_ends = 0;
    struct pair pair = {.module = make_module("block", NULL, NULL)};
    CHECK_OK(shoal_module_set_extra(pair.module, &first_key, &pair, end_pair));
    CHECK_OK(shoal_module_set_extra(pair.module, &second_key, &n_ends, count_up));
    CHECK_OK(shoal_module_set_extra(pair.module, &first_key, NULL, NULL));
    CHECK_INT(pair.n_ends, 1);
    CHECK_INT(n_ends, 1);
    CHECK_OK(shoal_module_set_extra(pair.module, &first_key, &pair, end_pair));
    CHECK_OK(shoal_module_set_extra(pair.module, &second_key, &n_ends, count_up));
    shoal_module_unref(pair.module);
    CHECK_INT(pair.n_ends, 2);
    CHECK_INT(n_ends, 2);
}
