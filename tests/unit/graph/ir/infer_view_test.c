/* SPDX-License-Identifier: MIT */
/* Rules for views say what the meta functions of the ops say, wherever they say anything. */
#include "graph/ir/infer_view.h"

#include <string.h>

#include "op/box.h"
#include "op/dispatch.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "tensor/tensor.h"
#include "unit/graph/building.h"

enum {
    N_ROUNDS = 20000,
    MAX_SIZES = 5
};

/* A call, once with arguments of a graph and once boxed. */
struct call {
    enum op_id id;
    shoal_arg args[3];
    shoal_value values[3];
    size_t n_args;
    shoal_arg items[MAX_SIZES];
    int64_t sizes[MAX_SIZES];
};

static shoal_tensor *infer_by_meta(const struct call *call, struct slab *slab)
{
    shoal_op_call_context context;
    if (op_infer_begin(op_get(call->id), call->values, call->n_args, slab, &context) != SHOAL_OK) {
        return NULL;
    }
    shoal_tensor *tensor = context.outputs[0].tensor;
    op_infer_end(&context);
    return tensor;
}

static void check_same(const shoal_tensor *found, const shoal_tensor *expected)
{
    size_t bytes = (size_t)expected->layout.n_dims * sizeof expected->layout.shape[0];
    REQUIRE(found->layout.n_dims == expected->layout.n_dims);
    CHECK(memcmp(found->layout.shape, expected->layout.shape, bytes) == 0);
    CHECK(memcmp(found->layout.strides, expected->layout.strides, bytes) == 0);
    CHECK_INT(found->layout.offset, expected->layout.offset);
    CHECK_INT(found->count, expected->count);
    CHECK_INT(found->dtype, expected->dtype);
    CHECK_INT(found->device, expected->device);
    CHECK(found->storage == expected->storage);
    CHECK(found->is_view == expected->is_view);
    CHECK(found->is_contiguous == expected->is_contiguous);
    CHECK(found->is_detached == expected->is_detached);
    CHECK(!found->history && !found->is_dead && !found->has_landed && !found->is_averaged);
}

/* Whether there was a rule. */
static bool compare(shoal_graph *graph, const struct call *call)
{
    shoal_tensor *found = NULL;
    CHECK_OK(infer_view(graph, op_get(call->id), call->args, &found));
    if (!found) {
        return false;
    }
    shoal_tensor *expected = infer_by_meta(call, &graph->shapes);
    CHECK(expected != NULL);
    if (expected) {
        check_same(found, expected);
    }
    shoal_tensor_unref(found);
    shoal_tensor_unref(expected);
    return true;
}

/* Inputs ------------------------------------------------------------------------------------------------- */

static int64_t random_size(struct test_random *random)
{
    static const int64_t sizes[] = {0, 1, 1, 2, 2, 3, 4};
    return sizes[test_random_below(random, sizeof sizes / sizeof sizes[0])];
}

/* A tensor, whole, a part of one, or turned. */
static shoal_node *make_random(shoal_graph *graph, struct test_random *random)
{
    int64_t shape[4];
    int n_dims = (int)test_random_below(random, 5);
    shoal_node *node = NULL;
    for (int i = 0; i < n_dims; i++) {
        shape[i] = random_size(random);
    }
    CHECK_OK(shoal_graph_placeholder(graph, "x", shape, n_dims, SHOAL_F32, &node));
    uint64_t way = n_dims > 0 ? test_random_below(random, 4) : 0;
    if (way == 1 && shape[0] > 0) {
        shoal_arg args[] = {node_arg(node), int_arg(0), int_arg(shape[0] - 1), int_arg(1)};
        CHECK_OK(shoal_graph_call(graph, find_op("narrow"), args, 4, NULL, &node));
    } else if (way == 2) {
        shoal_arg args[] = {node_arg(node), int_arg(0), int_arg(-1)};
        CHECK_OK(shoal_graph_call(graph, find_op("transpose"), args, 3, NULL, &node));
    }
    return node;
}

