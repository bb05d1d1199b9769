/* SPDX-License-Identifier: MIT */
/*
 * What the explicit calls of sharding refuse: every argument that makes no sense, with its value in the text, and every
 * call out of its turn. Nothing is changed by a call that was refused: the step goes on, and ends right.
 */
#include "fixtures/fsdp_model.h"
#include "shoal/tensor.h"

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__})
#define LENGTH(array) ((int)(sizeof(array) / sizeof(array)[0]))

#define CHECK_REFUSED(call, status, words) \
    do {                                   \
        if (CHECK_STATUS(call, status)) {  \
            CHECK_ERROR_TEXT(words);       \
        }                                  \
    } while (0)

/* Creating ------------------------------------------------------------------------------------------------- */

static const struct {
    shoal_fsdp_options options; /* struct_size 0: the right one */
    const char *words[2];
} bad_options[] = {
    {{.struct_size = 1}, {"shoal_fsdp_options", "1"}},
    {{.param_dtype = (shoal_dtype)999}, {"param_dtype", "999"}},
    {{.param_dtype = SHOAL_I32}, {"param_dtype", "i32"}},
    {{.param_dtype = SHOAL_C64}, {"param_dtype", "c64"}},
    {{.reduce_dtype = (shoal_dtype)-3}, {"reduce_dtype", "-3"}},
    {{.reduce_dtype = SHOAL_BOOL}, {"reduce_dtype", "bool"}},
    {{.reshard = (shoal_reshard)7}, {"reshard", "7"}},
    {{.reshard = (shoal_reshard)-1}, {"reshard", "-1"}},
    {{.reshard = SHOAL_RESHARD_PARTLY}, {"reshard_ranks", "0"}},
    {{.reshard = SHOAL_RESHARD_PARTLY, .reshard_ranks = 3}, {"reshard_ranks", "3"}},
    {{.reshard = SHOAL_RESHARD_PARTLY, .reshard_ranks = -2}, {"reshard_ranks", "-2"}},
    {{.reshard = SHOAL_RESHARD_PARTLY, .reshard_ranks = 8}, {"reshard_ranks", "8"}},
    {{.divide_factor = -1.5}, {"divide_factor", "-1.5"}},
    {{.divide_factor = (double)NAN}, {"divide_factor", "nan"}},
    {{.divide_factor = (double)INFINITY}, {"divide_factor", "inf"}},
    {{.forward_prefetch = -2}, {"forward_prefetch", "-2"}},
    {{.max_reduces = -1}, {"max_reduces", "-1"}},
};

static void check_bad_options(shoal_world *world)
{
    for (int k = 0; k < LENGTH(bad_options); k++) {
        shoal_fsdp_options options = bad_options[k].options;
        shoal_fsdp *fsdp = NULL;
        options.struct_size = options.struct_size ? options.struct_size : sizeof options;
        shoal_status status = shoal_fsdp_create(shoal_world_group(world), &options, &fsdp);
        if (status == SHOAL_OK) {
            test_failed(__FILE__, __LINE__, "options %d (%s) were taken", k, bad_options[k].words[0]);
            shoal_fsdp_free(fsdp);
            continue;
        }
        CHECK_INT(status, SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(bad_options[k].words[0]);
        CHECK_ERROR_TEXT(bad_options[k].words[1]);
        CHECK(fsdp == NULL);
    }
}

static void check_bad_meshes(shoal_world *world)
{
    shoal_fsdp *fsdp = NULL;
    shoal_mesh *mesh = NULL;
    const char *const names[] = {"a", "b", "c"};
    CHECK_REFUSED(shoal_fsdp_create_on_mesh(NULL, NULL, &fsdp), SHOAL_ERR_INVALID, "mesh is NULL");
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, (const int[]){2, 2, 1}, 3, names, &mesh));
    CHECK_REFUSED(shoal_fsdp_create_on_mesh(mesh, NULL, &fsdp), SHOAL_ERR_INVALID, "not of 3");
    shoal_mesh_free(mesh);
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, (const int[]){2, 2}, 2, NULL, &mesh));
    CHECK_REFUSED(shoal_fsdp_create_on_mesh(mesh, NULL, &fsdp), SHOAL_ERR_INVALID, "names");
    shoal_mesh_free(mesh);
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, (const int[]){2}, 1, names, &mesh));
    shoal_status status = shoal_fsdp_create_on_mesh(mesh, NULL, &fsdp);
    if (shoal_world_rank(world) < 2) {
        CHECK_OK(status);
        shoal_fsdp_free(fsdp);
    } else {
        CHECK_INT(status, SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("not in the mesh");
    }
    shoal_mesh_free(mesh);
}

