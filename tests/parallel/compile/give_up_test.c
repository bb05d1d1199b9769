/* SPDX-License-Identifier: MIT */
/*
 * A rank that gives a compiled step up before it has met the others: they hear of it at once, with its reason. Deadlines of groups are
 * far beyond that of the test, so that a rank which waits for one fails it.
 */
#include "base/error.h"
#include "fixtures/compiled_pair.h"
#include "fixtures/refused_settings.h"

enum {
    CULPRIT = 1,
    TIMEOUT_S = 100000
};

/* Where a rank fails. */
enum fault {
    FAULT_NONE,
    FAULT_BEFORE,  /* the step, before it calls anything, */
    FAULT_AFTER,   /* or when it is almost done */
    FAULT_OUTPUTS, /* no room for outputs */
    FAULT_INPUTS,  /* an input that is a result of operations */
    FAULT_SETTING, /* a setting of the module that cannot be captured */
    FAULT_DIFFERS, /* the step, because ranks differ: the others have that status, too */
    FAULT_COUNT
};

static const char *const texts[FAULT_COUNT] = {
    [FAULT_BEFORE] = "the batch is upside down",
    [FAULT_AFTER] = "the batch is upside down",
    [FAULT_OUTPUTS] = "n_outputs is 0, but the step has",
    [FAULT_INPUTS] = "is a result of recorded operations",
    [FAULT_SETTING] = "cannot be captured",
    [FAULT_DIFFERS] = "the labels are of another batch",
};

struct job {
    shoal_world *world;
    const struct rank *self;
    struct net net;
    shoal_compiled *compiled;
    enum fault fault; /* of this rank, in this run */
    size_t number;    /* of the allocation that fails in it; 0: none */
    bool is_lasting;  /* and all later ones */
};

static shoal_status step(void *context, shoal_tensor *const *inputs, size_t n_inputs, shoal_tensor **outputs,
                         size_t n_outputs)
{
    struct job *job = context;
    (void)n_inputs;
    (void)n_outputs;
    if (job->fault == FAULT_BEFORE) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "the batch is upside down");
    }
    if (job->fault == FAULT_DIFFERS) {
        return error_set(SHOAL_ERR_MISMATCH, "the labels are of another batch");
    }
    outputs[0] = net_loss(&job->net, inputs[0]);
    shoal_status status = shoal_backward(outputs[0], NULL);
    return status == SHOAL_OK && job->fault == FAULT_AFTER
               ? error_set(SHOAL_ERR_UNSUPPORTED, "the batch is upside down")
               : status;
}

static _Thread_local bool is_apart; /* layer 0 is on pairs of ranks, the rest on all */

static bool shard_apart(struct job *job, const shoal_fully_shard_options *shards)
{
    shoal_fully_shard_options pair = *shards;
    pair.mesh = NULL;
    return CHECK_OK(shoal_group_create_blocks(job->world, 2, "pair", &pair.group)) &&
           CHECK_OK(shoal_group_set_timeout(pair.group, TIMEOUT_S)) &&
           CHECK_OK(shoal_fully_shard(job->net.layers[0], &pair)) &&
           CHECK_OK(shoal_fully_shard(job->net.root, shards));
}

/* Four ranks have two replicas of two shards. */
static bool begin(struct job *job, const struct rank *self, enum wrapping wrapping)
{
    static const char *const names[] = {"replicate", "shard"};
    static _Thread_local int round;
    *job = (struct job){.world = rank_world_open(self, round++), .self = self};
    if (!job->world || !CHECK_OK(shoal_scope_begin())) {
        return false;
    }
    (void)CHECK_OK(shoal_group_set_timeout(shoal_world_group(job->world), TIMEOUT_S));
    shoal_fully_shard_options shards = net_options(job->world);
    if (self->n_ranks == 4) {
        shards.group = NULL;
        (void)CHECK_OK(
            shoal_mesh_create(job->world, "cpu", NULL, (const int[]){2, 2}, 2, names, &shards.mesh));
    }
    net_make(&job->net, PAIR_LAYERS, NULL);
    return (is_apart ? shard_apart(job, &shards) : pair_wrap(&job->net, job->world, wrapping, &shards)) &&
           CHECK_OK(shoal_compile(job->world, step, job, 1, NULL, &job->compiled));
}

