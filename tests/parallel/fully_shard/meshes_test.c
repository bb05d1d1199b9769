/* SPDX-License-Identifier: MIT */
/*
 * Units of one model on several meshes: experts on pairs of ranks, a part with replicas beside others without, a
 * replicated unit, a weight that two layers share. What comes out has the bits of one process that has a net for each
 * pair, and adds gradients in the order of each unit's mesh. Ranks whose meshes or calls differ get a mismatch on all of
 * them, long before the deadline.
 */
#include <math.h>
#include <signal.h>

#include "fixtures/on_device.h"

#include "base/clock.h"
#include "fixtures/mesh_stage.h"
#include "fixtures/shared_directory.h"
#include "harness/harness.h"
#include "shoal/checkpoint.h"
#include "shoal/compile.h"
#include "shoal/items.h"

/* One backward pass, which reduces. */
static shoal_status call_and_back(struct stage *stage, int step)
{
    (void)CHECK_OK(shoal_scope_begin());
    shoal_status status = shoal_backward(net_loss(&stage->sharded, net_input(step, stage->self->rank)), NULL);
    shoal_status ended = shoal_scope_end();
    return status == SHOAL_OK ? ended : status;
}

static void check_bits(struct rank *self, const shoal_fully_shard_options *base)
{
    struct stage stage;
    REQUIRE(stage_open(&stage, self));
    REQUIRE(stage_shard(&stage, &stage.sharded, stage_kinds, base) && stage_make_pairs(&stage, base));
    stage_train(&stage, 3);
    stage_close(&stage);
    (void)CHECK_OK(shoal_world_close(stage.world));
}

static void check_all_bits(struct rank *self)
{
    static const shoal_fully_shard_options settings[] = {
        {.struct_size = sizeof settings[0]},
        {.struct_size = sizeof settings[0], .reshard = SHOAL_RESHARD_NEVER, .max_reduces = 2},
        {.struct_size = sizeof settings[0], .reshard = SHOAL_RESHARD_PARTLY, .reshard_ranks = 2},
        {.struct_size = sizeof settings[0],
         .reshard = SHOAL_RESHARD_ALWAYS,
         .param_dtype = SHOAL_BF16,
         .reduce_dtype = SHOAL_F32,
         .max_reduces = 3},
        {.struct_size = sizeof settings[0], .sharded = SHOAL_SHARDED_STATE, .forward_prefetch = -1},
        {.struct_size = sizeof settings[0], .sharded = SHOAL_SHARDED_GRADIENTS, .forward_prefetch = 2}};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0] && !test_has_failed(); i++) {
        check_bits(self, &settings[i]);
    }
}

TEST_RANKS(bits_of_four, 4)
{
    check_all_bits(self);
}

TEST_RANKS(bits_of_six, 6)
{
    check_all_bits(self);
}

/* A unit inside is on more ranks than the root. */
TEST_RANKS(a_root_on_a_pair, 4)
{
    static const enum stage_kind inside_out[] = {EVERYWHERE, EVERYWHERE, PAIR, REPLICATED,
                                                 ROWS,       EVERYWHERE, PAIR};
    struct stage stage;
    REQUIRE(stage_open(&stage, self));
    const shoal_fully_shard_options base = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    REQUIRE(stage_shard(&stage, &stage.sharded, inside_out, &base));
    for (int i = 0; i < 3; i++) {
        (void)CHECK_OK(call_and_back(&stage, i));
        net_update(&stage.sharded, 0.1F);
    }
    stage_close(&stage);
    (void)CHECK_OK(shoal_world_close(stage.world));
}

