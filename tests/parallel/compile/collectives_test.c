/* SPDX-License-Identifier: MIT */
/*
 * Functional collectives in compiled steps, forward and backward: each is one start and one wait each way, and outputs and gradients
 * have the bits of the eager step. Forms that write a tensor of the caller write it in the compiled step too.
 */
#include "fixtures/rank_world.h"
#include "unit/graph/capturing.h"

#include "shoal_compat/torch.h"

enum {
    N_RUNS = 3,
    N_ROWS = 6
};

struct job {
    shoal_group *group;
    shoal_tensor *w; /* a leaf, multiplied with what is communicated */
};

#define STEP(name)                                                                        \
    static shoal_status name(void *context, shoal_tensor *const *inputs, size_t n_inputs, \
                             shoal_tensor **outputs, size_t n_outputs)
#define UNUSED ((void)n_inputs, (void)n_outputs)

/* Steps with gradients: the first input and w are leaves of [6, 6] --------------------------------------- */

static shoal_status finish(shoal_tensor *y, shoal_tensor **outputs)
{
    outputs[0] = shoal_sum(shoal_mul(y, y), NULL, 0, false);
    outputs[1] = y;
    return shoal_backward(outputs[0], NULL);
}

STEP(reduce_all)
{
    const struct job *job = context;
    UNUSED;
    return finish(shoal_all_reduce(shoal_mul(inputs[0], job->w), SHOAL_SUM, job->group), outputs);
}

STEP(gather)
{
    const struct job *job = context;
    UNUSED;
    return finish(shoal_all_gather_tensor(shoal_mul(inputs[0], job->w), 1, job->group), outputs);
}

STEP(reduce_scatter)
{
    const struct job *job = context;
    UNUSED;
    return finish(shoal_reduce_scatter_tensor(shoal_mul(inputs[0], job->w), SHOAL_AVG, 1, job->group),
                  outputs);
}

STEP(exchange)
{
    const struct job *job = context;
    UNUSED;
    return finish(shoal_all_to_all_single(shoal_mul(inputs[0], job->w), NULL, NULL, 0, job->group), outputs);
}

/* Two ranks exchange 1 + 2 and 2 + 3 rows, three 1 + 2 + 3, 2 + 3 + 1, 3 + 1 + 2. */
STEP(exchange_unevenly)
{
    const struct job *job = context;
    int64_t splits[3];
    int64_t n_rows = 0;
    UNUSED;
    for (int peer = 0; peer < shoal_group_n_ranks(job->group); peer++) {
        splits[peer] = (shoal_group_rank(job->group) + peer) % 3 + 1;
        n_rows += splits[peer];
    }
    shoal_tensor *rows = shoal_narrow(shoal_mul(inputs[0], job->w), 0, 0, n_rows);
    size_t n_splits = (size_t)shoal_group_n_ranks(job->group);
    return finish(shoal_all_to_all_single(rows, splits, splits, n_splits, job->group), outputs);
}

static const struct {
    const char *op;
    const char *gradient; /* the op of the backward pass */
    shoal_step_function step;
} steps[] = {
    {"all_reduce", "all_reduce", reduce_all},
    {"all_gather_tensor", "reduce_scatter_tensor", gather},
    {"reduce_scatter_tensor", "all_gather_tensor", reduce_scatter},
    {"all_to_all_single", "all_to_all_single", exchange},
    {"all_to_all_single", "all_to_all_single", exchange_unevenly},
};

/* Steps that write their second input ---------------------------------------------------------------------- */

STEP(gather_into)
{
    const struct job *job = context;
    UNUSED;
    shoal_tensor *part =
        shoal_narrow(shoal_mul_scalar(inputs[0], 2.0), 0, 0, N_ROWS / shoal_group_n_ranks(job->group));
    outputs[0] = shoal_add_scalar(shoal_all_gather_into_tensor_out(part, job->group, inputs[1]), 1.0);
    outputs[1] = part;
    return shoal_scope_error();
}

STEP(scatter_into)
{
    const struct job *job = context;
    UNUSED;
    shoal_tensor *part = shoal_narrow(inputs[1], 0, 0, N_ROWS / shoal_group_n_ranks(job->group));
    outputs[0] = shoal_neg(shoal_reduce_scatter_tensor_out(inputs[0], SHOAL_SUM, job->group, part));
    outputs[1] = shoal_mul(inputs[1], inputs[0]);
    return shoal_scope_error();
}

STEP(gather_columns_into)
{
    const struct job *job = context;
    UNUSED;
    shoal_tensor *part = shoal_narrow(inputs[0], 1, 0, N_ROWS / shoal_group_n_ranks(job->group));
    outputs[0] = shoal_neg(shoal_all_gather_tensor_inplace(inputs[1], part, 1, job->group));
    outputs[1] = shoal_mul(inputs[1], inputs[0]);
    return shoal_scope_error();
}

