/* SPDX-License-Identifier: MIT */
/*
 * Functional collectives under a tracer. A typed call is seen as the op and right behind it the wait for each result,
 * so that a graph says where data is needed; only what stands for a send is left alone. The same in backward. Groups
 * are seen as groups, whose names any rank can turn back into them, and nothing else is seen of how they were found.
 */
#include <stdio.h>
#include <string.h>

#include "fixtures/groups.h"
#include "conformance/functional/row_cases.h"
#include "conformance/functional/row_typed.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "op/dispatch.h"
#include "op/tracer.h"
#include "shoal/autograd.h"
#include "shoal/collective.h"
#include "shoal_compat/torch.h"
#include "shoal/mesh.h"
#include "shoal/ops.h"

#define INTS(...) ((const int64_t[]){__VA_ARGS__})

/* A tracer that runs and remembers ---------------------------------------------------------------------- */

enum {
    MAX_CALLS = 64,
    CASES_PER_ROW = 40
};

/* Backward frees what it has used: outputs are held, arguments are only compared. */
struct seen_call {
    const shoal_op *op;
    shoal_value arguments[OP_MAX_PARAMS];
    shoal_tensor *outputs[ROW_MAX_TENSORS];
    size_t n_outputs;
};

struct recorder {
    struct op_tracer tracer; /* first: the tracer's address is the recorder's */
    size_t n_calls;
    struct seen_call calls[MAX_CALLS];
};

static shoal_status record(struct op_tracer *tracer, const shoal_op *op, const shoal_value *arguments,
                           shoal_value *result_out)
{
    struct recorder *recorder = (struct recorder *)tracer;
    shoal_status status = op_execute(op, arguments, result_out);
    if (status == SHOAL_OK && recorder->n_calls < MAX_CALLS) {
        struct seen_call *call = &recorder->calls[recorder->n_calls++];
        call->op = op;
        memcpy(call->arguments, arguments, op->n_params * sizeof arguments[0]);
        for (call->n_outputs = 0; call->n_outputs < result_out->count; call->n_outputs++) {
            call->outputs[call->n_outputs] = shoal_tensor_ref(row_output_of(result_out, call->n_outputs));
        }
    }
    return status;
}

static void forget_record(struct recorder *recorder)
{
    for (size_t i = 0; i < recorder->n_calls; i++) {
        for (size_t k = 0; k < recorder->calls[i].n_outputs; k++) {
            shoal_tensor_unref(recorder->calls[i].outputs[k]);
        }
    }
    memset(recorder, 0, sizeof *recorder);
}

static void begin_record(struct recorder *recorder)
{
    forget_record(recorder);
    recorder->tracer.call = record;
    CHECK_OK(op_set_tracer(&recorder->tracer));
}

static void end_record(void)
{
    CHECK_OK(op_set_tracer(NULL));
}

/* The names of what was seen, with spaces between. */
static const char *names_of(const struct recorder *recorder)
{
    static _Thread_local char text[MAX_CALLS * 40];
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < recorder->n_calls; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i == 0 ? "" : " ",
                                 recorder->calls[i].op->name);
    }
    return text;
}

/* Right behind every collective but a send: a wait for each of its results, and for nothing else. */
static void check_waits(const struct recorder *recorder)
{
    for (size_t at = 0; at < recorder->n_calls && !test_has_failed(); at++) {
        const struct seen_call *call = &recorder->calls[at];
        bool needs_wait = (call->op->flags & SHOAL_OP_COLLECTIVE) != 0 && call->op->index != OP_isend;
        for (size_t i = 0; needs_wait && i < call->n_outputs && !test_has_failed(); i++) {
            const struct seen_call *wait = &recorder->calls[at + 1 + i];
            if (at + 1 + i >= recorder->n_calls || wait->op->index != OP_wait_tensor ||
                wait->arguments[0].as.tensor != call->outputs[i]) {
                test_failed(__FILE__, __LINE__, "result %zu of %s is not waited for: %s", i, call->op->name,
                            names_of(recorder));
            }
        }
        at += needs_wait ? call->n_outputs : 0;
    }
}

/* Worlds without peers ---------------------------------------------------------------------------------- */

