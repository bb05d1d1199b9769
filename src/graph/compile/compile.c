/* SPDX-License-Identifier: MIT */
/*
 * shoal_compile. A compiled step has variants: one for each combination of input shapes and dtypes, of the scope's
 * gradient mode, and of leaves that have gradients already, because adding to a gradient is another graph than making
 * one. A variant also fits only as long as what the graph depends on is as it was (captured.h). Each rank chooses the variant
 * by itself. If ranks choose differently, they run different plans, and the first collective reports a mismatch.
 *
 *   run   find the variant, or make it: capture -> passes -> plan
 *         inputs: the caller's, then the tensors that the graph has bound; gradients are those that leaves have now
 *         plan_run
 *         outputs go to the caller, new gradients to their leaves
 *
 * If a rank fails before its plan runs, the others must not wait for it. Failures while plans are compared are told
 * there (compare.h). Otherwise the rank may not even know with which ranks it would have met; comm/group/calls.h tells them.
 */
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
#include "collective/gradient_buckets.h"
#include "collective/rows.h"
#include "comm/group/calls.h"
#include "comm/lane/handles.h"
#include "comm/group/owned.h"
#include "graph/analysis/accesses.h"
#include "graph/run/bind.h"
#include "graph/ir/captured.h"
#include "graph/compile/bound.h"
#include "graph/compile/gradients.h"
#include "graph/compile/text.h"
#include "graph/ir/graph.h"
#include "graph/passes/passes.h"
#include "graph/plan/plan.h"
#include "op/op.h"
#include "shoal/autograd.h"
#include "tensor/handle.h"
#include "tensor/tensor.h"

/* The most variants that are kept. Then the least recently used one is freed, on all ranks in the same run. */
#define MAX_VARIANTS 8

#define DEFAULT_PASSES "dedupe_waits,fuse_ddp_communication,bucket_fsdp_units,simple_overlap"

/* What an input of a variant must be like. */
struct shape {
    shoal_dtype dtype;
    struct layout layout;
    bool requires_grad;
};

struct variant {
    shoal_graph *graph;
    shoal_plan *plan;
    char *captured;             /* the text of the graph before passes; NULL if SHOAL_COMPILE_CHECK is off */
    struct compile_bound bound; /* with the text */
    struct shape *shapes;
    size_t n_given;        /* inputs of the step */
    bool has_grad;         /* the scope's gradient mode */
    shoal_tensor **inputs; /* of the plan: those of the step, then bound tensors */
    bool *needs_gradient;  /* by input: whether it required a gradient when the step was captured */
    size_t n_inputs;
    shoal_tensor **outputs;
    size_t n_outputs;
    shoal_group **groups; /* that the captured step used */
    size_t n_groups;
    struct compile_gradients gradients;
    shoal_compile_report report;
    uint64_t last_use;
};

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
    char *words[3]; /* copies of the strings in pass_options */
    struct variant variants[MAX_VARIANTS];
    size_t n_variants;
    struct variant *current; /* the variant that ran, or was compiled, last; NULL if there is none */
    uint64_t n_runs;
    uint64_t n_calls; /* of shoal_compiled_run, including those that failed */
    uint32_t number;  /* counts the compiled steps of the world; ranks compile them in the same order */
    size_t n_compiles;
    char reason[ERROR_TEXT_BYTES];
    _Atomic bool is_running;
};

const char *shoal_default_passes(void)
{
    return DEFAULT_PASSES;
}

/* A call of shoal_compiled_run. */
struct attempt {
    struct world_call call; /* used only if there is a world */
    bool is_told;           /* the comparison of plans tells the other ranks about a failure */
    bool has_begun;         /* the plan has begun to run: the other ranks meet this one in its collectives */
};

/* Variants ------------------------------------------------------------------------------------------------- */

