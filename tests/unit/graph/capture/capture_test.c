/* SPDX-License-Identifier: MIT */
/* Capturing steps of built-in ops: what the graph is, what it computes, and that nothing else changes. */
#include "unit/graph/capturing.h"

#include "base/error.h"

/* A call that gives no tensor ends the step. */
#define TRY_STEP(call)                  \
    do {                                \
        if (!(call)) {                  \
            return shoal_scope_error(); \
        }                               \
    } while (0)

#define SHAPE(...) ((int64_t[]){__VA_ARGS__})

/* y = mean((x * w + b)^2), backward */
struct linear {
    shoal_tensor *w;
    shoal_tensor *b;
};

static shoal_status run_linear(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs, size_t n_outputs)
{
    struct linear *model = context;
    shoal_tensor *y = shoal_add(shoal_mul(inputs[0], model->w), model->b);
    shoal_tensor *loss = shoal_mean(shoal_mul(y, y), NULL, 0, false);
    outputs[0] = loss;
    return shoal_backward(loss, NULL);
}

static struct linear make_linear(void)
{
    return (struct linear){.w = capture_leaf(SHAPE(4, 3), 2, 1, "w"), .b = capture_leaf(SHAPE(3), 1, 2, "b")};
}

static void free_linear(struct linear *model)
{
    shoal_tensor_unref(model->w);
    shoal_tensor_unref(model->b);
}

TEST(a_step_is_captured)
{
    struct linear model = make_linear();
    shoal_tensor *x = capture_tensor(SHAPE(4, 3), 2, SHOAL_F32, 3, "x");
    struct captured_step step = {
        .step = run_linear, .context = &model, .inputs = &x, .n_inputs = 1, .n_outputs = 1};
    shoal_graph *graph = capture_check(&step, NULL);
    struct capture_text text = {.length = 0};
    REQUIRE(graph != NULL);
    CHECK_OK(shoal_graph_print(graph, capture_write, &text));
    CHECK(shoal_graph_bound_input(graph, 0) == NULL);
    CHECK(shoal_graph_bound_input(graph, 1) == model.w);
    CHECK(shoal_graph_bound_input(graph, 2) == model.b);
    CHECK(shoal_graph_bound_input(graph, 3) == NULL);
    CHECK(shoal_graph_bound_leaf(graph, 0) == NULL);
    CHECK(shoal_graph_bound_leaf(graph, 1) == model.b);
    CHECK(shoal_graph_bound_leaf(graph, 2) == model.w);
    CHECK(shoal_grad(model.w) == NULL);
    shoal_graph_free(graph);
    shoal_tensor_unref(x);
    free_linear(&model);
}

/* Writing in place ------------------------------------------------------------------------------------- */

struct state {
    shoal_tensor *running; /* [4, 3], written */
    shoal_tensor *w;       /* a leaf */
};

static shoal_status run_in_place(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    struct state *state = context;
    shoal_tensor *t = shoal_mul_scalar(inputs[0], 3.0);
    shoal_tensor *row = shoal_narrow(t, 0, 1, 2);
    TRY_STEP(shoal_add_(t, inputs[0]));
    TRY_STEP(shoal_mul_scalar_(t, 0.7));
    outputs[0] = shoal_neg(row); /* sees both writes */
    TRY_STEP(shoal_copy_(state->running, shoal_sub(state->running, t)));
    TRY_STEP(shoal_mul_(state->running, shoal_add_scalar(t, 2.0)));
    outputs[1] = shoal_sum(state->running, NULL, 0, false);
    outputs[2] = state->running;
    return SHOAL_OK;
}

TEST(writes_of_whole_tensors_become_new_ones)
{
    struct state state = {.running = capture_tensor(SHAPE(4, 3), 2, SHOAL_F32, 5, "running")};
    shoal_tensor *x = capture_tensor(SHAPE(4, 3), 2, SHOAL_F32, 6, NULL);
    struct captured_step step = {
        .step = run_in_place, .context = &state, .inputs = &x, .n_inputs = 1, .n_outputs = 3};
    uint64_t version = shoal_tensor_version(state.running);
    shoal_graph *graph = NULL;
    REQUIRE_OK(shoal_capture(step.step, step.context, step.inputs, 1, 3, &graph));
    CHECK_INT(shoal_tensor_version(state.running), version);
    shoal_graph_free(graph);
    graph = capture_check(&step, NULL);
    REQUIRE(graph != NULL);
    CHECK_INT(capture_count(graph, "add_"), 0);
    CHECK_INT(capture_count(graph, "mul_"), 0);
    CHECK_INT(capture_count(graph, "mul_scalar_"), 0);
    CHECK_INT(capture_count(graph, "copy_"), 1);
    CHECK_STRING(shoal_node_target(shoal_node_prev(shoal_graph_last(graph))), "copy_");
    shoal_graph_free(graph);
    shoal_tensor_unref(state.running);
    shoal_tensor_unref(x);
}

