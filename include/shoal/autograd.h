/* SPDX-License-Identifier: MIT */
/*
 * Gradients. Operations on tensors that need a gradient are recorded as they run; shoal_backward walks the
 * record from the newest to the oldest. What flows to one leaf within one backward is summed first, in the
 * order of arrival (newest operation first), and added to its gradient once, as soon as nothing more can come.
 *
 * Ownership: shoal_grad returns a borrowed tensor that the leaf keeps. Hooks own nothing; their context must
 * live until the hook is removed or its tensor, and the record that leads to it, are gone.
 * Threads: record and backward of one graph belong to one thread at a time.
 * Errors: an in-place change that has to be recorded is refused on a leaf and on a view; updates of parameters are
 * made with gradients off (shoal_scope_set_grad(false)). Using a tensor that was saved for backward and changed since
 * is an error in backward. So is an input that needs a gradient to an op that has none, when it is called.
 *
 *     shoal_tensor *w = shoal_full((int64_t[]){3}, 1, 2.0, SHOAL_F32);
 *     status = shoal_set_requires_grad(w, true);
 *     status = shoal_backward(shoal_sum(shoal_mul(w, w), NULL, 0, false), NULL);
 *     const float *gradient = shoal_data(shoal_grad(w));
 */
#ifndef SHOAL_AUTOGRAD_H
#define SHOAL_AUTOGRAD_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/api.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

/*
 * Makes a tensor a leaf whose gradient is wanted, or no longer: then its gradient and hooks are gone, and what
 * was recorded passes it over. Floating dtypes only; not for results.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_set_requires_grad(shoal_tensor *tensor, bool is_required);

/* True for such a leaf and for every recorded result that depends on one. */
SHOAL_API bool shoal_requires_grad(const shoal_tensor *tensor);

/* True for tensors that no recorded operation made. */
SHOAL_API bool shoal_is_leaf(const shoal_tensor *tensor);

/* The leaf's gradient, NULL when there is none (yet). The pointer stays the same while backwards add to it. */
SHOAL_API shoal_tensor *shoal_grad(const shoal_tensor *leaf);

/*
 * Replaces the gradient; NULL removes it, which is allowed for every tensor, also for one that has none. Same shape and
 * device as the leaf, any floating dtype. The leaf keeps a view of it, not a copy: a backward adds to the caller's
 * memory.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_set_grad(shoal_tensor *leaf, shoal_tensor *gradient);

/* A tensor over the same storage that is outside the record. It counts as a view. */
SHOAL_API shoal_tensor *shoal_detach(shoal_tensor *tensor);

/* Backward --------------------------------------------------------------------------------------------- */

/*
 * One root. `gradient` NULL means one, for a tensor of one element; otherwise it looks like the root. The
 * record is consumed: what it saved is given back on the way, and walking any of it again is SHOAL_ERR_STATE.
 *
 * An error that is found before the first operation is visited (arguments, a consumed record, memory) changes
 * nothing. After a later one, leaves that were reached have their gradients, the others have what they had,
 * and the record is consumed, unless it is kept (below).
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_backward(shoal_tensor *root, shoal_tensor *gradient);

typedef struct shoal_backward_options {
    size_t struct_size; /* sizeof(shoal_backward_options) */
    bool keeps_graph;   /* allow another backward over the same record */
} shoal_backward_options;
#define SHOAL_BACKWARD_OPTIONS_INIT SHOAL_SIZED(shoal_backward_options)

/* Several roots at once. gradients, or any of its entries, may be NULL as above. Options may be NULL. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_backward_roots(shoal_tensor *const *roots,
                                                             shoal_tensor *const *gradients, size_t n_roots,
                                                             const shoal_backward_options *options);

/* Hooks ------------------------------------------------------------------------------------------------ */

typedef struct shoal_hook shoal_hook;

/*
 * Sees a tensor's gradient, complete, before it flows on. Returns the gradient to use instead, or NULL to leave it;
 * writing into it is an error, since others may share it. Runs in a scope of the backward, with gradients off; an error
 * in that scope ends the backward. Hooks of one tensor run in order of registration. A hook belongs to the value it was
 * put on: it runs even if the tensor is gone by then, and changing the tensor in place later takes nothing from it.
 */
typedef shoal_tensor *(*shoal_gradient_hook)(void *context, shoal_tensor *gradient);

/* Called for a leaf after its gradient was accumulated. A status other than SHOAL_OK ends the backward. */
typedef shoal_status (*shoal_leaf_hook)(void *context, shoal_tensor *leaf);

/* Called once, in order, when the backward that is running on this thread has visited all without error. */
typedef shoal_status (*shoal_end_hook)(void *context);

/*
 * A hook that could never run is refused with SHOAL_ERR_STATE: on a tensor that does not require a gradient, or whose
 * record was used up by a backward; on_accumulated on a result; on_gradient on a shard (shoal/fully_shard.h), whose
 * gradient comes from a reduction: shoal_on_accumulated is called for it.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_on_gradient(shoal_tensor *tensor, shoal_gradient_hook hook,
                                                          void *context, shoal_hook **hook_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_on_accumulated(shoal_tensor *leaf, shoal_leaf_hook hook,
                                                             void *context, shoal_hook **hook_out);

/*
 * Takes a hook off again, also from inside hooks and after its tensor is gone. hook_out may be NULL above when
 * that is never needed; a handle that was asked for is freed by this call and by nothing else. NULL is allowed.
 */
SHOAL_API void shoal_hook_remove(shoal_hook *hook);

/*
 * From inside a backward (a hook or a gradient function): run `hook` at its end. SHOAL_ERR_STATE outside. What
 * runs inside shoal_recompute's second run is part of the backward around it.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_on_backward_end(shoal_end_hook hook, void *context);

/* True while a backward runs on this thread. */
SHOAL_API bool shoal_in_backward(void);

/*
 * An identity over many tensors: outputs[i] is inputs[i] with one node of the record around them all. The
 * node's `hook` (NULL: none) runs in backward when the gradients of all outputs that will get one have arrived,
 * not at all if none will; absent ones are NULL. The hook may replace entries of `gradients`. NULL inputs stay
 * NULL, and those that need no gradient are handed through. Outputs count as views. The lists may be the same.
 */
typedef shoal_status (*shoal_identity_hook)(void *context, shoal_tensor **gradients, size_t n_gradients);

SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_identity(shoal_tensor *const *inputs, size_t n_inputs,
                                                       shoal_identity_hook hook, void *context,
                                                       shoal_tensor **outputs_out);

/* Recomputing ------------------------------------------------------------------------------------------ */

/*
 * Runs `function` without recording its inside, and again in backward to get it: activation checkpointing.
 * It must compute the same both times. It runs in a scope made for it: outputs made in a scope of its own must be
 * handed out with shoal_scope_keep. `outputs` has room for n_outputs; each must be set. The context
 * must live until backward has run or the outputs are gone; `free_context` (may be NULL) is called then, but
 * not when the call fails.
 *
 * Other tensors that the function uses are leaves or need no gradient: results of recorded operations must be
 * inputs. The second run's inside is walked by a backward of its own, so what flows to other leaves is added to
 * their gradients there and then.
 */
typedef shoal_status (*shoal_recompute_function)(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                                 shoal_tensor **outputs, size_t n_outputs);

SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_recompute(shoal_recompute_function function, void *context,
                                                        void (*free_context)(void *context),
                                                        shoal_tensor *const *inputs, size_t n_inputs,
                                                        shoal_tensor **outputs_out, size_t n_outputs);

SHOAL_END_DECLS

#endif
