/* SPDX-License-Identifier: MIT */
/*
 * Gradients: from where kernels add to them, through a reduce-scatter and, with replicas, an all-reduce, to the shards.
 *
 * Every parameter has a region in the unit's buffer, one block for each shard, in the dtype of the reduction. A parameter
 * that is cut along its first dimension lies there as it is, padding at its end, so kernels write it in place; others are
 * written elsewhere and put there afterwards. One list of regions is one collective.
 *
 * Reductions are carried on in the order in which they began, and only where a call of the step says so, never by what
 * happens to have ended: all ranks start the same collectives in the same order.
 */
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/collectives.h"
#include "kernel/kernel.h"
#include "parallel/fsdp/custom.h"
#include "parallel/fsdp/labels.h"
#include "parallel/fsdp/unit.h"
#include "tensor/dtype.h"

/* Elements that are converted at a time. */
#define PIECE 512

/* One unit's call may find out that another's reduction has failed. */
static shoal_status name_unit(const struct fsdp_unit *unit, shoal_status status)
{
    return status == SHOAL_OK
               ? SHOAL_OK
               : error_prefix(fsdp_tell(unit->context, status), "%s: reducing gradients", unit->name);
}

/* Elements ----------------------------------------------------------------------------------------------- */

/* dst += src, or dst /= number with a stride of 0. */
static void combine(enum kernel_binary op, shoal_dtype dtype, char *dst, const void *src, int64_t stride,
                    size_t count)
{
    const int64_t shape[] = {(int64_t)count};
    const int64_t one[] = {1};
    const int64_t other[] = {stride};
    struct kernel_operand to = {.data = dst, .strides = one};
    struct kernel_operand from = {.data = (void *)(uintptr_t)src, .strides = other};
    (void)kernel_binary_nd(op, dtype, to, to, from, 1, shape); /* floats: always offered */
}

static void divide_in_place(shoal_dtype dtype, char *data, size_t count, double divisor)
{
    char number[16];
    kernel_scalar_store(dtype, number, (struct kernel_scalar){.real = divisor});
    combine(KERNEL_DIV, dtype, data, number, 0, count);
}

/* In f32, a piece at a time: divisors need not be numbers of the dtype. */
static void divide_halves(shoal_dtype dtype, char *data, size_t count, double divisor)
{
    float piece[PIECE];
    for (size_t done = 0; done < count; done += PIECE) {
        size_t n = count - done < PIECE ? count - done : PIECE;
        char *at = data + done * dtype_bytes(dtype);
        kernel_cast(SHOAL_F32, piece, dtype, at, n);
        divide_in_place(SHOAL_F32, (char *)piece, n, divisor);
        kernel_cast(dtype, at, SHOAL_F32, piece, n);
    }
}

static void divide(shoal_dtype dtype, char *data, size_t count, double divisor)
{
    if (divisor == 1.0 || count == 0) {
        return;
    }
    if (dtype == SHOAL_F16 || dtype == SHOAL_BF16) {
        divide_halves(dtype, data, count, divisor);
    } else {
        divide_in_place(dtype, data, count, divisor);
    }
}

/* dst += cast(src), a piece at a time. */
static void add_cast(shoal_dtype dtype, char *dst, shoal_dtype src_dtype, const char *src, size_t count)
{
    char piece[PIECE * 16];
    if (dtype == src_dtype) {
        combine(KERNEL_ADD, dtype, dst, src, 1, count);
        return;
    }
    for (size_t done = 0; done < count; done += PIECE) {
        size_t n = count - done < PIECE ? count - done : PIECE;
        kernel_cast(dtype, piece, src_dtype, src + done * dtype_bytes(src_dtype), n);
        combine(KERNEL_ADD, dtype, dst + done * dtype_bytes(dtype), piece, 1, n);
    }
}

/* Before the reduction ----------------------------------------------------------------------------------- */

size_t fsdp_unit_reduce_bytes(const struct fsdp_unit *unit)
{
    size_t bytes = 0;
    size_t element_bytes = dtype_bytes(unit->reduce_dtype);
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        if (param->requires_grad) {
            bytes +=
                fsdp_round_up((size_t)unit->context->mesh.n_shards * param->padded_count * element_bytes);
            bytes += fsdp_round_up(param->padded_count * element_bytes);
        }
    }
    return bytes;
}

