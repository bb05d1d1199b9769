/* SPDX-License-Identifier: MIT */
/*
 * shoal_compile. A compiled step has variants: one for each kind of inputs (shapes, dtypes) and of gradients that are there
 * already, because a step that adds to gradients is another graph than one that makes them. The variant is chosen from what
 * this rank sees. Ranks that choose differently run different plans, and the first collective tells.
 *
 *   run   find the variant, or capture -> passes -> plan
 *         inputs: the caller's, then the tensors that the graph has bound; a gradient is the one that its leaf has now
 *         plan_run
 *         outputs to the caller, new gradients to their leaves
 */
#include <stdio.h>
#include <string.h>

#include "autograd/leaf.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "graph/captured.h"
#include "graph/compile_text.h"
#include "graph/graph.h"
#include "graph/passes.h"
#include "graph/plan.h"
#include "graph/storage_map.h"
#include "op/op.h"
#include "shoal/autograd.h"
#include "tensor/handle.h"
#include "tensor/tensor.h"

/* Variants that are kept; the one that was used longest ago goes, on all ranks in the same run. */
#define MAX_VARIANTS 8

#define DEFAULT_PASSES "dedupe_waits,fuse_ddp_communication,bucket_fsdp_units,simple_overlap"

/* How an input must look. */
struct shape {
    shoal_dtype dtype;
    struct layout layout;
    bool requires_grad;
};

/* A leaf whose gradient the step changes. */
struct gradient {
    shoal_tensor
        *leaf;    /* the graph's reference; not for an input of the step, which is another one in each run: */
    size_t given; /* that input; CAPTURED_NONE: none */
    size_t
        input; /* the gradient that it had is this placeholder, and is read or added to; SIZE_MAX: it is not */
    size_t sharer;        /* the first gradient in the same memory, if that is a placeholder; or itself */
    size_t output;        /* the new gradient is this output; SIZE_MAX: it is written in place, or removed */
    bool is_added_to;     /* in place, */
    bool is_kept;         /* but by nobody: nothing happens to it */
    bool is_averaged;     /* afterwards (tensor/tensor.h) */
    bool had_gradient;    /* before the step; then: */
    shoal_dtype dtype;    /* its own, */
    struct layout layout; /* likewise, */
    size_t bytes;         /* of its storage, */
    shoal_dtype whole_dtype;    /* and, as a placeholder, */
    struct layout whole_layout; /* how that takes it, */
    shoal_tensor *whole;        /* and that storage as the placeholder takes it, in a run; one reference */
};

struct variant {
    shoal_graph *graph;
    shoal_plan *plan;
    char *captured; /* the text of the graph before passes; NULL: nobody compares */
    struct shape *shapes;
    size_t n_given; /* inputs of the step */
    shoal_tensor **inputs;
    bool *needs_gradient; /* inputs, when the step was captured */
    size_t n_inputs;
    shoal_tensor **outputs;
    size_t n_outputs;
    struct gradient *gradients;
    size_t n_gradients;
    struct storage_map sharers; /* of gradients that are placeholders: the first in each storage */
    shoal_compile_report report;
    uint64_t last_use;
};

struct shoal_compiled {
    shoal_world *world;
    shoal_step_function step;
    void *context;
    size_t n_outputs;
    shoal_compile_options options;
    shoal_pass_options pass_options;
    char *passes;
    char *words[3]; /* copies of what pass_options points to */
    struct variant variants[MAX_VARIANTS];
    size_t n_variants;
    struct variant *current; /* that ran, or was compiled, last; NULL: none */
    uint64_t n_runs;
    size_t n_compiles;
    char reason[ERROR_TEXT_BYTES];
    bool is_running;
};

const char *shoal_default_passes(void)
{
    return DEFAULT_PASSES;
}

/* Variants ------------------------------------------------------------------------------------------------- */

static void free_variant(struct variant *variant)
{
    shoal_plan_free(variant->plan);
    shoal_graph_free(variant->graph);
    mem_free(variant->captured);
    mem_free(variant->shapes);
    mem_free(variant->inputs);
    mem_free(variant->needs_gradient);
    mem_free(variant->outputs);
    mem_free(variant->gradients);
    storage_map_free(&variant->sharers);
    *variant = (struct variant){.graph = NULL};
}

