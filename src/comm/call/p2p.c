/* SPDX-License-Identifier: MIT */
/* The public calls of point to point: they check the arguments, make a batch of them, and post it (p2p/engine.c). */
#include "comm/p2p/p2p.h"

#include <stdio.h>
#include <string.h>

#include "base/callback.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/trace.h"
#include "base/try.h"
#include "comm/call/apart.h"
#include "comm/group/group.h"
#include "comm/lane/lane.h"
#include "comm/p2p/engine.h"
#include "comm/group/world.h"
#include "tensor/dtype.h"

/* What was asked for ----------------------------------------------------------------------------------- */

static shoal_status check_transfer(const struct shoal_group *group, const shoal_transfer *transfer)
{
    size_t bytes = 0;
    if (transfer->direction != SHOAL_SEND && transfer->direction != SHOAL_RECV) {
        return error_set(SHOAL_ERR_INVALID, "direction is %d, SHOAL_SEND or SHOAL_RECV expected",
                         (int)transfer->direction);
    }
    TRY(dtype_check(transfer->dtype, "dtype"));
    if (!mem_multiply(transfer->count, dtype_bytes(transfer->dtype), &bytes) || bytes > SIZE_MAX / 2) {
        return error_set(SHOAL_ERR_INVALID, "count %zu of %s is more than memory can hold", transfer->count,
                         shoal_dtype_name(transfer->dtype));
    }
    if (!transfer->buffer && transfer->count > 0 && transfer->peer != SHOAL_NO_RANK) {
        return error_set(SHOAL_ERR_INVALID, "buffer is NULL, but count is %zu", transfer->count);
    }
    if ((transfer->peer < 0 || transfer->peer >= group->peers.n_ranks) && transfer->peer != SHOAL_NO_RANK) {
        return error_set(SHOAL_ERR_INVALID, "peer %d is outside of the group of %d ranks", transfer->peer,
                         group->peers.n_ranks);
    }
    if (transfer->tag < 0) {
        return error_set(SHOAL_ERR_INVALID, "tag %d is negative", transfer->tag);
    }
    return SHOAL_OK;
}

/* A list of up to so many transfers is kept on the stack. */
#define FEW_TRANSFERS 32