/* Which parameters get gradients may change between steps. */
static void lay_out_grads(struct fsdp_unit *unit)
{
    size_t n_shards = (size_t)unit->context->mesh.n_shards;
    size_t element_bytes = dtype_bytes(unit->reduce_dtype);
    unit->reduce_bytes = unit->output_bytes = unit->grads_bytes = 0;
    for (size_t i = 0; i < unit->n_params; i++) {
        struct fsdp_param *param = &unit->params[i];
        if (!param->is_reduced) {
            continue;
        }
        param->reduce_offset = unit->reduce_bytes;
        unit->reduce_bytes += fsdp_round_up(n_shards * param->padded_count * element_bytes);
        param->output_offset = unit->output_bytes;
        unit->output_bytes += fsdp_round_up(param->padded_count * element_bytes);
        param->is_direct = param->outer == 1 && param->compute == unit->reduce_dtype;
        param->grad_offset = unit->grads_bytes;
        unit->grads_bytes += param->is_direct ? 0 : fsdp_round_up(param->count * dtype_bytes(param->compute));
    }
}

bool fsdp_unit_is_reducing(const struct fsdp_unit *unit)
{
    const struct fsdp_context *context = unit->context;
    for (size_t i = 0; context && i < context->n_reductions; i++) {
        if (context->reductions[i].unit == unit) {
            return true;
        }
    }
    return false;
}

/* Places in the buffer must not change under a reduction that is still on its way. */
static shoal_status settle_reductions(struct fsdp_unit *unit)
{
    return fsdp_unit_is_reducing(unit) ? fsdp_drain(unit->context, 0) : SHOAL_OK;
}

shoal_status fsdp_unit_take_buffer(struct fsdp_unit *unit)
{
    if (unit->buffer) {
        return SHOAL_OK;
    }
    lay_out_grads(unit);
    if (unit->reduce_bytes == 0) {
        return SHOAL_OK;
    }
    /* Units that reduce have buffers in turn, so any will do for all; what stays for the next backward has its size. */
    size_t bytes = unit->reduce_bytes + unit->output_bytes;
    size_t largest = unit->context->largest_reduce_bytes;
    shoal_status status =
        fsdp_buffers_take(&unit->context->buffers, bytes, unit->reduces && largest > bytes ? largest : bytes,
                          fsdp_label_of_gather(unit), &unit->buffer);
    if (status != SHOAL_OK) { /* ranks may be found to differ here */
        return fsdp_tell(unit->context, status);
    }
    memset(unit->buffer->data, 0, unit->reduce_bytes);
    unit->has_accumulated = false;
    return SHOAL_OK;
}

/* Gradients that are reduced in their own dtype stay where kernels add to them until they are reduced; the others are
   added up in the buffer, so that no digits are lost. */
static bool stays_until_reduced(const struct fsdp_unit *unit, const struct fsdp_param *param)
{
    return param->compute == unit->reduce_dtype;
}

static void clear_grads(struct fsdp_unit *unit)
{
    for (size_t i = 0; unit->grads_bytes > 0 && i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        bool is_left = unit->has_accumulated && stays_until_reduced(unit, param);
        if (param->is_reduced && !param->is_direct && !is_left) {
            memset(unit->grads + param->grad_offset, 0, param->count * dtype_bytes(param->compute));
        }
    }
}

static shoal_status need_grads(struct fsdp_unit *unit)
{
    if (unit->grads_bytes > unit->grads_capacity) {
        mem_free(unit->grads);
        unit->grads_capacity = 0;
        unit->grads = mem_alloc_aligned(unit->grads_bytes, FSDP_ALIGNMENT);
        if (!unit->grads) {
            return SHOAL_ERR_NO_MEMORY;
        }
        unit->grads_capacity = unit->grads_bytes;
    }
    clear_grads(unit);
    return SHOAL_OK;
}

shoal_status fsdp_unit_begin_grads(struct fsdp_unit *unit)
{
    if (unit->has_begun) {
        return SHOAL_OK;
    }
    TRY(settle_reductions(unit));
    for (size_t i = 0; i < unit->n_params && !unit->buffer; i++) {
        unit->params[i].is_reduced = unit->params[i].requires_grad;
    }
    TRY(fsdp_unit_take_buffer(unit));
    TRY(need_grads(unit));
    unit->has_begun = true;
    return SHOAL_OK;
}

