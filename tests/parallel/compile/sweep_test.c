/* SPDX-License-Identifier: MIT */
/*
 * Random networks under random settings, compiled, have the bits of eager ones: losses, gradients and parameters,
 * while compiled and eager steps take turns, gradients add up, and some steps do not synchronize. With ZeRO half of
 * the eager ones are FSDP.
 *
 * SHOAL_TEST_STEPS says how many networks, SHOAL_TEST_STEPS_FIRST the number of the first. What fails is printed with
 * its number.
 */
#include "fixtures/random_step.h"

#include <stdlib.h>

enum {
    N_SPECS = 40,
    N_GROUPS = 3 /* of steps, each ended by an update */
};

static uint64_t get_number(const char *name, uint64_t or_else)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : or_else;
}

/* Two of the network, that begin alike. */
struct trial {
    const struct spec *spec;
    struct spec_random random;
    shoal_world *world;
    shoal_mesh *mesh;
    struct spec_net eager;
    struct spec_net other;
    shoal_compiled *compiled;
    int rank;
    int n_runs;
    char history[128];
};

static bool is_same(const shoal_tensor *a, const shoal_tensor *b)
{
    if (!a || !b) {
        return !a && !b;
    }
    size_t bytes = (size_t)shoal_tensor_count(a) * shoal_dtype_bytes(shoal_tensor_dtype(a));
    const void *x = shoal_data(a);
    const void *y = shoal_data(b);
    return shoal_tensor_dtype(a) == shoal_tensor_dtype(b) && shoal_tensor_count(a) == shoal_tensor_count(b) &&
           (bytes == 0 || (x && y && memcmp(x, y, bytes) == 0));
}

static void compare(const struct trial *trial, const char *what)
{
    size_t n_eager = 0;
    size_t n_other = 0;
    (void)CHECK_OK(shoal_scope_begin());
    shoal_tensor *const *eager = shoal_module_parameters(trial->eager.root, &n_eager);
    shoal_tensor *const *other = shoal_module_parameters(trial->other.root, &n_other);
    CHECK(n_eager == n_other);
    for (size_t i = 0; i < n_eager && i < n_other && !test_has_failed(); i++) {
        if (!is_same(eager[i], other[i]) || !is_same(shoal_grad(eager[i]), shoal_grad(other[i]))) {
            test_failed(__FILE__, __LINE__, "rank %d, %s after %s: parameter %zu differs in %s%s",
                        trial->rank, what, trial->history, i,
                        is_same(eager[i], other[i]) ? "its gradient" : "its value",
                        shoal_grad(eager[i]) && shoal_grad(other[i]) ? "" : ", which one has not");
        }
    }
    (void)CHECK_OK(shoal_scope_end());
}

static void run_both(struct trial *trial, bool is_compiled, bool syncs)
{
    shoal_tensor *want = NULL;
    shoal_tensor *got = NULL;
    size_t length = strlen(trial->history);
    (void)snprintf(trial->history + length, sizeof trial->history - length, "%c%s", is_compiled ? 'c' : 'e',
                   syncs ? " " : "- ");
    (void)CHECK_OK(shoal_scope_begin());
    shoal_tensor *x = spec_numbers((uint32_t)(1000 + 100 * trial->n_runs++ + trial->rank), trial->spec->rows,
                                   trial->spec->columns);
    trial->eager.syncs = trial->other.syncs = syncs;
    (void)CHECK_OK(spec_set_sync(&trial->eager, syncs));
    (void)CHECK_OK(spec_set_sync(&trial->other, syncs));
    (void)CHECK_OK(spec_step(&trial->eager, &x, 1, &want, 1));
    (void)CHECK_OK(is_compiled ? shoal_compiled_run(trial->compiled, &x, 1, &got, 1)
                               : spec_step(&trial->other, &x, 1, &got, 1));
    if (want && got && !is_same(want, got)) {
        test_failed(__FILE__, __LINE__, "rank %d: the loss differs after %s", trial->rank, trial->history);
    }
    if (is_compiled) {
        shoal_tensor_unref(got);
    }
    (void)CHECK_OK(shoal_scope_end());
    compare(trial, "a step");
}

/*
 * Some steps without synchronization, and one or two with it; then an update. What an eager step of shards keeps in
 * the engine is not captured (SHOAL_ERR_STATE): eager steps follow until it is reduced.
 */
