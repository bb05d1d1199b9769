/* SPDX-License-Identifier: MIT */
/* Units: gathering and giving up, in the order of a step. unit.h has the states. */
#include "parallel/fsdp/unit.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "kernel/kernel.h"
#include "parallel/fsdp/custom.h"
#include "parallel/fsdp/labels.h"
#include "tensor/dtype.h"

static void note(struct fsdp_unit *unit, enum fsdp_event event)
{
    struct fsdp_context *context = unit->context;
    if (context->listen) {
        context->listen(context->listen_context, event, unit);
    }
}

shoal_status fsdp_unit_check_idle(const struct fsdp_unit *unit, const char *what)
{
    return unit->phase == FSDP_IDLE && !unit->is_pending && !fsdp_unit_is_reducing(unit)
               ? SHOAL_OK
               : error_set(SHOAL_ERR_STATE, "%s: %s is in the middle of a step", what, unit->name);
}

/* Gathering ---------------------------------------------------------------------------------------------- */

/* With one shard there is nobody to gather from: the shards are whole. Cast, they need memory of their own. */
static bool is_alone(const struct fsdp_unit *unit)
{
    return unit->context->mesh.n_shards == 1;
}

static shoal_status cast_alone(struct fsdp_unit *unit)
{
    bool needs_memory = false;
    for (size_t i = 0; i < unit->n_params; i++) {
        needs_memory = needs_memory || unit->params[i].compute != unit->params[i].dtype;
    }
    if (!needs_memory) {
        return SHOAL_OK;
    }
    unit->full = mem_alloc_aligned(unit->window_bytes, FSDP_ALIGNMENT);
    if (!unit->full) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        kernel_cast(param->compute, unit->full + param->window_offset, param->dtype, param->shard,
                    param->count);
    }
    return SHOAL_OK;
}

/* What this rank writes into the window: its rows of every parameter, or what it kept. */
static size_t count_pieces(const struct fsdp_unit *unit)
{
    size_t n = 0;
    for (size_t i = 0; i < unit->n_params; i++) {
        n += unit->state == FSDP_KEPT ? 1 : (size_t)unit->params[i].outer;
    }
    return n;
}

static size_t fill_pieces(const struct fsdp_unit *unit, shoal_window_piece *pieces)
{
    size_t n = 0;
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        size_t to_bytes = dtype_bytes(param->compute);
        if (unit->state == FSDP_KEPT) {
            pieces[n++] = (shoal_window_piece){.data = param->kept,
                                               .count = param->kept_count,
                                               .data_dtype = param->compute,
                                               .window_dtype = param->compute,
                                               .offset = param->window_offset + param->kept_begin * to_bytes};
            continue;
        }
        size_t piece_count = fsdp_param_piece_count(param);
        size_t from_bytes = dtype_bytes(param->dtype);
        for (int64_t o = 0; o < param->outer; o++) {
            pieces[n++] =
                (shoal_window_piece){.data = param->shard + (size_t)o * piece_count * from_bytes,
                                     .count = piece_count,
                                     .data_dtype = param->dtype,
                                     .window_dtype = param->compute,
                                     .offset = param->window_offset + fsdp_param_offset(param, o) * to_bytes};
        }
    }
    return n;
}

static shoal_status take_window(struct fsdp_unit *unit)
{
    struct fsdp_context *context = unit->context;
    if (unit->state == FSDP_KEPT) {
        return fsdp_windows_take(&unit->neighbours->windows, unit->window_bytes,
                                 unit->neighbours->largest_bytes, fsdp_label_of_gather(unit), &unit->slot);
    }
    /* One that has been told to give its up since the largest was found may be larger. */
    bool is_own = unit->reshard == SHOAL_RESHARD_NEVER || unit->window_bytes > context->largest_bytes;
    return fsdp_windows_take(&context->windows, unit->window_bytes,
                             is_own ? unit->window_bytes : context->largest_bytes, fsdp_label_of_gather(unit),
                             &unit->slot);
}

static shoal_status start_gather(struct fsdp_unit *unit)
{
    size_t n_pieces = count_pieces(unit);
    shoal_window_piece *pieces = mem_alloc(n_pieces * sizeof *pieces);
    if (!pieces) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = take_window(unit);
    if (status == SHOAL_OK) {
        n_pieces = fill_pieces(unit, pieces);
        status = shoal_window_gather_start(unit->slot->window, pieces, n_pieces, fsdp_label_of_gather(unit),
                                           &unit->gather);
    }
    if (status != SHOAL_OK && unit->slot) { /* nothing was started that would have to be released */
        unit->slot->is_taken = false;
        unit->slot = NULL;
    }
    mem_free(pieces);
    return status;
}

