/* SPDX-License-Identifier: MIT */
/*
 * Ranks that do not do the same: every one of them gets an error that names a unit, well before the deadline, and none
 * hangs or goes on with other numbers. Rank 1 is the one that differs.
 */
#include "base/clock.h"
#include "fixtures/fsdp_model.h"

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__})

enum {
    N_UNITS = 3
};

struct way {
    /* How units are made: which shape unit `unit` has on a rank. */
    shoal_status (*add)(shoal_fsdp *fsdp, int unit, bool differs);
    /* The units of a forward, -1 at the end. */
    int order[N_UNITS + 1];
    int other_order[N_UNITS + 1]; /* of rank 1; all zeros: the same */
    shoal_fsdp_options other_options;
    bool freezes; /* rank 1, its second parameter */
};

static shoal_status add_same(shoal_fsdp *fsdp, int unit, bool differs)
{
    (void)differs;
    return shoal_fsdp_add_param(fsdp, unit, "w", SHOAL_F32, 1, SHAPE(6), NULL, NULL);
}

/* Unit 0 is the largest: its size is that of all windows. */
static shoal_status add_smaller(shoal_fsdp *fsdp, int unit, bool differs)
{
    int64_t size = unit == 0 ? 64 : differs && unit == 1 ? 10 : 12;
    return shoal_fsdp_add_param(fsdp, unit, "w", SHOAL_F32, 1, SHAPE(size), NULL, NULL);
}

static shoal_status add_larger(shoal_fsdp *fsdp, int unit, bool differs)
{
    return shoal_fsdp_add_param(fsdp, unit, "w", SHOAL_F32, 1, SHAPE(differs && unit == 1 ? 8000 : 6), NULL,
                                NULL);
}

static shoal_status add_turned(shoal_fsdp *fsdp, int unit, bool differs)
{
    bool is_turned = differs && unit == 1;
    return shoal_fsdp_add_param(fsdp, unit, "w", SHOAL_F32, 2, is_turned ? SHAPE(4, 6) : SHAPE(6, 4), NULL,
                                NULL);
}

static shoal_status add_other_dtype(shoal_fsdp *fsdp, int unit, bool differs)
{
    bool is_wide = differs && unit == 1;
    return shoal_fsdp_add_param(fsdp, unit, "w", is_wide ? SHOAL_F64 : SHOAL_F32, 1,
                                is_wide ? SHAPE(8) : SHAPE(16), NULL, NULL);
}

static shoal_status add_other_dim(shoal_fsdp *fsdp, int unit, bool differs)
{
    return shoal_fsdp_add_param_along(fsdp, unit, "w", SHOAL_F32, 2, SHAPE(6, 6), differs && unit == 1, NULL,
                                      NULL);
}

static shoal_status add_more(shoal_fsdp *fsdp, int unit, bool differs)
{
    MODEL_TRY(add_same(fsdp, unit, differs));
    return differs && unit == 1 ? add_same(fsdp, unit, differs) : SHOAL_OK;
}

static shoal_status add_fewer_units(shoal_fsdp *fsdp, int unit, bool differs)
{
    return differs && unit == 2 ? SHOAL_OK : add_same(fsdp, unit, differs);
}

/* A rank that goes another way --------------------------------------------------------------------------- */

static shoal_status run_step(shoal_fsdp *fsdp, const int *order, int rank)
{
    int n = 0;
    for (; order[n] >= 0; n++) {
        MODEL_TRY(shoal_fsdp_pre_forward(fsdp, order[n]));
        MODEL_TRY(shoal_fsdp_post_forward(fsdp, order[n]));
    }
    while (n-- > 0) {
        MODEL_TRY(shoal_fsdp_pre_backward(fsdp, order[n]));
        float *grad = shoal_fsdp_grad(fsdp, order[n]);
        if (grad) {
            grad[0] += (float)rank;
        }
        MODEL_TRY(shoal_fsdp_post_backward(fsdp, order[n]));
    }
    return shoal_fsdp_end_backward(fsdp);
}

