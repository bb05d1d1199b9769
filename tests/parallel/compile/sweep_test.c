/* SPDX-License-Identifier: MIT */
/*
 * Random networks under random settings, compiled, have the bits of eager ones: losses, gradients and parameters,
 * while compiled and eager steps take turns, gradients add up, and some steps do not synchronize. With ZeRO half of
 * the eager ones are FSDP.
 *
 * SHOAL_TEST_STEPS says how many networks, SHOAL_TEST_STEPS_FIRST the number of the first. What fails is printed with
 * its number.
 */
#include "fixtures/compiled_trial.h"

enum {
    N_SPECS = 40,
    N_GROUPS = 3 /* of steps, each ended by an update */
};

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
        trial_run(trial, is_compiled, syncs ? TRIAL_REDUCES : TRIAL_KEEPS);
        is_kept = !trial->spec->is_ddp && !syncs && (is_kept || !is_compiled);
    }
    spec_update(&trial->eager);
    spec_update(&trial->other);
    trial_compare(trial, "an update");
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
    struct trial trial;
    struct spec fsdp = *spec; /* ZeRO beside itself or beside FSDP */
    fsdp.shards.sharded = spec->number % 2 == 0 ? spec->shards.sharded : SHOAL_SHARDED_PARAMETERS;
    if (trial_begin(&trial, self, spec, &fsdp, round)) {
        if (has_unknown_counts(spec)) {
            trial_run(&trial, /*is_compiled=*/false, TRIAL_REDUCES);
            spec_update(&trial.eager);
            spec_update(&trial.other);
        }
        for (int i = 0; i < N_GROUPS && !test_has_failed(); i++) {
            run_group(&trial);
        }
    }
    trial_end(&trial);
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
    uint64_t n_specs = trial_number("SHOAL_TEST_STEPS", (uint64_t)(N_SPECS / test_time_scale()));
    uint64_t first = trial_number("SHOAL_TEST_STEPS_FIRST", 1);
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