shoal_status fsdp_unit_unshard(struct fsdp_unit *unit)
{
    bool is_skipped = unit->phase == FSDP_PRE_BACKWARD && !unit->unshards_in_backward;
    if (unit->is_pending || unit->state == FSDP_UNSHARDED || is_skipped || unit->n_params == 0) {
        return SHOAL_OK;
    }
    if (unit->watch) {
        shoal_status status = unit->watch->gathering(unit);
        if (status != SHOAL_OK) {
            return error_prefix(fsdp_tell(unit->context, status), "%s: gathering parameters", unit->name);
        }
    }
    note(unit, FSDP_EVENT_UNSHARD);
    if (!is_alone(unit)) {
        shoal_status status = unit->custom_gather.call ? fsdp_custom_start_gather(unit) : start_gather(unit);
        if (status != SHOAL_OK) {
            return error_prefix(fsdp_tell(unit->context, status), "%s: gathering parameters", unit->name);
        }
    }
    unit->is_pending = true;
    return SHOAL_OK;
}

static void drop_kept(struct fsdp_unit *unit)
{
    for (size_t i = 0; i < unit->n_params; i++) {
        mem_free(unit->params[i].kept);
        unit->params[i].kept = NULL;
    }
}

static shoal_status end_gather(struct fsdp_unit *unit)
{
    shoal_status status = SHOAL_OK;
    if (unit->gather) {
        status = shoal_work_wait(unit->gather, -1);
        shoal_work_free(unit->gather);
        unit->gather = NULL;
    }
    if (status != SHOAL_OK) {
        fsdp_custom_drop_gather(unit);
        return status;
    }
    if (unit->staged) {
        return fsdp_custom_end_gather(unit);
    }
    return is_alone(unit) ? cast_alone(unit) : SHOAL_OK;
}

shoal_status fsdp_unit_wait(struct fsdp_unit *unit)
{
    if (!unit->is_pending) {
        return SHOAL_OK;
    }
    shoal_status status = end_gather(unit);
    unit->is_pending = false;
    if (status != SHOAL_OK) {
        return error_prefix(fsdp_tell(unit->context, status), "%s: gathering parameters", unit->name);
    }
    drop_kept(unit);
    unit->state = FSDP_UNSHARDED;
    return unit->watch ? unit->watch->unsharded(unit) : SHOAL_OK;
}

/* In flight no longer matters: the memory under it is the world's until the windows are freed. */
void fsdp_unit_forget_gather(struct fsdp_unit *unit)
{
    if (unit->gather) {
        shoal_status status = shoal_work_wait(unit->gather, -1);
        (void)status; /* nobody wants what was gathered */
        shoal_work_free(unit->gather);
        unit->gather = NULL;
    }
    fsdp_custom_drop_gather(unit);
}

const void *fsdp_unit_param(const struct fsdp_unit *unit, const struct fsdp_param *param)
{
    if (unit->slot) {
        return (const char *)shoal_window_data(unit->slot->window) + param->window_offset;
    }
    return unit->full ? unit->full + param->window_offset : param->shard;
}

/* From blocks of shards, padded, to the whole. */
static void assemble(const struct fsdp_param *param, int n_shards, const char *blocks, char *full)
{
    size_t element_bytes = dtype_bytes(param->dtype);
    for (int64_t w = 0; w < n_shards; w++) {
        int64_t begin;
        int64_t end;
        fsdp_param_rows(param, w, &begin, &end);
        size_t bytes = (size_t)((end - begin) * param->inner) * element_bytes;
        for (int64_t o = 0; o < param->outer && bytes > 0; o++) {
            size_t from = (size_t)w * param->padded_count + (size_t)(o * (end - begin) * param->inner);
            size_t to = (size_t)((o * param->size + begin) * param->inner);
            memcpy(full + to * element_bytes, blocks + from * element_bytes, bytes);
        }
    }
}

