/* SPDX-License-Identifier: MIT */
/*
 * ZeRO-1 and ZeRO-2 by explicit calls: the bits of FSDP and of replicas, one gather of a unit for each time that
 * shards were written and none in backward, and memory that stays. tests/parallel/fully_shard/nn/zero_test.c has
 * modules.
 */
#include "fixtures/fsdp_on_device.h"

#include "fixtures/fsdp_model.h"
#include "harness/harness.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/handle.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof(array)[0]))
#define SHAPE(...) ((const int64_t[]){__VA_ARGS__})

static const shoal_sharded zeros[] = {SHOAL_SHARDED_GRADIENTS, SHOAL_SHARDED_STATE};

static const struct {
    int n_micro;
    bool reduces_always;
} accumulations[] = {{1, true}, {3, false}, {3, true}};

/* Bits ----------------------------------------------------------------------------------------------------- */

static void check_same(shoal_world *world, const struct model_case *c, const struct model_result *expected)
{
    char text[160];
    struct model_result actual;
    memset(&actual, 0, sizeof actual);
    (void)snprintf(
        text, sizeof text, "mode %d, sharded %d, %d ranks, %d micro-batches%s, prefetch %d, reduces %d",
        (int)c->mode, (int)c->options.sharded, c->n_ranks, c->n_micro,
        c->reduces_always ? " reduced always" : "", c->options.forward_prefetch, c->options.max_reduces);
    if (!CHECK_OK(model_train(world, c, &actual))) {
        test_failed(__FILE__, __LINE__, "%s", text);
        return;
    }
    model_check_equal(&actual, expected, text);
    for (int step = 0; c->max_norm > 0.0 && step < c->n_steps; step++) {
        CHECK_DOUBLE(actual.norms[step], expected->norms[step]);
    }
}

/* One process, FSDP and replicas are the same already (bits_test.c), but what is meant here is said here. */
static void check_case(shoal_world *world, struct model_case c)
{
    static const int prefetches[] = {0, -1, 2};
    struct model_result expected;
    memset(&expected, 0, sizeof expected);
    model_train_alone(&c, &expected);
    check_same(world, &c, &expected);
    if (c.mode == MODEL_FSDP) {
        struct model_case replicated = c;
        replicated.mode = MODEL_DDP;
        check_same(world, &replicated, &expected);
    }
    for (int z = 0; z < LENGTH(zeros); z++) {
        for (int p = 0; p < LENGTH(prefetches) && !test_has_failed(); p++) {
            c.options = (shoal_fsdp_options){.sharded = zeros[z],
                                             .forward_prefetch = prefetches[p],
                                             .reshard = p == 1 ? SHOAL_RESHARD_NEVER : SHOAL_RESHARD_DEFAULT,
                                             .max_reduces = 1 + p};
            check_same(world, &c, &expected);
        }
    }
}

