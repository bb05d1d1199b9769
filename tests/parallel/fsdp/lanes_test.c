/* SPDX-License-Identifier: MIT */
/*
 * Ranks that would wait for each other on different lanes: some for a gather, some for gradients, because rank 1 has
 * set something else or calls something else. Every rank gets a mismatch long before its deadline, which would be a
 * timeout.
 */
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/fsdp.h"

enum {
    N_UNITS = 3,
    COUNT = 24
};

typedef shoal_status (*maker)(shoal_group *group, const shoal_fsdp_options *options, shoal_fsdp **fsdp_out);

static shoal_status make(shoal_group *group, maker create, shoal_fsdp_options options, shoal_fsdp **fsdp_out)
{
    options.struct_size = sizeof options;
    shoal_status status = create(group, &options, fsdp_out);
    for (int unit = 0; unit < N_UNITS && status == SHOAL_OK; unit++) {
        status =
            shoal_fsdp_add_param(*fsdp_out, unit, "w", SHOAL_F32, 1, (const int64_t[]){COUNT}, NULL, NULL);
    }
    return status;
}

#define KEEP(call)                \
    do {                          \
        if (status == SHOAL_OK) { \
            status = (call);      \
        }                         \
    } while (0)

static shoal_status forward(shoal_fsdp *fsdp)
{
    shoal_status status = SHOAL_OK;
    for (int unit = 0; unit < N_UNITS; unit++) {
        KEEP(shoal_fsdp_pre_forward(fsdp, unit));
        KEEP(shoal_fsdp_post_forward(fsdp, unit));
    }
    return status;
}

static shoal_status walk_back(shoal_fsdp *fsdp)
{
    shoal_status status = SHOAL_OK;
    for (int unit = N_UNITS - 1; unit >= 0; unit--) {
        KEEP(shoal_fsdp_pre_backward(fsdp, unit));
        KEEP(shoal_fsdp_post_backward(fsdp, unit));
    }
    return status;
}

static shoal_status backward(shoal_fsdp *fsdp)
{
    shoal_status status = walk_back(fsdp);
    KEEP(shoal_fsdp_end_backward(fsdp));
    return status;
}

static shoal_status step(shoal_fsdp *fsdp)
{
    shoal_status status = forward(fsdp);
    KEEP(backward(fsdp));
    return status;
}

/* What ranks do after a step that they make alike; rank 1 differs. */
typedef shoal_status (*action)(shoal_fsdp *const *models, bool differs);