static shoal_status write_views(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    struct state *state = context;
    shoal_tensor *t = shoal_zeros(SHAPE(4, 3), 2, SHOAL_F32);
    shoal_tensor *all = shoal_view(t, SHAPE(12), 1);
    TRY_STEP(shoal_copy_(shoal_narrow(t, 0, 1, 2), shoal_narrow(inputs[0], 0, 0, 2)));
    TRY_STEP(shoal_add_scalar_(shoal_select(t, 1, 2), 1.5));
    outputs[0] = shoal_neg(all);
    TRY_STEP(shoal_add_(shoal_select(state->running, 0, 3), shoal_select(inputs[0], 0, 0)));
    TRY_STEP(shoal_mul_scalar_(state->running, 2.0));
    TRY_STEP(shoal_add_(shoal_transpose(state->running, 0, 1), shoal_transpose(t, 0, 1)));
    outputs[1] = shoal_clone(state->running);
    TRY_STEP(shoal_copy_(all, shoal_full(SHAPE(1), 1, 4.0, SHOAL_F64))); /* broadcast and cast, all of it */
    outputs[2] = t;
    return SHOAL_OK;
}

TEST(writes_through_views_become_new_tensors)
{
    struct state state = {.running = capture_tensor(SHAPE(4, 3), 2, SHOAL_F32, 5, "running")};
    shoal_tensor *x = capture_tensor(SHAPE(4, 3), 2, SHOAL_F32, 6, NULL);
    struct captured_step step = {
        .step = write_views, .context = &state, .inputs = &x, .n_inputs = 1, .n_outputs = 3};
    shoal_graph *graph = capture_check(&step, NULL);
    REQUIRE(graph != NULL);
    CHECK_INT(capture_count(graph, "copy_"), 1); /* at the end */
    CHECK_STRING(shoal_node_target(shoal_node_prev(shoal_graph_last(graph))), "copy_");
    CHECK_INT(capture_count(graph, "as_strided_scatter"), 4);
    CHECK_INT(capture_count(graph, "add_scalar_") + capture_count(graph, "add_"), 0);
    shoal_graph_free(graph);
    shoal_tensor_unref(state.running);
    shoal_tensor_unref(x);
}

/* An input is written. */
static shoal_status write_input(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    TRY_STEP(shoal_add_(inputs[0], inputs[1]));
    TRY_STEP(shoal_add_(shoal_narrow(inputs[1], 0, 0, 1), shoal_narrow(inputs[0], 0, 0, 1)));
    outputs[0] = shoal_mul(inputs[0], inputs[1]);
    outputs[1] = inputs[0];
    return SHOAL_OK;
}

TEST(inputs_of_the_step_may_be_written)
{
    shoal_tensor *inputs[2] = {capture_tensor(SHAPE(4, 3), 2, SHOAL_F32, 5, "running"),
                               capture_tensor(SHAPE(4, 3), 2, SHOAL_F32, 6, NULL)};
    struct captured_step step = {.step = write_input, .inputs = inputs, .n_inputs = 2, .n_outputs = 2};
    shoal_graph_free(capture_check(&step, NULL));
    shoal_tensor_unref(inputs[0]);
    shoal_tensor_unref(inputs[1]);
}

/* Lists, factories, dtypes ----------------------------------------------------------------------------- */

