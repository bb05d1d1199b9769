/* SPDX-License-Identifier: MIT */
/* Hooks on the gradients of tensors, from inside the library. */
#ifndef AUTOGRAD_HOOKS_H
#define AUTOGRAD_HOOKS_H

#include "autograd/hook_list.h"

/* shoal_on_gradient for a tensor that requires a gradient, with a release function for the context (may be
   NULL). If the call fails, the context stays the caller's. */
shoal_status hook_on_gradient(shoal_tensor *tensor, shoal_gradient_hook hook, void *context,
                              hook_release release, shoal_hook **hook_out);

#endif