static bool is_like(const struct shape *shape, const shoal_tensor *tensor)
{
    return shape->dtype == tensor->dtype && shape->requires_grad == shoal_requires_grad(tensor) &&
           layout_is_same_shape(shape->layout.n_dims, shape->layout.shape, tensor->layout.n_dims,
                                tensor->layout.shape);
}

/* The first input that does not fit; n_given: all do. */
static size_t find_other_input(const struct variant *variant, shoal_tensor *const *inputs, size_t n_inputs)
{
    size_t i = 0;
    while (i < variant->n_given && i < n_inputs && is_like(&variant->shapes[i], inputs[i])) {
        i++;
    }
    return i;
}

static shoal_tensor *leaf_of_run(const struct gradient *gradient, shoal_tensor *const *inputs)
{
    return gradient->given == CAPTURED_NONE ? gradient->leaf : inputs[gradient->given];
}

/* Whether the leaf has a gradient like that. */
static bool has_like(const struct gradient *gradient, shoal_tensor *const *inputs)
{
    const shoal_tensor *now = shoal_grad(leaf_of_run(gradient, inputs));
    if (!now || !gradient->had_gradient) {
        return !now && !gradient->had_gradient;
    }
    return now->dtype == gradient->dtype && now->storage->bytes == gradient->bytes &&
           now->layout.n_dims == gradient->layout.n_dims && now->layout.offset == gradient->layout.offset &&
           layout_is_same_shape(now->layout.n_dims, now->layout.strides, gradient->layout.n_dims,
                                gradient->layout.strides);
}

/* Whether a gradient that is a placeholder shares its memory with those before it as it did; it was found to be alike. */
static bool shares_alike(struct variant *variant, size_t index, shoal_tensor *const *inputs)
{
    const struct gradient *gradient = &variant->gradients[index];
    size_t sharer = index;
    if (gradient->input == SIZE_MAX) {
        return true;
    }
    const struct storage *storage = shoal_grad(leaf_of_run(gradient, inputs))->storage;
    if (storage_map_get(&variant->sharers, storage, &sharer) || sharer != gradient->sharer) {
        return sharer == gradient->sharer;
    }
    return storage_map_add(&variant->sharers, storage, index) == SHOAL_OK; /* it has room */
}

/* A gradient is there that was not, or the other way round, or lies in memory in another way; NULL: all are as they were. */
static const struct gradient *find_other_gradient(struct variant *variant, shoal_tensor *const *inputs)
{
    storage_map_clear(&variant->sharers);
    for (size_t i = 0; i < variant->n_gradients; i++) {
        if (!has_like(&variant->gradients[i], inputs) || !shares_alike(variant, i, inputs)) {
            return &variant->gradients[i];
        }
    }
    return NULL;
}

/* What is frozen and thawed: for the padded shard of a parameter, the shard. */
static bool needs_gradient(const struct captured_input *bound)
{
    const shoal_tensor *tensor = bound->source ? bound->source : bound->tensor;
    return tensor && shoal_requires_grad(tensor); /* a gradient is not bound */
}

/* A tensor that the step uses was frozen or thawed; n_inputs: none was. */
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
        if (variant->n_given == n_inputs && find_other_input(variant, inputs, n_inputs) == n_inputs &&
            find_frozen(variant) == variant->n_inputs && !find_other_gradient(variant, inputs) &&
            captured_is_current(variant->graph->captured)) {
            return variant;
        }
    }
    return NULL;
}

