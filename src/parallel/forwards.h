/* SPDX-License-Identifier: MIT */
/*
 * The recorded forward passes of a module, and which of them a backward pass walks back. If ranks walked back two
 * forward passes of one module in different order, they would add up gradients that do not belong together.
 *
 * Ranks compare how many newer forward passes are recorded that no backward pass has reached. A backward pass goes
 * from newer to older operations, so the first output that it reaches belongs to its newest forward pass, and the
 * number is known before the first gradient of a parameter arrives. Older forward passes do not count, nor do those
 * whose record is gone: ranks may make forward passes that nobody walks back.
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

/* The list of one module. The owner fills in the first three fields. `owner` contains the list, and must live
   until `let_go` was called as often as `keep`, because the backward pass of a recorded forward pass needs it. */
struct forward_list {
    void *owner;
    void (*keep)(void *owner);
    void (*let_go)(void *owner);
    struct forward *pending; /* no backward pass has reached them; the newest first */
    uint64_t n_ever;         /* how many were recorded in all */
};

/* Adds a hook to each output of the call that requires a gradient. It is called when a backward pass reaches
   the output, with the struct forward as context. Records nothing where gradients are off. */
shoal_status forwards_record(struct forward_list *list, const shoal_forward_call *call,
                             shoal_gradient_hook hook);

void *forward_owner(const struct forward *forward);

/* Call when a backward pass has reached the forward pass. Gives how many newer ones are pending. Returns false
   for a forward pass that was computed again inside a backward pass: it does not count. */
bool forward_reached(struct forward *forward, size_t *n_newer_out);

#endif
