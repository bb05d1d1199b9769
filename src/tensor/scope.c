/* SPDX-License-Identifier: MIT */
/*
 * Scopes: a stack per thread. Only the owning thread touches a scope and writes the `owner` fields of the tensors in
 * it, so the scope itself needs no atomics. Ending a scope drops references and never waits.
 */
#include "tensor/scope.h"

#include "base/mem.h"
#include "base/status.h"
#include "base/try.h"
#include "tensor/handle.h"
#include "tensor/block.h"
#include "tensor/tensor.h"

/* While a callback runs: the scope that was innermost when it began, and that it must not end. */
static _Thread_local struct scope *callback_floor;

void scope_open(struct scope *scope)
{
    const struct scope *around = scope_current();
    /* Field by field: to clear the text and the room would take longer than all the rest. */
    scope->tensors = NULL;
    scope->n_tensors = 0;
    scope->n_promised = 0;
    scope->capacity = 0;
    scope->blocks = NULL;
    scope->tracer = around ? around->tracer : NULL;
    scope->has_grad = around ? around->has_grad : true;
    scope->runs_again = around && around->runs_again;
    scope->status = SHOAL_OK;
    scope->text[0] = '\0';
    scope->n_room = 0;
    scope_push(scope);
    block_keep_spares();
}

/* A scope of shoal_scope_begin. Each recorded op and each call of a module has one, for a short time. */
struct allocated {
    struct block block; /* first: the block's address is the allocation's */
    struct scope scope;
};
_Static_assert(sizeof(struct allocated) <= BLOCK_REUSABLE_BYTES, "scopes are allocated as reusable blocks");

shoal_status shoal_scope_begin(void)
{
    error_clear();
    struct allocated *allocated = (struct allocated *)block_create(sizeof *allocated);
    if (!allocated) {
        return SHOAL_ERR_NO_MEMORY;
    }
    atomic_init(&allocated->block.objects, 1);
    scope_open(&allocated->scope);
    return SHOAL_OK;
}

static void set_owner(shoal_tensor *tensor, struct scope *scope)
{
    /* Relaxed: pairs with the load in tensor_is_owned_by, which trusts only values of its own thread. */
    atomic_store_explicit(&tensor->owner, scope, memory_order_relaxed);
}

/* Without this, a failure of work in flight that nothing has waited for would be lost with the scope. */
static void look_for_failed_writes(struct scope *scope)
{
    for (size_t i = 0; i < scope->n_tensors && scope->status == SHOAL_OK; i++) {
        if (handle_is_alive(scope->tensors[i])) {
            shoal_status status = tensor_peek_failure(scope->tensors[i]);
            if (status != SHOAL_OK) {
                (void)scope_fail(status);
            }
        }
    }
}

/* Releases what a scope owns. */
static void release_contents(struct scope *scope)
{
    /* Newest first, as allocators like it: views before the tensors under them. */
    for (size_t i = scope->n_tensors; i > 0; i--) {
        shoal_tensor *tensor = scope->tensors[i - 1];
        if (tensor && !handle_is_dead(tensor)) {
            set_owner(tensor, NULL);
            handle_unref(tensor, HANDLE_SCOPE_ENDED);
        }
    }
    scope->n_tensors = 0;
    scope_free_arrays(scope);
}

/* For a scope that is no longer on the stack. */
static void free_contents(struct scope *scope)
{
    release_contents(scope);
    mem_free(scope->tensors);
    if (!scope_current()) {
        block_free_spares();
    }
}

static void free_scope(struct scope *scope)
{
    free_contents(scope);
    block_free(&((struct allocated *)((char *)scope - offsetof(struct allocated, scope)))->block, scope);
}

void scope_empty(struct scope *scope)
{
    release_contents(scope);
    scope->status = SHOAL_OK;
}

void scope_close(struct scope *scope)
{
    (void)scope_pop();
    free_contents(scope);
}

shoal_status shoal_scope_end(void)
{
    struct scope *scope = scope_current();
    if (!scope) {
        return error_set(SHOAL_ERR_STATE, "scope_end: no scope is open on this thread");
    }
    if (scope == callback_floor) {
        return error_set(SHOAL_ERR_STATE, "scope_end: the innermost scope was not opened by this callback");
    }
    look_for_failed_writes(scope);
    (void)scope_pop();
    shoal_status status = scope->status;
    if (status != SHOAL_OK) {
        (void)error_set(status, "%s", scope->text);
    }
    free_scope(scope);
    return status;
}

struct scope_callback scope_callback_begin(void)
{
    struct scope_callback callback = {.scope = scope_current(), .floor = callback_floor};
    callback_floor = callback.scope;
    error_clear();
    return callback;
}

shoal_status scope_callback_end(struct scope_callback callback, const char *what, shoal_status status)
{
    bool is_left_open = scope_current() != callback.scope;
    while (scope_current() != callback.scope) {
        free_scope(scope_pop());
    }
    callback_floor = callback.floor;
    if (status == SHOAL_OK) {
        return is_left_open ? error_set(SHOAL_ERR_STATE, "%s left a scope open", what) : SHOAL_OK;
    }
    if (!status_is_known(status)) {
        return error_set(SHOAL_ERR_INVALID, "%s returned %d, which is not a status", what, (int)status);
    }
    return shoal_error_text()[0] ? status
                                 : error_set(status, "%s returned %s", what, shoal_status_name(status));
}

void scope_append(struct scope *scope, shoal_tensor *tensor)
{
    set_owner(tensor, scope);
    tensor->owner_index = scope->n_tensors;
    scope->tensors[scope->n_tensors++] = tensor;
}

shoal_tensor *scope_adopt(shoal_tensor *tensor)
{
    struct scope *scope = scope_current();
    shoal_status status = scope_reserve(scope, 1);
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
        shoal_tensor_unref(tensor);
        return NULL;
    }
    scope_append(scope, tensor);
    return tensor;
}

shoal_tensor *shoal_scope_keep(shoal_tensor *tensor)
{
    if (scope_enter() != SHOAL_OK) {
        return NULL;
    }
    struct scope *scope = scope_current();
    if (!tensor) {
        (void)scope_fail(error_set(SHOAL_ERR_INVALID, "scope_keep: tensor is NULL"));
        return NULL;
    }
    if (!handle_is_alive(tensor)) {
        return NULL;
    }
    if (!tensor_is_owned_by(tensor, scope)) {
        return tensor;
    }
    if (!scope->parent) {
        (void)scope_fail(error_set(SHOAL_ERR_STATE,
                                   "scope_keep: the innermost scope has no parent; use shoal_tensor_ref"));
        return NULL;
    }
    shoal_status status = scope_reserve(scope->parent, 1);
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
        return NULL;
    }
    scope->tensors[tensor->owner_index] = NULL;
    scope_append(scope->parent, tensor);
    return tensor;
}