/* Sizes that multiply to the count more often than not; some are -1, or make up something else. */
static void add_sizes(struct call *call, struct test_random *random, int64_t count)
{
    size_t n_sizes = test_random_below(random, MAX_SIZES + 1);
    int64_t left = count;
    for (size_t i = 0; i < n_sizes; i++) {
        int64_t size = random_size(random);
        size = size > 0 && left % size != 0 ? 1 : size;
        size = i + 1 == n_sizes && test_random_below(random, 8) > 0 ? left : size;
        size = test_random_below(random, 20) == 0 ? -1 : size;
        left = size > 0 ? left / size : left;
        call->sizes[i] = size;
        call->items[i] = int_arg(size);
    }
    call->args[1] = list_arg(call->items, n_sizes);
    call->values[1] = box_ints(call->sizes, n_sizes);
    call->n_args = 2;
}

static void add_int(struct call *call, int64_t value)
{
    call->args[call->n_args] = int_arg(value);
    call->values[call->n_args++] = box_int(value);
}

static void fill_random(struct call *call, struct test_random *random, shoal_node *node)
{
    static const enum op_id ids[] = {OP_flatten, OP_reshape, OP_view};
    call->id = ids[test_random_below(random, 3)];
    call->args[0] = node_arg(node);
    call->values[0] = box_tensor(node->values[0]);
    call->n_args = 1;
    if (call->id != OP_flatten) {
        add_sizes(call, random, node->values[0]->count);
        return;
    }
    bool is_whole = test_random_below(random, 2) == 0;
    add_int(call, is_whole ? 0 : (int64_t)test_random_below(random, 7) - 3);
    add_int(call, is_whole ? -1 : (int64_t)test_random_below(random, 7) - 3);
}

TEST(shapes_are_those_of_the_meta_functions)
{
    struct test_random random = test_random_begin(0);
    shoal_graph *graph = make_graph();
    size_t n_rules = 0;
    for (size_t i = 0; i < N_ROUNDS; i++) {
        struct call call = {.n_args = 0};
        fill_random(&call, &random, make_random(graph, &random));
        n_rules += compare(graph, &call) ? 1 : 0;
    }
    CHECK(n_rules > N_ROUNDS / 8);
    shoal_graph_free(graph);
}

TEST(items_are_those_of_the_list)
{
    shoal_graph *graph = make_graph();
    shoal_node *input = make_input(graph, "x");
    shoal_node *list = NULL;
    shoal_tensor *item;
    shoal_arg split[] = {node_arg(input), int_arg(1), int_arg(0)};
    REQUIRE_OK(shoal_graph_call(graph, find_op("split"), split, 3, NULL, &list));
    int64_t count = (int64_t)list->n_values;
    REQUIRE(count > 1);
    for (int64_t index = -count - 1; index <= count; index++) {
        shoal_arg args[] = {node_arg(list), int_arg(index)};
        REQUIRE_OK(infer_view(graph, op_get(OP_getitem), args, &item));
        CHECK(item == (index >= 0 && index < count ? list->values[index] : NULL));
        shoal_tensor_unref(item);
    }
    shoal_arg of_one[] = {node_arg(input), int_arg(0)}; /* no list: the meta function refuses it */
    REQUIRE_OK(infer_view(graph, op_get(OP_getitem), of_one, &item));
    CHECK(!item);
    shoal_graph_free(graph);
}

/* What is the same on all ranks is for the meta function to find out, and so is what a constant gives. */
TEST(constants_and_ranks_have_no_rule)
{
    shoal_graph *graph = make_graph();
    const int64_t shape[] = {2, 3};
    shoal_node *constant = NULL;
    shoal_tensor *tensor;
    REQUIRE_OK(shoal_scope_begin());
    REQUIRE_OK(shoal_graph_constant(graph, "c", shoal_zeros(shape, 2, SHOAL_F32), &constant));
    REQUIRE_OK(shoal_scope_end());
    shoal_arg flat[] = {node_arg(constant), int_arg(0), int_arg(-1)};
    REQUIRE_OK(infer_view(graph, op_get(OP_flatten), flat, &tensor));
    CHECK(!tensor);
    shoal_arg sizes[] = {{.kind = SHOAL_ARG_RANK, .as.rank = {.group = "g", .factor = 0, .offset = 4}}};
    shoal_arg reshape[] = {node_arg(make_input(graph, "x")), list_arg(sizes, 1)};
    REQUIRE_OK(infer_view(graph, op_get(OP_reshape), reshape, &tensor));
    CHECK(!tensor);
    shoal_graph_free(graph);
}