void *fsdp_unit_grad(struct fsdp_unit *unit, struct fsdp_param *param)
{
    if (param->count == 0) {
        return param->shard; /* nothing is there to add to, which is not an error */
    }
    return param->is_direct ? unit->buffer->data + param->reduce_offset : unit->grads + param->grad_offset;
}

/* Block by block, cast on the way. */
static void put_grad(struct fsdp_unit *unit, const struct fsdp_param *param, shoal_dtype dtype,
                     const void *grad, bool is_added)
{
    size_t to_bytes = dtype_bytes(unit->reduce_dtype);
    size_t from_bytes = dtype_bytes(dtype);
    for (int64_t w = 0; w < unit->context->mesh.n_shards; w++) {
        int64_t begin;
        int64_t end;
        fsdp_param_rows(param, w, &begin, &end);
        size_t count = (size_t)((end - begin) * param->inner);
        for (int64_t o = 0; o < param->outer; o++) {
            size_t to_at = (size_t)w * param->padded_count + (size_t)(o * param->chunk * param->inner);
            size_t from_at = (size_t)((o * param->size + begin) * param->inner);
            char *to = unit->buffer->data + param->reduce_offset + to_at * to_bytes;
            const char *from = (const char *)grad + from_at * from_bytes;
            if (is_added) {
                add_cast(unit->reduce_dtype, to, dtype, from, count);
            } else {
                kernel_cast(unit->reduce_dtype, to, dtype, from, count);
            }
        }
    }
}

void fsdp_unit_put_grad(struct fsdp_unit *unit, const struct fsdp_param *param, shoal_dtype dtype,
                        const void *grad)
{
    put_grad(unit, param, dtype, grad, unit->has_accumulated);
}

/* What kernels could not write in place; `is_new`: and have written since the last time. */
static shoal_status collect_grads(struct fsdp_unit *unit, bool is_new)
{
    if (unit->watch) {
        TRY(settle_reductions(unit));
        return unit->watch->collect(unit);
    }
    for (size_t i = 0; unit->buffer && i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        bool stays = stays_until_reduced(unit, param);
        if (param->is_reduced && !param->is_direct && (stays ? unit->reduces : is_new)) {
            put_grad(unit, param, param->compute, unit->grads + param->grad_offset,
                     unit->has_accumulated && !stays);
        }
    }
    return SHOAL_OK;
}

/* Starting ----------------------------------------------------------------------------------------------- */

static shoal_status list_parts(const struct fsdp_unit *unit, char *send, size_t n_blocks, char *recv,
                               shoal_part **parts_out, size_t *n_parts_out)
{
    size_t n = 0;
    shoal_part *parts = mem_alloc(unit->n_params * sizeof *parts);
    if (!parts) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        if (param->is_reduced) {
            parts[n++] =
                (shoal_part){.send = send + (n_blocks > 1 ? param->reduce_offset : param->output_offset),
                             .recv = recv + param->output_offset,
                             .count = param->padded_count};
        }
    }
    *parts_out = parts;
    *n_parts_out = n;
    return SHOAL_OK;
}

static shoal_status start_scatter(struct fsdp_reduction *reduction)
{
    const struct fsdp_unit *unit = reduction->unit;
    const struct fsdp_mesh *mesh = &unit->context->mesh;
    shoal_part *parts;
    size_t n_parts;
    TRY(list_parts(unit, reduction->buffer->data, (size_t)mesh->n_shards, reduction->output, &parts,
                   &n_parts));
    shoal_status status =
        collectives_start_list(mesh->reduce, COLLECTIVE_REDUCE_SCATTER, parts, n_parts, unit->reduce_dtype,
                               reduction->factors.scatter, reduction->factors.premul,
                               fsdp_label_of_reduction(unit), &reduction->work);
    mem_free(parts);
    return status;
}

static shoal_status start_all_reduce(struct fsdp_reduction *reduction)
{
    const struct fsdp_unit *unit = reduction->unit;
    shoal_part *parts;
    size_t n_parts;
    TRY(list_parts(unit, reduction->output, 1, reduction->output, &parts, &n_parts));
    shoal_status status = collectives_start_list(unit->context->mesh.replicate, COLLECTIVE_ALL_REDUCE, parts,
                                                 n_parts, unit->reduce_dtype, reduction->factors.all_reduce,
                                                 1.0, fsdp_label_of_reduction(unit), &reduction->work);
    mem_free(parts);
    reduction->is_all_reduce = true;
    return status;
}

