/* SPDX-License-Identifier: MIT */
/*
 * ZeRO-1 and ZeRO-2 with modules: trained by AdamW, they have the bits of FSDP, of fully_shard with replicas and of
 * DDP at equal accumulation and synchronization; units are gathered when shards were written, and never in backward.
 * Shards are uneven or empty, one parameter is in two places, one is frozen, one is cut along its second dimension.
 */
#include "fixtures/fsdp_on_device.h"

#include "fixtures/compiled_pair.h"
#include "fixtures/module_bench.h"
#include "harness/harness.h"
#include "shoal_nn/optim.h"

enum {
    N_LAYERS = 3,
    N_UNITS = N_LAYERS + 1,
    N_MICRO = 3,
    N_STEPS = 4,
    MAX_PARAMS = 16,
    ROOM = 256
};

#define LENGTH(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* x times the mean of each row of the table, the tied parameter twice, and the layers. */
static shoal_tensor *through_all(shoal_module *root, shoal_tensor *x)
{
    const int64_t columns[] = {1};
    shoal_tensor *table = shoal_mean(shoal_module_parameter(root, "table"), columns, 1, true);
    x = shoal_mul(x, table);
    x = shoal_mul(x, shoal_module_parameter(root, "tied"));
    for (int i = 0; i < N_LAYERS; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "%d", i);
        x = net_call(root, name, x);
    }
    return shoal_add(x, shoal_module_parameter(root, "frozen"));
}

static void make_net(struct net *net)
{
    net_make(net, N_LAYERS, through_all);
    shoal_tensor *table = net_numbers(3, (int64_t[]){NET_BATCH, 12}, 2);
    CHECK_OK(shoal_set_requires_grad(table, true));
    CHECK_OK(shoal_module_add_parameter(net->root, "table", table));
    CHECK_OK(shoal_module_add_parameter(net->root, "tied", shoal_module_parameter(net->root, "scale")));
    CHECK_OK(shoal_module_add_parameter(net->root, "frozen", net_numbers(4, (int64_t[]){NET_WIDTH}, 1)));
}

static int cut_table(void *context, const char *path, const shoal_tensor *parameter)
{
    (void)context;
    (void)path;
    return shoal_tensor_n_dims(parameter) == 2 ? 1 : 0;
}

/* Trainers ------------------------------------------------------------------------------------------------- */

enum kind {
    FSDP,
    ZERO_2,
    ZERO_1,
    REPLICATED,
    DDP,
    N_KINDS
};

static const shoal_sharded sharded_of[] = {[FSDP] = SHOAL_SHARDED_PARAMETERS,
                                           [ZERO_2] = SHOAL_SHARDED_GRADIENTS,
                                           [ZERO_1] = SHOAL_SHARDED_STATE,
                                           [REPLICATED] = SHOAL_SHARDED_PARAMETERS};

struct trainer {
    enum kind kind;
    struct net net;
    shoal_nn_optimizer *optimizer;
};

/* What all of them do. */
struct setting {
    shoal_dtype param_dtype;
    shoal_dtype reduce_dtype;
    int n_replicas;
    int n_micro;
    bool reduces_always;
    bool has_list; /* two layers are one unit */
};

static bool wrap(struct trainer *trainer, shoal_world *world, const struct setting *setting,
                 const shoal_fully_shard_options *given)
{
    shoal_fully_shard_options options = *given;
    const shoal_ddp_options ddp = {.struct_size = sizeof ddp, .group = shoal_world_group(world)};
    struct net *net = &trainer->net;
    if (trainer->kind == DDP) {
        return CHECK_OK(shoal_ddp(net->root, &ddp));
    }
    options.sharded = sharded_of[trainer->kind];
    options.param_dtype = setting->param_dtype;
    options.reduce_dtype = setting->reduce_dtype;
    options.placement = cut_table;
    if (trainer->kind == REPLICATED) {
        options.mesh = NULL;
        options.group = shoal_world_group(world);
        options.is_replicated = true;
    }
    if (!setting->has_list) {
        return net_shard(net, &options);
    }
    return CHECK_OK(shoal_fully_shard_list(net->layers, 2, &options)) &&
           CHECK_OK(shoal_fully_shard(net->layers[2], &options)) &&
           CHECK_OK(shoal_fully_shard(net->root, &options));
}

