/* SPDX-License-Identifier: MIT */
/*
 * shoal_compile. A compiled step has variants (variants.h). Each rank chooses the variant of a run by itself. If ranks
 * choose differently, they run different plans, and the first collective reports a mismatch.
 *
 *   run   find the variant, or make it: capture -> passes -> plan
 *         inputs: the caller's, then the tensors that the graph has bound; gradients are those that leaves have now
 *         plan_run
 *         outputs go to the caller, new gradients to their leaves
 *
 * If a rank fails before its plan runs, the others must not wait for it. Failures while plans are compared are told
 * there (compare.h). Otherwise the rank may not even know with which ranks it would have met; comm/group/calls.h tells them.
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/struct_size.h"
#include "base/trace.h"
#include "base/try.h"
#include "collective/rows.h"
#include "comm/group/calls.h"
#include "comm/lane/handles.h"
#include "comm/group/owned.h"
#include "graph/analysis/accesses.h"
#include "graph/analysis/machine.h"
#include "graph/run/bind.h"
#include "graph/ir/captured.h"
#include "graph/capture/capture.h"
#include "graph/compile/bound.h"
#include "graph/compile/gradients.h"
#include "graph/compile/text.h"
#include "graph/compile/variants.h"
#include "graph/ir/graph.h"
#include "graph/passes/passes.h"
#include "graph/plan/plan.h"
#include "op/op.h"
#include "shoal/autograd.h"
#include "tensor/handle.h"
#include "tensor/tensor.h"

struct shoal_compiled {
    struct owned owned; /* must be first; makes the step forget the world when that is closed */
    bool is_owned;
    bool has_lost_world;
    shoal_world *world;
    shoal_step_function step;
    void *context;
    size_t n_outputs;
    shoal_compile_options options;
    shoal_pass_options pass_options;
    char *passes;
    bool has_own_passes; /* the program has named them */
    char *words[4];      /* copies of the strings in pass_options */
    struct variants variants;
    struct variant *current; /* the variant that ran, or was compiled, last; NULL if there is none */
    uint64_t n_calls;        /* of shoal_compiled_run, including those that failed */
    uint32_t number; /* counts the compiled steps of the world; ranks compile them in the same order */
    size_t n_compiles;
    size_t n_evicted;
    char reason[ERROR_TEXT_BYTES];
    _Atomic bool is_running;
};

/* A call of shoal_compiled_run. */
struct attempt {
    struct world_call call; /* used only if there is a world */
    bool is_told;           /* the comparison of plans tells the other ranks about a failure */
    bool has_begun;         /* the plan has begun to run: the other ranks meet this one in its collectives */
};

/* Compiling ------------------------------------------------------------------------------------------------ */

static size_t count_collectives(const shoal_graph *graph)
{
    size_t count = 0;
    for (const shoal_node *node = graph->first; node; node = node->next) {
        count += node->op && (node->op->flags & SHOAL_OP_COLLECTIVE) != 0;
    }
    return count;
}

struct pass_list {
    shoal_graph *graph;
    const shoal_pass_options *options;
    size_t n_buckets; /* of the last pass that made any */
};

static shoal_status run_pass(void *context, const char *name, size_t bytes)
{
    struct pass_list *list = context;
    shoal_pass_report report = SHOAL_PASS_REPORT_INIT;
    char word[128];
    const char *words[] = {word};
    if (bytes >= sizeof word) {
        return error_set(SHOAL_ERR_INVALID, "there is no pass with a name of %zu characters", bytes);
    }
    memcpy(word, name, bytes);
    word[bytes] = '\0';
    TRY(shoal_graph_run_passes(list->graph, words, 1, list->options, &report));
    list->n_buckets = report.n_buckets > 0 ? report.n_buckets : list->n_buckets;
    return SHOAL_OK;
}

static shoal_status run_passes(struct shoal_compiled *compiled, struct variant *variant)
{
    struct pass_list list = {.graph = variant->graph, .options = &compiled->pass_options};
    const struct machine *machine; /* ranks compare it, whatever passes they run */
    TRY(machine_of_graph(variant->graph, compiled->pass_options.machine, &machine));
    if (compiled->has_own_passes) { /* the default ones do it themselves */
        TRY(shoal_graph_remove_dead(variant->graph, NULL));
    }
    TRY(pass_each_name(compiled->passes, run_pass, &list));
    variant->report.n_buckets = list.n_buckets;
    return SHOAL_OK;
}

