/* SPDX-License-Identifier: MIT */
/*
 * One backward. Buckets leave in the order of the plan, on every rank: one that is full early waits for those before it.
 * The first backward after the lane was opened only watches in which order, and how often, gradients come; all buckets
 * leave at its end, and the plan is then made again from what the first rank saw.
 *
 *     begin      the first gradient: what a failed backward left, lane and block if need be, the hook for the end
 *     ready      a parameter that came as often as expected; full buckets leave
 *     end        what has not come is filled in; the rest leaves; ranks compare what they have not seen; results land
 */
#include <inttypes.h>

#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/work.h"
#include "parallel/ddp/ddp.h"
#include "shoal/work.h"
#include "tensor/dtype.h"

/* Buckets that leave ------------------------------------------------------------------------------------- */

static void drop_fences(struct ddp *ddp, size_t n_fences)
{
    for (size_t i = 0; i < n_fences; i++) {
        storage_drop_fence(ddp->fences[i]);
    }
}

/* Whoever looks at a gradient that is on its way waits for it. */
static shoal_status make_fences(struct ddp *ddp, const struct ddp_range *bucket)
{
    const size_t *members = &ddp->plan.members[bucket->first];
    for (size_t i = 0; i < bucket->n_items; i++) {
        struct storage *storage = ddp->params[members[i]].gradient->storage;
        shoal_status status = storage_wait_writable(storage, /*overwrites=*/false);
        ddp->fences[i] = status == SHOAL_OK ? storage_make_fence(storage, storage_span(storage)) : NULL;
        if (!ddp->fences[i]) {
            drop_fences(ddp, i);
            return status == SHOAL_OK ? SHOAL_ERR_NO_MEMORY : status;
        }
    }
    return SHOAL_OK;
}

static void set_fences(struct ddp *ddp, const struct ddp_range *bucket, shoal_work *work)
{
    const size_t *members = &ddp->plan.members[bucket->first];
    for (size_t i = 0; i < bucket->n_items; i++) {
        storage_set_write(ddp->params[members[i]].gradient->storage, ddp->fences[i], &work->completion);
    }
}

static shoal_status start_bucket(struct ddp *ddp, size_t index)
{
    const struct ddp_range *bucket = &ddp->plan.buckets[index];
    char *data = (char *)shoal_symmetric_data(ddp->block) + bucket->offset;
    TRY(make_fences(ddp, bucket));
    shoal_status status =
        shoal_group_all_reduce_start(ddp->lane, data, data, bucket->bytes / dtype_bytes(bucket->dtype),
                                     bucket->dtype, ddp->reduce, &ddp->works[index]);
    if (status != SHOAL_OK) {
        drop_fences(ddp, bucket->n_items);
        return status;
    }
    set_fences(ddp, bucket, ddp->works[index]);
    ddp->n_started = index + 1;
    return SHOAL_OK;
}

static shoal_status start_full_buckets(struct ddp *ddp)
{
    while (ddp->n_started < ddp->plan.n_buckets &&
           ddp->n_ready[ddp->n_started] == ddp->plan.buckets[ddp->n_started].n_items) {
        TRY(start_bucket(ddp, ddp->n_started));
    }
    return SHOAL_OK;
}

shoal_status ddp_mark_ready(struct ddp_param *param)
{
    struct ddp *ddp = param->ddp;
    ddp->n_ready[ddp->plan.places[param - ddp->params].bucket]++;
    return ddp->is_learning ? SHOAL_OK : start_full_buckets(ddp);
}

/* The order ---------------------------------------------------------------------------------------------- */

