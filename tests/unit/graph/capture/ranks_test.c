/* SPDX-License-Identifier: MIT */
/* Steps with collectives: groups, waits, calls that are no ops, and what layers below tell a capture. */
#include "fixtures/rank_world.h"
#include "unit/graph/capturing.h"

#define SHAPE(...) ((int64_t[]){__VA_ARGS__})

struct ranks {
    shoal_group *group;
    shoal_group *other; /* the same ranks */
    shoal_tensor *w;
};

static shoal_status run_collectives(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                    shoal_tensor **outputs, size_t n_outputs)
{
    struct ranks *ranks = context;
    shoal_tensor *y = shoal_mul(shoal_all_gather_tensor(inputs[0], 0, ranks->group), ranks->w);
    shoal_tensor *t = shoal_neg(inputs[0]);
    if (!shoal_all_reduce_(t, SHOAL_SUM, ranks->other)) {
        return shoal_scope_error();
    }
    shoal_tensor *half = shoal_reduce_scatter_tensor(y, SHOAL_AVG, 0, ranks->group);
    outputs[0] = shoal_mean(shoal_mul(half, t), NULL, 0, false);
    outputs[1] = shoal_view(t, SHAPE(6), 1);
    return shoal_backward(outputs[0], NULL);
}

TEST_RANKS(collectives_are_captured_with_their_groups, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    struct ranks ranks = {.group = shoal_world_group(world), .w = capture_leaf(SHAPE(4, 3), 2, 3, "w")};
    shoal_tensor *x = capture_leaf(SHAPE(2, 3), 2, 5 + self->rank, "x");
    REQUIRE_OK(shoal_group_create(world, (int[]){0, 1}, 2, "other/1", &ranks.other));
    struct captured_step step = {
        .step = run_collectives, .context = &ranks, .inputs = &x, .n_inputs = 1, .n_outputs = 2};
    uint64_t sequence = shoal_group_sequence(ranks.group);
    shoal_graph *graph = NULL;
    REQUIRE_OK(shoal_capture(step.step, step.context, step.inputs, 1, 2, &graph));
    CHECK_INT(shoal_group_sequence(ranks.group), sequence);
    CHECK_INT(capture_count(graph, "all_reduce"), 2); /* it, and its gradient */
    CHECK_INT(capture_count(graph, "all_reduce_"), 0);
    const struct graph_group *row = graph->groups;
    REQUIRE(row && row->next && !row->next->next);
    CHECK(row->bound == ranks.group && row->next->bound == ranks.other);
    CHECK_STRING(row->name, "world");
    CHECK_INT(row->next->size, 2);
    capture_compare(&step, graph, world);
    capture_compare(&step, graph, NULL);
    shoal_graph_free(graph);
    shoal_tensor_unref(x);
    shoal_tensor_unref(ranks.w);
    CHECK_OK(shoal_world_close(world));
}

/* The results of one call, and an input that another changes. */
static shoal_status call_both(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                              shoal_tensor **outputs, size_t n_outputs)
{
    outputs[n_outputs - 1] = shoal_all_reduce(inputs[0], SHOAL_SUM, context);
    return shoal_all_reduce_(inputs[n_inputs - 1], SHOAL_SUM, context) ? SHOAL_OK : shoal_scope_error();
}

TEST_RANKS(a_collective_is_a_start_and_a_wait, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    shoal_tensor *inputs[] = {capture_tensor(SHAPE(3), 1, SHOAL_F32, 1, "x"),
                              capture_tensor(SHAPE(3), 1, SHOAL_F32, 2, "y")};
    shoal_graph *graph = NULL;
    REQUIRE_OK(shoal_capture(call_both, shoal_world_group(world), inputs, 2, 1, &graph));
    CHECK_INT(shoal_graph_n_nodes(graph),
              8); /* two inputs, a start and a wait, the same and a copy, the output */
    CHECK_INT(capture_count(graph, "all_reduce"), 2);
    CHECK_INT(capture_count(graph, "wait_tensor"), 2);
    CHECK_INT(capture_count(graph, "copy_"), 1);
    shoal_graph_free(graph);
    shoal_tensor_unref(inputs[0]);
    shoal_tensor_unref(inputs[1]);
    CHECK_OK(shoal_world_close(world));
}

/* Calls that are no ops -------------------------------------------------------------------------------- */

struct raw {
    shoal_group *group;
    shoal_world *world;
    int which;
};

static shoal_status call_raw(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                             shoal_tensor **outputs, size_t n_outputs)
{
    const struct raw *raw = context;
    float number = 1;
    shoal_work *work = NULL;
    shoal_symmetric *symmetric = NULL;
    shoal_window *window = NULL;
    switch (raw->which) {
    case 0:
        return shoal_group_barrier(raw->group);
    case 1:
        return shoal_group_all_reduce_start(raw->group, &number, &number, 1, SHOAL_F32, SHOAL_SUM, &work);
    case 2:
        return shoal_group_send(raw->group, &number, 1, SHOAL_F32, 1 - shoal_group_rank(raw->group), 0);
    case 3:
        return shoal_symmetric_create(raw->group, 64, &symmetric);
    case 4:
        return shoal_window_create(raw->group, 64, &window);
    default:
        return shoal_store_set(shoal_world_store(raw->world), "key", "value", 5);
    }
}

