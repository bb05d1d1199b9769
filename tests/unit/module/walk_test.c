/* SPDX-License-Identifier: MIT */
/* Walking a tree, listing its parameters, replacing its tensors. */
#include "unit/module/fixture.h"

/*
 *   root: parameter w, buffer b, children a (shared), layers
 *   layers: children 0, 1, each with its own weight and tied to the root's w, and 2, which is a again
 */
struct tree {
    shoal_module *root;
    shoal_module *a;
    shoal_tensor *tensors[4]; /* root.w, a.p, layers.0.weight, layers.1.weight */
};

static struct tree make_tree(void)
{
    struct tree tree = {.root = make_module("net", NULL, NULL), .a = make_module("part", NULL, NULL)};
    for (int i = 0; i < 4; i++) {
        tree.tensors[i] = make_leaf(1, i + 1, 0);
    }
    shoal_module *layers = make_module("list", NULL, NULL);
    CHECK_OK(shoal_module_add_child(tree.root, "a", tree.a));
    CHECK_OK(shoal_module_add_buffer(tree.root, "b", make_vector((double[]){9}, 1)));
    CHECK_OK(shoal_module_add_parameter(tree.root, "w", tree.tensors[0]));
    CHECK_OK(shoal_module_add_parameter(tree.a, "p", tree.tensors[1]));
    for (int i = 0; i < 2; i++) {
        shoal_module *layer = make_module("linear", NULL, NULL);
        CHECK_OK(shoal_module_add_parameter(layer, "weight", tree.tensors[2 + i]));
        CHECK_OK(shoal_module_add_parameter(layer, "tied", tree.tensors[0]));
        give_child(layers, i == 0 ? "0" : "1", layer);
    }
    give_child(layers, "2", tree.a);
    give_child(tree.root, "layers", layers);
    return tree;
}

struct looking {
    struct journal journal;
    const char *skip; /* a path to skip, */
    const char *stop; /* to stop at, */
    const char *fail; /* to fail at */
};

static shoal_status look(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct looking *looking = context;
    CHECK_INT(*next, SHOAL_WALK_ON);
    CHECK_INT(entry->struct_size, sizeof *entry);
    note(&looking->journal, entry->path[0] ? entry->path : "-");
    CHECK((entry->tensor != NULL) == (entry->kind != SHOAL_WALK_MODULES));
    const char *dot = strrchr(entry->path, '.');
    CHECK_STRING(entry->name, dot ? dot + 1 : entry->path);
    if (entry->kind == SHOAL_WALK_PARAMETERS) {
        CHECK(shoal_module_parameter(entry->module, entry->name) == entry->tensor);
    }
    if (looking->skip && strcmp(looking->skip, entry->path) == 0) {
        *next = SHOAL_WALK_SKIP;
    }
    if (looking->stop && strcmp(looking->stop, entry->path) == 0) {
        *next = SHOAL_WALK_STOP;
    }
    if (looking->fail && strcmp(looking->fail, entry->path) == 0) {
        return shoal_fail(SHOAL_ERR_CANCELLED, "enough");
    }
    return SHOAL_OK;
}

SCOPED_TEST(depth_first_in_the_order_of_adding)
{
    static const struct {
        uint32_t flags;
        const char *paths;
    } rows[] = {
        {SHOAL_WALK_PARAMETERS, "w a.p layers.0.weight layers.1.weight"},
        {SHOAL_WALK_PARAMETERS | SHOAL_WALK_DUPLICATES,
         "w a.p layers.0.weight layers.0.tied layers.1.weight layers.1.tied layers.2.p"},
        {SHOAL_WALK_BUFFERS, "b"},
        {SHOAL_WALK_MODULES, "- a layers layers.0 layers.1"},
        {SHOAL_WALK_MODULES | SHOAL_WALK_DUPLICATES, "- a layers layers.0 layers.1 layers.2"},
        {SHOAL_WALK_MODULES | SHOAL_WALK_PARAMETERS | SHOAL_WALK_BUFFERS,
         "- w b a a.p layers layers.0 layers.0.weight layers.1 layers.1.weight"},
    };
    struct tree tree = make_tree();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct looking looking = {{""}, NULL, NULL, NULL};
        CHECK_OK(shoal_module_walk(tree.root, rows[i].flags, look, &looking));
        CHECK_STRING(looking.journal.text, rows[i].paths);
        size_t n_words = 1;
        for (const char *c = rows[i].paths; *c; c++) {
            n_words += *c == ' ';
        }
        size_t count = 0;
        CHECK_OK(shoal_module_count(tree.root, rows[i].flags, &count));
        CHECK_INT(count, n_words);
    }
    shoal_module_unref(tree.root);
}

