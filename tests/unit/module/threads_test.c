/* SPDX-License-Identifier: MIT */
/* One module in several threads: read, walked, called and released at once. */
#include <pthread.h>

#include "unit/module/fixture.h"

enum {
    N_THREADS = 4,
    N_ROUNDS = 50
};

static shoal_status pass(void *context, const shoal_forward_call *call)
{
    return SHOAL_OK;
}

static void *call_often(void *context)
{
    shoal_module *net = context;
    for (int i = 0; i < N_ROUNDS; i++) {
        size_t count;
        if (!CHECK_OK(shoal_scope_begin())) {
            break;
        }
        CHECK_OK(shoal_scope_set_grad(false));
        shoal_tensor *y = shoal_module_call_one(net, make_vector((double[]){3}, 1));
        CHECK_DOUBLE(value_at(y, 0), 3 * 2 * 5);
        CHECK(shoal_module_parameters(net, &count) && count == 2);
        CHECK_OK(shoal_module_count(net, SHOAL_WALK_MODULES | SHOAL_WALK_PARAMETERS, &count));
        CHECK_INT(count, 5);
        CHECK_DOUBLE(value_at(shoal_module_parameter(net, "1.weight"), 0), 5);
        CHECK_OK(shoal_scope_end());
    }
    shoal_module_unref(net);
    return NULL;
}

TEST(threads_call_and_release_one_module)
{
    pthread_t threads[N_THREADS];
    int n_started = 0;
    REQUIRE_OK(shoal_scope_begin());
    shoal_module *net = make_module("chain", chain_forward, NULL);
    give_child(net, "0", make_scale(make_vector((double[]){2}, 1)));
    give_child(net, "1", make_scale(make_vector((double[]){5}, 1)));
    CHECK_OK(shoal_module_add_hook(net,
                                   &(shoal_module_hook_definition){
                                       .struct_size = sizeof(shoal_module_hook_definition),
                                       .pre_forward = pass,
                                       .post_forward = pass,
                                   },
                                   NULL));
    CHECK_OK(shoal_scope_end());
    while (n_started < N_THREADS &&
           pthread_create(&threads[n_started], NULL, call_often, shoal_module_ref(net)) == 0) {
        n_started++;
    }
    CHECK_INT(n_started, N_THREADS);
    shoal_module_unref(net); /* the last thread to end frees it */
    for (int i = 0; i < n_started; i++) {
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    }
}

/* A module made, trained and called by one thread after another. */
static void *train_once(void *context)
{
    shoal_module *net = context;
    if (CHECK_OK(shoal_scope_begin())) {
        shoal_tensor *y = shoal_module_call_one(net, make_vector((double[]){3}, 1));
        CHECK_OK(shoal_backward(y, NULL));
        CHECK_OK(shoal_module_set_parameter(net, "weight", make_leaf(1, 4, 0)));
        CHECK_OK(shoal_scope_end());
    }
    return NULL;
}

TEST(threads_take_turns)
{
    pthread_t thread;
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *weight = make_leaf(1, 2, 0);
    shoal_module *scale = make_scale(weight);
    for (int i = 0; i < 2; i++) {
        REQUIRE(pthread_create(&thread, NULL, train_once, scale) == 0);
        CHECK_INT(pthread_join(thread, NULL), 0);
    }
    CHECK_DOUBLE(grad_at(weight, 0), 3);
    CHECK_DOUBLE(value_at(shoal_module_parameter(scale, "weight"), 0), 4);
    shoal_module_unref(scale);
    CHECK_OK(shoal_scope_end());
}
