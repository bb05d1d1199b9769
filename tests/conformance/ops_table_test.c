/* SPDX-License-Identifier: MIT */
/* The table itself: names, docs, signatures and flags of ops.def, and its twin, the header of typed functions. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/test.h"
#include "op/op.h"
#include "op/rows.h"
#include "shoal/op.h"
#include "shoal/ops.h"

/* Names of in-place rows that do not end in '_', each for its reason. */
static const char *const in_place_by_another_name[] = {
    "all_gather_copy_in", /* named after what FSDP calls it; gives a view of its argument as well */
};

static bool ends_with(const char *text, char last)
{
    size_t length = strlen(text);
    return length > 0 && text[length - 1] == last;
}

TEST(names_are_unique_and_found)
{
    for (int i = 0; i < OP_COUNT; i++) {
        const shoal_op *op = op_get((enum op_id)i);
        const shoal_op *found = NULL;
        CHECK_OK(shoal_op_find(op->name, &found));
        CHECK(found == op);
        CHECK(shoal_op_at((size_t)i) == op);
        CHECK_INT(op->index, i);
        for (const char *c = op->name; *c; c++) {
            CHECK(islower((unsigned char)*c) || isdigit((unsigned char)*c) || *c == '_');
        }
    }
    CHECK(!shoal_op_at(OP_COUNT));
    CHECK(!shoal_op_at(SIZE_MAX));
}

TEST(docs_are_sentences)
{
    for (int i = 0; i < OP_COUNT; i++) {
        const char *doc = shoal_op_doc(op_get((enum op_id)i));
        CHECK(strlen(doc) > 3);
        CHECK(ends_with(doc, '.'));
        CHECK(!strstr(doc, "\n"));
    }
}

/* The parsed parameters, written out again, are the signature. */
TEST(signatures_survive_parsing)
{
    static const char *const words[] = {
#define PARAM(NAME, word, kind) [OP_PARAM_##NAME] = word,
        OP_PARAM_TYPES(PARAM)
#undef PARAM
    };
    for (int k = 0; k < OP_COUNT; k++) {
        const shoal_op *op = op_get((enum op_id)k);
        char text[512] = "";
        size_t used = 0;
        const char *from = op->signature;
        for (size_t i = 0; i < op->n_params; i++) {
            const struct op_param *param = &op->params[i];
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s %s", i == 0 ? "" : ", ",
                                     words[param->type], param->name);
            if (param->has_default) {
                /* The text of the default is taken from the source; values have a test of their own. */
                const char *equals = strstr(from, " = ");
                REQUIRE(equals);
                size_t length = 3 + strcspn(equals + 3, " ,");
                used += (size_t)snprintf(text + used, sizeof(text) - used, "%.*s", (int)length, equals);
                from = equals + 3;
            }
        }
        (void)snprintf(text + used, sizeof(text) - used, "%s-> %s", op->n_params > 0 ? " " : "",
                       op->returns_list ? "tensors" : "tensor");
        CHECK_STRING(text, op->signature);
    }
}

TEST(defaults_have_their_values)
{
    CHECK_INT(op_get(OP_flatten)->params[1].default_value.as.integer, 0);
    CHECK_INT(op_get(OP_flatten)->params[2].default_value.as.integer, -1);
    CHECK_INT(op_get(OP_slice)->params[4].default_value.as.integer, 1);
    CHECK_STRING(op_get(OP_full)->params[3].default_value.as.string, "cpu");
    CHECK_INT(op_get(OP_sum)->params[1].default_value.count, 0);
    CHECK_INT(op_get(OP_sum)->params[1].default_value.kind, SHOAL_VALUE_INTS);
    CHECK(!op_get(OP_sum)->params[2].default_value.as.boolean);
}

TEST(flags_agree_with_names_and_signatures)
{
    for (int i = 0; i < OP_COUNT; i++) {
        const shoal_op *op = op_get((enum op_id)i);
        bool is_view = (op->flags & SHOAL_OP_VIEW) != 0;
        bool is_in_place = (op->flags & SHOAL_OP_IN_PLACE) != 0;
        bool has_tensors = op->n_params > 0 && op->params[0].type <= OP_PARAM_TENSORS;
        bool is_listed = false;
        for (size_t k = 0; k < sizeof(in_place_by_another_name) / sizeof(in_place_by_another_name[0]); k++) {
            is_listed = is_listed || strcmp(op->name, in_place_by_another_name[k]) == 0;
        }
        CHECK(!(is_view && is_in_place));
        CHECK_INT(is_in_place, ends_with(op->name, '_') || is_listed);
        CHECK_INT((op->flags & SHOAL_OP_FACTORY) != 0, !has_tensors);
        CHECK(!(op->flags & SHOAL_OP_OVERWRITES) || is_in_place);
        CHECK_INT(is_view, op->kernel == run_view);
        CHECK(op->meta);
        CHECK(op->kernel);
    }
}

/* Functions in shoal/ops.h that are not "shoal_" and a row: another way to call one. */
static const char *const more_functions[] = {"empty_on"};

static bool is_row(const char *name)
{
    const shoal_op *found;
    bool is_known = shoal_op_find(name, &found) == SHOAL_OK;
    for (size_t i = 0; i < sizeof(more_functions) / sizeof(more_functions[0]); i++) {
        is_known = is_known || strcmp(name, more_functions[i]) == 0;
    }
    return is_known;
}

TEST(every_typed_function_has_a_row)
{
    const char *folder = getenv("SHOAL_TEST_SOURCE_DIR");
    char path[1024];
    char line[1024];
    int n_functions = 0;
    if (!folder) {
        test_skip("SHOAL_TEST_SOURCE_DIR is not set; ctest sets it");
        return;
    }
    (void)snprintf(path, sizeof(path), "%s/include/shoal/ops.h", folder);
    FILE *file = fopen(path, "r");
    REQUIRE(file);
    while (fgets(line, sizeof(line), file)) {
        const char *at = strncmp(line, "SHOAL_API", 9) == 0 ? strrchr(line, '(') : NULL;
        const char *start = at ? strstr(line, "shoal_") : NULL;
        while (start && strstr(start + 1, "shoal_") && strstr(start + 1, "shoal_") < strchr(line, '(')) {
            start = strstr(start + 1, "shoal_");
        }
        if (start) {
            size_t length = strcspn(start, "(");
            char name[64] = "";
            (void)snprintf(name, sizeof(name), "%.*s", (int)(length - 6), start + 6);
            if (!is_row(name)) {
                test_failed(__FILE__, __LINE__, "shoal_%s of shoal/ops.h has no row in ops.def", name);
            }
            n_functions++;
        }
    }
    (void)fclose(file);
    CHECK_INT(n_functions, OP_COUNT + (int)(sizeof(more_functions) / sizeof(more_functions[0])));
}