static shoal_world *open_fake(int rank, int n_ranks)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = n_ranks, .rank = rank, .key = "trace", .transport = "fake"};
    shoal_world *world = NULL;
    (void)CHECK_OK(shoal_world_open(&options, &world));
    return world;
}

static struct recorder the_record;

/* A test in a world of two and a scope, the caller being rank 0. */
#define TRACE_TEST(name)                                        \
    static void run_##name(shoal_world *world, shoal_group *g); \
    TEST(name)                                                  \
    {                                                           \
        shoal_world *world = open_fake(0, 2);                   \
        REQUIRE(world);                                         \
        REQUIRE_OK(shoal_scope_begin());                        \
        run_##name(world, shoal_world_group(world));            \
        forget_record(&the_record);                             \
        CHECK_OK(shoal_scope_end());                            \
        CHECK_OK(shoal_world_close(world));                     \
    }                                                           \
    static void run_##name(shoal_world *world, shoal_group *g)

/* Every row --------------------------------------------------------------------------------------------- */

/* Typed: the op, then a wait for each output, whose answers are what the caller gets. */
static void check_typed(const struct row_case *c, const shoal_value *result)
{
    bool is_wait = (c->op->flags & SHOAL_OP_WAIT) != 0;
    size_t n_waits = is_wait || c->op->index == OP_isend ? 0 : c->n_outputs;
    if (!CHECK_INT(the_record.n_calls, 1 + n_waits) || the_record.calls[0].op != c->op) {
        test_failed(__FILE__, __LINE__, "%s is seen as: %s", c->op->name, names_of(&the_record));
        return;
    }
    check_waits(&the_record);
    for (size_t i = 0; i < n_waits; i++) {
        CHECK(the_record.calls[1 + i].outputs[0] == row_output_of(result, i));
    }
    row_check_outputs(c, result);
}

/* Boxed: the op alone. Who calls by hand decides where to wait. */
static void check_boxed(const struct row_case *c, const shoal_value *result)
{
    CHECK_INT(the_record.n_calls, 1);
    CHECK(the_record.calls[0].op == c->op);
    row_check_outputs(c, result);
}

static void check_arguments(const struct row_case *c)
{
    const struct seen_call *call = &the_record.calls[0];
    for (size_t i = 0; i < c->op->n_params; i++) {
        if (c->op->params[i].type == OP_PARAM_GROUP) {
            CHECK_INT(call->arguments[i].kind, SHOAL_VALUE_GROUP);
            CHECK(call->arguments[i].as.group == c->wanted.group);
        }
        CHECK(call->arguments[i].kind != SHOAL_VALUE_NONE); /* complete: absent factors too */
    }
}

static void check_row(enum op_id id)
{
    static struct row_case c;
    shoal_world *world = open_fake(2, 5);
    shoal_symmetric *symmetric = NULL;
    REQUIRE(world);
    REQUIRE_OK(shoal_symmetric_create(shoal_world_group(world), ROW_SYMMETRIC_BYTES, &symmetric));
    for (uint64_t number = 0; number < CASES_PER_ROW && !test_has_failed(); number++) {
        shoal_value result;
        REQUIRE_OK(shoal_scope_begin());
        row_build(&c, id,
                  &(struct row_wanted){.group = shoal_world_group(world),
                                       .device = number % 4 < 3 ? SHOAL_CPU : SHOAL_META,
                                       .symmetric = symmetric},
                  number);
        begin_record(&the_record);
        if (number % 2 == 0) {
            CHECK(typed_call(&c, &result));
            check_typed(&c, &result);
        } else {
            CHECK_OK(shoal_op_call(c.op, c.values, c.n_values, &result));
            check_boxed(&c, &result);
        }
        check_arguments(&c);
        forget_record(&the_record);
        CHECK_OK(shoal_scope_end());
    }
    shoal_symmetric_free(symmetric);
    CHECK_OK(shoal_world_close(world));
}