static shoal_status run(shoal_fsdp *fsdp, const struct way *way, int rank)
{
    bool differs = rank == 1;
    bool has_other = way->other_order[0] != 0 || way->other_order[1] != 0;
    for (int unit = 0; unit < N_UNITS; unit++) {
        char name[16];
        (void)snprintf(name, sizeof name, "layer %d", unit);
        MODEL_TRY(way->add(fsdp, unit, differs));
        if (unit < 2 || way->add != add_fewer_units || !differs) {
            MODEL_TRY(shoal_fsdp_set_unit_name(shoal_fsdp_unit_of(fsdp, unit), name));
        }
    }
    if (way->freezes && differs) {
        MODEL_TRY(shoal_fsdp_set_requires_grad(fsdp, 1, false));
    }
    for (int step = 0; step < 2; step++) {
        MODEL_TRY(run_step(fsdp, differs && has_other ? way->other_order : way->order, rank));
    }
    return SHOAL_OK;
}

static void check_way(struct rank *self, const struct way *way, const char *words)
{
    shoal_fsdp *fsdp = NULL;
    shoal_fsdp_options options = self->rank == 1 ? way->other_options : (shoal_fsdp_options){0};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    options.struct_size = sizeof options;
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp));
    int64_t begin_ns = clock_now_ns();
    shoal_status status = run(fsdp, way, self->rank);
    CHECK(status == SHOAL_ERR_MISMATCH || status == SHOAL_ERR_INVALID || status == SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT(words);
    CHECK((double)(clock_now_ns() - begin_ns) * 1e-9 < 10 * test_time_scale()); /* the deadline is 20 */
    shoal_fsdp_free(fsdp);
    (void)shoal_world_close(world); /* of a group that has failed */
}

TEST_RANKS(another_order, 3)
{
    check_way(self, &(struct way){.add = add_same, .order = {0, 1, 2, -1}, .other_order = {1, 0, 2, -1}},
              "layer");
}

TEST_RANKS(another_order_later, 2)
{
    check_way(self, &(struct way){.add = add_same, .order = {0, 1, 2, -1}, .other_order = {0, 2, 1, -1}},
              "layer");
}

TEST_RANKS(a_unit_is_left_out, 3)
{
    check_way(self, &(struct way){.add = add_same, .order = {0, 1, 2, -1}, .other_order = {0, 2, -1, 0}},
              "layer");
}

TEST_RANKS(a_smaller_parameter, 3)
{
    check_way(self, &(struct way){.add = add_smaller, .order = {0, 1, 2, -1}}, "layer 1");
}

TEST_RANKS(a_larger_parameter, 3)
{
    check_way(self, &(struct way){.add = add_larger, .order = {0, 1, 2, -1}}, "layer 1");
}

TEST_RANKS(a_shape_the_other_way_round, 2)
{
    check_way(self, &(struct way){.add = add_turned, .order = {0, 1, 2, -1}}, "layer 1");
}

TEST_RANKS(another_dtype_of_the_same_size, 2)
{
    check_way(self, &(struct way){.add = add_other_dtype, .order = {0, 1, 2, -1}}, "layer 1");
}

TEST_RANKS(another_dimension, 3)
{
    check_way(self, &(struct way){.add = add_other_dim, .order = {0, 1, 2, -1}}, "layer 1");
}

TEST_RANKS(one_more_parameter, 2)
{
    check_way(self, &(struct way){.add = add_more, .order = {0, 1, 2, -1}}, "layer 1");
}

TEST_RANKS(one_unit_less, 2)
{
    check_way(self,
              &(struct way){.add = add_fewer_units, .order = {0, 1, 2, -1}, .other_order = {0, 1, -1, 0}},
              "units");
}

TEST_RANKS(frozen_on_one_rank, 3)
{
    check_way(self, &(struct way){.add = add_same, .order = {0, 1, 2, -1}, .freezes = true}, "layer 1");
}

TEST_RANKS(cast_on_one_rank, 2)
{
    check_way(
        self,
        &(struct way){.add = add_same, .order = {0, 1, 2, -1}, .other_options = {.param_dtype = SHOAL_BF16}},
        "layer 0");
}