static bool make_trainer(struct trainer *trainer, shoal_world *world, const struct setting *setting,
                         const shoal_fully_shard_options *options)
{
    size_t n_parameters;
    shoal_nn_adamw_options adamw = SHOAL_NN_ADAMW_OPTIONS_INIT;
    adamw.lr = 0.02;
    make_net(&trainer->net);
    if (!wrap(trainer, world, setting, options)) {
        return false;
    }
    shoal_tensor *const *parameters = shoal_module_parameters(trainer->net.root, &n_parameters);
    return CHECK_OK(shoal_nn_adamw_create(parameters, n_parameters, &adamw, &trainer->optimizer));
}

static void free_trainer(struct trainer *trainer)
{
    shoal_nn_optimizer_free(trainer->optimizer);
    net_free(&trainer->net);
}

static void set_sync(struct trainer *trainer, bool is_on)
{
    CHECK_OK(trainer->kind == DDP
                 ? shoal_ddp_set_sync(trainer->net.root, is_on)
                 : shoal_fsdp_set_sync(shoal_fully_shard_unit(trainer->net.root, true), is_on));
}

static void train_step(struct trainer *trainer, const struct setting *setting, int step, int rank)
{
    for (int micro = 0; micro < setting->n_micro; micro++) {
        set_sync(trainer, setting->reduces_always || micro + 1 == setting->n_micro);
        CHECK(net_pass(&trainer->net, 10 * step + micro, rank));
    }
    CHECK_OK(shoal_nn_optimizer_step(trainer->optimizer));
    CHECK_OK(shoal_nn_optimizer_zero_grad(trainer->optimizer));
}

static float evaluate(struct trainer *trainer, int step, int rank)
{
    float loss = 0.0F;
    CHECK_OK(shoal_scope_begin());
    CHECK_OK(shoal_scope_set_grad(false));
    shoal_tensor *out = shoal_to_dtype(net_loss(&trainer->net, net_input(step, rank)), SHOAL_F32);
    const float *data = out ? shoal_data(out) : NULL;
    loss = data ? data[0] : loss;
    CHECK_OK(shoal_scope_end());
    return loss;
}

/* Whole parameters, one after the other. */
struct values {
    float data[MAX_PARAMS][ROOM];
    size_t n;
};

struct collection {
    struct trainer *trainer;
    struct values *values;
};

static shoal_status collect(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct collection *collection = context;
    float *to = collection->values->data[collection->values->n++];
    (void)next;
    if (collection->trainer->kind != DDP) {
        return shoal_fsdp_gather(shoal_fully_shard_param(collection->trainer->net.root, entry->path), to,
                                 SHOAL_FSDP_ALL_RANKS);
    }
    memcpy(to, shoal_data(entry->tensor), (size_t)shoal_tensor_count(entry->tensor) * sizeof(float));
    return SHOAL_OK;
}

static void collect_values(struct trainer *trainer, struct values *values)
{
    struct collection collection = {trainer, values};
    memset(values, 0, sizeof *values);
    CHECK_OK(shoal_scope_begin());
    CHECK_OK(shoal_module_walk(trainer->net.root, SHOAL_WALK_PARAMETERS, collect, &collection));
    CHECK_OK(shoal_scope_end());
}

/* Bits ------------------------------------------------------------------------------------------------------- */

/* With replicas of shards sums are made in another order than by DDP, and in halves DDP has no way to compute. */
static bool takes_part(enum kind kind, const struct setting *setting)
{
    bool is_other_order = setting->n_replicas > 1;
    return !(kind == DDP && (setting->param_dtype != 0 || is_other_order)) &&
           !(kind == REPLICATED && is_other_order);
}

static void check_values(struct trainer *trainers, const struct setting *setting, int step)
{
    struct values wanted;
    collect_values(&trainers[FSDP], &wanted);
    for (int k = FSDP + 1; k < N_KINDS; k++) {
        struct values got;
        if (!takes_part((enum kind)k, setting)) {
            continue;
        }
        collect_values(&trainers[k], &got);
        if (memcmp(&got, &wanted, sizeof got) != 0) {
            test_failed(__FILE__, __LINE__,
                        "kind %d, step %d, dtypes %d and %d, %d replicas, %d micro-batches%s: other bits", k,
                        step, (int)setting->param_dtype, (int)setting->reduce_dtype, setting->n_replicas,
                        setting->n_micro, setting->reduces_always ? " reduced always" : "");
        }
    }
}

