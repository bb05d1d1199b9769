/* SPDX-License-Identifier: MIT */
/*
 * Channels whose counters are about to wrap: every collective, every way it can travel, across 2^31 and 2^32. The
 * counter of direct collectives has stood still meanwhile, for longer than values can be compared.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness/test.h"
#include "sharedmem/regions.h"
#include "sharedmem/segment.h"
#include "transport/shm/channel.h"

#define N_RANKS 3
/* f32 elements: through slots, and in several rounds of the halves. */
#define SMALL 65
#define LARGE ((size_t)150001)
#define REGION_BYTES (2 * LARGE * sizeof(float) * N_RANKS)
#define REGION_ID 77

/* What the ranks have in common. */
struct fixture {
    pthread_mutex_t lock;
    struct {
        char name[32];
        struct segment *segment;
    } segments[4];
    char *region;
    uint32_t first_sequence;
    uint32_t first_round;
    bool is_symmetric;
    pthread_barrier_t barrier;
};

struct channel_rank {
    struct fixture *fixture;
    int rank;
};

static const int world_ranks[N_RANKS] = {0, 1, 2};

static shoal_status check_member(void *context, int group_rank)
{
    (void)context;
    (void)group_rank;
    return SHOAL_OK;
}

static shoal_status open_segment(void *context, const char *name, size_t bytes, int64_t deadline_ns,
                                 struct segment **segment_out)
{
    (void)deadline_ns;
    struct fixture *fixture = ((struct channel_rank *)context)->fixture;
    shoal_status status = SHOAL_ERR_INTERNAL;
    (void)pthread_mutex_lock(&fixture->lock);
    for (size_t i = 0; i < 4; i++) {
        if (!fixture->segments[i].segment) {
            int fd;
            status = segment_create_fd(name, bytes, &fd);
            if (status == SHOAL_OK) {
                status = segment_map(fd, bytes, &fixture->segments[i].segment);
                (void)close(fd);
            }
            (void)snprintf(fixture->segments[i].name, sizeof fixture->segments[i].name, "%s", name);
        }
        if (strcmp(fixture->segments[i].name, name) == 0) {
            *segment_out = segment_ref(fixture->segments[i].segment);
            status = SHOAL_OK;
            break;
        }
    }
    (void)pthread_mutex_unlock(&fixture->lock);
    return status;
}

/* As if so many collectives and rounds had gone by. One rank does it, before any has used the channel. */
static void preset(struct shm_channel *channel, uint32_t sequence, uint32_t round)
{
    for (int i = 0; i < N_RANKS; i++) {
        struct shm_rank *rank = shm_peer(channel, i);
        flag_set(&rank->done, sequence);
        flag_set(&rank->filled, round);
        flag_set(&rank->reduced, round);
        flag_set(&rank->taken, round);
        for (uint32_t s = sequence - SHM_SLOTS; s != sequence; s++) {
            flag_set(&shm_slot(channel, i, s)->entered, s + 1);
        }
    }
}

struct session {
    struct channel_rank *self;
    struct channel *channel;
    struct regions *regions;
    float *send;
    float *recv;
    uint32_t sequence;
};

static void run(struct session *session, struct collective *collective)
{
    collective->sequence = session->sequence++;
    collective->deadline_ns = clock_deadline_after(30 * test_time_scale());
    collective->n_pieces = 1;
    collective->pieces = &collective->single;
    CHECK_OK(session->channel->transport->run(session->channel, collective));
}

static void check_all(const float *data, size_t count, double value, int line)
{
    for (size_t i = 0; i < count; i++) {
        if ((double)data[i] != value) {
            test_failed(__FILE__, line, "element %zu of %zu is %g, expected %g", i, count, (double)data[i],
                        value);
            return;
        }
    }
}

static void fill(struct session *session, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        session->send[i] = (float)(session->self->rank + 1);
        session->recv[i] = -1.0f;
    }
}

static void use_kind(struct session *session, enum collective_kind kind, size_t count)
{
    fill(session, count * N_RANKS);
    struct collective call = {.kind = kind, .dtype = SHOAL_F32, .reduce = SHOAL_SUM};
    call.root = collective_rows[kind].has_root ? (int)(session->sequence % N_RANKS) : 0;
    call.single = (struct collective_piece){session->send, session->recv, count};
    bool is_root = session->self->rank == call.root;
    if (kind == COLLECTIVE_BROADCAST) {
        call.single.send = session->recv;
        for (size_t i = 0; i < count; i++) {
            session->recv[i] = is_root ? 9.0f : -1.0f;
        }
    }
    /* Peers read these buffers, so nobody changes them while one is behind. */
    run(session, &call);
    double sum = N_RANKS * (N_RANKS + 1) / 2;
    switch (kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE_SCATTER:
        check_all(session->recv, count, sum, __LINE__);
        break;
    case COLLECTIVE_REDUCE:
        check_all(session->recv, count, is_root ? sum : -1.0, __LINE__);
        break;
    case COLLECTIVE_BROADCAST:
        check_all(session->recv, count, 9.0, __LINE__);
        break;
    case COLLECTIVE_SCATTER:
        check_all(session->recv, count, call.root + 1, __LINE__);
        break;
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_ALL_TO_ALL:
    case COLLECTIVE_GATHER:
        for (int i = 0; i < N_RANKS; i++) {
            bool is_given = kind != COLLECTIVE_GATHER || is_root;
            check_all(session->recv + (size_t)i * count, count, is_given ? i + 1 : -1.0, __LINE__);
        }
        break;
    case COLLECTIVE_BARRIER:
    case COLLECTIVE_WINDOW_GATHER:
    case COLLECTIVE_COUNT:
        break;
    }
}