static shoal_status run_lists(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                              shoal_tensor **outputs, size_t n_outputs)
{
    struct state *state = context;
    shoal_tensor *const *parts =
        shoal_split_with_sizes(shoal_mul(inputs[0], state->w), SHAPE(2, 2), 2, 0, NULL);
    if (!parts) {
        return shoal_scope_error();
    }
    shoal_tensor *joined = shoal_cat((shoal_tensor *[]){parts[1], parts[0], parts[1]}, 3, 0);
    shoal_tensor *half = shoal_to_dtype(joined, SHOAL_BF16);
    outputs[0] = shoal_mean(shoal_mul(shoal_to_dtype(half, SHOAL_F32), joined), NULL, 0, false);
    outputs[1] = NULL;
    outputs[2] = shoal_full(SHAPE(2), 1, 0.1, SHOAL_F32);
    return shoal_backward(outputs[0], NULL);
}

TEST(lists_views_and_casts)
{
    struct state state = {.w = capture_leaf(SHAPE(4, 3), 2, 5, "w")};
    shoal_tensor *x = capture_tensor(SHAPE(4, 3), 2, SHOAL_F32, 6, NULL);
    struct captured_step step = {
        .step = run_lists, .context = &state, .inputs = &x, .n_inputs = 1, .n_outputs = 3};
    shoal_graph_free(capture_check(&step, NULL));
    shoal_tensor_unref(state.w);
    shoal_tensor_unref(x);
}

/* Views of one storage, with holes and backwards strides. */
struct views {
    shoal_tensor *first;
    shoal_tensor *second;
};

static shoal_status run_views(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                              shoal_tensor **outputs, size_t n_outputs)
{
    struct views *views = context;
    outputs[0] = shoal_add(views->first, shoal_transpose(views->second, 0, 1));
    TRY_STEP(shoal_add_(views->first, inputs[0]));
    outputs[1] = shoal_clone(views->second);
    return SHOAL_OK;
}

TEST(views_of_one_storage_share_a_placeholder)
{
    shoal_tensor *flat = capture_tensor(SHAPE(24), 1, SHOAL_F32, 5, "flat");
    shoal_tensor *x = capture_tensor(SHAPE(2, 3), 2, SHOAL_F32, 6, NULL);
    REQUIRE_OK(shoal_scope_begin());
    struct views views = {.first = shoal_as_strided(flat, SHAPE(2, 3), SHAPE(4, 1), 2, 2),
                          .second = shoal_as_strided(flat, SHAPE(3, 2), SHAPE(-2, 5), 2, 12)};
    struct captured_step step = {
        .step = run_views, .context = &views, .inputs = &x, .n_inputs = 1, .n_outputs = 2};
    shoal_graph *graph = capture_check(&step, NULL);
    REQUIRE(graph != NULL);
    CHECK(shoal_graph_bound_input(graph, 1) && !shoal_graph_bound_input(graph, 2));
    CHECK_INT(shoal_tensor_count(shoal_graph_bound_input(graph, 1)), 24);
    CHECK(shoal_tensor_shares_storage(shoal_graph_bound_input(graph, 1), flat));
    shoal_graph_free(graph);
    CHECK_OK(shoal_scope_end());
    shoal_tensor_unref(flat);
    shoal_tensor_unref(x);
}

/* Memory of the step's own ------------------------------------------------------------------------------- */

static shoal_status run_constant(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    float *numbers = context;
    shoal_tensor *mine = shoal_from_memory(numbers, SHAPE(3), 1, SHOAL_F32, NULL, NULL, NULL);
    shoal_tensor *looking = shoal_detach(mine);
    outputs[0] = shoal_add(shoal_mul(inputs[0], looking), mine);
    return shoal_scope_error();
}

TEST(what_a_step_makes_of_memory_is_a_constant)
{
    float numbers[3] = {0.5f, -2, 7};
    shoal_tensor *x = capture_tensor(SHAPE(2, 3), 2, SHOAL_F32, 6, NULL);
    struct captured_step step = {
        .step = run_constant, .context = numbers, .inputs = &x, .n_inputs = 1, .n_outputs = 1};
    shoal_graph *graph = capture_check(&step, NULL);
    REQUIRE(graph != NULL);
    CHECK(!shoal_graph_bound_input(graph, 1));
    shoal_tensor *before = NULL;
    shoal_tensor *after = NULL;
    CHECK_OK(shoal_graph_run(graph, NULL, &x, 1, &before, 1));
    numbers[0] = 100; /* frozen */
    CHECK_OK(shoal_graph_run(graph, NULL, &x, 1, &after, 1));
    capture_check_same("output", 0, after, before);
    shoal_tensor_unref(before);
    shoal_tensor_unref(after);
    shoal_graph_free(graph);
    shoal_tensor_unref(x);
}

