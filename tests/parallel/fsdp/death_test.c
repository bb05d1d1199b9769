/* SPDX-License-Identifier: MIT */
/*
 * A rank is killed in the middle of a forward pass, of a backward pass, or between them: every other rank gets an
 * error that names it within a second, and can free everything and close.
 */
#include <signal.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "fixtures/fsdp_model.h"

enum {
    VICTIM = 1,
    DEADLY_STEP = 2 /* the third: everything has its memory by then */
};

enum point {
    BEFORE_FORWARD,
    IN_FORWARD,
    BEFORE_BACKWARD,
    IN_BACKWARD,
    BEFORE_END,
    AFTER_END
};

/* In memory that all see. */
struct board {
    _Atomic int64_t struck_ns;
};

struct life {
    struct rank *self;
    shoal_fsdp *fsdp;
    int step;
    enum point point;
    bool knows_victim; /* all ranks are in one group with it */
};

static void pass_point(const struct life *life, enum point point)
{
    struct board *board = life->self->shared;
    if (life->self->rank == VICTIM && life->step == DEADLY_STEP && life->point == point) {
        atomic_store(&board->struck_ns, clock_now_ns());
        (void)raise(SIGKILL);
    }
}

static shoal_status run_forward(struct life *life, struct model_pass *pass)
{
    for (int unit = 0; unit < MODEL_UNITS; unit++) {
        if (unit == 2) {
            MODEL_TRY(shoal_fsdp_pre_forward(life->fsdp, unit));
            pass_point(life, IN_FORWARD);
        }
        MODEL_TRY(model_fsdp_forward(life->fsdp, pass, unit));
    }
    return SHOAL_OK;
}

static shoal_status run_backward(struct life *life, struct model_pass *pass)
{
    for (int unit = MODEL_UNITS - 1; unit >= 0; unit--) {
        if (unit == 1) {
            MODEL_TRY(shoal_fsdp_pre_backward(life->fsdp, unit));
            pass_point(life, IN_BACKWARD);
        }
        MODEL_TRY(model_fsdp_backward(life->fsdp, pass, unit));
    }
    return SHOAL_OK;
}

static shoal_status run_step(struct life *life)
{
    struct model_pass pass;
    model_begin(&pass, life->step, life->self->rank, 0);
    pass_point(life, BEFORE_FORWARD);
    MODEL_TRY(run_forward(life, &pass));
    pass_point(life, BEFORE_BACKWARD);
    MODEL_TRY(run_backward(life, &pass));
    pass_point(life, BEFORE_END);
    MODEL_TRY(shoal_fsdp_end_backward(life->fsdp));
    pass_point(life, AFTER_END);
    CHECK_OK(shoal_fsdp_zero_grad(life->fsdp));
    return SHOAL_OK;
}

static void check_error(const struct life *life, shoal_status status)
{
    const struct board *board = life->self->shared;
    double seconds = (double)(clock_now_ns() - atomic_load(&board->struck_ns)) * 1e-9;
    CHECK_INT(status, SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT(life->knows_victim ? "rank 1" : "rank ");
    CHECK_ERROR_TEXT("unit ");
    CHECK(seconds < 10 * test_time_scale()); /* the deadline is 20 */
    /* And it stays so. */
    float whole[MODEL_ROOM];
    CHECK_STATUS(shoal_fsdp_pre_forward(life->fsdp, 0), SHOAL_ERR_PEER);
    CHECK_STATUS(shoal_fsdp_post_forward(life->fsdp, 0), SHOAL_ERR_PEER);
    CHECK_STATUS(shoal_fsdp_pre_backward(life->fsdp, 0), SHOAL_ERR_PEER);
    CHECK_STATUS(shoal_fsdp_post_backward(life->fsdp, 0), SHOAL_ERR_PEER);
    CHECK_STATUS(shoal_fsdp_end_backward(life->fsdp), SHOAL_ERR_PEER);
    CHECK_STATUS(shoal_fsdp_clip_grad_norm(life->fsdp, 1.0, 2.0, false, NULL), SHOAL_ERR_PEER);
    CHECK_STATUS(shoal_fsdp_gather(shoal_fsdp_param_of(life->fsdp, 0), whole, SHOAL_FSDP_ALL_RANKS),
                 SHOAL_ERR_PEER);
    CHECK_STATUS(shoal_fsdp_reset(life->fsdp), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("unit "); /* where it was seen first */
}

static void check_point(struct rank *self, enum model_mode mode, enum point point, int max_reduces)
{
    struct model_case c = {.mode = mode, .n_ranks = self->n_ranks, .n_replicas = 2};
    c.options.max_reduces = max_reduces;
    shoal_mesh *mesh = NULL;
    struct life life = {.self = self, .point = point};
    life.knows_victim =
        mode != MODEL_HSDP; /* with a mesh, a rank that left because of it may be seen first */
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(model_create(world, &c, &mesh, &life.fsdp));
    CHECK_OK(model_add_params(life.fsdp));
    test_barrier(self);
    test_expect_death(VICTIM, SIGKILL);
    shoal_status status = SHOAL_OK;
    for (; status == SHOAL_OK && life.step < 50; life.step++) {
        status = run_step(&life);
    }
    check_error(&life, status);
    shoal_fsdp_free(life.fsdp);
    shoal_mesh_free(mesh);
    (void)shoal_world_close(world); /* an error, which names the rank too */
}

#define POINT(name, where)                       \
    TEST_PROCESSES(shards_##name, 3)             \
    {                                            \
        check_point(self, MODEL_FSDP, where, 0); \
    }                                            \
    TEST_PROCESSES(replicas_##name, 3)           \
    {                                            \
        check_point(self, MODEL_DDP, where, 0);  \
    }                                            \
    TEST_PROCESSES(replicas_of_shards_##name, 4) \
    {                                            \
        check_point(self, MODEL_HSDP, where, 2); \
    }

POINT(before_forward, BEFORE_FORWARD)
POINT(in_forward, IN_FORWARD)
POINT(before_backward, BEFORE_BACKWARD)
POINT(in_backward, IN_BACKWARD)
POINT(before_end, BEFORE_END)
POINT(after_end, AFTER_END)
