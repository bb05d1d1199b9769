/* SPDX-License-Identifier: MIT */
/* Captures a step. graph/capture/capture.h describes how. */
#include "graph/capture/capture.h"

#include <stdatomic.h>
#include <stdio.h>

#include "autograd/hooks.h"
#include "autograd/leaf.h"
#include "base/callback.h"
#include "base/changes.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "shoal/compile.h"
#include "tensor/handle.h"
#include "tensor/scope.h"

static struct capture *capture_of(struct op_tracer *tracer)
{
    return (struct capture *)tracer;
}

/* Calls ------------------------------------------------------------------------------------------------ */

static shoal_status add_call(struct capture *capture, const shoal_op *op, const shoal_value *arguments,
                             const shoal_arg *args, const shoal_value *result)
{
    struct shoal_node *node = NULL;
    bool is_list = result->kind == SHOAL_VALUE_TENSORS;
    size_t count = is_list ? result->count : 1;
    shoal_tensor *const *tensors = is_list ? result->as.tensors : &result->as.tensor;
    TRY(shoal_graph_call(capture->graph, op, args, op->n_params, NULL, &node));
    for (size_t i = 0; i < count; i++) {
        TRY(capture_add_result(capture, tensors[i], (struct capture_given){.node = node, .index = i}));
    }
    capture_note_wait(capture, op, arguments, args);
    return capture_note_start(capture, op, arguments, node, result);
}

/* Looks up the nodes of arguments before the call, because an in-place call changes what they are. */
static shoal_status trace_call(struct op_tracer *tracer, const shoal_op *op, const shoal_value *arguments,
                               shoal_value *result_out)
{
    struct capture *capture = capture_of(tracer);
    shoal_arg args[OP_MAX_PARAMS];
    shoal_value result = {.kind = SHOAL_VALUE_NONE};
    bool is_waited = false;
    TRY(capture_wait_whole(capture, op, arguments, &is_waited));
    if (is_waited) {
        return op_trace(op, arguments, result_out);
    }
    TRY(capture_settle_arguments(capture, op, arguments));
    TRY(op_is_in_place(op) ? capture_check_written(capture, op, arguments)
                           : capture_check_received(capture, op, arguments));
    TRY(capture_make_args(capture, op, arguments, args));
    TRY(op_trace(op, arguments, &result));
    shoal_status status = op_is_in_place(op) ? capture_add_write(capture, op, arguments, args, &result)
                                             : add_call(capture, op, arguments, args, &result);
    if (status != SHOAL_OK) {
        capture->lost = status; /* the capture fails, even if the step ignores this error */
        return status;
    }
    *result_out = result;
    return SHOAL_OK;
}

/* Calls of layers below (struct op_capture) ------------------------------------------------------------- */

static shoal_status add_input(struct op_tracer *tracer, shoal_tensor *tensor, shoal_tensor *source,
                              const char *name)
{
    struct capture *capture = capture_of(tracer);
    struct capture_storage *storage = NULL;
    TRY(capture_find_storage(capture, tensor, name, &storage));
    if (storage->origin != CAPTURE_INPUT) {
        return error_set(SHOAL_ERR_INTERNAL, "%s cannot be an input: it was computed", name);
    }
    struct captured_input *input = &capture->graph->captured->inputs[storage->input];
    if (source && capture_has_written(capture, source->storage)) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "parameter %s is written and then gathered in one captured step, which is supported "
                         "only where all shards have the same size",
                         name); /* the graph has two inputs for the same memory, and no order between them */
    }
    if (source && !input->source) {
        input->source = shoal_tensor_ref(source);
    }
    return SHOAL_OK;
}

static shoal_status name_tensor(struct op_tracer *tracer, const shoal_tensor *tensor, const char *name)
{
    return capture_note_name(capture_of(tracer), tensor, name);
}

