/* SPDX-License-Identifier: MIT */
/*
 * What the explicit calls offer for single units: lists to prefetch, gathering by hand, factors, parameters that stay
 * or are not needed, several backward passes in a step, forwards without one, and gradients that are given up.
 */
#include "fixtures/fsdp_on_device.h"

#include "fixtures/fsdp_handles.h"
#include "fixtures/fsdp_model.h"
#include "parallel/fsdp/explicit/explicit.h"

enum {
    N_UNITS = 4,
    COUNT = 5 /* elements of the one parameter of a unit */
};

struct setting {
    shoal_world *world;
    shoal_mesh *mesh;
    shoal_fsdp *fsdp;
    int rank;
    int n_ranks;
    char events[512]; /* "u0": unit 0 was gathered; "r0": given up */
};

static void write_down(void *context, enum fsdp_event event, const struct fsdp_unit *unit)
{
    struct setting *s = context;
    size_t length = strlen(s->events);
    if (event != FSDP_EVENT_POST_BACKWARD) {
        (void)snprintf(s->events + length, sizeof s->events - length, "%s%c%d", length > 0 ? " " : "",
                       event == FSDP_EVENT_UNSHARD ? 'u' : 'r', unit->number);
    }
}

#define CHECK_EVENTS(s, wanted)                    \
    do {                                           \
        (void)CHECK_STRING((s)->events, (wanted)); \
        (s)->events[0] = '\0';                     \
    } while (0)

/* Element i of unit u is 10 u + i. */
static bool setting_open(struct rank *self, struct setting *s, enum model_mode mode,
                         const shoal_fsdp_options *options)
{
    struct model_case c = {.mode = mode, .n_ranks = self->n_ranks, .n_replicas = 2};
    c.options = options ? *options : (shoal_fsdp_options){.struct_size = sizeof *options};
    *s = (struct setting){.world = rank_world_open(self, 0), .rank = self->rank, .n_ranks = self->n_ranks};
    if (!s->world || !CHECK_OK(model_create(s->world, &c, &s->mesh, &s->fsdp))) {
        return false;
    }
    for (int unit = 0; unit < N_UNITS; unit++) {
        float values[COUNT];
        for (int i = 0; i < COUNT; i++) {
            values[i] = (float)(10 * unit + i);
        }
        if (!CHECK_OK(shoal_fsdp_add_param(s->fsdp, unit, "w", SHOAL_F32, 1, (const int64_t[]){COUNT}, values,
                                           NULL))) {
            return false;
        }
    }
    s->fsdp->context->listener.hear = write_down;
    s->fsdp->context->listener.context = s;
    return true;
}

static void setting_close(struct setting *s)
{
    shoal_fsdp_free(s->fsdp);
    shoal_mesh_free(s->mesh);
    CHECK_OK(shoal_world_close(s->world));
}

/* All elements of the whole are `first`, first + 1, ... */
static void check_whole(struct setting *s, int unit, float first)
{
    const float *values = shoal_fsdp_full_param(s->fsdp, unit);
    CHECK(values != NULL);
    for (int i = 0; values && i < COUNT; i++) {
        CHECK_DOUBLE((double)values[i], (double)(first + (float)i));
    }
}

static void forward(struct setting *s)
{
    for (int unit = 0; unit < N_UNITS; unit++) {
        CHECK_OK(shoal_fsdp_pre_forward(s->fsdp, unit));
        check_whole(s, unit, (float)(10 * unit));
        CHECK_OK(shoal_fsdp_post_forward(s->fsdp, unit));
    }
}

/* Every element of every gradient gets rank + 1 times `factor`. */
static void backward(struct setting *s, float factor)
{
    for (int unit = N_UNITS - 1; unit >= 0; unit--) {
        CHECK_OK(shoal_fsdp_pre_backward(s->fsdp, unit));
        float *grad = shoal_fsdp_grad(s->fsdp, unit);
        CHECK(grad != NULL);
        for (int i = 0; grad && i < COUNT; i++) {
            grad[i] += factor * (float)(s->rank + 1);
        }
        CHECK_OK(shoal_fsdp_post_backward(s->fsdp, unit));
    }
    CHECK_OK(shoal_fsdp_end_backward(s->fsdp));
}

