/* SPDX-License-Identifier: MIT */
/* The tensors that scopes own, and scopes around functions that are not ours. */
#ifndef TENSOR_SCOPE_H
#define TENSOR_SCOPE_H

#include "tensor/scope_stack.h"

/* Gives the caller's reference to the innermost scope, which must exist. On failure the tensor is gone, the
   error is in the scope, and the result is NULL. */
shoal_tensor *scope_adopt(shoal_tensor *tensor);

/* The same for a scope of this thread that has room (scope_reserve): cannot fail. */
void scope_append(struct scope *scope, shoal_tensor *tensor);

/*
 * A scope in the caller's memory, for those who begin one often: beginning and ending it allocates nothing. scope_empty
 * lets go what it owns, and its error; the scope stays open. The caller looks after errors in it.
 */
void scope_open(struct scope *scope);
void scope_empty(struct scope *scope);
void scope_close(struct scope *scope);

/*
 * Around a call of a function that is not ours (a hook, a kernel of a registered op): it cannot end scopes that it
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

#endif
