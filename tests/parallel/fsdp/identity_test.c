/* SPDX-License-Identifier: MIT */
/*
 * Calls that look alike and stand for different things: equal kinds, dtypes and counts, but of another model, unit,
 * parameter or argument. Every rank gets a mismatch that names both, and nothing has changed. Rank 1 is the one that
 * differs.
 */
#include <math.h>

#include "fixtures/module_net.h"
#include "shoal/fsdp.h"
#include "shoal/fsdp_comm.h"

enum {
    N_MODELS = 2,
    N_PARAMS = 2,
    COUNT = 8
};

/* Two models on one group, by explicit calls. */
struct models {
    shoal_world *world;
    shoal_fsdp *of[N_MODELS];
};

static bool models_open(struct models *models, struct rank *self, shoal_mesh *mesh)
{
    static const char *const names[N_PARAMS] = {"a", "b"};
    const shoal_fsdp_options options = {.struct_size = sizeof options};
    for (int m = 0; m < N_MODELS; m++) {
        shoal_group *group = shoal_world_group(models->world);
        if (!CHECK_OK(mesh ? shoal_fsdp_create_on_mesh(mesh, &options, &models->of[m])
                           : shoal_fsdp_create(group, &options, &models->of[m]))) {
            return false;
        }
        for (int i = 0; i < N_PARAMS; i++) {
            float values[COUNT];
            for (int k = 0; k < COUNT; k++) {
                values[k] = (float)(100 * m + 10 * i + k);
            }
            CHECK_OK(shoal_fsdp_add_param(models->of[m], 0, names[i], SHOAL_F32, 1, (const int64_t[]){COUNT},
                                          values, NULL));
        }
    }
    (void)self;
    return true;
}

static shoal_status step(shoal_fsdp *fsdp)
{
    shoal_status status = shoal_fsdp_pre_forward(fsdp, 0);
    status = status == SHOAL_OK ? shoal_fsdp_post_forward(fsdp, 0) : status;
    status = status == SHOAL_OK ? shoal_fsdp_pre_backward(fsdp, 0) : status;
    if (status == SHOAL_OK) {
        ((float *)shoal_fsdp_grad(fsdp, 0))[0] += 1.0F;
        status = shoal_fsdp_post_backward(fsdp, 0);
    }
    return status == SHOAL_OK ? shoal_fsdp_end_backward(fsdp) : status;
}

/* What a rank does that differs, or not. */
typedef shoal_status (*action)(struct models *models, bool differs);

static void models_close(struct models *models)
{
    for (int m = 0; m < N_MODELS; m++) {
        shoal_fsdp_free(models->of[m]);
    }
    (void)shoal_world_close(models->world); /* of a group that has failed */
}

