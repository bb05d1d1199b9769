/* SPDX-License-Identifier: MIT */
/*
 * How much sharded modules send: so many gathers, reductions over shards and over replicas in each part of a step, and
 * nothing else. Gathers are counted where they are issued, reductions by the numbers of the groups that carry them. The
 * first step is not counted: ranks make the memory then that they reduce from, and agree about it over those groups.
 */
#include "fixtures/on_device.h"

#include "fixtures/fsdp_handles.h"
#include "fixtures/module_bench.h"

enum {
    N_LAYERS = 3,
    N_UNITS = N_LAYERS + 1,
    N_MICRO = 3
};

/* As in a transformer, the root has something before the layers: their inputs need gradients. */
static shoal_tensor *scaled_first(shoal_module *root, shoal_tensor *x)
{
    x = shoal_mul(x, shoal_module_parameter(root, "scale"));
    for (size_t i = 0; shoal_module_child_at(root, i, NULL) != NULL; i++) {
        x = shoal_module_call_one(shoal_module_child_at(root, i, NULL), x);
    }
    return x;
}

/* Nothing may go over the group that the program gave: the lanes are others. */
static struct traffic begin(struct bench *bench, uint64_t *others)
{
    net_listen(&bench->sharded, "u");
    *others = shoal_group_sequence(shoal_world_group(bench->world));
    return traffic_so_far(&bench->sharded);
}

static void end(struct bench *bench, int step, struct traffic before, uint64_t others, struct traffic wanted)
{
    if (step > 0) {
        traffic_check(&bench->sharded, before, wanted);
    }
    CHECK_INT(shoal_group_sequence(shoal_world_group(bench->world)), others);
}

/* A step -------------------------------------------------------------------------------------------------- */

static void check_step(struct rank *self, shoal_reshard reshard, int n_replicas, int n_again)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, N_LAYERS, scaled_first));
    CHECK(n_replicas == 1 || bench_replicate(&bench, n_replicas));
    bench.options.reshard = reshard;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int step = 0; step < 3; step++) {
        uint64_t others;
        struct traffic before = begin(&bench, &others);
        shoal_tensor *loss = net_loss(&bench.sharded, net_input(step, self->rank));
        end(&bench, step, before, others, (struct traffic){.gathers = N_UNITS});
        before = begin(&bench, &others);
        CHECK_OK(shoal_backward(loss, NULL));
        end(&bench, step, before, others, (struct traffic){n_again, N_UNITS, n_replicas > 1 ? N_UNITS : 0});
        net_update(&bench.sharded, 0.1F);
    }
    bench_close(&bench);
}

TEST_RANKS(a_step, 4)
{
    check_step(self, SHOAL_RESHARD_ALWAYS, 1, N_UNITS);
    check_step(self, SHOAL_RESHARD_NEVER, 1, 0);
    check_step(self, SHOAL_RESHARD_PARTLY, 1, N_UNITS);
    check_step(self, SHOAL_RESHARD_DEFAULT, 1, N_UNITS - 1);
    check_step(self, SHOAL_RESHARD_DEFAULT, 2, N_UNITS - 1);
}

/* ZeRO-1 and ZeRO-2: gathered once for each time that shards were written, by whatever forward comes first. */
static void evaluate(struct bench *bench, int step)
{
    CHECK_OK(shoal_scope_begin());
    CHECK_OK(shoal_scope_set_grad(false));
    CHECK(net_loss(&bench->sharded, net_input(step, 0)) != NULL);
    CHECK_OK(shoal_scope_end());
}

