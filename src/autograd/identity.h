/* SPDX-License-Identifier: MIT */
/* Identities and hooks that own their context: the record keeps it, and releases it when no backward pass can
   reach it any more. */
#ifndef AUTOGRAD_IDENTITY_H
#define AUTOGRAD_IDENTITY_H

#include <stdbool.h>
#include <stddef.h>

#include "autograd/hooks.h"

struct identity_hook {
    shoal_identity_hook function; /* NULL if there is none */
    void *context;
    hook_release release; /* NULL if there is none */
};

/* shoal_identity. If nothing was recorded, because no gradient is wanted or the call failed, the context stays
   the caller's. */
shoal_status identity_over(shoal_tensor *const *inputs, size_t n_inputs, const struct identity_hook *hook,
                           shoal_tensor **outputs_out, bool *is_recorded_out);

/* A hook on the gradient of a tensor that requires one. It belongs to the record, also if the tensor is a leaf: then
   *tensor becomes an identity over it. On failure the context stays the caller's. */
shoal_status identity_hook_output(shoal_tensor **tensor, shoal_gradient_hook hook, void *context,
                                  hook_release release);

#endif
