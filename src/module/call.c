/* SPDX-License-Identifier: MIT */
/*
 * One call of a module:
 *
 *   caller's scope open? lists as declared?
 *        |
 *   scope of the call   pre-forward hooks -> forward -> post-forward hooks -> outputs to the caller's scope
 *        |              whatever of these fails: the hooks for that
 *   end of that scope   intermediate tensors die; an error goes on, with the module's name in front
 *
 * Calls that run inside each other on a thread form a stack, so that an error can say where in the caller's tree a
 * module was: "mlp: layers.0 (linear): matmul: ...".
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/label.h"
#include "base/trace.h"
#include "base/try.h"
#include "module/guard.h"
#include "module/hook_list.h"
#include "module/module.h"
#include "module/walk.h"
#include "shoal/autograd.h"
#include "tensor/handle.h"
#include "tensor/scope.h"

struct running {
    struct running *caller; /* the call inside which this one was made, on this thread */
    shoal_module *module;
    /* For the trace: where the search for the next module that it calls begins, among its children and in a list. */
    size_t next_child;
    size_t next_in_list;
};

static _Thread_local struct running *innermost;

/* What is called: the forward function, or another one of the module. */
struct callee {
    shoal_module_forward function;
    size_t n_outputs;
};

/* Inside the scope ------------------------------------------------------------------------------------- */

static shoal_status run_forward(const shoal_forward_call *call, shoal_module_forward function)
{
    struct scope *scope = scope_current();
    bool has_grad = scope->has_grad;
    struct scope_callback callback = scope_callback_begin();
    shoal_status status = scope_callback_end(
        callback, "the forward function",
        function(call->module, call->inputs, call->n_inputs, call->outputs, call->n_outputs));
    scope->has_grad = has_grad;
    TRY(shoal_scope_error());
    return status;
}

static shoal_status check_outputs(const shoal_forward_call *call)
{
    for (size_t i = 0; i < call->n_outputs; i++) {
        if (!call->outputs[i]) {
            return error_set(SHOAL_ERR_INVALID, "the forward function did not set output %zu", i);
        }
    }
    return SHOAL_OK;
}

/* Gives the outputs to the caller's scope, all or none: room for all is made first. */
static shoal_status hand_over(const shoal_forward_call *call, shoal_tensor **outputs_out)
{
    TRY(scope_reserve(scope_current()->parent, call->n_outputs));
    for (size_t i = 0; i < call->n_outputs; i++) {
        outputs_out[i] = shoal_scope_keep(call->outputs[i]);
    }
    return SHOAL_OK;
}

static shoal_status run_parts(const shoal_forward_call *call, const struct callee *callee,
                              uint64_t n_hooks_ever, shoal_tensor **outputs_out)
{
    TRY(module_guard_call(call));
    TRY(module_run_hooks(call->module, PRE_FORWARD, n_hooks_ever, call));
    TRY(run_forward(call, callee->function));
    TRY(check_outputs(call));
    TRY(module_run_hooks(call->module, POST_FORWARD, n_hooks_ever, call));
    return hand_over(call, outputs_out);
}

static shoal_status run_all(shoal_module *module, const struct callee *callee, shoal_tensor *const *inputs,
                            size_t n_inputs, shoal_tensor **outputs_out)
{
    size_t n_outputs = callee->n_outputs;
    uint64_t n_hooks_ever = module->n_hooks_ever;
    shoal_tensor **lists = scope_alloc(scope_current(), (n_inputs + n_outputs) * sizeof(lists[0]));
    if (!lists) {
        return SHOAL_ERR_NO_MEMORY;
    }
    const shoal_forward_call call = {.struct_size = sizeof call,
                                     .module = module,
                                     .inputs = lists,
                                     .n_inputs = n_inputs,
                                     .outputs = lists + n_inputs,
                                     .n_outputs = n_outputs,
                                     .is_recompute = shoal_in_backward()};
    for (size_t i = 0; i < n_inputs; i++) {
        call.inputs[i] = inputs[i];
    }
    for (size_t i = 0; i < n_outputs; i++) {
        call.outputs[i] = NULL;
    }
    shoal_status status = run_parts(&call, callee, n_hooks_ever, outputs_out);
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
        module_run_failure_hooks(module, n_hooks_ever, &call);
    }
    return status;
}