static shoal_status note_shapes(struct variant *variant, shoal_tensor *const *inputs, size_t n_inputs)
{
    variant->shapes = mem_alloc_zeroed(n_inputs + 1, sizeof variant->shapes[0]);
    if (!variant->shapes) {
        return SHOAL_ERR_NO_MEMORY;
    }
    variant->n_given = n_inputs;
    variant->has_grad = shoal_scope_has_grad();
    for (size_t i = 0; i < n_inputs; i++) {
        variant->shapes[i] = (struct shape){.dtype = inputs[i]->dtype,
                                            .layout = inputs[i]->layout,
                                            .requires_grad = shoal_requires_grad(inputs[i])};
    }
    return SHOAL_OK;
}

static shoal_status list_groups(struct variant *variant)
{
    size_t n_groups = 0;
    for (const struct graph_group *row = variant->graph->groups; row; row = row->next) {
        n_groups += row->bound ? 1 : 0;
    }
    variant->groups = mem_alloc_zeroed(n_groups + 1, sizeof(shoal_group *));
    if (!variant->groups) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (const struct graph_group *row = variant->graph->groups; row; row = row->next) {
        if (row->bound) {
            variant->groups[variant->n_groups++] = row->bound;
        }
    }
    return SHOAL_OK;
}

/* Makes the lists of inputs and outputs for runs. Inputs that are the same in each run are filled in. */
static shoal_status make_lists(struct variant *variant)
{
    struct captured *captured = variant->graph->captured;
    variant->n_inputs = captured->n_inputs;
    variant->n_outputs = captured->n_step_outputs + captured->n_output_leaves;
    variant->inputs = mem_alloc_zeroed(variant->n_inputs + 1, sizeof variant->inputs[0]);
    variant->outputs = mem_alloc_zeroed(variant->n_outputs + 1, sizeof variant->outputs[0]);
    variant->needs_gradient = mem_alloc_zeroed(variant->n_inputs + 1, sizeof variant->needs_gradient[0]);
    if (!variant->inputs || !variant->outputs || !variant->needs_gradient) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < variant->n_inputs; i++) {
        variant->needs_gradient[i] = variant_input_needs_gradient(&captured->inputs[i]);
    }
    TRY(list_groups(variant));
    TRY(compile_gradients_find(&variant->gradients, captured));
    for (size_t i = 0; i < variant->n_inputs; i++) {
        variant->inputs[i] = captured->inputs[i].tensor;
    }
    return SHOAL_OK;
}

static shoal_status capture(struct shoal_compiled *compiled, struct variant *variant,
                            shoal_tensor *const *inputs, size_t n_inputs)
{
    shoal_compile_report *report = &variant->report;
    int64_t begin = clock_now_ns();
    TRY(capture_compiled(compiled->step, compiled->context, inputs, n_inputs, compiled->n_outputs,
                         &variant->graph));
    report->capture_ns = (uint64_t)(clock_now_ns() - begin);
    report->n_nodes_before = shoal_graph_n_nodes(variant->graph);
    report->n_collectives_before = count_collectives(variant->graph);
    if (option_choice(OPTION_COMPILE_CHECK) != 0) {
        TRY(compile_text(variant->graph, &variant->captured));
        TRY(compile_bound_take(variant->graph->captured, &variant->bound));
    }
    return SHOAL_OK;
}

/* `oldest` is the variant that gives way to this one; NULL if there is none. */
static shoal_status compile(struct shoal_compiled *compiled, struct variant *variant, struct attempt *attempt,
                            shoal_tensor *const *inputs, size_t n_inputs, const struct variant *oldest)
{
    shoal_compile_report *report = &variant->report;
    TRY(note_shapes(variant, inputs, n_inputs));
    TRY(capture(compiled, variant, inputs, n_inputs));
    variant->graph->captured->max_variants = compiled->variants.max;
    variant->graph->captured->freed_run = oldest ? oldest->made_in : 0;
    TRY(captured_agree(variant->graph->captured));
    int64_t begin = clock_now_ns();
    TRY(run_passes(compiled, variant));
    report->passes_ns = (uint64_t)(clock_now_ns() - begin);
    report->n_nodes_after = shoal_graph_n_nodes(variant->graph);
    report->n_collectives_after = count_collectives(variant->graph);
    TRY(make_lists(variant));
    begin = clock_now_ns();
    TRY(world_call_meet(variant->groups, variant->n_groups));
    attempt->is_told = true;
    TRY(shoal_plan_create(variant->graph, compiled->world, &compiled->options, &variant->plan));
    attempt->is_told = false;
    report->lower_ns = (uint64_t)(clock_now_ns() - begin);
    return SHOAL_OK;
}

