/* SPDX-License-Identifier: MIT */
#include "parallel/forwards.h"

#include "autograd/identity.h"
#include "base/mem.h"
#include "base/try.h"

struct forward {
    struct forward_list *list;
    /* Numbers the forward passes of the list from 1; 0 if it is recomputed inside a backward pass. */
    uint64_t number;
    size_t n_outputs;     /* how many outputs still have a record */
    bool is_pending;      /* it is in the list: no backward pass has reached it */
    struct forward *next; /* the next older one in the list */
};

static void unlist(struct forward *forward)
{
    struct forward **link = &forward->list->pending;
    if (!forward->is_pending) {
        return;
    }
    while (*link && *link != forward) {
        link = &(*link)->next;
    }
    *link = forward->next;
    forward->is_pending = false;
}

/* Called when the record of an output is freed. */
static void release_output(void *context)
{
    struct forward *forward = context;
    const struct forward_list *list = forward->list;
    if (--forward->n_outputs == 0) {
        unlist(forward);
        mem_free(forward);
    }
    list->let_go(list->owner);
}

static shoal_status hook_outputs(struct forward *forward, const shoal_forward_call *call,
                                 shoal_gradient_hook hook)
{
    const struct forward_list *list = forward->list;
    for (size_t i = 0; i < call->n_outputs; i++) {
        if (shoal_requires_grad(call->outputs[i])) {
            TRY(identity_hook_output(&call->outputs[i], hook, forward, release_output));
            forward->n_outputs++;
            list->keep(list->owner);
        }
    }
    return SHOAL_OK;
}

shoal_status forwards_record(struct forward_list *list, const shoal_forward_call *call,
                             shoal_gradient_hook hook)
{
    if (!shoal_scope_has_grad()) {
        return SHOAL_OK;
    }
    struct forward *forward = mem_alloc_zeroed(1, sizeof *forward);
    if (!forward) {
        return SHOAL_ERR_NO_MEMORY;
    }
    forward->list = list;
    shoal_status status = hook_outputs(forward, call, hook);
    if (forward->n_outputs == 0) {
        mem_free(forward);
    } else if (!call->is_recompute) {
        forward->number = ++list->n_ever;
        forward->is_pending = true;
        forward->next = list->pending;
        list->pending = forward;
    }
    return status;
}

void *forward_owner(const struct forward *forward)
{
    return forward->list->owner;
}

bool forward_reached(struct forward *forward, size_t *n_newer_out)
{
    const struct forward *other = forward->list->pending;
    bool is_counted = forward->number > 0;
    *n_newer_out = 0;
    for (; is_counted && other && other->number > forward->number; other = other->next) {
        ++*n_newer_out;
    }
    unlist(forward);
    return is_counted;
}