static shoal_status run_in_scope(shoal_module *module, const struct callee *callee,
                                 shoal_tensor *const *inputs, size_t n_inputs, shoal_tensor **outputs_out)
{
    TRY(shoal_scope_begin());
    shoal_status status = run_all(module, callee, inputs, n_inputs, outputs_out);
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
    }
    return shoal_scope_end();
}

/* Around it -------------------------------------------------------------------------------------------- */

/* Puts the module's path in its caller, or else its type, in front of the text. */
static shoal_status name_failure(const shoal_module *module, shoal_status status)
{
    char text[ERROR_TEXT_BYTES];
    char path[SHOAL_MAX_MODULE_NAME + 1];
    (void)snprintf(text, sizeof(text), "%s", shoal_error_text());
    bool is_found = innermost && walk_path_of(innermost->module, module, path, sizeof(path));
    (void)error_set(status, "%s", text);
    return is_found && path[0] ? error_prefix(status, "%s (%s)", path, module->type)
                               : error_prefix(status, "%s", module->type);
}

/* Looks for the module among the children of another, beginning with child *next, and sets *next to the child after it.
   Returns false if it is not a child. */
static bool find_child(const shoal_module *parent, const shoal_module *module, size_t *next, size_t *at_out)
{
    const struct slot_list *children = &parent->lists[SLOT_CHILD];
    for (size_t i = 0; i < children->n_slots; i++) {
        size_t at = (*next + i) % children->n_slots;
        if (children->slots[at].child == module) {
            *next = at + 1;
            *at_out = at;
            return true;
        }
    }
    return false;
}

/*
 * Writes the name of a child of the running module, or of a child's child, such as "h.3": blocks are in lists, which
 * are not called themselves. It is "" if the module is neither. The search is short, because children are mostly called
 * in order and few modules have more than one list.
 */
static void name_child(struct running *caller, const shoal_module *module, char *name, size_t bytes)
{
    const struct slot_list *children = &caller->module->lists[SLOT_CHILD];
    size_t at = 0;
    name[0] = '\0';
    if (find_child(caller->module, module, &caller->next_child, &at)) {
        (void)snprintf(name, bytes, "%s", children->slots[at].name);
        return;
    }
    for (size_t i = 0; i < children->n_slots; i++) {
        const shoal_module *list = children->slots[i].child;
        if (find_child(list, module, &caller->next_in_list, &at)) {
            (void)snprintf(name, bytes, "%s.%s", children->slots[i].name,
                           list->lists[SLOT_CHILD].slots[at].name);
            return;
        }
    }
}

/* "h.3 (block)" inside its caller, otherwise the type. */
static void trace_call(uint64_t begin_ticks, const shoal_module *module)
{
    char text[LABEL_MAX_CHARS + 1];
    char name[81] = "";
    if (innermost) {
        name_child(innermost, module, name, sizeof name);
    }
    if (name[0]) {
        (void)snprintf(text, sizeof text, "%s (%.40s)", name, module->type);
    }
    trace_end(begin_ticks, TRACE_MODULE, name[0] ? text : module->type);
}

static shoal_status run_call(shoal_module *module, const struct callee *callee, shoal_tensor *const *inputs,
                             size_t n_inputs, shoal_tensor **outputs_out)
{
    struct running running = {.caller = innermost, .module = shoal_module_ref(module)};
    /* Relaxed: only whether it is zero matters, and only to the thread that may change the module. */
    atomic_fetch_add_explicit(&module->n_running, 1, memory_order_relaxed);
    module_note_read(module);
    innermost = &running;
    uint64_t begin_ticks = trace_begin();
    shoal_status status = run_in_scope(module, callee, inputs, n_inputs, outputs_out);
    innermost = running.caller;
    if (begin_ticks != 0) {
        trace_call(begin_ticks, module);
    }
    if (status != SHOAL_OK) {
        (void)scope_fail(name_failure(module, status));
    }
    if (atomic_fetch_sub_explicit(&module->n_running, 1, memory_order_relaxed) == 1 &&
        module->has_removed_hooks) {
        module_hooks_drop_removed(module);
    }
    shoal_module_unref(module);
    return status;
}

