/* SPDX-License-Identifier: MIT */
/*
 * The scope stack of a thread. A scope owns tensors (one reference each, scope.h), arrays handed to callers, and the
 * first error; it also says whether operations record gradients and who traces them.
 */
#ifndef TENSOR_SCOPE_STACK_H
#define TENSOR_SCOPE_STACK_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "shoal/scope.h"

struct op_tracer; /* op/tracer.h */

struct scope_block;

struct scope {
    struct scope *parent;
    shoal_tensor **tensors; /* growable; a slot is NULL after its tensor was kept elsewhere */
    size_t n_tensors;
    size_t n_promised; /* places kept for the results of ops that run now, whatever their kernels make */
    size_t capacity;
    struct scope_block *blocks; /* arrays given to callers */
    struct op_tracer *tracer;   /* NULL: none; inherited */
    bool has_grad;              /* inherited */
    shoal_status status;        /* the first error; SHOAL_OK: none */
    char text[ERROR_TEXT_BYTES];
};

/* The innermost scope of this thread, or NULL. */
struct scope *scope_current(void);
/* How many there are. */
size_t scope_depth(void);

/*
 * On entry of every call that returns a tensor: SHOAL_ERR_STATE with no scope open, the scope's error when it
 * holds one (its text becomes the thread's).
 */
shoal_status scope_enter(void);

/* Remembers `status` and the thread's error text if it is the scope's first; returns `status`. */
shoal_status scope_fail(shoal_status status);

/* A tensor that a call needs is NULL: SHOAL_ERR_INVALID, or, where the innermost scope holds an error, that one with
   its text, because the NULL is what the failed call returned. */
shoal_status scope_fail_null(const char *call, const char *argument);

/* Room for `n` more tensors, so that as many scope_adopt calls cannot fail. */
shoal_status scope_reserve(struct scope *scope, size_t n);

/* Memory that lives as long as the innermost scope; NULL on failure. */
void *scope_alloc(struct scope *scope, size_t bytes);

/* For scope.c: a new innermost scope, and taking the innermost one, which there is, off the stack. */
void scope_push(struct scope *scope);
struct scope *scope_pop(void);
void scope_free_arrays(struct scope *scope);

#endif
