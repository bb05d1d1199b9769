/* SPDX-License-Identifier: MIT */
/*
 * Rank 0 of a world over the message transport, for targets that play its peers: what it calls (the programs), and the
 * control plane, which says that every peer is gone. So nothing waits: a call succeeds if everything that it needs has
 * come, and fails at once if not.
 */
#ifndef FUZZ_LANES_H
#define FUZZ_LANES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/wait.h"
#include "fuzz/fuzz.h"
#include "fuzz/records.h"
#include "harness/test.h"
#include "transport/collective.h"
#include "transport/message/channel.h"
#include "transport/streams.h"

#define LANES_RANKS 3
/* Elements of the largest buffer of a program. */
#define LANES_ELEMS 12288

struct lanes {
    bool is_alone; /* only rank 0 is real */
    struct transport_world world;
    struct transport_peers peers;
    const struct transport *transport;
    void *state;
    struct channel *channel;
    uint32_t sequence;
    int32_t *send;
    int32_t *recv;
};

static const int lanes_ranks[LANES_RANKS] = {0, 1, 2};

static inline shoal_status lanes_check_rank(void *context, int rank)
{
    const struct lanes *lanes = context;
    return lanes->is_alone ? error_set(SHOAL_ERR_PEER, "rank %d (process 1) has closed its world", rank)
                           : SHOAL_OK;
}

static inline bool lanes_is_dead(void *context, int rank)
{
    (void)context;
    (void)rank;
    return false;
}

static inline bool lanes_open(struct lanes *lanes, const struct endpoint_kind *kind, int rank, bool is_alone)
{
    *lanes = (struct lanes){.is_alone = is_alone};
    lanes->world = (struct transport_world){.rank = rank,
                                            .n_ranks = LANES_RANKS,
                                            .n_hosts = 1,
                                            .context = lanes,
                                            .check_rank = lanes_check_rank,
                                            .is_dead = lanes_is_dead};
    lanes->peers = (struct transport_peers){.rank = rank,
                                            .n_ranks = LANES_RANKS,
                                            .world_ranks = lanes_ranks,
                                            .key = "fuzz",
                                            .world = &lanes->world,
                                            .context = lanes,
                                            .check_member = lanes_check_rank};
    lanes->transport = message_transport(kind);
    lanes->send = calloc(LANES_ELEMS, sizeof *lanes->send);
    lanes->recv = calloc(LANES_ELEMS, sizeof *lanes->recv);
    if (!lanes->transport || !lanes->send || !lanes->recv ||
        !CHECK_OK(lanes->transport->open(lanes->transport, &lanes->world, clock_deadline_after(20),
                                         &lanes->state))) {
        test_failed(__FILE__, __LINE__, "a world could not be opened");
        free(lanes->send);
        free(lanes->recv);
        return false;
    }
    lanes->peers.transport = lanes->transport;
    lanes->peers.state = lanes->state;
    for (size_t i = 0; i < LANES_ELEMS; i++) {
        lanes->send[i] = (int32_t)i + rank;
    }
    return CHECK_OK(lanes->transport->connect(&lanes->peers, DEADLINE_NEVER, &lanes->channel));
}

static inline void lanes_close(struct lanes *lanes)
{
    lanes->transport->disconnect(lanes->channel);
    lanes->transport->close(lanes->state);
    free(lanes->send);
    free(lanes->recv);
}

/* Until everything that the peers sent was taken, and their connections have ended. */
static inline void lanes_take_all(struct lanes *lanes)
{
    struct router *router = message_router_of(lanes->transport, lanes->state);
    for (int rank = 1; rank < LANES_RANKS; rank++) {
        int64_t since_ns;
        int64_t deadline_ns = clock_deadline_after(20);
        while (router_check_rank(router, rank, &since_ns) == SHOAL_OK) {
            REQUIRE(clock_now_ns() < deadline_ns);
            (void)router_poll(router, /*is_driver=*/false);
        }
    }
    error_clear();
}

/* Programs ---------------------------------------------------------------------------------------------- */

struct lanes_call {
    enum collective_kind kind;
    size_t count;
    int root;
    bool has_counts;
};

