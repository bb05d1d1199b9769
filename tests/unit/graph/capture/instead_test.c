/* SPDX-License-Identifier: MIT */
/*
 * Calls on groups that are no ops, inside a captured step: each is refused with the op to write instead, or with the
 * reason why there is none, whatever its other arguments are; a step that goes on is refused as a whole. And what a step
 * and a tensor can be asked: shoal_is_capturing, shoal_tensor_is_complete.
 */
#include <pthread.h>
#include <sched.h>

#include "fixtures/rank_world.h"
#include "unit/graph/capturing.h"

/* name in the error, words that its text has, the call */
#define CALLS(CALL)                                                                                          \
    CALL(barrier, "a step needs none", shoal_group_barrier(g))                                               \
    CALL(barrier, "there is no op for it", shoal_group_barrier_start(g, &work))                              \
    CALL(broadcast, "write shoal_broadcast or shoal_broadcast_", shoal_group_broadcast(g, f, 1, F32, 0))     \
    CALL(broadcast, "write shoal_broadcast", shoal_group_broadcast_start(g, f, 1, F32, 0, &work))            \
    CALL(all_reduce, "write shoal_all_reduce or", shoal_group_all_reduce(g, f, f, 1, F32, SHOAL_SUM))        \
    CALL(all_reduce, "shoal_all_reduce_coalesced",                                                           \
         shoal_group_all_reduce_start(g, f, f, 1, F32, SHOAL_SUM, &work))                                    \
    CALL(reduce, "write shoal_reduce", shoal_group_reduce(g, f, f, 1, F32, SHOAL_SUM, 0))                    \
    CALL(reduce, "write shoal_reduce", shoal_group_reduce_start(g, f, f, 1, F32, SHOAL_SUM, 0, &work))       \
    CALL(all_gather, "write shoal_all_gather_tensor", shoal_group_all_gather(g, f, f, 1, F32))               \
    CALL(all_gather, "write shoal_all_gather_tensor", shoal_group_all_gather_start(g, f, f, 1, F32, &work))  \
    CALL(all_gather_v, "shoal_all_gather_tensor", shoal_group_all_gather_v(g, f, f, NULL, F32))              \
    CALL(all_gather_v, "pad to equal counts", shoal_group_all_gather_v_start(g, f, f, counts, F32, &work))   \
    CALL(reduce_scatter, "write shoal_reduce_scatter_tensor",                                                \
         shoal_group_reduce_scatter(g, f, f, 1, F32, SHOAL_SUM))                                             \
    CALL(reduce_scatter, "write shoal_reduce_scatter_tensor",                                                \
         shoal_group_reduce_scatter_start(g, f, f, 1, F32, SHOAL_SUM, &work))                                \
    CALL(reduce_scatter_v, "pad to equal counts",                                                            \
         shoal_group_reduce_scatter_v(g, f, f, counts, F32, SHOAL_SUM))                                      \
    CALL(reduce_scatter_v, "pad to equal counts",                                                            \
         shoal_group_reduce_scatter_v_start(g, f, f, counts, F32, SHOAL_SUM, &work))                         \
    CALL(all_to_all, "write shoal_all_to_all_single", shoal_group_all_to_all(g, f, f, 1, F32))               \
    CALL(all_to_all, "write shoal_all_to_all_single", shoal_group_all_to_all_start(g, f, f, 1, F32, &work))  \
    CALL(all_to_all_v, "write shoal_all_to_all_single",                                                      \
         shoal_group_all_to_all_v(g, f, counts, f, counts, F32))                                             \
    CALL(all_to_all_v, "rows of each rank",                                                                  \
         shoal_group_all_to_all_v_start(g, f, counts, f, counts, F32, &work))                                \
    CALL(gather, "shoal_all_gather_tensor", shoal_group_gather(g, f, f, 1, F32, 0))                          \
    CALL(gather, "shoal_all_gather_tensor", shoal_group_gather_start(g, f, f, 1, F32, 0, &work))             \
    CALL(gather_v, "shoal_all_gather_tensor", shoal_group_gather_v(g, f, f, counts, F32, 0))                 \
    CALL(gather_v, "shoal_all_gather_tensor", shoal_group_gather_v_start(g, f, f, counts, F32, 0, &work))    \
    CALL(scatter, "shoal_broadcast, and shoal_narrow", shoal_group_scatter(g, f, f, 1, F32, 0))              \
    CALL(scatter, "shoal_broadcast, and shoal_narrow", shoal_group_scatter_start(g, f, f, 1, F32, 0, &work)) \
    CALL(scatter_v, "shoal_broadcast, and shoal_narrow", shoal_group_scatter_v(g, f, f, counts, F32, 0))     \
    CALL(scatter_v, "shoal_broadcast, and shoal_narrow",                                                     \
         shoal_group_scatter_v_start(g, f, f, counts, F32, 0, &work))                                        \
    CALL(check_equal, "compare before the step", shoal_group_check_equal(g, "x", f, 4))                      \
    CALL(check_equal, "compare before the step", shoal_group_check_equal_integer(g, "x", 4))                 \
    CALL(check_equal, "compare before the step", shoal_group_check_equal_real(g, "x", 4))                    \
    CALL(all_reduce, "write shoal_all_reduce or", shoal_group_collective(g, &by_descriptor))                 \
    CALL(all_reduce, "write shoal_all_reduce or", shoal_group_collective_start(g, &by_descriptor, &work))    \
    CALL(all_reduce, "shoal_all_reduce_coalesced", shoal_group_collective(g, &of_parts))                     \
    CALL(all_gather_v, "pad to equal counts", shoal_group_collective(g, &with_counts))                       \
    CALL(send, "write shoal_isend", shoal_group_send(g, f, 1, F32, 1, 0))                                    \
    CALL(send, "write shoal_isend", shoal_group_send_start(g, f, 1, F32, 1, 0, &work))                       \
    CALL(recv, "write shoal_irecv", shoal_group_recv(g, f, 1, F32, 1, 0))                                    \
    CALL(recv, "write shoal_irecv", shoal_group_recv_start(g, f, 1, F32, 1, 0, &work))                       \
    CALL(recv_any, "write shoal_irecv with the rank", shoal_group_recv_any(g, f, 1, F32, 0, NULL))           \
    CALL(recv_any, "write shoal_irecv with the rank",                                                        \
         shoal_group_recv_any_start(g, f, 1, F32, 0, NULL, &work))                                           \
    CALL(transfer, "write shoal_batch_p2p_ops", shoal_group_transfer(g, transfers, 1))                       \
    CALL(transfer, "write shoal_batch_p2p_ops", shoal_group_transfer_start(g, transfers, 1, &work))          \
    CALL(transfer_with, "takes no options", shoal_group_transfer_with(g, transfers, 1, NULL))                \
    CALL(transfer_with, "takes no options", shoal_group_transfer_with_start(g, transfers, 1, NULL, &work))   \
    CALL(symmetric_create, "make the memory before the step", shoal_symmetric_create(g, 64, &symmetric))     \
    CALL(symmetric_reserve, "make the memory before the step",                                               \
         shoal_symmetric_reserve(g, 64, 128, &symmetric))                                                    \
    CALL(symmetric_grow, "make the memory before the step", shoal_symmetric_grow(g, raw->symmetric, 128))    \
    CALL(window_create, "plans make windows themselves", shoal_window_create(g, 64, &window))                \
    CALL(window_gather, "plans make windows themselves", shoal_window_gather(raw->window, &piece, 1, 0))     \
    CALL(window_gather, "plans make windows themselves",                                                     \
         shoal_window_gather_start(raw->window, &piece, 1, 0, &work))                                        \
    CALL(window_release, "plans make windows themselves", shoal_window_release(raw->window))                 \
    CALL(group_close, "after the step", shoal_group_close(raw->other))                                       \
    CALL(group_abandon, "after the step", shoal_group_abandon(raw->other))                                   \
    CALL(world_close, "after the step", shoal_world_close(raw->world))