TEST_RANKS(creating, 4)
{
    shoal_fsdp *fsdp = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    CHECK_REFUSED(shoal_fsdp_create(NULL, NULL, &fsdp), SHOAL_ERR_INVALID, "group is NULL");
    CHECK_REFUSED(shoal_fsdp_create(group, NULL, NULL), SHOAL_ERR_INVALID, "fsdp_out is NULL");
    CHECK_REFUSED(shoal_fsdp_create_replicated(NULL, NULL, &fsdp), SHOAL_ERR_INVALID, "group is NULL");
    CHECK_REFUSED(shoal_fsdp_create_replicated(group, NULL, NULL), SHOAL_ERR_INVALID, "fsdp_out is NULL");
    CHECK_REFUSED(shoal_fsdp_create_on_mesh(NULL, NULL, NULL), SHOAL_ERR_INVALID, "NULL");
    check_bad_options(world);
    check_bad_meshes(world);
    shoal_fsdp_free(NULL);
    CHECK_OK(shoal_world_close(world));
}

/* Neighbours may be asked for one unit alone. */
TEST_RANKS(neighbours_of_one_unit, 4)
{
    static const struct {
        int ranks;
        bool is_right;
    } cases[] = {{0, false}, {3, false}, {-1, false}, {5, false},
                 {8, false}, {1, true},  {2, true},   {4, true}};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    for (int k = 0; k < LENGTH(cases); k++) {
        shoal_fsdp_options options = {.struct_size = sizeof options, .reshard_ranks = cases[k].ranks};
        shoal_fsdp *fsdp = NULL;
        REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp));
        CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, 1, SHAPE(9), NULL, NULL));
        shoal_status status = shoal_fsdp_set_reshard(shoal_fsdp_unit_of(fsdp, 0), SHOAL_RESHARD_PARTLY);
        CHECK_INT(status, cases[k].is_right ? SHOAL_OK : SHOAL_ERR_INVALID);
        if (status == SHOAL_ERR_INVALID) {
            CHECK_ERROR_TEXT("reshard_ranks");
        } else if (cases[k].is_right) {
            CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
            CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
            CHECK_OK(shoal_fsdp_pre_backward(fsdp, 0));
            CHECK_OK(shoal_fsdp_post_backward(fsdp, 0));
            CHECK_OK(shoal_fsdp_end_backward(fsdp));
        }
        shoal_fsdp_free(fsdp);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Parameters ----------------------------------------------------------------------------------------------- */

