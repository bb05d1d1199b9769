/* SPDX-License-Identifier: MIT */
/*
 * Compiled steps beside eager ones: two nets that begin alike, one trained by shoal_backward and one by shoal_compiled_run, have
 * the same losses and parameters, bit by bit, however they are wrapped and whatever changes between steps.
 */
#include "fixtures/module_net.h"
#include "shoal/compile.h"
#include "shoal/ddp.h"

enum {
    N_LAYERS = 3,
    N_STEPS = 4
};

/* Forward and backward of a net. */
static shoal_status step(void *context, shoal_tensor *const *inputs, size_t n_inputs, shoal_tensor **outputs,
                         size_t n_outputs)
{
    struct net *net = context;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = net_loss(net, inputs[0]);
    return shoal_backward(outputs[0], NULL);
}

/* Two nets, and what is compiled of the second. */
struct pair {
    shoal_world *world;
    int rank;
    struct net eager;
    struct net other;
    shoal_compiled *compiled;
};

enum wrapping {
    WRAP_DDP,
    WRAP_SHARDS,
    WRAP_NOTHING
};

static bool wrap(struct net *net, shoal_world *world, enum wrapping wrapping,
                 const shoal_fully_shard_options *given)
{
    shoal_fully_shard_options options = given ? *given : net_options(world);
    shoal_ddp_options ddp = {.struct_size = sizeof ddp, .group = shoal_world_group(world)};
    if (wrapping == WRAP_NOTHING) {
        return true;
    }
    return wrapping == WRAP_DDP ? CHECK_OK(shoal_ddp(net->root, &ddp)) : net_shard(net, &options);
}

static bool begin(struct pair *pair, const struct rank *self, enum wrapping wrapping,
                  const shoal_compile_options *options)
{
    static _Thread_local int round;
    *pair = (struct pair){.world = rank_world_open(self, round++), .rank = self->rank};
    if (!pair->world || !CHECK_OK(shoal_scope_begin())) {
        return false;
    }
    net_make(&pair->eager, N_LAYERS, NULL);
    net_make(&pair->other, N_LAYERS, NULL);
    return wrap(&pair->eager, pair->world, wrapping, NULL) &&
           wrap(&pair->other, pair->world, wrapping, NULL) &&
           CHECK_OK(shoal_compile(pair->world, step, &pair->other, 1, options, &pair->compiled));
}

static void end(struct pair *pair)
{
    shoal_compiled_free(pair->compiled);
    net_free(&pair->eager);
    net_free(&pair->other);
    (void)CHECK_OK(shoal_scope_end());
    (void)CHECK_OK(shoal_world_close(pair->world));
}

static bool is_same(const shoal_tensor *a, const shoal_tensor *b)
{
    const void *x = a ? shoal_data(a) : NULL;
    const void *y = b ? shoal_data(b) : NULL;
    size_t n_bytes = a ? (size_t)shoal_tensor_count(a) * shoal_dtype_bytes(shoal_tensor_dtype(a)) : 0;
    return (!a && !b) || (a && b && shoal_tensor_count(a) == shoal_tensor_count(b) &&
                          (n_bytes == 0 || (x && y && memcmp(x, y, n_bytes) == 0)));
}

/* Parameters and their gradients. */
static void check_same(const struct pair *pair)
{
    size_t n_eager;
    size_t n_other;
    (void)CHECK_OK(shoal_scope_begin());
    shoal_tensor *const *eager = shoal_module_parameters(pair->eager.root, &n_eager);
    shoal_tensor *const *other = shoal_module_parameters(pair->other.root, &n_other);
    CHECK(n_eager == n_other);
    for (size_t i = 0; i < n_eager && i < n_other; i++) {
        CHECK(is_same(eager[i], other[i]));
        CHECK(is_same(shoal_grad(eager[i]), shoal_grad(other[i])));
    }
    (void)CHECK_OK(shoal_scope_end());
}

/* A step of both, of so many rows. */
static void run_both(struct pair *pair, int number, int64_t n_rows)
{
    shoal_tensor *eager = NULL;
    shoal_tensor *other = NULL;
    (void)CHECK_OK(shoal_scope_begin());
    shoal_tensor *x =
        net_numbers((uint32_t)(1000 + 100 * number + pair->rank), (int64_t[]){n_rows, NET_WIDTH}, 2);
    (void)CHECK_OK(step(&pair->eager, &x, 1, &eager, 1));
    if (CHECK_OK(shoal_compiled_run(pair->compiled, &x, 1, &other, 1))) {
        CHECK(is_same(eager, other));
        shoal_tensor_unref(other);
    }
    (void)CHECK_OK(shoal_scope_end());
    check_same(pair);
}

static void update_both(struct pair *pair)
{
    net_update(&pair->eager, 0.1F);
    net_update(&pair->other, 0.1F);
    check_same(pair);
}

static size_t count_compiles(const struct pair *pair)
{
    shoal_compile_report report = SHOAL_COMPILE_REPORT_INIT;
    return CHECK_OK(shoal_compiled_get_report(pair->compiled, &report)) ? report.n_compiles : 0;
}

static void train(const struct rank *self, enum wrapping wrapping, const shoal_compile_options *options)
{
    struct pair pair;
    if (begin(&pair, self, wrapping, options)) {
        for (int i = 0; i < N_STEPS; i++) {
            run_both(&pair, i, NET_BATCH);
            update_both(&pair);
        }
        CHECK(count_compiles(&pair) == 1);
    }
    end(&pair);
}

TEST_RANKS(a_step_without_ranks, 1)
{
    train(self, WRAP_NOTHING, NULL);
}