static shoal_status write_constant(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                   shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *mine = shoal_from_memory(context, SHAPE(3), 1, SHOAL_F32, NULL, NULL, NULL);
    outputs[0] = shoal_copy_(mine, inputs[0]);
    return shoal_scope_error();
}

TEST(a_step_does_not_write_memory_of_somebody_else)
{
    float numbers[3] = {0.5f, -2, 7};
    shoal_tensor *x = capture_tensor(SHAPE(3), 1, SHOAL_F32, 6, NULL);
    shoal_graph *graph = NULL;
    CHECK_STATUS(shoal_capture(write_constant, numbers, &x, 1, 1, &graph), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("make that tensor an input");
    CHECK(!graph && numbers[0] == 0.5f);
    shoal_tensor_unref(x);
}

/* Gradients -------------------------------------------------------------------------------------------- */

TEST(gradients_that_are_there_are_added_to)
{
    struct linear model = make_linear();
    shoal_tensor *x = capture_leaf(SHAPE(4, 3), 2, 3, "x");
    shoal_tensor *grad = capture_tensor(SHAPE(4, 3), 2, SHOAL_F32, 9, "old");
    struct captured_step step = {
        .step = run_linear, .context = &model, .inputs = &x, .n_inputs = 1, .n_outputs = 1};
    REQUIRE_OK(shoal_set_grad(model.w, grad));
    shoal_tensor *kept = shoal_grad(model.w);
    uint64_t version = shoal_tensor_version(kept);
    shoal_graph *graph = NULL;
    REQUIRE_OK(shoal_capture(step.step, step.context, step.inputs, 1, 1, &graph));
    CHECK(shoal_grad(model.w) == kept && shoal_grad(model.b) == NULL && shoal_grad(x) == NULL);
    CHECK_INT(shoal_tensor_version(kept), version);
    CHECK_INT(capture_n_outputs(graph), 3); /* loss, b and x */
    CHECK_INT(capture_count(graph, "copy_"), 1);
    CHECK(shoal_graph_bound_leaf(graph, 1) == model.b);
    CHECK(shoal_graph_bound_leaf(graph, 2) == x);
    CHECK(shoal_graph_find(graph, "w_grad") != NULL);
    shoal_graph_free(graph);
    graph = capture_check(&step, NULL);
    shoal_graph_free(graph);
    shoal_tensor_unref(grad);
    shoal_tensor_unref(x);
    free_linear(&model);
}

/* Gradients are removed first, and the weight is frozen. */
static shoal_status run_zero_grad(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    struct linear *model = context;
    shoal_status status = shoal_set_grad(model->b, NULL);
    return status == SHOAL_OK ? run_linear(context, inputs, n_inputs, outputs, n_outputs) : status;
}

TEST(frozen_leaves_and_gradients_that_a_step_removes)
{
    struct linear model = make_linear();
    shoal_tensor *x = capture_leaf(SHAPE(4, 3), 2, 3, "x");
    shoal_tensor *grad = capture_tensor(SHAPE(3), 1, SHOAL_F32, 9, "old");
    struct captured_step step = {
        .step = run_zero_grad, .context = &model, .inputs = &x, .n_inputs = 1, .n_outputs = 1};
    REQUIRE_OK(shoal_set_requires_grad(model.w, false));
    REQUIRE_OK(shoal_set_grad(model.b, grad));
    shoal_tensor *kept = shoal_grad(model.b);
    shoal_graph *graph = NULL;
    REQUIRE_OK(shoal_capture(step.step, step.context, step.inputs, 1, 1, &graph));
    CHECK(shoal_grad(model.b) == kept);
    CHECK_INT(capture_n_outputs(graph), 3);
    CHECK_INT(capture_count(graph, "copy_"), 0);
    CHECK(shoal_graph_find(graph, "b_grad") == NULL && shoal_graph_bound_input(graph, 3) == NULL);
    capture_compare(&step, graph, NULL);
    shoal_graph_free(graph);
    shoal_tensor_unref(grad);
    shoal_tensor_unref(x);
    free_linear(&model);
}

/* A real tensor gets a history in place. */
static shoal_status run_history(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    struct state *state = context;
    TRY_STEP(shoal_copy_(state->running, shoal_mul(inputs[0], state->w)));
    outputs[0] = shoal_sum(shoal_mul(state->running, state->running), NULL, 0, false);
    return shoal_backward(outputs[0], NULL);
}

TEST(histories_that_the_step_gave_are_taken_back)
{
    struct state state = {.running = capture_tensor(SHAPE(4, 3), 2, SHOAL_F32, 5, "running"),
                          .w = capture_leaf(SHAPE(4, 3), 2, 8, "w")};
    shoal_tensor *x = capture_tensor(SHAPE(4, 3), 2, SHOAL_F32, 6, NULL);
    shoal_graph *graph = NULL;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(shoal_capture(run_history, &state, &x, 1, 1, &graph));
        CHECK(state.running->history == NULL);
        CHECK(!atomic_load(&state.running->storage->has_history));
        CHECK_INT(shoal_tensor_version(state.running), 0);
        shoal_graph_free(graph);
    }
    shoal_tensor_unref(x);
    shoal_tensor_unref(state.running);
    shoal_tensor_unref(state.w);
}