static void check_bad_params(shoal_fsdp *fsdp)
{
    int64_t many[SHOAL_MAX_DIMS + 1] = {0};
    int id = -7;
    CHECK_REFUSED(shoal_fsdp_add_param(NULL, 0, "w", SHOAL_F32, 1, SHAPE(3), NULL, &id), SHOAL_ERR_INVALID,
                  "add_param: fsdp is NULL");
    CHECK_REFUSED(shoal_fsdp_add_param(fsdp, 0, NULL, SHOAL_F32, 1, SHAPE(3), NULL, &id), SHOAL_ERR_INVALID,
                  "name is NULL");
    CHECK_REFUSED(shoal_fsdp_add_param(fsdp, -1, "w", SHOAL_F32, 1, SHAPE(3), NULL, &id), SHOAL_ERR_INVALID,
                  "-1");
    CHECK_REFUSED(shoal_fsdp_add_param(fsdp, 5, "w", SHOAL_F32, 1, SHAPE(3), NULL, &id), SHOAL_ERR_INVALID,
                  "unit is 5");
    CHECK_REFUSED(shoal_fsdp_add_param(fsdp, 0, "w", (shoal_dtype)99, 1, SHAPE(3), NULL, &id),
                  SHOAL_ERR_INVALID, "99");
    CHECK_REFUSED(shoal_fsdp_add_param(fsdp, 0, "scale", SHOAL_F32, 0, NULL, NULL, &id), SHOAL_ERR_INVALID,
                  "scale");
    CHECK_REFUSED(shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, -1, SHAPE(3), NULL, &id), SHOAL_ERR_INVALID,
                  "-1");
    CHECK_REFUSED(shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, SHOAL_MAX_DIMS + 1, many, NULL, &id),
                  SHOAL_ERR_INVALID, "dim");
    CHECK_REFUSED(shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, 1, NULL, NULL, &id), SHOAL_ERR_INVALID,
                  "shape is NULL");
    CHECK_REFUSED(shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, 2, SHAPE(3, -4), NULL, &id),
                  SHOAL_ERR_INVALID, "-4");
    CHECK_REFUSED(shoal_fsdp_add_param_along(fsdp, 0, "w", SHOAL_F32, 2, SHAPE(3, 4), 2, NULL, &id),
                  SHOAL_ERR_INVALID, "2");
    CHECK_REFUSED(shoal_fsdp_add_param_along(fsdp, 0, "w", SHOAL_F32, 2, SHAPE(3, 4), -3, NULL, &id),
                  SHOAL_ERR_INVALID, "-3");
    CHECK_REFUSED(shoal_fsdp_add_param_along(fsdp, 0, "weight", SHOAL_F32, 2, SHAPE(4, 5), 1, NULL, &id),
                  SHOAL_ERR_UNSUPPORTED, "weight");
    CHECK_ERROR_TEXT("5");
    shoal_status status = shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, 3,
                                               SHAPE(INT64_C(1) << 31, INT64_C(1) << 31, 8), NULL, &id);
    CHECK(status == SHOAL_ERR_INVALID || status == SHOAL_ERR_NO_MEMORY);
    status = shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F64, 1, SHAPE(INT64_C(1) << 61), NULL, &id);
    CHECK(status == SHOAL_ERR_INVALID || status == SHOAL_ERR_NO_MEMORY);
    CHECK_INT(id, -7);
    CHECK_INT(shoal_fsdp_n_params(fsdp), 0);
}

static void check_bad_ids(shoal_fsdp *fsdp)
{
    static const int ids[] = {-1, 2, 1000000};
    char values[64] = {0};
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    for (int k = 0; k < LENGTH(ids); k++) {
        char words[32];
        (void)snprintf(words, sizeof words, "parameter %d", ids[k]);
        CHECK_REFUSED(shoal_fsdp_set_requires_grad(fsdp, ids[k], true), SHOAL_ERR_INVALID, words);
        CHECK_REFUSED(shoal_fsdp_load(shoal_fsdp_param_of(fsdp, ids[k]), values), SHOAL_ERR_INVALID, words);
        CHECK_REFUSED(shoal_fsdp_broadcast(shoal_fsdp_param_of(fsdp, ids[k]), values, 0), SHOAL_ERR_INVALID,
                      words);
        CHECK_REFUSED(shoal_fsdp_gather(shoal_fsdp_param_of(fsdp, ids[k]), values, SHOAL_FSDP_ALL_RANKS),
                      SHOAL_ERR_INVALID, words);
        CHECK_REFUSED(shoal_fsdp_update_shard(fsdp, ids[k], &shard), SHOAL_ERR_INVALID, words);
        CHECK(shoal_fsdp_full_param(fsdp, ids[k]) == NULL);
        CHECK_ERROR_TEXT(words);
        CHECK(shoal_fsdp_grad(fsdp, ids[k]) == NULL);
        CHECK_ERROR_TEXT(words);
        CHECK_STRING(shoal_fsdp_param_name(shoal_fsdp_param_of(fsdp, ids[k])), "");
    }
}

