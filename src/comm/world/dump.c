/* SPDX-License-Identifier: MIT */
/*
 * The flight record as JSON: shoal_world_dump, and the file that SHOAL_DUMP asks for.
 *
 *   {"version": 1, "rank": 0, "n_ranks": 2, "launcher": "SHOAL", "now_ns": ...,
 *    "groups": [{"key": "world", "ranks": [0, 1], "tag": "", "sequence": 7, "unfinished": 1,
 *                "failure": null | {"status": "SHOAL_ERR_PEER", "text": "..."},
 *                "calls": [{"op": "all_reduce", "sequence": 6, "dtype": "f32", "count": 1024, "bytes": 4096,
 *                           "for": "gather of" | null, "unit": "layers.0" | null, "reduce": "sum" | null,
 *                           "root": 1 | null, "algorithm": "oneshot" | null,
 *                           "issue_ns": ..., "start_ns": ... | null, "end_ns": ... | null,
 *                           "state": "done", "status": "SHOAL_OK"}, ...],
 *                "n_streams": 1,
 *                "streams": [{"direction": "send", "peer": 1 | null, "tag": 0, "messages": 12, "pending": 1,
 *                             "dtype": "f32" | null, "count": 16, "issue_ns": ... | null,
 *                             "status": "SHOAL_OK"}, ...]}, ...]}
 *
 * Times are those of the monotonic clock. Calls are in the order in which they were issued. A stream without a peer is
 * receives from any rank for which no message has come yet.
 */
#include "comm/world/dump.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/label.h"
#include "base/log.h"
#include "base/options.h"
#include "base/try.h"
#include "base/write.h"
#include "comm/group/groups.h"
#include "comm/lane/lane.h"
#include "comm/p2p/p2p.h"
#include "comm/lane/record.h"
#include "comm/group/world.h"
#include "transport/algorithm.h"

/* Writing JSON ----------------------------------------------------------------------------------------- */

struct writer {
    shoal_write_function write;
    void *context;
    size_t used;
    char buffer[1024];
};

static shoal_status flush(struct writer *writer)
{
    if (writer->used > 0 && writer->write(writer->context, writer->buffer, writer->used) != 0) {
        return error_set(SHOAL_ERR_CANCELLED, "world_dump: the write function returned an error");
    }
    writer->used = 0;
    return SHOAL_OK;
}

static shoal_status put(struct writer *writer, const char *text, size_t bytes)
{
    if (writer->used + bytes > sizeof writer->buffer) {
        TRY(flush(writer));
    }
    memcpy(writer->buffer + writer->used, text, bytes);
    writer->used += bytes;
    return SHOAL_OK;
}

/* Writes at most 255 characters. */
__attribute__((format(printf, 2, 3))) static shoal_status put_format(struct writer *writer,
                                                                     const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (bytes < 0 || (size_t)bytes >= sizeof text) {
        return error_set(SHOAL_ERR_INTERNAL, "a piece of the dump is too long: %s", format);
    }
    return put(writer, text, (size_t)bytes);
}

/* In quotes. What is no ASCII is written as the Latin-1 character of that byte, so that the output is always
   well-formed, whatever a text contains. */
static shoal_status put_string(struct writer *writer, const char *text)
{
    TRY(put(writer, "\"", 1));
    for (const char *at = text; *at; at++) {
        unsigned char byte = (unsigned char)*at;
        if (byte == '"' || byte == '\\') {
            TRY(put_format(writer, "\\%c", byte));
        } else if (byte < 0x20 || byte > 0x7e) {
            TRY(put_format(writer, "\\u%04x", byte));
        } else {
            TRY(put(writer, at, 1));
        }
    }
    return put(writer, "\"", 1);
}

/* Writes null if `text` is NULL. */
static shoal_status put_member(struct writer *writer, const char *name, const char *text)
{
    TRY(put_format(writer, ", \"%s\": ", name));
    return text ? put_string(writer, text) : put(writer, "null", 4);
}

/* Calls ------------------------------------------------------------------------------------------------ */

static const char *const state_names[RECORD_STATE_COUNT] = {
#define RECORD_STATE(NAME, name) [RECORD_##NAME] = name,
#include "comm/lane/record_states.def"
#undef RECORD_STATE
};

/* The widest buffer, as in collective_bytes. */
static uint64_t count_bytes(const struct record_call *call, int n_ranks)
{
    if (call->has_counts || call->kind == COLLECTIVE_WINDOW_GATHER) {
        return call->count * shoal_dtype_bytes(call->dtype);
    }
    struct collective collective = {
        .kind = call->kind, .dtype = call->dtype, .n_pieces = 1, .single = {.count = (size_t)call->count}};
    collective.pieces = &collective.single;
    return collective_bytes(&collective, n_ranks);
}

/* Two instants at which clock and counter were read. */
struct scale {
    uint64_t begin_ticks;
    int64_t begin_ns;
    uint64_t now_ticks;
    int64_t now_ns;
};