/* Values that ranks do not have in common, from one rank. */
TEST_RANKS(broadcast_to_all_meshes, 6)
{
    struct stage stage;
    struct net whole;
    REQUIRE(stage_open(&stage, self));
    const shoal_fully_shard_options base = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    size_t n;
    shoal_tensor *const *parameters = shoal_module_parameters(stage.sharded.root, &n);
    for (size_t i = 0; i < n; i++) {
        float *data = shoal_mutable_data(parameters[i]);
        data[0] = (float)self->rank;
    }
    REQUIRE(stage_shard(&stage, &stage.sharded, stage_kinds, &base));
    net_make(&whole, STAGE_LAYERS, NULL);
    stage_tie(&whole);
    (void)CHECK_OK(
        shoal_fully_shard_broadcast_all(stage.sharded.root, self->rank == 3 ? whole.root : NULL, 3));
    net_check_same(&stage.sharded, &whole);
    (void)CHECK_OK(call_and_back(&stage, 0)); /* replicas have the same values */
    net_free(&whole);
    stage_close(&stage);
    (void)CHECK_OK(shoal_world_close(stage.world));
}

/* The world is closed first, in the middle of a step: what is left can be freed. */
TEST_RANKS(the_world_is_closed_first, 4)
{
    struct stage stage;
    REQUIRE(stage_open(&stage, self));
    const shoal_fully_shard_options base = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    REQUIRE(stage_shard(&stage, &stage.sharded, stage_kinds, &base));
    (void)CHECK_OK(shoal_scope_begin());
    (void)net_loss(&stage.sharded, net_input(0, self->rank));
    test_barrier(self);
    (void)shoal_world_close(stage.world); /* marks may be in flight */
    (void)CHECK_OK(shoal_scope_end());
    shoal_tensor *x = net_input(0, 0);
    (void)CHECK_OK(shoal_scope_begin());
    (void)shoal_module_call_one(stage.sharded.root, x);
    (void)CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
    stage.rows = NULL; /* freed with the world */
    stage_close(&stage);
}

/* Compiled --------------------------------------------------------------------------------------------------- */

static shoal_status step_to_compile(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                    shoal_tensor **outputs, size_t n_outputs)
{
    struct net *net = context;
    shoal_status status = SHOAL_OK;
    (void)n_outputs;
    for (size_t i = 0; i < n_inputs && status == SHOAL_OK; i++) {
        status = shoal_fsdp_set_sync(shoal_fully_shard_unit(net->root, true), i == n_inputs - 1);
        outputs[0] = net_loss(net, inputs[i]);
        status = status == SHOAL_OK ? shoal_backward(outputs[0], NULL) : status;
    }
    return status;
}

static void run_compiled(struct stage *stage, shoal_compiled *compiled, int step)
{
    shoal_tensor *loss = NULL;
    (void)CHECK_OK(shoal_scope_begin());
    shoal_tensor *inputs[STAGE_MICRO];
    for (int micro = 0; micro < STAGE_MICRO; micro++) {
        inputs[micro] = net_input(10 * step + micro, stage->self->rank);
    }
    (void)CHECK_OK(shoal_compiled_run(compiled, inputs, STAGE_MICRO, &loss, 1));
    shoal_tensor_unref(loss);
    (void)CHECK_OK(shoal_scope_end());
}

TEST_RANKS(compiled, 4)
{
    TEST_NEEDS_HOST();
    struct stage stage;
    shoal_compiled *compiled = NULL;
    REQUIRE(stage_open(&stage, self));
    const shoal_fully_shard_options base = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    REQUIRE(stage_shard(&stage, &stage.sharded, stage_kinds, &base) && stage_make_pairs(&stage, &base));
    REQUIRE_OK(shoal_compile(stage.world, step_to_compile, &stage.sharded, 1, NULL, &compiled));
    for (int step = 0; step < 3 && !test_has_failed(); step++) {
        run_compiled(&stage, compiled, step);
        stage_pass_alone(&stage, step);
        net_check_same(&stage.sharded, &stage.pairs[self->rank / 2]);
        net_update(&stage.sharded, 0.1F);
        for (int i = 0; i < self->n_ranks / 2; i++) {
            net_update(&stage.pairs[i], 0.1F);
        }
    }
    shoal_compiled_free(compiled);
    stage_close(&stage);
    (void)CHECK_OK(shoal_world_close(stage.world));
}

/* Checkpoints ------------------------------------------------------------------------------------------------ */

