/* SPDX-License-Identifier: MIT */
/*
 * Random small sharded networks under random settings of their units: compiled steps have the bits of eager ones, or are
 * refused as the table of docs/graph.md says. Compiled and eager steps take turns; some leave gradients on whole
 * parameters or for the replicas. Some networks have experts on ranks of their own, units with replicas and units that
 * are not cut beside others, and some gather weights as int8 by an extension: there, each compiled step is refused and
 * run eagerly, and the network that it is compared with decodes all rows at once.
 *
 * SHOAL_TEST_STEPS says how many networks, SHOAL_TEST_STEPS_FIRST the number of the first (`make settings` runs more).
 * What fails is printed with its number.
 */
#include "fixtures/compiled_trial.h"
#include "fixtures/refused_settings.h"

#include <stdlib.h>

enum {
    N_SPECS = 30,
    N_GROUPS = 3 /* of steps, each ended by an update */
};

/* Settings that are refused --------------------------------------------------------------------------------- */

static const struct refused {
    shoal_status (*set)(shoal_fsdp_unit *unit, bool is_on);
    const char *name;
} refused[] = {{refused_set_hook, "shoal_fsdp_set_all_reduce_hook"},
               {refused_set_gather, "shoal_fsdp_set_custom_all_gather"},
               {refused_set_scatter, "shoal_fsdp_set_custom_reduce_scatter"}};

/* Choosing -------------------------------------------------------------------------------------------------- */

static bool has_room_for_partly(const struct spec *spec)
{
    return spec->shards.sharded == SHOAL_SHARDED_PARAMETERS && !spec->shards.is_replicated;
}

/* A unit that is not gathered for its backward pass must not be read there. */
static bool can_be_blind(const struct spec *spec, const struct spec_layer *layer)
{
    return layer->is_sum && !layer->is_again && spec->units == SPEC_EACH;
}

static enum spec_where choose_where(const struct spec *spec, struct spec_random *random)
{
    enum spec_where where = (enum spec_where)spec_below(random, SPEC_N_WHERE);
    if (where == SPEC_ROWS && spec->n_ranks % 2 != 0) {
        return SPEC_EXPERT;
    }
    return where == SPEC_REPLICATED && spec->shards.sharded != SHOAL_SHARDED_PARAMETERS ? SPEC_ROOT : where;
}

/* Meshes of two thirds of the networks, extensions of a quarter. Layers of one unit are in one place. */
static void choose_places(struct spec *spec)
{
    struct spec_random random = {.state = ~(spec->number * 64 + (uint64_t)spec->n_ranks)};
    bool has_meshes = spec->units != SPEC_ALONE && spec_below(&random, 3) > 0;
    bool has_extensions = !spec->cuts_last && spec_below(&random, 4) == 0;
    int last = spec->n_layers - 1;
    for (int i = 0; i <= last; i++) {
        struct spec_layer *layer = &spec->layers[i];
        enum spec_where where = choose_where(spec, &random);
        layer->where = has_meshes ? where : SPEC_ROOT;
        layer->is_extended = spec_below(&random, 2) == 0 && has_extensions;
    }
    if (spec->units >= SPEC_PAIRS) {
        spec->layers[spec->units == SPEC_TIED ? last : 1].where = spec->layers[0].where;
    }
    if (spec->units == SPEC_TIED) { /* the weight has the name of the first */
        spec->layers[last].is_extended = false;
    }
    for (int i = 0; i <= last; i++) {
        spec->is_extended = spec->is_extended || spec->layers[i].is_extended;
    }
}

