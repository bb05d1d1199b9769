/* SPDX-License-Identifier: MIT */
/*
 * Handles of tensors that were freed. Using one is undefined behaviour. With SHOAL_DEBUG_HANDLES=n the structs of the
 * last n dead tensors are kept and marked as dead; every public call that gets one fails, with a text that says what it
 * was and why it was freed. Their data and gradients are freed as usual. Without the option nothing is kept, and the
 * check costs a load of one byte per tensor.
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
    HANDLE_TAKEN         /* by shoal_tensor_unref or inside the library, while a scope still owned it */
};

/* Drops one reference. `end` is the reason, if it is the last one. NULL is allowed. */
void handle_unref(shoal_tensor *tensor, enum handle_end end);

/* Sets the error for using a dead tensor: SHOAL_ERR_STATE. */
shoal_status handle_fail(const shoal_tensor *tensor) __attribute__((cold));

/* Sets that error in calls that return no status: it goes to the innermost scope, too. Returns false. */
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

/* Checks a list whose entries may be NULL. `what` is the word for an entry in the error text. */
static inline shoal_status handle_check_list(const char *what, shoal_tensor *const *tensors, size_t n_tensors)
{
    for (size_t i = 0; i < n_tensors; i++) {
        if (tensors[i] && handle_is_dead(tensors[i])) {
            return error_prefix(handle_fail(tensors[i]), "%s %zu", what, i);
        }
    }
    return SHOAL_OK;
}

/* For calls that return no status: false for NULL, and for a dead tensor, which is also reported. */
static inline bool handle_is_alive(const shoal_tensor *tensor)
{
    return tensor && (!handle_is_dead(tensor) || handle_report(tensor));
}

/* For tests: from now on keeps so many dead tensors, whatever the option says. Forgets those kept before. */
void handle_keep(size_t n_handles);

#endif
