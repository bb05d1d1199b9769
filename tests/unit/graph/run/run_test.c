/* SPDX-License-Identifier: MIT */
/* Running graphs: what the calls give that a graph stands for, bit by bit, on one rank and between ranks. */
#include "unit/graph/running.h"
#include "unit/graph/run_texts.h"

#include "fixtures/world_allocations.h"
#include "shoal_compat/torch.h"

/* Without ranks ------------------------------------------------------------------------------------------ */

static void views_eager(shoal_group *group, shoal_tensor *const *in, shoal_tensor **out)
{
    (void)group;
    float numbers[] = {1.5F, -2.0F, 0.1F, 3.0F, 0.7F, -0.3F};
    shoal_tensor *w = shoal_from_memory(numbers, (int64_t[]){6}, 1, SHOAL_F32, NULL, NULL, NULL);
    shoal_tensor *t = shoal_transpose(in[0], 0, 1);
    shoal_tensor *r = shoal_reshape(t, (int64_t[]){24}, 1);
    shoal_tensor *first = shoal_narrow(in[0], 0, 0, 1);
    shoal_tensor *last = shoal_narrow(in[0], 0, 1, 3);
    (void)shoal_add_(shoal_select(last, 0, 1), in[1]);
    (void)shoal_copy_(in[1], w);
    shoal_tensor *m = shoal_mul(in[1], first);
    out[0] = shoal_cat((shoal_tensor *[]){first, last, m}, 3, 0);
    out[1] = shoal_to_dtype(out[0], SHOAL_BF16);
    out[2] = r;
    out[3] = first;
    out[4] = last;
    out[5] = t;
    out[6] = in[0];
}

WORLD_TEST(views_lists_and_writes)
{
    run_check(world, views_text, 7, views_eager);
    run_check(world, views_text, 7, views_eager);
}

TEST(no_world_is_needed_without_groups)
{
    shoal_tensor *inputs[2];
    shoal_tensor *outputs[7];
    size_t n_live = test_live_blocks();
    shoal_graph *graph = run_parse(views_text, 1);
    REQUIRE(graph != NULL);
    CHECK_INT(run_inputs(graph, 0, inputs), 2);
    REQUIRE_OK(shoal_graph_run(graph, NULL, inputs, 2, outputs, 7));
    CHECK(outputs[6] == inputs[0]);
    CHECK(shoal_tensor_shares_storage(outputs[5], inputs[0]));
    CHECK(!shoal_tensor_shares_storage(outputs[0], inputs[0]));
    shoal_graph_free(graph);
    run_unref(outputs, 7);
    run_unref(inputs, 2);
    CHECK_INT(test_live_blocks(), n_live);
}

