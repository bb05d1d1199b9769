/* SPDX-License-Identifier: MIT */
/* How the callers of a channel wait, and what ends a wait. */
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/try.h"
#include "base/wait.h"
#include "transport/message/channel.h"

/* A connection that was cut often means a death, which says more: so long that is waited for. */
#define CUT_GRACE_NS INT64_C(1000000000)
/*
 * Who has to look itself does so all the time, after a moment, sooner where processors are few, only if no other
 * thread can run; later now and then. mpirun binds a rank to one processor, which is its own: too few to spin by the usual
 * count.
 */
#define POLL_ALONE_NS INT64_C(20000)
#define POLL_FEW_NS INT64_C(3000)
#define POLL_NS INT64_C(500000)
#define POLL_NAP_NS INT64_C(50000)
/* Grace after the deadline for messages that have already arrived. */
#define LATE_NS INT64_C(50000000)

shoal_status message_failure(struct message_channel *channel)
{
    TRY(port_failure(channel->port));
    return transport_check_parent(channel->base.peers);
}

shoal_status message_check_member(struct message_channel *channel, int rank)
{
    const struct transport_peers *peers = channel->base.peers;
    TRY(transport_check_abandoned(peers, rank));
    shoal_status status = peers->check_member(peers->context, rank);
    if (status == SHOAL_OK) {
        return message_check_connection(channel->router, peers->world_ranks[rank]);
    }
    /* What it sent before it went may be all that is needed. */
    if (router_may_receive(channel->router, peers->world_ranks[rank])) {
        error_clear();
        return SHOAL_OK;
    }
    return status;
}

shoal_status message_check_connection(struct router *router, int world_rank)
{
    int64_t since_ns = 0;
    shoal_status status = router_check_rank(router, world_rank, &since_ns);
    if (status != SHOAL_OK && clock_now_ns() < since_ns + CUT_GRACE_NS) {
        error_clear();
        return SHOAL_OK;
    }
    return status;
}

bool message_must_look(struct message_channel *channel, int64_t deadline_ns)
{
    int64_t now_ns = clock_now_ns();
    /* Relaxed, both: an instant that stands for itself. */
    if (now_ns < deadline_ns && now_ns < atomic_load_explicit(&channel->look_ns, memory_order_relaxed)) {
        return false;
    }
    atomic_store_explicit(&channel->look_ns, now_ns + WAIT_LIVENESS_NS, memory_order_relaxed);
    return true;
}

bool message_is_over(struct message_channel *channel, const struct collective *collective, bool may_wait)
{
    int64_t now_ns = clock_now_ns();
    if (now_ns < collective->deadline_ns) {
        return false;
    }
    /* Once for a call: one of many rounds must not get more time with each of them. */
    if (channel->late_ns == 0 || channel->late_sequence != collective->sequence) {
        channel->late_ns = now_ns;
        channel->late_sequence = collective->sequence;
        if (!may_wait) {
            router_poke(channel->router);
        }
    }
    bool is_over = now_ns >= channel->late_ns + LATE_NS;
    if (!is_over && may_wait) {
        router_catch_up(channel->router);
    }
    return is_over;
}

/* Waits until the bell has rung, or until the instant. Returns false if this thread may not look. */
static bool poll_until(struct message_channel *channel, uint32_t seen, int64_t until_ns)
{
    int64_t now_ns = clock_now_ns();
    int64_t often_ns = now_ns + POLL_NS;
    int64_t alone_ns = now_ns + (channel->base.peers->may_spin ? POLL_ALONE_NS : POLL_FEW_NS);
    while (now_ns < until_ns) {
        if (!router_poll(channel->router, /*is_driver=*/false)) {
            return false;
        }
        now_ns = clock_now_ns();
        if (doorbell_look(&channel->bell) != seen) {
            return true;
        }
        if (now_ns >= often_ns) {
            wait_sleep(POLL_NAP_NS);
        } else if (now_ns >= alone_ns) {
            wait_yield();
        }
    }
    return true;
}

void message_wait(struct message_channel *channel, uint32_t seen, int64_t until_ns)
{
    if (router_is_polled(channel->router)) {
        int64_t look_ns = atomic_load_explicit(&channel->look_ns, memory_order_relaxed);
        router_count_pollers(channel->router, 1);
        bool has_waited = poll_until(channel, seen, look_ns < until_ns ? look_ns : until_ns);
        router_count_pollers(channel->router, -1);
        if (has_waited) {
            return;
        }
    }
    if (channel->base.peers->may_spin && doorbell_spin(&channel->bell, seen)) {
        return;
    }
    int64_t look_ns = atomic_load_explicit(&channel->look_ns, memory_order_relaxed);
    if (doorbell_arm(&channel->bell, &seen)) {
        doorbell_sleep(&channel->bell, seen, look_ns < until_ns ? look_ns : until_ns);
    }
}

/* Returns a member that has not taken what was lent; -1 if all have. */
static int find_borrower(struct message_channel *channel)
{
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i != channel->rank && port_n_lent(channel->port, message_world_rank(channel, i)) > 0) {
            return i;
        }
    }
    return -1;
}

void message_reclaim(struct message_channel *channel)
{
    /* Peers that live take it at once. */
    int64_t deadline_ns = clock_deadline_after(router_patience_s(channel->router));
    port_take_back(channel->port);
    for (;;) {
        uint32_t seen = doorbell_look(&channel->bell);
        int borrower = find_borrower(channel);
        if (borrower < 0) {
            return;
        }
        if (clock_now_ns() >= deadline_ns) {
            char text[ERROR_TEXT_BYTES];
            (void)snprintf(
                text, sizeof text,
                "rank %d does not take what rank %d sends it, in a call on group %s that has failed",
                message_world_rank(channel, borrower), message_world_rank(channel, channel->rank),
                transport_group_name(channel->base.peers));
            router_give_up(channel->router, text);
            continue; /* everything was given back */
        }
        /* Sets when the wait ends next. Deaths are the wire's business here. */
        (void)message_must_look(channel, deadline_ns);
        message_wait(channel, seen, deadline_ns);
    }
}
