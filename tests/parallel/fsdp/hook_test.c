/* SPDX-License-Identifier: MIT */
/*
 * The hook behind reductions, and units that had no backward pass. A model over shards alone whose hook adds up over
 * the replicas must train to the bits of one that has replicas.
 */
#include "fixtures/fsdp_on_device.h"

#include "fixtures/fsdp_model.h"
#include "fixtures/reduced.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* What a hook does, and what it has seen. */
struct hook {
    shoal_group *group; /* over which it adds up; NULL: it only looks */
    shoal_reduce_op reduce;
    bool starts;  /* and leaves the waiting to others */
    int fails_at; /* which call of this rank; 0: none */
    int n_calls;
    size_t count; /* of all calls */
    bool has_shards;
    bool has_replicas;
    shoal_dtype dtype;
    char units[256];
};

static shoal_status run_hook(void *context, const shoal_reduced_gradients *reduced, shoal_work **work_out)
{
    struct hook *hook = context;
    hook->n_calls++;
    hook->count += reduced->count;
    hook->has_shards = reduced->shards != NULL;
    hook->has_replicas = reduced->replicas != NULL;
    hook->dtype = reduced->dtype;
    size_t length = strlen(hook->units);
    (void)snprintf(hook->units + length, sizeof hook->units - length, "%s;", reduced->unit);
    CHECK(*work_out == NULL);
    bool fails = hook->n_calls == hook->fails_at;
    if (!hook->group) {
        return fails ? SHOAL_ERR_CANCELLED : SHOAL_OK;
    }
    shoal_status status =
        reduced_all_reduce(reduced, hook->group, hook->reduce, hook->starts ? work_out : NULL);
    return fails ? SHOAL_ERR_CANCELLED : status;
}

/* Two replicas of two shards, as groups. */
struct grid {
    shoal_group *shards;
    shoal_group *replicas;
};

static bool grid_open(struct grid *grid, shoal_world *world, int rank)
{
    const int row[] = {rank / 2 * 2, rank / 2 * 2 + 1};
    const int column[] = {rank % 2, rank % 2 + 2};
    return CHECK_OK(shoal_group_create(world, row, 2, "row", &grid->shards)) &&
           CHECK_OK(shoal_group_create(world, column, 2, "column", &grid->replicas));
}

static void grid_close(struct grid *grid)
{
}

/* As model_train, over the shards alone. */
static shoal_status train_hooked(const struct grid *grid, const struct model_case *c, int part,
                                 struct hook *hook, struct model_result *result)
{
    float momentum[MODEL_PARAMS][MODEL_ROOM];
    shoal_fsdp *fsdp = NULL;
    memset(momentum, 0, sizeof momentum);
    shoal_status status = shoal_fsdp_create(grid->shards, &c->options, &fsdp);
    status = status == SHOAL_OK ? model_add_params(fsdp) : status;
    status =
        status == SHOAL_OK
            ? shoal_fsdp_set_all_reduce_hook(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), run_hook, hook)
            : status;
    for (int step = 0; step < c->n_steps && status == SHOAL_OK; step++) {
        status = model_fsdp_step(fsdp, c, part, step, momentum, &result->norms[step]);
    }
    status = status == SHOAL_OK ? model_gather(fsdp, result) : status;
    shoal_fsdp_free(fsdp);
    return status;
}

static void check_like_replicas(shoal_world *world, const struct grid *grid, struct model_case c, bool starts)
{
    struct model_result expected;
    struct model_result actual;
    int rank = shoal_world_rank(world);
    bool is_f32 = c.options.reduce_dtype == 0 || c.options.reduce_dtype == SHOAL_F32;
    struct hook hook = {.group = grid->replicas, .reduce = SHOAL_AVG, .starts = starts};
    REQUIRE_OK(model_train(world, &c, &expected));
    if (!is_f32) { /* divided before and after, by parts of what all ranks are */
        hook.reduce = SHOAL_SUM;
        c.options.divide_factor = 4;
    }
    REQUIRE_OK(train_hooked(grid, &c, rank, &hook, &actual));
    model_check_equal(&actual, &expected, starts ? "a hook that starts" : "a hook that waits");
    int n_reductions = c.reduces_always ? c.n_micro : 1;
    CHECK_INT(hook.n_calls, c.n_steps * MODEL_UNITS * n_reductions);
    CHECK(hook.has_shards && !hook.has_replicas);
    CHECK_INT(hook.dtype, c.options.reduce_dtype == 0 ? SHOAL_F32 : c.options.reduce_dtype);
}