/* Between steps: evaluations, and a shard that is written. */
static void do_between(struct trainer *trainers, const struct setting *setting, int step, int rank)
{
    float wanted = evaluate(&trainers[FSDP], step, rank);
    for (int k = FSDP; k < N_KINDS; k++) {
        if (!takes_part((enum kind)k, setting)) {
            continue;
        }
        CHECK(evaluate(&trainers[k], step, rank) == wanted);
        shoal_tensor *bias = shoal_module_parameter(trainers[k].net.layers[1], "bias");
        float *data = step % 2 == 0 ? shoal_mutable_data(bias) : NULL;
        if (data && shoal_tensor_count(bias) > 0) { /* on one rank of those that have shards */
            data[0] += 0.5F;
        }
    }
}

static void check_setting(struct rank *self, struct setting setting)
{
    struct bench bench;
    struct trainer trainers[N_KINDS] = {{.kind = FSDP}};
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(setting.n_replicas == 1 || bench_replicate(&bench, setting.n_replicas));
    for (int k = 0; k < N_KINDS; k++) {
        trainers[k].kind = (enum kind)k;
        REQUIRE(!takes_part((enum kind)k, &setting) ||
                make_trainer(&trainers[k], bench.world, &setting, &bench.options));
    }
    for (int step = 0; step < N_STEPS && !test_has_failed(); step++) {
        for (int k = 0; k < N_KINDS; k++) {
            if (takes_part((enum kind)k, &setting)) {
                train_step(&trainers[k], &setting, step, self->rank);
            }
        }
        check_values(trainers, &setting, step);
        do_between(trainers, &setting, step, self->rank);
    }
    for (int k = 0; k < N_KINDS; k++) {
        free_trainer(&trainers[k]);
    }
    bench_close(&bench);
}

static void check_ranks(struct rank *self, int n_replicas)
{
    static const shoal_dtype dtypes[][2] = {{0, 0}, {SHOAL_BF16, SHOAL_F32}, {SHOAL_BF16, 0}};
    for (int d = 0; d < LENGTH(dtypes); d++) {
        if ((HARNESS_HAS_ASAN || HARNESS_HAS_TSAN) && (d + self->n_ranks) % 3 != 0) {
            continue; /* a third of them, others for each number of ranks */
        }
        struct setting setting = {
            .param_dtype = dtypes[d][0], .reduce_dtype = dtypes[d][1], .n_replicas = n_replicas};
        setting.n_micro = 1;
        setting.reduces_always = true;
        check_setting(self, setting);
        setting.n_micro = N_MICRO;
        setting.has_list = true;
        check_setting(self, setting);
        setting.reduces_always = false;
        check_setting(self, setting);
        setting.has_list = false;
        check_setting(self, setting);
    }
}

TEST_RANKS(bits_of_1, 1)
{
    check_ranks(self, 1);
}

TEST_RANKS(bits_of_2, 2)
{
    check_ranks(self, 1);
}

TEST_RANKS(bits_of_3, 3)
{
    check_ranks(self, 1);
}

TEST_RANKS(bits_of_4, 4)
{
    check_ranks(self, 1);
}

TEST_RANKS(bits_of_two_replicas_of_two, 4)
{
    check_ranks(self, 2);
}

/* Memory ------------------------------------------------------------------------------------------------- */

static void read_memory(struct bench *bench, shoal_fsdp_memory_report *report)
{
    *report = (shoal_fsdp_memory_report)SHOAL_FSDP_MEMORY_REPORT_INIT;
    CHECK_OK(shoal_fsdp_memory(fsdp_of_module(bench->sharded.root), report));
}

/* Whole gradients of all units are in memory of the units, which the first step makes, and nothing is on the
   tensors. */
