/* SPDX-License-Identifier: MIT */
/* The flight recorder: what a dump says, that it is JSON, and that it can be taken at any time. */
#include "comm/lane/recorder.h"

#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/group/group.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/group.h"
#include "shoal/log.h"
#include "shoal/world.h"

/* A tiny JSON parser that only checks -------------------------------------------------------------------- */

struct cursor {
    const char *at;
    int depth;
};

static bool parse_value(struct cursor *cursor);

static void skip_space(struct cursor *cursor)
{
    while (*cursor->at == ' ' || *cursor->at == '\n' || *cursor->at == '\t' || *cursor->at == '\r') {
        cursor->at++;
    }
}

static bool take(struct cursor *cursor, char wanted)
{
    skip_space(cursor);
    if (*cursor->at != wanted) {
        return false;
    }
    cursor->at++;
    return true;
}

static bool parse_escape(struct cursor *cursor)
{
    if (*cursor->at == 'u') {
        for (int i = 1; i <= 4; i++) {
            if (!isxdigit((unsigned char)cursor->at[i])) {
                return false;
            }
        }
        cursor->at += 5;
        return true;
    }
    return *cursor->at && strchr("\"\\/bfnrt", *cursor->at++);
}

static bool parse_string(struct cursor *cursor)
{
    if (!take(cursor, '"')) {
        return false;
    }
    while (*cursor->at != '"') {
        unsigned char byte = (unsigned char)*cursor->at++;
        if (byte < 0x20 || byte > 0x7e || (byte == '\\' && !parse_escape(cursor))) {
            return false;
        }
    }
    cursor->at++;
    return true;
}

/* The rest of an object or array. */
static bool parse_members(struct cursor *cursor, char end, bool has_names)
{
    if (take(cursor, end)) {
        return true;
    }
    do {
        if (has_names && !(parse_string(cursor) && take(cursor, ':'))) {
            return false;
        }
        if (!parse_value(cursor)) {
            return false;
        }
    } while (take(cursor, ','));
    return take(cursor, end);
}

static bool parse_value(struct cursor *cursor)
{
    skip_space(cursor);
    bool is_good;
    cursor->depth++;
    if (cursor->depth > 16) {
        return false;
    }
    if (*cursor->at == '{' || *cursor->at == '[') {
        bool is_object = *cursor->at++ == '{';
        is_good = parse_members(cursor, is_object ? '}' : ']', is_object);
    } else if (*cursor->at == '"') {
        is_good = parse_string(cursor);
    } else if (strncmp(cursor->at, "null", 4) == 0) {
        cursor->at += 4;
        is_good = true;
    } else {
        char *end;
        (void)strtod(cursor->at, &end);
        is_good = end != cursor->at;
        cursor->at = end;
    }
    cursor->depth--;
    return is_good;
}

static bool is_json(const char *text)
{
    struct cursor cursor = {.at = text};
    bool is_good = parse_value(&cursor);
    skip_space(&cursor);
    return is_good && *cursor.at == '\0';
}

TEST(the_checker_knows_json)
{
    CHECK(is_json("{\"a\": [1, -2.5, null, \"x\\u00ff\\\"\"], \"b\": {}}\n"));
    CHECK(!is_json("{\"a\": [1,]}"));
    CHECK(!is_json("{\"a\" 1}"));
    CHECK(!is_json("[1] 2"));
    CHECK(!is_json("\"a\nb\""));
}

/* Dumps ------------------------------------------------------------------------------------------------ */

struct text {
    char *bytes;
    size_t used;
    size_t capacity;
    int n_writes_left; /* negative: no end */
};

static int append_text(void *context, const char *bytes, size_t n_bytes)
{
    struct text *text = context;
    if (text->n_writes_left == 0) {
        return 7;
    }
    text->n_writes_left--;
    if (text->used + n_bytes + 1 > text->capacity) {
        text->capacity = 2 * (text->used + n_bytes + 1);
        text->bytes = realloc(text->bytes, text->capacity);
    }
    memcpy(text->bytes + text->used, bytes, n_bytes);
    text->used += n_bytes;
    text->bytes[text->used] = '\0';
    return 0;
}

/* Freed by the caller. */
static char *dump(shoal_world *world)
{
    struct text text = {.n_writes_left = -1};
    CHECK_OK(shoal_world_dump(world, append_text, &text));
    CHECK(text.bytes && is_json(text.bytes));
    return text.bytes;
}

static int count_words(const char *text, const char *words)
{
    int count = 0;
    for (const char *at = strstr(text, words); at; at = strstr(at + 1, words)) {
        count++;
    }
    return count;
}

