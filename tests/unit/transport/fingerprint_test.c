/* SPDX-License-Identifier: MIT */
/* Fingerprints: every part of a call counts, texts name both calls, and what a peer wrote does no harm. */
#include "transport/fingerprint.h"

#include <stdio.h>
#include <string.h>

#include "harness/test.h"
#include "transport/transport.h"

/* A call with all that belongs to it in one place. */
struct taken {
    struct fingerprint fingerprint;
    int64_t details[FINGERPRINT_DETAILS];
    char words[PURPOSE_WORDS_BYTES];
};

static struct fingerprint_call call_of(const struct taken *taken)
{
    return (struct fingerprint_call){
        .fingerprint = &taken->fingerprint, .details = taken->details, .words = taken->words};
}

static struct taken take(const struct collective *collective)
{
    struct taken taken;
    memset(&taken, 0x5a, sizeof taken);
    taken.fingerprint = fingerprint_take(collective, 3, taken.details);
    fingerprint_take_words(collective, taken.words);
    return taken;
}

static bool are_equal(const struct collective *a, const struct collective *b)
{
    struct taken first = take(a);
    struct taken second = take(b);
    const struct fingerprint_call calls[] = {call_of(&first), call_of(&second)};
    return fingerprint_is_equal(&calls[0], &calls[1]);
}

/* Text of the difference between the call of rank 0, who asks, and that of rank 2. */
static void fail(const struct taken *own, const struct taken *theirs)
{
    static const int world_ranks[] = {4, 5, 6};
    const struct transport_peers peers = {
        .rank = 0, .n_ranks = 3, .world_ranks = world_ranks, .key = "key", .name = "[4,5,6]"};
    const struct fingerprint_call calls[] = {call_of(own), call_of(theirs)};
    CHECK_STATUS(fingerprint_fail(&peers, &calls[0], 2, &calls[1]), SHOAL_ERR_MISMATCH);
}

static struct collective make_call(void)
{
    struct collective call = {.kind = COLLECTIVE_ALL_REDUCE,
                              .dtype = SHOAL_F32,
                              .reduce = SHOAL_SUM,
                              .n_pieces = 1,
                              .single = {.count = 10},
                              .sequence = 7};
    return call;
}

TEST(every_part_counts)
{
    struct collective call = make_call();
    call.pieces = &call.single;
    CHECK(are_equal(&call, &call));
#define CHECK_DIFFERS(change)             \
    do {                                  \
        struct collective other = call;   \
        other.pieces = &other.single;     \
        change;                           \
        CHECK(!are_equal(&call, &other)); \
    } while (0)
    CHECK_DIFFERS(other.kind = COLLECTIVE_REDUCE);
    CHECK_DIFFERS(other.dtype = SHOAL_F64);
    CHECK_DIFFERS(other.reduce = SHOAL_MAX);
    CHECK_DIFFERS(other.factor = 2.0);
    CHECK_DIFFERS(other.device = SHOAL_META);
    CHECK_DIFFERS(other.single.count = 11);
    CHECK_DIFFERS(other.sequence = 8);
    struct purpose purpose = {.id = PURPOSE_FSDP_GATHER, .root = 1, .unit = 2};
    CHECK_DIFFERS(other.purpose = &purpose);
    call.kind = COLLECTIVE_BROADCAST;
    CHECK_DIFFERS(other.root = 1);
    /* Buffers are a rank's own. */
    struct collective other = call;
    other.single.recv = &other;
    other.pieces = &other.single;
    CHECK(are_equal(&call, &other));
}

TEST(counts_of_pieces_and_ranks_count)
{
    static const struct collective_piece pieces[] = {{.count = 3}, {.count = 7}};
    static const struct collective_piece swapped[] = {{.count = 7}, {.count = 3}};
    struct collective list = make_call();
    list.pieces = pieces;
    list.n_pieces = 2;
    struct collective other = list;
    other.pieces = swapped;
    CHECK(!are_equal(&list, &other));
    CHECK(are_equal(&list, &list));
    struct taken first = take(&list);
    struct taken second = take(&other);
    fail(&first, &second);
    CHECK_ERROR_TEXT("in 2 parts");
    CHECK_ERROR_TEXT("(their parts or counts differ)");
    static const size_t counts[] = {1, 2, 3};
    static const size_t others[] = {1, 3, 2};
    struct collective gather = make_call();
    gather.kind = COLLECTIVE_ALL_GATHER;
    gather.pieces = &gather.single;
    gather.send_counts = counts;
    gather.recv_counts = counts;
    struct collective uneven = gather;
    uneven.pieces = &uneven.single;
    uneven.send_counts = others;
    uneven.recv_counts = others;
    CHECK(!are_equal(&gather, &uneven));
    /* Those of all_to_all_v differ between ranks by right. */
    gather.kind = COLLECTIVE_ALL_TO_ALL;
    uneven.kind = COLLECTIVE_ALL_TO_ALL;
    CHECK(are_equal(&gather, &uneven));
}

