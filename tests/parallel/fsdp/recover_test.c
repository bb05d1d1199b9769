/* SPDX-License-Identifier: MIT */
/*
 * After something went wrong: a step that was given up at any point, an allocation that failed. A reset, and the next
 * step has the bits of one that nothing went wrong before. Also: what many steps leave behind, which is nothing.
 */
#include "fixtures/fsdp_on_device.h"

#include "fixtures/fsdp_model.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* A step that is given up ------------------------------------------------------------------------------------ */

/* The first n calls of a pass; whether there are so many. */
static bool run_calls(shoal_fsdp *fsdp, int n, float garbage)
{
    for (int unit = 0; unit < MODEL_UNITS; unit++) {
        if (n-- <= 0) {
            return true;
        }
        CHECK_OK(shoal_fsdp_pre_forward(fsdp, unit));
        if (n-- <= 0) {
            return true;
        }
        CHECK_OK(shoal_fsdp_post_forward(fsdp, unit));
    }
    for (int unit = MODEL_UNITS - 1; unit >= 0; unit--) {
        if (n-- <= 0) {
            return true;
        }
        CHECK_OK(shoal_fsdp_pre_backward(fsdp, unit));
        for (int id = 0; id < MODEL_PARAMS; id++) {
            float *grad = model_params[id].unit == unit ? shoal_fsdp_grad(fsdp, id) : NULL;
            for (size_t i = 0; grad && i < model_count(id); i++) {
                grad[i] += garbage;
            }
        }
        if (n-- <= 0) {
            return true;
        }
        CHECK_OK(shoal_fsdp_post_backward(fsdp, unit));
    }
    return false;
}

static void check_given_up(shoal_world *world, struct model_case *c, bool has_micro)
{
    struct model_result expected;
    memset(&expected, 0, sizeof expected);
    model_train_alone(c, &expected);
    shoal_fsdp *fsdp = NULL;
    shoal_mesh *mesh = NULL;
    float momentum[MODEL_PARAMS][MODEL_ROOM];
    bool is_more = true;
    REQUIRE_OK(model_create(world, c, &mesh, &fsdp));
    REQUIRE_OK(model_add_params(fsdp));
    for (int n = 0; is_more && !test_has_failed(); n++) {
        float start[MODEL_ROOM];
        double norm;
        memset(momentum, 0, sizeof momentum);
        for (int id = 0; id < MODEL_PARAMS; id++) {
            model_start(id, start);
            CHECK_OK(shoal_fsdp_load(shoal_fsdp_param_of(fsdp, id), start));
        }
        if (has_micro) { /* an earlier backward pass left something */
            struct model_pass pass;
            CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), false));
            CHECK_OK(model_fsdp_pass(fsdp, &pass, 99, 0, 0));
        }
        CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), true));
        is_more = run_calls(fsdp, n, 1000.0F);
        CHECK_OK(shoal_fsdp_reset(fsdp));
        CHECK_OK(shoal_fsdp_zero_grad(fsdp)); /* of units that were reduced before it was given up */
        for (int step = 0; step < c->n_steps; step++) {
            CHECK_OK(model_fsdp_step(fsdp, c, shoal_world_rank(world), step, momentum, &norm));
        }
        struct model_result actual;
        CHECK_OK(model_gather(fsdp, &actual));
        char text[64];
        (void)snprintf(text, sizeof text, "given up after %d calls", n);
        model_check_equal(&actual, &expected, text);
    }
    shoal_fsdp_free(fsdp);
    shoal_mesh_free(mesh);
}

