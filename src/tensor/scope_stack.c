/* SPDX-License-Identifier: MIT */
#include "tensor/scope_stack.h"

#include <stdalign.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"

struct scope_block {
    struct scope_block *next;
    alignas(max_align_t) char data[];
};

static _Thread_local struct scope *innermost;

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

void scope_push(struct scope *scope)
{
    scope->parent = innermost;
    innermost = scope;
}

struct scope *scope_pop(void)
{
    struct scope *scope = innermost;
    innermost = scope->parent;
    return scope;
}

/* Errors ----------------------------------------------------------------------------------------------- */

shoal_status shoal_scope_error(void)
{
    struct scope *scope = innermost;
    if (!scope || scope->status == SHOAL_OK) {
        return SHOAL_OK;
    }
    return error_set(scope->status, "%s", scope->text);
}

shoal_status scope_fail_null(const char *call, const char *argument)
{
    shoal_status status = shoal_scope_error();
    return status == SHOAL_OK ? error_prefix(error_null(argument), "%s", call) : status;
}

shoal_status shoal_fail_null(const char *call, const char *argument)
{
    return scope_fail_null(call, argument);
}

shoal_status scope_enter(void)
{
    struct scope *scope = innermost;
    if (!scope) {
        shoal_status status =
            error_set(SHOAL_ERR_STATE, "no scope is open on this thread (shoal_scope_begin)");
        error_mark_reason();
        return status;
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

shoal_status shoal_scope_fail(shoal_status status)
{
    shoal_status failed =
        status == SHOAL_OK ? error_set(SHOAL_ERR_INTERNAL, "scope_fail: the status is SHOAL_OK") : status;
    shoal_status present = shoal_scope_error();
    return present == SHOAL_OK ? scope_fail(failed) : present;
}

shoal_status scope_reserve(struct scope *scope, size_t n)
{
    return mem_grow((void **)&scope->tensors, &scope->capacity, scope->n_tensors + scope->n_promised + n,
                    sizeof(scope->tensors[0]));
}

/* Arrays ----------------------------------------------------------------------------------------------- */

void *scope_alloc(struct scope *scope, size_t bytes)
{
    size_t total;
    if (bytes <= sizeof(scope->room) - scope->n_room) {
        void *array = (char *)scope->room + scope->n_room;
        scope->n_room += (bytes + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1);
        return array;
    }
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

void scope_free_arrays(struct scope *scope)
{
    while (scope->blocks) {
        struct scope_block *block = scope->blocks;
        scope->blocks = block->next;
        mem_free(block);
    }
    scope->n_room = 0;
}

/* Gradients -------------------------------------------------------------------------------------------- */

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

bool scope_will_record(void)
{
    return !innermost || innermost->has_grad || innermost->runs_again;
}