/* Writes why the variant that ran last cannot be used. */
static void write_reason(struct shoal_compiled *compiled, shoal_tensor *const *inputs, size_t n_inputs)
{
    if (compiled->current) {
        variant_describe_change(compiled->current, inputs, n_inputs, compiled->reason,
                                sizeof compiled->reason);
    } else {
        (void)snprintf(compiled->reason, sizeof compiled->reason, "%s",
                       compiled->n_compiles == 0 ? "the first run" : "the last variant was freed");
    }
}

static void drop_variant(struct shoal_compiled *compiled, struct variant *variant)
{
    if (variant == compiled->current) {
        compiled->current = NULL;
    }
    variants_drop(&compiled->variants, variant);
}

/* Frees the variants of a model that is not like that any more. */
static void drop_gone(struct shoal_compiled *compiled)
{
    for (size_t i = compiled->variants.count; i > 0; i--) {
        struct variant *variant = compiled->variants.rows[i - 1];
        if (captured_has_gone(variant->graph->captured)) {
            drop_variant(compiled, variant);
        }
    }
}

/* Takes over a variant that was made. `oldest` gives way to it; it is NULL if there is room. */
static void keep_variant(struct shoal_compiled *compiled, struct variant *made, struct variant *oldest)
{
    if (oldest) {
        LOG(SHOAL_LOG_INFO, "compile: the variant of run %" PRIu64 " is freed: max_variants is %zu",
            oldest->made_in, compiled->variants.max);
        drop_variant(compiled, oldest);
        compiled->n_evicted++;
    }
    variants_add(&compiled->variants, made);
    compiled->n_compiles++;
    compiled->current = made;
}

/* Until the new variant is complete, the others stay as they are. */
static shoal_status compile_variant(struct shoal_compiled *compiled, struct attempt *attempt,
                                    shoal_tensor *const *inputs, size_t n_inputs,
                                    struct variant **variant_out)
{
    write_reason(compiled, inputs, n_inputs);
    LOG(SHOAL_LOG_INFO, "compile: capturing the step: %s", compiled->reason);
    drop_gone(compiled); /* before the new plan takes memory */
    struct variant *oldest = variants_oldest(&compiled->variants);
    struct variant *made = mem_alloc_zeroed(1, sizeof *made);
    shoal_status status = made ? variants_reserve(&compiled->variants) : SHOAL_ERR_NO_MEMORY;
    if (status == SHOAL_OK) {
        made->made_in = compiled->n_calls;
        status = compile(compiled, made, attempt, inputs, n_inputs, oldest);
    }
    if (status != SHOAL_OK) {
        world_call_part(/*was_good=*/false);
        variant_free(made);
        return status;
    }
    keep_variant(compiled, made, oldest);
    *variant_out = made;
    return SHOAL_OK;
}

/* Checking --------------------------------------------------------------------------------------------------- */

static shoal_status compare_bound(const struct variant *variant, const struct captured *again)
{
    struct compile_bound now = {.count = 0};
    shoal_status status = compile_bound_take(again, &now);
    if (status == SHOAL_OK) {
        status = compile_bound_compare(&variant->bound, &now);
    }
    compile_bound_free(&now);
    return status;
}

static shoal_status compare_with_new_capture(struct shoal_compiled *compiled, const struct variant *variant,
                                             shoal_tensor *const *inputs, size_t n_inputs)
{
    shoal_graph *graph;
    char *text = NULL;
    TRY(capture_compiled(compiled->step, compiled->context, inputs, n_inputs, compiled->n_outputs, &graph));
    shoal_status status = compile_text(graph, &text);
    if (status == SHOAL_OK) {
        status = compile_compare(variant->captured, text);
    }
    if (status == SHOAL_OK) {
        status = compare_bound(variant, graph->captured);
    }
    mem_free(text);
    shoal_graph_free(graph);
    return status;
}

/* Running ---------------------------------------------------------------------------------------------------- */