/* Both words stand in the text on every rank. */
static void check_action(struct rank *self, bool is_stepped, int n_replicas, action act, const char *word,
                         const char *other)
{
    struct models models = {.world = rank_world_open(self, 0)};
    shoal_mesh *mesh = NULL;
    REQUIRE(models.world != NULL);
    if (n_replicas > 1) {
        REQUIRE_OK(shoal_mesh_create(models.world, "cpu", NULL,
                                     (const int[]){n_replicas, self->n_ranks / n_replicas}, 2,
                                     (const char *const[]){"r", "s"}, &mesh));
    }
    REQUIRE(models_open(&models, self, mesh));
    for (int m = 0; is_stepped && m < N_MODELS; m++) {
        REQUIRE_OK(step(models.of[m]));
        CHECK_OK(shoal_fsdp_zero_grad(models.of[m]));
    }
    CHECK_STATUS(act(&models, self->rank == 1), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT(word);
    CHECK_ERROR_TEXT(other);
    shoal_mesh_free(mesh);
    models_close(&models);
}

static shoal_status first_use(struct models *models, bool differs)
{
    return step(models->of[differs]);
}

TEST_RANKS(another_model_is_used_first, 3)
{
    check_action(self, false, 1, first_use, "(sharded as number 1 on this group)",
                 "(sharded as number 2 on this group)");
}

static shoal_status walk_back(struct models *models, bool differs)
{
    for (int m = 0; m < N_MODELS; m++) {
        shoal_status status = shoal_fsdp_pre_forward(models->of[m], 0);
        status = status == SHOAL_OK ? shoal_fsdp_post_forward(models->of[m], 0) : status;
        if (status != SHOAL_OK) {
            return status;
        }
    }
    for (int m = 0; m < N_MODELS; m++) {
        shoal_fsdp *fsdp = models->of[differs ? N_MODELS - 1 - m : m];
        shoal_status status = shoal_fsdp_pre_backward(fsdp, 0);
        status = status == SHOAL_OK ? shoal_fsdp_post_backward(fsdp, 0) : status;
        status = status == SHOAL_OK ? shoal_fsdp_end_backward(fsdp) : status;
        if (status != SHOAL_OK) {
            return status;
        }
    }
    return SHOAL_OK;
}

TEST_RANKS(models_walked_back_in_another_order, 2)
{
    check_action(self, true, 1, walk_back, "(sharded as number 1 on this group)",
                 "(sharded as number 2 on this group)");
}

static shoal_status synchronize(struct models *models, bool differs)
{
    return shoal_fsdp_synchronize(models->of[differs]);
}

TEST_RANKS(another_model_is_synchronized, 2)
{
    check_action(self, true, 1, synchronize, "synchronize of the context (sharded as number 1",
                 "(sharded as number 2");
}

static shoal_status gather(struct models *models, bool differs)
{
    float whole[COUNT];
    return shoal_fsdp_gather(shoal_fsdp_param_of(models->of[0], differs), whole, SHOAL_FSDP_ALL_RANKS);
}

TEST_RANKS(another_parameter_is_gathered, 3)
{
    check_action(self, false, 1, gather, "gather of the whole parameter a",
                 "gather of the whole parameter b");
}

static shoal_status gather_to(struct models *models, bool differs)
{
    float whole[COUNT];
    return shoal_fsdp_gather(shoal_fsdp_param_of(models->of[0], differs), whole, 0);
}

TEST_RANKS(another_parameter_is_gathered_to_one, 3)
{
    check_action(self, false, 1, gather_to, "parameter a as f32 (root 0)", "parameter b as f32 (root 0)");
}

static shoal_status gather_to_other(struct models *models, bool differs)
{
    float whole[COUNT];
    return shoal_fsdp_gather(shoal_fsdp_param_of(models->of[0], 0), whole, differs ? 3 : 0);
}

/* Rank 3 is in the other replica: ranks that mean it have nothing to do. */
TEST_RANKS(gathered_to_another_replica, 4)
{
    check_action(self, false, 2, gather_to_other, "parameter a as f32 (root 0)",
                 "parameter a as f32 (root 3)");
}

static shoal_status broadcast(struct models *models, bool differs)
{
    float whole[COUNT] = {0};
    return shoal_fsdp_broadcast(shoal_fsdp_param_of(models->of[0], differs), whole, 0);
}

TEST_RANKS(another_parameter_is_broadcast, 2)
{
    check_action(self, false, 1, broadcast, "parameter a as f32 (root 0)", "parameter b as f32 (root 0)");
}

static shoal_status call_another(struct models *models, bool differs)
{
    float whole[COUNT] = {0};
    return differs ? shoal_fsdp_gather(shoal_fsdp_param_of(models->of[0], 0), whole, SHOAL_FSDP_ALL_RANKS)
                   : shoal_fsdp_gather(shoal_fsdp_param_of(models->of[0], 0), whole, 0);
}

TEST_RANKS(another_call, 2)
{
    check_action(self, false, 1, call_another, "gather of the whole parameter a",
                 "gather_to of the whole parameter a");
}

static shoal_status clip_another(struct models *models, bool differs)
{
    return shoal_fsdp_clip_grad_norm(models->of[differs], 1.0, 2.0, false, NULL);
}

TEST_RANKS(another_model_is_clipped, 2)
{
    check_action(self, true, 1, clip_another, "(sharded as number 1", "(sharded as number 2");
}

static shoal_status clip_power(struct models *models, bool differs)
{
    return shoal_fsdp_clip_grad_norm(models->of[0], 1.0, differs ? 3.0 : 2.0, false, NULL);
}

TEST_RANKS(clipped_by_another_power, 3)
{
    check_action(self, true, 1, clip_power, "(max_norm 1, power 2, must_be_finite 0)",
                 "(max_norm 1, power 3, must_be_finite 0)");
}

static shoal_status clip_maximum(struct models *models, bool differs)
{
    return shoal_fsdp_clip_grad_norm(models->of[0], differs ? 0.5 : 0.25, 2.0, false, NULL);
}

TEST_RANKS(clipped_to_another_maximum, 2)
{
    check_action(self, true, 1, clip_maximum, "(max_norm 0.25, power 2", "(max_norm 0.5, power 2");
}

TEST_RANKS(clipped_to_another_maximum_in_replicas, 4)
{
    check_action(self, true, 2, clip_maximum, "(max_norm 0.25, power 2", "(max_norm 0.5, power 2");
}

static shoal_status clip_value(struct models *models, bool differs)
{
    return shoal_fsdp_clip_grad_value(models->of[0], differs ? 0.5 : 0.25);
}

TEST_RANKS(clipped_to_another_value, 2)
{
    check_action(self, true, 1, clip_value, "clip_grad_value of the context (max_value 0.25)",
                 "clip_grad_value of the context (max_value 0.5)");
}

/* Communication of the program's own ----------------------------------------------------------------------- */

static shoal_status gather_plainly(void *context, void *output, const void *input, size_t count,
                                   shoal_dtype dtype, shoal_group *group, shoal_work **work_out)
{
    (void)context;
    return shoal_group_all_gather_start(group, input, output, count, dtype, work_out);
}

static shoal_status gather_by_hand(struct models *models, bool differs)
{
    const shoal_custom_all_gather custom = {.struct_size = sizeof custom, .call = gather_plainly};
    for (int m = 0; m < N_MODELS; m++) {
        shoal_status status = shoal_fsdp_set_custom_all_gather(shoal_fsdp_unit_of(models->of[m], 0), &custom);
        if (status != SHOAL_OK) {
            return status;
        }
    }
    shoal_status status = step(models->of[0]);
    status = status == SHOAL_OK ? step(models->of[1]) : status;
    return status == SHOAL_OK ? shoal_fsdp_pre_forward(models->of[differs], 0) : status;
}

TEST_RANKS(another_model_is_gathered_by_a_custom_call, 2)
{
    check_action(self, false, 1, gather_by_hand, "gather of unit 0 (sharded as number 1",
                 "gather of unit 0 (sharded as number 2");
}

/* Settings that change between steps ----------------------------------------------------------------------- */

static shoal_status factor_later(struct models *models, bool differs)
{
    shoal_status status =
        shoal_fsdp_set_divide_factor(shoal_fsdp_unit_of(models->of[0], 0), differs ? 3.0 : 4.0);
    return status == SHOAL_OK ? step(models->of[0]) : status;
}

TEST_RANKS(another_factor_in_the_second_step, 2)
{
    check_action(self, true, 1, factor_later, "gradient reduction of unit 0 (divide_factor 4)",
                 "gradient reduction of unit 0 (divide_factor 3)");
}

static shoal_status sum_later(struct models *models, bool differs)
{
    shoal_status status = shoal_fsdp_set_divide_factor(shoal_fsdp_unit_of(models->of[0], 0), 3.0);
    status =
        status == SHOAL_OK ? shoal_fsdp_set_force_sum(shoal_fsdp_unit_of(models->of[0], 0), differs) : status;
    return status == SHOAL_OK ? step(models->of[0]) : status;
}

TEST_RANKS(a_sum_in_the_second_step, 2)
{
    check_action(self, true, 1, sum_later, "unit 0 as a sum", "unit 0 (divide_factor 3)");
}

static shoal_status clear_on_some(struct models *models, bool differs)
{
    shoal_status status = step(models->of[0]);
    if (!differs) {
        CHECK_OK(shoal_fsdp_zero_grad(models->of[0]));
    }
    return status == SHOAL_OK ? step(models->of[0]) : status;
}

TEST_RANKS(gradients_cleared_on_some_ranks, 3)
{
    check_action(self, true, 1, clear_on_some, "gradient reduction of unit 0, ",
                 "unit 0 onto gradients that were not cleared");
}

static shoal_status leave_alone(void *context, const shoal_reduced_gradients *reduced, shoal_work **work_out)
{
    (void)context;
    (void)reduced;
    (void)work_out;
    return SHOAL_OK;
}

static shoal_status hook_later(struct models *models, bool differs)
{
    shoal_status status =
        differs ? shoal_fsdp_set_all_reduce_hook(shoal_fsdp_unit_of(models->of[0], 0), leave_alone, NULL)
                : SHOAL_OK;
    return status == SHOAL_OK ? step(models->of[0]) : status;
}

TEST_RANKS(a_hook_on_one_rank, 2)
{
    check_action(self, true, 1, hook_later, "unit 0 with an all-reduce hook", "reduction of unit 0, ");
}

static shoal_status shards_alone_later(struct models *models, bool differs)
{
    shoal_status status =
        shoal_fsdp_set_all_reduce(shoal_fsdp_unit_of(models->of[0], SHOAL_FSDP_ALL_UNITS), !differs);
    return status == SHOAL_OK ? step(models->of[0]) : status;
}

TEST_RANKS(not_over_replicas_on_one_rank, 4)
{
    check_action(self, true, 2, shards_alone_later,
                 "which reduces no gradients over replicas (set_all_reduce)", "backward pass of the context");
}

/* Shards that were asked for ------------------------------------------------------------------------------- */

static shoal_status look_at_shard(struct models *models, bool differs)
{
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    shoal_status made = shoal_fsdp_set_reshard(shoal_fsdp_unit_of(models->of[0], 0), SHOAL_RESHARD_NEVER);
    for (int i = 0; made == SHOAL_OK && i < 2; i++) {
        shoal_status status = shoal_fsdp_pre_forward(models->of[0], 0);
        status = status == SHOAL_OK ? shoal_fsdp_post_forward(models->of[0], 0) : status;
        status = status == SHOAL_OK && differs ? shoal_fsdp_update_shard(models->of[0], 0, &shard) : status;
        if (status != SHOAL_OK) {
            return status;
        }
    }
    return made;
}

/* The rank that asked may have written its shard; the others would go on with what they had gathered before. */
TEST_RANKS(a_shard_is_asked_for_on_one_rank, 2)
{
    check_action(self, false, 1, look_at_shard, "unit 0, whose shards were asked for",
                 "forward pass of unit 0, ");
}

/* Replicas that begin apart -------------------------------------------------------------------------------- */

/* The second half of the parameter, so that only the replicas of the second shard see it. */
static void check_first_values(struct rank *self, bool is_replicated, const char *word)
{
    const shoal_fsdp_options options = {.struct_size = sizeof options};
    float values[COUNT] = {0};
    shoal_mesh *mesh = NULL;
    shoal_fsdp *fsdp = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    values[COUNT - 1] = self->rank == 1 ? 1.0F : 0.0F;
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, (const int[]){2, self->n_ranks / 2}, 2,
                                 (const char *const[]){"r", "s"}, &mesh));
    REQUIRE_OK(is_replicated ? shoal_fsdp_create_replicated(shoal_world_group(world), &options, &fsdp)
                             : shoal_fsdp_create_on_mesh(mesh, &options, &fsdp));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, 1, (const int64_t[]){COUNT}, values, NULL));
    CHECK_STATUS(shoal_fsdp_pre_forward(fsdp, 0), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT(word);
    shoal_fsdp_free(fsdp);
    shoal_mesh_free(mesh);
    (void)shoal_world_close(world);
}

