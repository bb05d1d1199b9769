/* SPDX-License-Identifier: MIT */
/*
 * Modules that are wrapped and dropped at some time in a step: what was recorded keeps what its backward pass needs,
 * so that gradients are averaged for whoever has the parameters; and nothing is left when the record is gone.
 */
#include "fixtures/on_device.h"

#include "fixtures/ddp_net.h"
#include "parallel/ddp/ddp.h"

enum phase {
    BEFORE_FORWARD,
    AFTER_FORWARD,
    IN_BACKWARD_EARLY, /* a hook on the gradient of the output */
    IN_BACKWARD_LATE,  /* a hook on a parameter that comes last */
    AT_ITS_END,
    AFTER_BACKWARD,
    N_PHASES
};

enum ending {
    WALKED_BACK,
    NEVER_WALKED,
    WORLD_CLOSED,
    N_ENDINGS
};

static void drop(struct net *net)
{
    shoal_module *module = net->module;
    net->module = NULL;
    shoal_module_unref(module);
}

static shoal_status drop_at_end(void *context)
{
    drop(context);
    return SHOAL_OK;
}

static shoal_tensor *drop_in_hook(void *context, shoal_tensor *gradient)
{
    (void)gradient;
    drop(context);
    return NULL;
}

static shoal_status drop_when_accumulated(void *context, shoal_tensor *leaf)
{
    (void)leaf;
    drop(context);
    return SHOAL_OK;
}

static shoal_tensor *ask_for_end(void *context, shoal_tensor *gradient)
{
    (void)gradient;
    (void)CHECK_OK(shoal_on_backward_end(drop_at_end, context));
    return NULL;
}

static shoal_tensor *forward(struct setting *s, int step, enum phase phase)
{
    uint32_t seed = (uint32_t)(step * 1000 + s->self->rank * 10 + 1); /* as in net_backward */
    shoal_tensor *x = net_random((int64_t[]){NET_BATCH, NET_WIDTH}, 2, SHOAL_F32, seed);
    shoal_tensor *loss = shoal_module_call_one(s->net.module, x);
    if (phase == AFTER_FORWARD) {
        drop(&s->net);
    } else if (phase == IN_BACKWARD_EARLY) {
        (void)CHECK_OK(shoal_on_gradient(loss, drop_in_hook, &s->net, NULL));
    } else if (phase == IN_BACKWARD_LATE) {
        (void)CHECK_OK(shoal_on_accumulated(s->net.params[4], drop_when_accumulated, &s->net, NULL));
    } else if (phase == AT_ITS_END) {
        (void)CHECK_OK(shoal_on_gradient(loss, ask_for_end, &s->net, NULL));
    }
    return loss;
}

static void finish(struct setting *s, shoal_tensor *loss, int step, enum ending ending)
{
    if (ending == WORLD_CLOSED) {
        (void)CHECK_OK(shoal_world_close(s->world));
        s->world = NULL;
    }
    if (loss && ending == WORLD_CLOSED) {
        (void)CHECK_STATUS(shoal_backward(loss, NULL), SHOAL_ERR_STATE);
        (void)CHECK_ERROR_TEXT("world of the module's group is closed");
    } else if (loss && ending == WALKED_BACK) {
        (void)CHECK_OK(shoal_backward(loss, NULL));
        setting_add(s, step, 0, NOBODY, 0.0);
        net_check(&s->net, s->alone, "after the module is gone");
    }
}

/* `n_steps` before the one in which the module is dropped: the first one learns the order. */
static void check_phase(struct rank *self, int n_steps, enum phase phase, enum ending ending)
{
    struct setting s;
    shoal_tensor *params[NET_PARAMS];
    REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.bucket_bytes = 100}));
    for (int step = 0; step < n_steps; step++) {
        setting_step(&s, step, "before");
    }
    net_zero(&s.net);
    net_alone_clear(s.alone);
    for (int i = 0; i < NET_PARAMS; i++) {
        params[i] = shoal_tensor_ref(s.net.params[i]);
    }
    REQUIRE_OK(shoal_scope_begin());
    if (phase == BEFORE_FORWARD) {
        drop(&s.net);
    }
    finish(&s, phase == BEFORE_FORWARD ? NULL : forward(&s, n_steps, phase), n_steps, ending);
    drop(&s.net);
    CHECK_OK(shoal_scope_end());
    for (int i = 0; i < NET_PARAMS; i++) {
        shoal_tensor_unref(params[i]);
    }
    net_free(&s.alone->net);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(s.world));
    free(s.alone);
}

static void check_phases(struct rank *self, int n_steps)
{
    for (int i = 0; i < N_PHASES * N_ENDINGS && !test_has_failed(); i++) {
        check_phase(self, n_steps, (enum phase)(i % N_PHASES), (enum ending)(i / N_PHASES));
    }
}

TEST_RANKS(at_any_phase_of_the_first_step, 2)
{
    check_phases(self, 0);
}

TEST_RANKS(at_any_phase_of_a_later_step, 3)
{
    check_phases(self, 2);
}

TEST_RANKS(at_any_phase_alone, 1)
{
    check_phases(self, 1);
}

/* The record keeps what gradients need, not the modules inside. */
static void note_death(void *context)
{
    *(bool *)context = true;
}

TEST_RANKS(what_is_inside_goes_at_once, 2)
{
    struct setting s;
    static const char key;
    bool is_dead = false;
    REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.bucket_bytes = 100}));
    CHECK_OK(shoal_module_set_extra(s.net.blocks[2], &key, &is_dead, note_death));
    shoal_tensor *loss = forward(&s, 0, AFTER_FORWARD);
    CHECK(is_dead);
    CHECK_OK(shoal_backward(loss, NULL));
    setting_close(&s);
}
