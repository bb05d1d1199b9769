/* SPDX-License-Identifier: MIT */
/*
 * Windows and buffers that are replaced by larger ones: units of all sizes train to the values that they should have, on
 * ranks of which some are late; pools stay below their limits and alike on all ranks; memory that runs out in the middle
 * leaves everything usable. And the gradients of replicas, which lie in the buffers.
 */
#include <stdlib.h>
#include <sys/resource.h>

#include "fixtures/fsdp_on_device.h"

#include "fixtures/fsdp_model.h"
#include "fixtures/proc_memory.h"

enum {
    N_UNITS = 9,
    N_STEPS = 3
};

#define PAGE 4096

/* Training ----------------------------------------------------------------------------------------------- */

struct trainer {
    struct rank *self;
    shoal_world *world;
    shoal_fsdp *fsdp;
    int64_t sizes[N_UNITS]; /* elements: two parameters each, the second of 3 elements */
    int n_ahead;
    int max_reduces;
    struct test_random late;
};

/* Small whole numbers: sums and means over 2 or 4 ranks are exact. */
static float grad_of(int step, int unit, int rank, int64_t i)
{
    return (float)((step * 7 + unit * 5 + rank * 4 + (int)(i % 11)) % 16 * 4);
}

static float start_of(int unit, int64_t i)
{
    return (float)(unit * 3 + (int)(i % 13));
}

static float *start_values(int unit, int64_t count)
{
    float *values = malloc((size_t)count * sizeof *values);
    for (int64_t i = 0; values && i < count; i++) {
        values[i] = start_of(unit, i);
    }
    return values;
}

static bool trainer_open(struct trainer *trainer, bool is_replicated)
{
    shoal_fsdp_options options = {.struct_size = sizeof options,
                                  .forward_prefetch = trainer->n_ahead,
                                  .max_reduces = trainer->max_reduces};
    trainer->world = rank_world_open(trainer->self, 0);
    if (!trainer->world) {
        return false;
    }
    shoal_group *group = shoal_world_group(trainer->world);
    bool is_good = CHECK_OK(is_replicated ? shoal_fsdp_create_replicated(group, &options, &trainer->fsdp)
                                          : shoal_fsdp_create(group, &options, &trainer->fsdp));
    for (int unit = 0; is_good && unit < N_UNITS; unit++) {
        const int64_t shape[] = {trainer->sizes[unit]};
        const int64_t three[] = {3};
        float *values = start_values(unit, shape[0]);
        is_good =
            CHECK_OK(shoal_fsdp_add_param(trainer->fsdp, unit, "w", SHOAL_F32, 1, shape, values, NULL)) &&
            CHECK_OK(shoal_fsdp_add_param(trainer->fsdp, unit, "b", SHOAL_F32, 1, three, NULL, NULL));
        free(values);
    }
    return is_good;
}

static void trainer_close(struct trainer *trainer)
{
    shoal_fsdp_free(trainer->fsdp);
    trainer->fsdp = NULL;
    CHECK_OK(shoal_world_close(trainer->world));
}

/* Now and then a rank is late: that must change nothing. */
static void be_late(struct trainer *trainer)
{
    if (test_random_below(&trainer->late, 8) == 0) {
        test_pause(0.001);
    }
}

static shoal_status backward(struct trainer *trainer, int step, int unit)
{
    MODEL_TRY(shoal_fsdp_pre_backward(trainer->fsdp, unit));
    float *grad = shoal_fsdp_grad(trainer->fsdp, 2 * unit);
    for (int64_t i = 0; grad && i < trainer->sizes[unit]; i++) {
        grad[i] += grad_of(step, unit, trainer->self->rank, i);
    }
    be_late(trainer);
    return shoal_fsdp_post_backward(trainer->fsdp, unit);
}

static shoal_status run_step(struct trainer *trainer, int step)
{
    for (int unit = 0; unit < N_UNITS; unit++) {
        MODEL_TRY(shoal_fsdp_pre_forward(trainer->fsdp, unit));
        be_late(trainer);
        MODEL_TRY(shoal_fsdp_post_forward(trainer->fsdp, unit));
    }
    for (int unit = N_UNITS - 1; unit >= 0; unit--) {
        MODEL_TRY(backward(trainer, step, unit));
    }
    return shoal_fsdp_end_backward(trainer->fsdp);
}

