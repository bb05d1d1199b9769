/* SPDX-License-Identifier: MIT */
/*
 * The scope stack of a thread. A scope owns tensors (one reference each), arrays handed to callers, and the
 * first error; it also says whether operations record gradients and who traces them.
 */
#ifndef TENSOR_SCOPE_H
#define TENSOR_SCOPE_H

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

/* Gives the caller's reference to the innermost scope, which must exist. On failure the tensor is gone, the
   error is in the scope, and the result is NULL. */
shoal_tensor *scope_adopt(shoal_tensor *tensor);

/* Room for `n` more tensors, so that as many scope_adopt calls cannot fail. */
shoal_status scope_reserve(struct scope *scope, size_t n);

/*
 * Around a call of a function that is not ours (a hook, a kernel of a registered op): it can not end scopes that it
 * did not open, and those it leaves open are ended for it.
 */
struct scope_callback {
    struct scope *scope; /* the innermost one when it began */
    struct scope *floor; /* of the callback around this one */
};

struct scope_callback scope_callback_begin(void);

/*
 * `status` is what the function returned, `what` says which it was ("the kernel"). Returns the status to go on with:
 * a failure always has a text, a number that is no status is one, and so is a scope left open.
 */
shoal_status scope_callback_end(struct scope_callback callback, const char *what, shoal_status status);

/* Memory that lives as long as the innermost scope; NULL on failure. */
void *scope_alloc(struct scope *scope, size_t bytes);

#endif