/* At most four frames of data of a peer may lie there untaken, so a program has one or two calls that are not small. */
#define LANES_CALLS 4
#define LANES_PROGRAMS 7
static const struct lanes_call lanes_programs[LANES_PROGRAMS][LANES_CALLS] = {
    {{COLLECTIVE_BARRIER, 0, 0, false},
     {COLLECTIVE_ALL_REDUCE, 8, 0, false},
     {COLLECTIVE_ALL_GATHER, 5, 0, false},
     {COLLECTIVE_BROADCAST, 7, 1, false}},
    {{COLLECTIVE_ALL_REDUCE, 3000, 0, false}, {COLLECTIVE_BARRIER, 0, 0, false}},
    {{COLLECTIVE_BROADCAST, 2500, 1, false}, {COLLECTIVE_REDUCE, 2100, 0, false}},
    {{COLLECTIVE_ALL_TO_ALL, 6, 0, true}, {COLLECTIVE_ALL_TO_ALL, 9, 0, false}},
    {{COLLECTIVE_REDUCE_SCATTER, 3, 0, false},
     {COLLECTIVE_GATHER, 4, 0, false},
     {COLLECTIVE_SCATTER, 4, 2, false},
     {COLLECTIVE_ALL_GATHER, 5, 0, true}},
    {{COLLECTIVE_REDUCE_SCATTER, 2100, 0, false}, {COLLECTIVE_BARRIER, 0, 0, false}},
    {{COLLECTIVE_BARRIER, 0, 0, false}}, /* and streams */
};

static inline shoal_status lanes_call(struct lanes *lanes, const struct lanes_call *call)
{
    static const size_t counts[LANES_RANKS] = {6, 6, 6};
    struct collective collective = {.kind = call->kind,
                                    .dtype = SHOAL_I32,
                                    .reduce = SHOAL_SUM,
                                    .root = call->root,
                                    .n_pieces = 1,
                                    .send_counts = call->has_counts ? counts : NULL,
                                    .recv_counts = call->has_counts ? counts : NULL,
                                    .single = {lanes->send, lanes->recv, call->count},
                                    .sequence = lanes->sequence++,
                                    /* Long past: whoever is gone is noticed at once. */
                                    .deadline_ns = lanes->is_alone ? 1 : clock_deadline_after(20)};
    collective.pieces = &collective.single;
    return lanes->transport->run(lanes->channel, &collective);
}

/* One message to a peer, and one from it, as far as it has arrived. */
static inline void lanes_exchange(struct lanes *lanes, struct streams *streams, int peer, size_t count)
{
    const struct transport_streams *operations = lanes->transport->streams;
    struct stream_end *ends[2];
    /* Sends first: peers do the same. */
    for (int is_sender = 1; is_sender >= 0; is_sender--) {
        bool is_open = CHECK_OK(
            operations->open(streams, is_sender == 1, peer, /*tag=*/3, DEADLINE_NEVER, &ends[is_sender]));
        struct stream_message message = {
            .head = {.dtype = SHOAL_I32, .count = count},
            .send = (const unsigned char *)lanes->send,
            .recv = (unsigned char *)lanes->recv,
            .bytes = count * sizeof(int32_t),
        };
        shoal_status status = is_open ? SHOAL_OK : SHOAL_ERR_STATE;
        while (status == SHOAL_OK && !stream_message_is_finished(&message)) {
            status = is_sender ? operations->put(ends[1], &message) : operations->take(ends[0], &message);
            if (message.is_stuck && lanes->is_alone) {
                break;
            }
        }
        if (status != SHOAL_OK) {
            operations->fail(ends[is_sender], status, shoal_error_text());
        }
        (void)operations->failure(ends[is_sender]);
    }
}

static inline void lanes_stream(struct lanes *lanes)
{
    struct streams *streams = NULL;
    const struct transport_streams *operations = lanes->transport->streams;
    REQUIRE_OK(operations->connect(&lanes->peers, DEADLINE_NEVER, &streams));
    for (int peer = 0; peer < LANES_RANKS; peer++) {
        if (peer != lanes->peers.rank) {
            lanes_exchange(lanes, streams, peer, 4);
        }
    }
    (void)operations->reason(streams);
    operations->disconnect(streams);
    operations->free(streams);
}

/* Checks that calls succeed if `must_succeed`; otherwise that whatever failed says why. */
static inline void lanes_run(struct lanes *lanes, int program, bool must_succeed)
{
    const struct lanes_call *calls = lanes_programs[program % LANES_PROGRAMS];
    for (int i = 0; i < LANES_CALLS && (i == 0 || calls[i].kind != 0 || calls[i].count != 0); i++) {
        error_clear();
        shoal_status status = lanes_call(lanes, &calls[i]);
        CHECK(status == SHOAL_OK || shoal_error_text()[0] != '\0' || status == SHOAL_ERR_NO_MEMORY);
        CHECK(status == SHOAL_OK || !must_succeed);
    }
    if (program % LANES_PROGRAMS == LANES_PROGRAMS - 1) {
        lanes_stream(lanes);
    }
}

#endif