TEST_RANKS(replicas_that_begin_with_other_values, 2)
{
    check_first_values(self, true, "parameter w has other values");
}

TEST_RANKS(replicas_of_one_shard_begin_with_other_values, 4)
{
    check_first_values(self, false, "parameter w has other values");
}

/* One rank fewer gradients --------------------------------------------------------------------------------- */

enum {
    MANY = 300
};

/* x times the sum of all parameters but one. */
struct chooser {
    int left_out;
};

static shoal_status sum_but_one(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    const struct chooser *chooser = shoal_module_context(module);
    shoal_tensor *sum = inputs[0];
    (void)n_inputs;
    (void)n_outputs;
    for (size_t i = 0; shoal_module_parameter_at(module, i, NULL) != NULL; i++) {
        if ((int)i != chooser->left_out) {
            sum = shoal_add(sum, shoal_module_parameter_at(module, i, NULL));
        }
    }
    outputs[0] = sum;
    return SHOAL_OK;
}

static shoal_status train_without(shoal_module *module)
{
    shoal_tensor *x = shoal_full((const int64_t[]){COUNT}, 1, 1.0, SHOAL_F32);
    shoal_tensor *y = shoal_module_call_one(module, x);
    return shoal_backward(shoal_sum(y, NULL, 0, false), NULL);
}