static void end(struct job *job)
{
    shoal_compiled_free(job->compiled);
    net_free(&job->net);
    (void)CHECK_OK(shoal_scope_end());
    (void)CHECK_OK(shoal_world_close(job->world));
}

static void set_setting(struct job *job, bool is_refused)
{
    if (is_refused || job->fault == FAULT_SETTING) {
        (void)CHECK_OK(refused_set_hook(shoal_fully_shard_unit(job->net.root, true), is_refused));
    }
}

static shoal_status run(struct job *job, enum fault fault, int64_t n_rows)
{
    shoal_tensor *loss = NULL;
    shoal_tensor *x = net_numbers((uint32_t)(1000 + job->self->rank), (int64_t[]){n_rows, NET_WIDTH}, 2);
    (void)CHECK_OK(shoal_set_requires_grad(x, fault == FAULT_INPUTS));
    job->fault = fault;
    set_setting(job, fault == FAULT_SETTING);
    x = fault == FAULT_INPUTS ? shoal_neg(x) : x;
    if (job->number > 0) {
        test_fail_allocation(job->number, job->is_lasting);
    }
    shoal_status status = shoal_compiled_run(job->compiled, &x, 1, &loss, fault == FAULT_OUTPUTS ? 0 : 1);
    if (job->number > 0) {
        test_fail_allocation(0, false);
    }
    if (status == SHOAL_OK) {
        shoal_tensor_unref(loss);
    } else {
        CHECK(loss == NULL);
    }
    return status;
}