#define F32 SHOAL_F32

struct raw {
    shoal_world *world;
    shoal_group *group;
    shoal_group *other;
    shoal_symmetric *symmetric;
    shoal_window *window;
    size_t which;
    bool is_ignored; /* the step goes on */
};

static const struct {
    const char *name;
    const char *words;
} expected[] = {
#define EXPECT(name, words, call) {#name, words},
    CALLS(EXPECT)
#undef EXPECT
};
/* Whether the graph of a step lacks nothing that ignores the refusal: it only ends groups later. */
static bool is_not_missed(const struct raw *raw)
{
    return raw->which < sizeof expected / sizeof expected[0] &&
           strstr(expected[raw->which].words, "after the step");
}

#define N_CALLS (sizeof expected / sizeof expected[0])

/* Buffers are what a step gets by asking its inputs: nothing. */
static shoal_status call_raw(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                             shoal_tensor **outputs, size_t n_outputs)
{
    const struct raw *raw = context;
    shoal_group *g = raw->group;
    float *f = shoal_mutable_data(inputs[0]);
    const size_t counts[] = {1, 1};
    const shoal_part parts[] = {{f, f, 1, SHOAL_CPU}, {f, f, 1, SHOAL_CPU}};
    shoal_collective by_descriptor = SHOAL_COLLECTIVE_ALL_REDUCE(f, f, 1, SHOAL_F32, SHOAL_SUM);
    shoal_collective of_parts = SHOAL_COLLECTIVE_ALL_REDUCE(NULL, NULL, 0, SHOAL_F32, SHOAL_SUM);
    shoal_collective with_counts = SHOAL_COLLECTIVE_ALL_GATHER_V(f, f, counts, SHOAL_F32);
    const shoal_transfer transfers[] = {
        {.direction = SHOAL_SEND, .buffer = f, .count = 1, .dtype = SHOAL_F32, .peer = 0, .tag = 0}};
    const shoal_window_piece piece = {
        .data = f, .count = 1, .data_dtype = SHOAL_F32, .window_dtype = SHOAL_F32};
    shoal_work *work = NULL;
    shoal_symmetric *symmetric = NULL;
    shoal_window *window = NULL;
    size_t number = 0;
    shoal_status status = SHOAL_OK;
    (void)n_inputs;
    (void)n_outputs;
    of_parts.parts = parts;
    of_parts.n_parts = 2;
    CHECK(f == NULL && shoal_is_capturing());
#define MAKE(name, words, call)   \
    if (number++ == raw->which) { \
        status = (call);          \
    }
    CALLS(MAKE)
#undef MAKE
    CHECK(status == (raw->which < N_CALLS ? SHOAL_ERR_STATE : SHOAL_OK));
    CHECK(!work && !symmetric && !window);
    if (is_not_missed(raw) && !raw->is_ignored) {
        return status;
    }
    outputs[0] = shoal_neg(inputs[0]); /* clears the error text */
    return raw->is_ignored ? shoal_scope_error() : status;
}