static void check_mode(struct rank *self, enum model_mode mode, int n_replicas)
{
    shoal_world *world = rank_world_open(self, (int)mode);
    REQUIRE(world != NULL);
    for (int a = 0; a < LENGTH(accumulations); a++) {
        check_case(world, (struct model_case){.mode = mode,
                                              .n_ranks = self->n_ranks,
                                              .n_replicas = n_replicas,
                                              .n_steps = 4,
                                              .n_micro = accumulations[a].n_micro,
                                              .reduces_always = accumulations[a].reduces_always,
                                              .max_norm = a == 1 ? 0.5 : 0.0});
    }
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(bits_of_1, 1)
{
    check_mode(self, MODEL_FSDP, 1);
}

TEST_RANKS(bits_of_2, 2)
{
    check_mode(self, MODEL_FSDP, 1);
}

TEST_RANKS(bits_of_3, 3)
{
    check_mode(self, MODEL_FSDP, 1);
}

TEST_RANKS(bits_of_4, 4)
{
    check_mode(self, MODEL_FSDP, 1);
}

TEST_RANKS(bits_of_two_replicas_of_two, 4)
{
    check_mode(self, MODEL_HSDP, 2);
}

TEST_RANKS(bits_of_two_replicas_of_one, 2)
{
    check_mode(self, MODEL_HSDP, 2);
}

/* Between steps ---------------------------------------------------------------------------------------------- */

struct heard {
    int gathers;
    int given_up;
};

static void hear(void *context, enum fsdp_event event, const struct fsdp_unit *unit)
{
    struct heard *heard = context;
    (void)unit;
    heard->gathers += event == FSDP_EVENT_UNSHARD;
    heard->given_up += event == FSDP_EVENT_RESHARD;
}

static void listen(shoal_fsdp *fsdp, struct heard *heard)
{
    fsdp->context->listener = (struct fsdp_listener){.hear = hear, .context = heard};
}

/* Since the last time. */
static void check_heard(struct heard *heard, int gathers, const char *what)
{
    if (!CHECK_INT(heard->gathers, gathers)) {
        test_failed(__FILE__, __LINE__, "%s", what);
    }
    *heard = (struct heard){0};
}

static shoal_status evaluate(shoal_fsdp *fsdp, struct model_pass *pass, int step, int part)
{
    model_begin(pass, step, part, 0);
    for (int unit = 0; unit < MODEL_UNITS; unit++) {
        MODEL_TRY(model_fsdp_forward(fsdp, pass, unit));
    }
    return shoal_fsdp_end_forward(fsdp);
}

/* Everything that may happen between the passes of two steps, in a context and in one of FSDP, which gathers always. */
struct run {
    shoal_fsdp *fsdp;
    struct heard heard;
    float momentum[MODEL_PARAMS][MODEL_ROOM];
    struct model_pass pass;
};

static shoal_status write_one(shoal_fsdp *fsdp, int id)
{
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    MODEL_TRY(shoal_fsdp_update_shard(fsdp, id, &shard));
    for (size_t i = 0; i < shard.count; i++) {
        ((float *)shard.data)[i] += 0.25F;
    }
    return SHOAL_OK;
}

static shoal_status load_one(shoal_fsdp *fsdp, int id)
{
    float values[MODEL_ROOM];
    for (size_t i = 0; i < MODEL_ROOM; i++) {
        values[i] = 0.01F * (float)(i % 11);
    }
    return shoal_fsdp_load(shoal_fsdp_param_of(fsdp, id), values);
}

static shoal_status run_between(struct run *run, const struct model_case *c, int step, int part, bool is_zero)
{
    const int all = is_zero ? MODEL_UNITS : 0; /* what FSDP does is not counted */
    MODEL_TRY(evaluate(run->fsdp, &run->pass, step, part));
    check_heard(&run->heard, is_zero ? MODEL_UNITS : run->heard.gathers, "an evaluation after an update");
    MODEL_TRY(evaluate(run->fsdp, &run->pass, step + 50, part));
    check_heard(&run->heard, is_zero ? 0 : run->heard.gathers, "an evaluation after another");
    MODEL_TRY(model_fsdp_pass(run->fsdp, &run->pass, step, part, 0));
    check_heard(&run->heard, is_zero ? 0 : run->heard.gathers, "a pass after an evaluation");
    MODEL_TRY(model_fsdp_update(run->fsdp, c, run->momentum, NULL));
    MODEL_TRY(model_fsdp_pass(run->fsdp, &run->pass, step, part, 1));
    check_heard(&run->heard, is_zero ? all : run->heard.gathers, "a pass after an update");
    MODEL_TRY(model_fsdp_pass(run->fsdp, &run->pass, step, part, 2));
    check_heard(&run->heard, is_zero ? 0 : run->heard.gathers, "a second micro-batch");
    MODEL_TRY(model_fsdp_update(run->fsdp, c, run->momentum, NULL));
    MODEL_TRY(write_one(run->fsdp, 4));
    MODEL_TRY(evaluate(run->fsdp, &run->pass, step, part));
    check_heard(&run->heard, is_zero ? all : run->heard.gathers, "an evaluation after a shard was written");
    MODEL_TRY(load_one(run->fsdp, 2));
    MODEL_TRY(evaluate(run->fsdp, &run->pass, step, part));
    check_heard(&run->heard, is_zero ? 1 : run->heard.gathers, "an evaluation after a parameter was loaded");
    MODEL_TRY(shoal_fsdp_reshard(shoal_fsdp_unit_of(run->fsdp, 3)));
    MODEL_TRY(model_fsdp_pass(run->fsdp, &run->pass, step, part, 0));
    check_heard(&run->heard, is_zero ? 1 : run->heard.gathers, "a pass after a unit was given up by hand");
    return model_fsdp_update(run->fsdp, c, run->momentum, NULL);
}

static void check_between(struct rank *self, shoal_sharded sharded)
{
    struct model_case c = {.mode = MODEL_FSDP, .n_ranks = self->n_ranks};
    shoal_world *world = rank_world_open(self, 0);
    shoal_mesh *mesh = NULL;
    static _Thread_local struct run runs[2];
    struct model_result results[2];
    memset(runs, 0, sizeof runs);
    memset(results, 0, sizeof results);
    REQUIRE(world != NULL);
    for (int k = 0; k < 2; k++) {
        c.options.sharded = k == 0 ? SHOAL_SHARDED_PARAMETERS : sharded;
        REQUIRE_OK(model_create(world, &c, &mesh, &runs[k].fsdp));
        REQUIRE_OK(model_add_params(runs[k].fsdp));
        listen(runs[k].fsdp, &runs[k].heard);
    }
    for (int step = 0; step < 3; step++) {
        for (int k = 0; k < 2; k++) {
            REQUIRE_OK(run_between(&runs[k], &c, step, self->rank, k == 1));
        }
        CHECK_BYTES(runs[0].pass.inputs, runs[1].pass.inputs, sizeof runs[0].pass.inputs);
    }
    for (int k = 0; k < 2; k++) {
        CHECK_OK(model_gather(runs[k].fsdp, &results[k]));
        shoal_fsdp_free(runs[k].fsdp);
    }
    model_check_equal(&results[1], &results[0], "between steps");
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(evaluation_and_writes_between_steps, 3)
{
    check_between(self, SHOAL_SHARDED_GRADIENTS);
    check_between(self, SHOAL_SHARDED_STATE);
}

/* An address that was asked for once: zero_grad says that it was written through. */
TEST_RANKS(an_address_that_is_kept, 2)
{
    const shoal_fsdp_options options = {.struct_size = sizeof options, .sharded = SHOAL_SHARDED_GRADIENTS};
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    shoal_world *world = rank_world_open(self, 0);
    shoal_fsdp *fsdp = NULL;
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp));
    REQUIRE_OK(shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, 1, SHAPE(2), NULL, NULL));
    REQUIRE_OK(shoal_fsdp_update_shard(fsdp, 0, &shard));
    for (int step = 0; step < 3; step++) {
        REQUIRE_OK(shoal_fsdp_pre_forward(fsdp, 0));
        const float *full = shoal_fsdp_full_param(fsdp, 0);
        CHECK(full && full[0] == (float)step && full[1] == (float)step);
        REQUIRE_OK(shoal_fsdp_post_forward(fsdp, 0));
        REQUIRE_OK(shoal_fsdp_end_forward(fsdp));
        test_barrier(self); /* both have looked: with one rank the shard itself is what is whole */
        ((float *)shard.data)[0] += 1.0F;
        CHECK_OK(shoal_fsdp_zero_grad(fsdp));
    }
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}

