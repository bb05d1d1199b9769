/* SPDX-License-Identifier: MIT */
/* An optimizer inside the backward pass, with the explicit calls: hooks for gradients that have been added to those of
   their shards. */
#include "fixtures/fsdp_on_device.h"

#include "fixtures/fsdp_model.h"
#include "parallel/fsdp/explicit/explicit.h"

struct optimizer {
    shoal_fsdp *fsdp;
    float momentum[MODEL_PARAMS][MODEL_ROOM];
    char ids[64];    /* in the order of calls */
    bool only_looks; /* and leaves the gradients */
    int fails_at;    /* the call that fails; 0: none */
    int n_calls;
    size_t most_grads; /* that had memory at once */
};

static size_t count_grads(const shoal_fsdp *fsdp)
{
    size_t n = 0;
    for (size_t i = 0; i < fsdp->context->n_units; i++) {
        const struct fsdp_unit *unit = fsdp->context->units[i];
        for (size_t k = 0; k < unit->n_params; k++) {
            n += !address_is_none(unit->params[k].shard_grad);
        }
    }
    return n;
}

static shoal_status optimize(void *context, int id, shoal_fsdp_shard *shard)
{
    struct optimizer *optimizer = context;
    size_t length = strlen(optimizer->ids);
    size_t n_grads = count_grads(optimizer->fsdp);
    optimizer->most_grads = n_grads > optimizer->most_grads ? n_grads : optimizer->most_grads;
    (void)snprintf(optimizer->ids + length, sizeof optimizer->ids - length, "%d", id);
    if (++optimizer->n_calls == optimizer->fails_at) {
        return SHOAL_ERR_CANCELLED;
    }
    CHECK(shard->grad != NULL);
    if (!optimizer->only_looks) {
        model_update(test_reach_given(shard->data), optimizer->momentum[id], test_reach_given(shard->grad),
                     shard->count);
        shard->grad = NULL;
    }
    return SHOAL_OK;
}

struct setting {
    shoal_world *world;
    shoal_mesh *mesh;
    shoal_fsdp *fsdp;
    struct optimizer optimizer;
};

static bool setting_open(struct setting *s, struct rank *self, const struct model_case *c)
{
    *s = (struct setting){.world = rank_world_open(self, 0)};
    if (!s->world || !CHECK_OK(model_create(s->world, c, &s->mesh, &s->fsdp)) ||
        !CHECK_OK(model_add_params(s->fsdp))) {
        return false;
    }
    s->optimizer.fsdp = s->fsdp;
    return CHECK_OK(shoal_fsdp_set_accumulated_hook(shoal_fsdp_unit_of(s->fsdp, SHOAL_FSDP_ALL_UNITS),
                                                    optimize, &s->optimizer));
}

static void setting_close(struct setting *s)
{
    shoal_fsdp_free(s->fsdp);
    shoal_mesh_free(s->mesh);
    CHECK_OK(shoal_world_close(s->world));
}

/* Backwards that do not reduce land nothing. */
static shoal_status train(struct setting *s, const struct model_case *c, int part)
{
    struct model_pass pass;
    for (int step = 0; step < c->n_steps; step++) {
        for (int micro = 0; micro < c->n_micro; micro++) {
            MODEL_TRY(shoal_fsdp_set_sync(shoal_fsdp_unit_of(s->fsdp, SHOAL_FSDP_ALL_UNITS),
                                          micro + 1 == c->n_micro));
            s->optimizer.ids[0] = '\0';
            MODEL_TRY(model_fsdp_pass(s->fsdp, &pass, step, part, micro));
            CHECK_STRING(s->optimizer.ids, micro + 1 == c->n_micro ? "67452301" : "");
            CHECK_INT(count_grads(s->fsdp), 0);
        }
    }
    return SHOAL_OK;
}