TEST_RANKS(adds_up_over_replicas, 4)
{
    static const shoal_dtype dtypes[] = {0, SHOAL_F64, SHOAL_BF16, SHOAL_F16};
    struct grid grid;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world && grid_open(&grid, world, self->rank));
    for (int k = 0; k < LENGTH(dtypes) * 4; k++) {
        struct model_case c = {.mode = MODEL_HSDP,
                               .n_ranks = 4,
                               .n_replicas = 2,
                               .n_steps = 3,
                               .n_micro = 2,
                               .reduces_always = k / 2 % 2 == 1,
                               .options = {.struct_size = sizeof c.options,
                                           .reduce_dtype = dtypes[k / 4],
                                           .max_reduces = 1 + k % 3}};
        check_like_replicas(world, &grid, c, k % 2 == 1);
    }
    grid_close(&grid);
    CHECK_OK(shoal_world_close(world));
}

/* What it sees --------------------------------------------------------------------------------------------- */

/* Everything is a whole number: what is between parameters shows up in the sum. */
static shoal_status sum_up(void *context, const shoal_reduced_gradients *reduced, shoal_work **work_out)
{
    double *sum = context;
    const shoal_reduced_gradients here = reduced_here(reduced);
    (void)work_out;
    for (size_t i = 0; i < here.count; i++) {
        *sum +=
            here.dtype == SHOAL_F64 ? ((const double *)here.data)[i] : (double)((const float *)here.data)[i];
    }
    return SHOAL_OK;
}

static void add_to_grads(shoal_fsdp *fsdp, int unit, float value)
{
    for (int id = 0; id < MODEL_PARAMS; id++) {
        float *grad = model_params[id].unit == unit ? shoal_fsdp_grad(fsdp, id) : NULL;
        for (size_t i = 0; grad && i < model_count(id); i++) {
            grad[i] += value;
        }
    }
}

/* All units, every gradient 1; a second time in memory that has been used. Each element is seen by so many ranks. */
static void check_between(struct rank *self, const struct model_case *c, int n_seen)
{
    shoal_world *world;
    shoal_mesh *mesh;
    shoal_fsdp *fsdp;
    REQUIRE(model_open(self, c, &world, &mesh, &fsdp));
    for (int step = 0; step < 4; step++) {
        double sum = 0.0;
        double total = 0.0;
        double n_elements = 0.0;
        CHECK_OK(shoal_fsdp_set_all_reduce_hook(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS),
                                                step == 0 ? NULL : sum_up, &sum));
        for (int unit = 0; unit < MODEL_UNITS; unit++) {
            REQUIRE_OK(shoal_fsdp_pre_forward(fsdp, unit));
            REQUIRE_OK(shoal_fsdp_post_forward(fsdp, unit));
        }
        for (int unit = MODEL_UNITS - 1; unit >= 0; unit--) {
            REQUIRE_OK(shoal_fsdp_pre_backward(fsdp, unit));
            add_to_grads(fsdp, unit, step == 0 ? 1e6F : 1.0F);
            REQUIRE_OK(shoal_fsdp_post_backward(fsdp, unit));
        }
        REQUIRE_OK(shoal_fsdp_end_backward(fsdp));
        for (int id = 0; id < MODEL_PARAMS; id++) {
            n_elements += (double)model_count(id) * c->n_ranks * n_seen;
        }
        REQUIRE_OK(shoal_group_all_reduce(shoal_world_group(world), &sum, &total, 1, SHOAL_F64, SHOAL_SUM));
        CHECK_DOUBLE(total, step == 0 ? 0.0 : n_elements);
        CHECK_OK(shoal_fsdp_zero_grad(fsdp));
    }
    model_close(world, mesh, fsdp);
}

