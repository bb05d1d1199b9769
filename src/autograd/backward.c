/* SPDX-License-Identifier: MIT */
/*
 * Starts and ends backward passes: roots and their gradients, the stack of passes that run inside each other on a
 * thread, and the hooks for the end. The walk itself is in walk.c.
 */
#include "autograd/backward.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>

#include "autograd/node.h"
#include "autograd/walk.h"
#include "base/callback.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/struct_size.h"
#include "base/trace.h"
#include "base/try.h"
#include "op/op.h"
#include "op/tracer.h"
#include "device/device.h"
#include "tensor/handle.h"
#include "tensor/scope.h"

struct end_hook {
    struct end_hook *next;
    shoal_end_hook function;
    void *context;
    hook_release release; /* NULL if nobody is to be told */
};

/* A backward pass that is running. */
struct run {
    struct run *parent; /* the pass inside which it was started, on this thread; NULL if there is none */
    uint64_t number;
    struct walk walk;
    struct end_hook *first_hook;
    struct end_hook *last_hook;
};

static _Thread_local struct run *innermost;
static _Atomic uint64_t n_runs; /* so far */

bool shoal_in_backward(void)
{
    return innermost != NULL;
}

/* The innermost pass that is not a part of another one. Returns NULL if none is running. */
static struct run *find_whole_run(void)
{
    struct run *run = innermost;
    while (run && run->walk.request->is_part) {
        run = run->parent;
    }
    return run;
}

uint64_t backward_number(void)
{
    const struct run *run = find_whole_run();
    return run ? run->number : 0;
}

/* The end ---------------------------------------------------------------------------------------------- */

shoal_status shoal_on_backward_end(shoal_end_hook hook, void *context)
{
    error_clear();
    if (!hook) {
        return error_set(SHOAL_ERR_INVALID, "on_backward_end: hook is NULL");
    }
    if (callback_is_capturing()) {
        return error_set(
            SHOAL_ERR_STATE,
            "on_backward_end: a compiled step cannot run the hook, which would run only once, when "
            "the step is captured: do its work after the step");
    }
    return backward_on_end(hook, context, NULL);
}

shoal_status backward_on_end(shoal_end_hook hook, void *context, hook_release release)
{
    struct run *run = find_whole_run();
    if (!run) {
        return error_set(SHOAL_ERR_STATE, "on_backward_end: no backward pass is running on this thread");
    }
    struct end_hook *entry = mem_alloc(sizeof(*entry));
    if (!entry) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *entry = (struct end_hook){.function = hook, .context = context, .release = release};
    if (run->last_hook) {
        run->last_hook->next = entry;
    } else {
        run->first_hook = entry;
    }
    run->last_hook = entry;
    return SHOAL_OK;
}

static struct end_hook take_end_hook(struct run *run)
{
    struct end_hook *entry = run->first_hook;
    struct end_hook hook = *entry;
    run->first_hook = entry->next;
    if (!run->first_hook) {
        run->last_hook = NULL;
    }
    mem_free(entry);
    return hook;
}

static void release_end_hook(const struct end_hook *hook)
{
    if (hook->release) {
        hook->release(hook->context);
    }
}

static shoal_status run_end_hook(const struct end_hook *hook)
{
    TRY(shoal_scope_set_grad(false));
    struct scope_callback callback = scope_callback_begin();
    return scope_callback_end(callback, "the hook", hook->function(hook->context));
}

/* Hooks that are added by these hooks are run, too. */
static shoal_status run_end_hooks(struct run *run)
{
    while (run->first_hook) {
        TRY(shoal_scope_begin());
        struct end_hook hook = take_end_hook(run);
        shoal_status status = run_end_hook(&hook);
        if (status != SHOAL_OK) {
            (void)scope_fail(status);
        }
        status = shoal_scope_end();
        release_end_hook(&hook);
        if (status != SHOAL_OK) {
            return error_prefix(status, "a hook for the end of the backward pass");
        }
    }
    return SHOAL_OK;
}

/* Roots ------------------------------------------------------------------------------------------------ */

static shoal_status check_root(const struct backward_request *request, size_t index)
{
    const shoal_tensor *root = request->roots[index];
    const shoal_tensor *gradient = request->gradients ? request->gradients[index] : NULL;
    if (root && handle_is_dead(root)) {
        return error_prefix(handle_fail(root), "root %zu", index);
    }
    if (gradient && handle_is_dead(gradient)) {
        return error_prefix(handle_fail(gradient), "the gradient of root %zu", index);
    }
    if (!root) {
        char what[32];
        (void)snprintf(what, sizeof(what), "root %zu", index);
        return error_null(what);
    }
    if (!root->history) {
        return error_set(SHOAL_ERR_STATE, "root %zu does not require a gradient", index);
    }
    shoal_status status = history_check_current(root);
    if (status != SHOAL_OK) {
        return error_prefix(status, "root %zu", index);
    }
    if (gradient) {
        struct saved_tensor look;
        saved_note(&look, root);
        status = saved_check_like(&look, gradient);
        return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "the gradient of root %zu", index);
    }
    if (root->count != 1) {
        char text[TENSOR_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID,
                         "root %zu is %s: a root of %" PRId64 " elements needs a gradient to start from",
                         index, tensor_format(text, root), root->count);
    }
    return SHOAL_OK;
}