static void check_left_out(struct rank *self, int first, int second)
{
    struct chooser chooser = {.left_out = self->rank == 1 ? second : first};
    char word[32];
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_scope_begin());
    shoal_module *module = net_make_module("many", sum_but_one, &chooser);
    for (int i = 0; i < MANY; i++) {
        (void)snprintf(word, sizeof word, "p%d", i);
        CHECK_OK(shoal_module_add_parameter(module, word, net_parameter((uint32_t)i, COUNT)));
    }
    const shoal_fully_shard_options options = {.struct_size = sizeof options,
                                               .group = shoal_world_group(world)};
    REQUIRE_OK(shoal_fully_shard(module, &options));
    CHECK_STATUS(train_without(module), SHOAL_ERR_MISMATCH);
    (void)snprintf(word, sizeof word, "without p%d", first);
    CHECK_ERROR_TEXT(word);
    (void)snprintf(word, sizeof word, "without p%d", second);
    CHECK_ERROR_TEXT(word);
    CHECK_ERROR_TEXT("reduce_unused");
    shoal_module_unref(module);
    (void)!shoal_scope_end();
    (void)shoal_world_close(world);
}

TEST_RANKS(another_parameter_is_not_used, 2)
{
    check_left_out(self, 0, 1);
    check_left_out(self, 1, MANY - 1);
}