static void check_all_given_up(struct rank *self, enum model_mode mode)
{
    static const shoal_reshard reshards[] = {SHOAL_RESHARD_ALWAYS, SHOAL_RESHARD_NEVER, SHOAL_RESHARD_PARTLY};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    for (int k = 0; k < LENGTH(reshards) * 2; k++) {
        struct model_case c = {.mode = mode,
                               .n_ranks = self->n_ranks,
                               .n_replicas = 2,
                               .n_steps = 2,
                               .n_micro = 1 + k % 2,
                               .options = {.reshard = reshards[k / 2], .reshard_ranks = 1, .max_reduces = 2}};
        c.options.reshard_ranks = mode == MODEL_FSDP && self->n_ranks == 4 ? 2 : 1;
        check_given_up(world, &c, k % 2 == 1);
    }
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(a_step_may_be_given_up_alone, 1)
{
    check_all_given_up(self, MODEL_FSDP);
}

TEST_RANKS(a_step_may_be_given_up, 2)
{
    check_all_given_up(self, MODEL_FSDP);
}

TEST_RANKS(a_step_may_be_given_up_by_four, 4)
{
    check_all_given_up(self, MODEL_FSDP);
}

TEST_RANKS(a_step_may_be_given_up_by_replicas, 3)
{
    check_all_given_up(self, MODEL_DDP);
}

TEST_RANKS(a_step_may_be_given_up_by_both, 4)
{
    check_all_given_up(self, MODEL_HSDP);
}

/* Freed in the middle: works in flight are waited for. */
TEST_RANKS(a_step_may_end_with_free, 3)
{
    struct model_case c = {.mode = MODEL_FSDP, .n_ranks = self->n_ranks, .options = {.max_reduces = 2}};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    bool is_more = true;
    for (int n = 0; is_more && !test_has_failed(); n++) {
        shoal_fsdp *fsdp = NULL;
        shoal_mesh *mesh = NULL;
        REQUIRE_OK(model_create(world, &c, &mesh, &fsdp));
        CHECK_OK(model_add_params(fsdp));
        is_more = run_calls(fsdp, n, 1.0F);
        shoal_fsdp_free(fsdp);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Without memory ----------------------------------------------------------------------------------------------- */

struct scarce {
    shoal_world *world;
    struct model_case c;
};

static shoal_status train_scarcely(void *context)
{
    struct scarce *scarce = context;
    struct model_result result;
    return model_train(scarce->world, &scarce->c, &result);
}

static const struct model_case scarce_cases[] = {
    {.mode = MODEL_FSDP, .n_micro = 1},
    {.mode = MODEL_FSDP, .n_micro = 2, .max_norm = 1.0, .options = {.reduce_dtype = SHOAL_F64}},
    {.mode = MODEL_FSDP, .n_micro = 1, .options = {.reshard = SHOAL_RESHARD_NEVER, .max_reduces = 2}},
    {.mode = MODEL_DDP, .n_micro = 2, .reduces_always = true, .options = {.divide_factor = 2.0}},
};

TEST_RANKS(every_allocation_may_fail, 1)
{
    if (self->is_process) {
        return; /* once is enough */
    }
    struct scarce scarce = {.world = rank_world_open(self, 0)};
    REQUIRE(scarce.world != NULL);
    for (int k = 0; k < LENGTH(scarce_cases); k++) {
        scarce.c = scarce_cases[k];
        scarce.c.n_ranks = 1;
        scarce.c.n_steps = 2;
        CHECK(test_sweep_allocations(train_scarcely, &scarce) > 20);
    }
    CHECK_OK(shoal_world_close(scarce.world));
}

/* The k-th allocation of a step fails; a reset, and the step is made again. */
static void check_after_failures(shoal_world *world, const struct model_case *c)
{
    struct model_result expected;
    memset(&expected, 0, sizeof expected);
    model_train_alone(c, &expected);
    for (size_t k = 1; !test_has_failed(); k++) {
        float momentum[MODEL_PARAMS][MODEL_ROOM];
        struct model_result actual;
        shoal_fsdp *fsdp = NULL;
        shoal_mesh *mesh = NULL;
        memset(momentum, 0, sizeof momentum);
        REQUIRE_OK(model_create(world, c, &mesh, &fsdp));
        REQUIRE_OK(model_add_params(fsdp));
        struct model_pass pass;
        test_fail_allocation(k, false);
        shoal_status status = model_fsdp_pass(fsdp, &pass, 99, 0, 0);
        test_fail_allocation(0, false);
        if (status != SHOAL_OK) {
            CHECK_INT(status, SHOAL_ERR_NO_MEMORY);
        }
        CHECK_OK(shoal_fsdp_reset(fsdp));
        CHECK_OK(shoal_fsdp_zero_grad(fsdp));
        for (int step = 0; step < c->n_steps; step++) {
            CHECK_OK(model_fsdp_step(fsdp, c, 0, step, momentum, &actual.norms[step]));
        }
        CHECK_OK(model_gather(fsdp, &actual));
        model_check_equal(&actual, &expected, "after a failure");
        shoal_fsdp_free(fsdp);
        shoal_mesh_free(mesh);
        if (status == SHOAL_OK) {
            return;
        }
    }
}

TEST_RANKS(a_step_without_memory_can_be_made_again, 1)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    for (int k = 0; k < LENGTH(scarce_cases) - 1; k++) {
        struct model_case c = scarce_cases[k];
        if (c.options.reduce_dtype != 0) {
            continue; /* other bits than those of the oracle */
        }
        c.n_ranks = 1;
        c.n_steps = 2;
        c.n_micro = 1;
        check_after_failures(world, &c);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Many steps ----------------------------------------------------------------------------------------------- */

/* Frames that a message transport keeps for later (message/wire.c), at most. Fewer than the steps, of which none
   leaves one. */
#define SPARE_FRAMES 96

/* While no rank is ahead: messages of one that is are kept until they are needed. */
/* What is freed behind work of a device is freed by then. */
static size_t count_blocks(struct rank *self)
{
    CHECK_OK(shoal_device_synchronize(test_device()));
    test_barrier(self);
    size_t n_blocks = test_live_blocks();
    test_barrier(self);
    return n_blocks;
}

static void check_flat(struct rank *self, enum model_mode mode, int n_steps)
{
    struct model_case c = {.mode = mode, .n_ranks = self->n_ranks, .n_replicas = 2, .n_micro = 2};
    float momentum[MODEL_PARAMS][MODEL_ROOM];
    shoal_fsdp *fsdp = NULL;
    shoal_mesh *mesh = NULL;
    double norm;
    c.options = (shoal_fsdp_options){.reduce_dtype = SHOAL_F64, .max_reduces = 2};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(model_create(world, &c, &mesh, &fsdp));
    REQUIRE_OK(model_add_params(fsdp));
    memset(momentum, 0, sizeof momentum);
    c.max_norm = 1.0;
    size_t n_blocks = 0;
    size_t n_descriptors = 0;
    for (int step = 0; step < n_steps && !test_has_failed(); step++) {
        CHECK_OK(model_fsdp_step(fsdp, &c, self->rank, step, momentum, &norm));
        if (step == 5) {
            n_blocks = count_blocks(self);
            n_descriptors = test_open_descriptors();
        }
    }
    size_t n_left = count_blocks(self);
    if (self->is_process) { /* threads have one allocator together */
        if (rank_hears_by_messages()) {
            CHECK(n_left <= n_blocks + SPARE_FRAMES);
        } else {
            CHECK_INT(n_left, n_blocks);
        }
        CHECK_INT(test_open_descriptors(), n_descriptors);
    }
    shoal_fsdp_free(fsdp);
    shoal_mesh_free(mesh);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(a_thousand_steps_leave_nothing, 2)
{
    check_flat(self, MODEL_FSDP, 1000);
}

TEST_RANKS(many_steps_of_replicas_leave_nothing, 4)
{
    check_flat(self, MODEL_HSDP, 200);
}

/* Made and freed again and again in one world: its groups are found again. */
TEST_RANKS(a_hundred_models_leave_nothing, 2)
{
    struct model_case c = {.mode = MODEL_FSDP, .n_ranks = self->n_ranks, .n_micro = 1, .n_steps = 1};
    struct model_result result;
    size_t n_blocks = 0;
    size_t n_descriptors = 0;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    for (int k = 0; k < 100; k++) {
        CHECK_OK(model_train(world, &c, &result));
        if (k == 3) {
            n_blocks = count_blocks(self);
            n_descriptors = test_open_descriptors();
        }
    }
    size_t n_left = count_blocks(self);
    if (self->is_process) {
        if (rank_hears_by_messages()) {
            CHECK(n_left <= n_blocks + SPARE_FRAMES);
        } else {
            CHECK_INT(n_left, n_blocks);
        }
        CHECK_INT(test_open_descriptors(), n_descriptors);
    }
    CHECK_OK(shoal_world_close(world));
}
