/* SPDX-License-Identifier: MIT */
/* The channel of a group over frames: what a lane calls. */
#include "transport/message/channel.h"

#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fail_point.h"
#include "base/mem.h"
#include "base/try.h"
#include "device/device.h"

/*
 * Collectives that may be posted and unfinished. Peers keep the calls of at most twice as many: a rank that has finished
 * its own has seen every peer's call, but peers may have posted as many without reading any.
 */
#define POSTED_MOST 8
/* What a single rank copies within _start; more is left to the lane's thread. */
#define ALONE_POST_BYTES ((size_t)64 * 1024)

static struct message_channel *of(struct channel *base)
{
    return (struct message_channel *)base;
}

/* Failing ------------------------------------------------------------------------------------------------ */

static void fail_channel(struct message_channel *channel, shoal_status status, const char *text)
{
    const struct transport_peers *peers = channel->base.peers;
    port_fail(channel->port, peers->world_ranks, peers->n_ranks, status, text);
}

shoal_status message_conclude(struct message_channel *channel, shoal_status status, int64_t deadline_ns)
{
    if (status == SHOAL_OK) {
        router_flush(channel->router, deadline_ns);
        return SHOAL_OK;
    }
    (void)transport_name_rank(channel->base.peers, status);
    fail_channel(channel, status, shoal_error_text());
    message_reclaim(channel);
    return message_failure(channel);
}

/* Connecting --------------------------------------------------------------------------------------------- */

static void message_disconnect(struct channel *base)
{
    struct message_channel *channel = of(base);
    if (channel->port) {
        router_settle(channel->router);
    }
    port_detach(channel->port);
    mem_free((void *)channel->outgoing);
    mem_free((void *)channel->sources);
    mem_free(channel);
}

static shoal_status connect_port(struct message_channel *channel, int64_t deadline_ns)
{
    size_t n_ranks = (size_t)channel->n_ranks;
    channel->outgoing = mem_alloc_zeroed(n_ranks, sizeof *channel->outgoing);
    channel->sources = mem_alloc_zeroed(n_ranks, sizeof *channel->sources);
    if (!channel->outgoing || !channel->sources) {
        return SHOAL_ERR_NO_MEMORY;
    }
    FAIL_POINT("message connect");
    uint64_t generation;
    TRY(transport_generation(channel->base.peers, deadline_ns, &generation));
    struct port_id id = port_id_of(channel->base.peers->key, "channel", generation);
    TRY(port_attach(channel->router, id, id, &channel->bell, &channel->port));
    /* What is layered upon the channel waits in shared memory too, where no connection is looked at. */
    port_fail_with_wire(channel->port);
    return SHOAL_OK;
}

static shoal_status message_connect(const struct transport_peers *peers, int64_t deadline_ns,
                                    struct channel **channel_out)
{
    struct message_channel *channel = mem_alloc_aligned(sizeof *channel, _Alignof(struct message_channel));
    if (!channel) {
        return SHOAL_ERR_NO_MEMORY;
    }
    memset(channel, 0, sizeof *channel);
    channel->base = (struct channel){.transport = peers->transport, .peers = peers};
    channel->router = peers->state;
    channel->rank = peers->rank;
    channel->n_ranks = peers->n_ranks;
    shoal_status status = connect_port(channel, deadline_ns);
    if (status != SHOAL_OK) {
        message_disconnect(&channel->base);
        return status;
    }
    *channel_out = &channel->base;
    return SHOAL_OK;
}

/* Collectives -------------------------------------------------------------------------------------------- */

/* Buffers of the CPU that may be used now. */
static bool is_plain(const struct collective *collective)
{
    return collective->device == SHOAL_CPU;
}

static shoal_status check_plain(const struct message_channel *channel, const struct collective *collective)
{
    if (collective->kind == COLLECTIVE_WINDOW_GATHER) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "transport %s has no windows", channel->base.transport->name);
    }
    return is_plain(collective) ? SHOAL_OK
                                : error_set(SHOAL_ERR_UNSUPPORTED,
                                            "%s: buffers on device %s; transport %s carries those of the cpu",
                                            collective_rows[collective->kind].name,
                                            device_name(collective->device), channel->base.transport->name);
}

static bool message_post(struct channel *base, struct collective *collective)
{
    struct message_channel *channel = of(base);
    if (!is_plain(collective)) {
        return false;
    }
    if (channel->n_ranks == 1) {
        return collective->kind != COLLECTIVE_WINDOW_GATHER &&
               collective_bytes(collective, 1) <= ALONE_POST_BYTES &&
               message_run_alone(collective) == SHOAL_OK;
    }
    /* Relaxed: posts are made by one thread at a time, and one finish that is not seen yet only means that it is run. */
    if (!message_is_small(channel, collective) ||
        atomic_load_explicit(&channel->n_posted, memory_order_relaxed) >= POSTED_MOST ||
        message_send_calls(channel, collective) != SHOAL_OK) {
        return false;
    }
    atomic_fetch_add_explicit(&channel->n_posted, 1, memory_order_relaxed);
    return true;
}

