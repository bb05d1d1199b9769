/* SPDX-License-Identifier: MIT */
/* What calls give where graphs have what programs have not: nodes that give lists, ranks that are not known, constants. */
#include <string.h>

#include "harness/test.h"
#include "shoal/autograd.h"
#include "shoal/group.h"
#include "shoal/ops.h"
#include "tensor/tensor.h"
#include "unit/graph/building.h"

static shoal_graph *make_grouped(int n)
{
    static const int ranks[] = {0, 1, 2, 3, 4, 5, 6, 7};
    shoal_graph *graph = make_graph();
    CHECK_OK(shoal_graph_add_group(graph, "g", ranks, 2, (size_t)n));
    return graph;
}

/* NULL on failure. */
static shoal_node *call(shoal_graph *graph, const char *op, const shoal_arg *args, size_t n_args)
{
    shoal_node *node = NULL;
    CHECK_OK(shoal_graph_call(graph, find_op(op), args, n_args, NULL, &node));
    return node;
}

/* Nodes ------------------------------------------------------------------------------------------------ */

static shoal_node *add_input(shoal_graph *graph, const char *name, int64_t rows, int64_t columns)
{
    shoal_node *node = NULL;
    CHECK_OK(shoal_graph_placeholder(graph, name, (int64_t[]){rows, columns}, 2, SHOAL_F32, &node));
    return node;
}

