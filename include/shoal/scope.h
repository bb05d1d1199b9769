/* SPDX-License-Identifier: MIT */
/*
 * Scopes own the results of tensor calls and remember the first error, so that a chain of calls needs one
 * check at its end. A call that returns a tensor needs an open scope on the calling thread.
 *
 * Ownership: a result dies with the innermost scope of its birth, unless kept (parent scope) or referenced.
 * Threads: scopes belong to the thread that opened them.
 * Errors: there are two ways to hear of one. Calls that return a tensor leave it in the scope: once a scope holds
 * an error every such call in it returns NULL at once, and shoal_scope_end returns that error. Calls that return a
 * status (shoal_backward, shoal_set_grad, ...) return theirs and leave the scope alone. An error stays in its
 * scope: neither the parent nor a scope opened inside has it. Ending a scope never blocks: work in flight holds the
 * memory it needs. A tensor must not be used after its scope ended: with SHOAL_DEBUG_HANDLES=10000 in the environment,
 * using one of the last 10000 that ended is an error that names it, instead of undefined. A thread should end its
 * scopes before it exits: what they hold is lost otherwise.
 *
 *     shoal_status status = shoal_scope_begin();
 *     if (status == SHOAL_OK) {
 *         shoal_tensor *x = shoal_full((int64_t[]){4}, 1, 2.5, SHOAL_F32);
 *         shoal_tensor *y = shoal_mul(x, shoal_add(x, x));
 *         use(shoal_data(y));
 *         status = shoal_scope_end();
 *     }
 */
#ifndef SHOAL_SCOPE_H
#define SHOAL_SCOPE_H

#include <stdbool.h>

#include "shoal/api.h"
#include "shoal/status.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_tensor shoal_tensor;

/* Opens a scope inside the innermost one. Gradient mode and tracer are inherited. Threads: any. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_scope_begin(void);

/*
 * Closes the innermost scope (a hook or kernel: one that it opened itself), releases what it owns and returns its first
 * error, or else the error of an asynchronous write that already failed in one of its tensors. SHOAL_ERR_STATE when
 * none is open.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_scope_end(void);

/* The first error of the innermost scope, without closing it; its text is in shoal_error_text. */
SHOAL_API shoal_status shoal_scope_error(void);

/*
 * Leaves an error, with the text of shoal_fail (shoal/op.h), in the innermost scope, unless that holds one already, and
 * returns the error that the scope holds: for calls of other libraries that return tensors, before they return NULL. A
 * status of SHOAL_OK counts as SHOAL_ERR_INTERNAL. Without a scope it only returns the status.
 */
SHOAL_API shoal_status shoal_scope_fail(shoal_status status);

/*
 * Hands a tensor of the innermost scope to its parent and returns it. A tensor that the innermost scope
 * does not own is returned as it is. NULL, with the error in the scope, when there is no parent.
 */
SHOAL_API shoal_tensor *shoal_scope_keep(shoal_tensor *tensor);

/* Whether operations of the innermost scope, and of scopes opened inside it from now on, record gradients. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_scope_set_grad(bool is_enabled);

/* True without a scope too: gradients are recorded unless switched off. */
SHOAL_API bool shoal_scope_has_grad(void);

SHOAL_END_DECLS

#endif