/* Of all ranks, with a factor of 1. */
static float sum_of(const struct setting *s)
{
    return (float)(s->n_ranks * (s->n_ranks + 1) / 2);
}

/* -1: there is none. */
static void check_gradient(struct setting *s, int unit, float value)
{
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    REQUIRE_OK(shoal_fsdp_update_shard(s->fsdp, unit, &shard));
    CHECK_INT(shard.grad != NULL, value >= 0.0F);
    for (size_t i = 0; shard.grad && i < shard.count; i++) {
        CHECK_DOUBLE((double)((const float *)shard.grad)[i], (double)value);
    }
}

static void check_gradients(struct setting *s, float value)
{
    for (int unit = 0; unit < N_UNITS; unit++) {
        check_gradient(s, unit, value);
    }
}

/* Prefetching -------------------------------------------------------------------------------------------- */

/* From the second step on the default gathers one unit ahead, by the order of the first. */
TEST_RANKS(lists_instead_of_orders, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    forward(&s);
    backward(&s, 1.0F);
    CHECK_EVENTS(&s, "u0 r0 u1 r1 u2 r2 u3 r3 u3 u2 r3 u1 r2 u0 r1 r0");
    forward(&s);
    backward(&s, 1.0F);
    CHECK_EVENTS(&s, "u0 u1 r0 u2 r1 u3 r2 r3 u3 u2 r3 u1 r2 u0 r1 r0");
    CHECK_OK(prefetch_units(shoal_fsdp_set_forward_prefetch, s.fsdp, 0, (const int[]){1, 2}, 2));
    CHECK_OK(prefetch_units(shoal_fsdp_set_forward_prefetch, s.fsdp, 1, (const int[]){3}, 1));
    CHECK_OK(prefetch_units(shoal_fsdp_set_backward_prefetch, s.fsdp, 3, (const int[]){2, 1}, 2));
    CHECK_OK(prefetch_units(shoal_fsdp_set_backward_prefetch, s.fsdp, 2, (const int[]){0}, 1));
    forward(&s);
    backward(&s, 1.0F);
    CHECK_EVENTS(&s, "u0 u1 u2 r0 u3 r1 r2 r3 u3 u2 u1 r3 u0 r2 r1 r0");
    for (int unit = 0; unit < N_UNITS; unit++) {
        CHECK_OK(prefetch_units(shoal_fsdp_set_forward_prefetch, s.fsdp, unit, NULL, 0));
        CHECK_OK(prefetch_units(shoal_fsdp_set_backward_prefetch, s.fsdp, unit, NULL, 0));
    }
    forward(&s);
    backward(&s, 1.0F);
    CHECK_EVENTS(&s, "u0 u1 r0 u2 r1 u3 r2 r3 u3 u2 r3 u1 r2 u0 r1 r0");
    check_gradients(&s, 4 * sum_of(&s) / 2);
    setting_close(&s);
}

/* By hand ------------------------------------------------------------------------------------------------ */