static shoal_status set_inputs(struct variant *variant, shoal_tensor *const *inputs)
{
    for (size_t i = 0; i < variant->n_given; i++) {
        variant->inputs[i] = inputs[i];
    }
    if (compile_gradients_have_moved(&variant->gradients)) {
        TRY(compile_gradients_wait(&variant->gradients, inputs, variant->plan->world));
    }
    return compile_gradients_take(&variant->gradients, inputs, variant->inputs);
}

static void drop_outputs(const struct variant *variant)
{
    for (size_t i = 0; i < variant->n_outputs; i++) {
        shoal_tensor_unref(variant->outputs[i]);
    }
}

/* Ranks were found to differ on one group of the plan. Those that this rank would have met on others are told the same,
   because the plan goes on nowhere. */
static void tell_different(const struct variant *variant, shoal_status status)
{
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    for (size_t i = 0; i < variant->n_groups; i++) {
        if (group_failure(variant->groups[i]) == SHOAL_OK) {
            group_poison(variant->groups[i], status, text);
        }
    }
    (void)error_set(status, "%s", text);
}

/* On success variant->outputs has the outputs, one reference each. */
static shoal_status run_variant(struct variant *variant, struct attempt *attempt, shoal_tensor *const *inputs)
{
    shoal_status status = set_inputs(variant, inputs);
    if (status == SHOAL_OK) {
        status = plan_run(variant->plan, variant->inputs, variant->n_inputs, variant->outputs,
                          variant->n_outputs, &attempt->has_begun);
    }
    if (status == SHOAL_ERR_MISMATCH && attempt->has_begun) {
        tell_different(variant, status);
    }
    bool has_run = status == SHOAL_OK;
    if (has_run) {
        status =
            compile_gradients_give_back(&variant->gradients, inputs, variant->outputs, variant->n_outputs);
    }
    compile_gradients_let_go(&variant->gradients);
    if (status == SHOAL_OK) {
        status = compile_gradients_detach(&variant->gradients, variant->outputs);
    }
    if (has_run && status != SHOAL_OK) {
        drop_outputs(variant);
    }
    return status;
}

static shoal_status run(struct shoal_compiled *compiled, struct attempt *attempt, shoal_tensor *const *inputs,
                        size_t n_inputs, shoal_tensor **outputs)
{
    struct variant *variant = variants_find(&compiled->variants, inputs, n_inputs);
    if (!variant) {
        TRY(compile_variant(compiled, attempt, inputs, n_inputs, &variant));
    } else {
        if (variant->captured && !compile_gradients_have_moved(&variant->gradients)) {
            TRY(compare_with_new_capture(compiled, variant, inputs, n_inputs));
        }
        TRY(world_call_meet(variant->groups, variant->n_groups));
    }
    compiled->current = variant;
    variant->used_in = compiled->n_calls;
    TRY(captured_begin_run(variant->graph->captured));
    TRY(run_variant(variant, attempt, inputs));
    compile_gradients_set(&variant->gradients, inputs, variant->outputs);
    shoal_status status = captured_end_run(variant->graph->captured);
    if (status != SHOAL_OK) {
        drop_outputs(variant);
        return status;
    }
    for (size_t i = 0; i < compiled->n_outputs; i++) {
        outputs[i] = variant->outputs[i];
    }
    for (size_t i = compiled->n_outputs; i < variant->n_outputs; i++) {
        shoal_tensor_unref(variant->outputs[i]);
    }
    return SHOAL_OK;
}

/* Checks in every run what shoal_capture demands of inputs. */
static shoal_status check_input(shoal_tensor *const *inputs, size_t index)
{
    if (!shoal_is_leaf(inputs[index])) {
        return error_set(SHOAL_ERR_INVALID, "input %zu is a result of recorded operations; detach it", index);
    }
    TRY(captured_check_hooks(index, inputs[index]));
    for (size_t i = 0; i < index; i++) {
        if (inputs[i]->storage == inputs[index]->storage) {
            return error_set(SHOAL_ERR_INVALID, "inputs %zu and %zu share memory", i, index);
        }
    }
    return SHOAL_OK;
}

