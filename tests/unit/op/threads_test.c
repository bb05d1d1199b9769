/* SPDX-License-Identifier: MIT */
/*
 * Ops on many threads, each in its own scope: first use of the table, finding while others register, reading
 * shared tensors. Most of the worth of this file is under the thread sanitizer.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "harness/test.h"
#include "op/op.h"
#include "shoal/op.h"
#include "shoal/ops.h"

enum {
    N_THREADS = 4,
    N_ROUNDS = 30,
    N_REGISTERED = 8
};

struct crew {
    shoal_tensor *shared;
    pthread_barrier_t barrier;
    _Atomic int n_bad;
    _Atomic int n_registered;
};

struct member {
    struct crew *crew;
    int number;
    pthread_t thread;
};

static void run_crew(struct crew *crew, void *(*body)(void *member))
{
    struct member members[N_THREADS];
    CHECK_INT(pthread_barrier_init(&crew->barrier, NULL, N_THREADS), 0);
    for (int i = 0; i < N_THREADS; i++) {
        members[i] = (struct member){.crew = crew, .number = i};
        CHECK_INT(pthread_create(&members[i].thread, NULL, body, &members[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        CHECK_INT(pthread_join(members[i].thread, NULL), 0);
    }
    (void)pthread_barrier_destroy(&crew->barrier);
    CHECK_INT(atomic_load(&crew->n_bad), 0);
}

static void expect_true(struct member *member, bool is_good)
{
    if (!is_good) {
        atomic_fetch_add(&member->crew->n_bad, 1);
    }
}

/* First, so that the table is parsed by whoever comes first. */
static void *find_at_once(void *context)
{
    struct member *member = context;
    const shoal_op *op = NULL;
    (void)pthread_barrier_wait(&member->crew->barrier);
    expect_true(member, shoal_op_find("all_gather_copy_in", &op) == SHOAL_OK && op && op->n_params == 4);
    expect_true(member, shoal_op_find("all_reduce", &op) == SHOAL_OK && op && op->n_params == 4);
    return NULL;
}

TEST(the_table_is_ready_for_all_threads)
{
    struct crew crew = {.n_bad = 0};
    run_crew(&crew, find_at_once);
}

static void *compute_alone(void *context)
{
    struct member *member = context;
    (void)pthread_barrier_wait(&member->crew->barrier);
    for (int round = 0; round < N_ROUNDS; round++) {
        expect_true(member, shoal_scope_begin() == SHOAL_OK);
        shoal_tensor *own = shoal_full((int64_t[]){3, 4}, 2, member->number, SHOAL_F32);
        shoal_tensor *sum = shoal_add(shoal_mul(member->crew->shared, own),
                                      shoal_transpose(shoal_transpose(own, 0, 1), 0, 1));
        expect_true(member, shoal_add_scalar_(sum, 1) == sum);
        const float *data = shoal_data(shoal_sum(sum, NULL, 0, false));
        expect_true(member, data && data[0] == (float)(12 * (2 * member->number + member->number + 1)));
        shoal_tensor_unref(shoal_tensor_ref(member->crew->shared));
        expect_true(member, shoal_scope_end() == SHOAL_OK);
    }
    return NULL;
}

TEST(threads_compute_in_their_own_scopes)
{
    struct crew crew = {.n_bad = 0};
    REQUIRE_OK(shoal_scope_begin());
    crew.shared = shoal_full((int64_t[]){3, 4}, 2, 2, SHOAL_F32);
    REQUIRE(crew.shared);
    run_crew(&crew, compute_alone);
    CHECK_OK(shoal_scope_end());
}

static shoal_status meta_nothing(shoal_op_call_context *call, const shoal_value *arguments)
{
    return shoal_op_output(call, NULL, 0, SHOAL_F32);
}

static shoal_status run_nothing(shoal_op_call_context *call, const shoal_value *arguments,
                                shoal_tensor *const *outputs, size_t n_outputs)
{
    return SHOAL_OK;
}

/* All try the same names: each is registered once, and found complete by everybody. */
static void *register_in_turn(void *context)
{
    struct member *member = context;
    for (int i = 0; i < N_REGISTERED; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "crew.op_%d", i);
        shoal_op_definition definition = {.struct_size = sizeof(definition),
                                          .name = name,
                                          .signature = "int n = 5 -> tensor",
                                          .flags = SHOAL_OP_FACTORY,
                                          .meta = meta_nothing,
                                          .kernel = run_nothing};
        (void)pthread_barrier_wait(&member->crew->barrier);
        const shoal_op *op = NULL;
        if (shoal_op_register(&definition, &op) == SHOAL_OK) {
            atomic_fetch_add(&member->crew->n_registered, 1);
        }
        expect_true(member,
                    shoal_op_find(name, &op) == SHOAL_OK && op->params[0].default_value.as.integer == 5);
    }
    return NULL;
}

TEST(threads_register_and_find)
{
    struct crew crew = {.n_bad = 0};
    size_t blocks = test_live_blocks();
    run_crew(&crew, register_in_turn);
    CHECK_INT(atomic_load(&crew.n_registered), N_REGISTERED);
    test_keep_blocks(test_live_blocks() - blocks);
}