/* A moment of an expert's weight, of the program's own: its values are the world's first rank of the pair, and places. */
struct moment {
    shoal_tensor *values;
    int64_t offset;
    int64_t length;
};

static bool add_items(struct stage *stage, shoal_items **items_out, struct moment *moment)
{
    shoal_fsdp_param *param = shoal_fully_shard_param(stage->sharded.root, "1.weight");
    shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
    bool is_right = CHECK_OK(shoal_items_create(items_out)) &&
                    CHECK_OK(shoal_items_add_module(*items_out, "", stage->sharded.root)) &&
                    CHECK_OK(shoal_fsdp_get_layout(param, &layout));
    moment->values = shoal_zeros((int64_t[]){NET_WIDTH}, 1, SHOAL_F32);
    is_right = is_right && CHECK_OK(shoal_items_add_fsdp_array(*items_out, "moments", "m", param, SHOAL_F32,
                                                               test_address(moment->values)));
    moment->offset = layout.offset;
    moment->length = layout.length;
    return is_right;
}

static float moment_of(int pair, int64_t place)
{
    return (float)(100 * pair) + (float)place;
}

static void save(struct stage *stage, const char *directory)
{
    struct moment moment;
    shoal_items *items = NULL;
    REQUIRE(add_items(stage, &items, &moment));
    float *values = shoal_mutable_data(moment.values);
    for (int64_t i = 0; i < moment.length; i++) {
        values[i] = moment_of(stage->self->rank / 2, moment.offset + i);
    }
    (void)CHECK_OK(shoal_checkpoint_save(shoal_world_group(stage->world), directory, items, NULL));
    shoal_items_free(items);
}

/* A world of so many of the ranks, in which the model has the values that it began with. */
static void load(struct rank *self, int n_ranks, const struct stage *saved, const char *directory)
{
    struct rank part = *self;
    struct stage stage;
    struct moment moment;
    shoal_items *items = NULL;
    const shoal_fully_shard_options base = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    part.n_ranks = n_ranks;
    REQUIRE(stage_begin(&stage, &part, n_ranks));
    stage_make_net(&stage, &stage.sharded);
    REQUIRE(stage_shard(&stage, &stage.sharded, stage_kinds, &base) && add_items(&stage, &items, &moment));
    shoal_group *group = shoal_world_group(stage.world);
    if (n_ranks < saved->self->n_ranks) { /* the values of the last expert would be lost */
        (void)CHECK_STATUS(shoal_checkpoint_load(group, directory, items, NULL, NULL), SHOAL_ERR_INVALID);
        (void)CHECK_ERROR_TEXT("1.weight#2");
    }
    shoal_checkpoint_load_options options = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    options.allows_unexpected = n_ranks < saved->self->n_ranks;
    (void)CHECK_OK(shoal_checkpoint_load(group, directory, items, &options, NULL));
    struct net *want = (struct net *)&saved->pairs[self->rank / 2];
    net_check_same(&stage.sharded, want);
    const float *values = shoal_data(moment.values);
    for (int64_t i = 0; i < moment.length; i++) {
        CHECK(values[i] == moment_of(self->rank / 2, moment.offset + i));
    }
    shoal_items_free(items);
    stage_close(&stage);
    (void)CHECK_OK(shoal_world_close(stage.world));
}

/* Experts have values of their own, which no other pair has. */
TEST_RANKS(saved_on_six_and_loaded_on_four, 6)
{
    struct stage stage;
    const char *directory = share_directory(self);
    REQUIRE(stage_open(&stage, self));
    const shoal_fully_shard_options base = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    REQUIRE(stage_shard(&stage, &stage.sharded, stage_kinds, &base) && stage_make_pairs(&stage, &base));
    stage_train(&stage, 2);
    save(&stage, directory);
    test_barrier(self);
    if (self->rank < 4) {
        load(self, 4, &stage, directory);
    }
    test_barrier(self);
    load(self, 6, &stage, directory);
    stage_close(&stage);
    (void)CHECK_OK(shoal_world_close(stage.world));
    test_barrier(self);
    remove_directory(self, directory);
}

