/* SPDX-License-Identifier: MIT */
/* The tensors that scopes own, and guards around functions of the program. */
#ifndef TENSOR_SCOPE_H
#define TENSOR_SCOPE_H

#include "tensor/scope_stack.h"

/* Gives the caller's reference to the innermost scope, which must exist. On failure the reference is dropped, the scope
   keeps the error, and the result is NULL. */
shoal_tensor *scope_adopt(shoal_tensor *tensor);

/* Gives the caller's reference to a scope of this thread that has room (scope_reserve): cannot fail. */
void scope_append(struct scope *scope, shoal_tensor *tensor);

/*
 * A scope in the caller's memory, for code that opens one often: opening and closing it allocates nothing. scope_empty
 * releases what the scope owns and clears its error, but leaves it open. The caller must check for errors in it.
 */
void scope_open(struct scope *scope);
void scope_empty(struct scope *scope);
void scope_close(struct scope *scope);

/*
 * Call these around a function of the program (a hook, a kernel of a registered op): it cannot end scopes that it did
 * not open, and scopes that it leaves open are ended.
 */
struct scope_callback {
    struct scope *scope; /* the innermost one when it began */
    struct scope *floor; /* of the callback around this one */
};

struct scope_callback scope_callback_begin(void);

/*
 * `status` is what the function returned; `what` names it ("the kernel"). Returns the status to go on with: a number
 * that is not a status becomes an error, and so does a scope that was left open. An error always has a text.
 */
shoal_status scope_callback_end(struct scope_callback callback, const char *what, shoal_status status);

#endif