TEST_RANKS(ddp_of_one, 1)
{
    train(self, WRAP_DDP, NULL);
}

TEST_RANKS(ddp, 3)
{
    train(self, WRAP_DDP, NULL);
}

TEST_RANKS(shards_of_one, 1)
{
    train(self, WRAP_SHARDS, NULL);
}

TEST_RANKS(shards_of_two, 2)
{
    train(self, WRAP_SHARDS, NULL);
}

TEST_RANKS(shards_of_four, 4)
{
    train(self, WRAP_SHARDS, NULL);
}

static const shoal_compile_options some_options[] = {
    {.struct_size = sizeof(shoal_compile_options), .passes = ""},
    {.struct_size = sizeof(shoal_compile_options), .no_reuse = true},
    {.struct_size = sizeof(shoal_compile_options), .no_comm_buffers = true},
    {.struct_size = sizeof(shoal_compile_options), .one_shot = true},
};

TEST_RANKS(options_change_no_bits, 2)
{
    for (size_t i = 0; i < sizeof some_options / sizeof some_options[0]; i++) {
        train(self, WRAP_DDP, &some_options[i]);
        train(self, WRAP_SHARDS, &some_options[i]);
    }
}

/* What makes another variant ------------------------------------------------------------------------------- */

TEST_RANKS(another_shape_compiles_again, 2)
{
    struct pair pair;
    if (begin(&pair, self, WRAP_SHARDS, NULL)) {
        const int64_t rows[] = {3, 5, 3, 5, 2};
        const size_t n_compiles[] = {1, 2, 2, 2, 3};
        for (int i = 0; i < 5; i++) {
            run_both(&pair, i, rows[i]);
            update_both(&pair);
            CHECK(count_compiles(&pair) == n_compiles[i]);
        }
        shoal_compile_report report = SHOAL_COMPILE_REPORT_INIT;
        (void)CHECK_OK(shoal_compiled_get_report(pair.compiled, &report));
        (void)CHECK_STRING(report.reason, "input 0 is f32 [2, 5], not f32 [5, 5] as before");
    }
    end(&pair);
}

static void add_up(const struct rank *self, enum wrapping wrapping)
{
    struct pair pair;
    if (begin(&pair, self, wrapping, NULL)) {
        for (int i = 0; i < 3 * N_STEPS; i++) {
            run_both(&pair, i, NET_BATCH);
            if (i % 3 == 2) {
                update_both(&pair);
            }
        }
        CHECK(count_compiles(&pair) == 2);
    }
    end(&pair);
}

TEST_RANKS(gradients_add_up, 3)
{
    add_up(self, WRAP_DDP);
    add_up(self, WRAP_SHARDS);
}

/* A backward that was not compiled adds to what a compiled step left, and the other way round. */
static void take_turns(const struct rank *self, enum wrapping wrapping)
{
    struct pair pair;
    if (begin(&pair, self, wrapping, NULL)) {
        for (int i = 0; i < 2 * N_STEPS; i++) {
            run_both(&pair, 2 * i, NET_BATCH);
            CHECK(net_pass(&pair.eager, i, self->rank));
            CHECK(net_pass(&pair.other, i, self->rank));
            check_same(&pair);
            run_both(&pair, 2 * i + 1, NET_BATCH);
            update_both(&pair);
        }
    }
    end(&pair);
}

TEST_RANKS(eager_and_compiled_take_turns, 3)
{
    take_turns(self, WRAP_DDP);
    take_turns(self, WRAP_SHARDS);
}

TEST_RANKS(gradients_add_up_alone, 1)
{
    add_up(self, WRAP_NOTHING);
}

/* Outputs -------------------------------------------------------------------------------------------------- */

TEST_RANKS(outputs_that_are_kept_stay, 2)
{
    struct pair pair;
    if (begin(&pair, self, WRAP_DDP, NULL)) {
        shoal_tensor *kept[N_STEPS] = {NULL};
        shoal_tensor *wanted[N_STEPS] = {NULL};
        for (int i = 0; i < N_STEPS; i++) {
            shoal_tensor *x = net_input(i, self->rank);
            (void)CHECK_OK(step(&pair.eager, &x, 1, &wanted[i], 1));
            (void)CHECK_OK(shoal_compiled_run(pair.compiled, &x, 1, &kept[i], 1));
            update_both(&pair);
        }
        for (int i = 0; i < N_STEPS; i++) {
            CHECK(is_same(kept[i], wanted[i]));
        }
        shoal_compile_report report = SHOAL_COMPILE_REPORT_INIT;
        (void)CHECK_OK(shoal_compiled_get_report(pair.compiled, &report));
        CHECK(report.plan.n_copied_out == N_STEPS - 1);
        shoal_compiled_free(pair.compiled);
        pair.compiled = NULL;
        CHECK(is_same(kept[N_STEPS - 1], wanted[N_STEPS - 1]));
        for (int i = 0; i < N_STEPS; i++) {
            shoal_tensor_unref(kept[i]);
        }
    }
    end(&pair);
}

/* One rank that deviates ----------------------------------------------------------------------------------- */

TEST_RANKS(a_rank_that_compiles_alone_is_told, 2)
{
    struct pair pair;
    if (begin(&pair, self, WRAP_DDP, NULL)) {
        shoal_tensor *loss = NULL;
        run_both(&pair, 0, NET_BATCH);
        update_both(&pair);
        shoal_tensor *x = net_numbers(5, (int64_t[]){self->rank == 0 ? 7 : NET_BATCH, NET_WIDTH}, 2);
        CHECK_STATUS(shoal_compiled_run(pair.compiled, &x, 1, &loss, 1), SHOAL_ERR_MISMATCH);
    }
    end(&pair);
}