/* Recomputation ---------------------------------------------------------------------------------------- */

static shoal_status run_layer(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                              shoal_tensor **outputs, size_t n_outputs)
{
    struct linear *model = context;
    shoal_tensor *y = shoal_add(shoal_mul(inputs[0], model->w), model->b);
    outputs[0] = shoal_mul(y, shoal_neg(y));
    return shoal_scope_error();
}

static shoal_status run_recomputed(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                   shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *h = shoal_mul_scalar(inputs[0], 1.25);
    for (int i = 0; i < 3; i++) {
        shoal_status status = shoal_recompute(run_layer, context, NULL, &h, 1, &h, 1);
        if (status != SHOAL_OK) {
            return status;
        }
    }
    outputs[0] = shoal_mean(h, NULL, 0, false);
    return shoal_backward(outputs[0], NULL);
}

TEST(recomputation_stays_behind_the_gradients)
{
    struct linear model = make_linear();
    shoal_tensor *x = capture_leaf(SHAPE(4, 3), 2, 3, "x");
    struct captured_step step = {
        .step = run_recomputed, .context = &model, .inputs = &x, .n_inputs = 1, .n_outputs = 1};
    shoal_graph *graph = capture_check(&step, NULL);
    REQUIRE(graph != NULL);
    CHECK_INT(capture_count(graph, "control_deps"), 3);
    CHECK_INT(capture_n_outputs(graph), 4);
    shoal_graph_free(graph);
    shoal_tensor_unref(x);
    free_linear(&model);
}

/* More of what steps do -------------------------------------------------------------------------------- */

/* Two backward passes, one through results of a scope inside, and a call that fails where nobody minds. */
static shoal_status run_twice(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                              shoal_tensor **outputs, size_t n_outputs)
{
    struct linear *model = context;
    TRY_STEP(shoal_scope_begin() == SHOAL_OK ? inputs[0] : NULL);
    shoal_tensor *kept = shoal_scope_keep(shoal_mul(inputs[0], model->w));
    shoal_status status = shoal_scope_end();
    if (status == SHOAL_OK && shoal_scope_begin() == SHOAL_OK) {
        (void)shoal_narrow(model->b, 0, 2, 100);
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    }
    for (int i = 0; status == SHOAL_OK && i < 2; i++) {
        shoal_backward_options options = {.struct_size = sizeof options, .keeps_graph = true};
        outputs[i] = shoal_sum(i == 0 ? shoal_mul(kept, kept) : shoal_add(kept, model->b), NULL, 0, false);
        status = shoal_backward_roots(&outputs[i], NULL, 1, &options);
    }
    return status;
}

static size_t count_inputs(const shoal_graph *graph)
{
    size_t count = 0;
    for (const shoal_node *node = shoal_graph_first(graph); node; node = shoal_node_next(node)) {
        count += shoal_node_get_kind(node) == SHOAL_NODE_PLACEHOLDER ? 1 : 0;
    }
    return count;
}