shoal_status fsdp_param_gather(const struct fsdp_param *param, const struct fsdp_mesh *mesh, void *full)
{
    if (!mesh->gather) {
        if (param->count > 0) {
            memcpy(full, param->shard, param->count * dtype_bytes(param->dtype));
        }
        return SHOAL_OK;
    }
    char *blocks = mem_alloc((size_t)mesh->n_shards * param->padded_count * dtype_bytes(param->dtype) + 1);
    if (!blocks) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status =
        shoal_group_all_gather(mesh->gather, param->shard, blocks, param->padded_count, param->dtype);
    if (status == SHOAL_OK) {
        assemble(param, mesh->n_shards, blocks, full);
    }
    mem_free(blocks);
    return status;
}

/* Giving up ---------------------------------------------------------------------------------------------- */

static shoal_status give_up_memory(struct fsdp_unit *unit)
{
    struct fsdp_slot *slot = unit->slot;
    unit->slot = NULL;
    mem_free(unit->full);
    unit->full = NULL;
    return slot ? fsdp_windows_release(slot) : SHOAL_OK;
}

static shoal_status keep_part(struct fsdp_unit *unit)
{
    for (size_t i = 0; i < unit->n_params; i++) {
        struct fsdp_param *param = &unit->params[i];
        size_t element_bytes = dtype_bytes(param->compute);
        size_t bytes = param->kept_count * element_bytes;
        param->kept = mem_alloc_aligned(bytes > 0 ? bytes : 1, FSDP_ALIGNMENT);
        if (!param->kept) {
            drop_kept(unit);
            return SHOAL_ERR_NO_MEMORY;
        }
        kernel_copy(param->kept,
                    (const char *)fsdp_unit_param(unit, param) + param->kept_begin * element_bytes, bytes);
    }
    return SHOAL_OK;
}

shoal_status fsdp_unit_reshard(struct fsdp_unit *unit)
{
    bool is_forward = unit->phase == FSDP_FORWARD;
    if (unit->state == FSDP_SHARDED || (is_forward && unit->reshard == SHOAL_RESHARD_NEVER)) {
        return SHOAL_OK;
    }
    bool keeps = is_forward && unit->reshard == SHOAL_RESHARD_PARTLY && unit->state == FSDP_UNSHARDED;
    if (keeps) {
        TRY(keep_part(unit));
    } else {
        drop_kept(unit);
    }
    if (unit->state == FSDP_UNSHARDED) {
        note(unit, FSDP_EVENT_RESHARD);
        if (unit->watch) {
            unit->watch->resharding(unit);
        }
    }
    unit->state = keeps ? FSDP_KEPT : FSDP_SHARDED;
    unit->is_held = false;
    return give_up_memory(unit);
}

shoal_status fsdp_unit_give_up(struct fsdp_unit *unit)
{
    enum fsdp_phase phase = unit->phase;
    if (!unit->context) {
        return SHOAL_OK;
    }
    TRY(fsdp_unit_wait(unit));
    unit->phase = FSDP_IDLE;
    shoal_status status = fsdp_unit_reshard(unit);
    unit->phase = phase;
    return status;
}

/* A step ------------------------------------------------------------------------------------------------- */

static shoal_status append_unit(struct fsdp_unit ***list, size_t *n, size_t *capacity, struct fsdp_unit *unit)
{
    TRY(mem_grow((void **)list, capacity, *n + 1, sizeof(**list)));
    (*list)[(*n)++] = unit;
    return SHOAL_OK;
}

/* Gathers are issued for the phase they are for, whatever the unit is doing. */
static shoal_status prefetch(struct fsdp_unit *unit, enum fsdp_phase phase)
{
    enum fsdp_phase before = unit->phase;
    unit->phase = phase;
    shoal_status status = fsdp_unit_unshard(unit);
    unit->phase = before;
    return status;
}

/* Units that are gone have no context. */
static shoal_status prefetch_list(const struct fsdp_unit *unit, struct fsdp_unit *const *list, size_t n,
                                  enum fsdp_phase phase)
{
    for (size_t i = 0; i < n; i++) {
        TRY(list[i]->context == unit->context ? prefetch(list[i], phase) : SHOAL_OK);
    }
    return SHOAL_OK;
}

/* What came after this forward in the last step, if the two have gone alike until here. */
static shoal_status prefetch_forward(struct fsdp_context *context)
{
    size_t at = context->n_forwards;
    for (int i = 0; i < context->n_forward; i++) {
        size_t next = at + (size_t)i;
        if (next >= context->n_last_forwards || context->last_forwards[at - 1] != context->forwards[at - 1]) {
            return SHOAL_OK;
        }
        TRY(prefetch(context->last_forwards[next], FSDP_FORWARD));
    }
    return SHOAL_OK;
}