static void check_memory(struct rank *self, bool reduces_always)
{
    struct bench bench;
    shoal_fsdp_memory_report first;
    shoal_fsdp_memory_report now;
    size_t whole = 0;
    REQUIRE(bench_open(&bench, self, N_LAYERS, NULL));
    bench.options.sharded = SHOAL_SHARDED_STATE;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int step = 0; step < 5; step++) {
        for (int micro = 0; micro < N_MICRO; micro++) {
            bool is_on = reduces_always || micro + 1 == N_MICRO;
            CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(bench.sharded.root, true), is_on));
            (void)net_pass(&bench.sharded, 10 * step + micro, self->rank);
            shoal_pending_gradient pending = SHOAL_PENDING_GRADIENT_INIT;
            CHECK_OK(
                shoal_fsdp_get_pending(shoal_fully_shard_param(bench.sharded.root, "0.weight"), &pending));
            const struct fsdp_block *own = bench_unit(bench.sharded.layers[0])->grads.own;
            CHECK(is_on ? !pending.full : pending.full == test_reach_given(address_pointer(own->data)));
            CHECK(!shoal_grad(fsdp_wrapper_of(bench.sharded.root)->tensors[0].full));
        }
        read_memory(&bench, step == 0 ? &first : &now);
        net_update(&bench.sharded, 0.1F);
        if (step > 0) {
            CHECK_BYTES(&now.rank, &first.rank, sizeof now.rank);
            CHECK_INT(now.rank_peak.buffers, first.rank.buffers);
            CHECK_INT(now.rank_peak.windows, first.rank.windows);
        }
    }
    for (int i = 0; i <= N_LAYERS; i++) {
        const struct fsdp_unit *unit =
            bench_unit(i < N_LAYERS ? bench.sharded.layers[i] : bench.sharded.root);
        for (size_t k = 0; k < unit->n_params; k++) {
            whole += fsdp_round_up((size_t)self->n_ranks * unit->params[k].padded_count * sizeof(float));
        }
    }
    CHECK_INT(first.rank.buffers, whole);
    bench_close(&bench);
}

TEST_RANKS(whole_gradients_stay, 2)
{
    check_memory(self, true);
    check_memory(self, false);
}

/* A backward pass that reaches only some parameters, and then all of them, before a reduction. */
static _Thread_local bool uses_last;

static shoal_tensor *first_or_all(shoal_module *root, shoal_tensor *x)
{
    x = net_call(root, "0", x);
    return uses_last ? net_call(root, "1", shoal_mul(x, shoal_module_parameter(root, "scale"))) : x;
}

static bool pass_in_turns(struct net *net, int step, int part)
{
    bool is_right = true;
    for (int micro = 0; micro < 2; micro++) {
        uses_last = micro > 0;
        if (shoal_is_fully_sharded(net->root)) {
            CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(net->root, true), micro > 0));
        }
        is_right = net_pass(net, 2 * step + micro, part) && is_right;
    }
    return is_right;
}

TEST_RANKS(parameters_that_join_later, 3)
{
    for (int k = 0; k < 2; k++) {
        struct bench bench;
        REQUIRE(bench_open(&bench, self, 2, first_or_all));
        bench.options.sharded = k == 0 ? SHOAL_SHARDED_GRADIENTS : SHOAL_SHARDED_STATE;
        REQUIRE(k == 0 ? net_shard(&bench.sharded, &bench.options)
                       : CHECK_OK(shoal_fully_shard(bench.sharded.root, &bench.options)));
        net_train_both(&bench.sharded, &bench.alone, pass_in_turns, self, 4);
        bench_close(&bench);
    }
}

/* Frozen and thawed while units stay gathered: nothing was written that would have them gathered again. */
static void set_learning(struct net *net, int layer, bool is_on)
{
    CHECK_OK(shoal_set_requires_grad(shoal_module_parameter(net->layers[layer], "weight"), is_on));
    CHECK_OK(shoal_set_requires_grad(shoal_module_parameter(net->layers[layer], "bias"), is_on));
}