TEST(a_step_may_go_backward_twice)
{
    struct linear model = make_linear();
    shoal_tensor *x = capture_leaf(SHAPE(4, 3), 2, 3, "x");
    struct captured_step step = {
        .step = run_twice, .context = &model, .inputs = &x, .n_inputs = 1, .n_outputs = 2};
    shoal_graph *graph = capture_check(&step, NULL);
    REQUIRE(graph != NULL);
    CHECK_INT(count_inputs(graph), 3);
    CHECK_INT(capture_n_outputs(graph), 2 + 3);
    shoal_graph_free(graph);
    shoal_tensor_unref(x);
    free_linear(&model);
}

/* Bytes of a storage as dtypes that do not divide it. */
static shoal_status run_odd(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                            shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *words = context; /* f32, over a storage of 10 bytes */
    outputs[0] = shoal_add(words, inputs[0]);
    TRY_STEP(shoal_add_(words, words));
    outputs[1] = shoal_clone(words);
    return SHOAL_OK;
}

TEST(storages_need_not_be_a_number_of_elements)
{
    shoal_tensor *bytes = capture_tensor(SHAPE(10), 1, SHOAL_U8, 1, "bytes");
    shoal_tensor *x = capture_tensor(SHAPE(2), 1, SHOAL_F32, 3, "x");
    struct layout layout = {.n_dims = 1, .shape = {2}, .strides = {1}};
    shoal_tensor *words = NULL;
    REQUIRE_OK(tensor_create_view_as(bytes, SHOAL_F32, &layout, &words));
    float *numbers = shoal_mutable_data(words);
    REQUIRE(numbers != NULL);
    numbers[0] = 1.5f;
    numbers[1] = -7;
    struct captured_step step = {
        .step = run_odd, .context = words, .inputs = &x, .n_inputs = 1, .n_outputs = 2};
    shoal_graph_free(capture_check(&step, NULL));
    shoal_tensor_unref(words);
    shoal_tensor_unref(bytes);
    shoal_tensor_unref(x);
}

/* Ops of users ----------------------------------------------------------------------------------------- */

static shoal_status triple(shoal_op_call_context *call, const shoal_value *arguments,
                           shoal_tensor *const *outputs, size_t n_outputs)
{
    float *numbers = shoal_mutable_data(outputs[0]);
    for (int64_t i = 0; numbers && i < shoal_tensor_count(outputs[0]); i++) {
        numbers[i] *= 3;
    }
    return numbers ? SHOAL_OK : SHOAL_ERR_INTERNAL;
}

static const shoal_op *register_triple(void)
{
    static const shoal_op *op;
    size_t n_before = test_live_blocks();
    shoal_op_definition definition = SHOAL_OP_DEFINITION_INIT;
    definition.name = "test.triple_";
    definition.signature = "tensor self -> tensor";
    definition.flags = SHOAL_OP_IN_PLACE;
    definition.kernel = triple;
    definition.doc = "Three times as much.";
    if (!op) {
        CHECK_OK(shoal_op_register(&definition, &op));
        test_keep_blocks(test_live_blocks() - n_before);
    }
    return op;
}

static shoal_status run_triple(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs, size_t n_outputs)
{
    struct state *state = context;
    shoal_tensor *t = shoal_neg(inputs[0]);
    shoal_tensor *written[] = {t, state->running, inputs[0]};
    for (size_t i = 0; i < 3; i++) {
        shoal_value result;
        const shoal_value argument = {.kind = SHOAL_VALUE_TENSOR, .count = 1, .as.tensor = written[i]};
        shoal_status status = shoal_op_call(register_triple(), &argument, 1, &result);
        if (status != SHOAL_OK) {
            return status;
        }
    }
    outputs[0] = shoal_add(t, state->running);
    TRY_STEP(shoal_copy_(state->running, inputs[0]));
    return SHOAL_OK;
}

TEST(ops_of_users_stay_in_place)
{
    struct state state = {.running = capture_tensor(SHAPE(4, 3), 2, SHOAL_F32, 5, "running")};
    shoal_tensor *x = capture_tensor(SHAPE(4, 3), 2, SHOAL_F32, 6, NULL);
    struct captured_step step = {
        .step = run_triple, .context = &state, .inputs = &x, .n_inputs = 1, .n_outputs = 1};
    shoal_graph *graph = capture_check(&step, NULL);
    REQUIRE(graph != NULL);
    CHECK_INT(capture_count(graph, "test.triple_"), 3);
    CHECK_INT(capture_count(graph, "copy_"), 1);
    shoal_graph_free(graph);
    shoal_tensor_unref(state.running);
    shoal_tensor_unref(x);
}