static int64_t ticks_to_ns(const struct scale *scale, uint64_t ticks)
{
    double whole_ticks = (double)(scale->now_ticks - scale->begin_ticks);
    double share = whole_ticks > 0.0 ? (double)(int64_t)(ticks - scale->begin_ticks) / whole_ticks : 0.0;
    return scale->begin_ns + (int64_t)(share * (double)(scale->now_ns - scale->begin_ns));
}

/* Writes null if `ticks` is 0. */
static shoal_status put_time(struct writer *writer, const char *name, const struct scale *scale,
                             uint64_t ticks)
{
    if (ticks == 0) {
        return put_member(writer, name, NULL);
    }
    return put_format(writer, ", \"%s\": %" PRId64, name, ticks_to_ns(scale, ticks));
}

/* Returns NULL if none was picked yet, or the transport has no choice. */
static const char *algorithm_name(const struct shoal_group *group, unsigned algorithm)
{
    const struct algorithm_table *table = group->peers.transport->algorithms;
    return table && algorithm < (unsigned)table->n_rows ? table->rows[algorithm].name : NULL;
}

static shoal_status put_call(struct writer *writer, const struct record_call *call, const struct scale *scale,
                             const struct shoal_group *group)
{
    const struct collective_row *row = &collective_rows[call->kind];
    TRY(put_format(writer, "{\"op\": \"%s%s\", \"sequence\": %" PRIu32, row->name,
                   call->has_counts ? "_v" : "", call->sequence));
    TRY(put_member(writer, "dtype", shoal_dtype_name(call->dtype)));
    TRY(put_format(writer, ", \"count\": %" PRIu64 ", \"bytes\": %" PRIu64, call->count,
                   count_bytes(call, group->peers.n_ranks)));
    const char *purpose = purpose_text(call->purpose);
    TRY(put_member(writer, "for", purpose[0] ? purpose : NULL));
    TRY(put_member(writer, "unit", call->unit ? label_text(call->unit) : NULL));
    TRY(put_member(writer, "reduce", row->reduces ? shoal_reduce_op_name(call->reduce) : NULL));
    if (row->has_root) {
        TRY(put_format(writer, ", \"root\": %d", call->root));
    } else {
        TRY(put_member(writer, "root", NULL));
    }
    TRY(put_member(writer, "algorithm", algorithm_name(group, call->algorithm)));
    TRY(put_time(writer, "issue_ns", scale, call->issue_ticks));
    TRY(put_time(writer, "start_ns", scale, call->start_ticks));
    TRY(put_time(writer, "end_ns", scale, call->end_ticks));
    TRY(put_member(writer, "state", state_names[call->state]));
    TRY(put_member(writer, "status", shoal_status_name(call->status)));
    return put(writer, "}", 1);
}

static shoal_status put_calls(struct writer *writer, const struct shoal_group *group)
{
    const struct recorder *recorder = group->recorder;
    struct scale scale = {.begin_ticks = recorder->begin_ticks,
                          .begin_ns = recorder->begin_ns,
                          .now_ticks = clock_ticks(),
                          .now_ns = clock_now_ns()};
    uint64_t n_calls = lane_sequence(group->lane);
    uint64_t first = n_calls > RECORDER_CALLS ? n_calls - RECORDER_CALLS + 1 : 1;
    bool has_any = false;
    TRY(put_format(writer, ", \"calls\": ["));
    for (uint64_t number = first; number <= n_calls; number++) {
        struct record_call call;
        if (!record_read(&recorder->records[number % RECORDER_CALLS], &call) || call.number != number) {
            continue;
        }
        TRY(put(writer, ",\n  ", has_any ? 4 : 0));
        TRY(put_call(writer, &call, &scale, group));
        has_any = true;
    }
    return put(writer, "]", 1);
}

/* Streams ---------------------------------------------------------------------------------------------- */

/* How many streams of point to point are shown; those with pending messages come first. */
#define SHOWN_STREAMS 32

/* dtype, count and issue_ns are those of the first pending message. */
static shoal_status put_stream(struct writer *writer, const struct p2p_stream_state *state)
{
    TRY(put_format(writer, "{\"direction\": \"%s\"", state->direction == SHOAL_SEND ? "send" : "recv"));
    if (state->peer == SHOAL_ANY_RANK) {
        TRY(put_member(writer, "peer", NULL));
    } else {
        TRY(put_format(writer, ", \"peer\": %d", state->peer));
    }
    TRY(put_format(writer, ", \"tag\": %d, \"messages\": %" PRIu32, state->tag, state->n_messages));
    TRY(put_format(writer, ", \"pending\": %zu", state->n_pending));
    TRY(put_member(writer, "dtype", state->n_pending > 0 ? shoal_dtype_name(state->dtype) : NULL));
    TRY(put_format(writer, ", \"count\": %zu", state->count));
    if (state->n_pending > 0) {
        TRY(put_format(writer, ", \"issue_ns\": %" PRId64, state->start_ns));
    } else {
        TRY(put_member(writer, "issue_ns", NULL));
    }
    TRY(put_member(writer, "status", shoal_status_name(state->failure)));
    return put(writer, "}", 1);
}