static void check_zero_step(struct rank *self, shoal_sharded sharded, int n_replicas)
{
    struct bench bench;
    const int n_all_reduces = n_replicas > 1 ? N_UNITS : 0;
    REQUIRE(bench_open(&bench, self, N_LAYERS, scaled_first));
    CHECK(n_replicas == 1 || bench_replicate(&bench, n_replicas));
    bench.options.sharded = sharded;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int step = 0; step < 4; step++) {
        uint64_t others;
        bool is_first = step % 2 == 0; /* the training step is, and not an evaluation */
        struct traffic before = begin(&bench, &others);
        if (!is_first) {
            evaluate(&bench, step);
            evaluate(&bench, step);
            end(&bench, step, before, others, (struct traffic){.gathers = N_UNITS});
            before = begin(&bench, &others);
        }
        shoal_tensor *loss = net_loss(&bench.sharded, net_input(step, self->rank));
        end(&bench, step, before, others, (struct traffic){.gathers = is_first ? N_UNITS : 0});
        before = begin(&bench, &others);
        CHECK_OK(shoal_backward(loss, NULL));
        end(&bench, step, before, others, (struct traffic){0, N_UNITS, n_all_reduces});
        before = begin(&bench, &others);
        evaluate(&bench, step); /* nothing was written */
        end(&bench, step, before, others, (struct traffic){0});
        CHECK(shoal_tensor_shape(shoal_module_parameter(bench.sharded.root, "scale"))[0] < NET_WIDTH);
        net_update(&bench.sharded, 0.1F);
    }
    net_listen(&bench.sharded, "ur"); /* one unit ahead of the other */
    (void)net_pass(&bench.sharded, 9, self->rank);
    CHECK_EVENTS(&bench.sharded, "rR r0 r1 r2 uR u0 u1 u2");
    shoal_tensor *bias = shoal_module_parameter(bench.sharded.layers[1], "bias");
    if (shoal_tensor_count(bias) > 0) { /* one rank writes one shard */
        ((float *)shoal_mutable_data(bias))[0] += 1.0F;
    }
    evaluate(&bench, 9);
    CHECK_EVENTS(&bench.sharded, "r1 u1");
    bench_close(&bench);
}

TEST_RANKS(a_step_of_zero, 4)
{
    check_zero_step(self, SHOAL_SHARDED_GRADIENTS, 1);
    check_zero_step(self, SHOAL_SHARDED_STATE, 1);
    check_zero_step(self, SHOAL_SHARDED_GRADIENTS, 2);
    check_zero_step(self, SHOAL_SHARDED_STATE, 2);
}

/* What stays after forward is given up by hand: it is gathered again. */
TEST_RANKS(given_up_by_hand, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, N_LAYERS, scaled_first));
    bench.options.reshard = SHOAL_RESHARD_NEVER;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int step = 0; step < 3; step++) {
        uint64_t others;
        shoal_tensor *loss = net_loss(&bench.sharded, net_input(step, self->rank));
        CHECK_OK(shoal_fsdp_reshard(shoal_fully_shard_unit(bench.sharded.root, false)));
        for (int i = 0; i < N_LAYERS; i++) {
            CHECK_OK(shoal_fsdp_reshard(shoal_fully_shard_unit(bench.sharded.layers[i], false)));
        }
        struct traffic before = begin(&bench, &others);
        CHECK_OK(shoal_backward(loss, NULL));
        end(&bench, step, before, others, (struct traffic){N_UNITS, N_UNITS, 0});
    }
    bench_close(&bench);
}

static shoal_tensor *first_after_itself(shoal_module *root, shoal_tensor *x)
{
    x = shoal_mul(x, shoal_module_parameter(root, "scale"));
    return net_call(root, "0", net_call(root, "0", x));
}

static shoal_tensor *first_next_to_itself(shoal_module *root, shoal_tensor *x)
{
    return shoal_add(net_call(root, "0", x), net_call(root, "0", x));
}

/* Used twice: the gradient of a parameter is complete when both uses have added to it, so there is one reduction, after
   the second backward pass of the layer or at the end; the bits are those of one process. */
static void check_twice(struct rank *self, net_function function, int n_again)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, function));
    bench.options.reshard = SHOAL_RESHARD_ALWAYS;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int step = 0; step < 3; step++) {
        uint64_t others;
        struct traffic before = begin(&bench, &others);
        shoal_tensor *loss = net_loss(&bench.sharded, net_input(step, self->rank));
        end(&bench, step, before, others, (struct traffic){.gathers = 3});
        CHECK_OK(shoal_backward(loss, NULL));
        end(&bench, step, before, others, (struct traffic){3 + n_again, 2, 0});
        net_pass_alone(&bench.alone, net_pass, step, self->n_ranks);
        net_check_same(&bench.sharded, &bench.alone);
        net_update(&bench.sharded, 0.1F);
        net_update(&bench.alone, 0.1F);
    }
    bench_close(&bench);
}

TEST_RANKS(a_layer_that_is_used_twice, 2)
{
    check_twice(self, first_after_itself, 3);
    check_twice(self, first_next_to_itself, 2);
}