static void train_and_freeze(struct rank *self, shoal_sharded sharded)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, N_LAYERS, NULL));
    bench.options.sharded = sharded;
    set_learning(&bench.sharded, 1, false);
    set_learning(&bench.alone, 1, false);
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_OK(shoal_fsdp_set_reshard_after_backward(shoal_fully_shard_unit(bench.sharded.root, true), false));
    for (int step = 0; step < 8 && !test_has_failed(); step++) {
        CHECK_OK(shoal_scope_begin()); /* gathers what the last step has written */
        CHECK_OK(shoal_scope_set_grad(false));
        CHECK(net_loss(&bench.sharded, net_input(0, 0)) != NULL);
        CHECK_OK(shoal_scope_end());
        if (step % 2 == 0) {
            bool is_on = step % 4 == 2; /* thawed and frozen in turns */
            set_learning(&bench.sharded, 1, is_on);
            set_learning(&bench.alone, 1, is_on);
        }
        (void)net_pass(&bench.sharded, step, self->rank);
        net_pass_alone(&bench.alone, net_pass, step, self->n_ranks);
        net_check_same(&bench.sharded, &bench.alone);
        net_update(&bench.sharded, 0.1F);
        net_update(&bench.alone, 0.1F);
    }
    bench_close(&bench);
}

TEST_RANKS(frozen_and_thawed, 3)
{
    train_and_freeze(self, SHOAL_SHARDED_PARAMETERS);
    train_and_freeze(self, SHOAL_SHARDED_GRADIENTS);
    train_and_freeze(self, SHOAL_SHARDED_STATE);
}

/* Each use of a layer that is computed again adds to the gradient by itself: g1 + g2a + g2b, and not g1 + (g2a +
   g2b). */
static shoal_tensor *twice_again(shoal_module *root, shoal_tensor *x)
{
    x = net_recompute(shoal_module_child(root, "0"), x);
    x = net_recompute(shoal_module_child(root, "1"), shoal_mul(x, shoal_module_parameter(root, "scale")));
    return net_recompute(shoal_module_child(root, "0"), x);
}

static bool pass_micro(struct net *net, int step, int part)
{
    bool is_right = true;
    for (int micro = 0; micro < N_MICRO; micro++) {
        if (shoal_is_fully_sharded(net->root)) {
            CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(net->root, true), micro + 1 == N_MICRO));
        }
        is_right = net_pass(net, N_MICRO * step + micro, part) && is_right;
    }
    return is_right;
}

TEST_RANKS(sums_in_the_order_of_uses, 3)
{
    for (int k = 0; k < 3; k++) { /* one unit, which is reduced once */
        struct bench bench;
        REQUIRE(bench_open(&bench, self, 2, twice_again));
        bench.options.sharded = (shoal_sharded)k;
        REQUIRE_OK(shoal_fully_shard(bench.sharded.root, &bench.options));
        net_train_both(&bench.sharded, &bench.alone, pass_micro, self, 4);
        bench_close(&bench);
    }
}

/* Gradients that wait: in the unit's memory where they lie as they are, otherwise on the tensor; and no freezing
   meanwhile. */
TEST_RANKS(what_waits, 2)
{
    struct bench bench;
    struct trainer trainer = {.kind = ZERO_1};
    const struct setting setting = {.n_replicas = 1, .n_micro = 1};
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(make_trainer(&trainer, bench.world, &setting, &bench.options));
    shoal_module *root = trainer.net.root;
    set_sync(&trainer, false);
    for (int micro = 0; micro < 2; micro++) {
        shoal_pending_gradient table = SHOAL_PENDING_GRADIENT_INIT;
        shoal_pending_gradient scale = SHOAL_PENDING_GRADIENT_INIT;
        CHECK(net_pass(&trainer.net, micro, self->rank));
        CHECK_OK(shoal_fsdp_get_pending(shoal_fully_shard_param(root, "table"), &table));
        CHECK_OK(shoal_fsdp_get_pending(shoal_fully_shard_param(root, "scale"), &scale));
        CHECK(table.full && table.n_blocks == 1 && table.full_count == 12 * NET_BATCH);
        CHECK(table.full && ((float *)table.full)[0] != 0.0F);
        const struct fsdp_block *own = bench_unit(root)->grads.own;
        const char *data = test_reach_given(address_pointer(own->data));
        CHECK((char *)scale.full >= data && (char *)scale.full < data + own->bytes);
    }
    CHECK_OK(shoal_set_requires_grad(shoal_module_parameter(root, "scale"), false));
    CHECK_OK(shoal_scope_begin());
    CHECK(net_loss(&trainer.net, net_input(0, self->rank)) == NULL);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("frozen while a gradient of it waits");
    CHECK_OK(shoal_set_requires_grad(shoal_module_parameter(root, "scale"), true));
    set_sync(&trainer, true);
    CHECK(net_pass(&trainer.net, 2, self->rank));
    free_trainer(&trainer);
    bench_close(&bench);
}