shoal_status fsdp_unit_pre_forward(struct fsdp_unit *unit)
{
    struct fsdp_context *context = unit->context;
    TRY(fsdp_prepare(context));
    if (unit->phase == FSDP_PRE_BACKWARD) { /* computed again inside its backward */
        TRY(fsdp_unit_unshard(unit));
        return fsdp_unit_wait(unit);
    }
    unit->phase = FSDP_FORWARD;
    TRY(fsdp_unit_unshard(unit));
    TRY(fsdp_unit_wait(unit));
    if (unit->n_forward_list > 0) {
        TRY(prefetch_list(unit, unit->forward_list, unit->n_forward_list, FSDP_FORWARD));
    }
    if (context->is_in_backward) { /* computed again: not part of the order of forwards */
        return SHOAL_OK;
    }
    TRY(append_unit(&context->forwards, &context->n_forwards, &context->forwards_capacity, unit));
    return unit->n_forward_list > 0 ? SHOAL_OK : prefetch_forward(context);
}

shoal_status fsdp_unit_post_forward(struct fsdp_unit *unit)
{
    struct fsdp_context *context = unit->context;
    if (unit->phase == FSDP_PRE_BACKWARD) {
        return SHOAL_OK;
    }
    if (!context->is_in_backward) {
        TRY(fsdp_unit_reshard(unit));
        TRY(mem_grow((void **)&unit->order, &unit->order_capacity, unit->n_order + 1, sizeof unit->order[0]));
        unit->order[unit->n_order++] = context->n_order;
        TRY(append_unit(&context->order, &context->n_order, &context->order_capacity, unit));
    }
    unit->was_forward = true;
    unit->phase = FSDP_IDLE;
    return SHOAL_OK;
}

/* The unit whose forward came before this one's. Another backward of the same forward has no order to go by, but a list. */
static shoal_status prefetch_backward(struct fsdp_unit *unit)
{
    struct fsdp_context *context = unit->context;
    size_t place = unit->n_order > 0 ? unit->order[--unit->n_order] : 0;
    if (unit->n_backward_list > 0) {
        return prefetch_list(unit, unit->backward_list, unit->n_backward_list, FSDP_PRE_BACKWARD);
    }
    return place > 0 ? prefetch(context->order[place - 1], FSDP_PRE_BACKWARD) : SHOAL_OK;
}

/* The forwards of this step are over: they are what the next one is compared with. */
static void keep_order(struct fsdp_context *context)
{
    struct fsdp_unit **list = context->last_forwards;
    size_t capacity = context->last_forwards_capacity;
    if (context->n_forwards == 0) {
        return;
    }
    context->last_forwards = context->forwards;
    context->n_last_forwards = context->n_forwards;
    context->last_forwards_capacity = context->forwards_capacity;
    context->forwards = list;
    context->forwards_capacity = capacity;
    context->n_forwards = 0;
}

shoal_status fsdp_unit_pre_backward(struct fsdp_unit *unit)
{
    if (unit->phase == FSDP_PRE_BACKWARD) {
        return SHOAL_OK;
    }
    unit->context->is_in_backward = true;
    keep_order(unit->context);
    TRY(fsdp_mark_forwards(unit->context));
    unit->phase = FSDP_PRE_BACKWARD;
    TRY(fsdp_unit_unshard(unit));
    TRY(fsdp_unit_wait(unit));
    return prefetch_backward(unit);
}

shoal_status fsdp_unit_post_backward(struct fsdp_unit *unit)
{
    unit->phase = FSDP_POST_BACKWARD;
    note(unit, FSDP_EVENT_POST_BACKWARD);
    if (unit->reshards_after_backward) {
        TRY(fsdp_unit_reshard(unit));
    }
    return fsdp_unit_end_grads(unit);
}

void fsdp_forget_forwards(struct fsdp_context *context, size_t n_order)
{
    for (size_t i = 0; i < context->n_units; i++) {
        struct fsdp_unit *unit = context->units[i];
        while (unit->n_order > 0 && unit->order[unit->n_order - 1] >= n_order) {
            unit->n_order--;
        }
    }
    context->n_order = n_order;
    keep_order(context);
}