/* The base of a storage must be contiguous. */
static shoal_status make_contiguous(struct capture *capture, struct shoal_node **node)
{
    if ((*node)->values[0]->is_contiguous) {
        return SHOAL_OK;
    }
    const shoal_arg arg = {.kind = SHOAL_ARG_NODE, .as.node = *node};
    return shoal_graph_call(capture->graph, op_get(OP_contiguous), &arg, 1, NULL, node);
}

/* The storage holds nothing from now on. If the capture does not know it, no call has used it, and none can. */
static shoal_status release(struct capture *capture, const shoal_tensor *target)
{
    struct capture_storage *storage = capture_known_storage(capture, target->storage);
    if (storage) {
        storage->origin = CAPTURE_RELEASED;
    }
    return SHOAL_OK;
}

static shoal_status rebind(struct op_tracer *tracer, shoal_tensor *target, shoal_tensor *value)
{
    struct capture *capture = capture_of(tracer);
    struct shoal_node *node = NULL;
    if (!value) {
        return release(capture, target);
    }
    const struct layout *a = &target->layout;
    const struct layout *b = &value->layout;
    if (target->dtype != value->dtype || !layout_is_same_shape(a->n_dims, a->shape, b->n_dims, b->shape) ||
        !capture_is_whole(target)) {
        return error_set(SHOAL_ERR_INTERNAL, "%s cannot hold the value", shoal_tensor_name(target));
    }
    TRY(capture_settle(capture, value, /*is_written=*/false));
    TRY(capture_find_node(capture, value, &node));
    TRY(make_contiguous(capture, &node));
    struct capture_storage *storage = capture_known_storage(capture, target->storage);
    if (!storage) {
        TRY(capture_note_memory(capture, target->storage));
        TRY(capture_add_storage(capture, target->storage, CAPTURE_REBOUND, NULL, &storage));
    }
    storage->origin = CAPTURE_REBOUND;
    TRY(capture_begin_epoch(capture, target, (struct capture_given){.node = node}));
    capture_known_storage(capture, target->storage)->is_shared = true;
    capture_known_storage(capture, value->storage)->is_shared = true;
    return SHOAL_OK;
}

/* Names the placeholder of a gradient that is about to be added to after its leaf: "w_grad". */
static shoal_status name_gradient(struct capture *capture, shoal_tensor *leaf, shoal_tensor *gradient)
{
    char name[128];
    struct capture_storage *storage = NULL;
    if (!gradient->storage->memory || capture_known_storage(capture, gradient->storage)) {
        return SHOAL_OK;
    }
    const char *of = capture_name_of(capture, leaf);
    (void)snprintf(name, sizeof name, "%.100s%sgrad", of, of[0] ? "_" : "");
    return capture_find_storage(capture, gradient, name, &storage);
}

static shoal_status note_leaf(struct op_tracer *tracer, shoal_tensor *leaf)
{
    struct capture *capture = capture_of(tracer);
    size_t n_leaves = capture->n_leaves;
    TRY(capture_note_leaf(capture, leaf));
    bool is_new = capture->n_leaves > n_leaves && capture->leaves[n_leaves].before;
    return is_new ? name_gradient(capture, leaf, capture->leaves[n_leaves].before) : SHOAL_OK;
}

static shoal_status note_asked(struct op_tracer *tracer, shoal_tensor *tensor)
{
    return capture_note_asked(capture_of(tracer), tensor);
}

