/* SPDX-License-Identifier: MIT */
/*
 * What ranks on other hosts say on the connections of a watch (bootstrap/alive/watch.h), changed at random: heartbeats, deaths,
 * failures. The watch must read nothing that it may not, lose neither memory nor descriptors, and what it passes on must be
 * a status and two strings. The watch's thread is this one.
 */
#include "bootstrap/alive/watch.c"

#include <sys/socket.h>

#include "fuzz/fuzz.h"
#include "fuzz/records.h"
#include "harness/test.h"

#define N_RANKS 4
#define OWN_RANK 0
#define WHO_MASK 3u
/* Of what is mixed into a record's `who`. */
#define WHO_ENDS 0x80u   /* the rank's connection ends */
#define WHO_PASSES 0x40u /* so much time passes that a heartbeat is due */

struct stage {
    struct watch *watch;
    int ends[N_RANKS]; /* the ranks' own; -1: none */
};

static unsigned n_heard;

/* Hearing of a failure, a group tells others. */
static void hear(void *context, const char *name, shoal_status status, const char *text)
{
    struct stage *stage = context;
    CHECK(strlen(name) > 0 && strlen(name) < CONNECTION_SMALL_BYTES);
    CHECK(strlen(text) > 0 && strlen(text) <= LINK_PAYLOAD_BYTES_MAX && status != SHOAL_OK &&
          status_is_known(status));
    watch_tell_failure(stage->watch, 2, name, status, text);
    n_heard++;
}

static bool open_stage(struct stage *stage)
{
    const struct watch_options options = {.rank = OWN_RANK,
                                          .n_ranks = N_RANKS,
                                          .heartbeat_ns = INT64_C(10000000000),
                                          .hear = hear,
                                          .hear_context = stage};
    stage->ends[OWN_RANK] = -1;
    if (!CHECK_OK(watch_create(&options, &stage->watch))) {
        return false;
    }
    for (int rank = 1; rank < N_RANKS; rank++) {
        struct peer *peer = &stage->watch->peers[rank];
        int pair[2] = {-1, -1};
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
        stage->ends[rank] = pair[1];
        CHECK(watch_take(stage->watch, rank, pair[0]));
        peer->is_watched = rank != 3; /* rank 3 is on this host, and connects all the same */
        peer->pid = 100 + rank;
        peer->heard_ns = clock_now_ns();
        atomic_store(&peer->state, peer->is_watched ? MEMBER_ALIVE : MEMBER_ABSENT);
    }
    stage->watch->last_turn_ns = clock_now_ns();
    stage->watch->is_judging = true;
    return true;
}

static void close_stage(struct stage *stage)
{
    watch_free(stage->watch);
    for (int rank = 1; rank < N_RANKS; rank++) {
        if (stage->ends[rank] >= 0) {
            (void)close(stage->ends[rank]);
        }
    }
}

static void take_one_turn(struct stage *stage, bool is_beat_due)
{
    char bytes[4096];
    (void)pthread_mutex_lock(&stage->watch->lock);
    stage->watch->next_beat_ns = is_beat_due ? 0 : DEADLINE_NEVER;
    list_polled(stage->watch);
    sleep_until(stage->watch, /*until_ns=*/0);
    serve_links(stage->watch);
    if (is_beat_due) {
        beat(stage->watch);
        mark_silent_ranks_dead(stage->watch, clock_now_ns());
    }
    (void)pthread_mutex_unlock(&stage->watch->lock);
    for (int rank = 1; rank < N_RANKS; rank++) {
        while (stage->ends[rank] >= 0 && recv(stage->ends[rank], bytes, sizeof bytes, 0) > 0) {
        }
    }
}

static void play(struct stage *stage, const struct record *record)
{
    int *end = &stage->ends[record->who & WHO_MASK];
    if (*end >= 0) {
        (void)send(*end, record->bytes, record->n_bytes, MSG_NOSIGNAL);
    }
    if (*end >= 0 && record->who & WHO_ENDS) {
        (void)close(*end);
        *end = -1;
    }
    take_one_turn(stage, record->who & WHO_PASSES);
}

