/* SPDX-License-Identifier: MIT */
/* Streams and doorbells alone: what goes in comes out, whoever is faster; damage is noticed. */
#include "transport/shm/stream.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "harness/test.h"
#include "shoal/dtype.h"

struct pair {
    struct stream *stream;
    struct doorbell bells[2]; /* sender, receiver */
    struct shm_stream_end sender;
    struct shm_stream_end receiver;
};

static struct pair *make_pair(void)
{
    struct pair *pair = aligned_alloc(128, sizeof *pair);
    struct stream *stream = aligned_alloc(128, sizeof *stream);
    if (!pair || !stream) {
        abort();
    }
    memset(pair, 0, sizeof *pair);
    memset(stream, 0, sizeof *stream);
    pair->stream = stream;
    pair->sender = (struct shm_stream_end){.stream = stream, .peer = &pair->bells[1]};
    pair->receiver = (struct shm_stream_end){.stream = stream, .peer = &pair->bells[0]};
    return pair;
}

static void free_pair(struct pair *pair)
{
    free(pair->stream);
    free(pair);
}

static struct stream_message describe(unsigned char *bytes, size_t count, uint32_t sequence, bool is_send)
{
    struct stream_message message = {.head = {.count = count, .dtype = SHOAL_U8, .sequence = sequence}};
    message.bytes = count;
    message.send = is_send ? bytes : NULL;
    message.recv = is_send ? NULL : bytes;
    return message;
}

static unsigned char byte_at(size_t message, size_t i)
{
    return (unsigned char)(message * 37 + i * 7 + i / 251);
}

static const size_t sizes[] = {0,
                               1,
                               63,
                               64,
                               65,
                               1000,
                               STREAM_PIECE_BYTES - 1,
                               STREAM_PIECE_BYTES + 1,
                               STREAM_RING_BYTES - 64,
                               STREAM_RING_BYTES - 1,
                               STREAM_RING_BYTES,
                               STREAM_RING_BYTES + 1,
                               3 * STREAM_RING_BYTES + 17};
#define N_SIZES (sizeof sizes / sizeof sizes[0])

/* One thread plays both sides: every order of steps that one thread can make. */
TEST(alternating_steps_move_every_size)
{
    struct pair *pair = make_pair();
    unsigned char *sent = malloc(4 * STREAM_RING_BYTES);
    unsigned char *got = malloc(4 * STREAM_RING_BYTES);
    REQUIRE(sent && got);
    for (size_t k = 0; k < N_SIZES; k++) {
        for (size_t i = 0; i < sizes[k]; i++) {
            sent[i] = byte_at(k, i);
        }
        memset(got, 0xee, 4 * STREAM_RING_BYTES);
        struct stream_message out = describe(sent, sizes[k], (uint32_t)k, true);
        struct stream_message in = describe(got, sizes[k], (uint32_t)k, false);
        while (!stream_message_is_finished(&in)) {
            REQUIRE_OK(stream_put(&pair->sender, &out));
            REQUIRE_OK(stream_take(&pair->receiver, &in));
        }
        CHECK(stream_message_is_finished(&out));
        CHECK_BYTES(got, sent, sizes[k]);
        CHECK_INT(got[sizes[k]], 0xee);
        CHECK_INT(stream_available(&pair->receiver), 0);
        CHECK_INT(stream_room(&pair->sender), STREAM_RING_BYTES);
    }
    free(sent);
    free(got);
    free_pair(pair);
}

TEST(a_full_ring_is_stuck_and_the_receiver_rings)
{
    struct pair *pair = make_pair();
    static unsigned char bytes[2 * STREAM_RING_BYTES];
    struct stream_message out = describe(bytes, sizeof bytes, 0, true);
    REQUIRE_OK(stream_put(&pair->sender, &out));
    REQUIRE_OK(stream_put(&pair->sender, &out));
    CHECK(out.is_stuck);
    CHECK_INT(stream_room(&pair->sender), 0);
    /* The first piece found the ring empty, the others need not have rung. */
    CHECK_INT(doorbell_look(&pair->bells[1]), 2);
    CHECK_INT(doorbell_look(&pair->bells[0]), 0);
    static unsigned char got[2 * STREAM_RING_BYTES];
    struct stream_message in = describe(got, sizeof got, 0, false);
    REQUIRE_OK(stream_take(&pair->receiver, &in));
    CHECK_INT(doorbell_look(&pair->bells[0]), 2);
    free_pair(pair);
}