TEST_RANKS(kept_on_one_rank, 2)
{
    check_way(self,
              &(struct way){
                  .add = add_same, .order = {0, 1, 2, -1}, .other_options = {.reshard = SHOAL_RESHARD_NEVER}},
              "layer 0");
}

TEST_RANKS(divided_by_another_number_on_one_rank, 2)
{
    check_way(self,
              &(struct way){.add = add_same, .order = {0, 1, 2, -1}, .other_options = {.divide_factor = 3.0}},
              "layer 0");
}

TEST_RANKS(another_prefetch_on_one_rank, 2)
{
    check_way(
        self,
        &(struct way){.add = add_same, .order = {0, 1, 2, -1}, .other_options = {.forward_prefetch = 2}},
        "ahead");
}

/* Replicas ------------------------------------------------------------------------------------------------- */

TEST_RANKS(replicas_that_differ, 2)
{
    shoal_fsdp *fsdp = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_fsdp_create_replicated(shoal_world_group(world), NULL, &fsdp));
    struct way way = {.add = add_turned, .order = {0, 1, 2, -1}};
    CHECK_STATUS(run(fsdp, &way, self->rank), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("layer 1");
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(replicas_of_shards_that_differ, 4)
{
    struct model_case c = {.mode = MODEL_HSDP, .n_ranks = 4, .n_replicas = 2};
    shoal_fsdp *fsdp = NULL;
    shoal_mesh *mesh = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(model_create(world, &c, &mesh, &fsdp));
    struct way way = {.add = add_turned, .order = {0, 1, 2, -1}};
    shoal_status status = run(fsdp, &way, self->rank >= 2 ? 1 : 0); /* the second replica differs */
    CHECK_INT(status, SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("layer 1");
    shoal_fsdp_free(fsdp);
    shoal_mesh_free(mesh);
    (void)shoal_world_close(world);
}

/* Rank 1 differs from the ranks it shares shards with, but those of the other replica hear of it from theirs. */
static shoal_status add_one_turned(shoal_fsdp *fsdp, int rank)
{
    return shoal_fsdp_add_param(fsdp, 0, "weight", SHOAL_F32, 2, rank == 1 ? SHAPE(4, 6) : SHAPE(6, 4), NULL,
                                NULL);
}

TEST_RANKS(one_rank_of_a_replica_differs, 4)
{
    struct model_case c = {.mode = MODEL_HSDP, .n_ranks = 4, .n_replicas = 2};
    shoal_fsdp *fsdp = NULL;
    shoal_mesh *mesh = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(model_create(world, &c, &mesh, &fsdp));
    CHECK_OK(add_one_turned(fsdp, self->rank));
    CHECK_OK(shoal_fsdp_set_unit_name(shoal_fsdp_unit_of(fsdp, 0), "layer 0"));
    int64_t begin_ns = clock_now_ns();
    CHECK_STATUS(shoal_fsdp_pre_forward(fsdp, 0), SHOAL_ERR_MISMATCH);
    CHECK((double)(clock_now_ns() - begin_ns) * 1e-9 < 10 * test_time_scale());
    CHECK_ERROR_TEXT("layer 0: parameter here: weight f32 [");
    CHECK_ERROR_TEXT(self->rank == 0 ? "on rank 1: weight f32 [4,6]" : "[6,4]");
    CHECK_ERROR_TEXT(self->rank == 2 ? "another replica, on rank 0" : "[4,6]");
    shoal_fsdp_free(fsdp);
    shoal_mesh_free(mesh);
    CHECK_OK(shoal_world_close(world));
}

/* What the error says -------------------------------------------------------------------------------------- */

TEST_RANKS(both_values_are_named, 2)
{
    struct {
        struct way way;
        const char *words[2];
    } cases[] = {
        {{.add = add_turned}, {"layer 1: parameter here: w f32 [6,4]", "on rank 1: w f32 [4,6]"}},
        {{.add = add_other_dtype}, {"layer 1: parameter here: w f32 [16]", "on rank 1: w f64 [8]"}},
        {{.add = add_other_dim}, {"[6,6] sharded along 0", "[6,6] sharded along 1"}},
        {{.add = add_same, .freezes = true}, {"with gradients", "without gradients"}},
        {{.add = add_more}, {"layer 1: 1 parameters here", "2 on rank 1"}},
        {{.add = add_fewer_units, .other_order = {0, 1, -1, 0}}, {"3 units here", "on rank 1: 2 units"}},
        {{.add = add_same, .other_options = {.forward_prefetch = 2}}, {"gathered 1 ahead", "2 ahead"}},
        {{.add = add_same, .other_options = {.reshard = SHOAL_RESHARD_NEVER}},
         {"layer 0: options here: reshard default;", "on rank 1: reshard never"}},
        {{.add = add_same, .other_options = {.reshard = SHOAL_RESHARD_PARTLY, .reshard_ranks = 1}},
         {"layer 0: options here: reshard default;", "on rank 1: reshard partly over 1 ranks"}},
        {{.add = add_same, .other_options = {.reshard_ranks = 2}},
         {"options here: reshard default;", "on rank 1: reshard default with reshard_ranks 2"}},
        {{.add = add_same, .other_options = {.param_dtype = SHOAL_BF16}},
         {"options here: param_dtype as stored;", "on rank 1: param_dtype bf16"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        shoal_fsdp *fsdp = NULL;
        struct way way = cases[i].way;
        shoal_fsdp_options options = self->rank == 1 ? way.other_options : (shoal_fsdp_options){0};
        shoal_world *world = rank_world_open(self, (int)i);
        REQUIRE(world != NULL);
        options.struct_size = sizeof options;
        memcpy(way.order, (const int[]){0, 1, 2, -1}, sizeof way.order);
        REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp));
        CHECK_STATUS(run(fsdp, &way, self->rank), SHOAL_ERR_MISMATCH);
        if (self->rank == 0) {
            CHECK_ERROR_TEXT(cases[i].words[0]);
            CHECK_ERROR_TEXT(cases[i].words[1]);
            CHECK(strstr(shoal_error_text(), "over 0 ranks") == NULL);
        }
        shoal_fsdp_free(fsdp);
        CHECK_OK(shoal_world_close(world));
    }
}

/* Not all reduce --------------------------------------------------------------------------------------------- */

/* Rank 1 goes without reducing. With `reshard` never there is no gather that would tell. */
static void check_without_sync(struct rank *self, shoal_reshard reshard)
{
    shoal_fsdp *fsdp = NULL;
    shoal_fsdp_options options = {.struct_size = sizeof options, .reshard = reshard};
    shoal_world *world = rank_world_open(self, (int)reshard);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp));
    CHECK_OK(add_same(fsdp, 0, false));
    CHECK_OK(shoal_fsdp_set_unit_name(shoal_fsdp_unit_of(fsdp, 0), "layer 0"));
    CHECK_OK(run_step(fsdp, (const int[]){0, -1}, self->rank));
    CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), self->rank == 0));
    CHECK_STATUS(run_step(fsdp, (const int[]){0, -1}, self->rank), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("backward pass of the context");
    CHECK_ERROR_TEXT("which reduces no gradients (set_sync)");
    CHECK_ERROR_TEXT("; all ranks run the same passes with the same settings");
    test_barrier(self);
    shoal_fsdp_free(fsdp);
    (void)shoal_world_close(world);
}