TEST(lists_and_single_tensors_are_told_apart)
{
    shoal_graph *graph = make_grouped(2);
    shoal_node *x = add_input(graph, "x", 4, 4);
    shoal_node *pieces = call(graph, "split", (shoal_arg[]){node_arg(x), int_arg(2)}, 2);
    shoal_node *node = NULL;
    CHECK_STATUS(shoal_graph_call(graph, find_op("neg"), (shoal_arg[]){node_arg(pieces)}, 1, NULL, &node),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("neg: self: node split gives a list of 2");
    CHECK_STATUS(shoal_graph_call(graph, find_op("cat"), (shoal_arg[]){node_arg(x)}, 1, NULL, &node),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("cat: tensors: node x gives one tensor, not a list");
    shoal_arg mixed[] = {node_arg(x), node_arg(pieces)};
    shoal_arg list = list_arg(mixed, 2);
    CHECK_STATUS(shoal_graph_call(graph, find_op("cat"), &list, 1, NULL, &node), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("cat: tensors: item 1 of the list: node split gives a list of 2");
    mixed[1] = int_arg(3);
    CHECK_STATUS(shoal_graph_call(graph, find_op("cat"), &list, 1, NULL, &node), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("cat: tensors: item 1 of the list is not a node");
    CHECK_STATUS(shoal_graph_call(graph, find_op("view"), (shoal_arg[]){node_arg(x), list}, 2, NULL, &node),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("view: shape: item 0 of the list is not an integer");
    CHECK_STATUS(shoal_graph_call(graph, find_op("neg"), &list, 1, NULL, &node), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("neg: self: a list is not expected here");
    CHECK(!node);
    shoal_graph_free(graph);
}

TEST(a_group_must_be_in_the_table)
{
    shoal_graph *graph = make_grouped(2);
    shoal_node *x = add_input(graph, "x", 4, 4);
    shoal_node *node = NULL;
    shoal_arg args[] = {node_arg(x),
                        {.kind = SHOAL_ARG_STRING, .as.string = "sum"},
                        {.kind = SHOAL_ARG_GROUP, .as.string = "other"}};
    CHECK_STATUS(shoal_graph_call(graph, find_op("all_reduce"), args, 3, NULL, &node), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("other");
    CHECK(!node);
    shoal_graph_free(graph);
    graph = make_graph();
    args[0] = node_arg(add_input(graph, "x", 4, 4));
    CHECK_STATUS(shoal_graph_call(graph, find_op("all_reduce"), args, 3, NULL, &node), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("the graph has no group \"other\"; there are no groups");
    shoal_graph_free(graph);
}

/* Numbers that depend on the rank ---------------------------------------------------------------------- */

static shoal_arg arg_rank(int64_t factor, int64_t offset)
{
    return (shoal_arg){.kind = SHOAL_ARG_RANK, .as.rank = {.group = "g", .factor = factor, .offset = offset}};
}

TEST(a_place_may_depend_on_the_rank_and_a_shape_may_not)
{
    shoal_graph *graph = make_grouped(4);
    shoal_node *x = add_input(graph, "x", 8, 4);
    shoal_arg args[] = {node_arg(x), int_arg(0), arg_rank(2, 0), int_arg(2)};
    shoal_node *node = call(graph, "narrow", args, 4);
    REQUIRE(node);
    const shoal_tensor *value = shoal_node_value(node, 0);
    CHECK_INT(value->layout.shape[0], 2);
    CHECK_INT(value->layout.offset, 0);
    CHECK(value->storage == shoal_node_value(x, 0)->storage);
    /* The last rank would look behind the end. */
    shoal_node *bad = NULL;
    args[2] = arg_rank(2, 1);
    CHECK_STATUS(shoal_graph_call(graph, find_op("narrow"), args, 4, NULL, &bad), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("on the last rank: narrow: ");
    args[2] = int_arg(0);
    args[3] = arg_rank(1, 1);
    CHECK_STATUS(shoal_graph_call(graph, find_op("narrow"), args, 4, NULL, &bad), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("narrow: it gives f32 [1, 4] on the first rank, and f32 [4, 4] on the last one");
    args[1] = arg_rank(INT64_MAX, 0);
    CHECK_STATUS(shoal_graph_call(graph, find_op("narrow"), args, 4, NULL, &bad), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("does not fit into 64 bits");
    args[1] = arg_rank(1, 0);
    args[1].as.rank.group = "other";
    CHECK_STATUS(shoal_graph_call(graph, find_op("narrow"), args, 4, NULL, &bad), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("other");
    /* Inside of lists as well. */
    shoal_arg shape[] = {int_arg(4), arg_rank(1, 8)};
    CHECK_STATUS(shoal_graph_call(graph, find_op("view"), (shoal_arg[]){node_arg(x), list_arg(shape, 2)}, 2,
                                  NULL, &bad),
                 SHOAL_ERR_INVALID);
    CHECK(!bad);
    shoal_graph_free(graph);
}

/* Which memory it is may not depend on the rank, also where only a rank in the middle differs: a list of views may be indexed by the
   rank, one of several tensors may not. */
TEST(which_memory_may_not_depend_on_the_rank)
{
    shoal_graph *graph = make_grouped(3);
    shoal_node *x = add_input(graph, "x", 6, 4);
    shoal_node *y = add_input(graph, "y", 2, 4);
    shoal_node *z = add_input(graph, "z", 2, 4);
    shoal_node *pieces = call(graph, "split", (shoal_arg[]){node_arg(x), int_arg(2)}, 2);
    REQUIRE(pieces);
    CHECK(call(graph, "getitem", (shoal_arg[]){node_arg(pieces), arg_rank(1, 0)}, 2));
    shoal_arg same[] = {node_arg(y), node_arg(y), node_arg(y)};
    CHECK(call(graph, "getitem", (shoal_arg[]){list_arg(same, 3), arg_rank(1, 0)}, 2));
    shoal_node *bad = NULL;
    shoal_arg last[] = {node_arg(y), node_arg(y), node_arg(z)};
    CHECK_STATUS(shoal_graph_call(graph, find_op("getitem"), (shoal_arg[]){list_arg(last, 3), arg_rank(1, 0)},
                                  2, NULL, &bad),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("getitem: it gives other memory on the first rank than on the last one");
    shoal_arg middle[] = {node_arg(y), node_arg(z), node_arg(y)};
    CHECK_STATUS(shoal_graph_call(graph, find_op("getitem"),
                                  (shoal_arg[]){list_arg(middle, 3), arg_rank(1, 0)}, 2, NULL, &bad),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("getitem: it gives other memory on the first rank than on rank 1");
    middle[1] = node_arg(x);
    CHECK_STATUS(shoal_graph_call(graph, find_op("getitem"),
                                  (shoal_arg[]){list_arg(middle, 3), arg_rank(1, 0)}, 2, NULL, &bad),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("getitem: it gives f32 [2, 4] on the first rank, and f32 [6, 4] on rank 1");
    CHECK(!bad);
    shoal_graph_free(graph);
}

TEST(the_number_of_pieces_may_not_depend_on_the_rank)
{
    shoal_graph *graph = make_grouped(2);
    shoal_node *x = add_input(graph, "x", 8, 4);
    shoal_node *bad = NULL;
    CHECK_STATUS(
        shoal_graph_call(graph, find_op("split"), (shoal_arg[]){node_arg(x), arg_rank(2, 2)}, 2, NULL, &bad),
        SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("split: it gives 4 tensors on the first rank, and 2 on the last one");
    /* A factor of 0 is a number like others. */
    CHECK(call(graph, "split", (shoal_arg[]){node_arg(x), arg_rank(0, 2)}, 2));
    shoal_graph_free(graph);
}

TEST(some_ranks_may_not_be_left_out_of_a_permutation)
{
    shoal_graph *graph = make_grouped(3);
    shoal_node *x = add_input(graph, "x", 8, 4);
    shoal_node *bad = NULL;
    shoal_arg places[] = {int_arg(2), int_arg(0), int_arg(1)};
    shoal_arg args[] = {node_arg(x), list_arg(places, 3), {.kind = SHOAL_ARG_GROUP, .as.string = "g"}};
    CHECK(call(graph, "permute_tensor", args, 3));
    args[1] = list_arg(places, 2);
    CHECK_STATUS(shoal_graph_call(graph, find_op("permute_tensor"), args, 3, NULL, &bad), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("permute_tensor: destinations: 2 of 3 ranks send");
    shoal_graph_free(graph);
}

/* Constants -------------------------------------------------------------------------------------------- */

static shoal_node *add_constant(shoal_graph *graph, const char *name, shoal_tensor *tensor)
{
    shoal_node *node = NULL;
    CHECK_OK(shoal_graph_constant(graph, name, tensor, &node));
    return node;
}

TEST(constants_mix_with_inputs_and_their_views_share)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_graph *graph = make_grouped(2);
    shoal_tensor *tensor = shoal_full((int64_t[]){4, 4}, 2, 3.0, SHOAL_F32);
    shoal_node *x = add_input(graph, "x", 4, 4);
    shoal_node *c = add_constant(graph, "c", tensor);
    shoal_node *half = add_constant(graph, "half", shoal_narrow(tensor, 0, 2, 2));
    REQUIRE(x && c && half);
    shoal_node *sum = call(graph, "add", (shoal_arg[]){node_arg(x), node_arg(c)}, 2);
    shoal_node *turned = call(graph, "transpose", (shoal_arg[]){node_arg(c), int_arg(0), int_arg(1)}, 3);
    shoal_node *row = call(graph, "select", (shoal_arg[]){node_arg(half), int_arg(0), int_arg(1)}, 3);
    shoal_node *changed = call(graph, "add_", (shoal_arg[]){node_arg(c), node_arg(x)}, 2);
    REQUIRE(sum && turned && row && changed);
    const struct storage *storage = shoal_node_value(turned, 0)->storage;
    CHECK_INT(storage->device, SHOAL_META);
    CHECK_INT(shoal_node_value(sum, 0)->storage->device, SHOAL_META);
    CHECK(shoal_node_value(row, 0)->storage == storage);
    CHECK(shoal_node_value(changed, 0)->storage == storage);
    CHECK(shoal_node_value(sum, 0)->storage != storage);
    CHECK_INT(shoal_node_value(row, 0)->layout.offset, 12);
    /* Nothing ran. */
    CHECK_DOUBLE((double)*(const float *)shoal_data(tensor), 3.0);
    CHECK_INT(atomic_load(&tensor->storage->version), 0);
    shoal_graph_free(graph);
    CHECK_OK(shoal_scope_end());
}

TEST(a_constant_that_needs_a_gradient_records_nothing)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_graph *graph = make_grouped(2);
    shoal_tensor *tensor = shoal_full((int64_t[]){4}, 1, 3.0, SHOAL_F32);
    CHECK_OK(shoal_set_requires_grad(tensor, true));
    shoal_node *c = add_constant(graph, "c", tensor);
    shoal_node *sum = call(graph, "add", (shoal_arg[]){node_arg(c), node_arg(c)}, 2);
    REQUIRE(sum);
    CHECK(!shoal_node_value(sum, 0)->history);
    shoal_graph_free(graph);
    CHECK_OK(shoal_scope_end());
}

/* Factories are on the meta device, whatever they say; an unknown device is still an error. */
TEST(factories_make_nothing)
{
    shoal_graph *graph = make_grouped(2);
    shoal_arg shape[] = {int_arg(INT64_C(1) << 20), int_arg(INT64_C(1) << 20)};
    shoal_arg args[] = {list_arg(shape, 2),
                        {.kind = SHOAL_ARG_DTYPE, .as.dtype = SHOAL_F32},
                        {.kind = SHOAL_ARG_STRING, .as.string = "cpu"}};
    shoal_node *zeros = call(graph, "zeros", args, 3);
    REQUIRE(zeros);
    CHECK_INT(shoal_node_value(zeros, 0)->storage->device, SHOAL_META);
    CHECK(call(graph, "empty", args, 2));
    args[2].as.string = "moon";
    shoal_node *bad = NULL;
    CHECK_STATUS(shoal_graph_call(graph, find_op("zeros"), args, 3, NULL, &bad), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("moon");
    shoal_graph_free(graph);
}

/* Registered ops --------------------------------------------------------------------------------------- */

static int n_kernels;

static shoal_status run_nothing(shoal_op_call_context *call, const shoal_value *arguments,
                                shoal_tensor *const *outputs, size_t n_outputs)
{
    n_kernels++;
    return SHOAL_OK;
}

static shoal_status meta_square(shoal_op_call_context *call, const shoal_value *arguments)
{
    int64_t n = arguments[0].as.integer;
    if (n < 0) {
        return shoal_fail(SHOAL_ERR_INVALID, "n is %d, and squares are not that small", (int)n);
    }
    return shoal_op_output(call, (int64_t[]){n, n}, 2, SHOAL_F64);
}

static shoal_status meta_ranks(shoal_op_call_context *call, const shoal_value *arguments)
{
    return shoal_op_output(call, (int64_t[]){shoal_group_n_ranks(arguments[1].as.group)}, 1, SHOAL_I64);
}

static const shoal_op *register_op(const char *name, const char *signature, uint32_t flags,
                                   shoal_op_meta meta)
{
    const shoal_op *op = NULL;
    shoal_op_definition definition = SHOAL_OP_DEFINITION_INIT;
    definition.name = name;
    definition.signature = signature;
    definition.flags = flags;
    definition.meta = meta;
    definition.kernel = run_nothing;
    size_t n_blocks = test_live_blocks();
    CHECK_OK(shoal_op_register(&definition, &op));
    test_keep_blocks(test_live_blocks() - n_blocks);
    return op;
}

TEST(registered_ops_are_asked_and_not_run)
{
    const shoal_op *square = register_op("infer.square", "int n -> tensor", SHOAL_OP_FACTORY, meta_square);
    const shoal_op *fill =
        register_op("infer.fill_", "tensor self, tensor? other -> tensor", SHOAL_OP_IN_PLACE, NULL);
    const shoal_op *ranks = register_op("infer.ranks", "tensor self, group group -> tensor", 0, meta_ranks);
    REQUIRE(square && fill && ranks);
    shoal_graph *graph = make_grouped(3);
    shoal_node *made = NULL;
    shoal_node *filled = NULL;
    shoal_node *counted = NULL;
    shoal_arg n = int_arg(3);
    REQUIRE_OK(shoal_graph_call(graph, square, &n, 1, NULL, &made));
    CHECK_INT(shoal_node_value(made, 0)->storage->device, SHOAL_META);
    CHECK_INT(shoal_node_value(made, 0)->count, 9);
    shoal_arg args[] = {node_arg(made), {.kind = SHOAL_ARG_NONE}};
    REQUIRE_OK(shoal_graph_call(graph, fill, args, 2, NULL, &filled));
    CHECK(shoal_node_value(filled, 0)->storage == shoal_node_value(made, 0)->storage);
    args[1] = (shoal_arg){.kind = SHOAL_ARG_GROUP, .as.string = "g"};
    REQUIRE_OK(shoal_graph_call(graph, ranks, args, 2, NULL, &counted));
    CHECK_INT(shoal_node_value(counted, 0)->layout.shape[0], 3);
    n = int_arg(-1);
    CHECK_STATUS(shoal_graph_call(graph, square, &n, 1, NULL, &made), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("infer.square: n is -1, and squares are not that small");
    CHECK_INT(n_kernels, 0);
    shoal_graph_free(graph);
}

/* Scopes and memory ------------------------------------------------------------------------------------ */

/* A graph is made with or without a scope, and a scope's error stays what it was. */
TEST(scopes_around_do_not_matter)
{
    CHECK_OK(shoal_scope_begin());
    CHECK(!shoal_neg(NULL));
    shoal_graph *graph = make_grouped(2);
    shoal_node *x = add_input(graph, "x", 4, 4);
    CHECK(call(graph, "neg", (shoal_arg[]){node_arg(x)}, 1));
    shoal_node *bad = NULL;
    CHECK_STATUS(shoal_graph_call(graph, find_op("view"), (shoal_arg[]){node_arg(x), list_arg(NULL, 0)}, 2,
                                  NULL, &bad),
                 SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("neg");
    shoal_graph_free(graph);
}

static shoal_status build_with(void *context)
{
    shoal_tensor *tensor = context;
    shoal_graph *graph = NULL;
    shoal_node *c = NULL;
    shoal_node *pieces = NULL;
    shoal_node *joined = NULL;
    shoal_node *sent = NULL;
    shoal_status status = shoal_graph_create(&graph);
    if (status == SHOAL_OK) {
        status = shoal_graph_add_group(graph, "g", (int[]){0, 1}, 1, 2);
    }
    if (status == SHOAL_OK) {
        status = shoal_graph_constant(graph, "c", tensor, &c);
    }
    if (status == SHOAL_OK) {
        shoal_arg args[] = {node_arg(c), arg_rank(0, 1)};
        status = shoal_graph_call(graph, find_op("split"), args, 2, NULL, &pieces);
    }
    if (status == SHOAL_OK) {
        shoal_arg items[] = {node_arg(c), node_arg(c)};
        shoal_arg list = list_arg(items, 2);
        status = shoal_graph_call(graph, find_op("cat"), &list, 1, NULL, &joined);
    }
    if (status == SHOAL_OK) {
        shoal_arg args[] = {node_arg(joined), int_arg(0), {.kind = SHOAL_ARG_GROUP, .as.string = "g"}};
        status = shoal_graph_call(graph, find_op("all_gather_tensor"), args, 3, NULL, &sent);
    }
    shoal_graph_free(graph);
    return status;
}

TEST(memory_may_be_missing)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = shoal_full((int64_t[]){12}, 1, 1.0, SHOAL_F32);
    CHECK(shoal_tensor_ref(tensor) == tensor);
    CHECK_OK(shoal_scope_end()); /* which keeps spare blocks */
    CHECK(test_sweep_allocations(build_with, tensor) > 20);
    shoal_tensor_unref(tensor);
}

/* Taking a long list apart touches each tensor once. */
TEST(long_lists)
{
    enum {
        N = 20000
    };
    shoal_graph *graph = make_grouped(2);
    shoal_node *x = add_input(graph, "x", N, 1);
    shoal_node *pieces = call(graph, "split", (shoal_arg[]){node_arg(x), int_arg(1)}, 2);
    REQUIRE(pieces);
    CHECK_INT(shoal_node_n_values(pieces), N);
    const shoal_op *getitem = find_op("getitem");
    for (int64_t i = 0; i < N && !test_has_failed(); i++) {
        shoal_node *item = NULL;
        CHECK_OK(
            shoal_graph_call(graph, getitem, (shoal_arg[]){node_arg(pieces), int_arg(i)}, 2, NULL, &item));
        CHECK(item && shoal_node_value(item, 0) == shoal_node_value(pieces, (size_t)i));
    }
    shoal_graph_free(graph);
}