/* One rank alone talks to nobody, and trains as if it were not sharded. */
static void check_alone(struct rank *self, bool is_replicated)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, N_LAYERS, NULL));
    bench.options.is_replicated = is_replicated;
    uint64_t others = shoal_group_sequence(shoal_world_group(bench.world));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 10);
    const struct fsdp_mesh *mesh = &fsdp_wrapper_of(bench.sharded.root)->mesh;
    CHECK(!mesh->gather && !mesh->reduce && !mesh->replicate);
    CHECK_INT(shoal_group_sequence(shoal_world_group(bench.world)), others);
    bench_close(&bench);
}

TEST_RANKS(alone, 1)
{
    check_alone(self, false);
    check_alone(self, true);
}

/* Only biases learn: nothing but them is reduced, and backward passes end where they would otherwise. */
TEST_RANKS(only_biases_are_reduced, 3)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, N_LAYERS, scaled_first));
    for (int i = 0; i < N_LAYERS; i++) {
        CHECK_OK(shoal_set_requires_grad(shoal_module_parameter(bench.sharded.layers[i], "weight"), false));
        CHECK_OK(shoal_set_requires_grad(shoal_module_parameter(bench.alone.layers[i], "weight"), false));
    }
    bench.options.reshard = SHOAL_RESHARD_ALWAYS;
    bench.options.forward_prefetch = -1;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int step = 0; step < 3; step++) {
        shoal_tensor *loss = net_loss(&bench.sharded, net_input(step, self->rank));
        net_listen(&bench.sharded, "up");
        CHECK_OK(shoal_backward(loss, NULL));
        CHECK_EVENTS(&bench.sharded, "uR u2 u1 p2 u0 p1 p0 pR");
        net_pass_alone(&bench.alone, net_pass, step, self->n_ranks);
        net_check_same(&bench.sharded, &bench.alone);
        net_update(&bench.sharded, 0.1F);
        net_update(&bench.alone, 0.1F);
        for (int i = 0; i < N_LAYERS; i++) {
            const struct fsdp_unit *unit = bench_unit(bench.sharded.layers[i]);
            CHECK(!unit->params[0].is_reduced && unit->params[1].is_reduced);
            CHECK_INT(unit->grads.output_bytes, fsdp_round_up(unit->params[1].padded_count * sizeof(float)));
        }
    }
    bench_close(&bench);
}

/* Memory ------------------------------------------------------------------------------------------------- */

static size_t shard_bytes(struct bench *bench)
{
    size_t bytes = 0;
    for (int i = 0; i <= N_LAYERS; i++) {
        const struct fsdp_unit *unit =
            bench_unit(i < N_LAYERS ? bench->sharded.layers[i] : bench->sharded.root);
        for (size_t k = 0; k < unit->n_params; k++) {
            bytes += unit->params[k].padded_count * sizeof(float);
        }
    }
    return bytes;
}

/* Any module of a root tells what all of them hold. */
TEST_RANKS(what_modules_hold, 2)
{
    struct bench bench;
    shoal_fsdp_memory_report report = {.struct_size = sizeof report};
    shoal_fsdp_memory_report again = {.struct_size = sizeof again};
    REQUIRE(bench_open(&bench, self, N_LAYERS, scaled_first));
    CHECK_STATUS(shoal_fsdp_memory(fsdp_of_module(NULL), &report), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_memory(fsdp_of_module(bench.sharded.root), &report), SHOAL_ERR_INVALID);
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int step = 0; step < 2; step++) {
        CHECK_OK(shoal_backward(net_loss(&bench.sharded, net_input(step, self->rank)), NULL));
        CHECK_OK(shoal_fsdp_memory(fsdp_of_module(bench.sharded.root), &report));
        CHECK_INT(report.n_ranks, 2);
        CHECK_INT(report.rank.shards, shard_bytes(&bench));
        CHECK(report.rank.gradients > 0 && report.rank.gradients <= report.rank.shards);
        CHECK(report.rank.windows > 0 && report.rank.buffers > 0);
        CHECK_INT(report.rank.other, 0);
        CHECK_OK(shoal_fsdp_memory(fsdp_of_module(bench.sharded.layers[1]), &again));
        CHECK_BYTES(&again, &report, sizeof report);
        net_update(&bench.sharded, 0.1F);
    }
    CHECK_STATUS(shoal_fsdp_memory(fsdp_of_module(bench.sharded.root), NULL), SHOAL_ERR_INVALID);
    bench_close(&bench);
}

/* Several backward passes ------------------------------------------------------------------------------- */

/* Which units wait with their gradients (or their whole parameters) for the last micro-batch. */
enum mode {
    ALL,
    ROOT_ONLY,
    TWO_LAYERS
};