static void check_bad_units(shoal_fsdp *fsdp)
{
    static const int units[] = {-1, 1, 77};
    for (int k = 0; k < LENGTH(units); k++) {
        char words[32];
        (void)snprintf(words, sizeof words, "unit %d", units[k]);
        if (units[k] != SHOAL_FSDP_ALL_UNITS) {
            CHECK_REFUSED(shoal_fsdp_set_reshard(shoal_fsdp_unit_of(fsdp, units[k]), SHOAL_RESHARD_NEVER),
                          SHOAL_ERR_INVALID, words);
            CHECK_REFUSED(shoal_fsdp_set_unit_name(shoal_fsdp_unit_of(fsdp, units[k]), "x"),
                          SHOAL_ERR_INVALID, words);
        }
        CHECK_REFUSED(shoal_fsdp_pre_forward(fsdp, units[k]), SHOAL_ERR_INVALID, words);
        CHECK_REFUSED(shoal_fsdp_post_forward(fsdp, units[k]), SHOAL_ERR_INVALID, words);
        CHECK_REFUSED(shoal_fsdp_pre_backward(fsdp, units[k]), SHOAL_ERR_INVALID, words);
        CHECK_REFUSED(shoal_fsdp_post_backward(fsdp, units[k]), SHOAL_ERR_INVALID, words);
    }
}

static void check_null(void)
{
    float value = 0.0F;
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    const char *const words = ": fsdp is NULL";
    CHECK_REFUSED(shoal_fsdp_set_requires_grad(NULL, 0, true), SHOAL_ERR_INVALID, words);
    CHECK_REFUSED(shoal_fsdp_set_reshard(shoal_fsdp_unit_of(NULL, 0), SHOAL_RESHARD_NEVER), SHOAL_ERR_INVALID,
                  words);
    CHECK_REFUSED(shoal_fsdp_set_unit_name(shoal_fsdp_unit_of(NULL, 0), "x"), SHOAL_ERR_INVALID, words);
    CHECK_REFUSED(shoal_fsdp_load(shoal_fsdp_param_of(NULL, 0), &value), SHOAL_ERR_INVALID, words);
    CHECK_REFUSED(shoal_fsdp_broadcast(shoal_fsdp_param_of(NULL, 0), &value, 0), SHOAL_ERR_INVALID, words);
    CHECK_REFUSED(shoal_fsdp_gather(shoal_fsdp_param_of(NULL, 0), &value, SHOAL_FSDP_ALL_RANKS),
                  SHOAL_ERR_INVALID, words);
    CHECK_REFUSED(shoal_fsdp_update_shard(NULL, 0, &shard), SHOAL_ERR_INVALID, words);
    CHECK_REFUSED(shoal_fsdp_pre_forward(NULL, 0), SHOAL_ERR_INVALID, words);
    CHECK_REFUSED(shoal_fsdp_post_forward(NULL, 0), SHOAL_ERR_INVALID, words);
    CHECK_REFUSED(shoal_fsdp_pre_backward(NULL, 0), SHOAL_ERR_INVALID, words);
    CHECK_REFUSED(shoal_fsdp_post_backward(NULL, 0), SHOAL_ERR_INVALID, words);
    CHECK_REFUSED(shoal_fsdp_end_backward(NULL), SHOAL_ERR_INVALID, words);
    CHECK_REFUSED(shoal_fsdp_set_sync(shoal_fsdp_unit_of(NULL, SHOAL_FSDP_ALL_UNITS), true),
                  SHOAL_ERR_INVALID, words);
    CHECK_REFUSED(shoal_fsdp_set_all_reduce(shoal_fsdp_unit_of(NULL, SHOAL_FSDP_ALL_UNITS), true),
                  SHOAL_ERR_INVALID, words);
    CHECK_REFUSED(shoal_fsdp_clip_grad_norm(NULL, 1.0, 2.0, false, NULL), SHOAL_ERR_INVALID, words);
    CHECK_REFUSED(shoal_fsdp_reset(NULL), SHOAL_ERR_INVALID, words);
    CHECK(shoal_fsdp_full_param(NULL, 0) == NULL);
    CHECK_ERROR_TEXT(words);
    CHECK(shoal_fsdp_grad(NULL, 0) == NULL);
    CHECK_ERROR_TEXT(words);
    CHECK_INT(shoal_fsdp_n_params(NULL), 0);
    CHECK_STRING(shoal_fsdp_param_name(shoal_fsdp_param_of(NULL, 0)), "");
    CHECK_REFUSED(shoal_fsdp_zero_grad(NULL), SHOAL_ERR_INVALID, words);
}