/* Dead code goes, and absent outputs keep their places. */
TEST(absent_outputs_are_null)
{
    static const char text[] = "graph {\n%x = placeholder : f32[3]\n%y = neg(%x)\n%dead = neg(%y)\n"
                               "%s = split_with_sizes(%y, [1, 2], 0)\nreturn [none, %y, [%s, none], none]\n}";
    shoal_tensor *input = NULL;
    shoal_tensor *outputs[6];
    size_t n_live = test_live_blocks();
    shoal_graph *graph = run_parse(text, 1);
    REQUIRE(graph != NULL);
    CHECK_INT(run_inputs(graph, 0, &input), 1);
    for (int round = 0; round < 2; round++) {
        memset(outputs, 0xff, sizeof outputs);
        REQUIRE_OK(shoal_graph_run(graph, NULL, &input, 1, outputs, 6));
        CHECK(outputs[0] == NULL && outputs[4] == NULL && outputs[5] == NULL);
        for (size_t i = 1; i < 4; i++) {
            CHECK(outputs[i] != NULL && shoal_tensor_count(outputs[i]) == (i == 1 ? 3 : (int64_t)i - 1));
        }
        run_unref(outputs, 6);
        CHECK_OK(shoal_graph_remove_dead(graph, NULL));
        CHECK(shoal_graph_find(graph, "dead") == NULL);
    }
    CHECK_STATUS(shoal_graph_run(graph, NULL, &input, 1, outputs, 3), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("n_outputs is 3, but the graph has 6 outputs");
    shoal_graph_free(graph);
    shoal_tensor_unref(input);
    CHECK_INT(test_live_blocks(), n_live);
}

TEST(a_node_behind_the_output_is_refused)
{
    shoal_graph *graph = run_parse("graph {\n%x = placeholder : f32[3]\n%y = neg(%x)\nreturn [%y]\n}", 1);
    const shoal_op *neg = NULL;
    shoal_tensor *input = NULL;
    shoal_tensor *output = NULL;
    REQUIRE(graph != NULL);
    REQUIRE_OK(shoal_op_find("neg", &neg));
    shoal_arg arg = {.kind = SHOAL_ARG_NODE, .as.node = shoal_graph_find(graph, "y")};
    REQUIRE_OK(shoal_graph_call(graph, neg, &arg, 1, "late", NULL));
    CHECK_INT(run_inputs(graph, 0, &input), 1);
    CHECK_STATUS(shoal_graph_run(graph, NULL, &input, 1, &output, 1), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("%late comes after the output");
    CHECK(output == NULL);
    shoal_tensor_unref(input);
    shoal_graph_free(graph);
}

/* The first and the last rank get as many elements as the graph says, the one between them fewer. */
TEST_RANKS(a_shape_of_some_ranks_is_refused, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_graph *graph = run_parse("graph {\ngroup @g = [[0, 1, 2]]\n%x = placeholder : f32[8]\n"
                                   "%s = slice(%x, 0, rank(@g) * 4 - 8, 8)\n%p = split(%s, 4)\n"
                                   "%y = getitem(%p, 1)\nreturn [%y]\n}",
                                   3);
    REQUIRE(graph != NULL);
    shoal_tensor *input = NULL;
    shoal_tensor *output = NULL;
    CHECK_INT(run_inputs(graph, self->rank, &input), 1);
    shoal_status status = shoal_graph_run(graph, world, &input, 1, &output, 1);
    if (self->rank == 1) {
        CHECK_STATUS(status, SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("%s: tensor 0 of slice has another shape or dtype here than in the graph");
    } else {
        CHECK_OK(status);
        shoal_tensor_unref(output);
    }
    shoal_tensor_unref(input);
    shoal_graph_free(graph);
    CHECK_OK(shoal_world_close(world));
}

/* What an input wants of gradients is not asked, and the scope of the caller gets nothing. */
TEST(gradients_and_scopes_of_the_caller_stay)
{
    shoal_graph *graph =
        run_parse("graph {\n%x = placeholder : f32[3]\n%y = add_(%x, %x)\nreturn [%y]\n}", 1);
    REQUIRE(graph != NULL);
    shoal_tensor *input = NULL;
    shoal_tensor *output = NULL;
    CHECK_INT(run_inputs(graph, 0, &input), 1);
    CHECK_OK(shoal_set_requires_grad(input, true));
    REQUIRE_OK(shoal_scope_begin());
    CHECK(shoal_full((int64_t[]){-1}, 1, 0, SHOAL_F32) == NULL); /* the caller's scope has an error */
    CHECK_OK(shoal_graph_run(graph, NULL, &input, 1, &output, 1));
    CHECK(shoal_scope_has_grad());
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK(output == input);
    CHECK_DOUBLE((double)((const float *)shoal_data(output))[0], (double)(2 * (1.0F / 3)));
    shoal_tensor_unref(output);
    shoal_tensor_unref(input);
    shoal_graph_free(graph);
}

/* Blocks that were live when a call ran: as many, and at most. */
static size_t n_probes;
static size_t most_blocks;

static shoal_status probe_meta(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    return shoal_op_output(call, shoal_tensor_shape(self), shoal_tensor_n_dims(self),
                           shoal_tensor_dtype(self));
}

static shoal_status probe_kernel(shoal_op_call_context *call, const shoal_value *arguments,
                                 shoal_tensor *const *outputs, size_t n_outputs)
{
    (void)call;
    (void)n_outputs;
    size_t n_blocks = test_live_blocks();
    n_probes++;
    most_blocks = n_blocks > most_blocks ? n_blocks : most_blocks;
    memcpy(shoal_mutable_data(outputs[0]), shoal_data(arguments[0].as.tensor),
           (size_t)shoal_tensor_count(outputs[0]) * sizeof(float));
    return SHOAL_OK;
}

static const shoal_op *register_probe(void)
{
    static const shoal_op *probe;
    size_t n_live = test_live_blocks();
    shoal_op_definition definition = SHOAL_OP_DEFINITION_INIT;
    definition.name = "test.probe";
    definition.signature = "tensor self -> tensor";
    definition.meta = probe_meta;
    definition.kernel = probe_kernel;
    definition.doc = "A copy, and how much memory there was.";
    CHECK_OK(shoal_op_register(&definition, &probe));
    test_keep_blocks(test_live_blocks() - n_live);
    return probe;
}

/* A chain needs two tensors at a time, however long it is, and what nobody uses is not kept. */
TEST(values_end_with_their_last_user)
{
    shoal_graph *graph = NULL;
    shoal_node *node = NULL;
    const shoal_op *probe = register_probe();
    REQUIRE(probe != NULL);
    REQUIRE_OK(shoal_graph_create(&graph));
    CHECK_OK(shoal_graph_placeholder(graph, "x", (int64_t[]){100}, 1, SHOAL_F32, &node));
    for (int i = 0; i < 200; i++) {
        shoal_arg arg = {.kind = SHOAL_ARG_NODE, .as.node = node};
        CHECK_OK(shoal_graph_call(graph, probe, &arg, 1, NULL, NULL)); /* unused */
        REQUIRE_OK(shoal_graph_call(graph, probe, &arg, 1, NULL, &node));
    }
    shoal_arg arg = {.kind = SHOAL_ARG_NODE, .as.node = node};
    REQUIRE_OK(shoal_graph_output(graph, &arg, NULL));
    shoal_tensor *input = run_input(shoal_node_value(shoal_graph_first(graph), 0), 0, 0);
    shoal_tensor *output = NULL;
    size_t n_live = test_live_blocks();
    n_probes = 0;
    most_blocks = 0;
    CHECK_OK(shoal_graph_run(graph, NULL, &input, 1, &output, 1));
    CHECK_INT(n_probes, 400);
    CHECK(most_blocks < n_live + 20);
    run_check_same("output", 0, output, input);
    shoal_tensor_unref(output);
    shoal_tensor_unref(input);
    shoal_graph_free(graph);
}

/* Collectives -------------------------------------------------------------------------------------------- */

static void reduces_eager(shoal_group *group, shoal_tensor *const *in, shoal_tensor **out)
{
    out[0] = shoal_all_reduce(in[0], SHOAL_SUM, group);
    out[1] = shoal_all_reduce(in[1], SHOAL_AVG, group);
    out[2] = shoal_all_reduce_premul(in[0], 0.3, group);
    out[3] = shoal_all_reduce(in[2], SHOAL_MAX, group);
    out[4] = shoal_all_reduce_(in[1], SHOAL_MIN, group);
    shoal_tensor *const *list =
        shoal_all_reduce_coalesced((shoal_tensor *[]){in[0], out[0]}, 2, SHOAL_SUM, group);
    out[5] = list ? list[0] : NULL;
    out[6] = list ? list[1] : NULL;
    out[7] = out[6];
    list = shoal_all_reduce_coalesced_((shoal_tensor *[]){in[3], out[2]}, 2, SHOAL_AVG, group);
    out[8] = list ? list[0] : NULL;
    out[9] = list ? list[1] : NULL;
    out[10] = shoal_reduce(in[0], SHOAL_SUM, 0, group);
}

WORLD_TEST(reductions)
{
    run_check(world, reduces_text, 11, reduces_eager);
    run_check(world, reduces_text, 11, reduces_eager); /* in the same groups */
}

static void take_two(shoal_tensor *const *list, shoal_tensor **out)
{
    out[0] = list ? list[0] : NULL;
    out[1] = list ? list[1] : NULL;
}

static void moves_eager(shoal_group *group, shoal_tensor *const *in, shoal_tensor **out)
{
    int64_t turned[8];
    int n_ranks = shoal_group_n_ranks(group);
    for (int i = 0; i < n_ranks; i++) {
        turned[i] = (i + 1) % n_ranks;
    }
    out[0] = shoal_all_gather_into_tensor(in[0], group);
    out[1] = shoal_all_gather_tensor(in[1], 1, group);
    take_two(shoal_all_gather_into_tensor_coalesced((shoal_tensor *[]){in[0], in[2]}, 2, group), out + 2);
    out[4] = shoal_all_gather_into_tensor_out(in[0], group, out[0]);
    out[5] = shoal_reduce_scatter_tensor(in[0], SHOAL_SUM, 0, group);
    out[6] = shoal_reduce_scatter_tensor(in[0], SHOAL_AVG, 1, group);
    take_two(shoal_reduce_scatter_tensor_coalesced((shoal_tensor *[]){in[0], in[0]}, 2, SHOAL_SUM,
                                                   (int64_t[]){0, 1}, group),
             out + 7);
    out[9] = shoal_reduce_scatter_tensor_out(in[2], SHOAL_SUM, group, out[5]);
    out[10] = shoal_all_to_all_single(in[1], NULL, NULL, 0, group);
    out[11] = shoal_shard_dim_alltoall(in[0], 0, 1, group);
    out[12] = shoal_broadcast(in[0], 0, group);
    out[13] = shoal_broadcast_(in[1], 0, group);
    out[14] = shoal_permute_tensor(in[0], turned, (size_t)n_ranks, group);
    out[15] = in[0]; /* this rank's part of what was gathered */
}

WORLD_TEST(data_that_moves)
{
    run_check(world, moves_text, 16, moves_eager);
}

static void p2p_eager(shoal_group *group, shoal_tensor *const *in, shoal_tensor **out)
{
    int peer = 1 - shoal_group_rank(group);
    out[1] = shoal_isend(in[0], peer, 3, group);
    out[0] = shoal_irecv(in[1], peer, 3, group);
    shoal_p2p_op ops[] = {{.direction = SHOAL_SEND, .tensor = in[2], .peer = peer},
                          {.direction = SHOAL_RECV, .tensor = in[3], .peer = peer}};
    take_two(shoal_batch_p2p_ops(ops, 2, group), out + 2);
}

TEST_RANKS(point_to_point, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    run_check(world, p2p_text, 4, p2p_eager);
    CHECK_OK(shoal_world_close(world));
}

/* Groups ------------------------------------------------------------------------------------------------- */

static void mesh_eager(shoal_group *group, shoal_tensor *const *in, shoal_tensor **out)
{
    static const int rows[4][2] = {{0, 1}, {0, 1}, {2, 3}, {2, 3}};
    static const int columns[4][2] = {{2, 0}, {1, 3}, {2, 0}, {1, 3}};
    int rank = shoal_group_rank(group);
    shoal_world *world = shoal_group_world(group);
    shoal_group *row = NULL;
    shoal_group *column = NULL;
    REQUIRE_OK(shoal_group_create(world, rows[rank], 2, NULL, &row));
    REQUIRE_OK(shoal_group_create(world, columns[rank], 2, NULL, &column));
    out[0] = shoal_all_gather_into_tensor(in[0], row);
    out[1] = shoal_all_gather_into_tensor(in[0], column);
    out[2] = shoal_all_reduce(in[0], SHOAL_SUM, group);
    out[3] = shoal_all_reduce(in[0], SHOAL_MAX, group);
    out[4] = shoal_narrow(in[0], 0, shoal_group_rank(column) * 2 + 1, 1);
}

static void check_sequence(shoal_world *world, const int *ranks, int n_ranks, const char *tag, uint64_t count)
{
    shoal_group *group = NULL;
    REQUIRE_OK(shoal_group_create(world, ranks, n_ranks, tag, &group));
    CHECK_INT(shoal_group_sequence(group), count);
}

TEST_RANKS(groups_that_overlap, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    run_check(world, mesh_text, 5, mesh_eager);
    run_check(world, mesh_text, 5, mesh_eager);
    /* Same name and ranks, same group; another name, another lane. */
    check_sequence(world, (int[]){0, 1, 2, 3}, 4, "graph:all", 2);
    check_sequence(world, (int[]){0, 1, 2, 3}, 4, "graph:again", 2);
    check_sequence(world, (int[]){0, 1, 2, 3}, 4, "", 4); /* what was called eagerly */
    CHECK_OK(shoal_world_close(world));
}

static const char long_name_text[] =
    "graph {\n"
    "group @abcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghij1 = [[$RANKS]]\n"
    "group @abcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghij2 = [[$RANKS]]\n"
    "%x = placeholder : f32[4]\n"
    "%s1 = all_reduce(%x, \"sum\", "
    "@abcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghij1)\n"
    "%s2 = all_reduce(%x, \"max\", "
    "@abcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghij2)\n"
    "%w2 = wait_tensor(%s2)\n"
    "%w1 = wait_tensor(%s1)\n"
    "return [%w1, %w2]\n}\n";

static void long_name_eager(shoal_group *group, shoal_tensor *const *in, shoal_tensor **out)
{
    out[0] = shoal_all_reduce(in[0], SHOAL_SUM, group);
    out[1] = shoal_all_reduce(in[0], SHOAL_MAX, group);
}

TEST_RANKS(groups_with_long_names, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    run_check(world, long_name_text, 2, long_name_eager);
    CHECK_OK(shoal_world_close(world));
}

/* Errors ------------------------------------------------------------------------------------------------- */

#define SIMPLE                         \
    "graph {\ngroup @g = [[$RANKS]]\n" \
    "%x = placeholder : f32[2, 3]\n"   \
    "%y = placeholder : f32[2]\n"      \
    "%s = all_reduce(%x, \"sum\", @g)\n%w = wait_tensor(%s)\nreturn [%w, %y]\n}"

/* The text in full. */
#define CHECK_RUN(expected_text, status, ...)                          \
    do {                                                               \
        CHECK_STATUS(shoal_graph_run(__VA_ARGS__), status);            \
        CHECK_STRING(shoal_error_text(), "graph_run: " expected_text); \
    } while (0)

static void check_bad_inputs(shoal_world *world, shoal_tensor *x, shoal_tensor *y, shoal_tensor *pair)
{
    shoal_graph *graph = run_parse(SIMPLE, shoal_world_n_ranks(world));
    shoal_tensor *out[3] = {x, x, x};
    REQUIRE(graph != NULL);
    shoal_tensor *flipped = shoal_transpose(pair, 0, 1);
    shoal_tensor *meta = shoal_empty_on((int64_t[]){2}, 1, SHOAL_F32, SHOAL_META);
    shoal_tensor *half = shoal_to_dtype(x, SHOAL_F16);
    CHECK_RUN("graph is NULL", SHOAL_ERR_INVALID, NULL, world, NULL, 0, NULL, 0);
    CHECK_RUN("inputs is NULL, but n_inputs is 2", SHOAL_ERR_INVALID, graph, world, NULL, 2, out, 2);
    CHECK_RUN("outputs is NULL, but n_outputs is 2", SHOAL_ERR_INVALID, graph, world,
              (shoal_tensor *[]){x, y}, 2, NULL, 2);
    CHECK_RUN("n_inputs is 1, but the graph has 2 placeholders", SHOAL_ERR_INVALID, graph, world, &x, 1, out,
              2);
    CHECK_RUN("n_inputs is 3, but the graph has 2 placeholders", SHOAL_ERR_INVALID, graph, world,
              (shoal_tensor *[]){x, y, y}, 3, out, 2);
    CHECK_RUN("%y: input 1 is NULL", SHOAL_ERR_INVALID, graph, world, (shoal_tensor *[]){x, NULL}, 2, out, 2);
    CHECK_RUN("%y: input 1 is f32 [2, 3], but the placeholder is f32 [2]", SHOAL_ERR_INVALID, graph, world,
              (shoal_tensor *[]){x, x}, 2, out, 2);
    CHECK_RUN("%x: input 0 is f16 [2, 3], but the placeholder is f32 [2, 3]", SHOAL_ERR_INVALID, graph, world,
              (shoal_tensor *[]){half, y}, 2, out, 2);
    CHECK_RUN("%x: input 0, f32 [2, 3], is not contiguous: strides [1, 2]", SHOAL_ERR_INVALID, graph, world,
              (shoal_tensor *[]){flipped, y}, 2, out, 2);
    CHECK_RUN("%y: input 1 has no data: it is on device meta", SHOAL_ERR_INVALID, graph, world,
              (shoal_tensor *[]){x, meta}, 2, out, 2);
    CHECK_RUN("n_outputs is 3, but the graph has 2 outputs", SHOAL_ERR_INVALID, graph, world,
              (shoal_tensor *[]){x, y}, 2, out, 3);
    CHECK_RUN("world is NULL, but the graph has group @g", SHOAL_ERR_INVALID, graph, NULL,
              (shoal_tensor *[]){x, y}, 2, out, 2);
    CHECK(out[0] == x && out[1] == x && out[2] == x);
    shoal_graph_free(graph);
}

TEST_RANKS(bad_inputs, 1)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_scope_begin());
    check_bad_inputs(world, shoal_full((int64_t[]){2, 3}, 2, 1, SHOAL_F32),
                     shoal_full((int64_t[]){2}, 1, 1, SHOAL_F32),
                     shoal_full((int64_t[]){3, 2}, 2, 1, SHOAL_F32));
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* The graph takes one input of four floats and gives one tensor. */
static void check_refused(shoal_world *world, const char *text, shoal_status expected, const char *words)
{
    shoal_graph *graph = run_parse(text, world ? shoal_world_n_ranks(world) : 1);
    shoal_tensor *input = NULL;
    shoal_tensor *output = NULL;
    REQUIRE(graph != NULL);
    CHECK_INT(run_inputs(graph, 0, &input), 1);
    CHECK_STATUS(shoal_graph_run(graph, world, &input, 1, &output, 1), expected);
    CHECK_ERROR_TEXT(words);
    CHECK(output == NULL);
    CHECK_INT(shoal_tensor_version(input), 0);
    shoal_tensor_unref(input);
    shoal_graph_free(graph);
}

TEST_RANKS(graphs_that_can_not_run, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    check_refused(NULL,
                  "graph {\n%x = placeholder : f32[4]\n%a = neg_(%x)\n"
                  "%o = opaque \"aten.mul\"(%a, 2) : f32[4]\nreturn %o\n}",
                  SHOAL_ERR_INVALID,
                  "graph_run: %o: there is no op \"aten.mul\" in this program, so the node cannot run");
    check_refused(NULL,
                  "graph {\n%x = placeholder : f32[4]\n%a = neg_(%x)\n"
                  "%c = constant : f32[4]\nreturn %a\n}",
                  SHOAL_ERR_INVALID, "graph_run: %c: the constant has no data");
    check_refused(NULL, "graph {\n%x = placeholder : f32[4]\n%a = neg_(%x)\n}", SHOAL_ERR_STATE,
                  "graph_run: the graph has no output");
    check_refused(world,
                  "graph {\ngroup @g = [[0, 2]]\n%x = placeholder : f32[4]\n%a = neg_(%x)\nreturn %a\n}",
                  SHOAL_ERR_INVALID, "graph_run: group @g has rank 2, but the world has 2 ranks");
    if (self->rank == 1) {
        check_refused(world,
                      "graph {\ngroup @g = [[$RANKS]]\ngroup @alone = [[0]]\n%x = placeholder : f32[4]\n"
                      "%a = neg_(%x)\nreturn %a\n}",
                      SHOAL_ERR_INVALID, "graph_run: group @alone does not have this rank, 1");
    }
    CHECK_OK(shoal_world_close(world));
}

TEST(graphs_out_of_order_do_not_run)
{
    shoal_graph *graph =
        run_parse("graph {\n%x = placeholder : f32[4]\n%a = neg(%x)\n%b = neg(%a)\nreturn %b\n}", 1);
    REQUIRE(graph != NULL);
    shoal_tensor *input = NULL;
    shoal_tensor *output = NULL;
    CHECK_INT(run_inputs(graph, 0, &input), 1);
    CHECK_OK(shoal_node_move_before(shoal_graph_find(graph, "b"), shoal_graph_find(graph, "a")));
    CHECK_STATUS(shoal_graph_run(graph, NULL, &input, 1, &output, 1), SHOAL_ERR_STATE);
    CHECK_OK(shoal_graph_sort(graph));
    CHECK_OK(shoal_graph_run(graph, NULL, &input, 1, &output, 1));
    run_check_same("output", 0, output, input);
    shoal_tensor_unref(output);
    shoal_tensor_unref(input);
    shoal_graph_free(graph);
}

/* An input whose data is gone: it only shows when the call runs. */
TEST(errors_of_ops_name_the_node)
{
    static const int64_t four = 4;
    shoal_tensor *input = NULL;
    shoal_tensor *output = NULL;
    shoal_graph *graph = run_parse("graph {\n%x = placeholder : f32[4]\n%gone = neg(%x)\nreturn %gone\n}", 1);
    REQUIRE(graph != NULL);
    REQUIRE_OK(shoal_scope_begin());
    input = shoal_full(&four, 1, 1, SHOAL_F32);
    CHECK_OK(shoal_tensor_release_data(input));
    CHECK_STATUS(shoal_graph_run(graph, NULL, &input, 1, &output, 1), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("graph_run: %gone: neg: ");
    CHECK(output == NULL);
    CHECK_OK(shoal_scope_end());
    shoal_graph_free(graph);
}

/* Rank 0 runs `mine`, the others `theirs`. */
static void check_mismatch(struct rank *self, const char *mine, const char *theirs, const char *call,
                           const char *other)
{
    struct rank_key key = rank_key(self, 0);
    shoal_world_options options = rank_world_options(self, &key);
    options.timeout_s = 5 * test_time_scale();
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    shoal_graph *graph = run_parse(self->rank == 0 ? mine : theirs, self->n_ranks);
    shoal_tensor *input = NULL;
    shoal_tensor *output = NULL;
    REQUIRE(graph != NULL);
    CHECK_INT(run_inputs(graph, self->rank, &input), 1);
    CHECK_STATUS(shoal_graph_run(graph, world, &input, 1, &output, 1), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("graph_run: %"); /* the start, the wait, or what reads it */
    CHECK_ERROR_TEXT(call);
    CHECK_ERROR_TEXT(other);
    CHECK_ERROR_TEXT("tag \"graph:g\"");
    CHECK(output == NULL);
    shoal_tensor_unref(input);
    shoal_graph_free(graph);
    (void)shoal_world_close(world);
}

#define ONE_CALL(call)                                                           \
    "graph {\ngroup @g = [[$RANKS]]\n%x = placeholder : f32[6]\n%s = " call "\n" \
    "%w = wait_tensor(%s)\n%n = neg(%w)\nreturn %n\n}"

TEST_RANKS(another_reduction_is_a_mismatch, 2)
{
    check_mismatch(self, ONE_CALL("all_reduce(%x, \"sum\", @g)"), ONE_CALL("all_reduce(%x, \"max\", @g)"),
                   "all_reduce f32 sum count 6", "all_reduce f32 max count 6");
}

TEST_RANKS(another_call_is_a_mismatch, 3)
{
    check_mismatch(self, ONE_CALL("all_gather_into_tensor(%x, @g)"), ONE_CALL("all_reduce(%x, \"avg\", @g)"),
                   "all_gather", "all_reduce");
}

TEST_RANKS(another_part_of_the_input_is_a_mismatch, 2)
{
    check_mismatch(self, ONE_CALL("all_reduce(%x, \"sum\", @g)"),
                   "graph {\ngroup @g = [[$RANKS]]\n%x = placeholder : f32[6]\n%p = narrow(%x, 0, 0, 5)\n"
                   "%s = all_reduce(%p, \"sum\", @g)\n%w = wait_tensor(%s)\nreturn %w\n}",
                   "all_reduce f32 sum count 6", "all_reduce f32 sum count 5");
}

/* A rank that calls nothing lets the others wait until their time is up, not for ever. */
TEST_RANKS(a_call_that_is_missing_is_a_timeout, 2)
{
    struct rank_key key = rank_key(self, 0);
    shoal_world_options options = rank_world_options(self, &key);
    options.timeout_s = 0.3 * test_time_scale();
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    shoal_graph *graph = run_parse(
        self->rank == 0
            ? ONE_CALL("all_reduce(%x, \"sum\", @g)")
            : "graph {\ngroup @g = [[$RANKS]]\n%x = placeholder : f32[6]\n%n = neg(%x)\nreturn %n\n}",
        2);
    shoal_tensor *input = NULL;
    shoal_tensor *output = NULL;
    REQUIRE(graph != NULL);
    CHECK_INT(run_inputs(graph, self->rank, &input), 1);
    CHECK_STATUS(shoal_graph_run(graph, world, &input, 1, &output, 1),
                 self->rank == 0 ? SHOAL_ERR_TIMEOUT : SHOAL_OK);
    if (self->rank == 0) {
        CHECK_ERROR_TEXT("all_reduce f32 sum count 6");
    }
    test_barrier(self);
    shoal_tensor_unref(output);
    shoal_tensor_unref(input);
    shoal_graph_free(graph);
    (void)shoal_world_close(world);
}

/* Allocations -------------------------------------------------------------------------------------------- */

struct sweep {
    shoal_graph *graph;
    shoal_world *world;
    shoal_tensor *inputs[8];
    size_t n_inputs;
    size_t n_outputs;
};

/* On copies of the inputs: what is written to stays in flight, and would be there in the next run. */
static shoal_status run_and_forget(void *context)
{
    struct sweep *sweep = context;
    shoal_tensor *inputs[8] = {NULL};
    shoal_tensor *outputs[RUN_MAX] = {NULL};
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    for (size_t i = 0; i < sweep->n_inputs; i++) {
        inputs[i] = shoal_clone(sweep->inputs[i]);
    }
    status = shoal_scope_error();
    if (status == SHOAL_OK) {
        status =
            shoal_graph_run(sweep->graph, sweep->world, inputs, sweep->n_inputs, outputs, sweep->n_outputs);
        CHECK((status == SHOAL_OK) == (outputs[0] != NULL));
        run_unref(outputs, sweep->n_outputs);
    }
    shoal_status ended = shoal_scope_end();
    return status == SHOAL_OK ? ended : status;
}

/* What a run that failed had started ends when it is over: all of it is, once something later on the group is. */
static void sweep_in_flight(struct sweep *sweep)
{
    shoal_group *group = NULL;
    REQUIRE_OK(shoal_group_create(sweep->world, (int[]){0, 1, 2}, 3, "graph:g", &group));
    for (int is_lasting = 0; is_lasting <= 1; is_lasting++) {
        size_t number = 0;
        size_t count = 1;
        while (number++ <= count && !test_has_failed()) {
            CHECK_OK(shoal_group_barrier(group));
            size_t n_live = test_live_blocks();
            test_fail_allocation(number, is_lasting != 0);
            shoal_status status = run_and_forget(sweep);
            count = test_count_allocations();
            test_fail_allocation(0, false);
            CHECK_STATUS(status, number <= count ? SHOAL_ERR_NO_MEMORY : SHOAL_OK);
            CHECK_OK(shoal_group_barrier(group));
            CHECK_INT(test_live_blocks(), n_live);
        }
        CHECK(number > 20);
    }
}

static void sweep_graph(shoal_world *world, const char *text, size_t n_outputs)
{
    struct sweep sweep = {.world = world, .n_outputs = n_outputs};
    sweep.graph = run_parse(text, world ? shoal_world_n_ranks(world) : 1);
    REQUIRE(sweep.graph != NULL);
    sweep.n_inputs = run_inputs(sweep.graph, 0, sweep.inputs);
    CHECK_OK(run_and_forget(&sweep)); /* groups connect first, and stay */
    if (world) {
        sweep_in_flight(&sweep);
    } else {
        CHECK(test_sweep_allocations(run_and_forget, &sweep) > 20);
    }
    run_unref(sweep.inputs, sweep.n_inputs);
    shoal_graph_free(sweep.graph);
}

TEST(no_memory_leaves_nothing_behind)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 3, .rank = 1, .key = "fake", .transport = "fake"};
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    sweep_graph(NULL, views_text, 7);
    sweep_graph(world, reduces_text, 11);
    sweep_graph(world, moves_text, 16);
    CHECK_OK(shoal_world_close(world));
}