/* Gradients that are written where they are reduced, and such that are put there. */
TEST_RANKS(zeros_are_between, 3)
{
    for (int k = 0; k < 4; k++) {
        bool is_replicated = k % 2 == 1;
        struct model_case c = {.mode = is_replicated ? MODEL_DDP : MODEL_FSDP,
                               .n_ranks = 3,
                               .options = {.struct_size = sizeof c.options,
                                           .divide_factor = 1,
                                           .reduce_dtype = k < 2 ? SHOAL_F32 : SHOAL_F64}};
        check_between(self, &c, is_replicated ? 3 : 1);
    }
}

/* Single parameters of what a hook gets: each is multiplied by a number of its own. */
struct walk {
    const char *names[MODEL_PARAMS];
    int n_parts;   /* that were visited */
    double beside; /* the sum of what is not in any part */
};

static double add_up(const shoal_reduced_gradients *reduced, const void *data, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        sum += reduced->dtype == SHOAL_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
    }
    return sum;
}

static void scale_part(const shoal_reduced_gradients *reduced, const shoal_reduced_part *part, int factor)
{
    for (size_t i = 0; i < part->count; i++) {
        if (reduced->dtype == SHOAL_F64) {
            ((double *)part->data)[i] *= factor;
        } else {
            ((float *)part->data)[i] *= (float)factor;
        }
    }
}