/* An optimizer inside the backward pass: what it has written is gathered by the next forward. */
static shoal_status update_landed(void *context, int id, shoal_fsdp_shard *shard)
{
    float(*momentum)[MODEL_ROOM] = context;
    model_update(test_reach_given(shard->data), momentum[id], test_reach_given(shard->grad), shard->count);
    shard->grad = NULL;
    return SHOAL_OK;
}

static void check_landed(struct rank *self, shoal_sharded sharded)
{
    const struct model_case c = {.mode = MODEL_FSDP,
                                 .n_ranks = self->n_ranks,
                                 .n_steps = 4,
                                 .n_micro = 1,
                                 .reduces_always = true,
                                 .options.sharded = sharded};
    float momentum[MODEL_PARAMS][MODEL_ROOM];
    struct model_result wanted;
    struct model_result got;
    struct model_pass pass;
    struct heard heard = {0};
    shoal_world *world = NULL;
    shoal_mesh *mesh = NULL;
    shoal_fsdp *fsdp = NULL;
    memset(momentum, 0, sizeof momentum);
    memset(&wanted, 0, sizeof wanted);
    memset(&got, 0, sizeof got);
    model_train_alone(&c, &wanted);
    REQUIRE(model_open(self, &c, &world, &mesh, &fsdp));
    listen(fsdp, &heard);
    CHECK_OK(shoal_fsdp_set_accumulated_hook(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), update_landed,
                                             momentum));
    for (int step = 0; step < c.n_steps; step++) {
        REQUIRE_OK(model_fsdp_pass(fsdp, &pass, step, self->rank, 0));
        check_heard(&heard, MODEL_UNITS, "a pass after an update inside the backward");
    }
    CHECK_OK(model_gather(fsdp, &got));
    model_check_equal(&got, &wanted, "an optimizer inside the backward");
    model_close(world, mesh, fsdp);
}