static shoal_status set_unit(struct op_tracer *tracer, const char *unit)
{
    struct shoal_graph *graph = capture_of(tracer)->graph;
    const char *copy = unit ? arena_string(&graph->arena, unit) : NULL;
    if (unit && !copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    graph->unit = copy;
    return SHOAL_OK;
}

static shoal_status depend(struct op_tracer *tracer, struct op_dependence *dependence)
{
    struct captured *captured = capture_of(tracer)->graph->captured;
    for (size_t i = captured->n_dependences; i > 0; i--) { /* mostly the one that was noted last */
        if (captured->dependences[i - 1].dependence == dependence) {
            return SHOAL_OK;
        }
    }
    TRY(mem_grow((void **)&captured->dependences, &captured->dependence_capacity, captured->n_dependences + 1,
                 sizeof(captured->dependences[0])));
    captured->dependences[captured->n_dependences++] =
        (struct captured_dependence){.dependence = op_dependence_ref(dependence)};
    return SHOAL_OK;
}

static shoal_status label(struct op_tracer *tracer, const struct shoal_group *group, const char *text)
{
    struct captured *captured = capture_of(tracer)->graph->captured;
    TRY(mem_grow((void **)&captured->labels, &captured->label_capacity, captured->n_labels + 1,
                 sizeof(captured->labels[0])));
    char *copy = mem_copy_string(text);
    if (!copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    captured->labels[captured->n_labels++] = (struct captured_label){.group = group, .text = copy};
    return SHOAL_OK;
}

static shoal_status after_run(struct op_tracer *tracer, const struct op_run_end *end)
{
    struct captured *captured = capture_of(tracer)->graph->captured;
    TRY(mem_grow((void **)&captured->run_ends, &captured->run_end_capacity, captured->n_run_ends + 1,
                 sizeof(captured->run_ends[0])));
    captured->run_ends[captured->n_run_ends++] = *end;
    return SHOAL_OK;
}

static shoal_status at_end(struct op_tracer *tracer, void (*restore)(void *context), void *context)
{
    return capture_at_end(capture_of(tracer), restore, context);
}

static void note_failure(struct op_tracer *tracer, shoal_status status)
{
    struct capture *capture = capture_of(tracer);
    if (capture->failed == SHOAL_OK) {
        capture->failed = status;
        (void)snprintf(capture->failed_text, sizeof capture->failed_text, "%s", shoal_error_text());
    }
}

static void refuse(struct op_tracer *tracer, shoal_status status)
{
    struct capture *capture = capture_of(tracer);
    if (capture->refused == SHOAL_OK) {
        capture->refused = status;
        (void)snprintf(capture->refused_text, sizeof capture->refused_text, "%s", shoal_error_text());
    }
}

static const struct op_capture capture_calls = {.add_input = add_input,
                                                .name_tensor = name_tensor,
                                                .rebind = rebind,
                                                .note_leaf = note_leaf,
                                                .note_asked = note_asked,
                                                .set_unit = set_unit,
                                                .depend = depend,
                                                .label = label,
                                                .note_failure = note_failure,
                                                .refuse = refuse,
                                                .after_run = after_run,
                                                .at_end = at_end};

/* Inputs ----------------------------------------------------------------------------------------------- */

static shoal_status check_input(struct capture *capture, size_t index)
{
    const shoal_tensor *input = capture->inputs[index];
    if (!input) {
        return error_set(SHOAL_ERR_INVALID, "input %zu is NULL", index);
    }
    if (!shoal_is_leaf(input)) {
        return error_set(SHOAL_ERR_INVALID, "input %zu is a result of recorded operations; detach it", index);
    }
    TRY(captured_check_hooks(index, input));
    const struct capture_storage *other = capture_known_storage(capture, input->storage);
    return other ? error_set(SHOAL_ERR_INVALID, "inputs %zu and %zu share memory", other->input, index)
                 : SHOAL_OK;
}

/* Makes the stand-in a leaf with the gradient of the caller's leaf. */
static shoal_status make_leaf(const shoal_tensor *input, shoal_tensor *stand_in)
{
    TRY(leaf_create(stand_in));
    return leaf_keep_gradient(leaf_of(stand_in), leaf_of(input)->gradient);
}

/* Makes the stand-in that the step gets for an input, and its placeholder. */
static shoal_status add_stand_in(struct capture *capture, size_t index)
{
    shoal_tensor *input = capture->inputs[index];
    struct capture_storage *storage = NULL;
    struct shoal_node *node = NULL;
    const char *name = shoal_tensor_name(input);
    TRY(check_input(capture, index));
    TRY(capture_add_storage(capture, input->storage, CAPTURE_GIVEN, NULL, &storage));
    storage->input = index;
    TRY(tensor_create_traced(input->storage->device, input->dtype, input->layout.n_dims, input->layout.shape,
                             STORAGE_OF_STEP, &capture->stand_ins[index]));
    shoal_tensor *stand_in = capture->stand_ins[index];
    TRY(storage_set_name(stand_in->storage, name));
    if (leaf_of(input)) {
        TRY(make_leaf(input, stand_in));
    }
    TRY(capture_add_placeholder(capture, name[0] ? name : "input", stand_in, NULL, NULL, &node));
    return capture_add_storage(capture, stand_in->storage, CAPTURE_INPUT, node, &storage);
}

static shoal_status add_inputs(struct capture *capture)
{
    capture->stand_ins = mem_alloc_zeroed(capture->n_inputs + 1, sizeof(capture->stand_ins[0]));
    if (!capture->stand_ins) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < capture->n_inputs; i++) {
        TRY(add_stand_in(capture, i));
    }
    return SHOAL_OK;
}

/* Outputs ---------------------------------------------------------------------------------------------- */

/* Returns the index of the input whose stand-in the leaf is; CAPTURED_NONE if there is none. */
static size_t find_given(const struct capture *capture, const shoal_tensor *leaf)
{
    for (size_t i = 0; leaf->storage->traced_op == STORAGE_OF_STEP && i < capture->n_inputs; i++) {
        if (capture->stand_ins[i] == leaf) {
            return i;
        }
    }
    return CAPTURED_NONE;
}

/* Finds the node of an output. A constant is cloned: a step that is not captured makes a new tensor from the memory
   each time, so what the caller does with an output must not change the graph's constant. */
static shoal_status find_output(struct capture *capture, shoal_tensor *tensor, struct shoal_node **node_out)
{
    TRY(capture_find_node(capture, tensor, node_out));
    if (capture_known_storage(capture, tensor->storage)->origin != CAPTURE_CONSTANT) {
        return SHOAL_OK;
    }
    const shoal_arg arg = {.kind = SHOAL_ARG_NODE, .as.node = *node_out};
    return shoal_graph_call(capture->graph, op_get(OP_clone), &arg, 1, NULL, node_out);
}

/* Adds the new gradient of a leaf as the next output, or notes that its old gradient is written in place. The leaf is
   listed even if it has no gradient before and after the step, because a step that finds a gradient there needs another
   graph. */
static shoal_status add_gradient(struct capture *capture, const struct capture_leaf *noted, shoal_arg *items,
                                 size_t *n_items)
{
    struct captured *captured = capture->graph->captured;
    struct leaf *leaf = leaf_of(noted->leaf);
    shoal_tensor *gradient = leaf ? leaf->gradient : NULL;
    struct captured_leaf entry = {.given = find_given(capture, noted->leaf),
                                  .output = CAPTURED_NONE,
                                  .is_added_to = gradient && gradient == noted->before,
                                  .is_averaged = gradient && gradient->is_averaged};
    if (gradient && gradient != noted->before) {
        items[*n_items].kind = SHOAL_ARG_NODE;
        TRY(find_output(capture, gradient, &items[*n_items].as.node));
        entry.output = (*n_items)++;
    }
    shoal_tensor *own = entry.given == CAPTURED_NONE ? noted->leaf : capture->inputs[entry.given];
    shoal_tensor *before = own == noted->leaf ? noted->before : leaf_of(own)->gradient;
    entry.leaf = shoal_tensor_ref(own);
    entry.gradient = before ? shoal_tensor_ref(before) : NULL;
    if (entry.output != CAPTURED_NONE) {
        captured->output_leaves[captured->n_output_leaves++] = entry.leaf;
    }
    captured->leaves[captured->n_leaves++] = entry;
    return SHOAL_OK;
}

static shoal_status alloc_leaves(struct capture *capture)
{
    struct captured *captured = capture->graph->captured;
    captured->leaves = mem_alloc_zeroed(capture->n_leaves + 1, sizeof(captured->leaves[0]));
    captured->output_leaves = mem_alloc_zeroed(capture->n_leaves + 1, sizeof(captured->output_leaves[0]));
    return captured->leaves && captured->output_leaves ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

static shoal_status make_outputs(struct capture *capture, shoal_tensor *const *outputs, size_t n_outputs)
{
    struct captured *captured = capture->graph->captured;
    shoal_arg *items = scope_alloc(scope_current(), (n_outputs + capture->n_leaves) * sizeof(*items));
    if (!items) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(capture_settle_all(capture));
    TRY(alloc_leaves(capture));
    for (size_t i = 0; i < n_outputs; i++) {
        items[i].kind = outputs[i] ? SHOAL_ARG_NODE : SHOAL_ARG_NONE;
        shoal_status status = SHOAL_OK;
        if (outputs[i]) {
            status = handle_check(outputs[i]);
            status = status == SHOAL_OK ? find_output(capture, outputs[i], &items[i].as.node) : status;
        }
        if (status != SHOAL_OK) {
            return error_prefix(status, "output %zu", i);
        }
    }
    captured->n_step_outputs = n_outputs;
    size_t n_items = n_outputs;
    for (size_t i = 0; i < capture->n_leaves; i++) {
        TRY(add_gradient(capture, &capture->leaves[i], items, &n_items));
    }
    capture->graph->unit = NULL;
    TRY(capture_copy_back(capture));
    const shoal_arg arg = {.kind = SHOAL_ARG_LIST, .as.list = {.items = items, .count = n_items}};
    TRY(shoal_graph_output(capture->graph, &arg, NULL));
    capture_drop_unused(capture);
    return SHOAL_OK;
}

/* Running ---------------------------------------------------------------------------------------------- */

static shoal_status call_step(struct capture *capture, shoal_step_function step, void *context,
                              shoal_tensor **outputs, size_t n_outputs)
{
    struct scope_callback callback = scope_callback_begin();
    callback_forget_refusal();
    callback_enter_capture();
    shoal_status status = step(context, capture->stand_ins, capture->n_inputs, outputs, n_outputs);
    callback_leave_capture();
    if (status == SHOAL_ERR_STATE && shoal_error_text()[0] == '\0') {
        /* A later call that succeeded has cleared the text, here and below. */
        (void)callback_repeat_refusal("");
    }
    if (status != SHOAL_OK && status == capture->failed && shoal_error_text()[0] == '\0') {
        (void)error_set(status, "%s", capture->failed_text);
    }
    status = scope_callback_end(callback, "the step", status);
    return status == SHOAL_OK ? shoal_scope_error() : status;
}

/* Runs in the scope of the capture. */
static shoal_status run_step(struct capture *capture, shoal_step_function step, void *context,
                             size_t n_outputs)
{
    TRY(add_inputs(capture));
    shoal_tensor **outputs = scope_alloc(capture->scope, n_outputs * sizeof(outputs[0]));
    if (!outputs) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n_outputs; i++) {
        outputs[i] = NULL;
    }
    TRY(op_set_tracer(&capture->tracer));
    TRY(call_step(capture, step, context, outputs, n_outputs));
    TRY(callback_repeat_refusal("; the step did not return this error"));
    if (capture->refused != SHOAL_OK) {
        return error_set(capture->refused, "%s", capture->refused_text);
    }
    if (capture->lost != SHOAL_OK) {
        return error_set(capture->lost,
                         "an op of the step could not be captured, and the step did not return its error");
    }
    TRY(captured_check_run_ends(capture->graph->captured));
    return make_outputs(capture, outputs, n_outputs);
}

static shoal_status run_in_scope(struct capture *capture, shoal_step_function step, void *context,
                                 size_t n_outputs)
{
    TRY(shoal_scope_begin());
    capture->scope = scope_current();
    capture->scope->runs_again = false; /* the graph may also run elsewhere */
    shoal_status status = run_step(capture, step, context, n_outputs);
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
    }
    capture->scope->tracer = NULL;
    capture_undo(capture);
    return shoal_scope_end();
}