static void free_variant(struct variant *variant)
{
    shoal_plan_free(variant->plan);
    shoal_graph_free(variant->graph);
    mem_free(variant->captured);
    compile_bound_free(&variant->bound);
    mem_free(variant->shapes);
    mem_free(variant->inputs);
    mem_free(variant->needs_gradient);
    mem_free(variant->outputs);
    mem_free((void *)variant->groups);
    compile_gradients_free(&variant->gradients);
    *variant = (struct variant){.graph = NULL};
}

static bool is_like(const struct shape *shape, const shoal_tensor *tensor)
{
    return shape->dtype == tensor->dtype && shape->requires_grad == shoal_requires_grad(tensor) &&
           layout_is_same_shape(shape->layout.n_dims, shape->layout.shape, tensor->layout.n_dims,
                                tensor->layout.shape);
}

/* Returns the index of the first input that does not fit the variant; n_given: all fit. */
static size_t find_other_input(const struct variant *variant, shoal_tensor *const *inputs, size_t n_inputs)
{
    size_t i = 0;
    while (i < variant->n_given && i < n_inputs && is_like(&variant->shapes[i], inputs[i])) {
        i++;
    }
    return i;
}

/* Whether a bound tensor requires a gradient. For the padded shard of a parameter, the shard is asked. */
static bool needs_gradient(const struct captured_input *bound)
{
    const shoal_tensor *tensor = bound->source ? bound->source : bound->tensor;
    return tensor && shoal_requires_grad(tensor); /* it is NULL if the placeholder is a gradient */
}

/* Returns the index of a bound tensor that was frozen or thawed since the capture; n_inputs: none. */
static size_t find_frozen(const struct variant *variant)
{
    const struct captured_input *bound = variant->graph->captured->inputs;
    size_t i = variant->n_given;
    while (i < variant->n_inputs && needs_gradient(&bound[i]) == variant->needs_gradient[i]) {
        i++;
    }
    return i;
}

static struct variant *find_variant(struct shoal_compiled *compiled, shoal_tensor *const *inputs,
                                    size_t n_inputs)
{
    for (size_t i = 0; i < compiled->n_variants; i++) {
        struct variant *variant = &compiled->variants[i];
        if (variant->n_given == n_inputs && variant->has_grad == shoal_scope_has_grad() &&
            find_other_input(variant, inputs, n_inputs) == n_inputs &&
            find_frozen(variant) == variant->n_inputs &&
            !compile_gradients_find_other(&variant->gradients, inputs) &&
            captured_is_current(variant->graph->captured)) {
            return variant;
        }
    }
    return NULL;
}

/* Writes why the variant that ran last cannot be used. */
static void write_reason(struct shoal_compiled *compiled, shoal_tensor *const *inputs, size_t n_inputs)
{
    char now[TENSOR_TEXT_BYTES];
    char before[LAYOUT_TEXT_BYTES];
    struct variant *last = compiled->current;
    if (!last) {
        (void)snprintf(compiled->reason, sizeof compiled->reason, "%s",
                       compiled->n_compiles == 0 ? "the first run" : "the last variant was freed");
        return;
    }
    size_t other = find_other_input(last, inputs, n_inputs);
    if (last->n_given != n_inputs) {
        (void)snprintf(compiled->reason, sizeof compiled->reason, "%zu inputs, not %zu as before", n_inputs,
                       last->n_given);
    } else if (other < n_inputs) {
        const struct shape *shape = &last->shapes[other];
        (void)snprintf(
            compiled->reason, sizeof compiled->reason, "input %zu is %s%s, not %s %s%s as before", other,
            tensor_format(now, inputs[other]), shoal_requires_grad(inputs[other]) ? " with a gradient" : "",
            shoal_dtype_name(shape->dtype), layout_format(before, shape->layout.n_dims, shape->layout.shape),
            shape->requires_grad ? " with a gradient" : "");
    } else if (last->has_grad != shoal_scope_has_grad()) {
        (void)snprintf(compiled->reason, sizeof compiled->reason, "gradients are %s now",
                       last->has_grad ? "off" : "on");
    } else if (find_frozen(last) < last->n_inputs) {
        const struct captured_input *bound = &last->graph->captured->inputs[find_frozen(last)];
        const char *name = shoal_tensor_name(bound->source ? bound->source : bound->tensor);
        (void)snprintf(compiled->reason, sizeof compiled->reason, "%s %s a gradient now",
                       name[0] ? name : "a tensor", needs_gradient(bound) ? "requires" : "does not require");
    } else if (!compile_gradients_find_other(&last->gradients, inputs)) {
        captured_describe_change(last->graph->captured, compiled->reason, sizeof compiled->reason);
    } else {
        const struct gradient *gradient = compile_gradients_find_other(&last->gradients, inputs);
        const shoal_tensor *leaf = gradient_leaf(gradient, inputs);
        const char *name = shoal_tensor_name(leaf);
        const char *change =
            shoal_grad(leaf) ? (gradient->had_gradient ? "has another kind of" : "has") : "does not have";
        (void)snprintf(compiled->reason, sizeof compiled->reason, "%s %s a gradient now",
                       name[0] ? name : "a leaf", change);
    }
}