#define OP(...)
#define OP_OF_RANKS(name, signature, flags, meta, kernel, gradient, saves, doc) \
    TEST(trace_##name)                                                          \
    {                                                                           \
        check_row(OP_##name);                                                   \
    }
#include "op/ops.def"
#undef OP

/* Names that are other names */

TRACE_TEST(aliases_are_seen_as_what_they_mean)
{
    shoal_tensor *x = shoal_zeros(INTS(4), 1, SHOAL_F32);
    begin_record(&the_record);
    CHECK(shoal_all_gather_tensor_autograd(x, 0, g));
    CHECK(shoal_reduce_scatter_tensor_autograd(x, SHOAL_SUM, 0, g));
    CHECK(shoal_all_to_all_single_autograd(x, NULL, NULL, 0, g));
    CHECK(shoal_all_reduce_inplace(x, SHOAL_SUM, g) == x);
    CHECK(shoal_all_reduce_premul(x, 0.5, g));
    end_record();
    CHECK_STRING(names_of(&the_record), "all_gather_tensor wait_tensor reduce_scatter_tensor wait_tensor "
                                        "all_to_all_single wait_tensor all_reduce_ wait_tensor all_reduce "
                                        "wait_tensor");
    CHECK_STRING(the_record.calls[8].arguments[1].as.string, "premul_sum");
    CHECK_DOUBLE(the_record.calls[8].arguments[3].as.real, 0.5);
}

/* Calls an op by its name as a typed function would; the tensor it gives, or NULL. */
static shoal_tensor *collect(const char *name, const shoal_value *arguments, size_t n_arguments)
{
    const shoal_op *op = NULL;
    shoal_value result;
    (void)CHECK_OK(shoal_op_find(name, &op));
    return shoal_op_call_collective(op, arguments, n_arguments, &result) == SHOAL_OK ? result.as.tensor
                                                                                     : NULL;
}

TRACE_TEST(collectives_by_name_are_seen_as_typed_calls)
{
    shoal_tensor *x = shoal_zeros(INTS(4), 1, SHOAL_F32);
    const shoal_value sum[] = {box_tensor(x), box_string("sum"), box_group(g)};
    const shoal_value send[] = {box_tensor(x), box_int(1), box_int(0), box_group(g)};
    const shoal_value negative[] = {box_tensor(x)};
    begin_record(&the_record);
    shoal_tensor *total = collect("all_reduce", sum, 3);
    CHECK(total && total == the_record.calls[1].outputs[0]);
    CHECK(collect("isend", send, 4));
    CHECK(collect("neg", negative, 1));
    end_record();
    CHECK_STRING(names_of(&the_record), "all_reduce wait_tensor isend neg");
}

TRACE_TEST(collectives_by_name_need_an_op)
{
    shoal_value result;
    REQUIRE_OK(shoal_scope_begin());
    CHECK_STATUS(shoal_op_call_collective(NULL, NULL, 0, &result), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK(world && g);
}

TRACE_TEST(without_a_tracer_nobody_waits)
{
    shoal_tensor *x = shoal_zeros(INTS(4), 1, SHOAL_F32);
    begin_record(&the_record);
    end_record();
    CHECK(shoal_all_reduce(x, SHOAL_SUM, g));
    CHECK_INT(the_record.n_calls, 0);
}

/* Point to point ----------------------------------------------------------------------------------------- */

TRACE_TEST(a_send_is_left_alone_until_it_is_waited_for)
{
    shoal_tensor *x = shoal_zeros(INTS(4), 1, SHOAL_F32);
    begin_record(&the_record);
    shoal_tensor *sent = shoal_isend(x, 1, 0, g);
    CHECK_STRING(names_of(&the_record), "isend");
    CHECK(shoal_wait_tensor(sent) == sent);
    CHECK(shoal_irecv(x, 1, 0, g) == x);
    end_record();
    CHECK_STRING(names_of(&the_record), "isend wait_tensor irecv wait_tensor");
    CHECK(the_record.calls[1].arguments[0].as.tensor == sent);
    CHECK(the_record.calls[3].arguments[0].as.tensor == x);
    for (size_t i = 0; i < the_record.n_calls; i++) {
        CHECK((the_record.calls[i].op->flags & SHOAL_OP_SIDE_EFFECT) != 0);
    }
}

TRACE_TEST(batches_between_other_work)
{
    shoal_tensor *x = shoal_zeros(INTS(4), 1, SHOAL_F32);
    shoal_tensor *y = shoal_zeros(INTS(4), 1, SHOAL_F32);
    const shoal_p2p_op there[] = {{.direction = SHOAL_SEND, .tensor = x, .peer = 1},
                                  {.direction = SHOAL_RECV, .tensor = y, .peer = 1}};
    const shoal_p2p_op back[] = {{.direction = SHOAL_RECV, .tensor = x, .peer = 1, .tag = 3}};
    begin_record(&the_record);
    CHECK(shoal_batch_p2p_ops(there, 2, g));
    CHECK(shoal_neg(y));
    CHECK(shoal_batch_p2p_ops(back, 1, g));
    CHECK(shoal_add(x, y));
    CHECK(shoal_batch_p2p_ops(NULL, 0, g));
    end_record();
    CHECK_STRING(names_of(&the_record),
                 "batch_p2p_ops wait_tensor wait_tensor neg batch_p2p_ops wait_tensor add batch_p2p_ops");
    check_waits(&the_record);
    CHECK((the_record.calls[0].op->flags & SHOAL_OP_SIDE_EFFECT) != 0);
    CHECK(the_record.calls[2].arguments[0].as.tensor == y);
}

/* Groups ------------------------------------------------------------------------------------------------- */

/* However a group is said, the graph has the same call; asking a mesh who one is leaves no trace. */
TRACE_TEST(groups_are_found_without_a_trace)
{
    shoal_mesh *mesh = NULL;
    shoal_mesh *line = NULL;
    int coordinate[2];
    shoal_tensor *x = shoal_zeros(INTS(4), 1, SHOAL_F32);
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, (int[]){1, 2}, 2, (const char *[]){"a", "b"}, &mesh));
    begin_record(&the_record);
    CHECK_OK(shoal_mesh_flatten(mesh, "flat", &line));
    CHECK_INT(shoal_group_rank(shoal_mesh_group(mesh, 1)), 0);
    CHECK(shoal_mesh_coordinate(mesh, coordinate));
    shoal_group *const groups[] = {
        g,
        shoal_mesh_group(line, 0),
        shoal_mesh_group(mesh, 1),
        group_of_name(world, "world"),
        group_of_ranks(world, (int[]){0, 1}, 2, NULL),
        group_of_lists(world, (const int *const[]){(int[]){0, 1}}, (int[]){2}, 1, NULL)};
    CHECK_INT(the_record.n_calls, 0);
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        REQUIRE(groups[i]);
        begin_record(&the_record);
        CHECK(shoal_all_reduce(x, SHOAL_SUM, groups[i]));
        CHECK_STRING(names_of(&the_record), "all_reduce wait_tensor");
        CHECK(the_record.calls[0].arguments[2].as.group == groups[i]);
    }
    end_record();
    shoal_mesh_free(line);
    shoal_mesh_free(mesh);
}