static void choose_layer(struct spec *spec, struct spec_layer *layer, struct spec_random *random)
{
    int n_shards = spec_n_shards(spec, layer);
    layer->is_sum = spec_below(random, 3) == 0;
    layer->stays = spec_below(random, 3) == 0;
    if (spec->reduces_unused) {
        layer->is_split = spec_below(random, 3) == 0 && !layer->is_again;
        /* An extension of a unit that is never gathered would not be noticed. */
        layer->n_calls = spec_below(random, 5) == 0 && !layer->is_extended ? 0 : layer->n_calls;
    }
    layer->is_blind = can_be_blind(spec, layer) && spec_below(random, 2) == 0;
    if (has_room_for_partly(spec) && n_shards > 1 && spec_below(random, 3) == 0) {
        int n = spec_below(random, 2) == 0 ? n_shards / 2 : 1 + (int)spec_below(random, (uint64_t)n_shards);
        layer->partly_ranks = n > 0 && n_shards % n == 0 ? n : 1;
    }
}

/* A spec of random_step.h, sharded, and further settings. With units of several layers the first one's hold for all. */
static struct spec choose(uint64_t number, int n_ranks)
{
    struct spec_random random = {.state = number * 64 + (uint64_t)n_ranks};
    struct spec spec = {.number = number, .n_ranks = n_ranks};
    spec_choose_layers(&spec, &random);
    spec.n_micro = spec_below(&random, 3) == 0 ? 2 : 1;
    spec.divide_factor = SPEC_PICK(&random, 0, 0, 1, 2.7, 4);
    spec_choose_shards(&spec, &random);
    spec.reduces_unused = spec_below(&random, 3) == 0;
    if (n_ranks == 4 && number % 3 == 0) { /* only here neighbours can keep something among them */
        spec.is_mesh = spec.reduces_unused = spec.shards.is_replicated = false;
        spec.shards.sharded = SHOAL_SHARDED_PARAMETERS;
    }
    if (spec.reduces_unused) { /* units that only some ranks reach in backward keep their parameters */
        spec.shards.reshard = SHOAL_RESHARD_NEVER;
    }
    choose_places(&spec);
    for (int i = 0; i < spec.n_layers; i++) {
        choose_layer(&spec, &spec.layers[i], &random);
        if (i > 0 && spec.units != SPEC_EACH) {
            bool is_there = spec.layers[i].where == spec.layers[0].where;
            spec.layers[i].stays = spec.layers[0].stays;
            spec.layers[i].partly_ranks = is_there ? spec.layers[0].partly_ranks : 0;
        }
        if (spec.units == SPEC_TIED) {
            spec.layers[i].is_frozen = spec.layers[0].is_frozen;
        }
        if (spec.reduces_unused) {
            spec.layers[i].partly_ranks = 0;
        }
    }
    /* Hooks that update need steps that do not go on after them, and gradients that are not added up. */
    spec.has_hooks = spec_below(&random, 4) == 0 && !spec.is_extended;
    if (spec_below(&random, 8) == 0 && !spec.has_hooks && !spec.is_extended) {
        const struct refused *row = &refused[spec_below(&random, 3)];
        spec.refused = row->set;
        spec.refused_name = row->name;
    }
    return spec;
}

/* Steps ----------------------------------------------------------------------------------------------------- */

static shoal_status update_leaf(void *context, shoal_tensor *leaf)
{
    (void)context;
    return shoal_add_(leaf, shoal_mul_scalar(shoal_grad(leaf), -0.1)) ? shoal_set_grad(leaf, NULL)
                                                                      : shoal_scope_error();
}

static void add_leaf_hooks(struct spec_net *net)
{
    size_t n = 0;
    shoal_tensor *const *parameters = shoal_module_parameters(net->root, &n);
    for (size_t i = 0; i < n; i++) {
        if (shoal_requires_grad(parameters[i])) {
            (void)CHECK_OK(shoal_on_accumulated(parameters[i], update_leaf, NULL, NULL));
        }
    }
}