TEST_RANKS(a_rank_that_does_not_reduce, 2)
{
    check_without_sync(self, SHOAL_RESHARD_ALWAYS);
    check_without_sync(self, SHOAL_RESHARD_NEVER);
}

/* Nobody reduces: nothing differs. */
TEST_RANKS(no_rank_reduces, 2)
{
    shoal_fsdp *fsdp = NULL;
    shoal_fsdp_options options = {.struct_size = sizeof options, .reshard = SHOAL_RESHARD_NEVER};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp));
    CHECK_OK(add_same(fsdp, 0, false));
    for (int step = 0; step < 4; step++) {
        CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), step % 2 == 1));
        CHECK_OK(run_step(fsdp, (const int[]){0, -1}, self->rank));
    }
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}

/* Functions that fail -------------------------------------------------------------------------------------- */

struct failing {
    int rank;      /* the caller's */
    bool has_hook; /* otherwise a custom gather, or reduction */
    bool has_accumulated_hook;
    bool has_gather;
};

static shoal_status fail_on_rank_one(const struct failing *failing)
{
    return failing->rank == 1 ? SHOAL_ERR_UNSUPPORTED : SHOAL_OK;
}

static shoal_status hook_that_fails(void *context, const shoal_reduced_gradients *reduced,
                                    shoal_work **work_out)
{
    (void)reduced;
    (void)work_out;
    return fail_on_rank_one(context);
}

