/* SPDX-License-Identifier: MIT */
/*
 * Units on several meshes in one context of the explicit calls: cut among all ranks, among two, among two with replicas,
 * not at all. Parameters, gradients and the norm are those of one process. What one rank does differently is a mismatch on
 * all.
 */
#include <math.h>

#include "fixtures/fsdp_on_device.h"

#include "base/clock.h"
#include "fixtures/rank_world.h"
#include "harness/harness.h"
#include "shoal/fsdp.h"
#include "shoal/mesh.h"

enum {
    COUNT = 7, /* of a parameter: no number of ranks divides it */
    N_STEPS = 3,
    MAX_RANKS = 6
};

enum kind {
    EVERYWHERE,
    PAIR,
    ROWS,
    REPLICATED,
    N_UNITS
};

struct stage {
    struct rank *self;
    shoal_world *world;
    shoal_mesh *rows;
    shoal_group *pair;
    shoal_fsdp *fsdp;
    float values[MAX_RANKS / 2][N_UNITS][COUNT]; /* of each pair, in one process */
    float grads[MAX_RANKS / 2][N_UNITS][COUNT];
};

static bool open_stage(struct stage *stage, struct rank *self)
{
    static const char *const names[] = {"replicas", "shards"};
    const int shape[] = {self->n_ranks / 2, 2};
    const int pair[] = {self->rank / 2 * 2, self->rank / 2 * 2 + 1};
    *stage = (struct stage){.self = self, .world = rank_world_open(self, 0)};
    return stage->world &&
           CHECK_OK(shoal_mesh_create(stage->world, "cpu", NULL, shape, 2, names, &stage->rows)) &&
           CHECK_OK(shoal_group_create(stage->world, pair, 2, "experts", &stage->pair)) &&
           CHECK_OK(shoal_fsdp_create(shoal_world_group(stage->world), NULL, &stage->fsdp));
}

static void close_stage(struct stage *stage)
{
    shoal_fsdp_free(stage->fsdp);
    shoal_mesh_free(stage->rows);
}

static float draw(int unit, int k)
{
    return (float)((unit * 31 + k * 17) % 23) / 7.0F - 1.0F;
}

static shoal_fsdp_unit_options options_of(const struct stage *stage, enum kind kind)
{
    shoal_fsdp_unit_options options = SHOAL_FSDP_UNIT_OPTIONS_INIT;
    options.mesh = kind == ROWS ? stage->rows : NULL;
    options.group = kind == PAIR ? stage->pair : kind == ROWS ? NULL : shoal_world_group(stage->world);
    options.is_replicated = kind == REPLICATED;
    return options;
}

/* Unit i is of kind where[i]. The first has the ranks of the context. */
static bool add_units(struct stage *stage, const enum kind *where, int n_units)
{
    for (int i = 0; i < n_units; i++) {
        const int64_t shape[] = {COUNT};
        shoal_fsdp_unit_options options = options_of(stage, where[i]);
        float full[COUNT];
        char name[16];
        int unit = i;
        (void)snprintf(name, sizeof name, "p%d", i);
        for (int k = 0; k < COUNT; k++) {
            full[k] = draw(i, k);
            for (int pair = 0; pair < MAX_RANKS / 2; pair++) {
                stage->values[pair][i][k] = full[k];
            }
        }
        if ((where[i] != EVERYWHERE && !CHECK_OK(shoal_fsdp_add_unit(stage->fsdp, &options, &unit))) ||
            !CHECK_INT(unit, i) ||
            !CHECK_OK(shoal_fsdp_add_param(stage->fsdp, i, name, SHOAL_F32, 1, shape, full, NULL))) {
            return false;
        }
    }
    return true;
}

/* What a rank's computation gives. */
static float gradient(int rank, int step, int unit, int k, float value)
{
    return value * 0.3F + (float)(rank * 7 + step * 3 + unit + k) / 13.0F;
}