SCOPED_TEST(walks_can_be_cut_short)
{
    const uint32_t all = SHOAL_WALK_MODULES | SHOAL_WALK_PARAMETERS;
    struct tree tree = make_tree();
    struct looking skipping = {{""}, .skip = "layers.0"};
    CHECK_OK(shoal_module_walk(tree.root, all, look, &skipping));
    CHECK_STRING(skipping.journal.text, "- w a a.p layers layers.0 layers.1 layers.1.weight");
    struct looking skipping_root = {{""}, .skip = ""};
    CHECK_OK(shoal_module_walk(tree.root, all, look, &skipping_root));
    CHECK_STRING(skipping_root.journal.text, "-");
    struct looking skipping_tensor = {{""}, .skip = "a.p"};
    CHECK_OK(shoal_module_walk(tree.root, SHOAL_WALK_PARAMETERS, look, &skipping_tensor));
    CHECK_STRING(skipping_tensor.journal.text, "w a.p layers.0.weight layers.1.weight");
    static const char *const stops[] = {"", "w", "a", "a.p", "layers.0.weight"};
    static const char *const seen[] = {"-", "- w", "- w a", "- w a a.p",
                                       "- w a a.p layers layers.0 layers.0.weight"};
    for (size_t i = 0; i < sizeof(stops) / sizeof(stops[0]); i++) {
        struct looking stopping = {{""}, .stop = stops[i]};
        CHECK_OK(shoal_module_walk(tree.root, all, look, &stopping));
        CHECK_STRING(stopping.journal.text, seen[i]);
        struct looking failing = {{""}, .fail = stops[i]};
        CHECK_STATUS(shoal_module_walk(tree.root, all, look, &failing), SHOAL_ERR_CANCELLED);
        CHECK_STRING(shoal_error_text(), "enough");
        CHECK_STRING(failing.journal.text, seen[i]);
    }
    shoal_module_unref(tree.root);
}