shoal_status fsdp_end_forwards(struct fsdp_context *context, size_t n_order)
{
    fsdp_forget_forwards(context, n_order);
    for (size_t i = 0; i < context->n_units; i++) {
        struct fsdp_unit *unit = context->units[i];
        if (unit->n_order == 0) {
            unit->phase = FSDP_IDLE;
            TRY(fsdp_unit_give_up(unit)); /* also what was gathered ahead, and not used */
        }
    }
    return SHOAL_OK;
}

/* A gather that nobody came for is waited for, or the memory under it would be used again too early. */
static shoal_status settle_unit(struct fsdp_unit *unit)
{
    bool reshards = unit->is_pending || unit->reshards_after_backward;
    TRY(fsdp_unit_wait(unit));
    unit->phase = FSDP_IDLE;
    unit->was_forward = false;
    unit->n_order = 0;
    if (reshards) { /* a unit without backward has not been; its parameters may change now */
        TRY(fsdp_unit_reshard(unit));
    }
    return SHOAL_OK;
}

/* No backward, but others may have had one: it takes part with zeros, in the place that all ranks give it. Also where
   gradients only wait: buffers are made by all ranks together. */
static shoal_status reduce_unused(struct fsdp_unit *unit)
{
    if (!unit->watch) {
        TRY(fsdp_unit_begin_grads(unit));
    }
    return fsdp_unit_post_backward(unit);
}

static bool may_differ(const struct fsdp_context *context)
{
    bool may = false;
    for (size_t i = 0; i < context->n_units; i++) {
        may = may || context->units[i]->reduces_unused;
    }
    return may && context->is_prepared;
}

/* What earlier backwards have left is reduced by the first one that reduces, whether that comes to the unit or not. */
static bool is_left_over(const struct fsdp_unit *unit)
{
    if (unit->phase == FSDP_POST_BACKWARD || !unit->reduces) {
        return false;
    }
    return unit->has_accumulated || (unit->watch && unit->watch->has_kept(unit));
}

/* Where ranks may differ in which units had a backward, what is left is reduced in the order of backwards. */
static shoal_status end_units(struct fsdp_context *context)
{
    bool is_reverse = may_differ(context);
    for (size_t i = 0; i < context->n_units; i++) {
        struct fsdp_unit *unit = context->units[is_reverse ? context->n_units - 1 - i : i];
        if (unit->phase == FSDP_PRE_BACKWARD) {
            TRY(fsdp_unit_post_backward(unit));
        } else if (is_reverse && unit->phase != FSDP_POST_BACKWARD && unit->reduces_unused) {
            TRY(reduce_unused(unit));
        } else if (is_left_over(unit)) {
            TRY(fsdp_unit_post_backward(unit));
        }
        unit->is_owed = unit->is_owed || (is_reverse && unit->reduces_unused && !unit->reduces);
    }
    return SHOAL_OK;
}

shoal_status fsdp_end_backward(struct fsdp_context *context)
{
    TRY(fsdp_mark_forwards(context)); /* if no unit had a backward here */
    TRY(end_units(context));
    TRY(fsdp_end_mark(context));
    context->is_in_backward = false;
    if (context->is_not_last) {
        for (size_t i = 0; i < context->n_units; i++) {
            context->units[i]->phase = FSDP_IDLE;
        }
        return SHOAL_OK;
    }
    TRY(fsdp_drain(context, 0));
    TRY(fsdp_mark_backward(context));
    for (size_t i = 0; i < context->n_units; i++) {
        TRY(settle_unit(context->units[i]));
    }
    context->n_order = 0;
    keep_order(context); /* if there was no backward */
    return SHOAL_OK;
}

shoal_status fsdp_reset(struct fsdp_context *context)
{
    shoal_status status = SHOAL_OK;
    fsdp_drop_reductions(context);
    fsdp_drop_mark(context);
    for (size_t i = 0; i < context->n_units; i++) {
        struct fsdp_unit *unit = context->units[i];
        fsdp_unit_forget_gather(unit);
        unit->is_pending = false;
        unit->state = unit->slot ? FSDP_UNSHARDED : unit->state;
        unit->phase = FSDP_IDLE;
        shoal_status mine = fsdp_unit_reshard(unit);
        status = status == SHOAL_OK ? mine : status;
        fsdp_unit_drop_grads(unit);
        unit->was_forward = false;
        unit->n_order = 0;
    }
    context->n_order = 0;
    context->n_forwards = 0;
    context->is_in_backward = false;
    return status;
}
