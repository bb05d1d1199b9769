/* SPDX-License-Identifier: MIT */
/*
 * Settings of sharded units in compiled steps: the bits of eager steps, and how many gathers the graph has; a rank
 * whose setting differs is a mismatch on all ranks, in the first run and in a later one.
 */
#include "fixtures/captured_step.h"
#include "fixtures/compiled_trial.h"
#include "shoal/fsdp_unit.h"

/* Three layers, each a unit, whose rows no number of ranks but 1 and 5 divides. */
static struct spec make_spec(int n_ranks, shoal_reshard reshard)
{
    struct spec spec = {.number = 1,
                        .n_ranks = n_ranks,
                        .n_layers = 3,
                        .rows = 5,
                        .columns = 6,
                        .units = SPEC_EACH,
                        .n_micro = 1,
                        .shards.reshard = reshard};
    for (int i = 0; i < spec.n_layers; i++) {
        spec.layers[i] = (struct spec_layer){.rows = 5, .n_calls = 1};
    }
    return spec;
}

/* Runs that make gradients, add to them, and follow an update. */
static void run_some(struct trial *trial)
{
    for (int i = 0; i < 5 && !test_has_failed(); i++) {
        trial_run(trial, /*is_compiled=*/i != 2, TRIAL_REDUCES);
        if (i % 2 == 1) {
            spec_update(&trial->eager);
            spec_update(&trial->other);
            trial_compare(trial, "an update");
        }
    }
}

static size_t count_gathers(const struct trial *trial)
{
    shoal_graph *captured = NULL;
    (void)CHECK_OK(shoal_scope_begin());
    shoal_tensor *x = spec_numbers(5, trial->spec->rows, trial->spec->columns);
    (void)CHECK_OK(shoal_capture(spec_step, (void *)(uintptr_t)&trial->other, &x, 1, 1, &captured));
    size_t n = captured ? step_count_calls(captured, "all_gather_into_tensor") : 0;
    shoal_graph_free(captured);
    (void)CHECK_OK(shoal_scope_end());
    return n;
}

/* Compares eager and compiled steps, and the gathers of a captured one if that number is not 0. */
static void check_spec(const struct rank *self, const struct spec *spec, size_t n_gathers)
{
    struct trial trial;
    if (trial_begin(&trial, self, spec, spec, 0)) {
        run_some(&trial);
        if (n_gathers > 0) {
            (void)CHECK_INT(count_gathers(&trial), n_gathers);
        }
    }
    trial_end(&trial);
}

/* Differences ---------------------------------------------------------------------------------------------- */

typedef shoal_status (*setter)(shoal_fsdp_unit *unit);

static void run_and_expect(struct trial *trial, shoal_status status, const char *text)
{
    shoal_tensor *got = NULL;
    (void)CHECK_OK(shoal_scope_begin());
    shoal_tensor *x = spec_numbers((uint32_t)trial->rank, trial->spec->rows, trial->spec->columns);
    (void)CHECK_INT(shoal_compiled_run(trial->compiled, &x, 1, &got, 1), status);
    if (status != SHOAL_OK) {
        CHECK_ERROR_TEXT(text);
    }
    shoal_tensor_unref(got);
    (void)CHECK_OK(shoal_scope_end());
}

/* Rank 1 sets something that the other ranks do not: they all find out, in a first run that compiles. If the step has
   run before, only rank 1 compiles again, and that is found out, too. */
static void check_different(struct rank *self, const struct spec *spec, setter set, const char *text)
{
    for (int runs_before = 0; runs_before < 2 && !test_has_failed(); runs_before++) {
        struct trial trial;
        if (trial_begin(&trial, self, spec, spec, runs_before)) {
            if (runs_before) {
                run_and_expect(&trial, SHOAL_OK, "");
            } else { /* ranks compare settings at the first forward pass; this is about later ones */
                trial_run(&trial, /*is_compiled=*/false, TRIAL_REDUCES);
            }
            spec_update(&trial.other);
            spec_update(&trial.eager);
            if (self->rank == 1) {
                (void)CHECK_OK(set(shoal_fully_shard_unit(trial.other.layers[1], false)));
            }
            if (self->rank == self->n_ranks - 1) {
                test_pause(0.1); /* it comes when the others have failed, and says what they say */
            }
            run_and_expect(&trial, SHOAL_ERR_MISMATCH, runs_before ? "" : text);
        }
        test_barrier(self); /* a rank that has left is an error, too */
        trial_end(&trial);
    }
}