/* The culprit has its own error, the others are told whose it is and what. */
static void check_outcome(const struct job *job, enum fault fault, shoal_status status)
{
    char who[32];
    (void)snprintf(who, sizeof who, "rank %d gave", CULPRIT);
    if (job->self->rank == CULPRIT) {
        CHECK(status != SHOAL_OK && status != SHOAL_ERR_PEER);
    } else {
        CHECK_STATUS(status, fault == FAULT_DIFFERS ? SHOAL_ERR_MISMATCH : SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT(who);
    }
    CHECK_ERROR_TEXT(texts[fault]);
}

/* One rank fails in a run in which the others compile, or run what they have compiled before. */
static void fail_one(const struct rank *self, enum wrapping wrapping, enum fault fault, int n_before,
                     bool is_new)
{
    struct job job;
    if (begin(&job, self, wrapping)) {
        for (int i = 0; i < n_before; i++) {
            CHECK_OK(run(&job, FAULT_NONE, NET_BATCH));
        }
        /* What is said about a step that failed ends the step before it too on a rank that is still in it. */
        test_barrier((struct rank *)(uintptr_t)self);
        bool is_culprit = self->rank == CULPRIT;
        shoal_status status = run(&job, is_culprit ? fault : FAULT_NONE, is_new ? NET_BATCH + 1 : NET_BATCH);
        check_outcome(&job, fault, status);
    }
    test_barrier((struct rank *)(uintptr_t)self); /* nobody leaves before all have heard of it */
    end(&job);
}

static bool is_possible(enum wrapping wrapping, enum fault fault)
{
    return wrapping == WRAP_SHARDS || fault != FAULT_SETTING;
}

TEST_RANKS(one_rank_gives_up_a_new_variant, 3)
{
    for (int fault = FAULT_NONE + 1; fault < FAULT_COUNT; fault++) {
        for (int wrapping = WRAP_DDP; wrapping <= WRAP_SHARDS; wrapping++) {
            if (is_possible((enum wrapping)wrapping, (enum fault)fault)) {
                fail_one(self, (enum wrapping)wrapping, (enum fault)fault, 1, true);
            }
        }
    }
}

TEST_RANKS(one_rank_gives_up_on_several_meshes, 4)
{
    is_apart = true;
    for (int fault = FAULT_NONE + 1; fault < FAULT_COUNT; fault++) {
        fail_one(self, WRAP_SHARDS, (enum fault)fault, 0, false);
        fail_one(self, WRAP_SHARDS, (enum fault)fault, 1, true);
    }
    is_apart = false;
}

TEST_RANKS(one_rank_gives_up_while_others_run, 2)
{
    fail_one(self, WRAP_DDP, FAULT_INPUTS, 2, false);
    fail_one(self, WRAP_SHARDS, FAULT_OUTPUTS, 2, false);
    fail_one(self, WRAP_SHARDS, FAULT_SETTING, 2, false);
}

TEST_RANKS(one_rank_gives_up_the_first_run, 2)
{
    for (int fault = FAULT_NONE + 1; fault < FAULT_COUNT; fault++) {
        for (int wrapping = WRAP_DDP; wrapping <= WRAP_SHARDS; wrapping++) {
            if (is_possible((enum wrapping)wrapping, (enum fault)fault)) {
                fail_one(self, (enum wrapping)wrapping, (enum fault)fault, 0, false);
            }
        }
    }
}

/* Those who share no group with the culprit hear of it from those who do. */
TEST_RANKS(one_of_four_gives_up, 4)
{
    fail_one(self, WRAP_SHARDS, FAULT_BEFORE, 1, true);
    fail_one(self, WRAP_SHARDS, FAULT_INPUTS, 1, false);
    fail_one(self, WRAP_SHARDS, FAULT_OUTPUTS, 0, true);
}

/* Ranks that fail alike have their own errors, and go on. */
TEST_RANKS(all_ranks_fail_alike, 2)
{
    for (int wrapping = WRAP_DDP; wrapping <= WRAP_SHARDS; wrapping++) {
        struct job job;
        if (begin(&job, self, (enum wrapping)wrapping)) {
            for (int fault = FAULT_NONE; fault < FAULT_COUNT; fault++) {
                if (fault != FAULT_NONE && is_possible((enum wrapping)wrapping, (enum fault)fault)) {
                    shoal_status status = run(&job, (enum fault)fault, NET_BATCH + fault);
                    CHECK(status != SHOAL_OK && status != SHOAL_ERR_PEER);
                    CHECK_ERROR_TEXT(texts[fault]);
                }
                set_setting(&job, false);
                CHECK_OK(run(&job, FAULT_NONE, NET_BATCH + fault));
            }
            CHECK_OK(shoal_group_barrier(shoal_world_group(job.world)));
        }
        end(&job);
    }
}

TEST_RANKS(a_rank_alone_fails_alone, 1)
{
    struct job job;
    if (begin(&job, self, WRAP_SHARDS)) {
        CHECK_STATUS(run(&job, FAULT_BEFORE, NET_BATCH), SHOAL_ERR_UNSUPPORTED);
        CHECK_OK(run(&job, FAULT_NONE, NET_BATCH));
    }
    end(&job);
}

/* Memory ------------------------------------------------------------------------------------------------- */

/* The other rank's run ends, well or badly, wherever memory ends on this one. */
static void run_without_memory(const struct rank *self, enum wrapping wrapping, size_t number,
                               bool is_lasting)
{
    struct job job;
    if (begin(&job, self, wrapping)) {
        bool is_culprit = self->rank == CULPRIT;
        job.number = is_culprit ? number : 0;
        job.is_lasting = is_lasting;
        shoal_status status = run(&job, FAULT_NONE, NET_BATCH);
        if (is_culprit ? status != SHOAL_OK && status != SHOAL_ERR_NO_MEMORY
                       : status != SHOAL_OK && status != SHOAL_ERR_NO_MEMORY && status != SHOAL_ERR_PEER) {
            test_failed(__FILE__, __LINE__, "allocation %zu: %s: %s", number, shoal_status_name(status),
                        shoal_error_text());
        }
    }
    test_barrier((struct rank *)(uintptr_t)self);
    end(&job);
}

static void sweep(const struct rank *self, enum wrapping wrapping)
{
    size_t stride = (size_t)(29 * test_time_scale()); /* all numbers take minutes */
    for (size_t number = 1; number < 1160; number += stride) {
        run_without_memory(self, wrapping, number, number / stride % 2 == 0);
    }
}

TEST_PROCESSES(memory_ends_on_one_rank_ddp, 2)
{
    sweep(self, WRAP_DDP);
}

TEST_PROCESSES(memory_ends_on_one_rank_shards, 2)
{
    sweep(self, WRAP_SHARDS);
}