TEST_RANKS(an_optimizer_inside_the_backward, 3)
{
    check_landed(self, SHOAL_SHARDED_GRADIENTS);
    check_landed(self, SHOAL_SHARDED_STATE);
}

/* Units inside of each other, and shards that are asked for in the middle of a pass: the open unit is old
   afterwards. */
TEST_RANKS(shards_asked_for_while_a_unit_is_open, 2)
{
    const shoal_fsdp_options options = {.struct_size = sizeof options, .sharded = SHOAL_SHARDED_GRADIENTS};
    shoal_world *world = rank_world_open(self, 0);
    shoal_fsdp *fsdp = NULL;
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp));
    for (int unit = 0; unit < 2; unit++) {
        REQUIRE_OK(shoal_fsdp_add_param(fsdp, unit, "w", SHOAL_F32, 1, SHAPE(4), NULL, NULL));
    }
    for (int step = 0; step < 4; step++) { /* without ends of forwards */
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        REQUIRE_OK(shoal_fsdp_pre_forward(fsdp, 0));
        const float *full = shoal_fsdp_full_param(fsdp, 0);
        CHECK(full && full[0] == (float)step && full[3] == (float)step);
        test_barrier(self);
        REQUIRE_OK(shoal_fsdp_update_shard(fsdp, 0, &shard));
        ((float *)shard.data)[0] += 1.0F;
        ((float *)shard.data)[1] += 1.0F;
        REQUIRE_OK(shoal_fsdp_pre_forward(fsdp, 1));
        REQUIRE_OK(shoal_fsdp_post_forward(fsdp, 1));
        REQUIRE_OK(shoal_fsdp_post_forward(fsdp, 0));
    }
    CHECK_OK(shoal_fsdp_end_forward(fsdp));
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}

/* Memory ------------------------------------------------------------------------------------------------- */

/* Whole gradients of all units, in memory that the first step makes; gathered parameters likewise. */
static void check_memory(struct rank *self, bool reduces_always)
{
    const struct model_case c = {.mode = MODEL_FSDP,
                                 .n_ranks = self->n_ranks,
                                 .n_micro = 3,
                                 .reduces_always = reduces_always,
                                 .options.sharded = SHOAL_SHARDED_STATE};
    float momentum[MODEL_PARAMS][MODEL_ROOM];
    shoal_fsdp_memory_report first = SHOAL_FSDP_MEMORY_REPORT_INIT;
    shoal_world *world = NULL;
    shoal_mesh *mesh = NULL;
    shoal_fsdp *fsdp = NULL;
    size_t whole = 0;
    memset(momentum, 0, sizeof momentum);
    REQUIRE(model_open(self, &c, &world, &mesh, &fsdp));
    for (int step = 0; step < 5; step++) {
        shoal_fsdp_memory_report now = SHOAL_FSDP_MEMORY_REPORT_INIT;
        REQUIRE_OK(model_fsdp_step(fsdp, &c, self->rank, step, momentum, NULL));
        CHECK_OK(shoal_fsdp_memory(fsdp, step == 0 ? &first : &now));
        if (step > 0) {
            CHECK_BYTES(&now.rank, &first.rank, sizeof now.rank);
            CHECK_INT(now.rank_peak.buffers, first.rank.buffers);
            CHECK_INT(now.rank_peak.windows, first.rank.windows);
        }
    }
    for (int id = 0; id < MODEL_PARAMS; id++) {
        const struct fsdp_param *param = &fsdp->params[id]->unit->params[fsdp->params[id]->index];
        whole += fsdp_round_up((size_t)self->n_ranks * param->padded_count * sizeof(float));
    }
    CHECK_INT(first.rank.buffers, whole);
    CHECK_INT(fsdp->context->domains[0]->pools.buffers.n_blocks, MODEL_UNITS);
    model_close(world, mesh, fsdp);
}

