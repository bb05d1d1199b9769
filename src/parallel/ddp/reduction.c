/* SPDX-License-Identifier: MIT */
#include "parallel/ddp/reduction.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "base/label.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "comm/lane/handles.h"
#include "parallel/ddp/block.h"
#include "parallel/ddp/purpose.h"
#include "shoal/work.h"
#include "tensor/dtype.h"
#include "tensor/storage.h"
#include "tensor/tensor.h"

/* Buckets that leave ------------------------------------------------------------------------------------- */

static void drop_fences(struct ddp *ddp, size_t n_fences)
{
    for (size_t i = 0; i < n_fences; i++) {
        storage_drop_fence(ddp->backward.fences[i]);
    }
}

/* Makes fences for the gradients of a bucket, so that a program that uses one waits until it is reduced. */
static shoal_status make_fences(struct ddp *ddp, const struct ddp_range *bucket)
{
    const size_t *members = &ddp->buckets.plan.members[bucket->first];
    for (size_t i = 0; i < bucket->n_items; i++) {
        struct storage *storage = ddp->params[members[i]].gradient->storage;
        shoal_status status = storage_wait_writable(storage, /*overwrites=*/false);
        ddp->backward.fences[i] =
            status == SHOAL_OK ? storage_make_fence(storage, storage_span(storage)) : NULL;
        if (!ddp->backward.fences[i]) {
            drop_fences(ddp, i);
            return status == SHOAL_OK ? SHOAL_ERR_NO_MEMORY : status;
        }
    }
    return SHOAL_OK;
}

static void set_fences(struct ddp *ddp, const struct ddp_range *bucket, shoal_work *work)
{
    const size_t *members = &ddp->buckets.plan.members[bucket->first];
    for (size_t i = 0; i < bucket->n_items; i++) {
        storage_set_write(ddp->params[members[i]].gradient->storage, ddp->backward.fences[i],
                          work_completion(work));
    }
}

/* "net bucket 3", for the flight record and the trace. */
static uint32_t label_bucket(const struct ddp *ddp, size_t index)
{
    char name[LABEL_MAX_CHARS + 1];
    (void)snprintf(name, sizeof name, "%.64s bucket %zu", shoal_module_type(ddp->module), index);
    return label_of(name);
}

static shoal_status start_bucket(struct ddp *ddp, size_t index)
{
    const struct ddp_range *bucket = &ddp->buckets.plan.buckets[index];
    void *data = address_pointer(address_add(ddp->buckets.memory, (ptrdiff_t)bucket->offset));
    struct purpose purpose = ddp_backward_purpose(ddp, PURPOSE_DDP_BUCKET);
    purpose.unit = (uint32_t)index + 1;
    purpose.label = label_bucket(ddp, index);
    struct collective call = {
        .kind = COLLECTIVE_ALL_REDUCE,
        .dtype = bucket->dtype,
        .device = ddp->device,
        .reduce = ddp->config.reduce,
        .factor = ddp->config.factor,
        .single = {.send = data, .recv = data, .count = bucket->bytes / dtype_bytes(bucket->dtype)},
        .purpose = &purpose};
    TRY(make_fences(ddp, bucket));
    shoal_status status = collectives_start(ddp->lane.group, &call, &ddp->backward.works[index]);
    if (status != SHOAL_OK) {
        drop_fences(ddp, bucket->n_items);
        return status;
    }
    set_fences(ddp, bucket, ddp->backward.works[index]);
    ddp->backward.n_started = index + 1;
    return SHOAL_OK;
}

static shoal_status start_full_buckets(struct ddp *ddp)
{
    while (ddp->backward.n_started < ddp->buckets.plan.n_buckets &&
           ddp->backward.n_ready[ddp->backward.n_started] ==
               ddp->buckets.plan.buckets[ddp->backward.n_started].n_items) {
        TRY(start_bucket(ddp, ddp->backward.n_started));
    }
    return SHOAL_OK;
}

shoal_status ddp_mark_ready(struct ddp_param *param)
{
    struct ddp *ddp = param->ddp;
    ddp->backward.n_ready[ddp->buckets.plan.places[param - ddp->params].bucket]++;
    return ddp->buckets.is_learning ? SHOAL_OK : start_full_buckets(ddp);
}