static shoal_status check_lists(const struct shoal_compiled *compiled, shoal_tensor *const *inputs,
                                size_t n_inputs, shoal_tensor **outputs, size_t n_outputs)
{
    if (n_outputs != compiled->n_outputs) {
        return error_set(SHOAL_ERR_INVALID, "n_outputs is %zu, but the step has %zu outputs", n_outputs,
                         compiled->n_outputs);
    }
    if ((n_inputs > 0 && !inputs) || (n_outputs > 0 && !outputs)) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", n_inputs > 0 && !inputs ? "inputs" : "outputs");
    }
    for (size_t i = 0; i < n_inputs; i++) {
        if (!inputs[i]) {
            return error_set(SHOAL_ERR_INVALID, "input %zu is NULL", i);
        }
    }
    TRY(handle_check_list("input", inputs, n_inputs));
    for (size_t i = 0; i < n_inputs; i++) {
        TRY(check_input(inputs, i));
    }
    return SHOAL_OK;
}

/* Tells the other ranks why they will not meet this one, with the thread's error text. If the plan had begun, they are
   told only if another rank was the cause: ranks that this one would have met later may not know of it yet. */
static void give_up(const struct attempt *attempt, shoal_status status)
{
    char text[ERROR_TEXT_BYTES];
    bool has_heard = attempt->call.was_given_up;
    if (attempt->is_told || (attempt->has_begun && !has_heard && status != SHOAL_ERR_PEER)) {
        return;
    }
    (void)snprintf(text, sizeof text, "rank %d gave the compiled step up: %s: %s",
                   shoal_world_rank(attempt->call.world), shoal_status_name(status), shoal_error_text());
    if (has_heard) {
        world_call_give_up(&attempt->call, attempt->call.status, attempt->call.text);
    } else {
        world_call_give_up(&attempt->call, status, text);
    }
}

static shoal_status run_in_world(struct shoal_compiled *compiled, shoal_tensor *const *inputs,
                                 size_t n_inputs, shoal_tensor **outputs, size_t n_outputs)
{
    if (compiled->world) {
        TRY(world_check(compiled->world)); /* a forked child has nobody to tell */
    }
    struct attempt attempt = {
        .call = {.world = compiled->world, .number = compiled->number, .round = ++compiled->n_calls}};
    if (compiled->world) {
        world_call_begin(&attempt.call);
    }
    shoal_status status = check_lists(compiled, inputs, n_inputs, outputs, n_outputs);
    if (status == SHOAL_OK) {
        status = run(compiled, &attempt, inputs, n_inputs, outputs);
    }
    if (compiled->world) {
        world_call_end(&attempt.call);
    }
    if (compiled->world && status != SHOAL_OK) {
        give_up(&attempt, status);
    }
    return status;
}

shoal_status shoal_compiled_run(shoal_compiled *compiled, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    error_clear();
    if (!compiled) {
        return error_set(SHOAL_ERR_INVALID, "compiled_run: compiled is NULL");
    }
    if (atomic_exchange(&compiled->is_running, true)) {
        return error_set(SHOAL_ERR_STATE,
                         "compiled_run: the step is running already, in another thread or around this call");
    }
    uint64_t begin_ticks = trace_begin();
    shoal_status status = compiled->has_lost_world
                              ? error_set(SHOAL_ERR_STATE, "the world of the step was closed")
                              : run_in_world(compiled, inputs, n_inputs, outputs, n_outputs);
    trace_end(begin_ticks, TRACE_COMPILED, "compiled step");
    atomic_store(&compiled->is_running, false);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "compiled_run");
}

/* Making and freeing ----------------------------------------------------------------------------------------- */

static shoal_status check_pass_name(void *context, const char *name, size_t bytes)
{
    const struct pass *pass;
    (void)context;
    return pass_find(name, bytes, &pass);
}

static shoal_status read_options(struct shoal_compiled *compiled, const shoal_compile_options *given)
{
    if (given) {
        TRY(struct_size_read("options", given, sizeof(size_t), &compiled->options, sizeof compiled->options));
    }
    if (compiled->options.max_variants > VARIANTS_MOST) {
        return error_set(SHOAL_ERR_INVALID, "max_variants is %zu, 0 (which means %d) to %d expected",
                         compiled->options.max_variants, VARIANTS_DEFAULT, VARIANTS_MOST);
    }
    compiled->variants.max =
        compiled->options.max_variants > 0 ? compiled->options.max_variants : VARIANTS_DEFAULT;
    compiled->has_own_passes = compiled->options.passes != NULL;
    const char *passes = compiled->has_own_passes ? compiled->options.passes : shoal_default_passes();
    if (compiled->options.pass_options) {
        TRY(struct_size_read("pass_options", compiled->options.pass_options, sizeof(size_t),
                             &compiled->pass_options, sizeof compiled->pass_options));
    }
    TRY(pass_each_name(passes, check_pass_name, NULL));
    const char **words[] = {&compiled->pass_options.disabled, &compiled->pass_options.dot_prefix,
                            &compiled->pass_options.ddp_passes, &compiled->pass_options.machine};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        compiled->words[i] = *words[i] ? mem_copy_string(*words[i]) : NULL;
        if (*words[i] && !compiled->words[i]) {
            return SHOAL_ERR_NO_MEMORY;
        }
        *words[i] = compiled->words[i];
    }
    compiled->passes = mem_copy_string(passes);
    compiled->options.passes = compiled->passes;
    compiled->options.pass_options = &compiled->pass_options;
    return compiled->passes ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