static shoal_world *open_fake(int rank, int n_ranks)
{
    shoal_world *world = NULL;
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = n_ranks, .rank = rank, .transport = "fake"};
    CHECK_OK(shoal_world_open(&options, &world));
    return world;
}

#define CHECK_HAS(text, words) \
    (strstr((text), (words)) ? (void)0 : test_failed(__FILE__, __LINE__, "no %s in %s", (words), (text)))

/* SHOAL_DUMP ------------------------------------------------------------------------------------------- */

/* These come first: options are read once per process, and children inherit what was read. */

/* A call that fails: on a group that was aborted while it was in flight. */
static void fail_a_call(shoal_world *world)
{
    shoal_work *work = NULL;
    CHECK_OK(shoal_group_barrier_start(shoal_world_group(world), &work));
    CHECK_OK(shoal_group_abort(shoal_world_group(world), "for the record"));
    CHECK_STATUS(shoal_work_wait(work, -1), SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT("for the record");
    shoal_work_free(work);
}

static void read_file(const char *path, char *text, size_t text_bytes)
{
    FILE *file = fopen(path, "r");
    REQUIRE(file);
    text[fread(text, 1, text_bytes - 1, file)] = '\0';
    (void)fclose(file);
}

static void dump_to_file(void *context)
{
    char prefix[] = "/tmp/shoal-recorder-XXXXXX";
    REQUIRE(mkdtemp(prefix));
    char setting[64];
    char path[64];
    (void)snprintf(setting, sizeof setting, "%s/record-", prefix);
    (void)snprintf(path, sizeof path, "%s/record-2.json", prefix);
    REQUIRE(setenv("SHOAL_DUMP", setting, 1) == 0);
    shoal_world *world = open_fake(2, 3);
    REQUIRE(world);
    fail_a_call(world);
    static char text[65536];
    read_file(path, text, sizeof text);
    CHECK(is_json(text));
    CHECK_HAS(text, "\"state\": \"failed\", \"status\": \"SHOAL_ERR_CANCELLED\"");
    CHECK_HAS(text, "aborted by rank 2: for the record");
    CHECK_HAS(text, "\"unfinished\": 0");
    CHECK(unlink(path) == 0);
    /* Once in a world. */
    CHECK_STATUS(shoal_group_barrier(shoal_world_group(world)), SHOAL_ERR_CANCELLED);
    CHECK(access(path, F_OK) != 0);
    CHECK_OK(shoal_world_close(world));
    CHECK(rmdir(prefix) == 0);
}

TEST(a_failure_writes_the_file_that_was_asked_for)
{
    test_in_child(dump_to_file, NULL);
}

/* Nothing of this rank was in flight when its group failed: the call that finds out writes. */
static void dump_of_latecomer(void *context)
{
    char prefix[] = "/tmp/shoal-recorder-XXXXXX";
    REQUIRE(mkdtemp(prefix));
    char setting[64];
    char path[64];
    (void)snprintf(setting, sizeof setting, "%s/record-", prefix);
    (void)snprintf(path, sizeof path, "%s/record-1.json", prefix);
    REQUIRE(setenv("SHOAL_DUMP", setting, 1) == 0);
    bool is_start = *(const bool *)context;
    shoal_world *world = open_fake(1, 2);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    shoal_work *work = NULL;
    CHECK_OK(shoal_group_barrier(group));
    CHECK_OK(shoal_group_abort(group, "too late"));
    CHECK_STATUS(is_start ? shoal_group_barrier_start(group, &work) : shoal_group_barrier(group),
                 SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT("too late");
    static char text[65536];
    read_file(path, text, sizeof text);
    CHECK_HAS(text, "aborted by rank 1: too late");
    CHECK(unlink(path) == 0);
    CHECK_OK(shoal_world_close(world));
    CHECK(rmdir(prefix) == 0);
}

TEST(a_call_that_comes_too_late_writes_it_too)
{
    for (int is_start = 0; is_start < 2; is_start++) {
        bool context = is_start;
        test_in_child(dump_of_latecomer, &context);
    }
}

static int n_logged;

static void note_log(void *context, shoal_log_level level, const char *message)
{
    n_logged += level == SHOAL_LOG_ERROR && strstr(message, "flight record") != NULL;
}

static void dump_to_nowhere(void *context)
{
    REQUIRE(setenv("SHOAL_DUMP", "/nonexistent/folder/", 1) == 0);
    shoal_log_set(note_log, NULL, SHOAL_LOG_ERROR);
    shoal_world *world = open_fake(0, 2);
    REQUIRE(world);
    fail_a_call(world);
    CHECK_INT(n_logged, 1);
    CHECK_OK(shoal_world_close(world));
}

TEST(a_file_that_can_not_be_written_is_logged)
{
    test_in_child(dump_to_nowhere, NULL);
}

/* The log ------------------------------------------------------------------------------------------------ */

static int n_failures;
static int n_connected;
static int n_closed;

static void count_log(void *context, shoal_log_level level, const char *message)
{
    n_failures +=
        level == SHOAL_LOG_ERROR && strcmp(message, "rank 1 group [2,1] tag \"x\" has failed: "
                                                    "SHOAL_ERR_CANCELLED: aborted by rank 1: enough") == 0;
    n_connected += level == SHOAL_LOG_DEBUG &&
                   strcmp(message, "rank 1 connected to group [2,1] tag \"x\" over fake") == 0;
    n_closed += level == SHOAL_LOG_DEBUG && strstr(message, "rank 1 has closed its world") != NULL;
}

TEST(the_log_hears_of_failures_once)
{
    shoal_world *world = open_fake(1, 3);
    REQUIRE(world);
    shoal_group *group = NULL;
    shoal_log_set(count_log, NULL, SHOAL_LOG_DEBUG);
    CHECK_OK(shoal_group_create(world, (const int[]){2, 1}, 2, "x", &group));
    CHECK_OK(shoal_group_barrier(group));
    CHECK_INT(n_connected, 1);
    CHECK_OK(shoal_group_abort(group, "enough"));
    CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_CANCELLED);
    CHECK_STRING(shoal_error_text(), "the group has failed before: aborted by rank 1: enough");
    CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_CANCELLED);
    CHECK_INT(n_failures, 1);
    CHECK_OK(shoal_world_close(world));
    CHECK_INT(n_closed, 1);
    shoal_log_set(NULL, NULL, SHOAL_LOG_ERROR);
}