/* A number of 14 bits was the same for these two. */
TEST_RANKS(parameters_that_looked_alike, 2)
{
    check_left_out(self, 5, 139);
}

/* Legal ------------------------------------------------------------------------------------------------------ */

static bool add_one_param(shoal_fsdp *fsdp)
{
    const float values[COUNT] = {1};
    return CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "a", SHOAL_F32, 1, (const int64_t[]){COUNT}, values, NULL));
}

/* The ranks of the first replica have a model of their own (a teacher, say) on the group that shards the model of all. */
TEST_RANKS(one_replica_has_a_model_of_its_own, 4)
{
    const shoal_fsdp_options options = {.struct_size = sizeof options};
    shoal_world *world = rank_world_open(self, 0);
    shoal_mesh *mesh = NULL;
    shoal_fsdp *own = NULL;
    shoal_fsdp *common = NULL;
    double norm = 0.0;
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, (const int[]){2, 2}, 2, (const char *const[]){"r", "s"},
                                 &mesh));
    if (self->rank < 2) {
        REQUIRE_OK(shoal_fsdp_create(shoal_mesh_group(mesh, 1), &options, &own));
        REQUIRE(add_one_param(own));
    }
    REQUIRE_OK(shoal_fsdp_create_on_mesh(mesh, &options, &common));
    REQUIRE(add_one_param(common));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(own ? step(own) : SHOAL_OK);
        CHECK_OK(step(common));
        CHECK_OK(shoal_fsdp_clip_grad_norm(common, 1.0, 2.0, false, &norm));
    }
    shoal_fsdp_free(own);
    shoal_fsdp_free(common);
    shoal_mesh_free(mesh);
    CHECK_OK(shoal_world_close(world));
}
