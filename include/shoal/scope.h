/* SPDX-License-Identifier: MIT */
/*
 * Scopes own the tensors that calls return, and remember the first error, so that a chain of calls needs one check, at
 * its end. Open one around each training step. Scopes nest. A call that returns a tensor needs an open scope on the
 * calling thread.
 *
 *     shoal_status status = shoal_scope_begin();
 *     if (status == SHOAL_OK) {
 *         shoal_tensor *x = shoal_full((int64_t[]){4}, 1, 2.5, SHOAL_F32);
 *         shoal_tensor *y = shoal_mul(x, shoal_add(x, x));
 *         const float *values = shoal_data(y);         NULL if a call above has failed
 *         ...
 *         status = shoal_scope_end();
 *     }
 *
 * Ownership: a tensor belongs to the scope that was innermost when it was made, and is freed when that scope ends. To
 * keep it longer, hand it to the parent scope (shoal_scope_keep) or add a reference (shoal_tensor_ref). Using it after
 * its scope has ended is undefined; with SHOAL_DEBUG_HANDLES=10000 in the environment, it is an error that names the
 * tensor, for the last 10000 tensors that ended.
 * Threads: a scope belongs to the thread that opened it. A thread ends its scopes before it exits; otherwise what they
 * own is never freed.
 * Errors: calls that return a tensor leave their error in the innermost scope. From then on every such call in that
 * scope returns NULL at once, and shoal_scope_end returns the error. Calls that return a status (shoal_backward,
 * shoal_set_grad, ...) return their error and leave the scope alone. An error stays in its scope: neither the parent
 * nor a scope that is opened inside has it.
 */
#ifndef SHOAL_SCOPE_H
#define SHOAL_SCOPE_H

#include <stdbool.h>

#include "shoal/api.h"
#include "shoal/status.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_tensor shoal_tensor;

/* Opens a scope inside the innermost one of this thread. It inherits whether gradients are recorded. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_scope_begin(void);

/*
 * Ends the innermost scope, frees what it owns, and returns its first error, whose text is in shoal_error_text. If it
 * has none, but an operation that writes one of its tensors has already failed, that error is returned. Never waits:
 * operations in flight keep the memory that they use. SHOAL_ERR_STATE: no scope is open; or a hook, kernel or other
 * function that the library called would end a scope that it did not open itself.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_scope_end(void);

/* The first error of the innermost scope, which stays open; its text is in shoal_error_text. SHOAL_OK
   without a scope. */
SHOAL_API shoal_status shoal_scope_error(void);

/*
 * Leaves an error in the innermost scope, with the thread's error text as its text, and returns the error that the
 * scope holds: an earlier one stays. For functions of other libraries that return tensors: call shoal_fail
 * (shoal/op.h), then this with its status, then return NULL. SHOAL_OK counts as SHOAL_ERR_INTERNAL. Without a scope it
 * returns the status.
 */
SHOAL_API shoal_status shoal_scope_fail(shoal_status status);

/*
 * For a call of another library that was given NULL instead of a tensor or a module. The NULL probably is the result of
 * a call that failed. So if the innermost scope has an error, it returns that, with its text. Otherwise it sets the
 * text and returns SHOAL_ERR_INVALID: "CALL: REASON" if the last call of this thread found no such parameter, buffer or
 * child or no open scope, else "CALL: ARGUMENT is NULL". Leaves the scope alone.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_fail_null(const char *call, const char *argument);

/*
 * Hands a tensor that the innermost scope owns to its parent scope, and returns it. Call it for the result of a
 * function that has a scope of its own. A tensor that the innermost scope does not own is returned as it is. NULL, with
 * the error in the scope: the tensor is NULL (SHOAL_ERR_INVALID), or there is no parent (SHOAL_ERR_STATE; use
 * shoal_tensor_ref).
 */
SHOAL_API shoal_tensor *shoal_scope_keep(shoal_tensor *tensor);

/* Turns the recording of gradients on or off, for calls in the innermost scope and in scopes that are opened inside it
   from now on. Turn it off to evaluate a model. In the first run of a function by shoal_recompute it is off already:
   turning it off there, or back to what it was, changes nothing. SHOAL_ERR_STATE: no scope is open. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_scope_set_grad(bool is_enabled);

/* Whether calls record gradients now. True unless it was turned off, also without a scope. */
SHOAL_API bool shoal_scope_has_grad(void);

SHOAL_END_DECLS

#endif