/* Why the variant that ran last does not do. */
static void write_reason(struct shoal_compiled *compiled, shoal_tensor *const *inputs, size_t n_inputs)
{
    char now[TENSOR_TEXT_BYTES];
    char before[LAYOUT_TEXT_BYTES];
    struct variant *last = compiled->current;
    if (!last) {
        (void)snprintf(compiled->reason, sizeof compiled->reason, "the first run");
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
    } else if (find_frozen(last) < last->n_inputs) {
        const struct captured_input *bound = &last->graph->captured->inputs[find_frozen(last)];
        const char *name = shoal_tensor_name(bound->source ? bound->source : bound->tensor);
        (void)snprintf(compiled->reason, sizeof compiled->reason, "%s %s a gradient now",
                       name[0] ? name : "a tensor", needs_gradient(bound) ? "requires" : "does not require");
    } else if (!find_other_gradient(last, inputs)) {
        (void)snprintf(compiled->reason, sizeof compiled->reason,
                       "a parameter was frozen or thawed, or a setting of a module is another one");
    } else {
        const struct gradient *gradient = find_other_gradient(last, inputs);
        const shoal_tensor *leaf = leaf_of_run(gradient, inputs);
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

struct pass_list {
    shoal_graph *graph;
    const shoal_pass_options *options;
    shoal_pass_report report;
};

static shoal_status run_pass(void *context, const char *name, size_t bytes)
{
    struct pass_list *list = context;
    char word[128];
    const char *words[] = {word};
    if (bytes >= sizeof word) {
        return error_set(SHOAL_ERR_INVALID, "a name of %zu characters is no pass", bytes);
    }
    memcpy(word, name, bytes);
    word[bytes] = '\0';
    return shoal_graph_run_passes(list->graph, words, 1, list->options, &list->report);
}

static shoal_status run_passes(struct shoal_compiled *compiled, struct variant *variant)
{
    struct pass_list list = {
        .graph = variant->graph, .options = &compiled->pass_options, .report = SHOAL_PASS_REPORT_INIT};
    TRY(shoal_graph_remove_dead(variant->graph, NULL));
    TRY(pass_each_name(compiled->passes, run_pass, &list));
    variant->report.n_buckets = list.report.n_buckets;
    return SHOAL_OK;
}

static shoal_status note_shapes(struct variant *variant, shoal_tensor *const *inputs, size_t n_inputs)
{
    variant->shapes = mem_alloc_zeroed(n_inputs + 1, sizeof variant->shapes[0]);
    if (!variant->shapes) {
        return SHOAL_ERR_NO_MEMORY;
    }
    variant->n_given = n_inputs;
    for (size_t i = 0; i < n_inputs; i++) {
        variant->shapes[i] = (struct shape){.dtype = inputs[i]->dtype,
                                            .layout = inputs[i]->layout,
                                            .requires_grad = shoal_requires_grad(inputs[i])};
    }
    return SHOAL_OK;
}

static void note_before(struct gradient *gradient, const shoal_tensor *before)
{
    gradient->had_gradient = true;
    gradient->dtype = before->dtype;
    gradient->layout = before->layout;
    gradient->bytes = before->storage->bytes;
}

static void note_whole(struct gradient *gradient, const struct captured *captured)
{
    if (gradient->input != SIZE_MAX) {
        const shoal_tensor *whole = captured->inputs[gradient->input].tensor;
        gradient->whole_dtype = whole->dtype;
        gradient->whole_layout = whole->layout;
    }
}

/* Which placeholders the gradients are that the step reads or adds to. */
static shoal_status find_gradients(struct variant *variant, const struct captured *captured,
                                   struct storage_map *inputs)
{
    for (size_t i = 0; i < captured->n_inputs; i++) {
        size_t other;
        const shoal_tensor *tensor = captured->inputs[i].tensor;
        if (tensor && !storage_map_get(inputs, tensor->storage, &other)) {
            TRY(storage_map_add(inputs, tensor->storage, i));
        }
    }
    for (size_t i = 0; i < captured->n_leaves; i++) {
        const struct captured_leaf *leaf = &captured->leaves[i];
        struct gradient *gradient = &variant->gradients[variant->n_gradients++];
        *gradient = (struct gradient){.leaf = leaf->leaf,
                                      .given = leaf->given,
                                      .input = SIZE_MAX,
                                      .sharer = i,
                                      .output = leaf->output,
                                      .is_added_to = leaf->is_added_to,
                                      .is_averaged = leaf->is_averaged};
        if (leaf->gradient) {
            struct storage *storage = leaf->gradient->storage;
            note_before(gradient, leaf->gradient);
            if (storage_map_get(inputs, storage, &gradient->input) &&
                !storage_map_get(&variant->sharers, storage, &gradient->sharer)) {
                TRY(storage_map_add(&variant->sharers, storage, i));
            }
            note_whole(gradient, captured);
        }
        gradient->is_kept = leaf->is_added_to && gradient->input == SIZE_MAX;
    }
    return SHOAL_OK;
}

/* Gradients are those of the run: the memory of those that were there when the step was captured is not kept. */
static void forget_gradients(struct variant *variant, struct captured *captured)
{
    size_t n_parts = 0;
    for (size_t i = 0; i < captured->n_parts; i++) {
        size_t gradient;
        if (storage_map_get(&variant->sharers, captured->parts[i].tensor->storage, &gradient)) {
            shoal_tensor_unref(captured->parts[i].tensor);
        } else {
            captured->parts[n_parts++] = captured->parts[i];
        }
    }
    captured->n_parts = n_parts;
    for (size_t i = 0; i < variant->n_gradients; i++) {
        struct gradient *gradient = &variant->gradients[i];
        if (gradient->input != SIZE_MAX && gradient->sharer == i) {
            shoal_tensor_unref(captured->inputs[gradient->input].tensor);
            captured->inputs[gradient->input].tensor = NULL;
            variant->inputs[gradient->input] = NULL;
        }
        shoal_tensor_unref(captured->leaves[i].gradient);
        captured->leaves[i].gradient = NULL;
    }
}

/* Room for the inputs and outputs of a run, with those that stay the same. */
static shoal_status make_lists(struct variant *variant)
{
    struct captured *captured = variant->graph->captured;
    struct storage_map inputs = {.count = 0};
    variant->n_inputs = captured->n_inputs;
    variant->n_outputs = captured->n_step_outputs + captured->n_output_leaves;
    variant->inputs = mem_alloc_zeroed(variant->n_inputs + 1, sizeof variant->inputs[0]);
    variant->outputs = mem_alloc_zeroed(variant->n_outputs + 1, sizeof variant->outputs[0]);
    variant->gradients = mem_alloc_zeroed(captured->n_leaves + 1, sizeof variant->gradients[0]);
    variant->needs_gradient = mem_alloc_zeroed(variant->n_inputs + 1, sizeof variant->needs_gradient[0]);
    if (!variant->inputs || !variant->outputs || !variant->gradients || !variant->needs_gradient) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < variant->n_inputs; i++) {
        variant->inputs[i] = captured->inputs[i].tensor;
        variant->needs_gradient[i] = needs_gradient(&captured->inputs[i]);
    }
    shoal_status status = find_gradients(variant, captured, &inputs);
    if (status == SHOAL_OK) {
        forget_gradients(variant, captured);
    }
    storage_map_free(&inputs);
    return status;
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
    }
    return SHOAL_OK;
}