static void try_bytes(const unsigned char *bytes, size_t n_bytes)
{
    int program;
    struct record record;
    struct stage stage;
    struct records records = records_begin(bytes, n_bytes, &program);
    if (open_stage(&stage)) {
        if (program & 1) {
            watch_keep(stage.watch);
        }
        if (program & 2) {
            watch_leave(stage.watch);
        }
        while (records_next(&records, &record)) {
            play(&stage, &record);
        }
        take_one_turn(&stage, /*is_beat_due=*/true);
        for (int rank = 1; rank < N_RANKS; rank++) {
            char text[160];
            enum member_state state = watch_state(stage.watch, rank);
            CHECK(state == MEMBER_ABSENT || state == MEMBER_ALIVE || state == MEMBER_LEFT ||
                  state == MEMBER_DEAD);
            watch_explain(stage.watch, rank, text, sizeof text);
        }
        close_stage(&stage);
    }
    error_clear();
}

/* Otherwise the seeds have to be made again. */
TEST(what_was_recorded_is_heard)
{
    static struct fuzz_input input;
    REQUIRE(fuzz_read_seed("watch", "words", &input));
    n_heard = 0;
    try_bytes(input.bytes, input.n_bytes);
    CHECK_INT(n_heard, 1);
}

/* Seeds: SHOAL_FUZZ_CAPTURE=FOLDER ------------------------------------------------------------------------ */

/* As link_send sends it. */
static void add_word(struct fuzz_input *seed, unsigned who, enum word word, int32_t number,
                     const void *payload, size_t n_payload)
{
    unsigned char frame[2048];
    const struct frame_header header = {
        .magic = FRAME_MAGIC, .op = word, .status = number, .bytes = (uint32_t)n_payload};
    memcpy(frame, &header, sizeof header);
    memcpy(frame + sizeof header, payload, n_payload);
    records_add(seed, who, frame, sizeof header + n_payload);
}

TEST(capture)
{
    static const char failure[] = "group [0,1]\0rank 3 died";
    if (!fuzz_capture_folder()) {
        return;
    }
    struct fuzz_input seed = {.n_bytes = 1};
    add_word(&seed, 1, WORD_ALIVE, 0, "", 0);
    add_word(&seed, 2 | WHO_PASSES, WORD_ALIVE, 0, "", 0);
    add_word(&seed, 1, WORD_FAILED, SHOAL_ERR_PEER, failure, sizeof failure - 1);
    add_word(&seed, 1, WORD_DIED, 2, "", 0);
    add_word(&seed, 1 | WHO_PASSES, WORD_LEFT, 0, "", 0);
    add_word(&seed, 1 | WHO_ENDS, WORD_ALIVE, 0, "", 0);
    fuzz_write_seed("words", &seed);
    seed = (struct fuzz_input){.bytes = {3}, .n_bytes = 1};
    add_word(&seed, 1, WORD_LEFT, 0, "", 0);
    add_word(&seed, 2, WORD_GONE, 0, "", 0);
    add_word(&seed, 3, WORD_FAILED, SHOAL_ERR_TIMEOUT, failure, sizeof failure - 1);
    add_word(&seed, 1 | WHO_ENDS, WORD_ALIVE, 0, "", 0);
    fuzz_write_seed("leaving", &seed);
    seed = (struct fuzz_input){.n_bytes = 1};
    add_word(&seed, 1, WORD_FAILED, SHOAL_ERR_PEER, "group [0,1]", sizeof "group [0,1]");
    fuzz_write_seed("regression-no-reason", &seed);
}

const struct fuzz_target fuzz_target = {
    .name = "watch", .try_input = try_bytes, .has_records = true, .n_rounds = 5000};