/* The bits of an optimizer after the backward pass, and memory for the gradients of one unit at a time. */
static void check_bits(struct rank *self, enum model_mode mode, shoal_reshard reshard, int max_reduces)
{
    struct setting s;
    struct model_result expected;
    struct model_result actual;
    struct model_case c = {.mode = mode,
                           .n_ranks = self->n_ranks,
                           .n_replicas = 2,
                           .n_steps = 3,
                           .n_micro = 2,
                           .options = {.reshard = reshard, .max_reduces = max_reduces}};
    REQUIRE(setting_open(&s, self, &c));
    CHECK_OK(model_train(s.world, &c, &expected));
    CHECK_OK(train(&s, &c, self->rank));
    CHECK_OK(model_gather(s.fsdp, &actual));
    model_check_equal(&actual, &expected, "updated inside the backward");
    CHECK_INT(s.optimizer.most_grads, 2);
    setting_close(&s);
}

TEST_RANKS(bits_of_shards, 3)
{
    check_bits(self, MODEL_FSDP, SHOAL_RESHARD_DEFAULT, 1);
    check_bits(self, MODEL_FSDP, SHOAL_RESHARD_NEVER, 3);
    check_bits(self, MODEL_FSDP, SHOAL_RESHARD_ALWAYS, 2);
}

TEST_RANKS(bits_of_both, 4)
{
    check_bits(self, MODEL_HSDP, SHOAL_RESHARD_DEFAULT, 1);
    check_bits(self, MODEL_HSDP, SHOAL_RESHARD_ALWAYS, 2);
}

TEST_RANKS(bits_of_replicas, 2)
{
    check_bits(self, MODEL_DDP, SHOAL_RESHARD_DEFAULT, 1);
}

TEST_RANKS(bits_alone, 1)
{
    check_bits(self, MODEL_FSDP, SHOAL_RESHARD_DEFAULT, 1);
}

/* Of one unit, which only looks; and by synchronize. */
TEST_RANKS(gradients_that_stay, 2)
{
    struct setting s;
    struct model_pass pass;
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    struct model_case c = {.mode = MODEL_FSDP, .n_ranks = 2};
    REQUIRE(setting_open(&s, self, &c));
    s.optimizer.only_looks = true;
    CHECK_OK(shoal_fsdp_set_accumulated_hook(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), NULL, NULL));
    CHECK_OK(shoal_fsdp_set_accumulated_hook(shoal_fsdp_unit_of(s.fsdp, 2), optimize, &s.optimizer));
    CHECK_OK(model_fsdp_pass(s.fsdp, &pass, 0, self->rank, 0));
    CHECK_STRING(s.optimizer.ids, "45");
    CHECK_OK(shoal_fsdp_update_shard(s.fsdp, 4, &shard));
    REQUIRE(shard.grad != NULL);
    float first = *(const float *)shard.grad;
    CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), false));
    CHECK_OK(model_fsdp_pass(s.fsdp, &pass, 0, self->rank, 0));
    CHECK_STRING(s.optimizer.ids, "45");
    CHECK_OK(shoal_fsdp_synchronize(s.fsdp));
    CHECK_STRING(s.optimizer.ids, "4545");
    CHECK_OK(shoal_fsdp_update_shard(s.fsdp, 4, &shard));
    CHECK_DOUBLE((double)*(const float *)shard.grad, 2 * (double)first);
    setting_close(&s);
}