TEST_RANKS(gathered_by_hand, 3)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    CHECK_STATUS(shoal_fsdp_wait(shoal_fsdp_unit_of(s.fsdp, 2)), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("wait: no gather of unit 2 was started");
    CHECK_OK(shoal_fsdp_reshard(shoal_fsdp_unit_of(s.fsdp, 2)));
    CHECK_OK(shoal_fsdp_unshard(shoal_fsdp_unit_of(s.fsdp, 2)));
    CHECK_OK(shoal_fsdp_unshard(shoal_fsdp_unit_of(s.fsdp, 2)));
    CHECK(shoal_fsdp_full_param(s.fsdp, 2) == NULL);
    CHECK_ERROR_TEXT("between wait and reshard");
    CHECK_OK(shoal_fsdp_wait(shoal_fsdp_unit_of(s.fsdp, 2)));
    CHECK_OK(shoal_fsdp_wait(shoal_fsdp_unit_of(s.fsdp, 2)));
    check_whole(&s, 2, 20.0F);
    CHECK_OK(shoal_fsdp_reshard(shoal_fsdp_unit_of(s.fsdp, 2)));
    CHECK(shoal_fsdp_full_param(s.fsdp, 2) == NULL);
    CHECK_EVENTS(&s, "u2 r2");
    /* Ahead of a forward, waited for by that or before. */
    CHECK_OK(shoal_fsdp_unshard(shoal_fsdp_unit_of(s.fsdp, 0)));
    CHECK_OK(shoal_fsdp_unshard(shoal_fsdp_unit_of(s.fsdp, 3)));
    CHECK_OK(shoal_fsdp_wait(shoal_fsdp_unit_of(s.fsdp, 3)));
    forward(&s);
    CHECK_EVENTS(&s, "u0 u3 r0 u1 r1 u2 r2 r3");
    CHECK(shoal_fsdp_full_param(s.fsdp, 3) == NULL);
    CHECK_OK(shoal_fsdp_unshard(shoal_fsdp_unit_of(s.fsdp, 1)));
    backward(&s, 1.0F);
    CHECK_EVENTS(&s, "u1 u3 u2 r3 r2 u0 r1 r0");
    check_gradients(&s, sum_of(&s) / 3);
    /* What is left lying around is given up when the step ends. */
    CHECK_OK(shoal_fsdp_unshard(shoal_fsdp_unit_of(s.fsdp, 0)));
    CHECK_OK(shoal_fsdp_unshard(shoal_fsdp_unit_of(s.fsdp, 1)));
    CHECK_OK(shoal_fsdp_wait(shoal_fsdp_unit_of(s.fsdp, 1)));
    CHECK_OK(shoal_fsdp_end_forward(s.fsdp));
    CHECK(shoal_fsdp_full_param(s.fsdp, 1) == NULL);
    CHECK_EVENTS(&s, "u0 u1 r0 r1");
    setting_close(&s);
}

/* In the middle of a forward too; what comes afterwards gathers again. */
TEST_RANKS(given_up_by_hand, 2)
{
    struct setting s;
    shoal_fsdp_options options = {.struct_size = sizeof options, .reshard = SHOAL_RESHARD_NEVER};
    REQUIRE(setting_open(self, &s, MODEL_FSDP, &options));
    CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_reshard(shoal_fsdp_unit_of(s.fsdp, 0)));
    CHECK(shoal_fsdp_full_param(s.fsdp, 0) == NULL);
    CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
    CHECK_EVENTS(&s, "u0 r0");
    forward(&s);
    CHECK_EVENTS(&s, "u0 u1 u2 u3");
    CHECK_OK(shoal_fsdp_reshard(shoal_fsdp_unit_of(s.fsdp, 2)));
    backward(&s, 1.0F);
    CHECK_EVENTS(&s, "r2 u2 r3 r2 r1 r0");
    check_gradients(&s, sum_of(&s) / 2);
    setting_close(&s);
}

/* Settings ----------------------------------------------------------------------------------------------- */

TEST_RANKS(parameters_that_backward_does_not_need, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    CHECK_OK(shoal_fsdp_set_unshard_in_backward(shoal_fsdp_unit_of(s.fsdp, 1), false));
    forward(&s);
    s.events[0] = '\0';
    backward(&s, 1.0F);
    CHECK_EVENTS(&s, "u3 u2 r3 r2 u0 r0");
    check_gradients(&s, sum_of(&s) / 2);
    CHECK_OK(shoal_fsdp_set_unshard_in_backward(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), false));
    forward(&s);
    s.events[0] = '\0';
    CHECK_OK(shoal_fsdp_pre_backward(s.fsdp, 3));
    CHECK(shoal_fsdp_full_param(s.fsdp, 3) == NULL);
    CHECK(shoal_fsdp_grad(s.fsdp, 3) != NULL);
    backward(&s, 1.0F);
    CHECK_EVENTS(&s, "");
    CHECK_OK(shoal_fsdp_set_unshard_in_backward(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), true));
    forward(&s);
    s.events[0] = '\0';
    backward(&s, 1.0F);
    CHECK_EVENTS(&s, "u3 u2 r3 u1 r2 u0 r1 r0");
    check_gradients(&s, 3 * sum_of(&s) / 2);
    setting_close(&s);
}