static shoal_status run_step(struct stage *stage, int step)
{
    shoal_status status = SHOAL_OK;
    for (int unit = 0; unit < N_UNITS && status == SHOAL_OK; unit++) {
        status = shoal_fsdp_pre_forward(stage->fsdp, unit);
        const float *full = status == SHOAL_OK ? shoal_fsdp_full_param(stage->fsdp, unit) : NULL;
        if (full) {
            (void)CHECK_BYTES(full, stage->values[stage->self->rank / 2][unit], COUNT * sizeof(float));
        }
        status = status == SHOAL_OK ? shoal_fsdp_post_forward(stage->fsdp, unit) : status;
    }
    for (int unit = N_UNITS - 1; unit >= 0 && status == SHOAL_OK; unit--) {
        status = shoal_fsdp_pre_backward(stage->fsdp, unit);
        const float *full = status == SHOAL_OK ? shoal_fsdp_full_param(stage->fsdp, unit) : NULL;
        float *grad = status == SHOAL_OK ? shoal_fsdp_grad(stage->fsdp, unit) : NULL;
        for (int k = 0; full && grad && k < COUNT; k++) {
            grad[k] += gradient(stage->self->rank, step, unit, k, full[k]);
        }
        status = status == SHOAL_OK ? shoal_fsdp_post_backward(stage->fsdp, unit) : status;
    }
    return status == SHOAL_OK ? shoal_fsdp_end_backward(stage->fsdp) : status;
}

/* One process --------------------------------------------------------------------------------------------- */

static float mean_of(const struct stage *stage, int begin, int n, int step, int unit, int k)
{
    float sum = gradient(begin, step, unit, k, stage->values[begin / 2][unit][k]);
    for (int rank = begin + 1; rank < begin + n; rank++) {
        sum += gradient(rank, step, unit, k, stage->values[rank / 2][unit][k]);
    }
    return sum / (float)n;
}

static float reduce(const struct stage *stage, int pair, int step, int unit, int k)
{
    int n_ranks = stage->self->n_ranks;
    if (unit == PAIR) {
        return mean_of(stage, 2 * pair, 2, step, unit, k);
    }
    if (unit != ROWS) {
        return mean_of(stage, 0, n_ranks, step, unit, k);
    }
    float sum = mean_of(stage, 0, 2, step, unit, k);
    for (int row = 1; row < n_ranks / 2; row++) {
        sum += mean_of(stage, 2 * row, 2, step, unit, k);
    }
    return sum / (float)(n_ranks / 2);
}

static void step_alone(struct stage *stage, int step)
{
    for (int pair = 0; pair < stage->self->n_ranks / 2; pair++) {
        for (int i = 0; i < N_UNITS * COUNT; i++) {
            stage->grads[pair][i / COUNT][i % COUNT] = reduce(stage, pair, step, i / COUNT, i % COUNT);
        }
    }
}

/* Every expert counts, everything else once. */
static double norm_alone(const struct stage *stage)
{
    double sum = 0.0;
    for (int unit = 0; unit < N_UNITS; unit++) {
        int n_copies = unit == PAIR ? stage->self->n_ranks / 2 : 1;
        for (int i = 0; i < n_copies * COUNT; i++) {
            double g = (double)stage->grads[i / COUNT][unit][i % COUNT];
            sum += g * g;
        }
    }
    return sqrt(sum);
}

static void update(struct stage *stage)
{
    int mine = stage->self->rank / 2;
    for (int unit = 0; unit < N_UNITS; unit++) {
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        REQUIRE_OK(shoal_fsdp_update_shard(stage->fsdp, unit, &shard));
        float *data = shard.data;
        const float *grad = shard.grad;
        REQUIRE(grad != NULL || shard.count == 0);
        if (shard.count > 0) {
            (void)CHECK_BYTES(grad, &stage->grads[mine][unit][shard.offset], shard.count * sizeof(float));
        }
        for (size_t k = 0; k < shard.count; k++) {
            data[k] -= 0.1F * grad[k];
        }
    }
    for (int i = 0; i < MAX_RANKS / 2 * N_UNITS * COUNT; i++) {
        (&stage->values[0][0][0])[i] -= 0.1F * (&stage->grads[0][0][0])[i];
    }
    (void)CHECK_OK(shoal_fsdp_zero_grad(stage->fsdp));
}