/* Differences ---------------------------------------------------------------------------------------------- */

/* What one rank does differently. */
struct difference {
    const char *name;
    enum stage_kind where[STAGE_LAYERS + 1];
};

/* In the first, an expert has another partner. In the last two, the only units that are on all ranks are not, so that
   the rank does not know of the others. */
static const struct difference differences[] = {
    {"odd pair", {EVERYWHERE, ODD_PAIR, ROWS, REPLICATED, PAIR, EVERYWHERE, EVERYWHERE}},
    {"expert everywhere", {EVERYWHERE, EVERYWHERE, ROWS, REPLICATED, PAIR, EVERYWHERE, EVERYWHERE}},
    {"no replicas", {EVERYWHERE, PAIR, PAIR, REPLICATED, PAIR, EVERYWHERE, EVERYWHERE}},
    {"rows everywhere", {EVERYWHERE, PAIR, EVERYWHERE, REPLICATED, PAIR, EVERYWHERE, EVERYWHERE}},
    {"not replicated", {EVERYWHERE, PAIR, ROWS, EVERYWHERE, PAIR, EVERYWHERE, EVERYWHERE}},
    {"other order", {EVERYWHERE, ROWS, PAIR, REPLICATED, PAIR, EVERYWHERE, EVERYWHERE}},
    {"missing unit", {EVERYWHERE, PAIR, ROWS, REPLICATED, UNSHARDED, EVERYWHERE, EVERYWHERE}},
    {"root on a pair", {EVERYWHERE, PAIR, ROWS, REPLICATED, PAIR, EVERYWHERE, PAIR}},
    {"one mesh", {EVERYWHERE, EVERYWHERE, EVERYWHERE, EVERYWHERE, EVERYWHERE, EVERYWHERE, EVERYWHERE}},
    {"pairs only", {PAIR, PAIR, PAIR, PAIR, PAIR, PAIR, PAIR}},
    {"replicated only", {REPLICATED, REPLICATED, REPLICATED, REPLICATED, REPLICATED, REPLICATED, REPLICATED}},
    {"rows only", {ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS}},
};

/* A status that is a mismatch, and came in time. */
static void check_mismatch(const char *name, int64_t began_ns, shoal_status status)
{
    double seconds = (double)(clock_now_ns() - began_ns) * 1e-9;
    if (status != SHOAL_ERR_MISMATCH || seconds >= 10 * test_time_scale()) {
        test_failed(__FILE__, __LINE__, "%s: status %d after %.2f s: %s", name, (int)status, seconds,
                    shoal_error_text());
    }
}

static shoal_status call_root(struct net *net, int step, int part)
{
    (void)CHECK_OK(shoal_scope_begin());
    (void)net_loss(net, net_input(step, part));
    return shoal_scope_end();
}

static void check_difference(struct rank *self, const struct difference *difference, int odd_one,
                             const enum stage_kind *right)
{
    struct stage stage;
    REQUIRE(stage_open(&stage, self));
    const shoal_fully_shard_options base = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    REQUIRE(stage_shard(&stage, &stage.sharded, self->rank == odd_one ? difference->where : right, &base));
    int64_t began_ns = clock_now_ns();
    check_mismatch(difference->name, began_ns, call_root(&stage.sharded, 0, self->rank));
    test_barrier(self);
    stage_close(&stage);
    (void)shoal_world_close(stage.world);
}

/* The groups of units, as bits: those of units on all ranks are one, cut or not. */
static unsigned groups_of(const enum stage_kind *where)
{
    unsigned groups = 0;
    for (int i = 0; i <= STAGE_LAYERS; i++) {
        enum stage_kind kind = where[i] == REPLICATED ? EVERYWHERE : where[i];
        groups |= kind == UNSHARDED ? 0U : 1U << kind;
    }
    return groups;
}

/* Ranks that have no group in common can only wait for each other until the deadline. */
static bool do_meet(const enum stage_kind *one, const enum stage_kind *other)
{
    return (groups_of(one) & groups_of(other)) != 0;
}