static void set_all(struct setting *s, shoal_reshard reshard)
{
    for (int unit = 0; unit < N_UNITS; unit++) {
        CHECK_OK(shoal_fsdp_set_reshard(shoal_fsdp_unit_of(s->fsdp, unit), reshard));
    }
    s->events[0] = '\0';
}

/* Windows are as large as they must be, and neighbours are those of the first forward. */
TEST_RANKS(resharding_changed_between_steps, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    set_all(&s, SHOAL_RESHARD_NEVER);
    forward(&s);
    backward(&s, 1.0F);
    CHECK_EVENTS(&s, "u0 u1 u2 u3 r3 r2 r1 r0");
    set_all(&s, SHOAL_RESHARD_DEFAULT);
    forward(&s);
    s.events[0] = '\0';
    backward(&s, 1.0F);
    CHECK_EVENTS(&s, "u3 u2 r3 u1 r2 u0 r1 r0");
    set_all(&s, SHOAL_RESHARD_NEVER);
    CHECK_STATUS(shoal_fsdp_set_reshard(shoal_fsdp_unit_of(s.fsdp, 1), SHOAL_RESHARD_PARTLY),
                 SHOAL_ERR_INVALID);
    CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
    CHECK_STATUS(shoal_fsdp_set_reshard(shoal_fsdp_unit_of(s.fsdp, 0), SHOAL_RESHARD_ALWAYS),
                 SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("middle of a step");
    forward(&s);
    s.events[0] = '\0';
    backward(&s, 1.0F);
    CHECK_EVENTS(&s, "r3 r2 r1 r0");
    check_gradients(&s, 3 * sum_of(&s) / 2);
    setting_close(&s);
}

/* Back and forth with neighbours, but not to them. */
TEST_RANKS(neighbours_changed_between_steps, 4)
{
    struct setting s;
    const shoal_fsdp_options options = {
        .struct_size = sizeof options, .reshard = SHOAL_RESHARD_PARTLY, .reshard_ranks = 2};
    REQUIRE(setting_open(self, &s, MODEL_FSDP, &options));
    CHECK_OK(shoal_fsdp_set_reshard(shoal_fsdp_unit_of(s.fsdp, 3), SHOAL_RESHARD_ALWAYS));
    for (int step = 0; step < 4; step++) {
        forward(&s);
        backward(&s, 1.0F);
        check_gradients(&s, (float)(step + 1) * sum_of(&s) / 4);
        CHECK_STATUS(shoal_fsdp_set_reshard(shoal_fsdp_unit_of(s.fsdp, 3), SHOAL_RESHARD_PARTLY),
                     SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("SHOAL_RESHARD_PARTLY can be set only before it");
        for (int unit = 0; unit < 3; unit++) {
            CHECK_OK(shoal_fsdp_set_reshard(shoal_fsdp_unit_of(s.fsdp, unit), step == 0 ? SHOAL_RESHARD_NEVER
                                                                              : step == 1
                                                                                  ? SHOAL_RESHARD_PARTLY
                                                                                  : SHOAL_RESHARD_ALWAYS));
        }
    }
    setting_close(&s);
}

/* Two backward passes with one gather; new values are seen once what stayed was given up. */
TEST_RANKS(parameters_that_stay_after_backward, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    CHECK_OK(shoal_fsdp_set_reshard_after_backward(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), false));
    forward(&s);
    backward(&s, 1.0F);
    CHECK_EVENTS(&s, "u0 r0 u1 r1 u2 r2 u3 r3 u3 u2 u1 u0");
    CHECK_OK(shoal_fsdp_set_reshard_after_backward(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), true));
    CHECK_OK(shoal_fsdp_set_reshard_after_backward(shoal_fsdp_unit_of(s.fsdp, 2), false));
    for (int unit = 0; unit < N_UNITS; unit++) {
        CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, unit));
        CHECK_OK(shoal_fsdp_post_forward(s.fsdp, unit));
    }
    backward(&s, 1.0F);
    CHECK_EVENTS(&s, "r0 r1 r2 r3 u3 u2 r3 u1 u0 r1 r0");
    check_gradients(&s, 2 * sum_of(&s) / 2);
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    REQUIRE_OK(shoal_fsdp_update_shard(s.fsdp, 2, &shard));
    for (size_t i = 0; i < shard.count; i++) {
        ((float *)shard.data)[i] += 100.0F;
    }
    CHECK_OK(shoal_fsdp_reshard(shoal_fsdp_unit_of(s.fsdp, 2)));
    CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 2));
    check_whole(&s, 2, 120.0F);
    CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 2));
    CHECK_OK(shoal_fsdp_end_forward(s.fsdp));
    setting_close(&s);
}