static const enum kind kinds[] = {EVERYWHERE, PAIR, ROWS, REPLICATED};

static void check_bits(struct rank *self)
{
    struct stage stage;
    REQUIRE(open_stage(&stage, self) && add_units(&stage, kinds, N_UNITS));
    for (int step = 0; step < N_STEPS && !test_has_failed(); step++) {
        double norm = 0.0;
        (void)CHECK_OK(run_step(&stage, step));
        step_alone(&stage, step);
        (void)CHECK_OK(shoal_fsdp_clip_grad_norm(stage.fsdp, 1e30, 2.0, false, &norm));
        CHECK(fabs(norm - norm_alone(&stage)) < 1e-12 * norm);
        update(&stage);
    }
    shoal_fsdp_memory_report report = SHOAL_FSDP_MEMORY_REPORT_INIT;
    (void)CHECK_OK(shoal_fsdp_memory(stage.fsdp, &report));
    (void)CHECK_INT(report.n_ranks, self->n_ranks);
    size_t all = (COUNT + (size_t)self->n_ranks - 1) / (size_t)self->n_ranks + 2 * ((COUNT + 1) / 2) + COUNT;
    CHECK(report.rank.shards >= all * sizeof(float));
    close_stage(&stage);
    (void)CHECK_OK(shoal_world_close(stage.world));
}

TEST_RANKS(bits_of_four, 4)
{
    check_bits(self);
}

TEST_RANKS(bits_of_six, 6)
{
    check_bits(self);
}

/* The largest norm scales all gradients by one factor, wherever they are. */
TEST_RANKS(clipping, 4)
{
    struct stage stage;
    double norm = 0.0;
    REQUIRE(open_stage(&stage, self) && add_units(&stage, kinds, N_UNITS));
    (void)CHECK_OK(run_step(&stage, 0));
    step_alone(&stage, 0);
    (void)CHECK_OK(shoal_fsdp_clip_grad_norm(stage.fsdp, 0.5, (double)INFINITY, false, &norm));
    double largest = 0.0;
    for (int i = 0; i < 2 * N_UNITS * COUNT; i++) {
        largest = fmax(largest, fabs((double)(&stage.grads[0][0][0])[i]));
    }
    CHECK(norm == largest);
    for (int unit = 0; unit < N_UNITS; unit++) {
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        REQUIRE_OK(shoal_fsdp_read_shard(stage.fsdp, unit, &shard));
        const float *grad = shard.grad;
        for (size_t k = 0; k < shard.count; k++) {
            double want = (double)stage.grads[self->rank / 2][unit][(size_t)shard.offset + k] * 0.5 / norm;
            CHECK(fabs((double)grad[k] - want) < 1e-5);
        }
    }
    close_stage(&stage);
    (void)CHECK_OK(shoal_world_close(stage.world));
}

/* Differences ---------------------------------------------------------------------------------------------- */

static void check_difference(struct rank *self, const enum kind *where, int n_units, bool is_clip)
{
    struct stage stage;
    bool is_odd = self->rank == self->n_ranks - 1;
    REQUIRE(open_stage(&stage, self) &&
            add_units(&stage, is_odd ? where : kinds, is_odd ? n_units : N_UNITS));
    int64_t began_ns = clock_now_ns();
    shoal_status status = is_clip ? shoal_fsdp_clip_grad_norm(stage.fsdp, 1.0, 2.0, false, NULL)
                                  : shoal_fsdp_pre_forward(stage.fsdp, 0);
    (void)CHECK_INT(status, SHOAL_ERR_MISMATCH);
    CHECK((double)(clock_now_ns() - began_ns) * 1e-9 < 10 * test_time_scale());
    (void)CHECK_STATUS(shoal_fsdp_pre_forward(stage.fsdp, 0), SHOAL_ERR_MISMATCH);
    test_barrier(self);
    close_stage(&stage);
    (void)shoal_world_close(stage.world);
}