/* Failures --------------------------------------------------------------------------------------------- */

static shoal_status ask_for_data(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    const bool *asks_input = context;
    shoal_tensor *sum = shoal_sum(inputs[0], NULL, 0, false);
    const float *data = shoal_data(*asks_input ? inputs[0] : sum);
    outputs[0] = sum;
    return data ? SHOAL_OK : SHOAL_ERR_STATE;
}

TEST(asking_for_data_names_the_op)
{
    shoal_tensor *x = capture_tensor(SHAPE(4, 3), 2, SHOAL_F32, 6, NULL);
    shoal_graph *graph = NULL;
    bool asks_input = false;
    CHECK_STATUS(shoal_capture(ask_for_data, &asks_input, &x, 1, 1, &graph), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("the data of a result of sum was accessed while a step is captured");
    asks_input = true;
    CHECK_STATUS(shoal_capture(ask_for_data, &asks_input, &x, 1, 1, &graph), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("the data of an input of a step was accessed");
    CHECK(!graph);
    shoal_tensor_unref(x);
}

static shoal_status capture_inside(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                   shoal_tensor **outputs, size_t n_outputs)
{
    shoal_graph *graph = NULL;
    return shoal_capture(run_linear, context, inputs, n_inputs, 1, &graph);
}

/* Fails behind a backward pass, with scopes open. */
static shoal_status fail_late(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                              shoal_tensor **outputs, size_t n_outputs)
{
    shoal_status status = shoal_scope_begin();
    status = status == SHOAL_OK ? run_linear(context, inputs, n_inputs, outputs, n_outputs) : status;
    return status == SHOAL_OK ? error_set(SHOAL_ERR_INTERNAL, "planned") : status;
}

static shoal_status fail_in_an_op(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    (void)shoal_narrow(inputs[0], 0, 3, 17);
    outputs[0] = inputs[0];
    return SHOAL_OK; /* the scope knows */
}

static shoal_status leave_a_scope(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    return shoal_scope_begin();
}

TEST(steps_that_fail_change_nothing)
{
    struct linear model = make_linear();
    shoal_tensor *x = capture_leaf(SHAPE(4, 3), 2, 3, "x");
    shoal_tensor *grad = capture_tensor(SHAPE(4, 3), 2, SHOAL_F32, 9, "old");
    shoal_graph *graph = NULL;
    REQUIRE_OK(shoal_set_grad(model.w, grad));
    shoal_tensor *kept = shoal_grad(model.w);
    REQUIRE_OK(shoal_scope_begin());
    size_t depth = scope_depth();
    CHECK_STATUS(shoal_capture(capture_inside, &model, &x, 1, 1, &graph), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("inside another");
    CHECK_STATUS(shoal_capture(fail_late, &model, &x, 1, 1, &graph), SHOAL_ERR_INTERNAL);
    CHECK_ERROR_TEXT("capture: planned");
    CHECK_STATUS(shoal_capture(fail_in_an_op, &model, &x, 1, 1, &graph), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("narrow");
    CHECK_STATUS(shoal_capture(leave_a_scope, &model, &x, 1, 0, &graph), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("the step left a scope open");
    CHECK(!graph && scope_depth() == depth);
    CHECK(shoal_grad(model.w) == kept && !shoal_grad(model.b) && !shoal_grad(x));
    CHECK_INT(shoal_tensor_version(kept), 0);
    CHECK_OK(shoal_scope_end());
    shoal_tensor_unref(grad);
    shoal_tensor_unref(x);
    free_linear(&model);
}

/* Both ways to a record that is not the step's. */
struct outside {
    shoal_tensor *result;
    bool walks;
};

static shoal_status use_outside(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    const struct outside *outside = context;
    if (outside->walks) {
        return shoal_backward(outside->result, NULL);
    }
    outputs[0] = shoal_neg(outside->result);
    return shoal_scope_error();
}

TEST(a_record_from_before_is_not_used_up)
{
    shoal_tensor *x = capture_leaf(SHAPE(4, 3), 2, 3, "x");
    shoal_graph *graph = NULL;
    REQUIRE_OK(shoal_scope_begin());
    struct outside outside = {.result = shoal_sum(shoal_mul(x, x), NULL, 0, false)};
    CHECK_STATUS(shoal_capture(use_outside, &outside, NULL, 0, 1, &graph), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("recorded before the capture; detach it");
    outside.walks = true;
    CHECK_STATUS(shoal_capture(use_outside, &outside, NULL, 0, 1, &graph), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("sum was recorded before this step was captured");
    CHECK(!graph && !shoal_grad(x));
    CHECK_OK(shoal_backward(outside.result, NULL));
    CHECK(shoal_grad(x) != NULL);
    CHECK_OK(shoal_scope_end());
    shoal_tensor_unref(x);
}

TEST(bad_arguments)
{
    struct linear model = make_linear();
    shoal_tensor *x = capture_leaf(SHAPE(4, 3), 2, 3, "x");
    shoal_graph *graph = NULL;
    CHECK_STATUS(shoal_capture(NULL, &model, &x, 1, 1, &graph), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("capture: step is NULL");
    CHECK_STATUS(shoal_capture(run_linear, &model, NULL, 1, 1, &graph), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("capture: inputs is NULL");
    CHECK_STATUS(shoal_capture(run_linear, &model, &x, 1, 1, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("capture: graph_out is NULL");
    shoal_tensor *twice[3] = {model.w, x, x};
    CHECK_STATUS(shoal_capture(run_linear, &model, twice, 3, 1, &graph), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("capture: inputs 1 and 2 share memory");
    CHECK_STATUS(shoal_capture(run_linear, &model, &model.w, 1, 1, &graph), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("input 0 of the step");
    twice[1] = NULL;
    CHECK_STATUS(shoal_capture(run_linear, &model, twice, 2, 1, &graph), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("capture: input 1 is NULL");
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *result = shoal_neg(x);
    CHECK_STATUS(shoal_capture(run_linear, &model, &result, 1, 1, &graph), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("detach it");
    CHECK_OK(shoal_scope_end());
    CHECK(!graph && !shoal_graph_bound_input(NULL, 0) && !shoal_graph_bound_leaf(NULL, 0));
    shoal_tensor_unref(x);
    free_linear(&model);
}

/* Memory ----------------------------------------------------------------------------------------------- */

struct sweep {
    struct linear *model;
    shoal_tensor *x;
};

static shoal_status run_everything(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                   shoal_tensor **outputs, size_t n_outputs)
{
    struct linear *model = context;
    float number = 3;
    shoal_tensor *mine = shoal_from_memory(&number, NULL, 0, SHOAL_F32, NULL, NULL, NULL);
    shoal_tensor *x = shoal_mul(shoal_mul_scalar(inputs[0], 2.0), mine);
    TRY_STEP(shoal_scope_set_grad(false) == SHOAL_OK ? x : NULL);
    TRY_STEP(shoal_add_(shoal_narrow(x, 0, 1, 2), shoal_narrow(x, 0, 0, 2)));
    TRY_STEP(shoal_scope_set_grad(true) == SHOAL_OK ? x : NULL);
    shoal_tensor *detached = shoal_detach(x);
    return run_recomputed(model, &detached, 1, outputs, n_outputs);
}

static shoal_status capture_and_forget(void *context)
{
    struct sweep *sweep = context;
    shoal_graph *graph = NULL;
    shoal_status status = shoal_capture(run_everything, sweep->model, &sweep->x, 1, 1, &graph);
    shoal_graph_free(graph);
    return status;
}

TEST(no_memory_leaves_nothing_behind)
{
    struct linear model = make_linear();
    struct sweep sweep = {.model = &model, .x = capture_tensor(SHAPE(4, 3), 2, SHOAL_F32, 3, "x")};
    shoal_tensor *grad = capture_tensor(SHAPE(4, 3), 2, SHOAL_F32, 9, "old");
    REQUIRE_OK(shoal_set_grad(model.w, grad));
    shoal_tensor *kept = shoal_grad(model.w);
    CHECK(test_sweep_allocations(capture_and_forget, &sweep) > 100);
    CHECK(shoal_grad(model.w) == kept && !shoal_grad(model.b));
    CHECK_INT(shoal_tensor_version(kept), 0);
    shoal_tensor_unref(grad);
    shoal_tensor_unref(sweep.x);
    free_linear(&model);
}