static shoal_status create_graph(shoal_graph **graph_out)
{
    TRY(shoal_graph_create(graph_out));
    (*graph_out)->captured = mem_alloc_zeroed(1, sizeof(struct captured));
    if (!(*graph_out)->captured) {
        shoal_graph_free(*graph_out);
        return SHOAL_ERR_NO_MEMORY;
    }
    return SHOAL_OK;
}

/* Notes the state of what the graph depends on. Call it after capture_undo, because the step may have changed
   settings. */
static void note_states(struct captured *captured)
{
    for (size_t i = 0; i < captured->n_dependences; i++) {
        captured->dependences[i].state = op_dependence_state(captured->dependences[i].dependence);
    }
    for (size_t i = 0; i < captured->n_leaves; i++) {
        captured->leaves[i].hooks = hooks_of_leaf(captured->leaves[i].leaf);
    }
    for (size_t i = 0; i < captured->n_parts; i++) {
        captured->parts[i].needs_gradient = captured->parts[i].tensor->history != NULL;
    }
    captured->looked = 0;
    (void)captured_is_current(captured); /* it is false if the step has frozen or thawed something for good */
}

static shoal_status run_capture(shoal_step_function step, void *context, shoal_tensor *const *inputs,
                                size_t n_inputs, size_t n_outputs, bool is_compiled, shoal_graph **graph_out)
{
    static _Atomic uint64_t n_captures;
    struct capture capture = {.tracer = {.call = trace_call,
                                         .capture = &capture_calls,
                                         .number = atomic_fetch_add(&n_captures, 1) + 1,
                                         .latest_change = changes_latest(),
                                         .is_compiled = is_compiled,
                                         .oldest_record = node_next_number()},
                              .inputs = inputs,
                              .n_inputs = n_inputs};
    TRY(create_graph(&capture.graph));
    shoal_status status = run_in_scope(&capture, step, context, n_outputs);
    if (status == SHOAL_OK) {
        note_states(capture.graph->captured);
        status = shoal_graph_lint(capture.graph);
    }
    for (size_t i = 0; capture.stand_ins && i < n_inputs; i++) {
        shoal_tensor_unref(capture.stand_ins[i]);
    }
    mem_free(capture.stand_ins);
    capture_free_values(&capture);
    if (status != SHOAL_OK) {
        shoal_graph_free(capture.graph);
        return status;
    }
    *graph_out = capture.graph;
    return SHOAL_OK;
}

