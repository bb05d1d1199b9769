/* SPDX-License-Identifier: MIT */
/* The public calls of point to point: they check the arguments, make a batch of them, and post it (p2p/engine.c). */
#include "comm/p2p/p2p.h"

#include <stdio.h>
#include <string.h>

#include "base/callback.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/struct_size.h"
#include "base/trace.h"
#include "base/try.h"
#include "comm/call/apart.h"
#include "comm/group/group.h"
#include "comm/lane/lane.h"
#include "comm/p2p/engine.h"
#include "comm/group/world.h"
#include "tensor/dtype.h"

/* What was asked for ----------------------------------------------------------------------------------- */

struct call {
    const char *name; /* of the public call, for error texts */
    const shoal_transfer *transfers;
    size_t n_transfers;
    shoal_transfer_options options;
};

static bool has_peer(const shoal_transfer *transfer)
{
    return transfer->peer != SHOAL_NO_RANK;
}

static bool is_from_any(const shoal_transfer *transfer)
{
    return transfer->peer == SHOAL_ANY_RANK;
}

/* How many of the transfers are not to or from SHOAL_NO_RANK. */
static size_t count_real(const struct call *call)
{
    size_t n_real = 0;
    for (size_t i = 0; i < call->n_transfers; i++) {
        n_real += has_peer(&call->transfers[i]);
    }
    return n_real;
}

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
    if (!transfer->buffer && transfer->count > 0 && has_peer(transfer)) {
        return error_set(SHOAL_ERR_INVALID, "buffer is NULL, but count is %zu", transfer->count);
    }
    if (is_from_any(transfer) && transfer->direction == SHOAL_SEND) {
        return error_set(SHOAL_ERR_INVALID, "peer is SHOAL_ANY_RANK, but a send needs a rank to send to");
    }
    bool is_rank = transfer->peer >= 0 && transfer->peer < group->peers.n_ranks;
    if (!is_rank && has_peer(transfer) && !is_from_any(transfer)) {
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
        if (bytes > 0 && has_peer(&transfers[i])) {
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

static shoal_status check_options(const shoal_transfer_options *options)
{
    double most = option_seconds_most(OPTION_TIMEOUT);
    if (!(options->timeout_s >= 0.0 && options->timeout_s <= most)) {
        return error_set(SHOAL_ERR_INVALID, "timeout_s is %g, 0 (the group's) to %g expected",
                         options->timeout_s, most);
    }
    return SHOAL_OK;
}

static shoal_status check_call(const struct shoal_group *group, const struct call *call)
{
    TRY(callback_check_capture(call->name)); /* first: in a captured step buffers have no addresses */
    shoal_status status = check_group(group);
    status = status == SHOAL_OK ? check_options(&call->options) : status;
    status = status == SHOAL_OK ? check_list(group, call->transfers, call->n_transfers) : status;
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", call->name);
}

/* Reads the options of a call; `given` is NULL if there are none. */
static shoal_status read_options(const shoal_transfer_options *given, struct call *call)
{
    shoal_transfer_options *options = &call->options;
    *options = (shoal_transfer_options){.struct_size = sizeof *options};
    return given ? struct_size_read("transfer_with: options", given, sizeof(size_t), options, sizeof *options)
                 : SHOAL_OK;
}

/* Of a call in which nothing is sent or received: it fails where another one would without asking a peer. */
static shoal_status finish_nothing(struct shoal_group *group)
{
    shoal_status failure = group_failure(group);
    return failure == SHOAL_OK ? SHOAL_OK : error_prefix(failure, "the group has failed before");
}

static bool is_fake(const struct shoal_group *group)
{
    return !group->peers.transport->has_peers;
}

/* Before anything is posted. With the fake transport receives end at once, as if they had received something. */
static void fill_sources(const struct shoal_group *group, const struct call *call)
{
    for (size_t i = 0; call->options.sources && i < call->n_transfers; i++) {
        const shoal_transfer *transfer = &call->transfers[i];
        bool has_source = is_fake(group) && transfer->direction == SHOAL_RECV && has_peer(transfer);
        int source = is_from_any(transfer) ? group->peers.rank : transfer->peer;
        call->options.sources[i] = has_source ? source : -1;
    }
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
static shoal_status find_ends(struct shoal_group *group, const struct call *call, struct p2p_batch *batch)
{
    struct p2p *p2p = NULL;
    TRY(obtain(group, batch->deadline_ns, &p2p));
    batch->p2p = p2p_ref(p2p);
    size_t n_found = 0;
    for (size_t i = 0; i < call->n_transfers; i++) {
        const shoal_transfer *transfer = &call->transfers[i];
        if (is_from_any(transfer)) {
            TRY(p2p_find_sources(p2p, transfer->tag, batch->deadline_ns));
            n_found++; /* its end is found when a message has come */
        } else if (has_peer(transfer)) {
            TRY(p2p_find_end(p2p, transfer->direction, transfer->peer, transfer->tag, batch->deadline_ns,
                             &batch->operations[n_found++].end));
        }
    }
    return SHOAL_OK;
}

/* Fills in the operations, which are zeroed: one for each transfer that has a peer. Posts nothing. */
static shoal_status prepare(struct shoal_group *group, const struct call *call, struct p2p_batch *batch)
{
    int64_t now_ns = clock_now_ns();
    batch->is_limited = call->options.timeout_s > 0.0;
    batch->deadline_ns =
        batch->is_limited ? clock_deadline_after(call->options.timeout_s) : group_deadline(group);
    shoal_status status = find_ends(group, call, batch);
    if (status == SHOAL_ERR_TIMEOUT && batch->is_limited) {
        return status; /* nothing was posted, and the next call connects again */
    }
    if (status != SHOAL_OK) {
        return part_fail_unissued(&group->part, status);
    }
    struct p2p_operation *operation = batch->operations;
    for (size_t i = 0; i < call->n_transfers; i++) {
        if (has_peer(&call->transfers[i])) {
            operation->batch = batch;
            operation->start_ns = now_ns;
            operation->deadline_ns = batch->deadline_ns;
            operation->tag = call->transfers[i].tag;
            operation->source_out = call->options.sources && call->transfers[i].direction == SHOAL_RECV
                                        ? &call->options.sources[i]
                                        : NULL;
            fill_operation(operation, &call->transfers[i]);
            operation++;
        }
    }
    return SHOAL_OK;
}

/* Blocking --------------------------------------------------------------------------------------------- */

static shoal_status post_and_wait(struct shoal_group *group, const struct call *call, struct p2p_batch *batch)
{
    bool has_ended = false;
    TRY(prepare(group, call, batch));
    TRY(p2p_post(batch, &has_ended));
    if (!has_ended) {
        uint64_t begin_ticks = trace_begin();
        p2p_drive(batch, DEADLINE_NEVER);
        trace_end(begin_ticks, TRACE_WAIT, call->name);
    }
    return p2p_batch_result(batch);
}

static shoal_status run_batch(struct shoal_group *group, const struct call *call, struct p2p_batch *batch)
{
    shoal_status status = post_and_wait(group, call, batch);
    if (batch->p2p) {
        p2p_unref(batch->p2p);
    }
    if (status == SHOAL_OK) {
        error_clear(); /* works of others may have failed on this thread */
    }
    return status;
}

static shoal_status run_one(struct shoal_group *group, const struct call *call)
{
    struct p2p_operation operation;
    memset(&operation, 0, sizeof operation);
    struct p2p_batch batch = {.n_operations = 1, .operations = &operation};
    return run_batch(group, call, &batch);
}

static shoal_status run_list(struct shoal_group *group, const struct call *call, size_t n_real)
{
    struct p2p_batch batch = {.n_operations = n_real};
    batch.operations = mem_alloc_zeroed(n_real, sizeof *batch.operations);
    if (!batch.operations) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = run_batch(group, call, &batch);
    mem_free(batch.operations);
    return status;
}

static shoal_status run(struct shoal_group *group, const struct call *call)
{
    TRY(check_call(group, call));
    fill_sources(group, call);
    if (is_fake(group) || call->n_transfers == 0) {
        return SHOAL_OK;
    }
    TRY(callback_check(call->name));
    size_t n_real = count_real(call);
    if (n_real == 0) {
        return finish_nothing(group);
    }
    return n_real == 1 ? run_one(group, call) : run_list(group, call, n_real);
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

static shoal_status make_work(struct shoal_group *group, size_t n_real, struct p2p_work **work_out)
{
    size_t bytes = 0;
    if (!mem_multiply(n_real, sizeof(struct p2p_operation), &bytes) || bytes > SIZE_MAX / 2) {
        return error_set(SHOAL_ERR_INVALID, "n_transfers %zu is more than memory can hold", n_real);
    }
    struct p2p_work *work = mem_alloc_zeroed(1, sizeof *work + bytes);
    if (!work) {
        return SHOAL_ERR_NO_MEMORY;
    }
    work_init(&work->work, group->world->works, &p2p_work_kind);
    work->work.describe = describe_work;
    work->batch.work = &work->work;
    work->batch.n_operations = n_real;
    work->batch.operations = work->operations;
    *work_out = work;
    return SHOAL_OK;
}

/* Starts a batch as a work. If nothing could be posted, the call fails and there is no work. */
static shoal_status start_work(struct shoal_group *group, const struct call *call, struct p2p_work *work)
{
    bool has_ended = false;
    if (is_fake(group) || work->batch.n_operations == 0) {
        completion_finish(&work->work.completion, SHOAL_OK);
        return SHOAL_OK;
    }
    TRY(prepare(group, call, &work->batch));
    (void)completion_ref(&work->work.completion); /* the engine's */
    shoal_status status = p2p_post(&work->batch, &has_ended);
    if (status != SHOAL_OK) {
        completion_unref(&work->work.completion);
        return status;
    }
    return has_ended ? completion_wait(&work->work.completion, DEADLINE_NEVER) : SHOAL_OK;
}

static shoal_status start(struct shoal_group *group, const struct call *call, shoal_work **work_out)
{
    if (!work_out) {
        return error_set(SHOAL_ERR_INVALID, "%s: work_out is NULL", call->name);
    }
    *work_out = NULL;
    TRY(check_call(group, call));
    fill_sources(group, call);
    size_t n_real = count_real(call);
    if (n_real == 0 && call->n_transfers > 0 && !is_fake(group)) {
        TRY(finish_nothing(group));
    }
    struct p2p_work *work = NULL;
    TRY(make_work(group, n_real, &work));
    shoal_status status = start_work(group, call, work);
    if (status != SHOAL_OK) {
        work_forget(&work->work);
        shoal_work_free(&work->work);
        return status;
    }
    *work_out = &work->work;
    error_clear(); /* works of others may have failed on this thread */
    return SHOAL_OK;
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
    return run(group, &(struct call){.name = "send", .transfers = &transfer, .n_transfers = 1});
}

shoal_status shoal_group_recv(shoal_group *group, void *buffer, size_t count, shoal_dtype dtype, int peer,
                              int tag)
{
    error_clear();
    shoal_transfer transfer = describe_recv(buffer, count, dtype, peer, tag);
    return run(group, &(struct call){.name = "recv", .transfers = &transfer, .n_transfers = 1});
}

shoal_status shoal_group_send_start(shoal_group *group, const void *buffer, size_t count, shoal_dtype dtype,
                                    int peer, int tag, shoal_work **work_out)
{
    error_clear();
    shoal_transfer transfer = describe_send(buffer, count, dtype, peer, tag);
    return start(group, &(struct call){.name = "send", .transfers = &transfer, .n_transfers = 1}, work_out);
}

shoal_status shoal_group_recv_start(shoal_group *group, void *buffer, size_t count, shoal_dtype dtype,
                                    int peer, int tag, shoal_work **work_out)
{
    error_clear();
    shoal_transfer transfer = describe_recv(buffer, count, dtype, peer, tag);
    return start(group, &(struct call){.name = "recv", .transfers = &transfer, .n_transfers = 1}, work_out);
}

shoal_status shoal_group_recv_any(shoal_group *group, void *buffer, size_t count, shoal_dtype dtype, int tag,
                                  int *source_out)
{
    error_clear();
    shoal_transfer transfer = describe_recv(buffer, count, dtype, SHOAL_ANY_RANK, tag);
    return run(group, &(struct call){.name = "recv_any",
                                     .transfers = &transfer,
                                     .n_transfers = 1,
                                     .options = {.sources = source_out}});
}

shoal_status shoal_group_recv_any_start(shoal_group *group, void *buffer, size_t count, shoal_dtype dtype,
                                        int tag, int *source_out, shoal_work **work_out)
{
    error_clear();
    shoal_transfer transfer = describe_recv(buffer, count, dtype, SHOAL_ANY_RANK, tag);
    return start(
        group,
        &(struct call){
            .name = "recv_any", .transfers = &transfer, .n_transfers = 1, .options = {.sources = source_out}},
        work_out);
}

/* Several ---------------------------------------------------------------------------------------------- */

shoal_status shoal_group_transfer(shoal_group *group, const shoal_transfer *transfers, size_t n_transfers)
{
    error_clear();
    return run(group, &(struct call){.name = "transfer", .transfers = transfers, .n_transfers = n_transfers});
}

shoal_status shoal_group_transfer_start(shoal_group *group, const shoal_transfer *transfers,
                                        size_t n_transfers, shoal_work **work_out)
{
    error_clear();
    return start(group,
                 &(struct call){.name = "transfer", .transfers = transfers, .n_transfers = n_transfers},
                 work_out);
}

shoal_status shoal_group_transfer_with(shoal_group *group, const shoal_transfer *transfers,
                                       size_t n_transfers, const shoal_transfer_options *options)
{
    error_clear();
    struct call call = {.name = "transfer_with", .transfers = transfers, .n_transfers = n_transfers};
    TRY(read_options(options, &call));
    return run(group, &call);
}

shoal_status shoal_group_transfer_with_start(shoal_group *group, const shoal_transfer *transfers,
                                             size_t n_transfers, const shoal_transfer_options *options,
                                             shoal_work **work_out)
{
    error_clear();
    struct call call = {.name = "transfer_with", .transfers = transfers, .n_transfers = n_transfers};
    TRY(read_options(options, &call));
    return start(group, &call, work_out);
}