static void check_differences(struct rank *self, const enum stage_kind *right)
{
    for (size_t i = 0; i < sizeof differences / sizeof differences[0] && !test_has_failed(); i++) {
        bool differs = memcmp(differences[i].where, right, sizeof differences[i].where) != 0;
        if (differs && do_meet(differences[i].where, right)) {
            check_difference(self, &differences[i], (int)i % self->n_ranks, right);
        }
    }
}

TEST_RANKS(one_rank_has_other_meshes, 4)
{
    check_differences(self, stage_kinds);
}

TEST_RANKS(one_of_six_has_other_meshes, 6)
{
    check_differences(self, stage_kinds);
}

/* Where only the root is on all ranks. */
TEST_RANKS(one_rank_has_another_root, 4)
{
    static const enum stage_kind right[] = {PAIR, PAIR, PAIR, PAIR, PAIR, PAIR, EVERYWHERE};
    check_differences(self, right);
}

/* Where all have one mesh, and one rank has several. */
TEST_RANKS(one_rank_has_several_meshes, 4)
{
    static const enum stage_kind everywhere[] = {EVERYWHERE, EVERYWHERE, EVERYWHERE, EVERYWHERE,
                                                 EVERYWHERE, EVERYWHERE, EVERYWHERE};
    static const enum stage_kind rows[] = {ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS};
    check_differences(self, everywhere);
    check_differences(self, rows);
}

/* Units on rows and on columns of ranks: no rank has a group of all. The program says who they are, on all ranks. */
static void check_columns(struct rank *self, bool (*says)(const struct rank *self), shoal_status wanted)
{
    static const enum stage_kind where[] = {PAIR, ODD_PAIR, PAIR, ODD_PAIR, PAIR, PAIR, ODD_PAIR};
    struct stage stage;
    double norm = 0.0;
    REQUIRE(stage_open(&stage, self));
    shoal_fully_shard_options base = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    base.all_ranks = says(self) ? shoal_world_group(stage.world) : NULL;
    REQUIRE(stage_shard(&stage, &stage.sharded, where, &base));
    int64_t began_ns = clock_now_ns();
    for (int i = 0; i < 3 && wanted == SHOAL_OK; i++) {
        (void)CHECK_OK(call_and_back(&stage, i));
        (void)CHECK_OK(shoal_fsdp_clip_grad_norm(fsdp_of_module(stage.sharded.root), 1.0, 2.0, false, &norm));
        net_update(&stage.sharded, 0.1F);
    }
    if (wanted != SHOAL_OK) {
        check_mismatch("rows and columns", began_ns, call_root(&stage.sharded, 0, self->rank));
    }
    test_barrier(self);
    stage_close(&stage);
    (void)shoal_world_close(stage.world);
}

static bool all_say(const struct rank *self)
{
    (void)self;
    return true;
}

static bool none_says(const struct rank *self)
{
    (void)self;
    return false;
}

static bool all_but_one_say(const struct rank *self)
{
    return self->rank != 2;
}

TEST_RANKS(rows_and_columns, 4)
{
    check_columns(self, all_say, SHOAL_OK);
    check_columns(self, none_says, SHOAL_ERR_MISMATCH);
    check_columns(self, all_but_one_say, SHOAL_ERR_MISMATCH);
}

/* Calls that one rank makes differently, in a step. */
static shoal_status skip_expert(struct stage *stage)
{
    struct net *net = &stage->sharded;
    (void)CHECK_OK(shoal_scope_begin());
    (void)net_call(net->root, "1", net_input(0, 0)); /* out of turn */
    shoal_status status = shoal_scope_end();
    return status == SHOAL_OK ? call_root(net, 0, 0) : status;
}

static shoal_status clip(struct stage *stage)
{
    shoal_status status =
        shoal_fsdp_clip_grad_norm(fsdp_of_module(stage->sharded.root), 1.0, 2.0, false, NULL);
    return status;
}