/* What a graph keeps of a group is its name: the same on every rank, and enough to find it again. */
TEST(groups_are_written_as_names)
{
    char names[2][64];
    for (int rank = 0; rank < 2; rank++) {
        shoal_world *world = open_fake(2 * rank, 4);
        REQUIRE(world);
        REQUIRE_OK(shoal_scope_begin());
        shoal_group *group = group_of_ranks(world, (int[]){0, 2}, 2, "even");
        begin_record(&the_record);
        CHECK(shoal_broadcast(shoal_zeros(INTS(4), 1, SHOAL_F32), 1, group));
        end_record();
        CHECK_STRING(names_of(&the_record), "zeros broadcast wait_tensor");
        const shoal_value *seen = &the_record.calls[1].arguments[2];
        CHECK_INT(seen->kind, SHOAL_VALUE_GROUP);
        (void)snprintf(names[rank], sizeof names[rank], "%s", shoal_group_name(seen->as.group));
        CHECK(group_of_name(world, names[rank]) == group);
        forget_record(&the_record);
        CHECK_OK(shoal_scope_end());
        CHECK_OK(shoal_world_close(world));
    }
    CHECK_STRING(names[0], "0,2/even");
    CHECK_STRING(names[0], names[1]);
}

/* Backward ----------------------------------------------------------------------------------------------- */