static shoal_status put_streams(struct writer *writer, struct shoal_group *group)
{
    struct p2p_stream_state states[SHOWN_STREAMS];
    size_t n_streams = p2p_list_streams(group_p2p(group), states, SHOWN_STREAMS);
    TRY(put_format(writer, ",\n \"n_streams\": %zu, \"streams\": [", n_streams));
    for (size_t i = 0; i < n_streams && i < SHOWN_STREAMS; i++) {
        TRY(put(writer, ",\n  ", i > 0 ? 4 : 0));
        TRY(put_stream(writer, &states[i]));
    }
    return put(writer, "]", 1);
}

/* Groups and the world --------------------------------------------------------------------------------- */

static shoal_status put_failure(struct writer *writer, struct shoal_group *group)
{
    shoal_status status = group_failure(group);
    if (status == SHOAL_OK) {
        return put_member(writer, "failure", NULL);
    }
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    error_clear();
    TRY(put_format(writer, ", \"failure\": {\"status\": \"%s\"", shoal_status_name(status)));
    TRY(put_member(writer, "text", text));
    return put(writer, "}", 1);
}

static shoal_status put_group(struct writer *writer, struct shoal_group *group)
{
    TRY(put_format(writer, "{\"key\": "));
    TRY(put_string(writer, group->key));
    TRY(put_format(writer, ", \"ranks\": ["));
    for (int i = 0; i < group->peers.n_ranks; i++) {
        TRY(put_format(writer, "%s%d", i > 0 ? ", " : "", group->ranks[i]));
    }
    TRY(put(writer, "]", 1));
    TRY(put_member(writer, "tag", group->tag));
    TRY(put_format(writer, ", \"sequence\": %" PRIu64 ", \"unfinished\": %" PRIu64,
                   lane_sequence(group->lane), lane_n_unfinished(group->lane)));
    TRY(put_failure(writer, group));
    TRY(put_calls(writer, group));
    TRY(put_streams(writer, group));
    return put(writer, "}", 1);
}

static shoal_status put_world(struct writer *writer, struct shoal_world *world)
{
    TRY(put_format(writer, "{\"version\": 1, \"rank\": %d, \"n_ranks\": %d", world->rank, world->n_ranks));
    TRY(put_member(writer, "launcher", world->launcher));
    TRY(put_format(writer, ", \"now_ns\": %" PRId64 ", \"groups\": [", clock_now_ns()));
    struct shoal_group *first = groups_walk(world->groups);
    shoal_status status = SHOAL_OK;
    for (struct shoal_group *group = first; group && status == SHOAL_OK; group = group->next) {
        status = put(writer, ",\n ", group == first ? 0 : 3);
        status = status == SHOAL_OK ? put_group(writer, group) : status;
    }
    groups_end_walk(world->groups);
    TRY(status);
    TRY(put(writer, "]}\n", 3));
    return flush(writer);
}

shoal_status shoal_world_dump(shoal_world *world, shoal_write_function write, void *context)
{
    error_clear();
    if (!world || !write) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", world ? "write" : "world");
    }
    TRY(world_check_process(world));
    struct writer writer = {.write = write, .context = context};
    return put_world(&writer, world);
}

/* The file --------------------------------------------------------------------------------------------- */

struct target {
    int fd;
    int code; /* why it could not be written */
};

static int write_to_file(void *context, const char *text, size_t bytes)
{
    struct target *target = context;
    target->code = write_all(target->fd, text, bytes);
    return target->code == 0 ? 0 : -1;
}

static void write_file(struct shoal_world *world, const char *prefix)
{
    char path[4096];
    int bytes = snprintf(path, sizeof path, "%s%d.json", prefix, world->rank);
    if (bytes < 0 || (size_t)bytes >= sizeof path) {
        LOG(SHOAL_LOG_ERROR, "SHOAL_DUMP: the path of the flight record is too long");
        return;
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        LOG(SHOAL_LOG_ERROR, "flight record %s: %s", path, error_errno_text(errno));
        return;
    }
    struct target target = {.fd = fd};
    shoal_status status = shoal_world_dump(world, write_to_file, &target);
    if (close(fd) != 0 && target.code == 0) {
        target.code = errno;
    }
    if (target.code != 0) {
        LOG(SHOAL_LOG_ERROR, "flight record %s: %s", path, error_errno_text(target.code));
    } else if (status != SHOAL_OK) {
        LOG(SHOAL_LOG_ERROR, "flight record %s: %s", path, shoal_error_text());
    } else {
        LOG(SHOAL_LOG_WARN, "flight record written to %s", path);
    }
}

void dump_after_failure(struct shoal_world *world)
{
    const char *prefix = option_text(OPTION_DUMP);
    /* Relaxed: only decides who writes. */
    if (prefix[0] != '\0' &&
        !atomic_exchange_explicit(&world->groups->was_dumped, true, memory_order_relaxed)) {
        write_file(world, prefix);
    }
}