/* By stamp; those that never came are last, as in the first plan. Stamps are different numbers up to n_arrivals. */
static void sort_by_stamp(const struct ddp *ddp, uint64_t *by_stamp, uint64_t *order)
{
    size_t n = 0;
    for (size_t i = 0; i < ddp->n_params; i++) {
        by_stamp[ddp->params[i].stamp] = i;
    }
    for (size_t stamp = 1; stamp <= ddp->n_arrivals; stamp++) {
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
    uint64_t *by_stamp = mem_alloc_zeroed(ddp->n_arrivals + 1, sizeof *by_stamp);
    if (!order || !by_stamp) {
        mem_free(order);
        mem_free(by_stamp);
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i <= ddp->n_arrivals; i++) {
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
    shoal_status status =
        ddp_plan_create(ddp->items, indices, ddp->n_params, ddp->first_bytes, ddp->bucket_bytes, plan_out);
    mem_free(indices);
    return status;
}

static shoal_status adopt_order(struct ddp *ddp, const uint64_t *order)
{
    struct ddp_plan plan = {.n_items = 0};
    TRY(plan_from(ddp, order, &plan));
    shoal_status status = ddp_plan_is_same(&ddp->plan, &plan) ? SHOAL_OK : ddp_move(ddp, &plan);
    ddp_plan_free(&plan); /* nothing is left of one that was moved to */
    return status;
}

/* Collective. Without memory here others still get the order of the first rank; this rank then has to start anew. */
static shoal_status learn(struct ddp *ddp)
{
    uint64_t *order;
    TRY(find_order(ddp, &order));
    shoal_status status = shoal_group_broadcast(ddp->lane, order, ddp->n_params, SHOAL_U64, 0);
    if (status == SHOAL_OK) {
        status = adopt_order(ddp, order);
    }
    mem_free(order);
    TRY(status);
    for (size_t i = 0; i < ddp->n_params; i++) {
        size_t n_arrived = ddp->params[i].n_arrived;
        ddp->params[i].n_expected = n_arrived > 0 ? n_arrived : 1;
    }
    ddp->is_learning = false;
    return SHOAL_OK;
}

/* The end ------------------------------------------------------------------------------------------------ */

/* What the ranks say of the parameters. */
struct verdict {
    unsigned char *is_used; /* with finds_unused: by parameter, on any rank; otherwise NULL: all are */
    int64_t missing;        /* parameter * ranks + rank of the first that is missing; INT64_MAX: none */
};

static bool is_missing(const struct ddp_param *param)
{
    return !param->has_part && shoal_requires_grad(param->tensor);
}

static shoal_status ask_used(struct ddp *ddp, struct verdict *verdict)
{
    for (size_t i = 0; i < ddp->n_params; i++) {
        verdict->is_used[i] = ddp->params[i].has_part;
    }
    return shoal_group_all_reduce(ddp->lane, verdict->is_used, verdict->is_used, ddp->n_params, SHOAL_U8,
                                  SHOAL_MAX);
}

static shoal_status ask_missing(struct ddp *ddp, struct verdict *verdict)
{
    int64_t n_ranks = shoal_group_n_ranks(ddp->lane);
    for (size_t i = ddp->n_params; i > 0; i--) {
        if (is_missing(&ddp->params[i - 1])) {
            verdict->missing = (int64_t)(i - 1) * n_ranks + shoal_group_rank(ddp->lane);
        }
    }
    return shoal_group_all_reduce(ddp->lane, &verdict->missing, &verdict->missing, 1, SHOAL_I64, SHOAL_MIN);
}

static shoal_status start_rest(struct ddp *ddp)
{
    for (size_t i = 0; i < ddp->n_params; i++) {
        if (ddp->params[i].n_arrived == 0) {
            TRY(ddp_fill_in(&ddp->params[i]));
        }
    }
    while (ddp->n_started < ddp->plan.n_buckets) {
        TRY(start_bucket(ddp, ddp->n_started));
    }
    return SHOAL_OK;
}

static shoal_status wait_for_buckets(struct ddp *ddp)
{
    for (size_t i = 0; i < ddp->plan.n_buckets; i++) {
        TRY(shoal_work_wait(ddp->works[i], -1.0));
        shoal_work_free(ddp->works[i]);
        ddp->works[i] = NULL;
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
    int64_t n_ranks = shoal_group_n_ranks(ddp->lane);
    if (verdict->missing == INT64_MAX) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_STATE,
                     "parameter %s got no gradient on rank %" PRId64
                     ": use it in every backward, freeze it, or set finds_unused",
                     ddp->params[verdict->missing / n_ranks].path, verdict->missing % n_ranks);
}

/* All collectives of a backward's end are over afterwards, or it returns an error and the lane is of no use. */
static shoal_status reduce_all(struct ddp *ddp, struct verdict *verdict)
{
    TRY(start_rest(ddp));
    TRY(verdict->is_used ? ask_used(ddp, verdict) : ask_missing(ddp, verdict));
    TRY(wait_for_buckets(ddp));
    TRY(land_all(ddp, verdict));
    return ddp->is_learning && verdict->missing == INT64_MAX ? learn(ddp) : SHOAL_OK;
}

static shoal_status end_synchronised(struct ddp *ddp)
{
    struct verdict verdict = {.missing = INT64_MAX};
    if (ddp->finds_unused) {
        verdict.is_used = mem_alloc(ddp->n_params);
        if (!verdict.is_used) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    shoal_status status = reduce_all(ddp, &verdict);
    mem_free(verdict.is_used);
    TRY(status);
    ddp->is_running = false;
    return name_missing(ddp, &verdict);
}

/* One that fails before this has ended stays "running", which the next one notices. */
static shoal_status end_backward(void *context)
{
    struct ddp *ddp = context;
    if (!ddp->syncs) {
        ddp->is_running = false;
        return SHOAL_OK;
    }
    shoal_status status = end_synchronised(ddp);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "ddp");
}

/* The beginning ------------------------------------------------------------------------------------------ */

/* On the way to parameters of the module, since the last time. */
static bool has_failed_before(struct ddp *ddp)
{
    bool has_failed = false;
    for (size_t i = 0; i < ddp->n_params; i++) {
        struct ddp_param *param = &ddp->params[i];
        const struct leaf *leaf = leaf_of(param->tensor);
        if (leaf && leaf == param->leaf) {
            has_failed = has_failed || leaf->n_failures != param->n_failures;
            param->n_failures = leaf->n_failures;
        }
    }
    return has_failed;
}

void ddp_notice_failure(struct ddp *ddp)
{
    bool has_failed = has_failed_before(ddp);
    if (has_failed && !ddp->is_running) { /* others may be in that backward, and wait */
        ddp->is_broken = ddp->is_broken || ddp->wanted_sync;
    }
    if (!ddp->is_running || ddp->backward == backward_number()) {
        return;
    }
    ddp->is_running = false;
    ddp->is_broken = ddp->is_broken || ddp->syncs;
    for (size_t i = 0; i < ddp->n_params; i++) {
        struct ddp_param *param = &ddp->params[i];
        param->is_left = param->is_left || param->n_arrived > 0 || ddp->n_started > 0;
    }
}

/* Gradients of a backward that failed: somebody must have removed them or written to them. */
static shoal_status check_left(struct ddp *ddp)
{
    for (size_t i = 0; i < ddp->n_params; i++) {
        struct ddp_param *param = &ddp->params[i];
        if (param->is_left && ddp_is_ours(param) && shoal_tensor_version(param->gradient) == param->version) {
            return error_set(SHOAL_ERR_STATE,
                             "parameter %s has the gradient that a failed backward left: remove it, or write "
                             "zeros",
                             param->path);
        }
        if (param->is_left) {
            param->is_left = false;
            param->is_reduced = false;
            param->is_local = false;
            param->has_aside = false;
        }
    }
    return SHOAL_OK;
}

static shoal_status open_again(struct ddp *ddp)
{
    const shoal_group *old = ddp->lane;
    ddp_close(ddp);
    ddp->generation++;
    shoal_status status = ddp_open(ddp);
    if (ddp->lane == old) {
        ddp->generation--; /* for want of memory: the others have not heard of a new one either */
    }
    TRY(status);
    ddp->is_broken = false;
    return SHOAL_OK;
}

static void clear_progress(struct ddp *ddp)
{
    ddp->n_arrivals = 0;
    ddp->n_started = 0;
    for (size_t i = 0; i < ddp->plan.n_buckets; i++) {
        ddp->n_ready[i] = 0;
    }
    for (size_t i = 0; i < ddp->n_params; i++) {
        struct ddp_param *param = &ddp->params[i];
        param->n_arrived = 0;
        param->stamp = 0;
        param->has_part = false;
    }
}

shoal_status ddp_begin(struct ddp *ddp)
{
    uint64_t number = backward_number();
    if (ddp->is_running && ddp->backward == number) {
        return SHOAL_OK;
    }
    if (!ddp->world) {
        return error_set(SHOAL_ERR_STATE, "the world of the module's group is closed");
    }
    ddp_notice_failure(ddp);
    TRY(check_left(ddp));
    ddp->syncs = ddp->wants_sync;
    ddp->backward = number;
    if (ddp->syncs && ddp->is_broken) {
        TRY(open_again(ddp));
    }
    clear_progress(ddp);
    TRY(shoal_group_set_timeout(ddp->lane, shoal_group_timeout(ddp->group)));
    ddp->is_running = true; /* if the next call fails too: others may be in this backward already */
    return shoal_on_backward_end(end_backward, ddp);
}