static size_t count_calls(const struct recorder *recorder, enum op_id id)
{
    size_t n = 0;
    for (size_t i = 0; i < recorder->n_calls; i++) {
        n += recorder->calls[i].op->index == (int)id ? 1 : 0;
    }
    return n;
}

static shoal_tensor *make_leaf(int n_dims, const int64_t *shape)
{
    shoal_tensor *leaf = shoal_full(shape, n_dims, 2, SHOAL_F64);
    CHECK_OK(shoal_set_requires_grad(leaf, true));
    return leaf;
}

/* One op and one wait forward, one of each backward, which has the splits exchanged. */
TRACE_TEST(all_to_all_forward_and_backward)
{
    shoal_tensor *x = make_leaf(2, INTS(4, 3));
    begin_record(&the_record);
    shoal_tensor *y = shoal_all_to_all_single(shoal_mul_scalar(x, 2), INTS(1, 2), INTS(1, 3), 2, g);
    CHECK_STRING(names_of(&the_record), "mul_scalar all_to_all_single wait_tensor");
    CHECK(shoal_requires_grad(y));
    shoal_tensor *loss = shoal_sum(y, NULL, 0, false);
    begin_record(&the_record);
    CHECK_OK(shoal_backward(loss, NULL));
    end_record();
    CHECK_INT(count_calls(&the_record, OP_all_to_all_single), 1);
    CHECK_INT(count_calls(&the_record, OP_wait_tensor), 1);
    check_waits(&the_record);
    for (size_t i = 0; i < the_record.n_calls; i++) {
        if (the_record.calls[i].op->index == OP_all_to_all_single) {
            CHECK_INT(shoal_tensor_shape(the_record.calls[i].outputs[0])[0], 4);
        }
    }
    CHECK(shoal_grad(x));
}

/* The same without splits, which stay absent. */
TRACE_TEST(all_to_all_of_equal_blocks_forward_and_backward)
{
    shoal_tensor *x = make_leaf(2, INTS(2, 2));
    begin_record(&the_record);
    shoal_tensor *y = shoal_all_to_all_single_autograd(shoal_mul_scalar(x, 2), NULL, NULL, 0, g);
    CHECK_OK(shoal_backward(shoal_sum(y, NULL, 0, false), NULL));
    end_record();
    CHECK_INT(count_calls(&the_record, OP_all_to_all_single), 2);
    CHECK_INT(count_calls(&the_record, OP_wait_tensor), 2);
    check_waits(&the_record);
}

static shoal_tensor *add_up(shoal_tensor *const *list, size_t n)
{
    shoal_tensor *total = NULL;
    for (size_t i = 0; list && i < n; i++) {
        shoal_tensor *part = shoal_sum(list[i], NULL, 0, false);
        total = total ? shoal_add(total, part) : part;
    }
    return total;
}