static void update(struct trainer *trainer)
{
    for (int id = 0; id < shoal_fsdp_n_params(trainer->fsdp); id++) {
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        REQUIRE_OK(shoal_fsdp_update_shard(trainer->fsdp, id, &shard));
        float *values = shard.data;
        const float *grad = shard.grad;
        REQUIRE(grad != NULL);
        for (size_t i = 0; i < shard.count; i++) {
            values[i] -= grad[i];
        }
    }
    CHECK_OK(shoal_fsdp_zero_grad(trainer->fsdp));
}

/* After so many steps. */
static float value_of(const struct trainer *trainer, int n_steps, int unit, int64_t i)
{
    float value = start_of(unit, i);
    for (int step = 0; step < n_steps; step++) {
        float sum = 0.0F;
        for (int rank = 0; rank < trainer->self->n_ranks; rank++) {
            sum += grad_of(step, unit, rank, i);
        }
        value -= sum / (float)trainer->self->n_ranks;
    }
    return value;
}

static void check_values(struct trainer *trainer, int n_steps)
{
    for (int unit = 0; unit < N_UNITS && !test_has_failed(); unit++) {
        int64_t count = trainer->sizes[unit];
        float *values = malloc((size_t)count * sizeof *values);
        REQUIRE(values != NULL);
        CHECK_OK(
            shoal_fsdp_gather(shoal_fsdp_param_of(trainer->fsdp, 2 * unit), values, SHOAL_FSDP_ALL_RANKS));
        for (int64_t i = 0; i < count && !test_has_failed(); i++) {
            CHECK_DOUBLE((double)values[i], (double)value_of(trainer, n_steps, unit, i));
        }
        free(values);
    }
}

static shoal_fsdp_memory_report memory_of(const struct trainer *trainer)
{
    shoal_fsdp_memory_report report = {.struct_size = sizeof report};
    CHECK_OK(shoal_fsdp_memory(trainer->fsdp, &report));
    return report;
}

/* Sizes -------------------------------------------------------------------------------------------------- */