static shoal_status scale_parts(void *context, const shoal_reduced_gradients *reduced, shoal_work **work_out)
{
    struct walk *walk = context;
    const shoal_reduced_gradients here = reduced_here(reduced);
    const char *end = (char *)here.data + here.count * shoal_dtype_bytes(here.dtype);
    (void)work_out;
    walk->beside += add_up(&here, here.data, here.count);
    for (size_t i = 0; i < here.n_parts; i++) {
        shoal_reduced_part part = SHOAL_REDUCED_PART_INIT;
        CHECK_OK(shoal_reduced_gradients_part(&here, i, &part));
        CHECK((uintptr_t)part.data % 64 == 0);
        CHECK((char *)part.data >= (char *)here.data &&
              (char *)part.data + part.count * shoal_dtype_bytes(here.dtype) <= end);
        walk->beside -= add_up(&here, part.data, part.count);
        for (int id = 0; id < MODEL_PARAMS; id++) {
            if (strcmp(walk->names[id], part.name) == 0) {
                scale_part(&here, &part, id + 1);
                walk->n_parts++;
            }
        }
    }
    shoal_reduced_part none = SHOAL_REDUCED_PART_INIT;
    shoal_reduced_gradients empty = SHOAL_REDUCED_GRADIENTS_INIT;
    CHECK(shoal_reduced_gradients_part(reduced, reduced->n_parts, &none) == SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("reduced_gradients_part: index: 2 is not one of the 2 parts of unit");
    CHECK(shoal_reduced_gradients_part(reduced, 0, NULL) == SHOAL_ERR_INVALID);
    CHECK(shoal_reduced_gradients_part(NULL, 0, &none) == SHOAL_ERR_INVALID);
    CHECK(shoal_reduced_gradients_part(&empty, 0, &none) == SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("without a layout");
    return SHOAL_OK;
}

static void check_walk(struct rank *self, const struct model_case *c)
{
    shoal_world *world;
    shoal_mesh *mesh;
    shoal_fsdp *fsdp;
    struct walk walk = {0};
    REQUIRE(model_open(self, c, &world, &mesh, &fsdp));
    for (int id = 0; id < MODEL_PARAMS; id++) {
        walk.names[id] = shoal_fsdp_param_name(shoal_fsdp_param_of(fsdp, id));
    }
    CHECK_OK(
        shoal_fsdp_set_all_reduce_hook(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), scale_parts, &walk));
    for (int unit = 0; unit < MODEL_UNITS; unit++) {
        REQUIRE_OK(shoal_fsdp_pre_forward(fsdp, unit));
        REQUIRE_OK(shoal_fsdp_post_forward(fsdp, unit));
    }
    for (int unit = MODEL_UNITS - 1; unit >= 0; unit--) {
        REQUIRE_OK(shoal_fsdp_pre_backward(fsdp, unit));
        add_to_grads(fsdp, unit, 1.0F);
        REQUIRE_OK(shoal_fsdp_post_backward(fsdp, unit));
    }
    REQUIRE_OK(shoal_fsdp_end_backward(fsdp));
    CHECK_INT(walk.n_parts, MODEL_PARAMS);
    CHECK_DOUBLE(walk.beside, 0.0);
    for (int id = 0; id < MODEL_PARAMS; id++) {
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        REQUIRE_OK(shoal_fsdp_read_shard(fsdp, id, &shard));
        for (size_t i = 0; i < shard.count; i++) {
            CHECK_DOUBLE((double)((const float *)shard.grad)[i], (double)(c->n_ranks * (id + 1)));
        }
    }
    model_close(world, mesh, fsdp);
}

TEST_RANKS(walks_its_parts, 3)
{
    for (int k = 0; k < 4; k++) {
        struct model_case c = {.mode = k % 2 == 1 ? MODEL_DDP : MODEL_FSDP,
                               .n_ranks = 3,
                               .options = {.struct_size = sizeof c.options,
                                           .divide_factor = 1,
                                           .reduce_dtype = k < 2 ? SHOAL_F32 : SHOAL_F64}};
        check_walk(self, &c);
    }
}

/* Only where gradients go to the shards, and in the order of the reductions. */
static void check_calls(struct rank *self, enum model_mode mode, bool has_shards, bool has_replicas)
{
    shoal_world *world;
    shoal_mesh *mesh;
    shoal_fsdp *fsdp;
    struct model_pass pass;
    struct hook hook = {0};
    struct model_case c = {.mode = mode, .n_ranks = self->n_ranks, .n_replicas = 2};
    REQUIRE(model_open(self, &c, &world, &mesh, &fsdp));
    CHECK_OK(shoal_fsdp_set_unit_name(shoal_fsdp_unit_of(fsdp, 1), "the second"));
    CHECK_OK(shoal_fsdp_set_all_reduce_hook(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), run_hook, &hook));
    CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), false));
    CHECK_OK(model_fsdp_pass(fsdp, &pass, 0, self->rank, 0));
    CHECK_INT(hook.n_calls, 0);
    CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), true));
    CHECK_OK(shoal_fsdp_set_all_reduce(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), false));
    CHECK_OK(model_fsdp_pass(fsdp, &pass, 0, self->rank, 1));
    CHECK_INT(hook.n_calls, has_replicas ? 0 : MODEL_UNITS);
    CHECK_OK(shoal_fsdp_set_all_reduce(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), true));
    hook = (struct hook){0};
    CHECK_OK(model_fsdp_pass(fsdp, &pass, 0, self->rank, 2));
    CHECK_STRING(hook.units, "unit 3;unit 2;the second;unit 0;");
    CHECK_INT(hook.has_shards, has_shards);
    CHECK_INT(hook.has_replicas, has_replicas);
    CHECK_OK(shoal_fsdp_set_all_reduce_hook(shoal_fsdp_unit_of(fsdp, 1), NULL, NULL));
    CHECK_OK(model_fsdp_pass(fsdp, &pass, 1, self->rank, 0));
    CHECK_INT(hook.n_calls, 2 * MODEL_UNITS - 1);
    model_close(world, mesh, fsdp);
}

TEST_RANKS(calls_with_shards, 2)
{
    check_calls(self, MODEL_FSDP, true, false);
}

TEST_RANKS(calls_alone, 1)
{
    check_calls(self, MODEL_FSDP, false, false);
}

TEST_RANKS(calls_with_both, 4)
{
    check_calls(self, MODEL_HSDP, true, true);
}