/* Ranks that differ -------------------------------------------------------------------------------------- */

TEST_RANKS(sharded_otherwise_on_one_rank, 3)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    bench.options.sharded = SHOAL_SHARDED_GRADIENTS;
    CHECK_OK(shoal_fully_shard(bench.sharded.layers[0], &bench.options));
    bench.options.sharded = self->rank == 1 ? SHOAL_SHARDED_STATE : SHOAL_SHARDED_GRADIENTS;
    CHECK_OK(shoal_fully_shard(bench.sharded.root, &bench.options));
    CHECK_OK(shoal_scope_begin());
    CHECK(net_loss(&bench.sharded, net_input(0, self->rank)) == NULL);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("sharded gradients");
    CHECK_ERROR_TEXT("sharded state");
    bench_close(&bench);
}

/* Compiled steps ----------------------------------------------------------------------------------------- */

static void set_both(struct pair *pair, bool is_on)
{
    CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(pair->eager.root, true), is_on));
    CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(pair->other.root, true), is_on));
}

/* Compiled steps gather each time; the ones without synchronization leave gradients on tensors. Eager ones have
   the same bits, and see what compiled steps and updates have written. */
static void check_compiled(struct rank *self, shoal_fully_shard_options options)
{
    struct pair pair;
    REQUIRE(pair_begin_net(&pair, self, WRAP_SHARDS, &options, NULL, NULL));
    for (int step = 0; step < 4 && !test_has_failed(); step++) {
        for (int micro = 0; micro < N_MICRO; micro++) {
            set_both(&pair, micro + 1 == N_MICRO);
            pair_run(&pair, 10 * step + micro, NET_BATCH);
        }
        pair_update(&pair);
    }
    set_both(&pair, true);
    for (int step = 0; step < 2; step++) { /* eagerly and compiled in turns */
        (void)net_pass(&pair.eager, step, self->rank);
        (void)net_pass(&pair.other, step, self->rank);
        pair_update(&pair);
        pair_run(&pair, step, NET_BATCH);
        pair_update(&pair);
    }
    CHECK(pair_count_compiles(&pair) <= 4);
    pair_end(&pair);
}

TEST_RANKS(compiled_steps, 3)
{
    TEST_NEEDS_HOST();
    for (int k = 1; k <= 2; k++) {
        check_compiled(self, (shoal_fully_shard_options){.sharded = (shoal_sharded)k});
        check_compiled(self, (shoal_fully_shard_options){.sharded = (shoal_sharded)k,
                                                         .param_dtype = SHOAL_BF16,
                                                         .reduce_dtype = SHOAL_F32});
    }
}

/* Whole gradients of eager backward passes are in the engine's memory: a compiled step cannot take them along, and
   says so. */
TEST_RANKS(eager_gradients_wait_before_a_compiled_step, 2)
{
    TEST_NEEDS_HOST();
    const shoal_fully_shard_options options = {.sharded = SHOAL_SHARDED_STATE};
    struct pair pair;
    shoal_tensor *loss = NULL;
    REQUIRE(pair_begin_net(&pair, self, WRAP_SHARDS, &options, NULL, NULL));
    set_both(&pair, false);
    (void)net_pass(&pair.eager, 0, self->rank);
    (void)net_pass(&pair.other, 0, self->rank);
    set_both(&pair, true);
    shoal_tensor *x = net_input(1, self->rank);
    CHECK_STATUS(shoal_compiled_run(pair.compiled, &x, 1, &loss, 1), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("shoal_fsdp_synchronize");
    CHECK_OK(on_context(pair.eager.root, shoal_fsdp_synchronize));
    CHECK_OK(on_context(pair.other.root, shoal_fsdp_synchronize));
    pair_run(&pair, 1, NET_BATCH);
    set_both(&pair, false); /* the other way round: compiled, then eager */
    pair_run(&pair, 2, NET_BATCH);
    set_both(&pair, true);
    (void)net_pass(&pair.eager, 3, self->rank);
    (void)net_pass(&pair.other, 3, self->rank);
    pair_check(&pair);
    pair_end(&pair);
}