/* With one shard what comes out is what went in. */
static struct fsdp_reduction reduction_of(struct fsdp_unit *unit)
{
    const struct fsdp_mesh *mesh = &unit->context->mesh;
    struct fsdp_buffer *buffer = unit->buffer;
    return (struct fsdp_reduction){
        .unit = unit,
        .buffer = buffer,
        .output = mesh->n_shards > 1 ? buffer->data + unit->reduce_bytes : buffer->data,
        .factors = fsdp_factors_choose(mesh->n_shards, mesh->n_replicas, unit->reduce_dtype,
                                       unit->divide_factor, unit->forces_sum),
        .all_reduces = unit->all_reduces};
}

static shoal_status need_reductions(struct fsdp_context *context)
{
    return mem_grow((void **)&context->reductions, &context->reductions_capacity, context->n_reductions + 1,
                    sizeof context->reductions[0]);
}

/* From now on the buffer is the reduction's. */
static void add_reduction(struct fsdp_unit *unit, const struct fsdp_reduction *reduction)
{
    struct fsdp_context *context = unit->context;
    context->reductions[context->n_reductions++] = *reduction;
    context->last_reduced = unit;
    unit->buffer = NULL;
    unit->has_accumulated = false;
    unit->is_owed = false;
}

static shoal_status start_reduction(struct fsdp_unit *unit)
{
    TRY(need_reductions(unit->context));
    struct fsdp_reduction reduction = reduction_of(unit);
    size_t n_elements = unit->reduce_bytes / dtype_bytes(unit->reduce_dtype);
    divide(unit->reduce_dtype, reduction.buffer->data, n_elements, reduction.factors.before);
    if (unit->context->mesh.n_shards > 1) {
        if (unit->hook) { /* which sees what is between parameters, too */
            memset(reduction.output, 0, unit->output_bytes);
        }
        TRY(unit->custom_scatter.call ? fsdp_custom_start_scatter(&reduction) : start_scatter(&reduction));
    }
    add_reduction(unit, &reduction);
    return SHOAL_OK;
}

/* Ending ------------------------------------------------------------------------------------------------- */

static shoal_status wait_for_work(struct fsdp_reduction *reduction)
{
    if (!reduction->work) {
        return SHOAL_OK;
    }
    shoal_status status = shoal_work_wait(reduction->work, -1);
    shoal_work_free(reduction->work);
    reduction->work = NULL;
    return name_unit(reduction->unit, status);
}

/* Whatever became of it, its buffer is free: which buffers are must not differ between ranks. */
static void drop_reduction(struct fsdp_reduction *reduction)
{
    (void)wait_for_work(reduction);
    fsdp_custom_drop_scatter(reduction);
    fsdp_buffers_release(reduction->buffer);
}