TEST_RANKS(arguments, 2)
{
    shoal_fsdp *fsdp = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp));
    CHECK_REFUSED(shoal_fsdp_pre_forward(fsdp, 0), SHOAL_ERR_INVALID, "unit 0");
    CHECK_ERROR_TEXT("there are 0");
    check_null();
    check_bad_params(fsdp);
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, 1, SHAPE(3), NULL, NULL));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "ids", SHOAL_I32, 1, SHAPE(3), NULL, NULL));
    check_bad_ids(fsdp);
    check_bad_units(fsdp);
    CHECK_REFUSED(shoal_fsdp_set_reshard(shoal_fsdp_unit_of(fsdp, 0), (shoal_reshard)9), SHOAL_ERR_INVALID,
                  "9");
    CHECK_REFUSED(shoal_fsdp_set_reshard(shoal_fsdp_unit_of(fsdp, 0), (shoal_reshard)-1), SHOAL_ERR_INVALID,
                  "-1");
    CHECK_REFUSED(shoal_fsdp_set_unit_name(shoal_fsdp_unit_of(fsdp, 0), NULL), SHOAL_ERR_INVALID,
                  "name is NULL");
    CHECK_REFUSED(shoal_fsdp_load(shoal_fsdp_param_of(fsdp, 0), NULL), SHOAL_ERR_INVALID, "full is NULL");
    CHECK_REFUSED(shoal_fsdp_gather(shoal_fsdp_param_of(fsdp, 0), NULL, SHOAL_FSDP_ALL_RANKS),
                  SHOAL_ERR_INVALID, "full is NULL");
    CHECK_REFUSED(shoal_fsdp_update_shard(fsdp, 0, NULL), SHOAL_ERR_INVALID, "shard_out is NULL");
    CHECK_REFUSED(shoal_fsdp_broadcast(shoal_fsdp_param_of(fsdp, 0), NULL, -1), SHOAL_ERR_INVALID, "-1");
    CHECK_REFUSED(shoal_fsdp_broadcast(shoal_fsdp_param_of(fsdp, 0), NULL, 2), SHOAL_ERR_INVALID, "root 2");
    CHECK_REFUSED(shoal_fsdp_clip_grad_norm(fsdp, -1.0, 2.0, false, NULL), SHOAL_ERR_INVALID, "-1");
    CHECK_REFUSED(shoal_fsdp_clip_grad_norm(fsdp, (double)NAN, 2.0, false, NULL), SHOAL_ERR_INVALID, "nan");
    CHECK_REFUSED(shoal_fsdp_set_requires_grad(fsdp, 1, true), SHOAL_ERR_INVALID, "i32");
    CHECK_OK(shoal_fsdp_clip_grad_norm(fsdp, 1.0, 2.0, false, NULL)); /* no gradients: nothing to do */
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}