static shoal_status compile(struct shoal_compiled *compiled, struct variant *variant,
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
    TRY(shoal_plan_create(variant->graph, compiled->world, &compiled->options, &variant->plan));
    report->lower_ns = (uint64_t)(clock_now_ns() - begin);
    return SHOAL_OK;
}

/* A free place among the variants. */
static struct variant *take_place(struct shoal_compiled *compiled)
{
    if (compiled->n_variants < MAX_VARIANTS) {
        return &compiled->variants[compiled->n_variants];
    }
    struct variant *oldest = &compiled->variants[0];
    for (size_t i = 1; i < compiled->n_variants; i++) {
        oldest = compiled->variants[i].last_use < oldest->last_use ? &compiled->variants[i] : oldest;
    }
    if (oldest == compiled->current) {
        compiled->current = NULL;
    }
    free_variant(oldest);
    *oldest = compiled->variants[--compiled->n_variants];
    if (compiled->current == &compiled->variants[compiled->n_variants]) {
        compiled->current = oldest;
    }
    return &compiled->variants[compiled->n_variants];
}

static shoal_status compile_variant(struct shoal_compiled *compiled, shoal_tensor *const *inputs,
                                    size_t n_inputs, struct variant **variant_out)
{
    struct variant made = {.graph = NULL};
    write_reason(compiled, inputs, n_inputs);
    LOG(SHOAL_LOG_INFO, "compile: capturing the step: %s", compiled->reason);
    shoal_status status = compile(compiled, &made, inputs, n_inputs);
    if (status != SHOAL_OK) {
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

static shoal_status capture_again(struct shoal_compiled *compiled, const struct variant *variant,
                                  shoal_tensor *const *inputs, size_t n_inputs)
{
    shoal_graph *graph;
    char *text = NULL;
    TRY(shoal_capture(compiled->step, compiled->context, inputs, n_inputs, compiled->n_outputs, &graph));
    shoal_status status = compile_text(graph, &text);
    if (status == SHOAL_OK) {
        status = compile_compare(variant->captured, text);
    }
    mem_free(text);
    shoal_graph_free(graph);
    return status;
}

/* Running ---------------------------------------------------------------------------------------------------- */

static void let_go_of_gradients(struct variant *variant)
{
    for (size_t i = 0; i < variant->n_gradients; i++) {
        shoal_tensor_unref(variant->gradients[i].whole);
        variant->gradients[i].whole = NULL;
    }
}

static shoal_status set_inputs(struct variant *variant, shoal_tensor *const *inputs)
{
    for (size_t i = 0; i < variant->n_given; i++) {
        variant->inputs[i] = inputs[i];
    }
    for (size_t i = 0; i < variant->n_gradients; i++) {
        struct gradient *gradient = &variant->gradients[i];
        if (gradient->input != SIZE_MAX) {
            TRY(tensor_create_view_as(shoal_grad(leaf_of_run(gradient, inputs)), gradient->whole_dtype,
                                      &gradient->whole_layout, &gradient->whole));
            variant->inputs[gradient->input] = gradient->whole;
        }
    }
    return captured_wait_for_sources(variant->graph, variant->inputs, variant->n_inputs);
}

/* A leaf shares the plan's tensor: a step that has run once allocates nothing. */
static void set_gradient(const struct variant *variant, const struct gradient *gradient, shoal_tensor *leaf)
{
    if (gradient->output != SIZE_MAX) {
        leaf_put_back_gradient(leaf, shoal_tensor_ref(variant->outputs[gradient->output]));
    } else if (!gradient->is_added_to) {
        leaf_put_back_gradient(leaf, NULL); /* the step removes it */
    }
    if (shoal_grad(leaf) && !gradient->is_kept) {
        shoal_grad(leaf)->is_averaged = gradient->is_averaged;
    }
}

static void set_gradients(const struct variant *variant, shoal_tensor *const *inputs)
{
    for (size_t i = 0; i < variant->n_gradients; i++) {
        const struct gradient *gradient = &variant->gradients[i];
        set_gradient(variant, gradient, leaf_of_run(gradient, inputs));
    }
}

static shoal_status run(struct shoal_compiled *compiled, shoal_tensor *const *inputs, size_t n_inputs,
                        shoal_tensor **outputs)
{
    struct variant *variant = find_variant(compiled, inputs, n_inputs);
    if (!variant) {
        TRY(compile_variant(compiled, inputs, n_inputs, &variant));
    } else if (variant->captured) {
        TRY(capture_again(compiled, variant, inputs, n_inputs));
    }
    compiled->current = variant;
    variant->last_use = ++compiled->n_runs;
    shoal_status status = set_inputs(variant, inputs);
    if (status == SHOAL_OK) {
        status = shoal_plan_run(variant->plan, variant->inputs, variant->n_inputs, variant->outputs,
                                variant->n_outputs);
    }
    let_go_of_gradients(variant);
    TRY(status);
    set_gradients(variant, inputs);
    for (size_t i = 0; i < compiled->n_outputs; i++) {
        outputs[i] = variant->outputs[i];
    }
    for (size_t i = compiled->n_outputs; i < variant->n_outputs; i++) {
        shoal_tensor_unref(variant->outputs[i]);
    }
    return SHOAL_OK;
}

/* As shoal_capture demands of the inputs of the first run. */
static shoal_status check_input(shoal_tensor *const *inputs, size_t index)
{
    if (!shoal_is_leaf(inputs[index])) {
        return error_set(SHOAL_ERR_INVALID, "input %zu is a result of recorded operations; detach it", index);
    }
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
        return error_set(SHOAL_ERR_INVALID, "room for %zu outputs, but the step gives %zu", n_outputs,
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

shoal_status shoal_compiled_run(shoal_compiled *compiled, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    error_clear();
    if (!compiled) {
        return error_set(SHOAL_ERR_INVALID, "compiled_run: compiled is NULL");
    }
    shoal_status status = check_lists(compiled, inputs, n_inputs, outputs, n_outputs);
    if (status == SHOAL_OK && compiled->is_running) {
        status = error_set(SHOAL_ERR_STATE, "the step runs itself");
    }
    if (status == SHOAL_OK) {
        compiled->is_running = true;
        status = run(compiled, inputs, n_inputs, outputs);
        compiled->is_running = false;
    }
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

shoal_status shoal_compile(shoal_world *world, shoal_step_function step, void *context, size_t n_outputs,
                           const shoal_compile_options *options, shoal_compiled **compiled_out)
{
    error_clear();
    if (!step || !compiled_out) {
        return error_set(SHOAL_ERR_INVALID, "compile: %s is NULL", step ? "compiled_out" : "step");
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
    *compiled_out = compiled;
    return SHOAL_OK;
}

void shoal_compiled_free(shoal_compiled *compiled)
{
    if (!compiled) {
        return;
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