static shoal_status land_param(const struct fsdp_unit *unit, struct fsdp_param *param, const char *from)
{
    if (!param->shard_grad) {
        size_t bytes = param->shard_count * dtype_bytes(param->dtype);
        param->shard_grad = mem_alloc_aligned(bytes > 0 ? bytes : 1, FSDP_ALIGNMENT);
        if (!param->shard_grad) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    if (param->has_grad) {
        add_cast(param->dtype, param->shard_grad, unit->reduce_dtype, from, param->shard_count);
    } else {
        kernel_cast(param->dtype, param->shard_grad, unit->reduce_dtype, from, param->shard_count);
    }
    param->has_grad = true;
    return SHOAL_OK;
}

static shoal_status land_params(struct fsdp_reduction *reduction)
{
    struct fsdp_unit *unit = reduction->unit;
    size_t n_elements = unit->output_bytes / dtype_bytes(unit->reduce_dtype);
    divide(unit->reduce_dtype, reduction->output, n_elements, reduction->factors.after);
    if (unit->watch) {
        TRY(name_unit(unit, unit->watch->landing(unit)));
    }
    for (size_t i = 0; i < unit->n_params; i++) {
        struct fsdp_param *param = &unit->params[i];
        if (param->is_reduced) {
            TRY(land_param(unit, param, reduction->output + param->output_offset));
        }
    }
    return SHOAL_OK;
}

/* Into the gradients of the shards. */
static shoal_status land(struct fsdp_reduction *reduction)
{
    struct fsdp_unit *unit = reduction->unit;
    shoal_status status = land_params(reduction);
    drop_reduction(reduction);
    shoal_status (*landed)(struct fsdp_unit *) = unit->watch ? unit->watch->landed : unit->landed;
    return status == SHOAL_OK && landed ? landed(unit) : status;
}

/* What is kept for the replicas has the places of the parameters that got gradients then. */
static shoal_status check_partial(const struct fsdp_unit *unit)
{
    for (size_t i = 0; unit->has_partial && i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        if (param->is_reduced != param->is_partial) {
            return error_set(
                SHOAL_ERR_STATE,
                "%s: parameter %s %s a gradient, unlike in the backward before, whose gradients the "
                "replicas have not added up yet",
                unit->name, param->name, param->is_reduced ? "has" : "has not");
        }
    }
    return SHOAL_OK;
}

static shoal_status need_partial(struct fsdp_unit *unit)
{
    if (unit->output_bytes > unit->partial_capacity) {
        mem_free(unit->partial);
        unit->partial_capacity = 0;
        unit->partial = mem_alloc_aligned(unit->output_bytes, FSDP_ALIGNMENT);
        if (!unit->partial) {
            return SHOAL_ERR_NO_MEMORY;
        }
        unit->partial_capacity = unit->output_bytes;
    }
    return SHOAL_OK;
}

/* Over the shards, but not over the replicas: kept for the next backward. */
static shoal_status put_partial(const struct fsdp_reduction *reduction)
{
    struct fsdp_unit *unit = reduction->unit;
    TRY(check_partial(unit));
    TRY(need_partial(unit));
    if (unit->has_partial) {
        combine(KERNEL_ADD, unit->reduce_dtype, unit->partial, reduction->output, 1,
                unit->output_bytes / dtype_bytes(unit->reduce_dtype));
        return SHOAL_OK;
    }
    memcpy(unit->partial, reduction->output, unit->output_bytes);
    for (size_t i = 0; i < unit->n_params; i++) {
        unit->params[i].is_partial = unit->params[i].is_reduced;
    }
    unit->has_partial = true;
    return SHOAL_OK;
}

static shoal_status add_partial(struct fsdp_reduction *reduction)
{
    struct fsdp_unit *unit = reduction->unit;
    TRY(check_partial(unit));
    if (unit->has_partial) {
        combine(KERNEL_ADD, unit->reduce_dtype, reduction->output, unit->partial, 1,
                unit->output_bytes / dtype_bytes(unit->reduce_dtype));
        unit->has_partial = false;
    }
    return SHOAL_OK;
}

static void remove_first(struct fsdp_context *context)
{
    context->n_reductions--;
    memmove(&context->reductions[0], &context->reductions[1],
            context->n_reductions * sizeof context->reductions[0]);
}

/* One that has failed: its gradients are lost, its buffer is not. */
static shoal_status drop_first(struct fsdp_context *context, shoal_status status)
{
    struct fsdp_reduction reduction = context->reductions[0];
    remove_first(context);
    drop_reduction(&reduction);
    return status;
}

static shoal_status land_first(struct fsdp_context *context)
{
    struct fsdp_reduction reduction = context->reductions[0];
    remove_first(context);
    return land(&reduction);
}

/* What the hook leaves to be waited for is in reduction->work. */
static shoal_status run_hook(struct fsdp_reduction *reduction)
{
    const struct fsdp_unit *unit = reduction->unit;
    const struct fsdp_mesh *mesh = &unit->context->mesh;
    if (!unit->hook || reduction->was_hooked) {
        return SHOAL_OK;
    }
    const shoal_reduced_gradients reduced = {.data = reduction->output,
                                             .count = unit->output_bytes / dtype_bytes(unit->reduce_dtype),
                                             .dtype = unit->reduce_dtype,
                                             .shards = mesh->reduce,
                                             .replicas = mesh->replicate,
                                             .unit = unit->name};
    reduction->was_hooked = true;
    error_clear();
    shoal_status status = unit->hook(unit->hook_context, &reduced, &reduction->work);
    if (status != SHOAL_OK) {
        status = error_prefix(status, "%s: its all-reduce hook", unit->name);
        fsdp_custom_drop_work(&reduction->work);
    }
    return status;
}

static shoal_status end_all_reduce(struct fsdp_reduction *reduction)
{
    TRY(wait_for_work(reduction));
    TRY(run_hook(reduction));
    return wait_for_work(reduction);
}

/* All-reduces come first in the list. Ends them. */
static shoal_status end_all_reduces(struct fsdp_context *context)
{
    while (context->n_reductions > 0 && context->reductions[0].is_all_reduce) {
        shoal_status status = end_all_reduce(&context->reductions[0]);
        TRY(status == SHOAL_OK ? land_first(context) : drop_first(context, status));
    }
    return SHOAL_OK;
}

/* From the shards to the replicas, or to the hook. */
static shoal_status carry_on(struct fsdp_reduction *reduction)
{
    TRY(wait_for_work(reduction));
    fsdp_custom_end_scatter(reduction);
    if (!reduction->unit->context->mesh.replicate) {
        TRY(run_hook(reduction));
        reduction->is_all_reduce = reduction->work != NULL;
        return SHOAL_OK;
    }
    if (!reduction->all_reduces) {
        return put_partial(reduction);
    }
    TRY(add_partial(reduction));
    return name_unit(reduction->unit, start_all_reduce(reduction));
}

/* The oldest reduce-scatter, which is first in the list: its gradients land, are kept, or go on. */
static shoal_status end_scatter(struct fsdp_context *context)
{
    struct fsdp_reduction *first = &context->reductions[0];
    shoal_status status = carry_on(first);
    if (status != SHOAL_OK || (context->mesh.replicate && !first->all_reduces)) {
        return drop_first(context, status);
    }
    return first->is_all_reduce ? SHOAL_OK : land_first(context);
}

static size_t count_scatters(const struct fsdp_context *context)
{
    size_t n = 0;
    for (size_t i = 0; i < context->n_reductions; i++) {
        n += !context->reductions[i].is_all_reduce;
    }
    return n;
}

/* While the last of them goes over the replicas, the step goes on. */
static shoal_status end_scatters(struct fsdp_context *context, size_t n_left)
{
    while (count_scatters(context) > n_left) {
        TRY(end_all_reduces(context));
        TRY(end_scatter(context));
    }
    return SHOAL_OK;
}

shoal_status fsdp_drain(struct fsdp_context *context, size_t n_left)
{
    TRY(end_scatters(context, n_left));
    return n_left == 0 ? end_all_reduces(context) : SHOAL_OK;
}

/* Parameters without elements, and no others: there is nothing to send, but they have gradients. */
static shoal_status land_nothing(struct fsdp_unit *unit)
{
    char nothing = 0;
    struct fsdp_reduction reduction = {.unit = unit, .output = &nothing, .factors.after = 1.0};
    TRY(land_params(&reduction));
    return unit->watch->landed(unit);
}

shoal_status fsdp_unit_end_grads(struct fsdp_unit *unit)
{
    struct fsdp_context *context = unit->context;
    bool is_new = unit->has_begun;
    unit->has_begun = false;
    shoal_status status = collect_grads(unit, is_new);
    if (status == SHOAL_OK && !unit->buffer && unit->watch && unit->reduces) {
        status = land_nothing(unit);
    }
    if (status != SHOAL_OK || !unit->buffer) {
        return name_unit(unit, status);
    }
    if (!unit->reduces) {
        unit->has_accumulated = true;
        return SHOAL_OK;
    }
    TRY(end_scatters(context, (size_t)context->max_reduces - 1));
    return name_unit(unit, start_reduction(unit));
}

shoal_status fsdp_unit_reduce_partial(struct fsdp_unit *unit)
{
    for (size_t i = 0; i < unit->n_params; i++) {
        unit->params[i].is_reduced = unit->params[i].is_partial;
    }
    TRY(fsdp_unit_take_buffer(unit));
    TRY(end_scatters(unit->context, (size_t)unit->context->max_reduces - 1));
    TRY(need_reductions(unit->context));
    struct fsdp_reduction reduction = reduction_of(unit);
    memcpy(reduction.output, unit->partial, unit->output_bytes);
    unit->has_partial = false;
    add_reduction(unit, &reduction);
    return SHOAL_OK;
}

/* Giving up ---------------------------------------------------------------------------------------------- */

void fsdp_drop_reductions(struct fsdp_context *context)
{
    for (size_t i = 0; i < context->n_reductions; i++) {
        drop_reduction(&context->reductions[i]);
    }
    context->n_reductions = 0;
}

void fsdp_unit_drop_grads(struct fsdp_unit *unit)
{
    if (unit->buffer) {
        fsdp_buffers_release(unit->buffer);
        unit->buffer = NULL;
    }
    unit->has_begun = false;
    unit->has_accumulated = false;
    unit->has_partial = false;
    unit->is_owed = false;
}
