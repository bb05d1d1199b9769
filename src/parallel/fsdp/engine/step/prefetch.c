/* SPDX-License-Identifier: MIT */
/* Gathers units ahead: those in lists of the program, or those that came next in the last step. */
#include "parallel/fsdp/engine/step/prefetch.h"

#include "base/mem.h"
#include "base/try.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/reduce/reduction.h"
#include "parallel/fsdp/engine/state/unit.h"

/* Lists -------------------------------------------------------------------------------------------------- */

static void drop_listed(struct fsdp_unit *unit)
{
    if (--unit->prefetch.n_listed == 0 && unit->is_gone) {
        mem_free(unit);
    }
}

void fsdp_list_set(struct fsdp_unit ***list, size_t *n_list, struct fsdp_unit **units, size_t n_units)
{
    for (size_t i = 0; i < n_units; i++) {
        units[i]->prefetch.n_listed++;
    }
    for (size_t i = 0; i < *n_list; i++) {
        drop_listed((*list)[i]);
    }
    mem_free(*list);
    *list = units;
    *n_list = n_units;
}

/* Starts the gather that the unit would start in `phase`. The unit stays in the phase that it is in. */
static shoal_status prefetch(struct fsdp_unit *unit, enum fsdp_phase phase)
{
    enum fsdp_phase before = unit->step.phase;
    TRY(fsdp_unit_land(unit));
    unit->step.phase = phase;
    shoal_status status = fsdp_unit_unshard(unit);
    unit->step.phase = before;
    return status;
}

/* Skips units that were freed, which have no context. */
static shoal_status prefetch_list(const struct fsdp_unit *unit, struct fsdp_unit *const *list, size_t n,
                                  enum fsdp_phase phase)
{
    for (size_t i = 0; i < n; i++) {
        TRY(list[i]->context == unit->context ? prefetch(list[i], phase) : SHOAL_OK);
    }
    return SHOAL_OK;
}

/* Orders ------------------------------------------------------------------------------------------------- */

static shoal_status append_unit(struct fsdp_unit ***list, size_t *n, size_t *capacity, struct fsdp_unit *unit)
{
    TRY(mem_grow((void **)list, capacity, *n + 1, sizeof(**list)));
    (*list)[(*n)++] = unit;
    return SHOAL_OK;
}

/* Gathers the units that came next in the last step, if this unit had the same place there. */
static shoal_status prefetch_by_order(struct fsdp_context *context)
{
    size_t at = context->passes.forwards.n;
    for (int i = 0; i < context->config.forward_prefetch; i++) {
        size_t next = at + (size_t)i;
        if (next >= context->passes.last_forwards.n ||
            context->passes.last_forwards.units[at - 1] != context->passes.forwards.units[at - 1]) {
            return SHOAL_OK;
        }
        TRY(prefetch(context->passes.last_forwards.units[next], FSDP_FORWARD));
    }
    return SHOAL_OK;
}

shoal_status fsdp_prefetch_forward(struct fsdp_unit *unit)
{
    struct fsdp_context *context = unit->context;
    if (unit->prefetch.n_forward > 0) {
        TRY(prefetch_list(unit, unit->prefetch.forward, unit->prefetch.n_forward, FSDP_FORWARD));
    }
    if (context->passes.is_backward) { /* recomputed: not part of the order of forward passes */
        return SHOAL_OK;
    }
    TRY(append_unit(&context->passes.forwards.units, &context->passes.forwards.n,
                    &context->passes.forwards.capacity, unit));
    return unit->prefetch.n_forward > 0 ? SHOAL_OK : prefetch_by_order(context);
}

shoal_status fsdp_order_add(struct fsdp_unit *unit)
{
    struct fsdp_context *context = unit->context;
    TRY(mem_grow((void **)&unit->step.order, &unit->step.order_capacity, unit->step.n_order + 1,
                 sizeof unit->step.order[0]));
    unit->step.order[unit->step.n_order++] = context->passes.order.n;
    return append_unit(&context->passes.order.units, &context->passes.order.n,
                       &context->passes.order.capacity, unit);
}

size_t fsdp_order_take(struct fsdp_unit *unit)
{
    return unit->step.n_order > 0 ? unit->step.order[--unit->step.n_order] : 0;
}

/* Gathers the unit whose forward pass came before this one's. For a second backward pass of the same forward pass no
   order is known; lists of the program still count. */
shoal_status fsdp_prefetch_backward(struct fsdp_unit *unit, size_t place)
{
    const struct fsdp_context *context = unit->context;
    if (unit->prefetch.n_backward > 0) {
        return prefetch_list(unit, unit->prefetch.backward, unit->prefetch.n_backward, FSDP_PRE_BACKWARD);
    }
    return place > 0 ? prefetch(context->passes.order.units[place - 1], FSDP_PRE_BACKWARD) : SHOAL_OK;
}

void fsdp_order_keep(struct fsdp_context *context)
{
    struct fsdp_unit **list = context->passes.last_forwards.units;
    size_t capacity = context->passes.last_forwards.capacity;
    if (context->passes.forwards.n == 0) {
        return;
    }
    context->passes.last_forwards.units = context->passes.forwards.units;
    context->passes.last_forwards.n = context->passes.forwards.n;
    context->passes.last_forwards.capacity = context->passes.forwards.capacity;
    context->passes.forwards.units = list;
    context->passes.forwards.capacity = capacity;
    context->passes.forwards.n = 0;
}

void fsdp_forget_forwards(struct fsdp_context *context, size_t n_order)
{
    for (size_t i = 0; i < context->n_units; i++) {
        struct fsdp_unit *unit = context->units[i];
        while (unit->step.n_order > 0 && unit->step.order[unit->step.n_order - 1] >= n_order) {
            unit->step.n_order--;
        }
    }
    context->passes.order.n = n_order;
    fsdp_order_keep(context);
}