/* x, y: f64 [4, 2], which need gradients; o: zeros [8, 2]; q: zeros [2, 2]. Rows: the loss of a call. */
#define BACKWARD_CALLS(CALL)                                                                   \
    CALL(shoal_all_reduce(x, SHOAL_SUM, g))                                                    \
    CALL(shoal_all_reduce(x, SHOAL_AVG, g))                                                    \
    CALL(shoal_all_reduce(x, SHOAL_MAX, g))                                                    \
    CALL(shoal_all_reduce_premul(x, 0.5, g))                                                   \
    CALL(shoal_all_reduce_(shoal_neg(x), SHOAL_MIN, g))                                        \
    CALL(add_up(shoal_all_reduce_coalesced(xy, 2, SHOAL_SUM, g), 2))                           \
    CALL(add_up(shoal_all_reduce_coalesced(xy, 2, SHOAL_MIN, g), 2))                           \
    CALL(add_up(shoal_all_reduce_coalesced_premul(xy, 2, 0.5, g), 2))                          \
    CALL(shoal_reduce(x, SHOAL_AVG, 1, g))                                                     \
    CALL(shoal_reduce_scatter_tensor(x, SHOAL_SUM, 1, g))                                      \
    CALL(shoal_reduce_premul(x, 2, 0, g))                                                      \
    CALL(shoal_reduce_scatter_tensor_premul_out(x, 2, g, q))                                   \
    CALL(shoal_reduce_scatter_tensor_premul_inplace(q, x, 2, 0, g))                            \
    CALL(add_up(shoal_reduce_scatter_tensor_coalesced_premul(xy, 2, 2, INTS(0, 1), g), 2))     \
    CALL(add_up(shoal_reduce_scatter_tensor_coalesced_premul(xy, 2, 2, NULL, g), 2))           \
    CALL(shoal_reduce_scatter_tensor_premul(x, 2, 0, g))                                       \
    CALL(shoal_reduce_scatter_tensor_out(x, SHOAL_SUM, g, q))                                  \
    CALL(shoal_reduce_scatter_tensor_inplace(q, x, SHOAL_AVG, 0, g))                           \
    CALL(add_up(shoal_reduce_scatter_tensor_coalesced(xy, 2, SHOAL_SUM, INTS(0, 1), g), 2))    \
    CALL(shoal_all_gather_tensor(x, 1, g))                                                     \
    CALL(shoal_all_gather_into_tensor(x, g))                                                   \
    CALL(shoal_all_gather_into_tensor_out(x, g, o))                                            \
    CALL(shoal_all_gather_tensor_inplace(o, x, 0, g))                                          \
    CALL(add_up(shoal_all_gather_into_tensor_coalesced(xy, 2, g), 2))                          \
    CALL(add_up(shoal_all_gather_inplace(pair, 2, x, g), 2))                                   \
    CALL(shoal_all_to_all_single(x, INTS(1, 3), INTS(1, 3), 2, g))                             \
    CALL(shoal_all_to_all_inplace(shoal_zeros(INTS(4, 2), 2, SHOAL_F64), x, NULL, NULL, 0, g)) \
    CALL(shoal_broadcast(x, 1, g))                                                             \
    CALL(shoal_broadcast_(shoal_neg(x), 0, g))                                                 \
    CALL(shoal_permute_tensor(x, INTS(1, 0), 2, g))                                            \
    CALL(shoal_permute_tensor(x, INTS(0), 1, g))                                               \
    CALL(shoal_shard_dim_alltoall(x, 0, 1, g))

/* Forward and backward of one call; false past the last. */
static bool trace_backward(shoal_group *g, int number)
{
    shoal_tensor *x = make_leaf(2, INTS(4, 2));
    shoal_tensor *y = make_leaf(2, INTS(4, 2));
    shoal_tensor *o = shoal_zeros(INTS(8, 2), 2, SHOAL_F64);
    shoal_tensor *q = shoal_zeros(INTS(2, 2), 2, SHOAL_F64);
    shoal_tensor *const xy[] = {x, y};
    shoal_tensor *const pair[] = {shoal_zeros(INTS(4, 2), 2, SHOAL_F64),
                                  shoal_zeros(INTS(4, 2), 2, SHOAL_F64)};
    shoal_tensor *result = NULL;
    const char *text = NULL;
    int at = 0;
    begin_record(&the_record);
#define CALL(call)        \
    if (at++ == number) { \
        text = #call;     \
        result = (call);  \
    }
    BACKWARD_CALLS(CALL)
#undef CALL
    check_waits(&the_record);
    shoal_tensor *loss = text ? shoal_sum(shoal_mul(result, result), NULL, 0, false) : NULL;
    begin_record(&the_record);
    if (text) {
        CHECK_OK(shoal_backward(loss, NULL));
        CHECK(shoal_grad(x));
        CHECK(count_calls(&the_record, OP_wait_tensor) > 0);
        check_waits(&the_record);
    }
    end_record();
    if (test_has_failed()) {
        (void)fprintf(stderr, "  in %s: %s\n", text ? text : "", names_of(&the_record));
    }
    return text != NULL;
}

TRACE_TEST(every_gradient_waits_for_its_collectives)
{
    bool is_more = true;
    for (int number = 0; is_more && !test_has_failed(); number++) {
        REQUIRE_OK(shoal_scope_begin());
        is_more = trace_backward(g, number);
        CHECK_OK(shoal_scope_end());
    }
}

/* In flight ---------------------------------------------------------------------------------------------- */