TEST_RANKS(factors_of_units, 4)
{
    static const enum model_mode modes[] = {MODEL_FSDP, MODEL_HSDP, MODEL_DDP};
    for (int k = 0; k < 3; k++) {
        struct setting s;
        REQUIRE(setting_open(self, &s, modes[k], NULL));
        CHECK_OK(shoal_fsdp_set_divide_factor(shoal_fsdp_unit_of(s.fsdp, 0), 1.0));
        CHECK_OK(shoal_fsdp_set_divide_factor(shoal_fsdp_unit_of(s.fsdp, 1), 0.5));
        CHECK_OK(shoal_fsdp_set_force_sum(shoal_fsdp_unit_of(s.fsdp, 1), true));
        CHECK_OK(shoal_fsdp_set_force_sum(shoal_fsdp_unit_of(s.fsdp, 2), true));
        forward(&s);
        backward(&s, 1.0F);
        check_gradient(&s, 0, 10.0F);
        check_gradient(&s, 1, 20.0F);
        check_gradient(&s, 2, 2.5F);
        check_gradient(&s, 3, 2.5F);
        CHECK_OK(shoal_fsdp_zero_grad(s.fsdp));
        CHECK_OK(shoal_fsdp_set_divide_factor(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), 2.0));
        CHECK_OK(shoal_fsdp_set_force_sum(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), false));
        forward(&s);
        backward(&s, 1.0F);
        check_gradients(&s, 5.0F);
        setting_close(&s);
    }
}

/* Nothing is waited for at the end of the first; until the last one has ended gradients cannot be looked at. */
TEST_RANKS(backwards_that_are_not_the_last, 2)
{
    static const enum model_mode modes[] = {MODEL_FSDP, MODEL_DDP};
    for (int k = 0; k < 2; k++) {
        struct setting s;
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        REQUIRE(setting_open(self, &s, modes[k], NULL));
        for (int step = 0; step < 2; step++) {
            CHECK_OK(shoal_fsdp_set_is_last_backward(s.fsdp, false));
            forward(&s);
            backward(&s, 1.0F);
            CHECK_STATUS(shoal_fsdp_update_shard(s.fsdp, 0, &shard), SHOAL_ERR_STATE);
            CHECK_ERROR_TEXT("update_shard: gradients are still being reduced");
            CHECK_STATUS(shoal_fsdp_clip_grad_value(s.fsdp, 1.0), SHOAL_ERR_STATE);
            CHECK_OK(shoal_fsdp_set_is_last_backward(s.fsdp, true));
            forward(&s);
            backward(&s, 2.0F);
            check_gradients(&s, 3 * sum_of(&s) / 2);
            CHECK_OK(shoal_fsdp_zero_grad(s.fsdp));
        }
        setting_close(&s);
    }
}