static shoal_status check_call(shoal_step_function step, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_graph *const *graph_out)
{
    if (!step || !graph_out || (n_inputs > 0 && !inputs)) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL",
                         !step        ? "step"
                         : !graph_out ? "graph_out"
                                      : "inputs");
    }
    TRY(handle_check_list("input", inputs, n_inputs));
    return op_capture_running() ? error_set(SHOAL_ERR_STATE, "a step cannot be captured inside another one")
                                : SHOAL_OK;
}

static shoal_status capture(shoal_step_function step, void *context, shoal_tensor *const *inputs,
                            size_t n_inputs, size_t n_outputs, bool is_compiled, shoal_graph **graph_out)
{
    error_clear();
    shoal_status status = check_call(step, inputs, n_inputs, graph_out);
    if (status == SHOAL_OK) {
        status = run_capture(step, context, inputs, n_inputs, n_outputs, is_compiled, graph_out);
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "capture");
}

shoal_status capture_compiled(shoal_step_function step, void *context, shoal_tensor *const *inputs,
                              size_t n_inputs, size_t n_outputs, shoal_graph **graph_out)
{
    return capture(step, context, inputs, n_inputs, n_outputs, /*is_compiled=*/true, graph_out);
}

shoal_status shoal_capture(shoal_step_function step, void *context, shoal_tensor *const *inputs,
                           size_t n_inputs, size_t n_outputs, shoal_graph **graph_out)
{
    return capture(step, context, inputs, n_inputs, n_outputs, /*is_compiled=*/false, graph_out);
}

bool shoal_is_capturing(void)
{
    return callback_is_capturing();
}