struct accumulation {
    enum mode mode;
    shoal_reshard reshard;
    bool keeps_after_backward;
    bool scatters_always; /* it is the replicas that wait */
    int n_gathers;
    int n_scatters;
    shoal_sharded sharded;
};

static void set_units(struct net *net, const struct accumulation *row,
                      shoal_status (*set)(shoal_fsdp_unit *unit, bool is_on), bool is_on)
{
    if (row->mode != TWO_LAYERS) {
        (void)CHECK_OK(set(shoal_fully_shard_unit(net->root, row->mode == ALL), is_on));
        return;
    }
    for (int i = 0; i < 2; i++) {
        (void)CHECK_OK(set(shoal_fully_shard_unit(net->layers[i], false), is_on));
    }
}

static _Thread_local const struct accumulation *running;

static bool pass_micro(struct net *net, int step, int part)
{
    bool is_right = true;
    for (int micro = 0; micro < N_MICRO; micro++) {
        bool is_last = micro == N_MICRO - 1;
        if (shoal_is_fully_sharded(net->root)) {
            set_units(net, running,
                      running->scatters_always ? shoal_fsdp_set_all_reduce : shoal_fsdp_set_sync, is_last);
            if (running->keeps_after_backward) {
                set_units(net, running, shoal_fsdp_set_reshard_after_backward, is_last);
            }
        }
        is_right = net_pass(net, 10 * step + micro, part) && is_right;
    }
    return is_right;
}

static void check_accumulation(struct rank *self, const struct accumulation *row, int n_replicas)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, N_LAYERS, scaled_first));
    CHECK(n_replicas == 1 || bench_replicate(&bench, n_replicas));
    bench.options.reshard = row->reshard;
    bench.options.sharded = row->sharded;
    bench.sharded.is_near = true; /* what is reduced each time is added up elsewhere */
    running = row;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int step = 0; step < 5 && !test_has_failed(); step++) {
        uint64_t others;
        struct traffic before = begin(&bench, &others);
        size_t n_marks_before = bench_unit(bench.sharded.root)->context->marks.n_backwards;
        (void)pass_micro(&bench.sharded, step, self->rank);
        int n_all_reduces = row->scatters_always ? N_UNITS : row->n_scatters;
        /* Whether or not anything is reduced, ranks tell each other that the backward pass is over. */
        (void)CHECK_INT((int)(bench_unit(bench.sharded.root)->context->marks.n_backwards - n_marks_before),
                        N_MICRO);
        end(&bench, step, before, others,
            (struct traffic){row->n_gathers, row->n_scatters, n_replicas > 1 ? n_all_reduces : 0});
        net_pass_alone(&bench.alone, pass_micro, step, self->n_ranks);
        net_check_same(&bench.sharded, &bench.alone);
        net_update(&bench.sharded, 0.1F);
        net_update(&bench.alone, 0.1F);
    }
    if (test_has_failed()) {
        test_failed(__FILE__, __LINE__, "mode %d, reshard %d, sharded %d%s%s, %d replicas", (int)row->mode,
                    (int)row->reshard, (int)row->sharded,
                    row->keeps_after_backward ? ", kept after backward" : "",
                    row->scatters_always ? ", shards always" : "", n_replicas);
    }
    bench_close(&bench);
}

enum {
    ALWAYS_GATHERS = 2 * N_UNITS * N_MICRO,
    NEVER_GATHERS = N_UNITS * N_MICRO,
    ROOT_EXTRA = 2 * N_LAYERS,            /* layers reduce in two micro-batches more */
    LAYERS_EXTRA = (N_LAYERS - 2 + 1) * 2 /* one layer and the root do */
};