/* All ranks are refused, and then go on without the setting. */
static void check_refused(struct trial *trial)
{
    shoal_tensor *got = NULL;
    shoal_fsdp_unit *unit = shoal_fully_shard_unit(trial->other.root, true);
    (void)CHECK_OK(shoal_scope_begin());
    shoal_tensor *x = spec_numbers(1, trial->spec->rows, trial->spec->columns);
    (void)CHECK_OK(trial->spec->refused(unit, true));
    (void)CHECK_INT(shoal_compiled_run(trial->compiled, &x, 1, &got, 1), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT(trial->spec->refused_name);
    CHECK(got == NULL);
    (void)CHECK_OK(trial->spec->refused(unit, false));
    (void)CHECK_OK(shoal_scope_end());
}

static bool has_replicas(const struct spec *spec)
{
    bool has_any = spec->is_mesh || spec->shards.is_replicated;
    for (int i = 0; i < spec->n_layers; i++) {
        has_any = has_any || spec->layers[i].where >= SPEC_ROWS;
    }
    return has_any;
}

/* Whether a unit may be used again after its gradients have landed: a layer is called twice, or a unit has two layers. */
static bool is_used_again(const struct spec *spec)
{
    bool has_any = spec->units >= SPEC_PAIRS;
    for (int i = 0; i < spec->n_layers; i++) {
        has_any = has_any || spec->layers[i].n_calls > 1;
    }
    return has_any;
}

/* Such a unit is reduced twice, and gathered in between: its hooks would have to run in the middle of the step. Whether that is so depends on what needs a gradient, and on gradients that are pending, so one step is tried. */
static void try_hooks(struct trial *trial)
{
    shoal_tensor *got = NULL;
    shoal_tensor *want = NULL;
    (void)CHECK_OK(shoal_scope_begin());
    shoal_tensor *x = spec_numbers((uint32_t)trial->rank, trial->spec->rows, trial->spec->columns);
    shoal_status status = shoal_compiled_run(trial->compiled, &x, 1, &got, 1);
    if (status == SHOAL_OK) {
        (void)CHECK_OK(spec_step(&trial->eager, &x, 1, &want, 1));
        trial_compare(trial, "the first step");
    } else {
        (void)CHECK_INT(status, SHOAL_ERR_UNSUPPORTED);
        CHECK_ERROR_TEXT("after the gradient has landed");
    }
    shoal_tensor_unref(got);
    (void)CHECK_OK(shoal_scope_end());
}

/* Some steps that do not reduce all, and one or two that do; then an update. Gradients of whole parameters that an eager
   step keeps in the engine are not captured (SHOAL_ERR_STATE): eager steps follow until they are reduced. */
static void run_group(struct trial *trial)
{
    int n_without = (int)spec_below(&trial->random, 3);
    int n_with = 1 + (int)spec_below(&trial->random, 2);
    bool is_kept = false;
    for (int i = 0; i < n_without + n_with && !test_has_failed(); i++) {
        enum trial_last last = TRIAL_REDUCES;
        if (i < n_without) {
            /* A unit that is reduced twice in a pass may not have the same gradients each time, which eager steps refuse,
               too. */
            bool scatters = has_replicas(trial->spec) && !is_used_again(trial->spec);
            last = scatters && spec_below(&trial->random, 2) == 0 ? TRIAL_SCATTERS : TRIAL_KEEPS;
        }
        bool is_compiled = !is_kept && spec_below(&trial->random, 3) > 0;
        trial_run(trial, is_compiled, last);
        is_kept = last == TRIAL_KEEPS && (is_kept || !is_compiled || trial->spec->is_extended);
    }
    spec_update(&trial->eager);
    spec_update(&trial->other);
    trial_compare(trial, "an update");
}

static void run_spec(const struct rank *self, const struct spec *spec, int round)
{
    struct trial trial;
    if (trial_begin(&trial, self, spec, spec, round)) {
        if (spec->has_hooks) {
            add_leaf_hooks(&trial.eager);
            add_leaf_hooks(&trial.other);
        }
        if (spec->refused) {
            check_refused(&trial);
        }
        bool is_tried = spec->has_hooks && is_used_again(spec);
        if (is_tried) {
            try_hooks(&trial);
        }
        for (int i = 0; i < N_GROUPS && !is_tried && !test_has_failed(); i++) {
            run_group(&trial);
        }
        CHECK(!spec->is_extended || (trial.eager.int8.n_encodes > 0 && trial.other.int8.n_encodes > 0));
    }
    trial_end(&trial);
}

/* How many networks had what; with SHOAL_TEST_TABLE they are printed. */
struct counts {
    uint64_t n_partly; /* over more than one rank, and less than all */
    uint64_t n_stay;
    uint64_t n_blind;
    uint64_t n_replicas;
    uint64_t n_unused;
    uint64_t n_hooks;
    uint64_t n_refused;
    uint64_t n_places[SPEC_N_WHERE];
    uint64_t n_extended;
};

static void count(struct counts *counts, const struct spec *spec)
{
    bool is_partly = false;
    bool stays = false;
    bool is_blind = false;
    bool is_there[SPEC_N_WHERE] = {false};
    for (int i = 0; i < spec->n_layers; i++) {
        const struct spec_layer *layer = &spec->layers[i];
        int n_shards = spec_n_shards(spec, layer);
        is_there[layer->where] = true;
        is_partly = is_partly || (layer->partly_ranks > 1 && layer->partly_ranks < n_shards);
        stays = stays || layer->stays;
        is_blind = is_blind || layer->is_blind;
    }
    counts->n_partly += is_partly && spec->units != SPEC_ALONE;
    counts->n_stay += stays && spec->units != SPEC_ALONE && spec->shards.sharded == SHOAL_SHARDED_PARAMETERS;
    counts->n_blind += is_blind;
    counts->n_replicas += has_replicas(spec) && !is_used_again(spec);
    counts->n_unused += spec->reduces_unused;
    counts->n_hooks += spec->has_hooks;
    counts->n_refused += spec->refused != NULL;
    counts->n_extended += spec->is_extended;
    for (int i = 0; i < SPEC_N_WHERE; i++) {
        counts->n_places[i] += is_there[i];
    }
}

static void print_counts(const struct rank *self, const struct counts *counts, uint64_t n_specs)
{
    if (self->rank == 0 && getenv("SHOAL_TEST_TABLE")) {
        (void)printf(
            "%d ranks, %llu networks: partly %llu, stay %llu, not gathered %llu, replicas later %llu, "
            "unused %llu, hooks %llu, refused %llu, experts %llu, rows %llu, replicated %llu, extended "
            "%llu\n",
            self->n_ranks, (unsigned long long)n_specs, (unsigned long long)counts->n_partly,
            (unsigned long long)counts->n_stay, (unsigned long long)counts->n_blind,
            (unsigned long long)counts->n_replicas, (unsigned long long)counts->n_unused,
            (unsigned long long)counts->n_hooks, (unsigned long long)counts->n_refused,
            (unsigned long long)counts->n_places[SPEC_EXPERT],
            (unsigned long long)counts->n_places[SPEC_ROWS],
            (unsigned long long)counts->n_places[SPEC_REPLICATED], (unsigned long long)counts->n_extended);
    }
}

static void sweep(const struct rank *self)
{
    struct counts counts = {0};
    uint64_t n_specs = trial_number("SHOAL_TEST_STEPS", (uint64_t)(N_SPECS / test_time_scale()));
    uint64_t first = trial_number("SHOAL_TEST_STEPS_FIRST", 1);
    for (uint64_t i = 0; i < n_specs && !test_has_failed(); i++) {
        struct spec spec = choose(first + i, self->n_ranks);
        count(&counts, &spec);
        run_spec(self, &spec, (int)i);
        if (test_has_failed() && self->rank == 0) {
            char text[SPEC_TEXT];
            spec_print(&spec, text);
            test_failed(__FILE__, __LINE__, "%s", text);
        }
    }
    print_counts(self, &counts, n_specs);
}

TEST_RANKS(random_settings_of_2, 2)
{
    sweep(self);
}

TEST_RANKS(random_settings_of_3, 3)
{
    sweep(self);
}

TEST_RANKS(random_settings_of_4, 4)
{
    sweep(self);
}

TEST_RANKS(random_settings_of_6, 6)
{
    sweep(self);
}