static shoal_status gather_expert(struct stage *stage)
{
    float full[NET_WIDTH];
    return shoal_fsdp_gather(shoal_fully_shard_param(stage->sharded.root, "1.weight"), full,
                             SHOAL_FSDP_ALL_RANKS);
}

static shoal_status unshard_expert(struct stage *stage)
{
    shoal_fsdp_unit *unit = shoal_fully_shard_unit(stage->sharded.layers[1], false);
    shoal_status status = shoal_fsdp_unshard(unit);
    return status == SHOAL_OK ? shoal_fsdp_wait(unit) : status;
}

static shoal_status evaluate(struct stage *stage)
{
    (void)CHECK_OK(shoal_scope_begin());
    (void)CHECK_OK(shoal_scope_set_grad(false));
    (void)shoal_module_call_one(stage->sharded.root, net_input(0, 0));
    return shoal_scope_end();
}

static shoal_status step(struct stage *stage)
{
    return call_and_back(stage, 0);
}

/* Until they notice: what differs may be found by the next call. */
static shoal_status step_on(struct stage *stage)
{
    shoal_status status = SHOAL_OK;
    for (int i = 0; i < 3 && status == SHOAL_OK; i++) {
        status = step(stage);
    }
    return status;
}

static void check_calls(struct rank *self, shoal_status (*odd_call)(struct stage *stage), bool is_first)
{
    struct stage stage;
    REQUIRE(stage_open(&stage, self));
    const shoal_fully_shard_options base = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    REQUIRE(stage_shard(&stage, &stage.sharded, stage_kinds, &base));
    if (!is_first) {
        (void)CHECK_OK(step(&stage));
        net_update(&stage.sharded, 0.1F);
    }
    (void)fsdp_of_module(stage.sharded.root);
    test_barrier(self);
    int64_t began_ns = clock_now_ns();
    shoal_status status = self->rank == 2 ? odd_call(&stage) : SHOAL_OK;
    status = status == SHOAL_OK ? step_on(&stage) : status;
    check_mismatch("a call", began_ns, status);
    test_barrier(self);
    stage_close(&stage);
    (void)shoal_world_close(stage.world);
}

TEST_RANKS(one_rank_makes_other_calls, 4)
{
    shoal_status (*const calls[])(struct stage *) = {skip_expert, clip, gather_expert, unshard_expert,
                                                     evaluate};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0] && !test_has_failed(); i++) {
        check_calls(self, calls[i], false);
        check_calls(self, calls[i], true);
    }
}

/* A rank dies ---------------------------------------------------------------------------------------------- */

enum {
    VICTIM = 3
};

static void check_death(struct rank *self, bool is_between)
{
    struct stage stage;
    REQUIRE(stage_open(&stage, self));
    const shoal_fully_shard_options base = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    REQUIRE(stage_shard(&stage, &stage.sharded, stage_kinds, &base));
    (void)CHECK_OK(step(&stage));
    test_barrier(self);
    test_expect_death(VICTIM, SIGKILL);
    shoal_status status = SHOAL_OK;
    for (int i = 0; i < 50 && status == SHOAL_OK; i++) {
        (void)CHECK_OK(shoal_scope_begin());
        if (self->rank == VICTIM && i == 2 && !is_between) {
            (void)raise(SIGKILL);
        }
        shoal_tensor *loss = net_loss(&stage.sharded, net_input(i, self->rank));
        if (self->rank == VICTIM && i == 2) {
            (void)raise(SIGKILL);
        }
        status = shoal_backward(loss, NULL);
        shoal_status ended = shoal_scope_end();
        status = status == SHOAL_OK ? ended : status;
    }
    (void)CHECK_INT(status, SHOAL_ERR_PEER);
    (void)CHECK_ERROR_TEXT("rank ");
    stage_close(&stage);
    (void)shoal_world_close(stage.world);
}

TEST_PROCESSES(a_rank_dies_before_a_forward_pass, 4)
{
    check_death(self, false);
}

TEST_PROCESSES(a_rank_dies_before_a_backward_pass, 6)
{
    check_death(self, true);
}
