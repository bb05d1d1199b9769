/* SPDX-License-Identifier: MIT */
/*
 * Scopes: a stack per thread. Only the owning thread touches a scope and writes the `owner` fields of the tensors in
 * it, so the scope itself needs no atomics. Ending a scope drops references and never waits.
 */
#include "tensor/scope.h"

#include <stdalign.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/try.h"
#include "tensor/tensor.h"

struct scope_block {
    struct scope_block *next;
    alignas(max_align_t) char data[];
};

static _Thread_local struct scope *innermost;

/* While a callback runs: the scope that was innermost when it began, and that it must not end. */
static _Thread_local struct scope *callback_floor;

struct scope *scope_current(void)
{
    return innermost;
}

size_t scope_depth(void)
{
    size_t depth = 0;
    for (const struct scope *scope = innermost; scope; scope = scope->parent) {
        depth++;
    }
    return depth;
}

shoal_status shoal_scope_begin(void)
{
    error_clear();
    struct scope *scope = mem_alloc(sizeof(*scope));
    if (!scope) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *scope = (struct scope){.parent = innermost,
                            .tracer = innermost ? innermost->tracer : NULL,
                            .has_grad = innermost ? innermost->has_grad : true,
                            .status = SHOAL_OK};
    innermost = scope;
    block_keep_spares();
    return SHOAL_OK;
}

static void set_owner(shoal_tensor *tensor, struct scope *scope)
{
    /* Relaxed: pairs with the load in tensor_is_owned_by, which trusts only values of its own thread. */
    atomic_store_explicit(&tensor->owner, scope, memory_order_relaxed);
}

/* An asynchronous failure that nobody has looked at would otherwise end with the scope, unseen. */
static void look_for_failed_writes(struct scope *scope)
{
    for (size_t i = 0; i < scope->n_tensors && scope->status == SHOAL_OK; i++) {
        if (scope->tensors[i]) {
            shoal_status status = tensor_peek_failure(scope->tensors[i]);
            if (status != SHOAL_OK) {
                (void)scope_fail(status);
            }
        }
    }
}

/* Releases what a scope owns, and the scope, which is no longer on the stack. */
static void free_scope(struct scope *scope)
{
    /* Newest first: views before what they look at, which is kinder to allocators. */
    for (size_t i = scope->n_tensors; i > 0; i--) {
        shoal_tensor *tensor = scope->tensors[i - 1];
        if (tensor) {
            set_owner(tensor, NULL);
            shoal_tensor_unref(tensor);
        }
    }
    while (scope->blocks) {
        struct scope_block *block = scope->blocks;
        scope->blocks = block->next;
        mem_free(block);
    }
    mem_free(scope->tensors);
    mem_free(scope);
    if (!innermost) {
        block_free_spares();
    }
}

shoal_status shoal_scope_end(void)
{
    struct scope *scope = innermost;
    if (!scope) {
        return error_set(SHOAL_ERR_STATE, "scope_end: no scope is open on this thread");
    }
    if (scope == callback_floor) {
        return error_set(SHOAL_ERR_STATE, "scope_end: the innermost scope was not opened by this callback");
    }
    look_for_failed_writes(scope);
    innermost = scope->parent;
    shoal_status status = scope->status;
    if (status != SHOAL_OK) {
        (void)error_set(status, "%s", scope->text);
    }
    free_scope(scope);
    return status;
}

struct scope_callback scope_callback_begin(void)
{
    struct scope_callback callback = {.scope = innermost, .floor = callback_floor};
    callback_floor = innermost;
    error_clear();
    return callback;
}

shoal_status scope_callback_end(struct scope_callback callback, const char *what, shoal_status status)
{
    bool is_left_open = innermost != callback.scope;
    while (innermost != callback.scope) {
        struct scope *scope = innermost;
        innermost = scope->parent;
        free_scope(scope);
    }
    callback_floor = callback.floor;
    if (status == SHOAL_OK) {
        return is_left_open ? error_set(SHOAL_ERR_STATE, "%s left a scope open", what) : SHOAL_OK;
    }
    if (!status_is_known(status)) {
        return error_set(SHOAL_ERR_INVALID, "%s returned %d, which is no status", what, (int)status);
    }
    return shoal_error_text()[0] ? status
                                 : error_set(status, "%s returned %s", what, shoal_status_name(status));
}

shoal_status shoal_scope_error(void)
{
    struct scope *scope = innermost;
    if (!scope || scope->status == SHOAL_OK) {
        return SHOAL_OK;
    }
    return error_set(scope->status, "%s", scope->text);
}

shoal_status scope_enter(void)
{
    struct scope *scope = innermost;
    if (!scope) {
        return error_set(SHOAL_ERR_STATE, "no scope is open on this thread (shoal_scope_begin)");
    }
    return scope->status == SHOAL_OK ? SHOAL_OK : shoal_scope_error();
}

shoal_status scope_fail(shoal_status status)
{
    struct scope *scope = innermost;
    if (scope && scope->status == SHOAL_OK) {
        scope->status = status;
        const char *text = shoal_error_text();
        size_t bytes = strnlen(text, sizeof(scope->text) - 1);
        memcpy(scope->text, text, bytes);
        scope->text[bytes] = '\0';
    }
    return status;
}

shoal_status scope_reserve(struct scope *scope, size_t n)
{
    return mem_grow((void **)&scope->tensors, &scope->capacity, scope->n_tensors + scope->n_promised + n,
                    sizeof(scope->tensors[0]));
}

static void append(struct scope *scope, shoal_tensor *tensor)
{
    set_owner(tensor, scope);
    tensor->owner_index = scope->n_tensors;
    scope->tensors[scope->n_tensors++] = tensor;
}

shoal_tensor *scope_adopt(shoal_tensor *tensor)
{
    struct scope *scope = innermost;
    shoal_status status = scope_reserve(scope, 1);
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
        shoal_tensor_unref(tensor);
        return NULL;
    }
    append(scope, tensor);
    return tensor;
}

shoal_tensor *shoal_scope_keep(shoal_tensor *tensor)
{
    if (scope_enter() != SHOAL_OK) {
        return NULL;
    }
    struct scope *scope = innermost;
    if (!tensor) {
        (void)scope_fail(error_set(SHOAL_ERR_INVALID, "scope_keep: tensor is NULL"));
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
    append(scope->parent, tensor);
    return tensor;
}

void *scope_alloc(struct scope *scope, size_t bytes)
{
    size_t total;
    if (__builtin_add_overflow(bytes, sizeof(struct scope_block), &total)) {
        (void)error_set(SHOAL_ERR_NO_MEMORY, "%zu bytes are more than can be addressed", bytes);
        return NULL;
    }
    struct scope_block *block = mem_alloc(total);
    if (!block) {
        return NULL;
    }
    block->next = scope->blocks;
    scope->blocks = block;
    return block->data;
}

shoal_status shoal_scope_set_grad(bool is_enabled)
{
    error_clear();
    if (!innermost) {
        return error_set(SHOAL_ERR_STATE, "scope_set_grad: no scope is open on this thread");
    }
    innermost->has_grad = is_enabled;
    return SHOAL_OK;
}

bool shoal_scope_has_grad(void)
{
    return !innermost || innermost->has_grad;
}