static void run_group(struct trial *trial)
{
    int n_without = trial->spec->n_micro > 1 ? 0 : (int)spec_below(&trial->random, 3);
    int n_with = 1 + (int)spec_below(&trial->random, 2);
    if (trial->spec->is_ddp && trial->spec->n_micro > 1) {
        n_with = 1; /* local gradients on top of averaged ones are refused */
    }
    bool is_kept = false;
    for (int i = 0; i < n_without + n_with && !test_has_failed(); i++) {
        bool syncs = i >= n_without;
        bool is_compiled = !is_kept && spec_below(&trial->random, 3) > 0;
        run_both(trial, is_compiled, syncs);
        is_kept = !trial->spec->is_ddp && !syncs && (is_kept || !is_compiled);
    }
    spec_update(&trial->eager);
    spec_update(&trial->other);
    compare(trial, "an update");
}

/* How often a gradient of a layer comes that is computed again more than once, an eager backward pass has to tell
   DDP. */
static bool has_unknown_counts(const struct spec *spec)
{
    bool has_any = false;
    for (int i = 0; i < spec->n_layers; i++) {
        has_any = has_any || (spec->is_ddp && spec->layers[i].is_again && spec->layers[i].n_calls > 1);
    }
    return has_any;
}

static void run_spec(const struct rank *self, const struct spec *spec, int round)
{
    struct trial trial = {.spec = spec,
                          .random = {.state = spec->number + 77},
                          .world = rank_world_open(self, round),
                          .rank = self->rank};
    REQUIRE(trial.world && CHECK_OK(shoal_scope_begin()));
    if (spec->is_mesh) {
        static const char *const names[] = {"replicas", "shards"};
        CHECK_OK(shoal_mesh_create(trial.world, "cpu", NULL, (int[]){2, self->n_ranks / 2}, 2, names,
                                   &trial.mesh));
    }
    struct spec fsdp = *spec; /* ZeRO beside itself or beside FSDP */
    fsdp.shards.sharded = spec->number % 2 == 0 ? spec->shards.sharded : SHOAL_SHARDED_PARAMETERS;
    spec_make_net(&trial.eager, &fsdp);
    spec_make_net(&trial.other, spec);
    if (spec_wrap(&trial.eager, trial.world, trial.mesh) &&
        spec_wrap(&trial.other, trial.world, trial.mesh) &&
        CHECK_OK(shoal_compile(trial.world, spec_step, &trial.other, 1, NULL, &trial.compiled))) {
        if (has_unknown_counts(spec)) {
            run_both(&trial, /*is_compiled=*/false, /*syncs=*/true);
            spec_update(&trial.eager);
            spec_update(&trial.other);
        }
        for (int i = 0; i < N_GROUPS && !test_has_failed(); i++) {
            run_group(&trial);
        }
    }
    shoal_compiled_free(trial.compiled);
    shoal_module_unref(trial.eager.root);
    shoal_module_unref(trial.other.root);
    shoal_mesh_free(trial.mesh);
    (void)CHECK_OK(shoal_scope_end());
    (void)CHECK_OK(shoal_world_close(trial.world));
}

/* Found wrong before. */
static const struct {
    int n_ranks;
    uint64_t number;
} found[] = {{2, 2},   {2, 7},   {2, 173}, {3, 2},  {3, 4},   {3, 5},
             {3, 209}, {3, 322}, {4, 4},   {4, 41}, {4, 213}, {4, 311}};

static void try_number(const struct rank *self, uint64_t number, int round)
{
    struct spec spec = spec_choose(number, self->n_ranks);
    run_spec(self, &spec, round);
    if (test_has_failed() && self->rank == 0) {
        char text[SPEC_TEXT];
        spec_print(&spec, text);
        test_failed(__FILE__, __LINE__, "%s", text);
    }
}

static void sweep(const struct rank *self)
{
    uint64_t n_specs = get_number("SHOAL_TEST_STEPS", (uint64_t)(N_SPECS / test_time_scale()));
    uint64_t first = get_number("SHOAL_TEST_STEPS_FIRST", 1);
    int round = 0;
    for (size_t i = 0; i < sizeof found / sizeof found[0] && !test_has_failed(); i++) {
        if (found[i].n_ranks == self->n_ranks) {
            try_number(self, found[i].number, round++);
        }
    }
    for (uint64_t i = 0; i < n_specs && !test_has_failed(); i++) {
        try_number(self, first + i, round++);
    }
}

TEST_RANKS(random_networks_of_2, 2)
{
    sweep(self);
}

TEST_RANKS(random_networks_of_3, 3)
{
    sweep(self);
}

TEST_RANKS(random_networks_of_4, 4)
{
    sweep(self);
}