TEST_RANKS(calls_with_replicas, 2)
{
    check_calls(self, MODEL_DDP, false, true);
}

/* Refused and failing -------------------------------------------------------------------------------------- */

TEST_RANKS(refused, 2)
{
    shoal_world *world;
    shoal_mesh *mesh;
    shoal_fsdp *fsdp;
    struct model_case c = {.mode = MODEL_FSDP, .n_ranks = 2};
    REQUIRE(model_open(self, &c, &world, &mesh, &fsdp));
    CHECK_STATUS(shoal_fsdp_set_all_reduce_hook(shoal_fsdp_unit_of(NULL, 0), NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_set_all_reduce_hook(shoal_fsdp_unit_of(fsdp, 4), NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("set_all_reduce_hook: there is no unit 4: there are 4");
    CHECK_STATUS(shoal_fsdp_set_all_reduce_hook(shoal_fsdp_unit_of(fsdp, -2), NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_set_reduce_unused(shoal_fsdp_unit_of(fsdp, 4), true), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("set_reduce_unused: there is no unit 4");
    CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
    CHECK_STATUS(shoal_fsdp_set_all_reduce_hook(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), NULL, NULL),
                 SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("set_all_reduce_hook: unit 0 is in the middle of a step");
    CHECK_OK(shoal_fsdp_set_all_reduce_hook(shoal_fsdp_unit_of(fsdp, 1), NULL, NULL));
    CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
    CHECK_OK(shoal_fsdp_reset(fsdp));
    model_close(world, mesh, fsdp);
}

/* At any unit; afterwards a reset, and steps have the bits of a model that nothing happened to. */
static void check_failing(struct rank *self, enum model_mode mode)
{
    shoal_world *world;
    shoal_mesh *mesh;
    shoal_fsdp *fsdp;
    struct model_case c = {
        .mode = mode, .n_ranks = self->n_ranks, .n_replicas = 2, .n_steps = 2, .n_micro = 1};
    struct model_result expected;
    memset(&expected, 0, sizeof expected);
    model_train_alone(&c, &expected);
    REQUIRE(model_open(self, &c, &world, &mesh, &fsdp));
    shoal_group *world_group = shoal_world_group(world);
    for (int k = 0; k < 2 * MODEL_UNITS && !test_has_failed(); k++) {
        int fails_at = 1 + k / 2;
        float momentum[MODEL_PARAMS][MODEL_ROOM];
        struct model_result actual;
        struct model_pass pass;
        /* Every other time it leaves a work behind. */
        struct hook hook = {.fails_at = fails_at, .starts = true, .group = k % 2 == 1 ? world_group : NULL};
        double norm;
        memset(momentum, 0, sizeof momentum);
        CHECK_OK(
            shoal_fsdp_set_all_reduce_hook(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), run_hook, &hook));
        CHECK_STATUS(model_fsdp_pass(fsdp, &pass, 7, self->rank, 0), SHOAL_ERR_CANCELLED);
        CHECK_ERROR_TEXT("its all-reduce hook");
        CHECK_INT(hook.n_calls, fails_at);
        CHECK_OK(shoal_fsdp_reset(fsdp));
        CHECK_OK(shoal_fsdp_set_all_reduce_hook(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), NULL, NULL));
        CHECK_OK(shoal_fsdp_zero_grad(fsdp));
        for (int id = 0; id < MODEL_PARAMS; id++) {
            float start[MODEL_ROOM];
            model_start(id, start);
            CHECK_OK(shoal_fsdp_load(shoal_fsdp_param_of(fsdp, id), start));
        }
        for (int step = 0; step < c.n_steps; step++) {
            CHECK_OK(model_fsdp_step(fsdp, &c, self->rank, step, momentum, &norm));
        }
        CHECK_OK(model_gather(fsdp, &actual));
        model_check_equal(&actual, &expected, "after a hook that failed");
    }
    model_close(world, mesh, fsdp);
}

TEST_RANKS(failing_over_shards, 3)
{
    check_failing(self, MODEL_FSDP);
}

TEST_RANKS(failing_over_both, 4)
{
    check_failing(self, MODEL_HSDP);
}

/* Units without a backward pass ---------------------------------------------------------------------------- */

/* Rank r walks back through all but the first r units. */
static void check_unused(struct rank *self, enum model_mode mode)
{
    shoal_world *world;
    shoal_mesh *mesh;
    shoal_fsdp *fsdp;
    struct model_case c = {.mode = mode,
                           .n_ranks = self->n_ranks,
                           .n_replicas = 2,
                           .options = {.reshard = SHOAL_RESHARD_NEVER, .forward_prefetch = -1}};
    REQUIRE(model_open(self, &c, &world, &mesh, &fsdp));
    CHECK_OK(shoal_fsdp_set_reduce_unused(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), true));
    for (int step = 0; step < 3 && !test_has_failed(); step++) {
        for (int unit = 0; unit < MODEL_UNITS; unit++) {
            REQUIRE_OK(shoal_fsdp_pre_forward(fsdp, unit));
            REQUIRE_OK(shoal_fsdp_post_forward(fsdp, unit));
        }
        for (int unit = MODEL_UNITS - 1; unit >= self->rank; unit--) {
            REQUIRE_OK(shoal_fsdp_pre_backward(fsdp, unit));
            for (int id = 0; id < MODEL_PARAMS; id++) {
                float *grad = model_params[id].unit == unit ? shoal_fsdp_grad(fsdp, id) : NULL;
                for (size_t i = 0; grad && i < model_count(id); i++) {
                    grad[i] += (float)(60 * (self->rank + 1) + step);
                }
            }
            REQUIRE_OK(shoal_fsdp_post_backward(fsdp, unit));
        }
        REQUIRE_OK(shoal_fsdp_end_backward(fsdp));
        for (int id = 0; id < MODEL_PARAMS; id++) {
            shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
            float wanted = 0.0F;
            for (int rank = 0; rank < self->n_ranks && rank <= model_params[id].unit; rank++) {
                wanted += (float)(60 * (rank + 1) + step);
            }
            REQUIRE_OK(shoal_fsdp_update_shard(fsdp, id, &shard));
            REQUIRE(shard.grad != NULL);
            for (size_t i = 0; i < shard.count; i++) {
                float got = ((const float *)shard.grad)[i];
                CHECK(fabsf(got - wanted / (float)self->n_ranks) <= 1e-4F);
            }
        }
        CHECK_OK(shoal_fsdp_zero_grad(fsdp));
    }
    /* Without synchronization nothing is made up. */
    CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), false));
    CHECK_OK(shoal_fsdp_end_backward(fsdp));
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    CHECK_OK(shoal_fsdp_update_shard(fsdp, 0, &shard));
    CHECK(shard.grad == NULL);
    model_close(world, mesh, fsdp);
}

TEST_RANKS(unused_over_shards, 3)
{
    check_unused(self, MODEL_FSDP);
}

TEST_RANKS(unused_over_both, 4)
{
    check_unused(self, MODEL_HSDP);
}

TEST_RANKS(unused_over_replicas, 2)
{
    check_unused(self, MODEL_DDP);
}

/* An end without a backward pass makes up nothing. */
TEST_RANKS(unused_is_off_at_first, 2)
{
    shoal_world *world;
    shoal_mesh *mesh;
    shoal_fsdp *fsdp;
    struct model_case c = {.mode = MODEL_FSDP, .n_ranks = 2};
    REQUIRE(model_open(self, &c, &world, &mesh, &fsdp));
    struct model_pass pass;
    CHECK_OK(model_fsdp_pass(fsdp, &pass, 0, self->rank, 0));
    CHECK_OK(shoal_fsdp_zero_grad(fsdp));
    CHECK_OK(shoal_fsdp_end_backward(fsdp));
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    CHECK_OK(shoal_fsdp_update_shard(fsdp, 0, &shard));
    CHECK(shard.grad == NULL);
    model_close(world, mesh, fsdp);
}