/* At any parameter; after a reset steps go on. */
TEST_RANKS(hooks_that_fail, 3)
{
    struct setting s;
    struct model_pass pass;
    struct model_case c = {.mode = MODEL_FSDP, .n_ranks = 3};
    REQUIRE(setting_open(&s, self, &c));
    for (int fails_at = 1; fails_at <= MODEL_PARAMS; fails_at++) {
        s.optimizer.n_calls = 0;
        s.optimizer.fails_at = fails_at;
        CHECK_STATUS(model_fsdp_pass(s.fsdp, &pass, 0, self->rank, 0), SHOAL_ERR_CANCELLED);
        CHECK_ERROR_TEXT("the hook for the gradient of");
        CHECK_ERROR_TEXT(" failed with SHOAL_ERR_CANCELLED");
        CHECK_INT(s.optimizer.n_calls, fails_at);
        CHECK_OK(shoal_fsdp_reset(s.fsdp));
        CHECK_OK(shoal_fsdp_zero_grad(s.fsdp));
        s.optimizer.fails_at = 0;
        CHECK_OK(model_fsdp_pass(s.fsdp, &pass, 0, self->rank, 0));
        CHECK_INT(s.optimizer.n_calls, fails_at + MODEL_PARAMS);
        s.optimizer.ids[0] = '\0';
    }
    setting_close(&s);
}

/* Whoever goes on after a failure does not take what happens to be there for the gradients of the step. */
TEST_RANKS(the_end_of_a_backward_that_failed, 2)
{
    struct setting s;
    struct model_pass pass;
    struct model_case c = {.mode = MODEL_FSDP, .n_ranks = 2};
    REQUIRE(setting_open(&s, self, &c));
    s.optimizer.fails_at = 1;
    for (int unit = 0; unit < MODEL_UNITS; unit++) {
        CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, unit));
        CHECK_OK(shoal_fsdp_post_forward(s.fsdp, unit));
    }
    int n_failed = 0;
    for (int unit = MODEL_UNITS - 1; unit >= 0; unit--) {
        CHECK_OK(shoal_fsdp_pre_backward(s.fsdp, unit));
        n_failed += shoal_fsdp_post_backward(s.fsdp, unit) != SHOAL_OK;
    }
    CHECK(n_failed > 0);
    CHECK_STATUS(shoal_fsdp_end_backward(s.fsdp), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("end_backward: a post_backward has failed: shoal_fsdp_reset ends the step");
    CHECK_OK(shoal_fsdp_reset(s.fsdp));
    CHECK_OK(shoal_fsdp_zero_grad(s.fsdp));
    s.optimizer.fails_at = 0;
    CHECK_OK(model_fsdp_pass(s.fsdp, &pass, 0, self->rank, 0));
    setting_close(&s);
}

/* A hook that calls the context it is part of. */
static shoal_status call_back(void *context, int id, shoal_fsdp_shard *shard)
{
    shoal_fsdp *f = context;
    shoal_fsdp_unit *unit = shoal_fsdp_unit_of(f, 0);
    (void)shard;
#define REFUSED(call)                                                       \
    do {                                                                    \
        CHECK_STATUS(call, SHOAL_ERR_STATE);                                \
        CHECK_ERROR_TEXT("inside a hook or custom collective of the same"); \
    } while (0)
    REFUSED(shoal_fsdp_reset(f));
    REFUSED(shoal_fsdp_synchronize(f));
    REFUSED(shoal_fsdp_end_backward(f));
    REFUSED(shoal_fsdp_pre_forward(f, 0));
    REFUSED(shoal_fsdp_clip_grad_value(f, 1.0));
    REFUSED(shoal_fsdp_unshard(unit));
    REFUSED(shoal_fsdp_reshard(unit));
    REFUSED(shoal_fsdp_set_unit_name(unit, "another"));
#undef REFUSED
    shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
    CHECK_OK(shoal_fsdp_get_layout(shoal_fsdp_param_of(f, id), &layout)); /* asking is no harm */
    return SHOAL_OK;
}

TEST_RANKS(hooks_that_call_their_context, 2)
{
    struct setting s;
    struct model_pass pass;
    struct model_case c = {.mode = MODEL_FSDP, .n_ranks = 2};
    REQUIRE(setting_open(&s, self, &c));
    shoal_fsdp_unit *all = shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS);
    CHECK_OK(shoal_fsdp_set_accumulated_hook(all, call_back, s.fsdp));
    CHECK_OK(model_fsdp_pass(s.fsdp, &pass, 0, self->rank, 0));
    setting_close(&s);
}

