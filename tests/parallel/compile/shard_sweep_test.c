/* SPDX-License-Identifier: MIT */
/*
 * Random small sharded networks under random settings of their units: compiled steps have the bits of eager ones, or are
 * refused as the table of docs/graph.md says. Compiled and eager steps take turns; some leave gradients on whole
 * parameters or for the replicas.
 *
 * SHOAL_TEST_STEPS says how many networks, SHOAL_TEST_STEPS_FIRST the number of the first (`make settings` runs more).
 * What fails is printed with its number.
 */
#include "fixtures/compiled_trial.h"

#include <stdlib.h>

enum {
    N_SPECS = 30,
    N_GROUPS = 3 /* of steps, each ended by an update */
};

static uint64_t get_number(const char *name, uint64_t or_else)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : or_else;
}

/* Settings that are refused --------------------------------------------------------------------------------- */

static shoal_status see_gradients(void *context, const shoal_reduced_gradients *reduced,
                                  shoal_work **work_out)
{
    (void)context;
    (void)reduced;
    (void)work_out;
    return SHOAL_OK;
}

static shoal_status gather_all(void *context, void *out, const void *in, size_t count, shoal_dtype dtype,
                               shoal_group *group, shoal_work **work_out)
{
    (void)context;
    (void)work_out;
    return shoal_group_all_gather(group, in, out, count, dtype);
}

static shoal_status scatter_sums(void *context, void *out, const void *in, size_t count, shoal_dtype dtype,
                                 shoal_reduce_op reduce, double factor, shoal_group *group,
                                 shoal_work **work_out)
{
    (void)context;
    (void)factor;
    (void)work_out;
    return shoal_group_reduce_scatter(group, in, out, count, dtype, reduce);
}

static shoal_status set_hook(shoal_fsdp_unit *unit, bool is_on)
{
    return shoal_fsdp_set_all_reduce_hook(unit, is_on ? see_gradients : NULL, NULL);
}

static shoal_status set_gather(shoal_fsdp_unit *unit, bool is_on)
{
    const shoal_custom_all_gather custom = {.struct_size = sizeof custom, .call = gather_all};
    return shoal_fsdp_set_custom_all_gather(unit, is_on ? &custom : NULL);
}

static shoal_status set_scatter(shoal_fsdp_unit *unit, bool is_on)
{
    const shoal_custom_reduce_scatter custom = {.struct_size = sizeof custom, .call = scatter_sums};
    return shoal_fsdp_set_custom_reduce_scatter(unit, is_on ? &custom : NULL);
}

static const struct refused {
    shoal_status (*set)(shoal_fsdp_unit *unit, bool is_on);
    const char *name;
} refused[] = {{set_hook, "shoal_fsdp_set_all_reduce_hook"},
               {set_gather, "shoal_fsdp_set_custom_all_gather"},
               {set_scatter, "shoal_fsdp_set_custom_reduce_scatter"}};

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

static void choose_layer(struct spec *spec, struct spec_layer *layer, struct spec_random *random)
{
    int n_shards = spec->is_mesh ? spec->n_ranks / 2 : spec->n_ranks;
    layer->is_sum = spec_below(random, 3) == 0;
    layer->stays = spec_below(random, 3) == 0;
    if (spec->reduces_unused) {
        layer->is_split = spec_below(random, 3) == 0 && !layer->is_again;
        layer->n_calls = spec_below(random, 5) == 0 ? 0 : layer->n_calls;
    }
    layer->is_blind = can_be_blind(spec, layer) && spec_below(random, 2) == 0;
    if (has_room_for_partly(spec) && spec_below(random, 3) == 0) {
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
    for (int i = 0; i < spec.n_layers; i++) {
        choose_layer(&spec, &spec.layers[i], &random);
        if (i > 0 && spec.units != SPEC_EACH) {
            spec.layers[i].stays = spec.layers[0].stays;
            spec.layers[i].partly_ranks = spec.layers[0].partly_ranks;
        }
        if (spec.units == SPEC_TIED) {
            spec.layers[i].is_frozen = spec.layers[0].is_frozen;
        }
        if (spec.reduces_unused) {
            spec.layers[i].partly_ranks = 0;
        }
    }
    /* Hooks that update need steps that do not go on after them, and gradients that are not added up. */
    spec.has_hooks = spec_below(&random, 4) == 0;
    if (spec_below(&random, 8) == 0 && !spec.has_hooks) {
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
            bool scatters = trial->spec->is_mesh && !is_used_again(trial->spec);
            last = scatters && spec_below(&trial->random, 2) == 0 ? TRIAL_SCATTERS : TRIAL_KEEPS;
        }
        bool is_compiled = !is_kept && spec_below(&trial->random, 3) > 0;
        trial_run(trial, is_compiled, last);
        is_kept = last == TRIAL_KEEPS && (is_kept || !is_compiled);
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
};

static void count(struct counts *counts, const struct spec *spec)
{
    int n_shards = spec->is_mesh ? spec->n_ranks / 2 : spec->n_ranks;
    bool is_partly = false;
    bool stays = false;
    bool is_blind = false;
    for (int i = 0; i < spec->n_layers; i++) {
        const struct spec_layer *layer = &spec->layers[i];
        is_partly = is_partly || (layer->partly_ranks > 1 && layer->partly_ranks < n_shards);
        stays = stays || layer->stays;
        is_blind = is_blind || layer->is_blind;
    }
    counts->n_partly += is_partly && spec->units != SPEC_ALONE;
    counts->n_stay += stays && spec->units != SPEC_ALONE && spec->shards.sharded == SHOAL_SHARDED_PARAMETERS;
    counts->n_blind += is_blind;
    counts->n_replicas += spec->is_mesh && !is_used_again(spec);
    counts->n_unused += spec->reduces_unused;
    counts->n_hooks += spec->has_hooks;
    counts->n_refused += spec->refused != NULL;
}

static void print_counts(const struct rank *self, const struct counts *counts, uint64_t n_specs)
{
    if (self->rank == 0 && getenv("SHOAL_TEST_TABLE")) {
        (void)printf(
            "%d ranks, %llu networks: partly %llu, stay %llu, not gathered %llu, replicas later %llu, "
            "unused %llu, hooks %llu, refused %llu\n",
            self->n_ranks, (unsigned long long)n_specs, (unsigned long long)counts->n_partly,
            (unsigned long long)counts->n_stay, (unsigned long long)counts->n_blind,
            (unsigned long long)counts->n_replicas, (unsigned long long)counts->n_unused,
            (unsigned long long)counts->n_hooks, (unsigned long long)counts->n_refused);
    }
}

static void sweep(const struct rank *self)
{
    struct counts counts = {0};
    uint64_t n_specs = get_number("SHOAL_TEST_STEPS", (uint64_t)(N_SPECS / test_time_scale()));
    uint64_t first = get_number("SHOAL_TEST_STEPS_FIRST", 1);
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