/* Transfers have no order, so what one receives, no other may send or receive. */
static shoal_status check_apart(const shoal_transfer *transfers, size_t n_transfers)
{
    struct apart_interval few[FEW_TRANSFERS];
    struct apart_interval *intervals = few;
    size_t n = 0;
    if (n_transfers > FEW_TRANSFERS) {
        intervals = mem_alloc(n_transfers * sizeof *intervals);
        if (!intervals) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    for (size_t i = 0; i < n_transfers; i++) {
        size_t bytes = transfers[i].count * dtype_bytes(transfers[i].dtype);
        uintptr_t begin = (uintptr_t)transfers[i].buffer;
        if (bytes > 0 && transfers[i].peer != SHOAL_NO_RANK) {
            intervals[n++] = (struct apart_interval){.begin = begin,
                                                     .end = begin + bytes,
                                                     .number = i,
                                                     .is_written = transfers[i].direction == SHOAL_RECV};
        }
    }
    shoal_status status = apart_check("transfers", intervals, n);
    if (intervals != few) {
        mem_free(intervals);
    }
    return status;
}

static shoal_status check_list(const struct shoal_group *group, const shoal_transfer *transfers,
                               size_t n_transfers)
{
    if (!transfers && n_transfers > 0) {
        return error_set(SHOAL_ERR_INVALID, "transfers is NULL, but n_transfers is %zu", n_transfers);
    }
    for (size_t i = 0; i < n_transfers; i++) {
        shoal_status status = check_transfer(group, &transfers[i]);
        if (status != SHOAL_OK) {
            return n_transfers == 1 ? status : error_prefix(status, "transfer %zu", i);
        }
    }
    return n_transfers > 1 ? check_apart(transfers, n_transfers) : SHOAL_OK;
}

static shoal_status check_group(const struct shoal_group *group)
{
    if (!group) {
        return error_set(SHOAL_ERR_INVALID, "group is NULL");
    }
    TRY(group_check_open(group));
    return world_check_process(group->world);
}

/* `call` is the name of the public call, for error texts. */
static shoal_status check_call(const char *call, const struct shoal_group *group,
                               const shoal_transfer *transfers, size_t n_transfers)
{
    shoal_status status = check_group(group);
    status = status == SHOAL_OK ? check_list(group, transfers, n_transfers) : status;
    return status == SHOAL_OK ? callback_check_capture(call) : error_prefix(status, "%s", call);
}

/* Transfers to no rank --------------------------------------------------------------------------------- */

/* A list without its transfers to SHOAL_NO_RANK. */
struct real_list {
    const shoal_transfer *transfers;
    size_t n_transfers;
    shoal_transfer *copy; /* NULL: the caller's list, or nothing */
};

/* list_free frees it, and may be called after a failure. */
static shoal_status list_real(const shoal_transfer *transfers, size_t n_transfers, struct real_list *list)
{
    size_t n_real = 0;
    for (size_t i = 0; i < n_transfers; i++) {
        n_real += transfers[i].peer != SHOAL_NO_RANK;
    }
    *list = (struct real_list){.transfers = transfers, .n_transfers = n_real};
    if (n_real == n_transfers || n_real == 0) {
        return SHOAL_OK;
    }
    list->copy = mem_alloc(n_real * sizeof *list->copy);
    if (!list->copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    list->transfers = list->copy;
    n_real = 0;
    for (size_t i = 0; i < n_transfers; i++) {
        if (transfers[i].peer != SHOAL_NO_RANK) {
            list->copy[n_real++] = transfers[i];
        }
    }
    return SHOAL_OK;
}

static void list_free(struct real_list *list)
{
    mem_free(list->copy);
}

/* Of a call in which nothing is sent or received: it fails where another one would without asking a peer. */
static shoal_status finish_nothing(struct shoal_group *group)
{
    shoal_status failure = group_failure(group);
    return failure == SHOAL_OK ? SHOAL_OK : error_prefix(failure, "the group has failed before");
}

/* Batches ---------------------------------------------------------------------------------------------- */

static void fill_operation(struct p2p_operation *operation, const shoal_transfer *transfer)
{
    struct stream_message *message = &operation->message;
    message->head.count = transfer->count;
    message->head.dtype = (uint32_t)transfer->dtype;
    message->bytes = transfer->count * dtype_bytes(transfer->dtype);
    if (transfer->direction == SHOAL_SEND) {
        message->send = transfer->buffer;
    } else {
        message->recv = transfer->buffer;
    }
}

/* Under p2p_connect. Makes the group's p2p unless another thread has made it meanwhile. */
static shoal_status create_once(struct shoal_group *group, int64_t deadline_ns, struct p2p **p2p_out)
{
    *p2p_out = group_p2p(group);
    if (!*p2p_out) {
        TRY(p2p_create(&group->part, group->lane, deadline_ns, p2p_out));
        /* Release: shows a finished object; pairs with the acquire in group_p2p. */
        atomic_store_explicit(&group->p2p, *p2p_out, memory_order_release);
    }
    return SHOAL_OK;
}

/* Returns the group's p2p, made at first use. */
static shoal_status obtain(struct shoal_group *group, int64_t deadline_ns, struct p2p **p2p_out)
{
    struct p2p *known = group_p2p(group);
    if (!known) {
        /* If the group has failed, do not connect: that might wait in vain. */
        shoal_status failure = lane_failure(group->lane);
        if (failure != SHOAL_OK) {
            return error_prefix(failure, "the group has failed before");
        }
        /* A transport connects the streams of a group once. */
        TRY(part_lock_to_connect(&group->part, &group->p2p_connect, deadline_ns));
        shoal_status status = create_once(group, deadline_ns, &known);
        (void)pthread_mutex_unlock(&group->p2p_connect);
        TRY(status);
    }
    *p2p_out = known;
    return SHOAL_OK;
}

/* Finds the ends of all operations. The batch takes a reference to the p2p, so that threads that wait for the batch
   can still return after the world was closed. */
static shoal_status connect(struct shoal_group *group, const shoal_transfer *transfers,
                            struct p2p_batch *batch)
{
    struct p2p *p2p = NULL;
    TRY(obtain(group, batch->deadline_ns, &p2p));
    batch->p2p = p2p_ref(p2p);
    for (size_t i = 0; i < batch->n_operations; i++) {
        TRY(p2p_find_end(p2p, transfers[i].direction, transfers[i].peer, transfers[i].tag, batch->deadline_ns,
                         &batch->operations[i].end));
    }
    return SHOAL_OK;
}

/* Fills in the operations, which are zeroed. Posts nothing. */
static shoal_status prepare(struct shoal_group *group, const shoal_transfer *transfers,
                            struct p2p_batch *batch)
{
    int64_t now_ns = clock_now_ns();
    batch->deadline_ns = group_deadline(group);
    shoal_status status = connect(group, transfers, batch);
    if (status != SHOAL_OK) {
        return part_fail_unissued(&group->part, status);
    }
    for (size_t i = 0; i < batch->n_operations; i++) {
        struct p2p_operation *operation = &batch->operations[i];
        operation->batch = batch;
        operation->start_ns = now_ns;
        operation->deadline_ns = batch->deadline_ns;
        fill_operation(operation, &transfers[i]);
    }
    return SHOAL_OK;
}

/* Blocking --------------------------------------------------------------------------------------------- */

static const char *describe_call(const shoal_transfer *transfers, size_t n_transfers)
{
    if (n_transfers > 1) {
        return "transfer";
    }
    return transfers[0].direction == SHOAL_SEND ? "send" : "recv";
}

static shoal_status post_and_wait(struct shoal_group *group, const shoal_transfer *transfers,
                                  struct p2p_batch *batch)
{
    bool has_ended = false;
    TRY(callback_check(describe_call(transfers, batch->n_operations)));
    TRY(prepare(group, transfers, batch));
    TRY(p2p_post(batch, &has_ended));
    if (!has_ended) {
        uint64_t begin_ticks = trace_begin();
        p2p_drive(batch, DEADLINE_NEVER);
        trace_end(begin_ticks, TRACE_WAIT, describe_call(transfers, batch->n_operations));
    }
    return p2p_batch_result(batch);
}

static shoal_status run_batch(struct shoal_group *group, const shoal_transfer *transfers,
                              struct p2p_batch *batch)
{
    shoal_status status = post_and_wait(group, transfers, batch);
    if (batch->p2p) {
        p2p_unref(batch->p2p);
    }
    if (status == SHOAL_OK) {
        error_clear(); /* works of others may have failed on this thread */
    }
    return status;
}

static bool is_fake(const struct shoal_group *group)
{
    return !group->peers.transport->has_peers;
}

static shoal_status run_one(const char *call, struct shoal_group *group, const shoal_transfer *transfer)
{
    TRY(check_call(call, group, transfer, 1));
    if (is_fake(group)) {
        return SHOAL_OK;
    }
    if (transfer->peer == SHOAL_NO_RANK) {
        TRY(callback_check(call));
        return finish_nothing(group);
    }
    struct p2p_operation operation;
    memset(&operation, 0, sizeof operation);
    struct p2p_batch batch = {.n_operations = 1, .operations = &operation};
    return run_batch(group, transfer, &batch);
}

static shoal_status run_list(struct shoal_group *group, const struct real_list *list)
{
    struct p2p_batch batch = {.n_operations = list->n_transfers};
    if (list->n_transfers == 0) {
        TRY(callback_check("transfer"));
        return finish_nothing(group);
    }
    batch.operations = mem_alloc_zeroed(list->n_transfers, sizeof *batch.operations);
    if (!batch.operations) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = run_batch(group, list->transfers, &batch);
    mem_free(batch.operations);
    return status;
}

shoal_status shoal_group_transfer(shoal_group *group, const shoal_transfer *transfers, size_t n_transfers)
{
    error_clear();
    TRY(check_call("transfer", group, transfers, n_transfers));
    if (is_fake(group) || n_transfers == 0) {
        return SHOAL_OK;
    }
    struct real_list list;
    shoal_status status = list_real(transfers, n_transfers, &list);
    if (status == SHOAL_OK) {
        status = run_list(group, &list);
    }
    list_free(&list);
    return status;
}

/* Started ---------------------------------------------------------------------------------------------- */

struct p2p_work {
    struct shoal_work work; /* first */
    struct p2p_batch batch;
    struct p2p_operation operations[];
};

static void destroy_work(struct completion *completion)
{
    struct p2p_work *work = (struct p2p_work *)completion;
    if (work->batch.p2p) {
        p2p_unref(work->batch.p2p);
    }
    work_release(&work->work);
    mem_free(work);
}

static shoal_status push_work(struct completion *completion, int64_t until_ns)
{
    struct p2p_work *work = (struct p2p_work *)completion;
    TRY(work_check_process(&work->work));
    uint64_t begin_ticks = until_ns != 0 ? trace_begin() : 0;
    p2p_drive(&work->batch, until_ns);
    trace_end(begin_ticks, TRACE_WAIT, "transfer");
    return SHOAL_OK;
}

static const struct completion_kind p2p_work_kind = {
    .destroy = destroy_work, .push = push_work, .awaited = work_note_awaited};

static void describe_work(struct shoal_work *work, char *text, size_t bytes)
{
    p2p_describe_batch(&((struct p2p_work *)work)->batch, text, bytes);
}

static shoal_status make_work(struct shoal_group *group, size_t n_transfers, struct p2p_work **work_out)
{
    size_t bytes = 0;
    if (!mem_multiply(n_transfers, sizeof(struct p2p_operation), &bytes) || bytes > SIZE_MAX / 2) {
        return error_set(SHOAL_ERR_INVALID, "n_transfers %zu is more than memory can hold", n_transfers);
    }
    struct p2p_work *work = mem_alloc_zeroed(1, sizeof *work + bytes);
    if (!work) {
        return SHOAL_ERR_NO_MEMORY;
    }
    work_init(&work->work, group->world->works, &p2p_work_kind);
    work->work.describe = describe_work;
    work->batch.work = &work->work;
    work->batch.n_operations = n_transfers;
    work->batch.operations = work->operations;
    *work_out = work;
    return SHOAL_OK;
}

/* Starts a batch as a work. If nothing could be posted, the call fails and there is no work. */
static shoal_status start_work(struct shoal_group *group, const shoal_transfer *transfers,
                               struct p2p_work *work)
{
    bool has_ended = false;
    if (is_fake(group) || work->batch.n_operations == 0) {
        completion_finish(&work->work.completion, SHOAL_OK);
        return SHOAL_OK;
    }
    TRY(prepare(group, transfers, &work->batch));
    (void)completion_ref(&work->work.completion); /* the engine's */
    shoal_status status = p2p_post(&work->batch, &has_ended);
    if (status != SHOAL_OK) {
        completion_unref(&work->work.completion);
        return status;
    }
    return has_ended ? completion_wait(&work->work.completion, DEADLINE_NEVER) : SHOAL_OK;
}

static shoal_status start_list(struct shoal_group *group, const struct real_list *list, shoal_work **work_out)
{
    struct p2p_work *work = NULL;
    TRY(make_work(group, list->n_transfers, &work));
    shoal_status status = start_work(group, list->transfers, work);
    if (status != SHOAL_OK) {
        work_forget(&work->work);
        shoal_work_free(&work->work);
        return status;
    }
    *work_out = &work->work;
    error_clear(); /* works of others may have failed on this thread */
    return SHOAL_OK;
}

static shoal_status start(const char *call, struct shoal_group *group, const shoal_transfer *transfers,
                          size_t n_transfers, shoal_work **work_out)
{
    if (!work_out) {
        return error_set(SHOAL_ERR_INVALID, "%s: work_out is NULL", call);
    }
    *work_out = NULL;
    TRY(check_call(call, group, transfers, n_transfers));
    struct real_list list;
    shoal_status status = list_real(transfers, n_transfers, &list);
    if (status == SHOAL_OK && list.n_transfers == 0 && n_transfers > 0 && !is_fake(group)) {
        status = finish_nothing(group);
    }
    if (status == SHOAL_OK) {
        status = start_list(group, &list, work_out);
    }
    list_free(&list);
    return status;
}

/* One at a time ---------------------------------------------------------------------------------------- */

static shoal_transfer describe_send(const void *buffer, size_t count, shoal_dtype dtype, int peer, int tag)
{
    shoal_transfer transfer = {
        .direction = SHOAL_SEND, .count = count, .dtype = dtype, .peer = peer, .tag = tag};
    /* A send only reads its buffer. The field is not const because receives use it too. */
    memcpy(&transfer.buffer, &buffer, sizeof buffer);
    return transfer;
}

static shoal_transfer describe_recv(void *buffer, size_t count, shoal_dtype dtype, int peer, int tag)
{
    shoal_transfer transfer = {
        .direction = SHOAL_RECV, .buffer = buffer, .count = count, .dtype = dtype, .peer = peer, .tag = tag};
    return transfer;
}

shoal_status shoal_group_send(shoal_group *group, const void *buffer, size_t count, shoal_dtype dtype,
                              int peer, int tag)
{
    error_clear();
    shoal_transfer transfer = describe_send(buffer, count, dtype, peer, tag);
    return run_one("send", group, &transfer);
}

shoal_status shoal_group_recv(shoal_group *group, void *buffer, size_t count, shoal_dtype dtype, int peer,
                              int tag)
{
    error_clear();
    shoal_transfer transfer = describe_recv(buffer, count, dtype, peer, tag);
    return run_one("recv", group, &transfer);
}

shoal_status shoal_group_send_start(shoal_group *group, const void *buffer, size_t count, shoal_dtype dtype,
                                    int peer, int tag, shoal_work **work_out)
{
    error_clear();
    shoal_transfer transfer = describe_send(buffer, count, dtype, peer, tag);
    return start("send", group, &transfer, 1, work_out);
}

shoal_status shoal_group_recv_start(shoal_group *group, void *buffer, size_t count, shoal_dtype dtype,
                                    int peer, int tag, shoal_work **work_out)
{
    error_clear();
    shoal_transfer transfer = describe_recv(buffer, count, dtype, peer, tag);
    return start("recv", group, &transfer, 1, work_out);
}

shoal_status shoal_group_transfer_start(shoal_group *group, const shoal_transfer *transfers,
                                        size_t n_transfers, shoal_work **work_out)
{
    error_clear();
    return start("transfer", group, transfers, n_transfers, work_out);
}