/* The order ---------------------------------------------------------------------------------------------- */

/* Sorts parameters by stamp; stamps are different numbers up to n_arrivals. Those without a gradient are last, in the
   order of the first plan. */
static void sort_by_stamp(const struct ddp *ddp, uint64_t *by_stamp, uint64_t *order)
{
    size_t n = 0;
    for (size_t i = 0; i < ddp->n_params; i++) {
        by_stamp[ddp->params[i].stamp] = i;
    }
    for (size_t stamp = 1; stamp <= ddp->backward.n_arrivals; stamp++) {
        if (by_stamp[stamp] != UINT64_MAX) {
            order[n++] = by_stamp[stamp];
        }
    }
    for (size_t i = ddp->n_params; i > 0; i--) {
        if (ddp->params[i - 1].stamp == 0) {
            order[n++] = i - 1;
        }
    }
}

static shoal_status find_order(const struct ddp *ddp, uint64_t **order_out)
{
    uint64_t *order = mem_alloc_zeroed(ddp->n_params, sizeof *order);
    uint64_t *by_stamp = mem_alloc_zeroed(ddp->backward.n_arrivals + 1, sizeof *by_stamp);
    if (!order || !by_stamp) {
        mem_free(order);
        mem_free(by_stamp);
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i <= ddp->backward.n_arrivals; i++) {
        by_stamp[i] = UINT64_MAX;
    }
    sort_by_stamp(ddp, by_stamp, order);
    mem_free(by_stamp);
    *order_out = order;
    return SHOAL_OK;
}

static shoal_status plan_from(const struct ddp *ddp, const uint64_t *order, struct ddp_plan *plan_out)
{
    size_t *indices = mem_alloc_zeroed(ddp->n_params, sizeof *indices);
    if (!indices) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < ddp->n_params; i++) {
        indices[i] = (size_t)order[i];
    }
    shoal_status status = ddp_plan_create(ddp->buckets.items, indices, ddp->n_params, ddp->config.first_bytes,
                                          ddp->config.bucket_bytes, plan_out);
    mem_free(indices);
    return status;
}

static shoal_status adopt_order(struct ddp *ddp, const uint64_t *order)
{
    struct ddp_plan plan = {.n_items = 0};
    TRY(plan_from(ddp, order, &plan));
    shoal_status status = ddp_plan_is_same(&ddp->buckets.plan, &plan) ? SHOAL_OK : ddp_move(ddp, &plan);
    ddp_plan_free(&plan); /* does nothing if ddp_move has taken the plan over */
    return status;
}

/* Collective. Makes the plan again, from the first rank's order of arrival. If that fails on a rank, its backward pass
   has failed, and the lane is replaced (block.h). */
static shoal_status learn(struct ddp *ddp)
{
    uint64_t *order;
    TRY(find_order(ddp, &order));
    struct purpose purpose = ddp_backward_purpose(ddp, PURPOSE_DDP_ORDER);
    struct collective call = {.kind = COLLECTIVE_BROADCAST,
                              .dtype = SHOAL_U64,
                              .single = {.send = order, .recv = order, .count = ddp->n_params},
                              .purpose = &purpose};
    shoal_status status = collectives_run(ddp->lane.group, &call);
    if (status == SHOAL_OK) {
        status = adopt_order(ddp, order);
    }
    mem_free(order);
    TRY(status);
    for (size_t i = 0; i < ddp->n_params; i++) {
        size_t n_arrived = ddp->params[i].n_arrived;
        ddp->params[i].n_expected = n_arrived > 0 ? n_arrived : 1;
    }
    ddp->buckets.is_learning = false;
    return SHOAL_OK;
}

/* The end ------------------------------------------------------------------------------------------------ */

/* What is known about the parameters over all ranks. */
struct verdict {
    /* With reduce_unused: whether any rank used the parameter; NULL if all are used. */
    unsigned char *is_used;
    /* The first missing gradient: parameter * ranks + rank; INT64_MAX if there is none. */
    int64_t missing;
};