STEP(reduce_input)
{
    const struct job *job = context;
    UNUSED;
    outputs[0] = shoal_neg(shoal_all_reduce_(inputs[1], SHOAL_MAX, job->group));
    outputs[1] = shoal_mul(inputs[1], inputs[0]);
    return shoal_scope_error();
}

static const shoal_step_function writing_steps[] = {gather_into, scatter_into, gather_columns_into,
                                                    reduce_input};

/* Eager and compiled ---------------------------------------------------------------------------------------- */

struct side {
    struct job job;
    shoal_tensor *inputs[2];
};

static void side_make(struct side *side, shoal_group *group, bool is_leaf)
{
    int seed = 5 * shoal_group_rank(group);
    side->job.group = group;
    for (int i = 0; i < 2; i++) {
        side->inputs[i] =
            capture_tensor((int64_t[]){N_ROWS, N_ROWS}, 2, SHOAL_F32, seed + i, i == 0 ? "x" : "y");
    }
    side->job.w = capture_leaf((int64_t[]){N_ROWS, N_ROWS}, 2, seed + 2, "w");
    (void)CHECK_OK(shoal_set_requires_grad(side->inputs[0], is_leaf));
}

static void side_free(struct side *side)
{
    shoal_tensor_unref(side->inputs[0]);
    shoal_tensor_unref(side->inputs[1]);
    shoal_tensor_unref(side->job.w);
}

static void run_beside(shoal_world *world, shoal_step_function step, bool has_gradients)
{
    struct side eager;
    struct side other;
    shoal_compiled *compiled = NULL;
    shoal_compile_report report = SHOAL_COMPILE_REPORT_INIT;
    side_make(&eager, shoal_world_group(world), has_gradients);
    side_make(&other, shoal_world_group(world), has_gradients);
    REQUIRE_OK(shoal_compile(world, step, &other.job, 2, NULL, &compiled));
    for (int run = 0; run < N_RUNS && !test_has_failed(); run++) {
        shoal_tensor *want[2] = {NULL};
        shoal_tensor *got[2] = {NULL};
        REQUIRE_OK(shoal_scope_begin());
        CHECK_OK(step(&eager.job, eager.inputs, has_gradients ? 1 : 2, want, 2));
        CHECK_OK(shoal_compiled_run(compiled, other.inputs, has_gradients ? 1 : 2, got, 2));
        for (size_t i = 0; i < 2; i++) {
            capture_check_same("output", i, got[i], want[i]);
            capture_check_same("input", i, other.inputs[i], eager.inputs[i]);
            shoal_tensor_unref(got[i]);
        }
        if (has_gradients) {
            capture_check_same("gradient of x", 0, shoal_grad(other.inputs[0]), shoal_grad(eager.inputs[0]));
            capture_check_same("gradient of w", 0, shoal_grad(other.job.w), shoal_grad(eager.job.w));
        }
        CHECK_OK(shoal_scope_end());
    }
    CHECK_OK(shoal_compiled_get_report(compiled, &report));
    CHECK(report.n_compiles == (has_gradients ? 2 : 1)); /* the second run adds to gradients */
    shoal_compiled_free(compiled);
    side_free(&eager);
    side_free(&other);
}

/* One op and one wait each way. */
static void check_graph(shoal_world *world, size_t row)
{
    struct side side;
    side_make(&side, shoal_world_group(world), true);
    struct captured_step step = {
        .step = steps[row].step, .context = &side.job, .inputs = side.inputs, .n_inputs = 1, .n_outputs = 2};
    shoal_graph *graph = capture_check(&step, world);
    if (graph) {
        bool is_same = strcmp(steps[row].op, steps[row].gradient) == 0;
        CHECK(capture_count(graph, steps[row].op) == (is_same ? 2 : 1));
        CHECK(capture_count(graph, steps[row].gradient) == (is_same ? 2 : 1));
        CHECK(capture_count(graph, "wait_tensor") == 2);
    }
    shoal_graph_free(graph);
    side_free(&side);
}

static void forward_and_backward(const struct rank *self)
{
    shoal_world *world = rank_world_open(self, 0);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && !test_has_failed(); i++) {
        check_graph(world, i);
        run_beside(world, steps[i].step, true);
        if (test_has_failed()) {
            test_failed(__FILE__, __LINE__, "that was %s, step %zu", steps[i].op, i);
        }
    }
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(forward_and_backward_2, 2)
{
    forward_and_backward(self);
}

TEST_RANKS(forward_and_backward_3, 3)
{
    forward_and_backward(self);
}

static void write_inputs(const struct rank *self)
{
    shoal_world *world = rank_world_open(self, 0);
    for (size_t i = 0; i < sizeof writing_steps / sizeof writing_steps[0] && !test_has_failed(); i++) {
        run_beside(world, writing_steps[i], false);
        if (test_has_failed()) {
            test_failed(__FILE__, __LINE__, "that was step %zu", i);
        }
    }
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(writes_into_inputs_2, 2)
{
    write_inputs(self);
}

TEST_RANKS(writes_into_inputs_3, 3)
{
    write_inputs(self);
}