static shoal_status check_request(const struct backward_request *request)
{
    if (!request->roots || request->n_roots == 0) {
        return error_set(SHOAL_ERR_INVALID, "%s", request->roots ? "there are no roots" : "roots is NULL");
    }
    for (size_t i = 0; i < request->n_roots; i++) {
        TRY(check_root(request, i));
    }
    return SHOAL_OK;
}

static shoal_status make_one(const shoal_tensor *root, shoal_tensor **one_out)
{
    shoal_value result;
    const shoal_value arguments[] = {
        {.kind = SHOAL_VALUE_INTS, .count = (size_t)root->layout.n_dims, .as.integers = root->layout.shape},
        {.kind = SHOAL_VALUE_FLOAT, .as.real = 1.0},
        {.kind = SHOAL_VALUE_DTYPE, .as.dtype = root->dtype},
        {.kind = SHOAL_VALUE_STRING, .as.string = device_name(root->storage->device)},
    };
    TRY(shoal_op_call(op_get(OP_full), arguments, sizeof(arguments) / sizeof(arguments[0]), &result));
    *one_out = result.as.tensor;
    return SHOAL_OK;
}

static shoal_status seed_all(struct run *run)
{
    const struct backward_request *request = run->walk.request;
    TRY(shoal_scope_set_grad(false));
    for (size_t i = 0; i < request->n_roots; i++) {
        shoal_tensor *gradient = request->gradients ? request->gradients[i] : NULL;
        if (!gradient) {
            TRY(make_one(request->roots[i], &gradient));
        }
        TRY(walk_seed(&run->walk, i, gradient));
    }
    return SHOAL_OK;
}

static shoal_status seed_in_scope(struct run *run)
{
    TRY(shoal_scope_begin());
    shoal_status status = seed_all(run);
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
    }
    return shoal_scope_end();
}

/* Running ---------------------------------------------------------------------------------------------- */

static shoal_status run_steps(struct run *run, bool *has_started)
{
    TRY(walk_collect(&run->walk));
    TRY(seed_in_scope(run));
    *has_started = true;
    TRY(walk_visit(&run->walk));
    return run_end_hooks(run);
}

shoal_status backward_run(const struct backward_request *request)
{
    bool has_started = false;
    TRY(check_request(request));
    struct run run = {.parent = innermost, .walk = {.request = request}};
    /* Relaxed: the number only has to be unique. */
    run.number = atomic_fetch_add_explicit(&n_runs, 1, memory_order_relaxed) + 1;
    innermost = &run;
    run.walk.number = backward_number();
    uint64_t begin_ticks = trace_begin();
    shoal_status status = run_steps(&run, &has_started);
    trace_end(begin_ticks, TRACE_BACKWARD, "backward");
    innermost = run.parent;
    while (run.first_hook) {
        struct end_hook hook = take_end_hook(&run);
        release_end_hook(&hook);
    }
    /* After a failure in the middle, a second try would add some gradients twice. */
    walk_end(&run.walk, has_started && status != SHOAL_OK && !request->keeps_graph);
    return status;
}

/* A root may be NULL, or have no single element, because an earlier call failed. Then that error is returned, without
   "backward" in front. */
static shoal_status check_forward(const struct backward_request *request)
{
    for (size_t i = 0; request->roots && i < request->n_roots; i++) {
        const shoal_tensor *root = request->roots[i];
        bool has_gradient = request->gradients && request->gradients[i];
        if (!root || (!has_gradient && root->count != 1)) {
            return shoal_scope_error();
        }
    }
    return SHOAL_OK;
}

/* Names the call in the error, which a capture keeps. */
static shoal_status finish(shoal_status status)
{
    struct op_tracer *tracer = op_capture_running();
    if (status == SHOAL_OK) {
        return SHOAL_OK;
    }
    status = error_prefix(status, "backward");
    if (tracer) {
        tracer->capture->note_failure(tracer, status);
    }
    return status;
}

shoal_status shoal_backward(shoal_tensor *root, shoal_tensor *gradient)
{
    const struct backward_request request = {.roots = &root, .gradients = &gradient, .n_roots = 1};
    if (root) {
        error_clear();
    }
    TRY(check_forward(&request));
    return finish(backward_run(&request));
}

static shoal_status read_options(const shoal_backward_options *options, bool *keeps_graph_out)
{
    *keeps_graph_out = false;
    if (!options) {
        return SHOAL_OK;
    }
    shoal_backward_options known;
    TRY(struct_size_read("options", options, sizeof(size_t) + sizeof(bool), &known, sizeof(known)));
    *keeps_graph_out = known.keeps_graph;
    return SHOAL_OK;
}

shoal_status shoal_backward_roots(shoal_tensor *const *roots, shoal_tensor *const *gradients, size_t n_roots,
                                  const shoal_backward_options *options)
{
    error_clear();
    struct backward_request request = {.roots = roots, .gradients = gradients, .n_roots = n_roots};
    TRY(check_forward(&request));
    shoal_status status = read_options(options, &request.keeps_graph);
    if (status == SHOAL_OK) {
        status = backward_run(&request);
    }
    return finish(status);
}