static bool is_missing(const struct ddp_param *param)
{
    return !param->has_part && shoal_requires_grad(param->tensor);
}

static shoal_status ask(struct ddp *ddp, void *data, size_t count, shoal_dtype dtype, shoal_reduce_op reduce)
{
    struct purpose purpose = ddp_backward_purpose(ddp, PURPOSE_DDP_BACKWARD);
    struct collective call = {.kind = COLLECTIVE_ALL_REDUCE,
                              .dtype = dtype,
                              .reduce = reduce,
                              .single = {.send = data, .recv = data, .count = count},
                              .purpose = &purpose};
    return collectives_run(ddp->lane.group, &call);
}

static shoal_status ask_used(struct ddp *ddp, struct verdict *verdict)
{
    for (size_t i = 0; i < ddp->n_params; i++) {
        verdict->is_used[i] = ddp->params[i].has_part;
    }
    return ask(ddp, verdict->is_used, ddp->n_params, SHOAL_U8, SHOAL_MAX);
}

static shoal_status ask_missing(struct ddp *ddp, struct verdict *verdict)
{
    int64_t n_ranks = shoal_group_n_ranks(ddp->lane.group);
    for (size_t i = ddp->n_params; i > 0; i--) {
        if (is_missing(&ddp->params[i - 1])) {
            verdict->missing = (int64_t)(i - 1) * n_ranks + shoal_group_rank(ddp->lane.group);
        }
    }
    return ask(ddp, &verdict->missing, 1, SHOAL_I64, SHOAL_MIN);
}

static shoal_status start_rest(struct ddp *ddp)
{
    for (size_t i = 0; i < ddp->n_params; i++) {
        if (ddp->params[i].n_arrived == 0) {
            TRY(ddp_fill_in(&ddp->params[i]));
        }
    }
    while (ddp->backward.n_started < ddp->buckets.plan.n_buckets) {
        TRY(start_bucket(ddp, ddp->backward.n_started));
    }
    return SHOAL_OK;
}

static shoal_status wait_for_buckets(struct ddp *ddp)
{
    for (size_t i = 0; i < ddp->buckets.plan.n_buckets; i++) {
        TRY(shoal_work_wait(ddp->backward.works[i], -1.0));
        shoal_work_free(ddp->backward.works[i]);
        ddp->backward.works[i] = NULL;
    }
    return SHOAL_OK;
}

static shoal_status land_all(struct ddp *ddp, const struct verdict *verdict)
{
    for (size_t i = 0; i < ddp->n_params; i++) {
        TRY(ddp_land(&ddp->params[i], !verdict->is_used || verdict->is_used[i]));
    }
    return SHOAL_OK;
}

static shoal_status name_missing(const struct ddp *ddp, const struct verdict *verdict)
{
    int64_t n_ranks = shoal_group_n_ranks(ddp->lane.group);
    if (verdict->missing == INT64_MAX) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_STATE,
                     "parameter %s got no gradient on rank %" PRId64
                     ": use it in every backward pass, freeze it, or set reduce_unused",
                     ddp->params[verdict->missing / n_ranks].path, verdict->missing % n_ranks);
}

/* Afterwards all collectives of the end of a backward pass are over; after an error the lane cannot be used again. */
static shoal_status reduce_all(struct ddp *ddp, struct verdict *verdict)
{
    TRY(ddp_share_block(ddp));
    TRY(start_rest(ddp));
    TRY(verdict->is_used ? ask_used(ddp, verdict) : ask_missing(ddp, verdict));
    TRY(wait_for_buckets(ddp));
    TRY(land_all(ddp, verdict));
    return ddp->buckets.is_learning && verdict->missing == INT64_MAX ? learn(ddp) : SHOAL_OK;
}

shoal_status ddp_end_backward(struct ddp *ddp)
{
    struct verdict verdict = {.missing = INT64_MAX};
    if (ddp->config.reduce_unused) {
        verdict.is_used = mem_alloc(ddp->n_params);
        if (!verdict.is_used) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    shoal_status status = reduce_all(ddp, &verdict);
    mem_free(verdict.is_used);
    TRY(status);
    ddp->backward.is_running = false;
    return name_missing(ddp, &verdict);
}