static const struct accumulation accumulations[] = {
    {ALL, SHOAL_RESHARD_ALWAYS, false, false, ALWAYS_GATHERS, N_UNITS, 0},
    {ALL, SHOAL_RESHARD_PARTLY, false, false, ALWAYS_GATHERS, N_UNITS, 0},
    {ALL, SHOAL_RESHARD_NEVER, false, false, NEVER_GATHERS, N_UNITS, 0},
    {ALL, SHOAL_RESHARD_NEVER, true, false, N_UNITS, N_UNITS, 0},
    {ROOT_ONLY, SHOAL_RESHARD_ALWAYS, false, false, ALWAYS_GATHERS, N_UNITS + ROOT_EXTRA, 0},
    {ROOT_ONLY, SHOAL_RESHARD_NEVER, false, false, NEVER_GATHERS, N_UNITS + ROOT_EXTRA, 0},
    {ROOT_ONLY, SHOAL_RESHARD_NEVER, true, false, N_UNITS + 2 * N_LAYERS, N_UNITS + ROOT_EXTRA, 0},
    {TWO_LAYERS, SHOAL_RESHARD_ALWAYS, false, false, ALWAYS_GATHERS, N_UNITS + LAYERS_EXTRA, 0},
    {TWO_LAYERS, SHOAL_RESHARD_NEVER, false, false, NEVER_GATHERS, N_UNITS + LAYERS_EXTRA, 0},
    {TWO_LAYERS, SHOAL_RESHARD_NEVER, true, false, N_UNITS + 2 * (N_UNITS - 2), N_UNITS + LAYERS_EXTRA, 0},
    {ALL, SHOAL_RESHARD_DEFAULT, false, false, N_UNITS, N_UNITS, SHOAL_SHARDED_GRADIENTS},
    {ALL, SHOAL_RESHARD_NEVER, false, false, N_UNITS, N_UNITS, SHOAL_SHARDED_STATE},
    {ROOT_ONLY, SHOAL_RESHARD_DEFAULT, false, false, N_UNITS, N_UNITS + ROOT_EXTRA, SHOAL_SHARDED_GRADIENTS},
    {TWO_LAYERS, SHOAL_RESHARD_DEFAULT, false, false, N_UNITS, N_UNITS + LAYERS_EXTRA, SHOAL_SHARDED_STATE},
};

TEST_RANKS(micro_batches, 4)
{
    for (size_t i = 0; i < sizeof accumulations / sizeof accumulations[0]; i++) {
        check_accumulation(self, &accumulations[i], 1);
    }
}

TEST_RANKS(micro_batches_of_replicas, 4)
{
    for (size_t i = 0; i < sizeof accumulations / sizeof accumulations[0]; i++) {
        if (accumulations[i].reshard != SHOAL_RESHARD_PARTLY) {
            check_accumulation(self, &accumulations[i], 2);
        }
    }
}

/* Shards are reduced each time, replicas once. */
TEST_RANKS(replicas_that_wait, 4)
{
    static const struct accumulation rows[] = {
        {ALL, SHOAL_RESHARD_ALWAYS, false, true, ALWAYS_GATHERS, N_UNITS * N_MICRO, 0},
        {ALL, SHOAL_RESHARD_NEVER, false, true, NEVER_GATHERS, N_UNITS * N_MICRO, 0},
        {ALL, SHOAL_RESHARD_NEVER, true, true, N_UNITS, N_UNITS * N_MICRO, 0},
        {ALL, SHOAL_RESHARD_DEFAULT, false, true, N_UNITS, N_UNITS * N_MICRO, SHOAL_SHARDED_GRADIENTS},
        {ALL, SHOAL_RESHARD_DEFAULT, false, true, N_UNITS, N_UNITS * N_MICRO, SHOAL_SHARDED_STATE},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_accumulation(self, &rows[i], 2);
    }
}

/* Clipping ---------------------------------------------------------------------------------------------- */

/* One question to the ranks that have the shards, whatever the norm; none to replicas, which have the same. */
static void check_clipping(struct rank *self, int n_replicas)
{
    static const double powers[] = {1.0, 2.0, 3.0, (double)INFINITY};
    struct bench bench;
    REQUIRE(bench_open(&bench, self, N_LAYERS, scaled_first));
    CHECK(n_replicas == 1 || bench_replicate(&bench, n_replicas));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int step = 0; step < 4; step++) {
        uint64_t others;
        double norm;
        (void)net_pass(&bench.sharded, step, self->rank);
        struct traffic before = begin(&bench, &others);
        CHECK_OK(shoal_fsdp_clip_grad_norm(fsdp_of_module(bench.sharded.root), 1.0, test_power(powers[step]),
                                           false, &norm));
        /* Replicas have the same gradients; they only compare the call. */
        traffic_check(&bench.sharded, before,
                      (struct traffic){.scatters = 1, .all_reduces = n_replicas > 1 ? 1 : 0});
        CHECK_INT(shoal_group_sequence(shoal_world_group(bench.world)), others);
        CHECK(norm > 0.0);
        net_update(&bench.sharded, 0.1F);
    }
    bench_close(&bench);
}

TEST_RANKS(clipping, 4)
{
    check_clipping(self, 1);
    check_clipping(self, 2);
}
