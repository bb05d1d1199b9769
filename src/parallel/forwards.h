/* SPDX-License-Identifier: MIT */
/*
 * The recorded forward passes of a module, and which of them a backward pass walks back. Ranks that walk back two
 * forward passes of one module in different order would otherwise add up gradients that do not belong together.
 *
 * What ranks compare is how many newer forward passes are recorded that no backward pass has reached. A backward pass
 * goes from newer to older operations, so the first output that it reaches belongs to its newest forward pass, and the
 * number is known before the first gradient of a parameter has arrived. Forward passes whose record is gone do not
 * count, nor do older ones: ranks may make forward passes that nobody walks back.
 */
#ifndef PARALLEL_FORWARDS_H
#define PARALLEL_FORWARDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/autograd.h"
#include "shoal/module.h"
#include "shoal/status.h"

struct forward;

/* Of one module. The owner fills in the first three; `owner` has the list and lives until `let_go` was called as
   often as `keep`: a record that can be walked back needs it. */
struct forward_list {
    void *owner;
    void (*keep)(void *owner);
    void (*let_go)(void *owner);
    struct forward *pending; /* no backward pass has reached them; the newest first */
    uint64_t n_ever;
};

/* A hook on each output of the call that requires a gradient: called when a backward pass reaches the output. Its
   context is the struct forward. Without gradients it records nothing. */
shoal_status forwards_record(struct forward_list *list, const shoal_forward_call *call,
                             shoal_gradient_hook hook);

void *forward_owner(const struct forward *forward);

/* A backward pass has reached the forward pass: how many newer ones are pending. False: it was computed again inside a
   backward pass, and does not count. */
bool forward_reached(struct forward *forward, size_t *n_newer_out);

#endif