static void check_call(struct raw *raw, shoal_tensor *x)
{
    char text[96];
    shoal_graph *graph = NULL;
    (void)snprintf(text, sizeof text, "%s cannot be called while a step is captured",
                   expected[raw->which].name);
    if (raw->is_ignored && is_not_missed(raw)) {
        CHECK_OK(shoal_capture(call_raw, raw, &x, 1, 1, &graph));
        shoal_graph_free(graph);
        return;
    }
    if (!CHECK_STATUS(shoal_capture(call_raw, raw, &x, 1, 1, &graph), SHOAL_ERR_STATE)) {
        test_failed(__FILE__, __LINE__, "that was call %zu, %s", raw->which, expected[raw->which].name);
        shoal_graph_free(graph);
        return;
    }
    CHECK_ERROR_TEXT(text);
    CHECK_ERROR_TEXT(expected[raw->which].words);
    if (raw->is_ignored) {
        CHECK_ERROR_TEXT("; the step did not return this error");
    }
    CHECK(!shoal_is_capturing());
}

TEST_RANKS(each_call_is_refused_with_what_to_write, 2)
{
    struct raw raw = {.world = rank_world_open(self, 0)};
    REQUIRE(raw.world != NULL);
    raw.group = shoal_world_group(raw.world);
    shoal_tensor *x = capture_tensor((int64_t[]){4}, 1, SHOAL_F32, 1, NULL);
    REQUIRE_OK(shoal_group_create(raw.world, (int[]){0, 1}, 2, "other", &raw.other));
    REQUIRE_OK(shoal_symmetric_reserve(raw.group, 64, 4096, &raw.symmetric));
    REQUIRE_OK(shoal_window_create(raw.group, 64, &raw.window));
    uint64_t sequence = shoal_group_sequence(raw.group);
    for (raw.which = 0; raw.which < N_CALLS; raw.which++) {
        raw.is_ignored = false;
        check_call(&raw, x);
        raw.is_ignored = true;
        check_call(&raw, x);
    }
    CHECK_INT((int64_t)shoal_group_sequence(raw.group), (int64_t)sequence);
    CHECK_OK(shoal_group_barrier(raw.group));
    CHECK_OK(shoal_group_barrier(raw.other));
    shoal_window_free(raw.window);
    shoal_symmetric_free(raw.symmetric);
    shoal_tensor_unref(x);
    CHECK_OK(shoal_world_close(raw.world));
}

/* Every row of the table is the answer to some call. */
TEST(the_table_has_no_row_that_is_never_used)
{
    static const char *const rows[] = {
#define CAPTURED(call, is_missed, instead) call,
#include "base/captured.def"
#undef CAPTURED
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        size_t k = 0;
        while (k < N_CALLS && strcmp(expected[k].name, rows[i]) != 0) {
            k++;
        }
        if (k == N_CALLS) {
            test_failed(__FILE__, __LINE__, "no call is answered with the row of %s", rows[i]);
        }
    }
}

/* A refusal is forgotten with its capture. */
TEST(the_next_capture_begins_anew)
{
    shoal_graph *graph = NULL;
    struct raw raw = {.which = 0, .is_ignored = true};
    shoal_tensor *x = capture_tensor((int64_t[]){4}, 1, SHOAL_F32, 1, NULL);
    CHECK_STATUS(shoal_capture(call_raw, &raw, &x, 1, 1, &graph), SHOAL_ERR_STATE);
    raw.which = N_CALLS; /* none */
    shoal_status status = shoal_capture(call_raw, &raw, &x, 1, 1, &graph);
    CHECK_OK(status);
    shoal_graph_free(graph);
    shoal_tensor_unref(x);
}