/* After the backward pass ---------------------------------------------------------------------------------- */

/* A step of two forward passes gathers each unit once, one of a single pass as often as if nothing stayed. */
static void stay(const struct rank *self, shoal_reshard reshard)
{
    struct spec spec = make_spec(self->n_ranks, reshard);
    spec.layers[0].stays = spec.layers[2].stays = true;
    spec.layers[1].is_again = true;
    check_spec(self, &spec, 0);
    spec.n_micro = 3;
    check_spec(self, &spec, 0);
    spec.shards.param_dtype = SHOAL_BF16;
    spec.shards.reduce_dtype = SHOAL_F32;
    check_spec(self, &spec, 0);
}

TEST_RANKS(units_stay_after_the_backward_pass, 3)
{
    stay(self, SHOAL_RESHARD_ALWAYS);
    stay(self, SHOAL_RESHARD_NEVER);
}

TEST_RANKS(what_stays_is_gathered_once_in_a_step, 2)
{
    struct spec spec = make_spec(2, SHOAL_RESHARD_NEVER);
    spec.n_micro = 3;
    /* 7 parameters: two of each layer, and the root's. */
    check_spec(self, &spec, 3 * 7);
    spec.layers[0].stays = spec.layers[1].stays = true;
    check_spec(self, &spec, 4 + 3 * 3);
}

static shoal_status keep_after_backward(shoal_fsdp_unit *unit)
{
    return shoal_fsdp_set_reshard_after_backward(unit, false);
}

TEST_RANKS(ranks_differ_in_what_stays, 3)
{
    struct spec spec = make_spec(3, SHOAL_RESHARD_ALWAYS);
    check_different(self, &spec, keep_after_backward, "reshard_after_backward");
}

/* In the backward pass ------------------------------------------------------------------------------------- */

TEST_RANKS(units_are_not_gathered_for_the_backward_pass, 3)
{
    struct spec spec = make_spec(self->n_ranks, SHOAL_RESHARD_ALWAYS);
    check_spec(self, &spec, 2 * 7);
    spec.layers[1].is_sum = spec.layers[1].is_blind = true;
    check_spec(self, &spec, 2 * 7 - 2);
    spec.layers[0].is_blind = true; /* its input needs no gradient, so its weight is not read either */
    check_spec(self, &spec, 2 * 7 - 4);
    spec.n_micro = 2;
    spec.layers[2].stays = true;
    check_spec(self, &spec, 0);
    spec.shards.reshard = SHOAL_RESHARD_NEVER; /* what stays can be read */
    spec.layers[2].is_blind = true;
    check_spec(self, &spec, 0);
}

