/* SPDX-License-Identifier: MIT */
/*
 * Gradients. Operations on tensors that require a gradient are recorded as they run. shoal_backward walks this record
 * from the newest operation to the oldest, and adds to the gradients of the leaves: the tensors that no recorded
 * operation made, such as parameters.
 *
 *     shoal_tensor *w = shoal_full((int64_t[]){3}, 1, 2.0, SHOAL_F32);
 *     status = shoal_set_requires_grad(w, true);
 *     status = shoal_backward(shoal_sum(shoal_mul(w, w), NULL, 0, false), NULL);
 *     const float *gradient = shoal_data(shoal_grad(w));
 *
 * Within one backward pass everything that flows to a leaf is summed first, the contribution of the newest operation
 * first, and the sum is added to the leaf's gradient once, as soon as nothing more can arrive. Backward passes add to
 * gradients that exist already: remove them between steps with shoal_set_grad(leaf, NULL).
 *
 * Parameters are updated with gradients off (shoal_scope_set_grad(false), shoal/scope.h): an operation in place that
 * would be recorded is refused on a leaf that requires a gradient, and on a view.
 *
 * Ownership: shoal_grad returns a borrowed tensor, which the leaf owns. The context of a hook is the caller's, and
 * must live until the hook is removed, or until its tensor and what was recorded of it are gone.
 * Threads: what was recorded is used by one thread at a time, for recording and for backward passes.
 * Errors: status and text. An operation that has no gradient fails when it is called with an input that requires one.
 * A tensor that was saved for the backward pass and changed in place since is SHOAL_ERR_STATE in shoal_backward.
 */
#ifndef SHOAL_AUTOGRAD_H
#define SHOAL_AUTOGRAD_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/api.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

/* Makes the tensor a leaf that gets gradients, or, with false, no longer: its gradient and hooks are then removed, and
   backward passes pass it over. SHOAL_ERR_INVALID: the dtype is not floating. SHOAL_ERR_STATE: the tensor is the
   result of recorded operations (use shoal_detach first), or a running backward pass is about to reach it. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_set_requires_grad(shoal_tensor *tensor, bool is_required);

/* True for a leaf that gets gradients, and for every recorded result that depends on one. */
SHOAL_API bool shoal_requires_grad(const shoal_tensor *tensor);

/* True for a tensor that no recorded operation made, whether it requires a gradient or not. */
SHOAL_API bool shoal_is_leaf(const shoal_tensor *tensor);

/* Returns the leaf's gradient; NULL if it has none. The pointer stays the same while backward passes add to the
   gradient. */
SHOAL_API shoal_tensor *shoal_grad(const shoal_tensor *leaf);

/*
 * Replaces the leaf's gradient. NULL removes it, and is allowed for every tensor. The gradient has the shape and
 * device of the leaf, and any floating dtype (SHOAL_ERR_INVALID otherwise, or if it requires a gradient itself). The
 * leaf keeps a view of it, not a copy: backward passes add to the caller's memory. SHOAL_ERR_STATE: `leaf` is a
 * result, or requires no gradient.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_set_grad(shoal_tensor *leaf, shoal_tensor *gradient);

/* Returns a tensor over the same memory that does not require a gradient and belongs to no record. It counts as a
   view. */
SHOAL_API shoal_tensor *shoal_detach(shoal_tensor *tensor);

/* Backward --------------------------------------------------------------------------------------------- */

/*
 * Computes the gradients of all leaves that `root` was computed from, and adds them to what shoal_grad shows. `root`
 * is usually a loss. `gradient` is the gradient of the root itself: of its shape, dtype and device, or NULL, which
 * means 1 and needs a root of one element.
 *
 * The record is used up: memory that it saved is released on the way, and another backward pass through any part of it
 * is SHOAL_ERR_STATE. To walk it several times, use shoal_backward_roots with keeps_graph.
 *
 * An error that is found before the first operation is visited (wrong arguments, a record that was used up, no memory)
 * changes nothing. After a later error some leaves have got their gradients and the others have not, and the record is
 * used up unless keeps_graph is set. If an operation before the backward pass failed, so that the root is NULL, the
 * error of the scope is returned.
 */
SHOAL_API SHOAL_SOMETIMES_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_backward(shoal_tensor *root,
                                                                                  shoal_tensor *gradient);

typedef struct shoal_backward_options {
    size_t struct_size; /* sizeof(shoal_backward_options) */
    bool keeps_graph;   /* the record can be walked by another backward pass */
} shoal_backward_options;
#define SHOAL_BACKWARD_OPTIONS_INIT SHOAL_SIZED(shoal_backward_options)

/* shoal_backward for several roots at once. `gradients` may be NULL, and so may each of its entries, as `gradient`
   there. options may be NULL. */
SHOAL_API SHOAL_SOMETIMES_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_backward_roots(shoal_tensor *const *roots, shoal_tensor *const *gradients, size_t n_roots,
                     const shoal_backward_options *options);

/* Hooks ------------------------------------------------------------------------------------------------ */

typedef struct shoal_hook shoal_hook;