TEST_RANKS(whole_gradients_stay, 2)
{
    check_memory(self, false);
    check_memory(self, true);
}

/* More parameters get gradients than before: the unit's memory is made anew, once. */
TEST_RANKS(a_parameter_is_thawed, 2)
{
    struct model_case c = {
        .mode = MODEL_FSDP, .n_ranks = self->n_ranks, .n_micro = 1, .options.sharded = SHOAL_SHARDED_STATE};
    float momentum[MODEL_PARAMS][MODEL_ROOM];
    shoal_world *world = NULL;
    shoal_mesh *mesh = NULL;
    shoal_fsdp *fsdp = NULL;
    memset(momentum, 0, sizeof momentum);
    REQUIRE(model_open(self, &c, &world, &mesh, &fsdp));
    CHECK_OK(shoal_fsdp_set_requires_grad(fsdp, 2, false));
    for (int step = 0; step < 6; step++) {
        if (step == 2) {
            CHECK_OK(shoal_fsdp_set_requires_grad(fsdp, 2, true));
        }
        REQUIRE_OK(model_fsdp_step(fsdp, &c, self->rank, step, momentum, NULL));
        CHECK_INT(fsdp->context->units[1]->grads.own->bytes,
                  step < 2 ? 64 : 64 + (int)fsdp_round_up(3 * 60 * sizeof(float)));
        CHECK_INT(fsdp->context->domains[0]->pools.buffers.n_blocks, MODEL_UNITS);
    }
    model_close(world, mesh, fsdp);
}

/* What is refused ---------------------------------------------------------------------------------------- */

static void check_refused(shoal_status status, const char *word, const char *other)
{
    if (CHECK_INT(status, SHOAL_ERR_INVALID)) {
        CHECK_ERROR_TEXT(word);
        CHECK_ERROR_TEXT(other);
    }
}

TEST_RANKS(settings_that_contradict, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    shoal_fsdp *fsdp = NULL;
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    shoal_fsdp_options options = {.struct_size = sizeof options, .sharded = (shoal_sharded)3};
    check_refused(shoal_fsdp_create(group, &options, &fsdp), "sharded is 3", "SHOAL_SHARDED_");
    options.sharded = (shoal_sharded)-1;
    check_refused(shoal_fsdp_create(group, &options, &fsdp), "sharded is -1", "SHOAL_SHARDED_");
    options.sharded = SHOAL_SHARDED_STATE;
    check_refused(shoal_fsdp_create_replicated(group, &options, &fsdp), "replicated", "sharded is state (2)");
    options.reshard = SHOAL_RESHARD_ALWAYS;
    check_refused(shoal_fsdp_create(group, &options, &fsdp), "always (1)", "sharded is state (2)");
    options.sharded = SHOAL_SHARDED_GRADIENTS;
    options.reshard = SHOAL_RESHARD_PARTLY;
    options.reshard_ranks = 2;
    check_refused(shoal_fsdp_create(group, &options, &fsdp), "partly (3)", "sharded is gradients (1)");
    options.reshard = SHOAL_RESHARD_DEFAULT;
    REQUIRE_OK(shoal_fsdp_create(group, &options, &fsdp));
    REQUIRE_OK(shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, 1, SHAPE(6), NULL, NULL));
    shoal_fsdp_unit *unit = shoal_fsdp_unit_of(fsdp, 0);
    for (int k = 0; k < 2; k++) { /* before and after the first forward */
        check_refused(shoal_fsdp_set_reshard(unit, SHOAL_RESHARD_ALWAYS), "unit 0",
                      "sharded is gradients (1)");
        check_refused(shoal_fsdp_set_reshard(unit, SHOAL_RESHARD_PARTLY), "partly",
                      "sharded is gradients (1)");
        check_refused(shoal_fsdp_set_reshard_after_backward(unit, true), "is_on", "sharded is gradients (1)");
        CHECK_OK(shoal_fsdp_set_reshard(unit, SHOAL_RESHARD_NEVER));
        CHECK_OK(shoal_fsdp_set_reshard(unit, SHOAL_RESHARD_DEFAULT));
        CHECK_OK(shoal_fsdp_set_reshard_after_backward(unit, false));
        REQUIRE_OK(shoal_fsdp_pre_forward(fsdp, 0));
        REQUIRE_OK(shoal_fsdp_post_forward(fsdp, 0));
        REQUIRE_OK(shoal_fsdp_end_forward(fsdp));
        CHECK_INT(fsdp->context->units[0]->state, FSDP_UNSHARDED);
    }
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}