static void check_made(struct rank *self, maker create, shoal_fsdp_options options, action act,
                       const char *word, const char *other)
{
    shoal_fsdp *models[2] = {NULL, NULL};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    for (int m = 0; m < 2; m++) {
        CHECK_OK(make(shoal_world_group(world), create, options, &models[m]));
    }
    CHECK_OK(step(models[0]));
    CHECK_STATUS(act(models, self->rank == 1), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT(word);
    CHECK_ERROR_TEXT(other);
    for (int m = 0; m < 2; m++) {
        shoal_fsdp_free(models[m]);
    }
    (void)shoal_world_close(world); /* of a group that has failed */
}

static void check(struct rank *self, shoal_fsdp_options options, action act, const char *word,
                  const char *other)
{
    check_made(self, shoal_fsdp_create, options, act, word, other);
}

static shoal_status step_not_last(shoal_fsdp *const *models, bool differs)
{
    shoal_status status = shoal_fsdp_set_is_last_backward(models[0], !differs);
    KEEP(step(models[0]));
    KEEP(step(models[0]));
    return status;
}

TEST_RANKS(more_backwards_follow_on_one_rank, 3)
{
    check(self, (shoal_fsdp_options){.max_reduces = 1}, step_not_last, "backward pass of the context",
          "which is not the last (set_is_last_backward)");
}

/* The unit whose backward pass comes last: after it no gather follows that could differ. */
static shoal_status skip_last(shoal_fsdp *const *models, bool differs)
{
    shoal_status status = shoal_fsdp_set_unshard_in_backward(shoal_fsdp_unit_of(models[0], 0), !differs);
    KEEP(step(models[0]));
    return status;
}

TEST_RANKS(the_last_gather_is_missing_on_one_rank, 2)
{
    check(self, (shoal_fsdp_options){.forward_prefetch = -1}, skip_last, "rank 0 called gather of unit 0",
          "rank 1 called");
}

/* From then on units get other windows. */
static shoal_status keep_one(shoal_fsdp *const *models, bool differs)
{
    shoal_status status = shoal_fsdp_set_reshard(shoal_fsdp_unit_of(models[0], 0),
                                                 differs ? SHOAL_RESHARD_NEVER : SHOAL_RESHARD_ALWAYS);
    KEEP(step(models[0]));
    return status;
}

TEST_RANKS(a_unit_is_kept_on_one_rank, 2)
{
    check(self, (shoal_fsdp_options){.forward_prefetch = -1}, keep_one,
          "rank 0 called gather of unit 1: window_gather into window",
          "rank 1 called gather of unit 1: window_gather into window");
}

/* All units: no gather of this rank tells the others that it waits for gradients. */
static shoal_status step_all_kept(shoal_fsdp *const *models, bool differs)
{
    shoal_status status = SHOAL_OK;
    for (int unit = 0; unit < N_UNITS; unit++) {
        KEEP(shoal_fsdp_set_unshard_in_backward(shoal_fsdp_unit_of(models[0], unit), !differs));
    }
    KEEP(step(models[0]));
    return status;
}

TEST_RANKS(nothing_is_gathered_on_one_rank, 2)
{
    check(self, (shoal_fsdp_options){.forward_prefetch = -1}, step_all_kept, "rank 0 called gather of unit",
          "rank 1 called wait for the gradients of unit");
}

static shoal_status end_another(shoal_fsdp *const *models, bool differs)
{
    shoal_status status = step(models[1]);
    KEEP(forward(models[0]));
    for (int unit = N_UNITS - 1; unit >= 0; unit--) {
        KEEP(shoal_fsdp_pre_backward(models[0], unit));
        KEEP(shoal_fsdp_post_backward(models[0], unit));
    }
    KEEP(shoal_fsdp_end_backward(models[differs]));
    return status;
}

TEST_RANKS(the_backward_of_another_model_ends, 3)
{
    check(self, (shoal_fsdp_options){.max_reduces = 1}, end_another, "(sharded as number 1 on this group)",
          "(sharded as number 2 on this group)");
}

/* Buffers for gradients are made on the lane of reductions. */
static shoal_status walk_back_another(shoal_fsdp *const *models, bool differs)
{
    shoal_status status = forward(models[1]);
    KEEP(shoal_fsdp_pre_backward(models[1], differs ? 0 : N_UNITS - 1));
    return status;
}

TEST_RANKS(another_unit_is_walked_back_first, 2)
{
    check(self, (shoal_fsdp_options){.forward_prefetch = -1}, walk_back_another, "unit 2", "unit 0");
}

/* Rank 1 has it already, and so does not take part in the gather. */
static shoal_status gather_by_hand(shoal_fsdp *const *models, bool differs)
{
    shoal_status status = shoal_fsdp_unshard(shoal_fsdp_unit_of(models[0], 1));
    KEEP(shoal_fsdp_wait(shoal_fsdp_unit_of(models[0], 1)));
    KEEP(shoal_fsdp_reshard(shoal_fsdp_unit_of(models[0], differs ? 2 : 1)));
    KEEP(shoal_fsdp_unshard(shoal_fsdp_unit_of(models[0], 1)));
    KEEP(shoal_fsdp_wait(shoal_fsdp_unit_of(models[0], 1)));
    return status;
}

TEST_RANKS(gathered_by_hand_and_there_already, 3)
{
    check(self, (shoal_fsdp_options){.max_reduces = 1}, gather_by_hand, "unshard of unit 1,",
          "unshard of unit 1, which is gathered already");
}

/* Units that stay over neighbours are gathered on a lane of theirs. */
TEST_RANKS(neighbours_do_not_gather, 4)
{
    check(self,
          (shoal_fsdp_options){.reshard = SHOAL_RESHARD_PARTLY, .reshard_ranks = 2, .forward_prefetch = -1},
          skip_last, "gather", "unit 0");
}

/* Before the first forward pass ---------------------------------------------------------------------------- */

/* Ranks that cut a parameter along different dimensions would put its parts together in a wrong way. */
TEST_RANKS(a_parameter_is_cut_along_another_dimension, 2)
{
    shoal_fsdp *fsdp = NULL;
    float whole[COUNT];
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp));
    CHECK_OK(shoal_fsdp_add_param_along(fsdp, 0, "w", SHOAL_F32, 2, (const int64_t[]){2, COUNT / 2},
                                        self->rank == 1, NULL, NULL));
    CHECK_STATUS(shoal_fsdp_gather(shoal_fsdp_param_of(fsdp, 0), whole, SHOAL_FSDP_ALL_RANKS),
                 SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("gather of the whole parameter w");
    shoal_fsdp_free(fsdp);
    (void)shoal_world_close(world);
}