/* A backward pass that reads what was not gathered fails as an eager one does. */
TEST_RANKS(a_backward_pass_cannot_read_what_is_not_gathered, 2)
{
    struct spec spec = make_spec(2, SHOAL_RESHARD_ALWAYS);
    struct trial trial;
    shoal_fsdp *fsdp = NULL;
    spec.layers[1].is_blind = true;
    if (trial_begin(&trial, self, &spec, &spec, 0)) {
        shoal_tensor *loss = NULL;
        (void)CHECK_OK(shoal_scope_begin());
        shoal_tensor *x = spec_numbers(3, spec.rows, spec.columns);
        (void)CHECK_INT(spec_step(&trial.eager, &x, 1, &loss, 1), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("the data of tensor 1.weight");
        (void)CHECK_OK(shoal_scope_end());
        (void)CHECK_OK(shoal_fully_shard_context(trial.eager.root, &fsdp));
        (void)CHECK_OK(shoal_fsdp_reset(fsdp));
        run_and_expect(&trial, SHOAL_ERR_STATE, "the data of tensor 1.weight");
        (void)CHECK_OK(
            shoal_fsdp_set_unshard_in_backward(shoal_fully_shard_unit(trial.other.layers[1], false), true));
        run_and_expect(&trial, SHOAL_OK, "");
    }
    trial_end(&trial);
}

static shoal_status skip_backward_gather(shoal_fsdp_unit *unit)
{
    return shoal_fsdp_set_unshard_in_backward(unit, false);
}

TEST_RANKS(ranks_differ_in_gathers_for_the_backward_pass, 2)
{
    struct spec spec = make_spec(2, SHOAL_RESHARD_ALWAYS);
    spec.layers[1].is_sum = true;
    check_different(self, &spec, skip_backward_gather, "unshard_in_backward");
}

/* Unused parameters ---------------------------------------------------------------------------------------- */

/* No rank calls layer 1, and only ranks of even numbers use the weight of layer 0. */
static struct spec make_unused(int n_ranks, shoal_reshard reshard)
{
    struct spec spec = make_spec(n_ranks, reshard);
    spec.layers[0].is_split = true;
    spec.layers[1].n_calls = 0;
    spec.reduces_unused = true;
    return spec;
}

TEST_RANKS(unused_parameters_are_reduced_with_zeros, 3)
{
    struct spec spec = make_unused(3, SHOAL_RESHARD_NEVER);
    check_spec(self, &spec, 0);
    spec.n_micro = 2;
    check_spec(self, &spec, 0);
    spec.shards = (shoal_fully_shard_options){
        .reshard = SHOAL_RESHARD_ALWAYS, .param_dtype = SHOAL_BF16, .reduce_dtype = SHOAL_F32};
    check_spec(self, &spec, 0);
}

/* Passes without synchronization leave gradients on some ranks only; all take part when they are reduced. */
TEST_RANKS(unused_parameters_owe_a_reduction, 4)
{
    struct spec spec = make_unused(4, SHOAL_RESHARD_NEVER);
    struct trial trial;
    if (trial_begin(&trial, self, &spec, &spec, 0)) {
        struct spec_net *const nets[] = {&trial.eager, &trial.other};
        for (int i = 0; i < 4 && !test_has_failed(); i++) {
            trial_run(&trial, /*is_compiled=*/i % 2 == 0, TRIAL_KEEPS);
            for (int k = 0; k < 2; k++) {
                shoal_fsdp *fsdp = NULL;
                (void)CHECK_OK(shoal_fully_shard_context(nets[k]->root, &fsdp));
                (void)CHECK_OK(shoal_fsdp_synchronize(fsdp));
            }
            trial_compare(&trial, "synchronize");
            CHECK(shoal_grad(shoal_module_parameter(trial.other.root, "1.weight")) != NULL);
            spec_update(&trial.eager);
            spec_update(&trial.other);
        }
    }
    trial_end(&trial);
}

static shoal_status set_unused(shoal_fsdp_unit *unit)
{
    return shoal_fsdp_set_reduce_unused(unit, true);
}

TEST_RANKS(ranks_differ_in_unused_parameters, 2)
{
    struct spec spec = make_spec(2, SHOAL_RESHARD_NEVER);
    check_different(self, &spec, set_unused, "reduce_unused");
}

/* Neighbours ------------------------------------------------------------------------------------------------ */

static void keep_partly(const struct rank *self, int n_neighbours)
{
    struct spec spec = make_spec(self->n_ranks, SHOAL_RESHARD_NEVER);
    spec.layers[0].partly_ranks = spec.layers[1].partly_ranks = n_neighbours;
    spec.layers[1].is_again = true;
    spec.layers[2].rows = 1; /* some ranks have no part of it */
    spec.layers[2].partly_ranks = n_neighbours;
    check_spec(self, &spec, 0);
    spec.n_micro = 2;
    check_spec(self, &spec, 0);
    spec.layers[0].n_calls = 2;
    spec.layers[0].stays = true;
    spec.cuts_last = true;
    spec.columns = 8;
    check_spec(self, &spec, 0);
    spec.shards.param_dtype = SHOAL_BF16;
    check_spec(self, &spec, 0);
}

TEST_RANKS(neighbours_keep_a_copy_among_2, 4)
{
    keep_partly(self, 2);
}

TEST_RANKS(neighbours_keep_a_copy_each, 2)
{
    keep_partly(self, 1);
}

TEST_RANKS(neighbours_are_all_ranks, 3)
{
    keep_partly(self, 3);
}

/* The second gather is over the neighbours: in groups of two there are two of them. */
TEST_RANKS(the_backward_pass_gathers_from_neighbours, 4)
{
    struct spec spec = make_spec(4, SHOAL_RESHARD_NEVER);
    spec.layers[1].partly_ranks = 2;
    check_spec(self, &spec, 7 + 2);
}

static shoal_status reshard_never(shoal_fsdp_unit *unit)
{
    return shoal_fsdp_set_reshard(unit, SHOAL_RESHARD_NEVER);
}

TEST_RANKS(ranks_differ_in_what_neighbours_keep, 4)
{
    struct spec spec = make_spec(4, SHOAL_RESHARD_NEVER);
    spec.layers[1].partly_ranks = 2;
    check_different(self, &spec, reshard_never, "partly over 2 ranks");
}

/* Replicas -------------------------------------------------------------------------------------------------- */

/* Passes that do not reduce over the replicas, or not at all, and one that reduces all of it; compiled and eager ones
   take turns. */
static void reduce_replicas_later(const struct rank *self, struct spec spec)
{
    static const struct {
        bool is_compiled;
        enum trial_last last;
    } runs[] = {
        {true, TRIAL_REDUCES},   {true, TRIAL_SCATTERS}, {true, TRIAL_REDUCES},   {true, TRIAL_SCATTERS},
        {true, TRIAL_SCATTERS},  {true, TRIAL_REDUCES},  {false, TRIAL_SCATTERS}, {true, TRIAL_SCATTERS},
        {false, TRIAL_SCATTERS}, {true, TRIAL_REDUCES},  {true, TRIAL_SCATTERS},  {false, TRIAL_REDUCES},
        {true, TRIAL_SCATTERS},  {true, TRIAL_KEEPS},    {true, TRIAL_REDUCES},   {false, TRIAL_SCATTERS},
        {true, TRIAL_REDUCES},
    };
    struct trial trial;
    spec.is_mesh = true;
    if (trial_begin(&trial, self, &spec, &spec, 0)) {
        for (size_t i = 0; i < sizeof runs / sizeof runs[0] && !test_has_failed(); i++) {
            trial_run(&trial, runs[i].is_compiled, runs[i].last);
            if (runs[i].last == TRIAL_REDUCES) {
                spec_update(&trial.eager);
                spec_update(&trial.other);
            }
        }
    }
    trial_end(&trial);
}

TEST_RANKS(replicas_are_reduced_later, 4)
{
    struct spec spec = make_spec(4, SHOAL_RESHARD_NEVER);
    reduce_replicas_later(self, spec);
    spec.n_micro = 2;
    spec.shards.reduce_dtype = SHOAL_F16;
    reduce_replicas_later(self, spec);
    spec.n_micro = 1;
    spec.shards.param_dtype = SHOAL_BF16;
    spec.shards.reduce_dtype = SHOAL_F32;
    spec.divide_factor = 2.7;
    reduce_replicas_later(self, spec);
}

static shoal_status stop_replicas(shoal_fsdp_unit *unit)
{
    return shoal_fsdp_set_all_reduce(unit, false);
}

TEST_RANKS(ranks_differ_in_replicas, 4)
{
    struct spec spec = make_spec(4, SHOAL_RESHARD_NEVER);
    spec.is_mesh = true;
    check_different(self, &spec, stop_replicas, "all_reduce");
}

/* What a compiled step has left for the replicas can be looked at, synchronized and removed. */
TEST_RANKS(what_waits_for_replicas_is_pending, 4)
{
    struct spec spec = make_spec(4, SHOAL_RESHARD_NEVER);
    struct trial trial;
    spec.is_mesh = true;
    if (trial_begin(&trial, self, &spec, &spec, 0)) {
        struct spec_net *const nets[] = {&trial.eager, &trial.other};
        for (int i = 0; i < 4 && !test_has_failed(); i++) {
            shoal_pending_gradient pending[2] = {SHOAL_PENDING_GRADIENT_INIT, SHOAL_PENDING_GRADIENT_INIT};
            trial_run(&trial, /*is_compiled=*/true, TRIAL_SCATTERS);
            for (int k = 0; k < 2; k++) {
                shoal_fsdp *fsdp = NULL;
                shoal_fsdp_param *param = shoal_fully_shard_param(nets[k]->root, "1.weight");
                (void)CHECK_OK(shoal_fsdp_get_pending(param, &pending[k]));
                CHECK(!pending[k].full && pending[k].partial);
                (void)CHECK_OK(shoal_fully_shard_context(nets[k]->root, &fsdp));
                if (k == 1 && !test_has_failed()) {
                    CHECK_INT(pending[1].partial_count, pending[0].partial_count);
                    CHECK_BYTES(pending[1].partial, pending[0].partial,
                                pending[0].partial_count * sizeof(float));
                }
            }
            for (int k = 0; k < 2 && !test_has_failed(); k++) {
                shoal_fsdp *fsdp = NULL;
                (void)CHECK_OK(shoal_fully_shard_context(nets[k]->root, &fsdp));
                (void)CHECK_OK(i % 2 == 0 ? shoal_fsdp_synchronize(fsdp) : shoal_fsdp_zero_grad(fsdp));
                shoal_fsdp_param *param = shoal_fully_shard_param(nets[k]->root, "1.weight");
                (void)CHECK_OK(shoal_fsdp_get_pending(param, &pending[k]));
                CHECK(!pending[k].partial);
            }
            trial_compare(&trial, i % 2 == 0 ? "synchronize" : "zero_grad");
        }
    }
    trial_end(&trial);
}

/* Hooks for landed gradients -------------------------------------------------------------------------------- */

/* An optimizer in the backward pass: p = p - 0.1 g, and the gradient is gone. */
static shoal_status update_leaf(void *context, shoal_tensor *leaf)
{
    int *n_calls = context;
    (*n_calls)++;
    return shoal_add_(leaf, shoal_mul_scalar(shoal_grad(leaf), -0.1)) ? shoal_set_grad(leaf, NULL)
                                                                      : shoal_scope_error();
}

static void add_leaf_hooks(struct spec_net *net, shoal_leaf_hook hook, void *context)
{
    size_t n = 0;
    shoal_tensor *const *parameters = shoal_module_parameters(net->root, &n);
    for (size_t i = 0; i < n; i++) {
        (void)CHECK_OK(shoal_on_accumulated(parameters[i], hook, context, NULL));
    }
}

TEST_RANKS(hooks_run_when_gradients_have_landed, 3)
{
    for (int n_micro = 1; n_micro <= 2; n_micro++) {
        struct spec spec = make_spec(3, SHOAL_RESHARD_ALWAYS);
        struct trial trial;
        int n_calls[2] = {0, 0};
        spec.n_micro = n_micro;
        if (trial_begin(&trial, self, &spec, &spec, n_micro)) {
            add_leaf_hooks(&trial.eager, update_leaf, &n_calls[0]);
            add_leaf_hooks(&trial.other, update_leaf, &n_calls[1]);
            for (int i = 0; i < 4 && !test_has_failed(); i++) {
                trial_run(&trial, /*is_compiled=*/i != 2, i == 0 ? TRIAL_KEEPS : TRIAL_REDUCES);
                (void)CHECK_INT(n_calls[0], 7 * i);
                (void)CHECK_INT(n_calls[1], 7 * i);
            }
        }
        trial_end(&trial);
    }
}

/* Each line is a step that goes on with a parameter after its hook would have run. */

static shoal_status step_twice(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs, size_t n_outputs)
{
    shoal_status status = spec_step(context, inputs, n_inputs, outputs, n_outputs);
    return status == SHOAL_OK ? spec_step(context, inputs, n_inputs, outputs, n_outputs) : status;
}

static shoal_status step_and_write(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                   shoal_tensor **outputs, size_t n_outputs)
{
    const struct spec_net *net = context;
    shoal_status status = spec_step(context, inputs, n_inputs, outputs, n_outputs);
    if (status == SHOAL_OK) {
        status = shoal_scope_set_grad(false);
        (void)shoal_mul_scalar_(shoal_module_parameter(net->root, "scale"), 0.5);
    }
    return status;
}

static shoal_status step_and_scale(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                   shoal_tensor **outputs, size_t n_outputs)
{
    const struct spec_net *net = context;
    shoal_status status = spec_step(context, inputs, n_inputs, outputs, n_outputs);
    if (status == SHOAL_OK) {
        status = shoal_scope_set_grad(false);
        (void)shoal_mul_scalar_(shoal_grad(shoal_module_parameter(net->root, "scale")), 0.5);
    }
    return status;
}

static shoal_status step_and_drop(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    const struct spec_net *net = context;
    shoal_status status = spec_step(context, inputs, n_inputs, outputs, n_outputs);
    return status == SHOAL_OK ? shoal_set_grad(shoal_module_parameter(net->root, "scale"), NULL) : status;
}

TEST_RANKS(steps_that_go_on_after_a_hook_are_refused, 2)
{
    static const struct {
        shoal_step_function step;
        const char *text;
    } rows[] = {{step_twice, "gathers the parameter again"},
                {step_and_write, "writes the shard"},
                {step_and_scale, "changes the gradient"},
                {step_and_drop, "changes the gradient"}};
    struct spec spec = make_spec(2, SHOAL_RESHARD_NEVER);
    struct trial trial;
    int n_calls = 0;
    if (trial_begin(&trial, self, &spec, &spec, 0)) {
        shoal_graph *graph = NULL;
        shoal_tensor *x = spec_numbers(1, spec.rows, spec.columns);
        add_leaf_hooks(&trial.other, update_leaf, &n_calls);
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            shoal_compiled_free(trial.compiled);
            trial.compiled = NULL;
            (void)CHECK_OK(shoal_compile(trial.world, rows[i].step, &trial.other, 1, NULL, &trial.compiled));
            run_and_expect(&trial, SHOAL_ERR_UNSUPPORTED, rows[i].text);
        }
        /* A graph alone runs no hooks. */
        (void)CHECK_INT(shoal_capture(spec_step, &trial.other, &x, 1, 1, &graph), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("shoal_on_accumulated");
        (void)CHECK_INT(n_calls, 0);
    }
    trial_end(&trial);
}

static shoal_status fail_leaf(void *context, shoal_tensor *leaf)
{
    (void)context;
    (void)leaf;
    return SHOAL_ERR_INVALID;
}

/* The rank whose hook fails says so; the other finds out in its next run. */
TEST_RANKS(a_hook_fails_after_a_run, 2)
{
    struct spec spec = make_spec(2, SHOAL_RESHARD_NEVER);
    struct trial trial;
    int n_calls = 0;
    if (trial_begin(&trial, self, &spec, &spec, 0)) {
        add_leaf_hooks(&trial.other, self->rank == 1 ? fail_leaf : update_leaf, &n_calls);
        shoal_tensor *x = spec_numbers(1, spec.rows, spec.columns);
        shoal_tensor *got = NULL;
        shoal_status status = shoal_compiled_run(trial.compiled, &x, 1, &got, 1);
        (void)CHECK_INT(status, self->rank == 1 ? SHOAL_ERR_INVALID : SHOAL_OK);
        CHECK(self->rank != 1 || !got);
        shoal_tensor_unref(got);
        got = NULL;
        if (self->rank == 0) {
            CHECK(shoal_compiled_run(trial.compiled, &x, 1, &got, 1) != SHOAL_OK);
        }
    }
    trial_end(&trial);
}