TEST_RANKS(refused, 2)
{
    struct setting s;
    struct model_case c = {.mode = MODEL_FSDP, .n_ranks = 2};
    REQUIRE(setting_open(&s, self, &c));
    CHECK_STATUS(shoal_fsdp_set_accumulated_hook(shoal_fsdp_unit_of(NULL, 0), NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_set_accumulated_hook(shoal_fsdp_unit_of(s.fsdp, 4), NULL, NULL),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("set_accumulated_hook: there is no unit 4: there are 4");
    CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
    CHECK_STATUS(
        shoal_fsdp_set_accumulated_hook(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), NULL, NULL),
        SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("set_accumulated_hook: unit 0 is in the middle of a step");
    CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_reset(s.fsdp));
    setting_close(&s);
}

/* Values that a hook writes ---------------------------------------------------------------------------------- */

enum {
    WRITER_UNITS = 2,
    WRITER_COUNT = 1 << 16
};

/* All values of a shard become the number of times that its gradient has landed. */
struct writer {
    int n_landed[WRITER_UNITS];
};

static shoal_status write_number(void *context, int id, shoal_fsdp_shard *shard)
{
    struct writer *writer = context;
    float *values = test_reach_given(shard->data);
    writer->n_landed[id]++;
    for (size_t i = 0; i < shard->count; i++) {
        values[i] = (float)writer->n_landed[id];
    }
    shard->grad = NULL;
    return SHOAL_OK;
}

/* While the unit is gathered all of it is one number: as often as its gradient had landed when the gather began. */
static void check_values(shoal_fsdp *fsdp, int id, int expected)
{
    const float *values = shoal_fsdp_full_param(fsdp, id);
    REQUIRE(values != NULL);
    for (int i = 0; i < WRITER_COUNT && !test_has_failed(); i++) {
        CHECK_DOUBLE((double)values[i], (double)expected);
    }
}

static void run_writers_pass(shoal_fsdp *fsdp, int n_before)
{
    for (int unit = 0; unit < WRITER_UNITS; unit++) {
        REQUIRE_OK(shoal_fsdp_pre_forward(fsdp, unit));
        check_values(fsdp, unit, n_before);
        REQUIRE_OK(shoal_fsdp_post_forward(fsdp, unit));
    }
    for (int unit = WRITER_UNITS - 1; unit >= 0; unit--) {
        REQUIRE_OK(shoal_fsdp_pre_backward(fsdp, unit));
        check_values(fsdp, unit, n_before);
        REQUIRE(shoal_fsdp_grad(fsdp, unit) != NULL);
        REQUIRE_OK(shoal_fsdp_post_backward(fsdp, unit));
    }
    REQUIRE_OK(shoal_fsdp_end_backward(fsdp));
}

/* Gradients of a backward pass that is not the last land in the middle of the next pass, but never under a gather. */
TEST_RANKS(a_gather_sees_what_a_hook_wrote, 2)
{
    struct writer writer = {{0}};
    shoal_fsdp *fsdp = NULL;
    const shoal_fsdp_options options = {.struct_size = sizeof options, .max_reduces = WRITER_UNITS};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp));
    for (int unit = 0; unit < WRITER_UNITS; unit++) {
        REQUIRE_OK(
            shoal_fsdp_add_param(fsdp, unit, "w", SHOAL_F32, 1, (const int64_t[]){WRITER_COUNT}, NULL, NULL));
    }
    REQUIRE_OK(shoal_fsdp_set_accumulated_hook(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), write_number,
                                               &writer));
    for (int pass = 0; pass < 6 && !test_has_failed(); pass++) {
        CHECK_OK(shoal_fsdp_set_is_last_backward(fsdp, pass % 3 == 2));
        run_writers_pass(fsdp, pass);
    }
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}