/*
 * Gets the complete gradient of a tensor before it flows on to older operations or into the leaf. Returns the gradient
 * to use instead, of the same shape, dtype and device, or NULL to use this one. It must not write into `gradient`,
 * which others may share (SHOAL_ERR_STATE). It runs in a scope of the backward pass with gradients off; an error in
 * that scope ends the backward pass.
 *
 * Hooks of one tensor run in the order in which they were added. A hook belongs to the value that the tensor had: it
 * runs even if the tensor is gone by then, or was changed in place later.
 */
typedef shoal_tensor *(*shoal_gradient_hook)(void *context, shoal_tensor *gradient);

/* Called for a leaf when a backward pass has added to its gradient. A status that is not SHOAL_OK ends the backward
   pass with it. */
typedef shoal_status (*shoal_leaf_hook)(void *context, shoal_tensor *leaf);

/* Called once, at the end of a backward pass that visited everything without an error. */
typedef shoal_status (*shoal_end_hook)(void *context);

/*
 * Add a hook to a tensor. shoal_on_accumulated takes leaves only. hook_out may be NULL if the hook will never be
 * removed.
 *
 * A hook that could never run is SHOAL_ERR_STATE: the tensor does not require a gradient, or its record was used up by
 * a backward pass; shoal_on_accumulated on a result; shoal_on_gradient on a shard (shoal/fully_shard.h), whose
 * gradient comes from a reduction. Use shoal_on_accumulated for shards. In compiled steps (shoal_compile) only
 * shoal_on_gradient hooks can run, and shoal_on_accumulated hooks on shards.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_on_gradient(shoal_tensor *tensor, shoal_gradient_hook hook,
                                                          void *context, SHOAL_GIVES shoal_hook **hook_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_on_accumulated(shoal_tensor *leaf, shoal_leaf_hook hook,
                                                             void *context,
                                                             SHOAL_GIVES shoal_hook **hook_out);

/* Removes a hook and frees its handle. May be called inside hooks, and after the tensor is gone. Every handle that was
   asked for must be freed by this call, and by nothing else. NULL is allowed. */
SHOAL_API void shoal_hook_remove(SHOAL_TAKES shoal_hook *hook);

/* Has `hook` called at the end of the backward pass that runs on this thread. Call it from a hook or a gradient
   function; elsewhere it is SHOAL_ERR_STATE. Hooks for the end run in the order in which they were added. The second
   run of a function by shoal_recompute counts as part of the backward pass around it. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_on_backward_end(shoal_end_hook hook, void *context);

/* True while a backward pass runs on this thread. */
SHOAL_API bool shoal_in_backward(void);

/* Called in a backward pass when all gradients have arrived that will, one entry for each output of shoal_identity; an
   entry without a gradient is NULL. It may replace entries, but must not write into them. */
typedef shoal_status (*shoal_identity_hook)(void *context, shoal_tensor **gradients, size_t n_gradients);

/*
 * Gives outputs[i] with the value of inputs[i], and records all of them as one operation, so that `hook` (which may be
 * NULL) sees their gradients together. The hook does not run in a backward pass that reaches none of the outputs.
 * Inputs that are NULL or require no gradient are handed through, and so are all inputs while gradients are off. Other
 * outputs are views of their inputs. Both lists have n_inputs entries, and may be the same list. Needs an open scope,
 * which owns these views.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_identity(shoal_tensor *const *inputs, size_t n_inputs,
                                                       shoal_identity_hook hook, void *context,
                                                       shoal_tensor **outputs_out);

/* Recomputing ------------------------------------------------------------------------------------------ */

/* Computes outputs[0..n_outputs-1] from the inputs; it must set each of them. It is called twice, and must compute the
   same both times. It runs in a scope made for it; if it opens one of its own, it hands outputs out of that with
   shoal_scope_keep. */
typedef shoal_status (*shoal_recompute_function)(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                                 shoal_tensor **outputs, size_t n_outputs);

/*
 * Activation checkpointing: runs `function` without recording what happens inside, and runs it again in the backward
 * pass to record and differentiate it then. Use it to save the memory of activations at the price of computing them
 * twice. Needs an open scope, which owns the outputs. inputs and outputs_out may be the same list.
 *
 * `context` must live until the backward pass has run or the outputs are gone; free_context (may be NULL) is then
 * called. If shoal_recompute fails, it is not called.
 *
 * Besides its inputs the function may use leaves, and tensors that require no gradient. A result of a recorded
 * operation must be one of the inputs, otherwise the backward pass is SHOAL_ERR_STATE. The second run has a backward
 * pass of its own inside the one around it, so the gradients of leaves that are not inputs are added to at that time.
 * SHOAL_ERR_STATE: the function changed an input in place.
 */
SHOAL_API SHOAL_SOMETIMES_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_recompute(shoal_recompute_function function, void *context, void (*free_context)(void *context),
                shoal_tensor *const *inputs, size_t n_inputs, shoal_tensor **outputs_out, size_t n_outputs);

SHOAL_END_DECLS

#endif
