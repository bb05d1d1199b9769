/* SPDX-License-Identifier: MIT */
/*
 * The scope stack of a thread. A scope owns tensors (one reference each, scope.h), arrays that calls have returned, and
 * the first error. It also has the settings: whether ops are recorded for gradients, and the tracer.
 */
#ifndef TENSOR_SCOPE_STACK_H
#define TENSOR_SCOPE_STACK_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "shoal/scope.h"

struct op_tracer; /* op/tracer.h */

struct scope_block;

/* Most arrays of a scope are lists of a few tensors. */
#define SCOPE_ROOM_BYTES 192

struct scope {
    struct scope *parent;
    shoal_tensor **tensors; /* growable; a slot is NULL after its tensor was kept elsewhere */
    size_t n_tensors;
    size_t n_promised; /* places reserved for results of running ops, whose kernels may call ops */
    size_t capacity;
    struct scope_block *blocks; /* arrays given to callers, where they have no place in the room */
    struct op_tracer *tracer;   /* NULL if there is none; inherited */
    bool has_grad;              /* inherited */
    /* What runs here will run again with gradients on. Inherited; shoal_scope_set_grad does not change it. */
    bool runs_again;
    shoal_status status; /* the first error; SHOAL_OK: none */
    char text[ERROR_TEXT_BYTES];
    size_t n_room; /* bytes of the room that arrays have */
    max_align_t room[SCOPE_ROOM_BYTES / sizeof(max_align_t)];
};

/* The innermost scope of this thread, or NULL. */
struct scope *scope_current(void);
/* Whether what runs now is recorded, or will be when it runs again in the backward pass (autograd/recompute.c). */
bool scope_will_record(void);
/* How many scopes are open on this thread. */
size_t scope_depth(void);

/*
 * Every call that returns a tensor begins with this. SHOAL_ERR_STATE if no scope is open; if the innermost scope has an
 * error, returns that, and its text becomes the thread's.
 */
shoal_status scope_enter(void);

/* Keeps `status` and the thread's error text in the innermost scope if it is its first error; returns `status`. */
shoal_status scope_fail(shoal_status status);

/* For a call that was given NULL instead of a tensor or a module: shoal_fail_null (shoal/scope.h). Call it before
   error_clear. */
shoal_status scope_fail_null(const char *call, const char *argument);

/* Makes room for `n` more tensors, so that as many calls of scope_adopt or scope_append cannot fail. */
shoal_status scope_reserve(struct scope *scope, size_t n);

/* Allocates memory that lives as long as the scope; NULL on failure. */
void *scope_alloc(struct scope *scope, size_t bytes);

/* For scope.c: puts a scope on the stack, and takes off the innermost one, which must exist. */
void scope_push(struct scope *scope);
struct scope *scope_pop(void);
void scope_free_arrays(struct scope *scope);

#endif