SCOPED_TEST(bad_walks)
{
    size_t count = 99;
    struct tree tree = make_tree();
    CHECK_STATUS(shoal_module_walk(NULL, SHOAL_WALK_MODULES, look, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("module_walk: module is NULL");
    CHECK_STATUS(shoal_module_walk(tree.root, SHOAL_WALK_MODULES, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("visitor is NULL");
    CHECK_STATUS(shoal_module_walk(tree.root, SHOAL_WALK_DUPLICATES, look, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("flags 0x8 choose nothing to visit");
    CHECK_STATUS(shoal_module_walk(tree.root, 0x81, look, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("flags 0x81: SHOAL_WALK_* expected");
    CHECK_STATUS(shoal_module_walk(tree.root, 1u << 31 | 1, look, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_module_count(tree.root, 0, &count), SHOAL_ERR_INVALID);
    CHECK(count == 0);
    CHECK_STATUS(shoal_module_count(tree.root, 1, NULL), SHOAL_ERR_INVALID);
    shoal_module_unref(tree.root);
}

/* Visitors that change what they walk over. */
static shoal_status change(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct looking *looking = context;
    note(&looking->journal, entry->path);
    if (entry->tensor) {
        double before = value_at(entry->tensor, 0);
        CHECK_OK(shoal_module_set_parameter(entry->module, entry->name, make_leaf(1, before + 10, 0)));
        CHECK_DOUBLE(value_at(entry->tensor, 0), before); /* held during the visit */
    } else if (strcmp(entry->name, "layers") == 0) {
        for (int i = 0; i < 20; i++) {
            char name[] = {'n', (char)('a' + i), '\0'};
            give_child(entry->module, name, make_module("new", NULL, NULL));
        }
        CHECK_OK(shoal_module_add_parameter(entry->module, "late", make_leaf(1, 1, 0)));
    }
    return SHOAL_OK;
}

TEST(visitors_may_change_the_tree)
{
    struct looking looking = {{""}, NULL, NULL, NULL};
    REQUIRE_OK(shoal_scope_begin());
    struct tree tree = make_tree();
    CHECK_OK(shoal_scope_end());
    REQUIRE_OK(shoal_scope_begin());
    CHECK_OK(shoal_module_walk(tree.root, SHOAL_WALK_MODULES | SHOAL_WALK_PARAMETERS, change, &looking));
    CHECK_OK(shoal_scope_end());
    CHECK(strstr(looking.journal.text, "layers layers.late layers.0"));
    CHECK(strstr(looking.journal.text, "layers.na layers.nb"));
    CHECK_DOUBLE(value_at(shoal_module_parameter(tree.root, "w"), 0), 11);
    CHECK_DOUBLE(value_at(shoal_module_parameter(tree.root, "layers.late"), 0), 11);
    shoal_module_unref(tree.root);
}

static shoal_status drop_root(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    shoal_module **root = context;
    shoal_module_unref(*root);
    *root = NULL;
    return SHOAL_OK;
}

static shoal_status leave_scope_open(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    return shoal_scope_begin();
}

TEST(a_walk_holds_its_root_and_its_scopes)
{
    REQUIRE_OK(shoal_scope_begin());
    struct tree tree = make_tree();
    CHECK_STATUS(shoal_module_walk(tree.root, SHOAL_WALK_MODULES, leave_scope_open, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("the visitor left a scope open");
    CHECK_OK(shoal_module_walk(tree.root, SHOAL_WALK_MODULES, drop_root, &tree.root));
    CHECK_OK(shoal_scope_end());
}

/* Lists ------------------------------------------------------------------------------------------------ */

SCOPED_TEST(all_parameters_in_a_list)
{
    struct tree tree = make_tree();
    size_t n = 99;
    shoal_tensor *const *list = shoal_module_parameters(tree.root, &n);
    REQUIRE(list && n == 4);
    for (size_t i = 0; i < 4; i++) {
        CHECK(list[i] == tree.tensors[i]);
    }
    shoal_module *empty = make_module("empty", NULL, NULL);
    CHECK(shoal_module_parameters(empty, &n) && n == 0);
    CHECK_SCOPE_ERROR(shoal_module_parameters(NULL, &n), SHOAL_ERR_INVALID,
                      "module_parameters: module is NULL");
    CHECK_SCOPE_ERROR(shoal_module_parameters(empty, NULL), SHOAL_ERR_INVALID, "n_out is NULL");
    shoal_module_unref(empty);
    shoal_module_unref(tree.root);
}

TEST(a_list_needs_a_scope)
{
    size_t n = 99;
    shoal_module *module = make_module("empty", NULL, NULL);
    CHECK(!shoal_module_parameters(module, &n) && n == 0);
    CHECK_ERROR_TEXT("no scope is open");
    shoal_module_unref(module);
}

/* A loop over what was not listed does nothing. */
TEST(a_list_in_a_failed_scope_is_empty)
{
    size_t n = 99;
    shoal_module *module = make_module("empty", NULL, NULL);
    CHECK_OK(shoal_scope_begin());
    CHECK(!shoal_module_parameter(module, "none"));
    CHECK(!shoal_module_parameters(module, &n) && n == 0);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    shoal_module_unref(module);
}

/* Replacing -------------------------------------------------------------------------------------------- */

struct converting {
    struct journal journal;
    shoal_dtype dtype;
    const char *fail; /* path to fail at: in the scope */
    int way;          /* how */
};

static shoal_status convert(void *context, const shoal_module_entry *entry, shoal_tensor **tensor)
{
    struct converting *converting = context;
    CHECK_INT(entry->struct_size, sizeof *entry);
    note(&converting->journal, entry->path);
    CHECK(*tensor == entry->tensor && !shoal_scope_has_grad());
    if (converting->fail && strcmp(converting->fail, entry->path) == 0) {
        switch (converting->way) {
        case 0:
            return shoal_fail(SHOAL_ERR_CANCELLED, "not this one");
        case 1:
            *tensor = shoal_select(*tensor, 5, 5);
            return SHOAL_OK;
        case 2:
            *tensor = NULL;
            return SHOAL_OK;
        default:
            CHECK_OK(shoal_scope_set_grad(true));
            *tensor = shoal_mul(*tensor, *tensor);
            return SHOAL_OK;
        }
    }
    *tensor = shoal_to_dtype(entry->tensor, converting->dtype);
    return SHOAL_OK;
}

SCOPED_TEST(tensors_are_replaced_once_and_stay_tied)
{
    struct tree tree = make_tree();
    struct converting converting = {{""}, SHOAL_F32, NULL, 0};
    CHECK_OK(shoal_set_requires_grad(tree.tensors[2], false));
    CHECK_OK(shoal_module_apply(tree.root, SHOAL_WALK_PARAMETERS, convert, &converting));
    CHECK_STRING(converting.journal.text, "w a.p layers.0.weight layers.1.weight");
    shoal_tensor *w = shoal_module_parameter(tree.root, "w");
    CHECK(w != tree.tensors[0]);
    CHECK_INT(shoal_tensor_dtype(w), SHOAL_F32);
    CHECK(shoal_module_parameter(tree.root, "layers.0.tied") == w &&
          shoal_module_parameter(tree.root, "layers.1.tied") == w);
    CHECK(shoal_requires_grad(w) && shoal_is_leaf(w));
    CHECK(!shoal_requires_grad(shoal_module_parameter(tree.root, "layers.0.weight")));
    CHECK(shoal_requires_grad(shoal_module_parameter(tree.root, "layers.2.p")));
    CHECK_INT(shoal_tensor_dtype(shoal_module_buffer(tree.root, "b")), SHOAL_F64);
    CHECK_OK(shoal_module_apply(tree.root, SHOAL_WALK_PARAMETERS | SHOAL_WALK_BUFFERS, convert,
                                &(struct converting){{""}, SHOAL_BF16, NULL, 0}));
    CHECK_INT(shoal_tensor_dtype(shoal_module_buffer(tree.root, "b")), SHOAL_BF16);
    CHECK_INT(shoal_tensor_dtype(shoal_module_parameter(tree.root, "a.p")), SHOAL_BF16);
    shoal_module_unref(tree.root);
}

/* A conversion to the dtype there is gives the same tensor, or a new one; either is fine. */
SCOPED_TEST(what_is_given_back_stays)
{
    struct tree tree = make_tree();
    struct converting converting = {{""}, SHOAL_F64, NULL, 0};
    CHECK_OK(shoal_module_apply(tree.root, SHOAL_WALK_PARAMETERS, convert, &converting));
    CHECK_DOUBLE(value_at(shoal_module_parameter(tree.root, "layers.1.tied"), 0), 1);
    CHECK(shoal_requires_grad(shoal_module_parameter(tree.root, "w")));
    shoal_module_unref(tree.root);
}

SCOPED_TEST(a_failure_replaces_nothing)
{
    static const struct {
        shoal_status status;
        const char *words;
    } rows[] = {{SHOAL_ERR_CANCELLED, "module_apply: layers.1.weight: not this one"},
                {SHOAL_ERR_INVALID, "module_apply: layers.1.weight: select: "},
                {SHOAL_ERR_INVALID, "module_apply: layers.1.weight: the function returned NULL"},
                {SHOAL_ERR_INVALID, "returned the result of a recorded operation"}};
    struct tree tree = make_tree();
    for (int i = 0; i < 4; i++) {
        struct converting converting = {{""}, SHOAL_F32, "layers.1.weight", i};
        CHECK_STATUS(shoal_module_apply(tree.root, SHOAL_WALK_PARAMETERS, convert, &converting),
                     rows[i].status);
        CHECK_ERROR_TEXT(rows[i].words);
        CHECK(shoal_module_parameter(tree.root, "w") == tree.tensors[0] &&
              shoal_module_parameter(tree.root, "layers.1.weight") == tree.tensors[3]);
    }
    struct converting to_integers = {{""}, SHOAL_I32, NULL, 0};
    CHECK_STATUS(shoal_module_apply(tree.root, SHOAL_WALK_PARAMETERS, convert, &to_integers),
                 SHOAL_ERR_INVALID);
    CHECK(shoal_module_parameter(tree.root, "w") == tree.tensors[0]);
    CHECK_STATUS(shoal_module_apply(tree.root, 0, convert, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_module_apply(tree.root, SHOAL_WALK_MODULES, convert, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("flags 0x4: SHOAL_WALK_PARAMETERS, _BUFFERS or both expected");
    CHECK_STATUS(shoal_module_apply(NULL, 1, convert, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_module_apply(tree.root, 1, NULL, NULL), SHOAL_ERR_INVALID);
    shoal_module_unref(tree.root);
}

static shoal_status materialise(void *context, const shoal_module_entry *entry, shoal_tensor **tensor)
{
    CHECK_INT(shoal_tensor_device(entry->tensor), SHOAL_META);
    *tensor = shoal_full(shoal_tensor_shape(entry->tensor), shoal_tensor_n_dims(entry->tensor), 0.5,
                         shoal_tensor_dtype(entry->tensor));
    return SHOAL_OK;
}

TEST(parameters_are_materialised_without_a_scope_of_the_caller)
{
    shoal_module *module = make_module("net", NULL, NULL);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *meta = shoal_empty_on((int64_t[]){2, 3}, 2, SHOAL_F64, SHOAL_META);
    CHECK_OK(shoal_module_add_parameter(module, "weight", require_grad(meta)));
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_module_apply(module, SHOAL_WALK_PARAMETERS, materialise, NULL));
    CHECK_DOUBLE(value_at(shoal_module_parameter(module, "weight"), 5), 0.5);
    CHECK(shoal_requires_grad(shoal_module_parameter(module, "weight")));
    shoal_module_unref(module);
}