static size_t round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* The window, or the buffer with padding, of the largest unit. */
static size_t largest_of(const struct trainer *trainer, size_t n_shards)
{
    size_t largest = 0;
    for (int unit = 0; unit < N_UNITS; unit++) {
        size_t rows = ((size_t)trainer->sizes[unit] + n_shards - 1) / n_shards * n_shards;
        size_t bytes =
            round_up(rows * sizeof(float)) + round_up((3 + n_shards - 1) / n_shards * n_shards * 4);
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

/* Everybody's, compared with that of rank 0. */
static void check_alike(struct trainer *trainer)
{
    shoal_fsdp_memory_report *board = trainer->self->shared;
    test_barrier(trainer->self);
    board[trainer->self->rank] = memory_of(trainer);
    test_barrier(trainer->self);
    CHECK_INT(board[trainer->self->rank].rank.windows, board[0].rank.windows);
    CHECK_INT(board[trainer->self->rank].rank.buffers, board[0].rank.buffers);
    CHECK_INT(board[trainer->self->rank].rank_peak.windows, board[0].rank_peak.windows);
    CHECK_INT(board[trainer->self->rank].rank_peak.buffers, board[0].rank_peak.buffers);
    test_barrier(trainer->self);
}

static void check_limits(const struct trainer *trainer)
{
    size_t n_ranks = (size_t)trainer->self->n_ranks;
    shoal_fsdp_memory_report report = memory_of(trainer);
    size_t n_windows = 2 + (size_t)(trainer->n_ahead > 0 ? trainer->n_ahead : trainer->n_ahead + 1);
    size_t n_buffers = 1 + (size_t)trainer->max_reduces;
    size_t rounding = n_ranks * n_windows;
    CHECK(report.rank_peak.windows > 0);
    CHECK(report.host_peak.windows <= n_windows * largest_of(trainer, 1) + rounding);
    CHECK(report.rank_peak.buffers > 0);
    CHECK(report.rank_peak.buffers <= n_buffers * largest_of(trainer, n_ranks));
    CHECK(report.rank_peak.total <= report.rank_peak.shards + report.rank_peak.gradients +
                                        report.rank_peak.windows + report.rank_peak.buffers);
}

static void check_training(struct trainer *trainer)
{
    trainer->late = test_random_begin((uint64_t)trainer->self->rank);
    REQUIRE(trainer_open(trainer, false));
    for (int step = 0; step < N_STEPS && !test_has_failed(); step++) {
        REQUIRE_OK(run_step(trainer, step));
        update(trainer);
        check_alike(trainer);
    }
    check_values(trainer, N_STEPS);
    check_limits(trainer);
    trainer_close(trainer);
}

static void set_sizes(struct trainer *trainer, int first, int by)
{
    for (int unit = 0; unit < N_UNITS; unit++) {
        trainer->sizes[unit] = 501 * (first + by * unit);
    }
}

TEST_RANKS(sizes_that_go_up, 2)
{
    struct trainer trainer = {.self = self, .n_ahead = 1, .max_reduces = 1};
    set_sizes(&trainer, 1, 1);
    check_training(&trainer);
}

TEST_RANKS(sizes_that_go_down, 4)
{
    struct trainer trainer = {.self = self, .n_ahead = 2, .max_reduces = 2};
    set_sizes(&trainer, N_UNITS, -1);
    check_training(&trainer);
}

/* The same on all ranks, from the seed. */
TEST_RANKS(sizes_at_random, 2)
{
    struct test_random random = test_random_begin(77);
    for (int round = 0; round < 6 && !test_has_failed(); round++) {
        struct trainer trainer = {
            .self = self, .n_ahead = round % 3 == 2 ? -1 : round % 3 + 1, .max_reduces = 1 + round % 2};
        for (int unit = 0; unit < N_UNITS; unit++) {
            trainer.sizes[unit] = (int64_t)1 << test_random_below(&random, 15);
            trainer.sizes[unit] += (int64_t)test_random_below(&random, (uint64_t)trainer.sizes[unit]);
        }
        check_training(&trainer);
    }
}

/* Failures ----------------------------------------------------------------------------------------------- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_ROOM_TO_LIMIT 0 /* sanitizers need all addresses */
#else
#define HAS_ROOM_TO_LIMIT 1
#endif

/* This process can map so many bytes more. */
static bool limit_addresses(size_t more)
{
    unsigned long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    bool is_read = statm && fscanf(statm, "%lu", &pages) == 1;
    if (statm) {
        (void)fclose(statm);
    }
    struct rlimit limit = {.rlim_cur = pages * (unsigned long)sysconf(_SC_PAGESIZE) + more,
                           .rlim_max = RLIM_INFINITY};
    return is_read && setrlimit(RLIMIT_AS, &limit) == 0;
}

static bool unlimit_addresses(void)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    return setrlimit(RLIMIT_AS, &limit) == 0;
}

/* One rank cannot map the larger window that takes the place of a small one: an error on both, and the next step is as
   good as ever. */
TEST_PROCESSES(no_memory_in_the_middle_of_a_replacement, 2)
{
    struct trainer trainer = {.self = self, .n_ahead = -1, .max_reduces = 1};
    trainer.late = test_random_begin(0);
    set_sizes(&trainer, 1, 0);
    trainer.sizes[5] = 4 << 20;
    REQUIRE(trainer_open(&trainer, false));
    for (int unit = 0; unit < 5; unit++) {
        REQUIRE_OK(shoal_fsdp_pre_forward(trainer.fsdp, unit));
        REQUIRE_OK(shoal_fsdp_post_forward(trainer.fsdp, unit));
    }
    size_t before = memory_of(&trainer).rank.windows;
    CHECK(before > 0);
    if (HAS_ROOM_TO_LIMIT) {
        CHECK(self->rank == 0 || limit_addresses((size_t)4 << 20));
        CHECK_STATUS(shoal_fsdp_pre_forward(trainer.fsdp, 5), SHOAL_ERR_NO_MEMORY);
        CHECK_ERROR_TEXT("rank 1");
        CHECK(self->rank == 0 || unlimit_addresses());
        CHECK_INT(memory_of(&trainer).rank.windows, 0); /* the small one is gone, on both */
        CHECK_INT(proc_shared_bytes(self, "shoal:window", NULL), 0);
    }
    CHECK_OK(shoal_fsdp_reset(trainer.fsdp));
    REQUIRE_OK(run_step(&trainer, 0));
    update(&trainer);
    check_values(&trainer, 1);
    trainer_close(&trainer);
}

/* Only one of the two ranks has to replace a window: the other one gathers. */
TEST_RANKS(one_rank_replaces_and_the_other_does_not, 2)
{
    struct trainer trainer = {.self = self, .n_ahead = -1, .max_reduces = 1};
    set_sizes(&trainer, 1, 0);
    trainer.sizes[5] = 9 * 501;
    REQUIRE(trainer_open(&trainer, false));
    REQUIRE_OK(shoal_fsdp_pre_forward(trainer.fsdp, 0));
    REQUIRE_OK(shoal_fsdp_post_forward(trainer.fsdp, 0));
    CHECK_STATUS(shoal_fsdp_pre_forward(trainer.fsdp, self->rank == 0 ? 1 : 5), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("unit 1");
    CHECK_ERROR_TEXT("unit 5");
    CHECK_ERROR_TEXT("window");
    trainer_close(&trainer);
}

/* A parameter is frozen on one rank alone, which then needs a smaller buffer than there is. */
TEST_RANKS(one_rank_needs_another_buffer, 2)
{
    struct trainer trainer = {.self = self, .n_ahead = 1, .max_reduces = 1};
    trainer.late = test_random_begin(0);
    set_sizes(&trainer, 4, 0);
    REQUIRE(trainer_open(&trainer, false));
    REQUIRE_OK(run_step(&trainer, 0));
    CHECK_OK(shoal_fsdp_zero_grad(trainer.fsdp));
    if (self->rank == 1) {
        CHECK_OK(shoal_fsdp_set_requires_grad(trainer.fsdp, 2 * (N_UNITS - 1), false));
    }
    for (int unit = 0; unit < N_UNITS; unit++) {
        CHECK_OK(shoal_fsdp_pre_forward(trainer.fsdp, unit));
        CHECK_OK(shoal_fsdp_post_forward(trainer.fsdp, unit));
    }
    shoal_status status = shoal_fsdp_pre_backward(trainer.fsdp, N_UNITS - 1);
    status = status == SHOAL_OK ? shoal_fsdp_post_backward(trainer.fsdp, N_UNITS - 1) : status;
    status = status == SHOAL_OK ? shoal_fsdp_end_backward(trainer.fsdp) : status;
    CHECK_INT(status, SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("unit 8");
    CHECK_ERROR_TEXT("without w");
    trainer_close(&trainer);
}

/* Gradients are cleared on one replica alone: its next ones would lie where those of the other are added. */
TEST_RANKS(one_replica_clears_its_gradients, 2)
{
    struct trainer trainer = {.self = self, .n_ahead = 1, .max_reduces = 1};
    trainer.late = test_random_begin(0);
    set_sizes(&trainer, 4, 0);
    REQUIRE(trainer_open(&trainer, true));
    REQUIRE_OK(run_step(&trainer, 0));
    if (self->rank == 0) {
        CHECK_OK(shoal_fsdp_zero_grad(trainer.fsdp));
    }
    CHECK_STATUS(run_step(&trainer, 1), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("unit 8");
    trainer_close(&trainer);
}

/* Any allocation of a rank that is alone. */
static shoal_status train_alone(void *context)
{
    struct trainer *trainer = context;
    shoal_status status =
        shoal_fsdp_create_replicated(shoal_world_group(trainer->world), NULL, &trainer->fsdp);
    for (int unit = 0; status == SHOAL_OK && unit < N_UNITS; unit++) {
        const int64_t shape[] = {trainer->sizes[unit]};
        const int64_t three[] = {3};
        status = shoal_fsdp_add_param(trainer->fsdp, unit, "w", SHOAL_F32, 1, shape, NULL, NULL);
        status = status == SHOAL_OK
                     ? shoal_fsdp_add_param(trainer->fsdp, unit, "b", SHOAL_F32, 1, three, NULL, NULL)
                     : status;
    }
    for (int step = 0; step < 2 && status == SHOAL_OK; step++) {
        status = run_step(trainer, step);
        CHECK_OK(shoal_fsdp_zero_grad(trainer->fsdp));
    }
    shoal_fsdp_free(trainer->fsdp);
    trainer->fsdp = NULL;
    return status;
}

TEST_RANKS(any_allocation_may_fail, 1)
{
    struct trainer trainer = {.self = self, .n_ahead = 1, .max_reduces = 1};
    trainer.late = test_random_begin(0);
    set_sizes(&trainer, 1, 1);
    trainer.world = rank_world_open(self, 0);
    REQUIRE(trainer.world != NULL);
    CHECK(test_sweep_allocations(train_alone, &trainer) > N_UNITS);
    CHECK_OK(shoal_world_close(trainer.world));
}

/* Replicas ----------------------------------------------------------------------------------------------- */

static const float *grad_at(const struct trainer *trainer, int id)
{
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    return CHECK_OK(shoal_fsdp_update_shard(trainer->fsdp, id, &shard)) ? shard.grad : NULL;
}

/* Of so many steps since the gradients were cleared. */
static void check_grads(const struct trainer *trainer, int first, int n_steps)
{
    for (int unit = 0; unit < N_UNITS && !test_has_failed(); unit++) {
        const float *grad = grad_at(trainer, 2 * unit);
        REQUIRE(grad != NULL);
        for (int64_t i = 0; i < trainer->sizes[unit] && !test_has_failed(); i++) {
            float sum = 0.0F;
            for (int step = first; step < first + n_steps; step++) {
                sum += (grad_of(step, unit, 0, i) + grad_of(step, unit, 1, i)) / 2.0F;
            }
            CHECK_DOUBLE((double)grad[i], (double)sum);
        }
    }
}

static size_t all_buffers(const struct trainer *trainer)
{
    size_t bytes = 0;
    for (int unit = 0; unit < N_UNITS; unit++) {
        bytes += round_up((size_t)trainer->sizes[unit] * sizeof(float)) + 64;
    }
    return bytes;
}

/* Gradients of all units lie in buffers of exactly their size, and nowhere else; the next step uses the same. */
TEST_RANKS(gradients_of_replicas_lie_in_the_buffers, 2)
{
    struct trainer trainer = {.self = self, .n_ahead = 1, .max_reduces = 1};
    trainer.late = test_random_begin((uint64_t)self->rank);
    set_sizes(&trainer, 1, 1);
    REQUIRE(trainer_open(&trainer, true));
    for (int step = 0; step < N_STEPS; step++) {
        REQUIRE_OK(run_step(&trainer, step));
        check_grads(&trainer, step, 1);
        shoal_fsdp_memory_report report = memory_of(&trainer);
        CHECK_INT(report.rank.gradients, 0);
        CHECK_INT(report.rank.windows, 0);
        CHECK_INT(report.rank.other, 0);
        CHECK_INT(report.rank.buffers, all_buffers(&trainer));
        CHECK_INT(report.rank_peak.buffers, all_buffers(&trainer));
        CHECK_OK(shoal_fsdp_zero_grad(trainer.fsdp));
        CHECK(grad_at(&trainer, 0) == NULL);
    }
    trainer_close(&trainer);
}

/* Without zero_grad the next ones are added where the first ones lie. */
TEST_RANKS(gradients_of_replicas_are_added_up, 2)
{
    struct trainer trainer = {.self = self, .n_ahead = 1, .max_reduces = 1};
    trainer.late = test_random_begin((uint64_t)self->rank);
    set_sizes(&trainer, N_UNITS, -1);
    REQUIRE(trainer_open(&trainer, true));
    REQUIRE_OK(run_step(&trainer, 0));
    const float *first = grad_at(&trainer, 4);
    REQUIRE_OK(run_step(&trainer, 1));
    CHECK(grad_at(&trainer, 4) == first);
    check_grads(&trainer, 0, 2);
    CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(trainer.fsdp, SHOAL_FSDP_ALL_UNITS), false));
    REQUIRE_OK(run_step(&trainer, 2));
    CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(trainer.fsdp, SHOAL_FSDP_ALL_UNITS), true));
    REQUIRE_OK(run_step(&trainer, 3));
    check_grads(&trainer, 0, 4);
    shoal_fsdp_memory_report report = memory_of(&trainer);
    CHECK_INT(report.rank.gradients, 0);
    CHECK(report.rank.buffers <= 2 * all_buffers(&trainer) + 2 * largest_of(&trainer, 1));
    trainer_close(&trainer);
}

