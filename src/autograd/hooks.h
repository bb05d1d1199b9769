/* SPDX-License-Identifier: MIT */
/* Hooks on the gradients of tensors, from inside the library. */
#ifndef AUTOGRAD_HOOKS_H
#define AUTOGRAD_HOOKS_H

#include "autograd/hook_list.h"

/* shoal_on_gradient for a tensor that requires a gradient, with a release function for the context (may be
   NULL). If the call fails, the context stays the caller's. */
shoal_status hook_on_gradient(shoal_tensor *tensor, shoal_gradient_hook hook, void *context,
                              hook_release release, shoal_hook **hook_out);

/* shoal_on_gradient for a leaf, for hooks of the library that must see what the program's hooks have made of the
   gradient: it runs after all of them, also those that are added later. */
shoal_status hook_on_final_gradient(shoal_tensor *leaf, shoal_gradient_hook hook, void *context,
                                    shoal_hook **hook_out);

/* shoal_on_accumulated for a leaf, for hooks of the library: in a captured step they emit ops. */
shoal_status hook_on_accumulated(shoal_tensor *leaf, shoal_leaf_hook hook, void *context,
                                 shoal_hook **hook_out);

/* The hooks on a tensor that is a leaf; of other tensors: none. */
struct hook_set hooks_of_leaf(const shoal_tensor *tensor);

#endif
