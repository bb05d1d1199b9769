/* SPDX-License-Identifier: MIT */
/*
 * Handles of tensors that are gone. Using one is undefined; with SHOAL_DEBUG_HANDLES=n the structs of the last n dead
 * tensors are kept, marked, and every public call that gets one fails with a text that says what it was and how it
 * ended. Their data and gradients are given back as usual. Without the option nothing is kept, and a call pays for
 * a look at one byte of the tensor.
 */
#ifndef TENSOR_HANDLE_H
#define TENSOR_HANDLE_H

#include <stdbool.h>

#include "base/error.h"
#include "tensor/tensor.h"

/* How a tensor ended. */
enum handle_end {
    HANDLE_SCOPE_ENDED,
    HANDLE_UNREFERENCED, /* by shoal_tensor_unref, or inside the library */
    HANDLE_TAKEN         /* like that, while a scope still owned it */
};

/* Gives up one reference. `end` says why, should it be the last one. NULL is allowed. */
void handle_unref(shoal_tensor *tensor, enum handle_end end);

/* The error of using a dead one: SHOAL_ERR_STATE. */
shoal_status handle_fail(const shoal_tensor *tensor) __attribute__((cold));

/* The same for calls that return no status: the error goes to the innermost scope, too. Returns false. */
bool handle_report(const shoal_tensor *tensor) __attribute__((cold));

static inline bool handle_is_dead(const shoal_tensor *tensor)
{
    return __builtin_expect(tensor->is_dead, false) != 0;
}

/* The tensor must not be NULL. */
static inline shoal_status handle_check(const shoal_tensor *tensor)
{
    return handle_is_dead(tensor) ? handle_fail(tensor) : SHOAL_OK;
}

/* Of a list whose entries may be NULL; `what` is what the text calls one of them. */
static inline shoal_status handle_check_list(const char *what, shoal_tensor *const *tensors, size_t n_tensors)
{
    for (size_t i = 0; i < n_tensors; i++) {
        if (tensors[i] && handle_is_dead(tensors[i])) {
            return error_prefix(handle_fail(tensors[i]), "%s %zu", what, i);
        }
    }
    return SHOAL_OK;
}

/* For calls that return no status: false for NULL, and, reported, for a dead one. */
static inline bool handle_is_alive(const shoal_tensor *tensor)
{
    return tensor && (!handle_is_dead(tensor) || handle_report(tensor));
}

/* For tests: so many are kept from now on, instead of what the option says. Forgets those that were. */
void handle_keep(size_t n_handles);

#endif