TEST_RANKS(units_that_are_refused, 1)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    shoal_fsdp *f = s.fsdp;
    static const int bad[] = {-2, N_UNITS};
    for (int k = 0; k < 2; k++) {
        CHECK_STATUS(shoal_fsdp_set_reshard_after_backward(shoal_fsdp_unit_of(f, bad[k]), true),
                     SHOAL_ERR_INVALID);
        CHECK_STATUS(shoal_fsdp_set_unshard_in_backward(shoal_fsdp_unit_of(f, bad[k]), true),
                     SHOAL_ERR_INVALID);
        CHECK_STATUS(shoal_fsdp_set_force_sum(shoal_fsdp_unit_of(f, bad[k]), true), SHOAL_ERR_INVALID);
        CHECK_STATUS(shoal_fsdp_set_divide_factor(shoal_fsdp_unit_of(f, bad[k]), 1.0), SHOAL_ERR_INVALID);
        CHECK_STATUS(prefetch_units(shoal_fsdp_set_forward_prefetch, f, bad[k], NULL, 0), SHOAL_ERR_INVALID);
        CHECK_STATUS(prefetch_units(shoal_fsdp_set_backward_prefetch, f, bad[k], NULL, 0), SHOAL_ERR_INVALID);
        CHECK_STATUS(prefetch_units(shoal_fsdp_set_forward_prefetch, f, 0, &bad[k], 1), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("set_forward_prefetch: there is no unit");
        CHECK_STATUS(prefetch_units(shoal_fsdp_set_backward_prefetch, f, 0, &bad[k], 1), SHOAL_ERR_INVALID);
        CHECK_STATUS(shoal_fsdp_unshard(shoal_fsdp_unit_of(f, bad[k])), SHOAL_ERR_INVALID);
        CHECK_STATUS(shoal_fsdp_wait(shoal_fsdp_unit_of(f, bad[k])), SHOAL_ERR_INVALID);
        CHECK_STATUS(shoal_fsdp_reshard(shoal_fsdp_unit_of(f, bad[k])), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(": there is no unit");
    }
    CHECK_STATUS(prefetch_units(shoal_fsdp_set_forward_prefetch, f, 0, NULL, 2), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("units is NULL, but n_units is 2");
    static const double factors[] = {-1.0, (double)NAN, (double)INFINITY};
    for (int k = 0; k < 3; k++) {
        CHECK_STATUS(shoal_fsdp_set_divide_factor(shoal_fsdp_unit_of(f, 0), factors[k]), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("set_divide_factor: unit 0: factor is");
    }
    CHECK_STATUS(shoal_fsdp_set_is_last_backward(NULL, true), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_end_forward(NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_set_divide_factor(shoal_fsdp_unit_of(NULL, 0), 1.0), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_set_force_sum(shoal_fsdp_unit_of(NULL, SHOAL_FSDP_ALL_UNITS), true),
                 SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_unshard(shoal_fsdp_unit_of(NULL, 0)), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_zero_grad(NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_unshard(shoal_fsdp_unit_of(f, SHOAL_FSDP_ALL_UNITS)), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("unshard: unit stands for several units, but one is needed");
    forward(&s);
    backward(&s, 1.0F);
    check_gradients(&s, 1.0F);
    setting_close(&s);
}

static shoal_status set_lists(void *context)
{
    struct setting *s = context;
    shoal_status status = prefetch_units(shoal_fsdp_set_forward_prefetch, s->fsdp, 0, (const int[]){1, 2}, 2);
    status = status == SHOAL_OK
                 ? prefetch_units(shoal_fsdp_set_backward_prefetch, s->fsdp, 3, (const int[]){2}, 1)
                 : status;
    CHECK_OK(prefetch_units(shoal_fsdp_set_forward_prefetch, s->fsdp, 0, NULL, 0));
    CHECK_OK(prefetch_units(shoal_fsdp_set_backward_prefetch, s->fsdp, 3, NULL, 0));
    return status;
}

TEST_RANKS(lists_without_memory, 1)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    CHECK_INT(test_sweep_allocations(set_lists, &s), 2);
    setting_close(&s);
}

/* Forwards alone ----------------------------------------------------------------------------------------- */

static void add_to_shards(struct setting *s, float value)
{
    for (int unit = 0; unit < N_UNITS; unit++) {
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        REQUIRE_OK(shoal_fsdp_update_shard(s->fsdp, unit, &shard));
        for (size_t i = 0; i < shard.count; i++) {
            ((float *)shard.data)[i] += value;
        }
    }
}

/* Whatever is kept for a backward pass: new values are seen, nothing is remembered for ever, prefetching goes on. */
static void check_evaluation(struct rank *self, shoal_reshard reshard, const char *events)
{
    struct setting s;
    shoal_fsdp_options options = {.struct_size = sizeof options, .reshard = reshard, .reshard_ranks = 2};
    REQUIRE(setting_open(self, &s, MODEL_FSDP, &options));
    for (int round = 0; round < 3; round++) {
        s.events[0] = '\0';
        for (int unit = 0; unit < N_UNITS; unit++) {
            CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, unit));
            check_whole(&s, unit, (float)(10 * unit + round));
            CHECK_OK(shoal_fsdp_post_forward(s.fsdp, unit));
        }
        CHECK_OK(shoal_fsdp_end_forward(s.fsdp));
        CHECK_INT(s.fsdp->context->passes.order.n, 0);
        CHECK_INT(s.fsdp->context->passes.forwards.n, 0);
        CHECK_STATUS(shoal_fsdp_pre_backward(s.fsdp, 3), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("unit 3 has had no forward pass in this step");
        add_to_shards(&s, 1.0F);
    }
    CHECK_EVENTS(&s, events);
    add_to_shards(&s, -3.0F);
    forward(&s); /* and training goes on, in the order that evaluation had */
    backward(&s, 1.0F);
    check_gradients(&s, sum_of(&s) / (float)self->n_ranks);
    CHECK_OK(shoal_fsdp_end_forward(s.fsdp)); /* with nothing to end */
    setting_close(&s);
}

TEST_RANKS(forwards_without_a_backward, 4)
{
    check_evaluation(self, SHOAL_RESHARD_ALWAYS, "u0 u1 r0 u2 r1 u3 r2 r3");
    check_evaluation(self, SHOAL_RESHARD_NEVER, "u0 u1 u2 u3 r0 r1 r2 r3");
    check_evaluation(self, SHOAL_RESHARD_PARTLY, "u0 u1 r0 u2 r1 u3 r2 r3");
}

TEST_RANKS(forwards_without_a_backward_alone, 1)
{
    check_evaluation(self, SHOAL_RESHARD_ALWAYS, "u0 u1 r0 u2 r1 u3 r2 r3");
}

/* Units that were gathered ahead, but nobody came. */
TEST_RANKS(evaluation_that_stops_early, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    forward(&s);
    backward(&s, 1.0F);
    s.events[0] = '\0';
    CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
    CHECK_STATUS(shoal_fsdp_end_forward(s.fsdp), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("end_forward: unit 0 has had no post_forward");
    CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_end_forward(s.fsdp));
    CHECK_EVENTS(&s, "u0 u1 r0 r1");
    forward(&s);
    CHECK_OK(shoal_fsdp_pre_backward(s.fsdp, 3));
    CHECK_STATUS(shoal_fsdp_end_forward(s.fsdp), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("end_forward: the backward pass has not been ended");
    backward(&s, 1.0F);
    check_gradients(&s, 2 * sum_of(&s) / 2);
    setting_close(&s);
}

/* Gradients that were kept ------------------------------------------------------------------------------- */

/* A backward pass that reduces comes to the first unit alone: what the others have kept is reduced by its end. */
static void check_kept(struct rank *self, enum model_mode mode, shoal_dtype reduce_dtype)
{
    const shoal_fsdp_options options = {.struct_size = sizeof options, .reduce_dtype = reduce_dtype};
    struct setting s;
    REQUIRE(setting_open(self, &s, mode, &options));
    for (int step = 0; step < 2; step++) {
        CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), false));
        forward(&s);
        backward(&s, 1.0F);
        CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), true));
        CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
        CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
        CHECK_OK(shoal_fsdp_pre_backward(s.fsdp, 0));
        CHECK_OK(shoal_fsdp_post_backward(s.fsdp, 0));
        CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
        check_gradients(&s, sum_of(&s) / (float)self->n_ranks);
        CHECK_OK(shoal_fsdp_zero_grad(s.fsdp));
    }
    forward(&s); /* nothing is left */
    backward(&s, 2.0F);
    check_gradients(&s, 2 * sum_of(&s) / (float)self->n_ranks);
    setting_close(&s);
}