static shoal_status use_up(void *context, int id, shoal_fsdp_shard *shard)
{
    int *n = context;
    (void)id;
    n[0] += shard->grad != NULL;
    shard->grad = NULL;
    return SHOAL_OK;
}

/* What the hook has used up gives its buffer back: three are enough then, one that is written, one that waits for its turn
   and one that is reduced. */
TEST_RANKS(gradients_of_replicas_that_are_used_up, 2)
{
    struct trainer trainer = {.self = self, .n_ahead = 1, .max_reduces = 1};
    int n = 0;
    trainer.late = test_random_begin((uint64_t)self->rank);
    set_sizes(&trainer, 4, 0);
    REQUIRE(trainer_open(&trainer, true));
    CHECK_OK(
        shoal_fsdp_set_accumulated_hook(shoal_fsdp_unit_of(trainer.fsdp, SHOAL_FSDP_ALL_UNITS), use_up, &n));
    for (int step = 0; step < N_STEPS; step++) {
        REQUIRE_OK(run_step(&trainer, step));
    }
    CHECK_INT(n, 2 * N_UNITS * N_STEPS);
    CHECK_INT(memory_of(&trainer).rank_peak.buffers, 3 * largest_of(&trainer, 1));
    trainer_close(&trainer);
}

/* The world takes the gradients of replicas with it. */
TEST_RANKS(a_closed_world_takes_them_along, 2)
{
    struct trainer trainer = {.self = self, .n_ahead = 1, .max_reduces = 1};
    trainer.late = test_random_begin((uint64_t)self->rank);
    set_sizes(&trainer, 1, 1);
    REQUIRE(trainer_open(&trainer, true));
    REQUIRE_OK(run_step(&trainer, 0));
    CHECK_OK(shoal_world_close(trainer.world));
    shoal_fsdp_memory_report report = memory_of(&trainer);
    CHECK_INT(report.rank.buffers, 0);
    CHECK_INT(report.rank_peak.buffers, all_buffers(&trainer));
    CHECK(report.rank.shards > 0);
    CHECK_OK(shoal_fsdp_zero_grad(trainer.fsdp));
    shoal_fsdp_free(trainer.fsdp);
}

