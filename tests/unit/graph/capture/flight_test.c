/* SPDX-License-Identifier: MIT */
/*
 * Steps whose starts are waited for later, by views, or never: messages between ranks, alone and in batches, and collectives called as
 * ops. Captured they wait where eager code would; as graphs, after passes and as plans they compute the bits of the step.
 */
#include "fixtures/rank_world.h"
#include "unit/graph/capturing.h"

#include "shoal_compat/torch.h"

#define SHAPE(...) ((int64_t[]){__VA_ARGS__})
#define N_INPUTS 2
#define MAX_OUTPUTS 3
#define N_RUNS 3

struct ring {
    shoal_group *group;
    int next;
    int before;
    int other_tag;     /* added to the tag that this rank sends with */
    int64_t n_missing; /* rows that it does not send */
};

static struct ring make_ring(shoal_group *group)
{
    int rank = shoal_group_rank(group);
    int n_ranks = shoal_group_n_ranks(group);
    return (struct ring){
        .group = group, .next = (rank + 1) % n_ranks, .before = (rank + n_ranks - 1) % n_ranks};
}

/* Steps of two inputs, [4, 3], and what they give ----------------------------------------------------------- */

/* All ranks receive first: a wait directly behind that would stop them. */
static shoal_status receive_first(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    const struct ring *ring = context;
    shoal_tensor *got = shoal_irecv(shoal_empty(SHAPE(4, 3), 2, SHOAL_F32), ring->before, 3, ring->group);
    shoal_tensor *sent = shoal_narrow(inputs[0], 0, 0, 4 - ring->n_missing);
    (void)shoal_isend(shoal_mul_scalar(sent, 2.0), ring->next, 3 + ring->other_tag, ring->group);
    outputs[0] = shoal_mul_scalar(inputs[1], 0.3);
    outputs[1] = shoal_add(shoal_narrow(got, 0, 1, 2), shoal_narrow(inputs[0], 0, 0, 2));
    return shoal_scope_error();
}

/* Halves of one buffer, in a batch; what was sent is written later, and the buffer sent on. */
static shoal_status exchange_halves(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                    shoal_tensor **outputs, size_t n_outputs)
{
    const struct ring *ring = context;
    shoal_tensor *buffer = shoal_zeros(SHAPE(8, 3), 2, SHOAL_F32);
    shoal_tensor *sent = shoal_add(inputs[0], inputs[1]);
    shoal_tensor *low = shoal_narrow(buffer, 0, 0, 4);
    shoal_tensor *high = shoal_narrow(buffer, 0, 4, 4);
    const shoal_p2p_op first[] = {{SHOAL_RECV, low, ring->before, 1}, {SHOAL_RECV, high, ring->next, 2}};
    const shoal_p2p_op second[] = {{SHOAL_SEND, sent, ring->next, 1},
                                   {SHOAL_SEND, inputs[1], ring->before, 2}};
    (void)shoal_batch_p2p_ops(first, 2, ring->group);
    (void)shoal_batch_p2p_ops(second, 2, ring->group);
    const shoal_value lists[] = {{.kind = SHOAL_VALUE_TENSORS, .count = 1, .as.tensors = &sent},
                                 {.kind = SHOAL_VALUE_TENSORS, .count = 1, .as.tensors = inputs}};
    shoal_value result;
    shoal_status status = shoal_op_call(op_get(OP_foreach_add_), lists, 2, &result); /* in place */
    outputs[0] = shoal_neg(high);
    outputs[1] = shoal_mul_scalar(buffer, 3.0);
    outputs[2] = sent;
    return status == SHOAL_OK ? shoal_scope_error() : status;
}

/* Into an input, of which a part was written before; another is written while it is sent. */
static shoal_status receive_into_input(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                       shoal_tensor **outputs, size_t n_outputs)
{
    const struct ring *ring = context;
    shoal_tensor *row = shoal_select(inputs[0], 0, 2);
    (void)shoal_isend(inputs[1], ring->next, 4, ring->group);
    (void)shoal_add_scalar_(inputs[1], 5.0);
    (void)shoal_add_scalar_(row, 1.0);
    shoal_tensor *got = shoal_irecv(inputs[0], ring->before, 4, ring->group);
    (void)shoal_mul_scalar_(row, 2.0);
    outputs[0] = shoal_clone(got);
    return shoal_scope_error();
}

/* Starts called as ops: waited for through a view, by a use, or not at all. */
static shoal_tensor *start(shoal_tensor *tensor, shoal_group *group)
{
    shoal_value result = {.kind = SHOAL_VALUE_NONE};
    const shoal_value arguments[] = {{.kind = SHOAL_VALUE_TENSOR, .as.tensor = tensor},
                                     {.kind = SHOAL_VALUE_STRING, .as.string = "sum"},
                                     {.kind = SHOAL_VALUE_GROUP, .as.group = group}};
    return shoal_op_call(op_get(OP_all_reduce), arguments, 3, &result) == SHOAL_OK ? result.as.tensor : NULL;
}