static shoal_status check_lists(const char *call, const shoal_module *module, shoal_tensor *const *inputs,
                                size_t n_inputs, shoal_tensor **outputs_out)
{
    if (!module || (!inputs && n_inputs > 0) || !outputs_out) {
        return error_set(SHOAL_ERR_INVALID, "%s: %s is NULL", call,
                         !module       ? "module"
                         : outputs_out ? "inputs"
                                       : "outputs_out");
    }
    shoal_status status = handle_check_list("input", inputs, n_inputs);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", call);
}

static shoal_status check_call(const shoal_module *module, size_t n_inputs, size_t n_outputs)
{
    const shoal_module_definition *definition = &module->definition;
    if (!definition->forward) {
        return error_set(SHOAL_ERR_STATE, "module_call: %s is a container: it has no forward function",
                         module->type);
    }
    if (definition->n_inputs > 0 && n_inputs != definition->n_inputs) {
        return error_set(SHOAL_ERR_INVALID, "module_call: n_inputs is %zu, but %s takes %zu inputs", n_inputs,
                         module->type, definition->n_inputs);
    }
    if (n_outputs != definition->n_outputs) {
        return error_set(SHOAL_ERR_INVALID, "module_call: n_outputs is %zu, but %s has %zu outputs",
                         n_outputs, module->type, definition->n_outputs);
    }
    return SHOAL_OK;
}

static shoal_status check_function(shoal_module_forward function, size_t n_outputs)
{
    if (!function || n_outputs == 0) {
        return error_set(SHOAL_ERR_INVALID, "module_call_function: %s",
                         function ? "n_outputs is 0" : "function is NULL");
    }
    return SHOAL_OK;
}

static shoal_status enter_call(const char *name)
{
    error_clear();
    shoal_status status = scope_enter();
    if (status != SHOAL_OK && !scope_current()) {
        (void)error_prefix(status, "%s", name);
    }
    return status;
}

static shoal_status leave_call(shoal_status status, shoal_tensor **outputs_out, size_t n_outputs)
{
    for (size_t i = 0; status != SHOAL_OK && outputs_out && i < n_outputs; i++) {
        outputs_out[i] = NULL;
    }
    return status;
}

shoal_status shoal_module_call(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs_out, size_t n_outputs)
{
    shoal_status status = enter_call("module_call");
    if (status == SHOAL_OK) {
        status = check_lists("module_call", module, inputs, n_inputs, outputs_out);
        status = status == SHOAL_OK ? check_call(module, n_inputs, n_outputs) : status;
        if (status == SHOAL_OK) {
            struct callee callee = {.function = module->definition.forward, .n_outputs = n_outputs};
            status = run_call(module, &callee, inputs, n_inputs, outputs_out);
        } else {
            status = scope_fail(status);
        }
    }
    return leave_call(status, outputs_out, n_outputs);
}

shoal_status shoal_module_call_function(shoal_module *module, shoal_module_forward function,
                                        shoal_tensor *const *inputs, size_t n_inputs,
                                        shoal_tensor **outputs_out, size_t n_outputs)
{
    shoal_status status = enter_call("module_call_function");
    if (status == SHOAL_OK) {
        status = check_lists("module_call_function", module, inputs, n_inputs, outputs_out);
        status = status == SHOAL_OK ? check_function(function, n_outputs) : status;
        if (status == SHOAL_OK) {
            struct callee callee = {.function = function, .n_outputs = n_outputs};
            status = run_call(module, &callee, inputs, n_inputs, outputs_out);
        } else {
            status = scope_fail(status);
        }
    }
    return leave_call(status, outputs_out, n_outputs);
}

shoal_tensor *shoal_module_call_one(shoal_module *module, shoal_tensor *input)
{
    shoal_tensor *output = NULL;
    (void)shoal_module_call(module, &input, 1, &output, 1);
    return output;
}