TEST_RANKS(calls_of_groups_are_refused, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    struct raw raw = {.group = shoal_world_group(world), .world = world};
    for (raw.which = 0; raw.which < 6; raw.which++) {
        shoal_graph *graph = NULL;
        CHECK_STATUS(shoal_capture(call_raw, &raw, NULL, 0, 0, &graph), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("while a step is captured");
    }
    CHECK_OK(shoal_group_barrier(raw.group));
    CHECK_OK(shoal_world_close(world));
}

/* What layers below say -------------------------------------------------------------------------------- */

struct told {
    shoal_tensor *shard; /* memory, */
    shoal_tensor *looks; /* another tensor over it, flat */
    shoal_tensor *full;  /* what the shard is a part of; released */
    int n_restored;
    int order[2];
};

static void note_end(void *context)
{
    struct told *told = context;
    told->order[told->n_restored % 2] = told->n_restored;
    told->n_restored++;
}

static shoal_status tell(void *context, shoal_tensor *const *inputs, size_t n_inputs, shoal_tensor **outputs,
                         size_t n_outputs)
{
    struct told *told = context;
    struct op_tracer *tracer = op_capture_running();
    if (!tracer) {
        return SHOAL_ERR_INTERNAL;
    }
    const struct op_capture *capture = tracer->capture;
    CHECK_OK(capture->at_end(tracer, note_end, told));
    CHECK_OK(capture->add_input(tracer, told->looks, told->shard, "layers.0.weight"));
    CHECK_OK(capture->set_unit(tracer, "layers.0"));
    shoal_tensor *twice = shoal_cat((shoal_tensor *[]){told->looks, told->looks}, 2, 0);
    CHECK_OK(capture->rebind(tracer, told->full, shoal_view(twice, SHAPE(2, 6), 2)));
    CHECK_OK(capture->set_unit(tracer, NULL));
    outputs[0] = shoal_mul(shoal_detach(told->full), inputs[0]);
    CHECK_OK(capture->set_unit(tracer, "layers.0"));
    shoal_tensor *again = shoal_neg(twice);
    CHECK_OK(capture->rebind(tracer, told->full, shoal_view(again, SHAPE(2, 6), 2)));
    outputs[1] = shoal_sum(shoal_narrow(told->full, 0, 1, 1), NULL, 0, false);
    CHECK_OK(capture->at_end(tracer, note_end, told));
    return shoal_scope_error();
}

TEST(a_capture_is_told_of_parameters_that_were_gathered)
{
    float *memory = malloc(6 * sizeof *memory);
    struct told told = {.full = capture_tensor(SHAPE(2, 6), 2, SHOAL_F32, 1, "full")};
    shoal_tensor *x = capture_tensor(SHAPE(2, 6), 2, SHOAL_F32, 2, "x");
    shoal_graph *graph = NULL;
    REQUIRE_OK(shoal_tensor_release_data(told.full));
    REQUIRE_OK(shoal_scope_begin());
    for (int i = 0; memory && i < 6; i++) {
        memory[i] = (float)i;
    }
    told.shard = shoal_from_memory(memory, SHAPE(2, 3), 2, SHOAL_F32, NULL, NULL, NULL);
    told.looks = shoal_from_memory(memory, SHAPE(6), 1, SHOAL_F32, NULL, NULL, NULL);
    CHECK_OK(shoal_capture(tell, &told, &x, 1, 2, &graph));
    CHECK_INT(told.n_restored, 2);
    CHECK_INT(shoal_tensor_version(told.full), 0);
    struct capture_text text = {.length = 0};
    CHECK_OK(shoal_graph_print(graph, capture_write, &text));
    CHECK_STRING(text.text,
                 "graph {\n"
                 "    %x = placeholder : f32[2, 6]\n"
                 "    %layers.0.weight = placeholder : f32[6]\n"
                 "    %cat = cat([%layers.0.weight, %layers.0.weight], 0) unit \"layers.0\" : f32[12]\n"
                 "    %view = view(%cat, [2, 6]) unit \"layers.0\" : f32[2, 6]\n"
                 "    %mul = mul(%view, %x) : f32[2, 6]\n"
                 "    %neg = neg(%cat) unit \"layers.0\" : f32[12]\n"
                 "    %view_1 = view(%neg, [2, 6]) unit \"layers.0\" : f32[2, 6]\n"
                 "    %narrow = narrow(%view_1, 0, 1, 1) unit \"layers.0\" : f32[1, 6]\n"
                 "    %sum = sum(%narrow, [], false) unit \"layers.0\" : f32[]\n"
                 "    return [%mul, %sum]\n"
                 "}\n");
    /* It reads back as the same text. */
    shoal_graph *read = NULL;
    struct capture_text again = {.length = 0};
    CHECK_OK(shoal_graph_parse(text.text, text.length, &read));
    CHECK_OK(shoal_graph_print(read, capture_write, &again));
    CHECK_STRING(again.text, text.text);
    CHECK(shoal_graph_bound_input(graph, 1) == told.looks);
    shoal_graph_free(read);
    shoal_graph_free(graph);
    CHECK_OK(shoal_scope_end());
    shoal_tensor_unref(told.full);
    shoal_tensor_unref(x);
    free(memory);
}