/* Ranks that have shards and ranks that have everything use different lanes. */
TEST_RANKS(one_rank_keeps_everything, 3)
{
    shoal_fsdp *fsdp = NULL;
    float whole[COUNT];
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    CHECK_OK(self->rank == 1 ? shoal_fsdp_create_replicated(group, NULL, &fsdp)
                             : shoal_fsdp_create(group, NULL, &fsdp));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, 1, (const int64_t[]){COUNT}, NULL, NULL));
    CHECK_STATUS(shoal_fsdp_gather(shoal_fsdp_param_of(fsdp, 0), whole, SHOAL_FSDP_ALL_RANKS),
                 SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("called gather of the whole parameter w");
    CHECK_ERROR_TEXT("rank 1 called comparison over replicas (is_replicated, create_replicated) of w");
    shoal_fsdp_free(fsdp);
    (void)shoal_world_close(world);
}

static shoal_status step_not_last_after_all(shoal_fsdp *const *models, bool differs)
{
    shoal_status status = forward(models[0]);
    KEEP(walk_back(models[0]));
    KEEP(shoal_fsdp_set_is_last_backward(models[0], !differs));
    KEEP(shoal_fsdp_end_backward(models[0]));
    KEEP(step(models[0]));
    return status;
}

/* Decided when the backward pass has begun. */
TEST_RANKS(more_backwards_follow_on_one_rank_after_all, 3)
{
    check(self, (shoal_fsdp_options){0}, step_not_last_after_all,
          "rank 1 called end of the gathers in the backward pass of the context, which is not the last",
          "on group [0,1,2]");
}

static shoal_status clip_or_step(shoal_fsdp *const *models, bool differs)
{
    return differs ? step(models[0]) : shoal_fsdp_clip_grad_value(models[0], 1.0);
}

/* A call by hand, and a backward pass that begins. */
TEST_RANKS(one_step_more_where_all_keep_everything, 3)
{
    check_made(self, shoal_fsdp_create_replicated, (shoal_fsdp_options){0}, clip_or_step,
               "rank 1 called start of the backward pass", "called clip_grad_value of");
}

static shoal_status leave_out_the_end(shoal_fsdp *const *models, bool differs)
{
    shoal_status status = shoal_fsdp_set_sync(shoal_fsdp_unit_of(models[0], SHOAL_FSDP_ALL_UNITS), false);
    KEEP(forward(models[0]));
    KEEP(walk_back(models[0]));
    if (!differs) {
        KEEP(shoal_fsdp_end_backward(models[0]));
    }
    KEEP(step(models[1]));
    return status;
}

/* The first forward pass of another model, and a backward pass that ends. */
TEST_RANKS(another_model_where_all_keep_everything, 3)
{
    check_made(self, shoal_fsdp_create_replicated, (shoal_fsdp_options){0}, leave_out_the_end,
               "called end of the backward pass", "rank 1 called comparison of settings");
}