/* Trainable parameters of a unit have one dtype. */
TEST_RANKS(dtypes_that_differ, 2)
{
    shoal_fsdp *fsdp = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "weight", SHOAL_F32, 1, SHAPE(3), NULL, NULL));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "bias", SHOAL_BF16, 1, SHAPE(3), NULL, NULL));
    CHECK_REFUSED(shoal_fsdp_pre_forward(fsdp, 0), SHOAL_ERR_UNSUPPORTED, "weight");
    CHECK_ERROR_TEXT("bias");
    CHECK_ERROR_TEXT("bf16");
    CHECK_ERROR_TEXT("unit 0");
    CHECK_OK(shoal_fsdp_set_requires_grad(fsdp, 1, false)); /* frozen, it may have any */
    CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
    CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
    CHECK_OK(shoal_fsdp_end_backward(fsdp));
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}

/* Order ------------------------------------------------------------------------------------------------------ */

static void check_not_whole(shoal_fsdp *fsdp)
{
    for (int id = 0; id < 2; id++) {
        CHECK(shoal_fsdp_full_param(fsdp, id) == NULL);
        CHECK_ERROR_TEXT("whole");
        CHECK_ERROR_TEXT(id == 0 ? "w0" : "w1");
    }
}

static void check_no_grads(shoal_fsdp *fsdp)
{
    CHECK(shoal_fsdp_grad(fsdp, 0) == NULL);
    CHECK_ERROR_TEXT("w0");
    CHECK_ERROR_TEXT("pre_ and post_backward");
}

/* Not while unit 0 has begun a step. */
static void check_not_between(shoal_fsdp *fsdp)
{
    const float values[3] = {0.0F};
    CHECK_REFUSED(shoal_fsdp_set_requires_grad(fsdp, 0, false), SHOAL_ERR_STATE, "unit 0");
    CHECK_REFUSED(shoal_fsdp_load(shoal_fsdp_param_of(fsdp, 0), values), SHOAL_ERR_STATE, "unit 0");
    CHECK_REFUSED(shoal_fsdp_broadcast(shoal_fsdp_param_of(fsdp, 0), values, 0), SHOAL_ERR_STATE, "unit 0");
    CHECK_REFUSED(shoal_fsdp_add_param(fsdp, 0, "late", SHOAL_F32, 1, SHAPE(3), NULL, NULL), SHOAL_ERR_STATE,
                  "late");
    CHECK_REFUSED(shoal_fsdp_set_reshard(shoal_fsdp_unit_of(fsdp, 0), SHOAL_RESHARD_NEVER), SHOAL_ERR_STATE,
                  "unit 0");
}

