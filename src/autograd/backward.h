/* SPDX-License-Identifier: MIT */
/* Runs a backward pass, called from outside or from inside another one. */
#ifndef AUTOGRAD_BACKWARD_H
#define AUTOGRAD_BACKWARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "autograd/hooks.h"
#include "shoal/autograd.h"

struct backward_request {
    shoal_tensor *const *roots;
    shoal_tensor *const *gradients; /* NULL, or NULL entries: 1, for roots of one element */
    size_t n_roots;
    bool keeps_graph;
    bool is_part; /* of the backward pass that is running: its end hooks run at the end of that pass */
    uint64_t oldest_sequence; /* reaching nodes older than this is an error */
};

shoal_status backward_run(const struct backward_request *request);

/*
 * The number of the backward pass that is running on this thread, the same in its parts; no other pass of the
 * process has it. Returns 0 if none is running. Whoever sees a new number before the end of the old pass knows that the
 * old one failed.
 */
uint64_t backward_number(void);

/* shoal_on_backward_end with a release function: it is called after the hook has run, or when the hook cannot
   run any more because the backward pass failed. If this call fails, the context stays the caller's. */
shoal_status backward_on_end(shoal_end_hook hook, void *context, hook_release release);

#endif