/* Called when the world is closed before the step was freed. The step's plans have been ended before. */
static void end_with_world(struct owned *owned)
{
    struct shoal_compiled *compiled = (struct shoal_compiled *)owned;
    compiled->is_owned = false;
    compiled->has_lost_world = true;
    compiled->world = NULL;
}

shoal_status shoal_compile(shoal_world *world, shoal_step_function step, void *context, size_t n_outputs,
                           const shoal_compile_options *options, shoal_compiled **compiled_out)
{
    error_clear();
    if (!step || !compiled_out) {
        return error_set(SHOAL_ERR_INVALID, "compile: %s is NULL", step ? "compiled_out" : "step");
    }
    if (world && world_check(world) != SHOAL_OK) {
        return error_prefix(SHOAL_ERR_STATE, "compile");
    }
    struct shoal_compiled *compiled = mem_alloc_zeroed(1, sizeof *compiled);
    if (!compiled) {
        return SHOAL_ERR_NO_MEMORY;
    }
    compiled->world = world;
    compiled->step = step;
    compiled->context = context;
    compiled->n_outputs = n_outputs;
    compiled->options = (shoal_compile_options)SHOAL_COMPILE_OPTIONS_INIT;
    compiled->pass_options = (shoal_pass_options)SHOAL_PASS_OPTIONS_INIT;
    shoal_status status = read_options(compiled, options);
    if (status != SHOAL_OK) {
        shoal_compiled_free(compiled);
        return error_prefix(status, "compile");
    }
    if (world) {
        compiled->owned.destroy = end_with_world;
        owned_list_add(world_owned(world), &compiled->owned);
        compiled->is_owned = true;
        compiled->number = world_next_call(world);
    }
    *compiled_out = compiled;
    return SHOAL_OK;
}

void shoal_compiled_free(shoal_compiled *compiled)
{
    if (!compiled) {
        return;
    }
    if (compiled->is_owned) {
        owned_list_remove(world_owned(compiled->world), &compiled->owned);
    }
    variants_free(&compiled->variants);
    for (size_t i = 0; i < sizeof compiled->words / sizeof compiled->words[0]; i++) {
        mem_free(compiled->words[i]);
    }
    mem_free(compiled->passes);
    mem_free(compiled);
}

/* Asking ------------------------------------------------------------------------------------------------------- */

shoal_status shoal_compiled_get_report(const shoal_compiled *compiled, shoal_compile_report *report_out)
{
    error_clear();
    if (!compiled || !report_out) {
        return error_set(SHOAL_ERR_INVALID, "compiled_get_report: %s is NULL",
                         compiled ? "report_out" : "compiled");
    }
    if (!compiled->current) {
        return error_set(SHOAL_ERR_STATE, "compiled_get_report: the step has not run yet");
    }
    shoal_compile_report report = compiled->current->report;
    report.struct_size = sizeof report;
    report.n_compiles = compiled->n_compiles;
    report.n_evicted = compiled->n_evicted;
    variants_report(&compiled->variants, &report);
    report.reason = compiled->reason;
    report.plan = (shoal_plan_stats)SHOAL_PLAN_STATS_INIT;
    TRY(shoal_plan_get_stats(compiled->current->plan, &report.plan));
    return struct_size_write("compiled_get_report: report_out", report_out, sizeof(size_t), &report,
                             sizeof report);
}

const shoal_graph *shoal_compiled_graph(const shoal_compiled *compiled)
{
    return compiled && compiled->current ? compiled->current->graph : NULL;
}

const shoal_plan *shoal_compiled_plan(const shoal_compiled *compiled)
{
    return compiled && compiled->current ? compiled->current->plan : NULL;
}