static shoal_status wait_through_views(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                       shoal_tensor **outputs, size_t n_outputs)
{
    const struct ring *ring = context;
    shoal_tensor *a = start(inputs[0], ring->group);
    shoal_tensor *b = start(inputs[1], ring->group);
    shoal_tensor *c = start(shoal_neg(inputs[1]), ring->group);
    shoal_tensor *part = shoal_wait_tensor(shoal_narrow(a, 0, 1, 2));
    outputs[0] = shoal_add(part, shoal_narrow(shoal_view(a, SHAPE(4, 3), 2), 0, 2, 2));
    outputs[1] = shoal_mul_scalar(shoal_transpose(b, 0, 1), 0.5);
    outputs[2] = shoal_select(c, 1, 1);
    return shoal_scope_error();
}

/* In place through a view of a part, and what lies beside it meanwhile. */
static shoal_status reduce_a_part(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    const struct ring *ring = context;
    shoal_tensor *sum = shoal_add(inputs[0], inputs[1]);
    (void)shoal_all_reduce_(shoal_narrow(sum, 0, 0, 2), SHOAL_SUM, ring->group);
    (void)shoal_mul_scalar_(shoal_narrow(sum, 0, 2, 2), 7.0);
    (void)shoal_broadcast_(shoal_select(inputs[1], 0, 3), 0, ring->group);
    outputs[0] = sum;
    outputs[1] = shoal_add_scalar(inputs[1], 1.0);
    return shoal_scope_error();
}

/* A part is received while another one is written. */
static shoal_status write_beside(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    const struct ring *ring = context;
    shoal_tensor *buffer = shoal_zeros(SHAPE(8, 3), 2, SHOAL_F32);
    (void)n_inputs;
    (void)n_outputs;
    (void)shoal_irecv(shoal_narrow(buffer, 0, 0, 4), ring->before, 3, ring->group);
    (void)shoal_add_scalar_(shoal_narrow(buffer, 0, 4, 4), 1.0); /* before the send: must not wait */
    (void)shoal_isend(inputs[0], ring->next, 3, ring->group);
    outputs[0] = shoal_clone(buffer);
    return shoal_scope_error();
}

/* A wait for a part that nothing comes into. */
static shoal_status wait_beside(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    const struct ring *ring = context;
    shoal_tensor *buffer = shoal_zeros(SHAPE(8, 3), 2, SHOAL_F32);
    shoal_tensor *low = shoal_narrow(buffer, 0, 0, 4);
    (void)n_inputs;
    (void)n_outputs;
    (void)shoal_irecv(low, ring->before, 3, ring->group);
    (void)shoal_isend(inputs[0], ring->next, 3, ring->group);
    (void)shoal_wait_tensor(shoal_narrow(buffer, 0, 4, 4));
    outputs[0] = shoal_neg(low);
    outputs[1] = shoal_neg(buffer);
    return shoal_scope_error();
}

/* A wait for one of two parts that come by one call. */
static shoal_status wait_for_one(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    const struct ring *ring = context;
    shoal_tensor *buffer = shoal_zeros(SHAPE(8, 3), 2, SHOAL_F32);
    shoal_tensor *low = shoal_narrow(buffer, 0, 0, 4);
    shoal_tensor *high = shoal_narrow(buffer, 0, 4, 4);
    const shoal_p2p_op ops[] = {{SHOAL_RECV, low, ring->before, 1},
                                {SHOAL_RECV, high, ring->next, 2},
                                {SHOAL_SEND, inputs[0], ring->next, 1},
                                {SHOAL_SEND, inputs[1], ring->before, 2}};
    (void)n_inputs;
    (void)n_outputs;
    shoal_tensor *const *got = shoal_batch_p2p_ops(ops, 4, ring->group);
    (void)shoal_wait_tensor(got ? got[0] : NULL);
    outputs[0] = shoal_neg(low);
    outputs[1] = shoal_neg(high);
    return shoal_scope_error();
}

static const struct {
    shoal_step_function step;
    size_t n_outputs;
} steps[] = {{receive_first, 2},   {write_beside, 1},       {wait_beside, 2},        {wait_for_one, 2},
             {exchange_halves, 3}, {receive_into_input, 1}, {wait_through_views, 3}, {reduce_a_part, 2}};

/* Comparing --------------------------------------------------------------------------------------------- */

static void make_inputs(int rank, shoal_tensor **inputs)
{
    for (int i = 0; i < N_INPUTS; i++) {
        inputs[i] = capture_tensor(SHAPE(4, 3), 2, SHOAL_F32, 7 * rank + i, i == 0 ? "x" : "y");
    }
}

static void free_tensors(shoal_tensor **tensors, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        shoal_tensor_unref(tensors[i]);
        tensors[i] = NULL;
    }
}