TEST(details_count_however_many)
{
    int64_t numbers[PURPOSE_DETAILS + 10] = {0};
    int64_t others[PURPOSE_DETAILS + 10] = {0};
    others[1] = 1;
    struct purpose purpose = {.id = PURPOSE_FUNCTIONAL, .details = numbers};
    struct purpose other_purpose = {.id = PURPOSE_FUNCTIONAL, .details = others};
    struct collective call = make_call();
    call.pieces = &call.single;
    call.purpose = &purpose;
    struct collective other = call;
    other.pieces = &other.single;
    other.purpose = &other_purpose;
    for (size_t n = 1; n <= PURPOSE_DETAILS + 10; n += n == 1 ? 1 : 68) {
        purpose.n_details = n;
        other_purpose.n_details = n;
        CHECK_INT(are_equal(&call, &other), n == 1);
    }
}

TEST(texts_name_both_calls_lower_rank_first)
{
    struct collective call = make_call();
    call.pieces = &call.single;
    struct collective other = call;
    other.pieces = &other.single;
    other.single.count = 12;
    struct taken own = take(&call);
    struct taken theirs = take(&other);
    fail(&own, &theirs);
    CHECK_ERROR_TEXT(
        "rank 4 called all_reduce f32 sum count 10 #7, rank 6 called all_reduce f32 sum count 12 #7, "
        "on group [4,5,6]");
    other.device = SHOAL_META;
    theirs = take(&other);
    fail(&own, &theirs);
    CHECK_ERROR_TEXT("rank 6 called all_reduce f32 sum count 12 on meta #7");
    struct purpose purpose = {.id = PURPOSE_FSDP_GATHER, .root = 1, .unit = 2, .words = "layers.3"};
    other.purpose = &purpose;
    theirs = take(&other);
    fail(&own, &theirs);
    CHECK_ERROR_TEXT("rank 6 called gather of layers.3");
}

/* Numbers of devices are a process's own, in the order in which it has loaded modules. */
TEST(devices_of_modules_are_compared_by_name)
{
    static const struct device_row rows[] = {
        {DEVICE_ROW_INIT, .name = "one"},
        {DEVICE_ROW_INIT, .name = "other"},
        {DEVICE_ROW_INIT, .name = "one"},
        {DEVICE_ROW_INIT, .name = "one-of-the-longest-names-that-a-module-of-a-device-can-have-at-all"},
    };
    shoal_device devices[4];
    for (int i = 0; i < 4; i++) {
        devices[i] = device_add((struct device_slot){.row = &rows[i]});
    }
    int64_t numbers[PURPOSE_DETAILS + 1] = {1, 2, 3};
    struct purpose purpose = {.id = PURPOSE_FUNCTIONAL, .details = numbers, .words = "words"};
    for (size_t n = 0; n <= PURPOSE_DETAILS + 1; n += n == 0 ? 2 : 127) {
        struct collective call = make_call();
        call.pieces = &call.single;
        call.device = devices[0];
        purpose.n_details = n;
        call.purpose = n > 0 ? &purpose : NULL;
        struct collective other = call;
        other.pieces = &other.single;
        CHECK(are_equal(&call, &other));
        other.device = devices[2];
        CHECK(are_equal(&call, &other));
        for (int i = 1; i < 4; i += 2) {
            other.device = devices[i];
            CHECK(!are_equal(&call, &other));
        }
        other.device = SHOAL_CPU;
        CHECK(!are_equal(&call, &other));
        other.device = devices[1];
        struct taken own = take(&call);
        struct taken theirs = take(&other);
        fail(&own, &theirs);
        CHECK_ERROR_TEXT(
            "rank 4 called all_reduce f32 sum count 10 on one #7, rank 6 called all_reduce f32 sum "
            "count 10 on other #7");
    }
}

TEST(what_a_peer_wrote_is_described_whatever_it_is)
{
    struct collective call = make_call();
    call.pieces = &call.single;
    struct taken own = take(&call);
    struct test_random random = test_random_begin(1);
    for (int round = 0; round < 200; round++) {
        struct taken theirs;
        unsigned char *bytes = (unsigned char *)&theirs;
        for (size_t i = 0; i < sizeof theirs; i++) {
            bytes[i] = (unsigned char)test_random_below(&random, 256);
        }
        if (round % 2 == 0) {
            theirs.fingerprint.kind = (uint8_t)(round % COLLECTIVE_COUNT);
            theirs.fingerprint.purpose.id = (uint16_t)(round % PURPOSE_COUNT);
        }
        CHECK(fingerprint_n_details(&theirs.fingerprint) <= FINGERPRINT_DETAILS);
        fail(&own, &theirs);
        CHECK_ERROR_TEXT("rank 4 called");
    }
}