/* Reports ------------------------------------------------------------------------------------------------ */

TEST_RANKS(what_a_report_says, 2)
{
    struct trainer trainer = {.self = self, .n_ahead = 1, .max_reduces = 1};
    char text[1024];
    char little[16];
    trainer.late = test_random_begin(0);
    for (int unit = 0; unit < N_UNITS; unit++) {
        trainer.sizes[unit] = 1024; /* 4096 bytes and 64 */
    }
    REQUIRE(trainer_open(&trainer, false));
    shoal_fsdp_memory_report report = memory_of(&trainer);
    /* On two hosts, parallel/fsdp/replace/hosts, each rank has windows of its own. */
    size_t n_local = getenv("SHOAL_PRETEND_HOSTS") ? 1 : 2;
    CHECK_INT(report.n_ranks, 2);
    CHECK_INT(report.rank.shards, N_UNITS * (2048 + 8));
    CHECK_INT(report.rank.total, report.rank.shards);
    CHECK_INT(report.host.shards, n_local * report.rank.shards);
    for (int step = 0; step < 2; step++) {
        REQUIRE_OK(run_step(&trainer, step));
    }
    report = memory_of(&trainer);
    CHECK_INT(report.rank.windows, 2 * (PAGE + 64) / n_local);
    CHECK_INT(report.host.windows, 2 * (PAGE + 64));
    CHECK_INT(report.rank.buffers, 2 * (PAGE + 64));
    CHECK_INT(report.rank.gradients, N_UNITS * 2048 + N_UNITS * (self->rank == 0 ? 8 : 4));
    CHECK_INT(report.rank.total,
              report.rank.shards + report.rank.gradients + report.rank.windows + report.rank.buffers);
    CHECK_INT(report.rank_peak.total, report.rank.total);
    size_t length = shoal_fsdp_memory_text(&report, text, sizeof text);
    CHECK_INT(length, strlen(text));
    CHECK(strstr(text, "rank peak") && strstr(text, "host peak") && strstr(text, "gradients"));
    CHECK_INT(shoal_fsdp_memory_text(&report, little, sizeof little), length);
    CHECK_INT(strlen(little), sizeof little - 1);
    CHECK(strncmp(little, text, sizeof little - 1) == 0);
    CHECK_INT(shoal_fsdp_memory_text(&report, NULL, 0), length);
    CHECK_INT(shoal_fsdp_memory_text(NULL, little, sizeof little), 0);
    CHECK_INT(little[0], 0);
    trainer_close(&trainer);
}

TEST_RANKS(reports_that_are_refused, 1)
{
    shoal_fsdp *fsdp = NULL;
    shoal_fsdp_memory_report report = {.struct_size = 0};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp));
    CHECK_STATUS(shoal_fsdp_memory(NULL, &report), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("fsdp is NULL");
    CHECK_STATUS(shoal_fsdp_memory(fsdp, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("report_out is NULL");
    CHECK_STATUS(shoal_fsdp_memory(fsdp, &report), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("struct_size");
    /* A caller of an older version has a shorter struct: no more than that is written. */
    report.struct_size = offsetof(shoal_fsdp_memory_report, rank_peak);
    report.rank_peak.total = 17;
    CHECK_OK(shoal_fsdp_memory(fsdp, &report));
    CHECK_INT(report.n_ranks, 1);
    CHECK_INT(report.rank_peak.total, 17);
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}