static void compare_compiled(const struct captured_step *step, shoal_world *world, int rank,
                             const shoal_compile_options *options)
{
    shoal_tensor *eager[N_INPUTS];
    shoal_tensor *other[N_INPUTS];
    shoal_compiled *compiled = NULL;
    make_inputs(rank, eager);
    make_inputs(rank, other);
    REQUIRE_OK(shoal_compile(world, step->step, step->context, step->n_outputs, options, &compiled));
    for (int run = 0; run < N_RUNS && !test_has_failed(); run++) {
        shoal_tensor *want[MAX_OUTPUTS] = {NULL};
        shoal_tensor *got[MAX_OUTPUTS] = {NULL};
        REQUIRE_OK(shoal_scope_begin());
        CHECK_OK(step->step(step->context, eager, N_INPUTS, want, step->n_outputs));
        CHECK_OK(shoal_compiled_run(compiled, other, N_INPUTS, got, step->n_outputs));
        for (size_t i = 0; i < step->n_outputs; i++) {
            capture_check_same("output", i, got[i], want[i]);
        }
        for (size_t i = 0; i < N_INPUTS; i++) {
            capture_check_same("input", i, other[i], eager[i]);
        }
        free_tensors(got, step->n_outputs);
        CHECK_OK(shoal_scope_end());
    }
    shoal_compiled_free(compiled);
    free_tensors(eager, N_INPUTS);
    free_tensors(other, N_INPUTS);
}

static const char *const passes[] = {"sink_waits", "raise_comms", "reorder_compute_for_overlap",
                                     "simple_overlap", "dedupe_waits"};

static void check_step(const struct captured_step *step, shoal_world *world, int rank)
{
    shoal_graph *graph = capture_check(step, world);
    REQUIRE(graph != NULL);
    for (size_t i = 0; i < sizeof passes / sizeof passes[0] && !test_has_failed(); i++) {
        CHECK_OK(shoal_graph_run_passes(graph, &passes[i], 1, NULL, NULL));
        capture_compare(step, graph, world);
    }
    shoal_graph_free(graph);
    shoal_compile_options options = SHOAL_COMPILE_OPTIONS_INIT;
    compare_compiled(step, world, rank, &options);
    options.passes = "";
    compare_compiled(step, world, rank, &options);
    options.passes = "sink_waits,raise_comms";
    compare_compiled(step, world, rank, &options);
}

static void check_steps(const struct rank *self)
{
    shoal_world *world = rank_world_open(self, 0);
    struct ring ring = make_ring(shoal_world_group(world));
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && !test_has_failed(); i++) {
        shoal_tensor *inputs[N_INPUTS];
        make_inputs(self->rank, inputs);
        struct captured_step step = {.step = steps[i].step,
                                     .context = &ring,
                                     .inputs = inputs,
                                     .n_inputs = N_INPUTS,
                                     .n_outputs = steps[i].n_outputs};
        check_step(&step, world, self->rank);
        free_tensors(inputs, N_INPUTS);
        if (test_has_failed()) {
            test_failed(__FILE__, __LINE__, "that was step %zu", i);
        }
    }
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(what_is_not_waited_for_2, 2)
{
    check_steps(self);
}

TEST_RANKS(what_is_not_waited_for_3, 3)
{
    check_steps(self);
}

/* One rank that deviates ----------------------------------------------------------------------------------- */

/*
 * As in eager code, messages are between two ranks, and it is the receiver that learns: nobody gives wrong numbers, and nobody waits
 * longer than the deadline.
 */
static void deviate(const struct rank *self, int round, int other_tag, int64_t n_missing, const char *said)
{
    struct rank_key key = rank_key(self, round);
    shoal_world_options world_options = rank_world_options(self, &key);
    world_options.timeout_s = 2 * test_time_scale();
    shoal_world *world = NULL;
    shoal_compiled *compiled = NULL;
    shoal_tensor *inputs[N_INPUTS];
    shoal_tensor *outputs[MAX_OUTPUTS] = {NULL};
    REQUIRE_OK(shoal_world_open(&world_options, &world));
    struct ring ring = make_ring(shoal_world_group(world));
    ring.other_tag = self->rank == 1 ? other_tag : 0;
    ring.n_missing = self->rank == 1 ? n_missing : 0;
    make_inputs(self->rank, inputs);
    REQUIRE_OK(shoal_scope_begin());
    CHECK_OK(shoal_compile(world, receive_first, &ring, 2, NULL, &compiled));
    shoal_status status = shoal_compiled_run(compiled, inputs, N_INPUTS, outputs, 2);
    if (ring.before == 1) {
        CHECK(status != SHOAL_OK && !outputs[0] && !outputs[1]);
        CHECK_ERROR_TEXT(said);
    } else {
        CHECK((status == SHOAL_OK) ==
              (outputs[1] != NULL)); /* a world in which somebody has failed may end */
    }
    free_tensors(outputs, 2);
    shoal_compiled_free(compiled);
    shoal_status ended = shoal_scope_end();
    free_tensors(inputs, N_INPUTS);
    shoal_status closed = shoal_world_close(world);
    CHECK(ended != SHOAL_ERR_INTERNAL && closed != SHOAL_ERR_INTERNAL);
}

static void deviate_in_turn(const struct rank *self)
{
    deviate(self, 0, 1, 0, "tag 3");
    deviate(self, 1, 0, 1, "12");
}

TEST_RANKS(a_rank_that_deviates_2, 2)
{
    deviate_in_turn(self);
}

TEST_RANKS(a_rank_that_deviates_3, 3)
{
    deviate_in_turn(self);
}
