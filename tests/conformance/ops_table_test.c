/* SPDX-License-Identifier: MIT */
/* The table itself: names, docs, signatures and flags of ops.def, and its twins, the headers of typed functions. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/ops/of_ranks.h"
#include "harness/test.h"
#include "op/op.h"
#include "op/rows.h"
#include "shoal/op.h"
#include "shoal/ops.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Names of in-place rows that end neither in '_' nor in "_out" or "_inplace", each for its reason. */
static const char *const in_place_by_another_name[] = {
    "all_gather_copy_in", /* named after what FSDP calls it; gives a view of its argument as well */
    "irecv",              /* named after the call that others have */
};

static bool ends_with(const char *text, const char *last)
{
    size_t length = strlen(text);
    return length >= strlen(last) && strcmp(text + length - strlen(last), last) == 0;
}

static bool is_listed(const char *name, const char *const *names, size_t n_names)
{
    for (size_t i = 0; i < n_names; i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

TEST(names_are_unique_and_found)
{
    for (int i = 0; i < OP_COUNT; i++) {
        const shoal_op *op = shoal_op_at((enum op_id)i);
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
        const char *doc = shoal_op_at((enum op_id)i)->doc;
        CHECK(strlen(doc) > 3);
        CHECK(ends_with(doc, "."));
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
        const shoal_op *op = shoal_op_at((enum op_id)k);
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
    CHECK_INT(shoal_op_at(OP_flatten)->params[1].default_value.as.integer, 0);
    CHECK_INT(shoal_op_at(OP_flatten)->params[2].default_value.as.integer, -1);
    CHECK_INT(shoal_op_at(OP_slice)->params[4].default_value.as.integer, 1);
    CHECK_STRING(shoal_op_at(OP_full)->params[3].default_value.as.string, "cpu");
    CHECK_INT(shoal_op_at(OP_sum)->params[1].default_value.count, 0);
    CHECK_INT(shoal_op_at(OP_sum)->params[1].default_value.kind, SHOAL_VALUE_INTS);
    CHECK(!shoal_op_at(OP_sum)->params[2].default_value.as.boolean);
}

/* A factor that is not given is a number that no factor is. */
TEST(absent_factors_are_nan)
{
    int n_factors = 0;
    for (int k = 0; k < OP_COUNT; k++) {
        const shoal_op *op = shoal_op_at((enum op_id)k);
        for (size_t i = 0; i < op->n_params; i++) {
            const struct op_param *param = &op->params[i];
            if (strcmp(param->name, "factor") == 0) {
                CHECK_INT(param->type, OP_PARAM_FLOAT);
                CHECK(param->has_default);
                CHECK_INT(param->default_value.kind, SHOAL_VALUE_FLOAT);
                CHECK(isnan(param->default_value.as.real));
                n_factors++;
            }
        }
    }
    CHECK(n_factors > 0);
}

TEST(flags_agree_with_names_and_signatures)
{
    for (int i = 0; i < OP_COUNT; i++) {
        const shoal_op *op = shoal_op_at((enum op_id)i);
        bool is_view = (op->flags & SHOAL_OP_VIEW) != 0;
        bool is_in_place = (op->flags & SHOAL_OP_IN_PLACE) != 0;
        bool has_tensors = op->n_params > 0 && op->params[0].type <= OP_PARAM_TENSORS;
        bool has_name = ends_with(op->name, "_") || ends_with(op->name, "_out") ||
                        ends_with(op->name, "_inplace") ||
                        is_listed(op->name, in_place_by_another_name, COUNT(in_place_by_another_name));
        CHECK(!(is_view && is_in_place));
        CHECK_INT(is_in_place, has_name);
        CHECK_INT((op->flags & SHOAL_OP_FACTORY) != 0, !has_tensors);
        CHECK(!(op->flags & SHOAL_OP_OVERWRITES) || is_in_place);
        CHECK_INT(is_view, op->kernel == run_view);
        CHECK(op->meta);
        CHECK(op->kernel);
    }
}

/* What a graph may not drop although nobody uses the result. */
/* The copies write a tensor that is not what they return. */
static const char *const side_effects[] = {"wait_tensor",
                                           "wait_tensors",
                                           "isend",
                                           "irecv",
                                           "batch_p2p_ops",
                                           "one_shot_all_reduce_copy",
                                           "one_shot_all_reduce_copy_out"};

static bool has_group(const shoal_op *op)
{
    for (size_t i = 0; i < op->n_params; i++) {
        if (op->params[i].type == OP_PARAM_GROUP) {
            return true;
        }
    }
    return false;
}

TEST(flags_of_ops_of_ranks)
{
    for (int i = 0; i < OP_COUNT; i++) {
        const shoal_op *op = shoal_op_at((enum op_id)i);
        bool waits = strncmp(op->name, "wait_", 5) == 0;
        CHECK_INT((op->flags & SHOAL_OP_COLLECTIVE) != 0, has_group(op));
        CHECK_INT((op->flags & SHOAL_OP_WAIT) != 0, waits);
        CHECK_INT(is_of_ranks((enum op_id)i), has_group(op) || waits);
        CHECK_INT((op->flags & SHOAL_OP_SIDE_EFFECT) != 0,
                  is_listed(op->name, side_effects, COUNT(side_effects)));
    }
}

/* Headers ---------------------------------------------------------------------------------------------- */

/* Functions of shoal/ops.h that are not "shoal_" and a row: another way to call one. */
static const char *const more_functions[] = {"empty_on"};

/* Functions of shoal/collective.h that are not. */
static const char *const more_functions_of_ranks[] = {
    "symmetric_tensor",   /* a tensor */
    "op_call_collective", /* any row */
};

/* Functions of shoal_compat/torch.h that are not. */
static const char *const more_functions_of_torch[] = {
    "all_reduce_premul",
    "all_reduce_premul_",
    "all_reduce_coalesced_premul",
    "all_reduce_coalesced_premul_",
    "reduce_premul",
    "reduce_scatter_tensor_premul",
    "reduce_scatter_tensor_premul_out",
    "reduce_scatter_tensor_premul_inplace",
    "reduce_scatter_tensor_coalesced_premul", /* a row with its factor */
    "all_reduce_inplace",                     /* another name of all_reduce_ */
    "all_gather_tensor_autograd",
    "reduce_scatter_tensor_autograd",
    "all_to_all_single_autograd",
};

/* Every row that takes a factor has a function that does: its name with "_premul" put in, if need be before its ending. */
static bool has_premul_function(const char *row)
{
    static const char *const endings[] = {"_out", "_inplace", "_", ""};
    for (size_t i = 0; i < COUNT(endings); i++) {
        char name[64];
        int length = (int)(strlen(row) - strlen(endings[i]));
        if (ends_with(row, endings[i]) &&
            snprintf(name, sizeof(name), "%.*s_premul%s", length, row, endings[i]) > 0) {
            return is_listed(name, more_functions_of_torch, COUNT(more_functions_of_torch));
        }
    }
    return false;
}

TEST(factors_have_typed_functions)
{
    for (int k = 0; k < OP_COUNT; k++) {
        const shoal_op *op = shoal_op_at((enum op_id)k);
        bool has_factor = op->n_params > 0 && strcmp(op->params[op->n_params - 1].name, "factor") == 0;
        if (has_factor && !has_premul_function(op->name)) {
            test_failed(__FILE__, __LINE__, "%s takes a factor, but no typed function of it does", op->name);
        }
    }
}

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* What stands between "shoal_" and "(" where a function is declared, or defined inline (its name may follow on a line of
   its own); false on any other line. */
static bool read_function(const char *line, char name[64])
{
    bool is_function = starts_with(line, "SHOAL_API") || starts_with(line, "shoal_");
    const char *end = is_function ? strchr(line, '(') : NULL;
    const char *start = NULL;
    for (const char *at = line; end && (at = strstr(at, "shoal_")) != NULL && at < end; at++) {
        start = at + 6;
    }
    if (start) {
        (void)snprintf(name, 64, "%.*s", (int)(end - start), start);
    }
    return start != NULL;
}

/* Marks the rows whose functions the header declares; every other function must be listed. */
static void read_header(FILE *file, const char *header, const char *const *others, size_t n_others,
                        bool is_declared[OP_COUNT])
{
    char line[1024];
    char name[64];
    size_t n_others_found = 0;
    while (fgets(line, sizeof(line), file)) {
        const shoal_op *op;
        if (!read_function(line, name)) {
            continue;
        }
        if (is_listed(name, others, n_others)) {
            n_others_found++;
        } else if (shoal_op_find(name, &op) == SHOAL_OK) {
            is_declared[op->index] = true;
        } else {
            test_failed(__FILE__, __LINE__, "shoal_%s of %s has no row in ops.def", name, header);
        }
    }
    CHECK_INT(n_others_found, n_others);
}

static void read_functions(const char *header, const char *const *others, size_t n_others,
                           bool is_declared[OP_COUNT])
{
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s/include/%s", getenv("SHOAL_TEST_SOURCE_DIR"), header);
    FILE *file = fopen(path, "r");
    REQUIRE(file);
    read_header(file, header, others, n_others, is_declared);
    (void)fclose(file);
}

/* Every row has a function in its header or in that of PyTorch's names, and none in the header of the other kind. */
static void check_declared(const char *header, const char *const *others, size_t n_others, bool is_for_ranks)
{
    bool is_declared[OP_COUNT] = {false};
    bool is_compat[OP_COUNT] = {false};
    if (!getenv("SHOAL_TEST_SOURCE_DIR")) {
        test_skip("SHOAL_TEST_SOURCE_DIR is not set; ctest sets it");
        return;
    }
    read_functions(header, others, n_others, is_declared);
    read_functions("shoal_compat/torch.h", more_functions_of_torch, COUNT(more_functions_of_torch),
                   is_compat);
    for (int i = 0; i < OP_COUNT; i++) {
        bool is_of_header = is_of_ranks((enum op_id)i) == is_for_ranks;
        if (is_declared[i] ? !is_of_header || is_compat[i] : is_of_header && !is_compat[i]) {
            test_failed(__FILE__, __LINE__, "row %s: %s in %s", op_get((enum op_id)i)->name,
                        is_declared[i] ? "declared" : "not declared", header);
        }
    }
}

TEST(typed_functions_and_rows_are_the_same)
{
    check_declared("shoal/ops.h", more_functions, COUNT(more_functions), /*is_for_ranks=*/false);
}

TEST(typed_functions_and_rows_of_ranks_are_the_same)
{
    check_declared("shoal/collective.h", more_functions_of_ranks, COUNT(more_functions_of_ranks),
                   /*is_for_ranks=*/true);
}