/* What is in it ------------------------------------------------------------------------------------------ */

TEST(a_dump_says_what_was_called)
{
    shoal_world *world = open_fake(1, 3);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    float data[64] = {0};
    size_t counts[3] = {1, 2, 3};
    CHECK_OK(shoal_group_all_reduce(group, data, data, 10, SHOAL_F32, SHOAL_AVG));
    CHECK_OK(shoal_group_broadcast(group, data, 5, SHOAL_F64, 2));
    CHECK_OK(shoal_group_all_gather(group, data + 4, data, 4, SHOAL_F32));
    CHECK_OK(shoal_group_all_gather_v(group, data + 32, data, counts, SHOAL_I16));
    shoal_work *work = NULL;
    CHECK_OK(shoal_group_barrier_start(group, &work));
    char *text = dump(world);
    CHECK_HAS(text, "{\"version\": 1, \"rank\": 1, \"n_ranks\": 3, \"launcher\": \"options\"");
    CHECK_HAS(text,
              "\"key\": \"world\", \"ranks\": [0, 1, 2], \"tag\": \"\", \"sequence\": 5, \"unfinished\": 1");
    CHECK_HAS(text, "\"failure\": null");
    CHECK_HAS(text,
              "{\"op\": \"all_reduce\", \"sequence\": 0, \"dtype\": \"f32\", \"count\": 10, \"bytes\": 40, "
              "\"for\": null, \"unit\": null, \"reduce\": \"avg\", \"root\": null, \"algorithm\": \"local\"");
    CHECK_HAS(text,
              "{\"op\": \"broadcast\", \"sequence\": 1, \"dtype\": \"f64\", \"count\": 5, \"bytes\": 40, "
              "\"for\": null, \"unit\": null, \"reduce\": null, \"root\": 2");
    CHECK_HAS(text,
              "{\"op\": \"all_gather\", \"sequence\": 2, \"dtype\": \"f32\", \"count\": 4, \"bytes\": 48");
    CHECK_HAS(text,
              "{\"op\": \"all_gather_v\", \"sequence\": 3, \"dtype\": \"i16\", \"count\": 6, \"bytes\": 12");
    CHECK_HAS(text, "\"start_ns\": null, \"end_ns\": null, \"state\": \"posted\"");
    CHECK_INT(count_words(text, "\"state\": \"done\", \"status\": \"SHOAL_OK\""), 4);
    free(text);
    CHECK_OK(shoal_work_wait(work, -1));
    shoal_work_free(work);
    text = dump(world);
    CHECK_INT(count_words(text, "\"state\": \"done\""), 5);
    free(text);
    CHECK_OK(shoal_world_close(world));
}