static bool message_is_ready(struct channel *base, const struct collective *collective)
{
    struct message_channel *channel = of(base);
    if (channel->n_ranks == 1 || message_have_all_called(channel)) {
        return true;
    }
    if (port_failure(channel->port) != SHOAL_OK) {
        error_clear();
        return true;
    }
    /* Who only tests never sleeps until somebody looks around: then finish does. */
    int64_t now_ns = clock_now_ns();
    return now_ns >= collective->deadline_ns ||
           now_ns >= atomic_load_explicit(&channel->look_ns, memory_order_relaxed);
}

/* Compares the calls, which have all come, and takes what came with them. */
static shoal_status finish_small(struct message_channel *channel, const struct collective *collective)
{
    TRY(message_compare(channel, collective));
    FAIL_POINT("message deliver");
    TRY(message_deliver(channel, collective));
    message_drop_calls(channel);
    return SHOAL_OK;
}

static shoal_status message_finish(struct channel *base, struct collective *collective, int64_t until_ns,
                                   bool *is_pending_out)
{
    struct message_channel *channel = of(base);
    *is_pending_out = false;
    if (channel->n_ranks == 1) {
        return SHOAL_OK;
    }
    /* Whoever only tests has an instant that is long past: the deadline still ends the collective, when the wire's thread
       has had a moment to take what has come. */
    int64_t now_ns = clock_now_ns();
    bool is_late = now_ns >= collective->deadline_ns;
    if (is_late && until_ns <= now_ns && !message_have_all_called(channel) &&
        message_failure(channel) == SHOAL_OK && !message_is_over(channel, collective, /*may_wait=*/false)) {
        *is_pending_out = true;
        return SHOAL_ERR_TIMEOUT;
    }
    int64_t bound_ns = until_ns < collective->deadline_ns && !is_late ? until_ns : collective->deadline_ns;
    shoal_status status = message_await_calls(channel, collective, bound_ns);
    /* The group may have failed by somebody else's timeout, which must not be taken for the caller's. */
    if (status == SHOAL_ERR_TIMEOUT && bound_ns < collective->deadline_ns &&
        message_failure(channel) == SHOAL_OK) {
        *is_pending_out = true;
        return status;
    }
    /* Relaxed: as in post. */
    atomic_fetch_sub_explicit(&channel->n_posted, 1, memory_order_relaxed);
    return message_conclude(channel, status == SHOAL_OK ? finish_small(channel, collective) : status,
                            collective->deadline_ns);
}

shoal_status message_meet(struct message_channel *channel, const struct collective *collective,
                          bool *is_finished_out)
{
    *is_finished_out = false;
    FAIL_POINT("message meet");
    TRY(message_send_calls(channel, collective));
    FAIL_POINT("message called");
    TRY(message_await_calls(channel, collective, collective->deadline_ns));
    if (message_is_small(channel, collective)) {
        *is_finished_out = true;
        return finish_small(channel, collective);
    }
    TRY(message_compare(channel, collective));
    message_drop_calls(channel);
    FAIL_POINT("message met");
    return SHOAL_OK;
}

static shoal_status run_together(struct message_channel *channel, const struct collective *collective)
{
    bool is_finished = false;
    TRY(message_meet(channel, collective, &is_finished));
    return is_finished ? SHOAL_OK : message_move(channel, collective);
}

static shoal_status message_run(struct channel *base, struct collective *collective)
{
    struct message_channel *channel = of(base);
    TRY(message_failure(channel));
    shoal_status status = check_plain(channel, collective);
    if (status == SHOAL_OK) {
        status = channel->n_ranks == 1 ? message_run_alone(collective) : run_together(channel, collective);
    }
    return message_conclude(channel, status, collective->deadline_ns);
}

static void message_poison(struct channel *base, shoal_status status, const char *text)
{
    fail_channel(of(base), status, text);
}

static shoal_status message_channel_failure(struct channel *base)
{
    return message_failure(of(base));
}

const struct transport message_operations = {
    .struct_size = sizeof(struct transport),
    .interface = TRANSPORT_INTERFACE,
    .layout = TRANSPORT_LAYOUT,
    .has_peers = true,
    .connect = message_connect,
    .disconnect = message_disconnect,
    .post = message_post,
    .is_ready = message_is_ready,
    .finish = message_finish,
    .run = message_run,
    .poison = message_poison,
    .failure = message_channel_failure,
};