/* What is in flight may go into a traced region: it is waited for there, on the first call and on every later one. */
TEST_RANKS(inputs_in_flight_are_waited_for_every_time, 2)
{
    static _Thread_local struct recorder recorder; /* large */
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *g = shoal_world_group(world);
    for (int round = 0; round < 4; round++) {
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *x = shoal_full(INTS(1000), 1, self->rank + round, SHOAL_F32);
        /* A plain tensor is as good where one in flight was before. */
        shoal_tensor *input = round == 2 ? x : shoal_all_reduce(x, SHOAL_SUM, g);
        float expected = round == 2 ? (float)(self->rank + round) : (float)(1 + 2 * round);
        begin_record(&recorder);
        shoal_tensor *output = shoal_neg(shoal_reshape(input, INTS(10, 100), 2));
        end_record();
        CHECK_STRING(names_of(&recorder), "reshape neg");
        const float *data = shoal_data(output);
        CHECK(data && data[0] == -expected && data[999] == -expected);
        forget_record(&recorder);
        CHECK_OK(shoal_scope_end());
    }
    CHECK_OK(shoal_world_close(world));
}

/* A tracer that does not run what it sees waits for nothing: rank 1 comes only after rank 0 has looked. */
static shoal_status answer(struct op_tracer *tracer, const shoal_op *op, const shoal_value *arguments,
                           shoal_value *result_out)
{
    *result_out = arguments[0];
    return SHOAL_OK;
}

TEST_RANKS(looking_at_what_is_in_flight_waits_for_nothing, 2)
{
    struct op_tracer looker = {.call = answer};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *g = shoal_world_group(world);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *x = shoal_full(INTS(8), 1, self->rank + 1, SHOAL_F32);
    if (self->rank == 1) {
        test_barrier(self);
    }
    shoal_tensor *sum = shoal_all_reduce(x, SHOAL_SUM, g);
    uint64_t sequence = shoal_group_sequence(g);
    CHECK_OK(op_set_tracer(&looker));
    CHECK(shoal_all_reduce(shoal_neg(sum), SHOAL_SUM, g) == sum);
    CHECK_OK(op_set_tracer(NULL));
    CHECK_INT(shoal_group_sequence(g), sequence);
    if (self->rank == 0) {
        test_barrier(self);
    }
    const float *data = shoal_data(sum);
    CHECK(data && data[7] == 3.0f);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* A permutation whose result one rank never looks at runs all the same. */
TEST_RANKS(what_is_unused_still_runs, 2)
{
    static _Thread_local struct recorder recorder; /* large */
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *g = shoal_world_group(world);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *x = shoal_full(INTS(3), 1, self->rank + 1, SHOAL_F32);
    begin_record(&recorder);
    shoal_tensor *other = shoal_permute_tensor(x, INTS(1, 0), 2, g);
    end_record();
    CHECK_STRING(names_of(&recorder), "permute_tensor wait_tensor");
    CHECK((recorder.calls[1].op->flags & SHOAL_OP_SIDE_EFFECT) != 0);
    if (self->rank == 0) {
        const float *data = shoal_data(other);
        CHECK(data && data[2] == 2.0f);
    }
    forget_record(&recorder);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* Views of what is in flight lead back to it, with a tracer and without. */
TEST_RANKS(backward_through_a_view_of_what_is_in_flight, 2)
{
    static _Thread_local struct recorder recorder; /* large */
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *g = shoal_world_group(world);
    for (int is_traced = 0; is_traced < 2; is_traced++) {
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *x = make_leaf(2, INTS(4, 3));
        shoal_tensor *view =
            shoal_narrow(shoal_view(shoal_all_reduce(x, SHOAL_SUM, g), INTS(12), 1), 0, 3, 6);
        if (is_traced != 0) {
            begin_record(&recorder);
        }
        CHECK_OK(shoal_backward(shoal_sum(view, NULL, 0, false), NULL));
        end_record();
        const double *gradient = shoal_data(shoal_grad(x));
        for (int i = 0; i < 12; i++) {
            CHECK(gradient && gradient[i] == (i >= 3 && i < 9 ? 2.0 : 0.0));
        }
        CHECK_OK(shoal_scope_end());
    }
    check_waits(&recorder);
    CHECK_INT(count_calls(&recorder, OP_all_reduce), 1);
    forget_record(&recorder);
    CHECK_OK(shoal_world_close(world));
}
