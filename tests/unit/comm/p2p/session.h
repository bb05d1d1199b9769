/* SPDX-License-Identifier: MIT */
/* What the tests of point to point share: a world of the ranks, and bytes that tell where they came from. */
#ifndef TESTS_P2P_SESSION_H
#define TESTS_P2P_SESSION_H

#include "comm/p2p/engine.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"
#include "transport/shm/stream.h"

#define RING STREAM_RING_BYTES

struct session {
    shoal_world *world;
    shoal_group *group;
    int rank;
    int n_ranks;
};

static inline bool open_session(struct rank *self, struct session *session)
{
    session->world = rank_world_open(self, 0);
    if (!session->world) {
        return false;
    }
    session->group = shoal_world_group(session->world);
    session->rank = self->rank;
    session->n_ranks = self->n_ranks;
    return true;
}

static inline void close_session(struct session *session)
{
    CHECK_OK(shoal_world_close(session->world));
}

static inline unsigned char byte_at(int source, int tag, size_t i)
{
    return (unsigned char)((size_t)source * 71 + (size_t)tag * 13 + i * 5 + i / 257);
}

static inline void fill(unsigned char *bytes, size_t count, int source, int tag)
{
    for (size_t i = 0; i < count; i++) {
        bytes[i] = byte_at(source, tag, i);
    }
}

static inline bool is_from(const unsigned char *bytes, size_t count, int source, int tag)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != byte_at(source, tag, i)) {
            return false;
        }
    }
    return true;
}

#endif