static void check_differences(struct rank *self, bool is_clip)
{
    static const struct {
        enum kind where[N_UNITS];
        int n_units;
    } differences[] = {{{EVERYWHERE, PAIR, REPLICATED, ROWS}, N_UNITS},
                       {{EVERYWHERE, ROWS, PAIR, REPLICATED}, N_UNITS},
                       {{EVERYWHERE, PAIR, ROWS}, N_UNITS - 1},
                       {{EVERYWHERE, PAIR, PAIR, REPLICATED}, N_UNITS},
                       {{EVERYWHERE, PAIR, ROWS, EVERYWHERE}, N_UNITS},
                       {{EVERYWHERE}, 1},
                       {{EVERYWHERE, EVERYWHERE, EVERYWHERE, EVERYWHERE}, 4}};
    for (size_t i = 0; i < sizeof differences / sizeof differences[0] && !test_has_failed(); i++) {
        check_difference(self, differences[i].where, differences[i].n_units, is_clip);
    }
}

TEST_RANKS(one_rank_has_other_units, 4)
{
    check_differences(self, false);
}

TEST_RANKS(one_rank_has_other_units_and_clips, 4)
{
    check_differences(self, true);
}

/* Refusals -------------------------------------------------------------------------------------------------- */

TEST_RANKS(wrong_options, 2)
{
    struct stage stage;
    int unit = 77;
    REQUIRE(open_stage(&stage, self));
    shoal_fsdp_unit_options options = SHOAL_FSDP_UNIT_OPTIONS_INIT;
    (void)CHECK_STATUS(shoal_fsdp_add_unit(stage.fsdp, NULL, &unit), SHOAL_ERR_INVALID);
    (void)CHECK_STATUS(shoal_fsdp_add_unit(NULL, &options, &unit), SHOAL_ERR_INVALID);
    (void)CHECK_STATUS(shoal_fsdp_add_unit(stage.fsdp, &options, &unit), SHOAL_ERR_INVALID);
    (void)CHECK_ERROR_TEXT("add_unit: neither a group nor a mesh");
    options.group = stage.pair;
    options.mesh = stage.rows;
    (void)CHECK_STATUS(shoal_fsdp_add_unit(stage.fsdp, &options, &unit), SHOAL_ERR_INVALID);
    options.group = NULL;
    options.is_replicated = true;
    (void)CHECK_STATUS(shoal_fsdp_add_unit(stage.fsdp, &options, &unit), SHOAL_ERR_INVALID);
    options.is_replicated = false;
    options.struct_size = 3;
    (void)CHECK_STATUS(shoal_fsdp_add_unit(stage.fsdp, &options, &unit), SHOAL_ERR_INVALID);
    options.struct_size = sizeof options;
    (void)CHECK_INT(unit, 77);
    (void)CHECK_OK(shoal_fsdp_add_unit(stage.fsdp, &options, NULL));
    (void)CHECK_OK(shoal_fsdp_add_param(stage.fsdp, 0, "p", SHOAL_F32, 1, (int64_t[]){COUNT}, NULL, NULL));
    (void)CHECK_OK(shoal_fsdp_pre_forward(stage.fsdp, 0));
    (void)CHECK_STATUS(shoal_fsdp_add_unit(stage.fsdp, &options, &unit), SHOAL_ERR_STATE);
    (void)CHECK_OK(shoal_fsdp_post_forward(stage.fsdp, 0));
    (void)CHECK_OK(shoal_fsdp_end_forward(stage.fsdp));
    close_stage(&stage);
    (void)CHECK_OK(shoal_world_close(stage.world));
}