static shoal_status landed_that_fails(void *context, int id, shoal_fsdp_shard *shard)
{
    (void)id;
    (void)shard;
    return fail_on_rank_one(context);
}

static shoal_status gather_that_fails(void *context, void *recv, const void *send, size_t count,
                                      shoal_dtype dtype, shoal_group *group, shoal_work **work_out)
{
    shoal_status status = fail_on_rank_one(context);
    return status == SHOAL_OK ? shoal_group_all_gather_start(group, send, recv, count, dtype, work_out)
                              : status;
}

static shoal_status scatter_that_fails(void *context, void *recv, const void *send, size_t count,
                                       shoal_dtype dtype, shoal_reduce_op reduce, double factor,
                                       shoal_group *group, shoal_work **work_out)
{
    (void)factor;
    shoal_status status = fail_on_rank_one(context);
    return status == SHOAL_OK
               ? shoal_group_reduce_scatter_start(group, send, recv, count, dtype, reduce, work_out)
               : status;
}

static shoal_status set_failing(shoal_fsdp *fsdp, struct failing *failing)
{
    if (failing->has_hook) {
        return shoal_fsdp_set_all_reduce_hook(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), hook_that_fails,
                                              failing);
    }
    if (failing->has_accumulated_hook) {
        return shoal_fsdp_set_accumulated_hook(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS),
                                               landed_that_fails, failing);
    }
    if (failing->has_gather) {
        const shoal_custom_all_gather gather = {
            .struct_size = sizeof gather, .call = gather_that_fails, .context = failing};
        return shoal_fsdp_set_custom_all_gather(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), &gather);
    }
    const shoal_custom_reduce_scatter scatter = {
        .struct_size = sizeof scatter, .call = scatter_that_fails, .context = failing};
    return shoal_fsdp_set_custom_reduce_scatter(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), &scatter);
}

/* The function of rank 1 fails, those of the others do not: they are told, and need no deadline for it. */
static void check_function(struct rank *self, int round, struct failing failing, const char *words)
{
    shoal_fsdp *fsdp = NULL;
    shoal_fsdp_options options = {.struct_size = sizeof options, .reshard = SHOAL_RESHARD_NEVER};
    shoal_world *world = rank_world_open(self, round);
    REQUIRE(world != NULL);
    failing.rank = self->rank;
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp));
    CHECK_OK(add_same(fsdp, 0, false));
    CHECK_OK(shoal_fsdp_set_unit_name(shoal_fsdp_unit_of(fsdp, 0), "layer 0"));
    CHECK_OK(set_failing(fsdp, &failing));
    shoal_status status = run_step(fsdp, (const int[]){0, -1}, self->rank);
    CHECK_INT(status, self->rank == 1 ? SHOAL_ERR_UNSUPPORTED : SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT(words);
    if (self->rank == 0) {
        CHECK_ERROR_TEXT("rank 1 called the failure of a function of the program, layer 0");
    }
    test_barrier(self);
    shoal_fsdp_free(fsdp);
    (void)shoal_world_close(world);
}

TEST_RANKS(a_function_fails_on_one_rank, 3)
{
    check_function(self, 0, (struct failing){.has_hook = true}, "its all-reduce hook");
    check_function(self, 1, (struct failing){.has_accumulated_hook = true}, "the hook for the gradient of w");
    check_function(self, 2, (struct failing){.has_gather = true}, "a custom all-gather");
    check_function(self, 3, (struct failing){0}, "a custom reduce-scatter");
}