TEST(the_last_calls_are_kept)
{
    shoal_world *world = open_fake(0, 2);
    REQUIRE(world);
    for (int i = 0; i < 1000; i++) {
        CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    }
    char *text = dump(world);
    CHECK_INT(count_words(text, "\"op\": "), RECORDER_CALLS);
    CHECK_HAS(text, "\"sequence\": 999,");
    CHECK_HAS(text, "\"sequence\": 872,");
    CHECK_INT(count_words(text, "\"sequence\": 871,"), 0);
    free(text);
    CHECK_OK(shoal_world_close(world));
}

TEST(texts_are_escaped)
{
    shoal_world *world = open_fake(0, 2);
    REQUIRE(world);
    static const int ranks[] = {0, 1};
    shoal_group *group = NULL;
    REQUIRE_OK(shoal_group_create(world, ranks, 2, "a\"b\\c", &group));
    CHECK_OK(shoal_group_abort(group, "tab\there, \xc3\xa9, \"quoted\""));
    char *text = dump(world);
    CHECK_HAS(text, "\"tag\": \"a\\\"b\\\\c\"");
    CHECK_HAS(text, "\"failure\": {\"status\": \"SHOAL_ERR_CANCELLED\", \"text\": \"aborted by rank 0: "
                    "tab\\u0009here");
    free(text);
    CHECK_OK(shoal_world_close(world));
}

TEST(a_dump_can_be_refused)
{
    shoal_world *world = open_fake(0, 2);
    REQUIRE(world);
    for (int i = 0; i < 100; i++) {
        CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    }
    for (int i = 0; i < 3; i++) {
        struct text text = {.n_writes_left = i};
        CHECK_STATUS(shoal_world_dump(world, append_text, &text), SHOAL_ERR_CANCELLED);
        free(text.bytes);
    }
    CHECK_STATUS(shoal_world_dump(NULL, append_text, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_world_dump(world, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_world_close(world));
}

/* While others call ------------------------------------------------------------------------------------ */

struct caller {
    pthread_t thread;
    shoal_group *group;
    _Atomic bool must_stop;
    int n_failed;
};

static void *call_on(void *context)
{
    struct caller *caller = context;
    while (!atomic_load(&caller->must_stop)) {
        shoal_work *work = NULL;
        caller->n_failed += shoal_group_barrier(caller->group) != SHOAL_OK;
        caller->n_failed += shoal_group_barrier_start(caller->group, &work) != SHOAL_OK;
        caller->n_failed += shoal_work_wait(work, -1) != SHOAL_OK;
        shoal_work_free(work);
    }
    return NULL;
}

TEST(dumps_while_others_call)
{
    shoal_world *world = open_fake(0, 2);
    REQUIRE(world);
    struct caller callers[2] = {{.group = shoal_world_group(world)}, {.group = shoal_world_group(world)}};
    for (int i = 0; i < 2; i++) {
        REQUIRE(pthread_create(&callers[i].thread, NULL, call_on, &callers[i]) == 0);
    }
    for (int i = 0; i < 50; i++) {
        free(dump(world));
    }
    for (int i = 0; i < 2; i++) {
        atomic_store(&callers[i].must_stop, true);
        (void)pthread_join(callers[i].thread, NULL);
        CHECK_INT(callers[i].n_failed, 0);
    }
    CHECK_OK(shoal_world_close(world));
}

/* A receive that nobody sends to is what somebody looking for a hang wants to see. */
TEST_RANKS(pending_transfers_are_shown, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    float values[3] = {0};
    shoal_work *work = NULL;
    int peer = 1 - self->rank;
    REQUIRE_OK(shoal_group_recv_start(group, values, 3, SHOAL_F32, peer, 7, &work));
    char *text = dump(world);
    CHECK(strstr(text, "\"n_streams\": 1") != NULL);
    CHECK(strstr(text, "{\"direction\": \"recv\", ") != NULL);
    CHECK(strstr(text, "\"tag\": 7, \"messages\": 1, \"pending\": 1, \"dtype\": \"f32\", \"count\": 3") !=
          NULL);
    free(text);
    test_barrier(self);
    CHECK_OK(shoal_group_send(group, values, 3, SHOAL_F32, peer, 7));
    CHECK_OK(shoal_work_wait(work, -1.0));
    shoal_work_free(work);
    text = dump(world);
    CHECK(strstr(text, "\"n_streams\": 2") != NULL);
    CHECK_INT(count_words(text, "\"messages\": 1, \"pending\": 0, \"dtype\": null"), 2);
    free(text);
    CHECK_OK(shoal_world_close(world));
}