TEST_RANKS(kept_of_units_that_are_not_used, 4)
{
    check_kept(self, MODEL_FSDP, 0);
    check_kept(self, MODEL_FSDP, SHOAL_F64);
    check_kept(self, MODEL_HSDP, 0);
    check_kept(self, MODEL_DDP, 0);
}

/* Gradients that are given up ---------------------------------------------------------------------------- */

/* Also those that no reduction has seen, or only that of the shards. */
static void check_zeroed(struct rank *self, enum model_mode mode)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, mode, NULL));
    for (int round = 0; round < 2; round++) {
        CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), false));
        forward(&s);
        backward(&s, 100.0F);
        CHECK_OK(shoal_fsdp_zero_grad(s.fsdp));
        CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), true));
        CHECK_OK(shoal_fsdp_set_all_reduce(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), false));
        forward(&s);
        backward(&s, 1000.0F);
        CHECK_OK(shoal_fsdp_zero_grad(s.fsdp));
        check_gradients(&s, -1.0F);
        CHECK_OK(shoal_fsdp_set_all_reduce(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), true));
        forward(&s);
        backward(&s, 1.0F);
        check_gradients(&s, sum_of(&s) / (float)self->n_ranks);
        CHECK_OK(shoal_fsdp_zero_grad(s.fsdp));
        check_gradients(&s, -1.0F);
    }
    setting_close(&s);
}