/* A step with a wrong call at every point. */
static void run_step(shoal_fsdp *fsdp, bool is_first)
{
    CHECK_REFUSED(shoal_fsdp_post_forward(fsdp, 0), SHOAL_ERR_STATE, "pre_forward");
    CHECK_REFUSED(shoal_fsdp_post_backward(fsdp, 0), SHOAL_ERR_STATE, "pre_backward");
    if (is_first) {
        CHECK_REFUSED(shoal_fsdp_pre_backward(fsdp, 0), SHOAL_ERR_STATE, "no forward");
    }
    check_not_whole(fsdp);
    check_no_grads(fsdp);

    CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
    CHECK(shoal_fsdp_full_param(fsdp, 0) != NULL);
    CHECK(shoal_fsdp_full_param(fsdp, 1) == NULL);
    check_no_grads(fsdp);
    check_not_between(fsdp);
    CHECK_REFUSED(shoal_fsdp_post_forward(fsdp, 1), SHOAL_ERR_STATE, "unit 1");
    CHECK_REFUSED(shoal_fsdp_pre_backward(fsdp, 0), SHOAL_ERR_STATE, "post_forward");
    CHECK_REFUSED(shoal_fsdp_post_backward(fsdp, 0), SHOAL_ERR_STATE, "pre_backward");
    CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
    CHECK_REFUSED(shoal_fsdp_post_forward(fsdp, 0), SHOAL_ERR_STATE, "unit 0");
    check_not_whole(fsdp);

    CHECK_OK(shoal_fsdp_pre_forward(fsdp, 1));
    CHECK_OK(shoal_fsdp_post_forward(fsdp, 1));
    CHECK_OK(shoal_fsdp_pre_backward(fsdp, 1));
    check_no_grads(fsdp);
    CHECK_REFUSED(shoal_fsdp_post_backward(fsdp, 0), SHOAL_ERR_STATE, "unit 0");
    CHECK_OK(shoal_fsdp_post_backward(fsdp, 1));
    CHECK_REFUSED(shoal_fsdp_post_backward(fsdp, 1), SHOAL_ERR_STATE, "unit 1");
    check_not_whole(fsdp);

    CHECK_OK(shoal_fsdp_pre_backward(fsdp, 0));
    check_not_between(fsdp);
    float *grad = shoal_fsdp_grad(fsdp, 0);
    CHECK(grad != NULL);
    for (int i = 0; grad && i < 3; i++) {
        grad[i] += 1.0F;
    }
    CHECK_OK(shoal_fsdp_post_backward(fsdp, 0));
    check_no_grads(fsdp);
    CHECK_OK(shoal_fsdp_end_backward(fsdp));
    check_not_whole(fsdp);
    CHECK_OK(shoal_fsdp_end_backward(fsdp)); /* and once more is nothing */
}

TEST_RANKS(calls_out_of_turn, 2)
{
    shoal_fsdp *fsdp = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "w0", SHOAL_F32, 1, SHAPE(3), NULL, NULL));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 1, "w1", SHOAL_F32, 1, SHAPE(2), NULL, NULL));
    for (int step = 0; step < 3; step++) {
        run_step(fsdp, step == 0);
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        REQUIRE_OK(shoal_fsdp_update_shard(fsdp, 0, &shard));
        REQUIRE(shard.grad != NULL);
        for (size_t i = 0; i < shard.count; i++) {
            CHECK_DOUBLE((double)((const float *)shard.grad)[i], 1.0);
        }
        CHECK_OK(shoal_fsdp_zero_grad(fsdp));
    }
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}

/* An end in the middle of a forward: the next step reads what is there then. */
TEST_RANKS(an_end_too_early, 2)
{
    shoal_fsdp *fsdp = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "w0", SHOAL_F32, 1, SHAPE(4), NULL, NULL));
    for (int step = 0; step < 3; step++) {
        const float values[] = {(float)step, 1.0F, 2.0F, 3.0F};
        CHECK_OK(shoal_fsdp_load(shoal_fsdp_param_of(fsdp, 0), values));
        CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
        const float *whole = shoal_fsdp_full_param(fsdp, 0);
        CHECK(whole && whole[0] == (float)step);
        CHECK_OK(shoal_fsdp_end_backward(fsdp));
        CHECK(shoal_fsdp_full_param(fsdp, 0) == NULL);
    }
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}

/* While gradients wait for the backward pass that reduces. */
TEST_RANKS(no_freezing_of_gradients_that_wait, 2)
{
    shoal_fsdp *fsdp = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "w0", SHOAL_F32, 1, SHAPE(3), NULL, NULL));
    CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), false));
    CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
    CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
    CHECK_OK(shoal_fsdp_pre_backward(fsdp, 0));
    CHECK_OK(shoal_fsdp_post_backward(fsdp, 0));
    CHECK_OK(shoal_fsdp_end_backward(fsdp));
    CHECK_REFUSED(shoal_fsdp_set_requires_grad(fsdp, 0, false), SHOAL_ERR_STATE, "unit 0");
    CHECK_OK(shoal_fsdp_reset(fsdp));
    CHECK_OK(shoal_fsdp_set_requires_grad(fsdp, 0, false));
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}