/* Without gathers in backward only reductions can tell, and those of units of one shape differ in their purpose alone. */
TEST_RANKS(another_order_of_backwards, 2)
{
    shoal_fsdp *fsdp = NULL;
    shoal_fsdp_options options = {.struct_size = sizeof options, .reshard = SHOAL_RESHARD_NEVER};
    shoal_status status = SHOAL_OK;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp));
    for (int unit = 0; unit < 2; unit++) {
        CHECK_OK(add_same(fsdp, unit, false));
    }
    for (int unit = 0; unit < 2; unit++) {
        CHECK_OK(shoal_fsdp_pre_forward(fsdp, unit));
        CHECK_OK(shoal_fsdp_post_forward(fsdp, unit));
    }
    for (int k = 0; k < 2 && status == SHOAL_OK; k++) {
        int unit = self->rank == 0 ? 1 - k : k;
        status = shoal_fsdp_pre_backward(fsdp, unit);
        status = status == SHOAL_OK ? shoal_fsdp_post_backward(fsdp, unit) : status;
    }
    status = status == SHOAL_OK ? shoal_fsdp_end_backward(fsdp) : status;
    CHECK_INT(status, SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("of unit 0");
    CHECK_ERROR_TEXT("of unit 1");
    shoal_fsdp_free(fsdp);
    (void)shoal_world_close(world);
}

/* Differences that each rank would see on a lane where the others are not. */
struct lopsided {
    shoal_reshard reshard;
    int n_forwards[2]; /* of rank 0, of the others */
    int n_backwards[2];
    const char *words[2];
};

static shoal_status run_lopsided(shoal_fsdp *fsdp, const struct lopsided *way, bool differs)
{
    for (int step = 0; step < 3; step++) {
        int n = way->n_forwards[differs];
        for (int unit = 0; unit < n; unit++) {
            MODEL_TRY(shoal_fsdp_pre_forward(fsdp, unit));
            MODEL_TRY(shoal_fsdp_post_forward(fsdp, unit));
        }
        int last = n - way->n_backwards[differs];
        for (int unit = n - 1; unit >= last; unit--) {
            MODEL_TRY(shoal_fsdp_pre_backward(fsdp, unit));
            MODEL_TRY(shoal_fsdp_post_backward(fsdp, unit));
        }
        MODEL_TRY(shoal_fsdp_end_backward(fsdp));
    }
    return SHOAL_OK;
}

static void check_lopsided(struct rank *self, const struct lopsided *way, shoal_world *world,
                           shoal_fsdp *fsdp, bool differs)
{
    static const char *const names[] = {"layer 0", "layer 1"};
    for (int unit = 0; unit < 2; unit++) {
        CHECK_OK(add_same(fsdp, unit, false));
        CHECK_OK(shoal_fsdp_set_unit_name(shoal_fsdp_unit_of(fsdp, unit), names[unit]));
        CHECK_OK(shoal_fsdp_set_reshard(shoal_fsdp_unit_of(fsdp, unit), way->reshard));
    }
    int64_t begin_ns = clock_now_ns();
    CHECK_STATUS(run_lopsided(fsdp, way, differs), SHOAL_ERR_MISMATCH);
    CHECK((double)(clock_now_ns() - begin_ns) * 1e-9 < 10 * test_time_scale()); /* the deadline is 20 */
    CHECK_ERROR_TEXT(way->words[0]);
    CHECK_ERROR_TEXT(way->words[1]);
    test_barrier(self);
    shoal_fsdp_free(fsdp);
    (void)shoal_world_close(world);
}

static void check_lopsided_shards(struct rank *self, const struct lopsided *way)
{
    shoal_fsdp *fsdp = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp));
    check_lopsided(self, way, world, fsdp, self->rank > 0);
}

TEST_RANKS(one_backward_less, 2)
{
    check_lopsided_shards(self, &(struct lopsided){.n_forwards = {2, 2},
                                                   .n_backwards = {2, 1},
                                                   .words = {"of layer 0", "backward pass of"}});
}