TEST_RANKS(zeroed_gradients_are_all_gone, 4)
{
    check_zeroed(self, MODEL_FSDP);
    check_zeroed(self, MODEL_HSDP);
    check_zeroed(self, MODEL_DDP);
}

/* In the middle of a backward pass only what has landed goes. */
TEST_RANKS(zeroed_inside_a_backward, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    forward(&s);
    backward(&s, 1.0F);
    forward(&s);
    CHECK_OK(shoal_fsdp_pre_backward(s.fsdp, 3));
    CHECK_OK(shoal_fsdp_zero_grad(s.fsdp));
    backward(&s, 2.0F);
    check_gradients(&s, 2 * sum_of(&s) / 2);
    setting_close(&s);
}

/* Values --------------------------------------------------------------------------------------------------- */

/* Writes `value` to this rank's part, through an address that it asks for now. */
static void write_shard(shoal_fsdp *fsdp, int id, float value)
{
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    REQUIRE_OK(shoal_fsdp_update_shard(fsdp, id, &shard));
    for (size_t i = 0; i < shard.count; i++) {
        ((float *)shard.data)[i] = value;
    }
}

/* No backward pass follows, and no end_forward: what was kept for the one that did not come is old. */
TEST_RANKS(shards_written_after_a_forward_without_backward, 2)
{
    static const shoal_reshard reshards[] = {SHOAL_RESHARD_NEVER, SHOAL_RESHARD_ALWAYS};
    for (int r = 0; r < 2; r++) {
        shoal_fsdp *fsdp;
        const shoal_fsdp_options options = {.struct_size = sizeof options, .reshard = reshards[r]};
        shoal_world *world = rank_world_open(self, 0);
        REQUIRE(world);
        REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp));
        for (int unit = 0; unit < 2; unit++) {
            CHECK_OK(shoal_fsdp_add_param(fsdp, unit, "w", SHOAL_F32, 1, (int64_t[]){5}, NULL, NULL));
        }
        for (int step = 0; step < 3; step++) {
            for (int unit = 0; unit < 2; unit++) {
                CHECK_OK(shoal_fsdp_pre_forward(fsdp, unit));
                const float *w = shoal_fsdp_full_param(fsdp, unit);
                REQUIRE(w != NULL);
                for (int i = 0; i < 5; i++) {
                    CHECK_DOUBLE((double)w[i], step * (unit + 1));
                }
                CHECK_OK(shoal_fsdp_post_forward(fsdp, unit));
            }
            write_shard(fsdp, 0, (float)(step + 1));
            write_shard(fsdp, 1, 2.0F * (float)(step + 1));
        }
        shoal_fsdp_free(fsdp);
        CHECK_OK(shoal_world_close(world));
    }
}