/* Compiling ------------------------------------------------------------------------------------------------ */

static size_t count_collectives(const shoal_graph *graph)
{
    size_t count = 0;
    for (const shoal_node *node = graph->first; node; node = node->next) {
        count += node->op && (node->op->flags & SHOAL_OP_COLLECTIVE) != 0;
    }
    return count;
}

static double count_reduced_bytes(const shoal_graph *graph)
{
    double bytes = 0;
    for (const shoal_node *node = graph->first; node; node = node->next) {
        if (node_calls(node, OP_all_reduce) && shoal_node_n_values(node) == 1) {
            bytes += (double)tensor_bytes(shoal_node_value(node, 0));
        }
    }
    return bytes;
}

/*
 * Chooses the size of gradient buckets if the caller does not. The reduction of the last bucket cannot be hidden,
 * because no compute is left. So a bucket is a sixteenth of all gradients, but within the bounds of
 * collective/gradient_buckets.h.
 */
static double choose_bucket_size(const shoal_graph *graph)
{
    double size_mb = count_reduced_bytes(graph) / 16 / 1048576;
    size_mb = size_mb < GRADIENT_BUCKETS_MB ? size_mb : GRADIENT_BUCKETS_MB;
    return size_mb > GRADIENT_BUCKETS_FIRST_MB ? size_mb : GRADIENT_BUCKETS_FIRST_MB;
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
    shoal_pass_options options = compiled->pass_options;
    struct pass_list list = {.graph = variant->graph, .options = &options};
    TRY(shoal_graph_remove_dead(variant->graph, NULL));
    if (options.bucket_size_mb == 0) {
        options.bucket_size_mb = choose_bucket_size(variant->graph);
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
        variant->needs_gradient[i] = needs_gradient(&captured->inputs[i]);
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
    TRY(shoal_capture(compiled->step, compiled->context, inputs, n_inputs, compiled->n_outputs,
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

static shoal_status compile(struct shoal_compiled *compiled, struct variant *variant, struct attempt *attempt,
                            shoal_tensor *const *inputs, size_t n_inputs)
{
    shoal_compile_report *report = &variant->report;
    TRY(note_shapes(variant, inputs, n_inputs));
    TRY(capture(compiled, variant, inputs, n_inputs));
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

static void drop_variant(struct shoal_compiled *compiled, struct variant *variant)
{
    if (variant == compiled->current) {
        compiled->current = NULL;
    }
    free_variant(variant);
    compiled->n_variants--;
    if (variant != &compiled->variants[compiled->n_variants]) {
        *variant = compiled->variants[compiled->n_variants];
    }
    if (compiled->current == &compiled->variants[compiled->n_variants]) {
        compiled->current = variant;
    }
}

/* Frees the variants of a model that is not like that any more. */
static void drop_gone(struct shoal_compiled *compiled)
{
    for (size_t i = compiled->n_variants; i > 0; i--) {
        if (captured_has_gone(compiled->variants[i - 1].graph->captured)) {
            drop_variant(compiled, &compiled->variants[i - 1]);
        }
    }
}

/* Returns a free place among the variants. If there is none, the least recently used one is freed. */
static struct variant *take_place(struct shoal_compiled *compiled)
{
    if (compiled->n_variants == MAX_VARIANTS) {
        struct variant *oldest = &compiled->variants[0];
        for (size_t i = 1; i < compiled->n_variants; i++) {
            oldest = compiled->variants[i].last_use < oldest->last_use ? &compiled->variants[i] : oldest;
        }
        drop_variant(compiled, oldest);
    }
    return &compiled->variants[compiled->n_variants];
}

static shoal_status compile_variant(struct shoal_compiled *compiled, struct attempt *attempt,
                                    shoal_tensor *const *inputs, size_t n_inputs,
                                    struct variant **variant_out)
{
    struct variant made = {.graph = NULL};
    write_reason(compiled, inputs, n_inputs);
    LOG(SHOAL_LOG_INFO, "compile: capturing the step: %s", compiled->reason);
    drop_gone(compiled); /* before the new plan takes memory */
    shoal_status status = compile(compiled, &made, attempt, inputs, n_inputs);
    if (status != SHOAL_OK) {
        world_call_part(/*was_good=*/false);
        free_variant(&made);
        return status;
    }
    struct variant *place = take_place(compiled);
    *place = made;
    compiled->n_variants++;
    compiled->n_compiles++;
    compiled->current = place;
    *variant_out = place;
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
    TRY(shoal_capture(compiled->step, compiled->context, inputs, n_inputs, compiled->n_outputs, &graph));
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
    return compile_gradients_take(&variant->gradients, inputs, variant->inputs);
}

static void drop_outputs(const struct variant *variant)
{
    for (size_t i = 0; i < variant->n_outputs; i++) {
        shoal_tensor_unref(variant->outputs[i]);
    }
}

/* On success variant->outputs has the outputs, one reference each. */
static shoal_status run_variant(struct variant *variant, struct attempt *attempt, shoal_tensor *const *inputs)
{
    shoal_status status = set_inputs(variant, inputs);
    if (status == SHOAL_OK) {
        status = plan_run(variant->plan, variant->inputs, variant->n_inputs, variant->outputs,
                          variant->n_outputs, &attempt->has_begun);
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
    struct variant *variant = find_variant(compiled, inputs, n_inputs);
    if (!variant) {
        TRY(compile_variant(compiled, attempt, inputs, n_inputs, &variant));
    } else {
        if (variant->captured && !compile_gradients_have_moved(&variant->gradients)) {
            TRY(compare_with_new_capture(compiled, variant, inputs, n_inputs));
        }
        TRY(world_call_meet(variant->groups, variant->n_groups));
    }
    compiled->current = variant;
    variant->last_use = ++compiled->n_runs;
    TRY(run_variant(variant, attempt, inputs));
    compile_gradients_set(&variant->gradients, inputs, variant->outputs);
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
    world_call_give_up(&attempt->call, has_heard ? attempt->call.text : text);
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
    const char *passes = compiled->options.passes ? compiled->options.passes : DEFAULT_PASSES;
    if (compiled->options.pass_options) {
        TRY(struct_size_read("pass_options", compiled->options.pass_options, sizeof(size_t),
                             &compiled->pass_options, sizeof compiled->pass_options));
    }
    TRY(pass_each_name(passes, check_pass_name, NULL));
    const char **words[] = {&compiled->pass_options.disabled, &compiled->pass_options.dot_prefix,
                            &compiled->pass_options.ddp_passes};
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
    for (size_t i = 0; i < compiled->n_variants; i++) {
        free_variant(&compiled->variants[i]);
    }
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