TEST(another_message_is_a_mismatch)
{
    struct pair *pair = make_pair();
    unsigned char bytes[64] = {0};
    struct stream_message out = describe(bytes, 12, 0, true);
    struct stream_message in = describe(bytes, 10, 0, false);
    REQUIRE_OK(stream_put(&pair->sender, &out));
    CHECK_STATUS(stream_take(&pair->receiver, &in), SHOAL_ERR_MISMATCH);
    CHECK_INT(in.found.count, 12);
    stream_fail(&pair->receiver, SHOAL_ERR_MISMATCH, "the first reason");
    stream_fail(&pair->sender, SHOAL_ERR_PEER, "another");
    CHECK_STATUS(shared_reason_get(&pair->stream->reason), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("the first reason");
    free_pair(pair);
}

TEST(damaged_counters_are_noticed)
{
    struct pair *pair = make_pair();
    unsigned char bytes[64] = {0};
    const uint64_t wrong[] = {1, STREAM_RING_BYTES + STREAM_UNIT, UINT64_MAX};
    for (size_t i = 0; i < 3; i++) {
        struct stream_message message = describe(bytes, 8, 0, false);
        atomic_store(&pair->stream->written, wrong[i]);
        CHECK_STATUS(stream_take(&pair->receiver, &message), SHOAL_ERR_INTERNAL);
        CHECK_ERROR_TEXT("damaged");
        message = describe(bytes, 8, 0, true);
        atomic_store(&pair->stream->read, wrong[i]);
        CHECK_STATUS(stream_put(&pair->sender, &message), SHOAL_ERR_INTERNAL);
        CHECK_INT(stream_room(&pair->sender), 0);
    }
    free_pair(pair);
}

TEST(tags_find_their_slot_from_both_sides)
{
    struct stream_table *table = aligned_alloc(128, stream_table_bytes(4));
    REQUIRE(table);
    memset(table, 0, stream_table_bytes(4));
    struct stream *first = stream_table_find(table, 4, 7);
    struct stream *second = stream_table_find(table, 4, 0x7fffffff);
    CHECK(first == &table->streams[0]);
    CHECK(second == &table->streams[1]);
    CHECK(stream_table_find(table, 4, 7) == first);
    CHECK(stream_table_find(table, 4, 0) == &table->streams[2]);
    CHECK(stream_table_find(table, 4, 1) == &table->streams[3]);
    CHECK(!stream_table_find(table, 4, 2));
    CHECK(stream_table_find(table, 4, 0x7fffffff) == second);
    free(table);
}

/* Two threads that sleep whenever they are stuck: a lost ring would be a wait of 20 s. */
#define N_MESSAGES 3000

static size_t random_size(size_t k)
{
    return sizes[(k * 7 + k / 13) % N_SIZES] % (3 * STREAM_PIECE_BYTES);
}

static void wait_until_rung(struct doorbell *bell, uint32_t seen)
{
    if (doorbell_arm(bell, &seen)) {
        int64_t start_ns = clock_now_ns();
        doorbell_sleep(bell, seen, start_ns + (int64_t)20000000000);
        CHECK(clock_now_ns() - start_ns < (int64_t)19000000000);
    }
}

static void *send_all(void *context)
{
    struct pair *pair = context;
    static unsigned char bytes[4 * STREAM_RING_BYTES];
    for (size_t k = 0; k < N_MESSAGES; k++) {
        size_t size = random_size(k);
        memset(bytes, (int)(k % 256), size);
        struct stream_message message = describe(bytes, size, (uint32_t)k, true);
        while (!stream_message_is_finished(&message)) {
            uint32_t seen = doorbell_look(&pair->bells[0]);
            CHECK_OK(stream_put(&pair->sender, &message));
            if (message.is_stuck) {
                wait_until_rung(&pair->bells[0], seen);
            }
        }
    }
    return NULL;
}

static bool is_filled(const unsigned char *bytes, size_t count, unsigned char value)
{
    return count == 0 || (bytes[0] == value && memcmp(bytes, bytes + 1, count - 1) == 0);
}

TEST(sleeping_sides_never_miss_each_other)
{
    struct pair *pair = make_pair();
    static unsigned char bytes[4 * STREAM_RING_BYTES];
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, send_all, pair) == 0);
    for (size_t k = 0; k < N_MESSAGES && !test_has_failed(); k++) {
        struct stream_message message = describe(bytes, random_size(k), (uint32_t)k, false);
        while (!stream_message_is_finished(&message)) {
            uint32_t seen = doorbell_look(&pair->bells[1]);
            CHECK_OK(stream_take(&pair->receiver, &message));
            if (message.is_stuck) {
                wait_until_rung(&pair->bells[1], seen);
            }
        }
        CHECK(is_filled(bytes, random_size(k), (unsigned char)(k % 256)));
    }
    CHECK(pthread_join(thread, NULL) == 0);
    free_pair(pair);
}

TEST(a_bell_that_rang_can_not_be_armed)
{
    struct doorbell bell = {0};
    uint32_t seen = doorbell_look(&bell);
    doorbell_ring(&bell);
    CHECK(!doorbell_arm(&bell, &seen));
    seen = doorbell_look(&bell);
    CHECK(doorbell_arm(&bell, &seen));
    CHECK_INT(seen & 1, 1);
    uint32_t again = seen & ~1u;
    CHECK(doorbell_arm(&bell, &again)); /* somebody else armed it meanwhile */
    doorbell_disarm(&bell, &seen);
    CHECK_INT(doorbell_look(&bell) & 1, 0);
    doorbell_ring(&bell);
    CHECK(!doorbell_arm(&bell, &seen));
}