/* Asking -------------------------------------------------------------------------------------------------- */

static void *ask(void *answer)
{
    *(bool *)answer = shoal_is_capturing();
    return NULL;
}

static shoal_status ask_around(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs, size_t n_outputs)
{
    bool is_capturing = true;
    pthread_t thread;
    (void)context;
    (void)n_inputs;
    (void)n_outputs;
    CHECK(shoal_is_capturing());
    CHECK(!shoal_tensor_is_complete(inputs[0]));
    CHECK_INT(pthread_create(&thread, NULL, ask, &is_capturing), 0);
    CHECK_INT(pthread_join(thread, NULL), 0);
    CHECK(!is_capturing);
    outputs[0] = shoal_neg(inputs[0]);
    CHECK(!shoal_tensor_is_complete(outputs[0]));
    return shoal_scope_error();
}

TEST(only_the_thread_of_the_step_captures)
{
    shoal_graph *graph = NULL;
    shoal_compiled *compiled = NULL;
    shoal_tensor *output = NULL;
    shoal_tensor *x = capture_tensor((int64_t[]){4}, 1, SHOAL_F32, 1, NULL);
    CHECK(!shoal_is_capturing());
    CHECK_OK(shoal_capture(ask_around, NULL, &x, 1, 1, &graph));
    CHECK(!shoal_is_capturing());
    shoal_graph_free(graph);
    REQUIRE_OK(shoal_compile(NULL, ask_around, NULL, 1, NULL, &compiled));
    CHECK_OK(shoal_compiled_run(compiled, &x, 1, &output, 1));
    CHECK(shoal_tensor_is_complete(output));
    shoal_tensor_unref(output);
    shoal_compiled_free(compiled);
    shoal_tensor_unref(x);
}

TEST(tensors_that_nobody_writes_are_complete)
{
    CHECK(!shoal_tensor_is_complete(NULL));
    REQUIRE_OK(shoal_scope_begin());
    CHECK(shoal_tensor_is_complete(shoal_zeros((int64_t[]){4}, 1, SHOAL_F32)));
    CHECK(shoal_tensor_is_complete(shoal_zeros((int64_t[]){0}, 1, SHOAL_F32)));
    CHECK_OK(shoal_scope_end());
}

/* In flight until the other rank has done its part; asking again and again ends it, without a wait. */
TEST_RANKS(a_tensor_in_flight_is_not_complete, 2)
{
    shoal_world *world = rank_world_open(self, 1);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_scope_begin());
    const int64_t counts[] = {8, 100000};
    for (int i = 0; i < 2; i++) {
        shoal_tensor *x = shoal_full(&counts[i], 1, 1.0, SHOAL_F32);
        shoal_tensor *sum = NULL;
        if (self->rank == 0) {
            sum = shoal_all_reduce(x, SHOAL_SUM, shoal_world_group(world));
            CHECK(!shoal_tensor_is_complete(sum));
            CHECK(!shoal_tensor_is_complete(shoal_narrow(sum, 0, 2, 3)));
            CHECK(shoal_tensor_is_complete(x)); /* is read, not written */
        }
        test_barrier(self);
        sum = sum ? sum : shoal_all_reduce(x, SHOAL_SUM, shoal_world_group(world));
        while (!shoal_tensor_is_complete(sum)) {
            (void)sched_yield();
        }
        CHECK(((const float *)shoal_data(sum))[counts[i] - 1] == 2.0F);
        test_barrier(self);
    }
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* One that has failed is complete: reading it does not wait, and returns the error. */
TEST_RANKS(a_tensor_whose_collective_failed_is_complete, 2)
{
    shoal_world *world = rank_world_open(self, 2);
    shoal_group *other = NULL;
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_group_create(world, (int[]){0, 1}, 2, "other", &other));
    CHECK_OK(shoal_group_barrier(other));
    REQUIRE_OK(shoal_scope_begin());
    if (self->rank == 0) {
        shoal_tensor *sum = shoal_all_reduce(shoal_zeros((int64_t[]){8}, 1, SHOAL_F32), SHOAL_SUM, other);
        test_barrier(self);
        while (!shoal_tensor_is_complete(sum)) {
            (void)sched_yield();
        }
        CHECK(shoal_data(sum) == NULL);
        CHECK_ERROR_TEXT("for the test");
    } else {
        test_barrier(self);
        (void)shoal_group_abort(other, "for the test");
    }
    test_barrier(self);
    (void)!shoal_scope_end();
    (void)!shoal_world_close(world);
}