/* Posted, several ahead, finished in order. */
static void use_posted(struct session *session)
{
    enum {
        AHEAD = SHM_SLOTS / 2
    };
    struct collective calls[AHEAD];
    float in[AHEAD];
    float out[AHEAD];
    bool is_posted[AHEAD];
    for (int i = 0; i < AHEAD; i++) {
        in[i] = (float)i;
        out[i] = -1.0f;
        calls[i] = (struct collective){.kind = COLLECTIVE_ALL_REDUCE,
                                       .dtype = SHOAL_F32,
                                       .reduce = SHOAL_SUM,
                                       .n_pieces = 1,
                                       .single = {&in[i], &out[i], 1}};
        calls[i].pieces = &calls[i].single;
        calls[i].sequence = session->sequence++;
        calls[i].deadline_ns = clock_deadline_after(30 * test_time_scale());
        is_posted[i] =
            (i == 0 || is_posted[i - 1]) && session->channel->transport->post(session->channel, &calls[i]);
    }
    for (int i = 0; i < AHEAD; i++) {
        bool is_pending = false;
        if (is_posted[i]) {
            CHECK_OK(session->channel->transport->finish(session->channel, &calls[i], DEADLINE_NEVER,
                                                         &is_pending));
        } else {
            CHECK_OK(session->channel->transport->run(session->channel, &calls[i]));
        }
        CHECK_DOUBLE((double)out[i], i * N_RANKS);
    }
}

static void use_rank(struct channel_rank *self)
{
    struct fixture *fixture = self->fixture;
    struct regions *regions = regions_create();
    REQUIRE(regions);
    char *own = fixture->region + (size_t)self->rank * REGION_BYTES;
    if (fixture->is_symmetric) {
        CHECK_OK(regions_add(regions, REGION_ID, fixture->region, REGION_BYTES, REGION_BYTES, world_ranks,
                             N_RANKS, self->rank));
    }
    struct transport_peers peers = {.rank = self->rank,
                                    .n_ranks = N_RANKS,
                                    .world_ranks = world_ranks,
                                    .key = "wrap",
                                    .regions = regions,
                                    .context = self,
                                    .check_member = check_member,
                                    .open_segment = open_segment};
    struct session session = {.self = self,
                              .regions = regions,
                              .send = (float *)(void *)own,
                              .recv = (float *)(void *)(own + REGION_BYTES / 2),
                              .sequence = fixture->first_sequence};
    CHECK_OK(transport_shm.connect(&peers, DEADLINE_NEVER, &session.channel));
    struct shm_channel *channel = (struct shm_channel *)session.channel;
    if (self->rank == 0) {
        preset(channel, fixture->first_sequence, fixture->first_round);
    }
    channel->rounds = fixture->first_round;
    channel->known_done = fixture->first_sequence & FLAG_MASK;
    (void)pthread_barrier_wait(&fixture->barrier);
    for (int turn = 0; turn < 3; turn++) {
        for (int kind = 0; kind < COLLECTIVE_WINDOW_GATHER; kind++) {
            use_kind(&session, (enum collective_kind)kind, SMALL);
            use_kind(&session, (enum collective_kind)kind, LARGE);
        }
        use_posted(&session);
    }
    (void)pthread_barrier_wait(&fixture->barrier);
    transport_shm.disconnect(session.channel);
    regions_free(regions);
}

static void *run_rank(void *context)
{
    use_rank(context);
    return NULL;
}

static void use_channels(uint32_t first_sequence, uint32_t first_round, bool is_symmetric)
{
    struct fixture fixture = {.first_sequence = first_sequence,
                              .first_round = first_round,
                              .is_symmetric = is_symmetric,
                              .lock = PTHREAD_MUTEX_INITIALIZER};
    fixture.region = aligned_alloc(4096, (REGION_BYTES * N_RANKS + 4095) / 4096 * 4096);
    REQUIRE(fixture.region);
    (void)pthread_barrier_init(&fixture.barrier, NULL, N_RANKS);
    pthread_t threads[N_RANKS];
    struct channel_rank ranks[N_RANKS];
    for (int i = 0; i < N_RANKS; i++) {
        ranks[i] = (struct channel_rank){.fixture = &fixture, .rank = i};
        CHECK(pthread_create(&threads[i], NULL, run_rank, &ranks[i]) == 0);
    }
    for (int i = 0; i < N_RANKS; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    for (size_t i = 0; i < 4; i++) {
        segment_unref(fixture.segments[i].segment);
    }
    (void)pthread_barrier_destroy(&fixture.barrier);
    free(fixture.region);
}

TEST(counters_from_the_beginning)
{
    use_channels(0, 0, false);
    use_channels(0, 0, true);
}

TEST(sequences_and_rounds_wrap_at_two_to_the_31)
{
    use_channels(0x80000000u - 20, 0x80000000u - 7, false);
    use_channels(0x80000000u - 20, 0x80000000u - 7, true);
}

TEST(sequences_and_rounds_wrap_at_two_to_the_32)
{
    use_channels(0u - 21, 0u - 6, false);
    use_channels(0u - 21, 0u - 6, true);
}

TEST(sequences_half_way_round)
{
    use_channels(0x40000000u - 15, 0x40000000u - 5, false);
    use_channels(0x40000000u - 15, 0x40000000u - 5, true);
    use_channels(0xc0000000u - 15, 0xc0000000u - 5, true);
}