TEST_RANKS(one_backward_more, 3)
{
    check_lopsided_shards(self, &(struct lopsided){.n_forwards = {2, 2},
                                                   .n_backwards = {1, 2},
                                                   .words = {"of layer 0", "backward pass of"}});
}

TEST_RANKS(one_forward_less, 2)
{
    check_lopsided_shards(self, &(struct lopsided){.reshard = SHOAL_RESHARD_NEVER,
                                                   .n_forwards = {2, 1},
                                                   .n_backwards = {2, 1},
                                                   .words = {"of layer 1", "backward pass of"}});
}

TEST_RANKS(one_forward_more, 3)
{
    check_lopsided_shards(self, &(struct lopsided){.reshard = SHOAL_RESHARD_NEVER,
                                                   .n_forwards = {1, 2},
                                                   .n_backwards = {1, 2},
                                                   .words = {"of layer 1", "backward pass of"}});
}

TEST_RANKS(one_backward_less_in_a_replica, 4)
{
    struct model_case c = {.mode = MODEL_HSDP, .n_ranks = 4, .n_replicas = 2};
    shoal_fsdp *fsdp = NULL;
    shoal_mesh *mesh = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(model_create(world, &c, &mesh, &fsdp));
    shoal_mesh_free(mesh);
    check_lopsided(self,
                   &(struct lopsided){.n_forwards = {2, 2},
                                      .n_backwards = {2, 1},
                                      .words = {"of layer 0", "backward pass of"}},
                   world, fsdp, self->rank >= 2);
}

TEST_RANKS(one_backward_less_on_a_rank_of_a_replica, 4)
{
    struct model_case c = {.mode = MODEL_HSDP, .n_ranks = 4, .n_replicas = 2};
    shoal_fsdp *fsdp = NULL;
    shoal_mesh *mesh = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(model_create(world, &c, &mesh, &fsdp));
    shoal_mesh_free(mesh);
    check_lopsided(self,
                   &(struct lopsided){.n_forwards = {2, 2},
                                      .n_backwards = {2, 1},
                                      .words = {"of layer 0", "backward pass of"}},
                   world, fsdp, self->rank == 1);
}

/* Deadlines -------------------------------------------------------------------------------------------------- */

/* One that the group got after the units were made is theirs from the next call on. */
TEST_RANKS(a_deadline_that_comes_later, 2)
{
    shoal_fsdp *fsdp = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    REQUIRE_OK(shoal_fsdp_create(group, NULL, &fsdp));
    CHECK_OK(add_same(fsdp, 0, false));
    CHECK_OK(run_step(fsdp, (const int[]){0, -1}, self->rank));
    CHECK_OK(shoal_group_set_timeout(group, 0.25 * test_time_scale()));
    if (self->rank == 0) {
        int64_t begin_ns = clock_now_ns();
        CHECK_STATUS(shoal_fsdp_pre_forward(fsdp, 0), SHOAL_ERR_TIMEOUT);
        CHECK((double)(clock_now_ns() - begin_ns) * 1e-9 < 10 * test_time_scale()); /* it was 20 */
    }
    test_barrier(self);
    shoal_fsdp_free(fsdp);
    (void)shoal_world_close(world);
}

TEST_RANKS(a_deadline_of_replicas_that_comes_later, 2)
{
    shoal_fsdp *fsdp = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    REQUIRE_OK(shoal_fsdp_create_replicated(group, NULL, &fsdp));
    CHECK_OK(add_same(fsdp, 0, false));
    CHECK_OK(run_step(fsdp, (const int[]){0, -1}, self->rank));
    CHECK_OK(shoal_group_set_timeout(group, 0.25 * test_time_scale()));
    if (self->rank == 0) {
        int64_t begin_ns = clock_now_ns();
        CHECK_STATUS(run_step(fsdp, (const int[]){0, -1}, self->rank), SHOAL_ERR_TIMEOUT);
        CHECK((double)(clock_now_ns() - begin_ns) * 1e-9 < 10 * test_time_scale());
    }
    test_barrier(self);
    shoal_fsdp_free(fsdp);
    (void)shoal_world_close(world);
}