/* Ranks that differ -------------------------------------------------------------------------------------- */

TEST_RANKS(sharded_otherwise_on_one_rank, 3)
{
    for (int k = 0; k < 3; k++) {
        const shoal_sharded here = (shoal_sharded)k;
        const shoal_sharded there = (shoal_sharded)((k + 1) % 3);
        const shoal_fsdp_options options = {.struct_size = sizeof options,
                                            .sharded = self->rank == 1 ? there : here};
        shoal_world *world = rank_world_open(self, k);
        shoal_fsdp *fsdp = NULL;
        char words[64];
        REQUIRE(world != NULL);
        REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp));
        REQUIRE_OK(shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, 1, SHAPE(6), NULL, NULL));
        CHECK_STATUS(shoal_fsdp_pre_forward(fsdp, 0), SHOAL_ERR_MISMATCH);
        (void)snprintf(words, sizeof words, "sharded %s", fsdp_sharded_name(here));
        CHECK_ERROR_TEXT(words);
        (void)snprintf(words, sizeof words, "sharded %s", fsdp_sharded_name(there));
        CHECK_ERROR_TEXT(words);
        CHECK(shoal_fsdp_full_param(fsdp, 0) == NULL);
        shoal_fsdp_free(fsdp);
        CHECK_OK(shoal_world_close(world));
    }
}

/* One rank asks for shards, and would gather them again: between steps, and in the middle of forwards. */
static void check_asking(struct rank *self, int in_step, int unit)
{
    const shoal_fsdp_options options = {.struct_size = sizeof options, .sharded = SHOAL_SHARDED_GRADIENTS};
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    shoal_world *world = rank_world_open(self, unit);
    shoal_fsdp *fsdp = NULL;
    shoal_status status = SHOAL_OK;
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp));
    for (int i = 0; i < 3; i++) {
        REQUIRE_OK(shoal_fsdp_add_param(fsdp, i, "w", SHOAL_F32, 1, SHAPE(6), NULL, NULL));
    }
    for (int step = 0; step < 3 && status == SHOAL_OK; step++) {
        for (int i = 0; i < 3 && status == SHOAL_OK; i++) {
            if (self->rank == 1 && step == in_step && i == unit) {
                CHECK_OK(shoal_fsdp_update_shard(fsdp, 0, &shard));
            }
            status = shoal_fsdp_pre_forward(fsdp, i);
            status = status == SHOAL_OK ? shoal_fsdp_post_forward(fsdp, i) : status;
        }
        for (int i = 2; i >= 0 && status == SHOAL_OK; i--) {
            status = shoal_fsdp_pre_backward(fsdp, i);
            status = status == SHOAL_OK ? shoal_fsdp_post_backward(fsdp, i) : status;
        }
        status = status == SHOAL_OK ? shoal_fsdp_end_backward(fsdp) : status;
    }
    if (CHECK_INT(status, SHOAL_ERR_MISMATCH)) {
        CHECK_ERROR_TEXT("update_shard");
    }
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(one_rank_asks_for_shards, 2)
{
    check_asking(self, 1, 0);
    check_asking(self, 1, 1);
}
