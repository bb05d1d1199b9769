/* SPDX-License-Identifier: MIT */
/*
 * Events as Chrome's trace format has them: complete events (X) with begin and duration in microseconds, instants (i), and
 * metadata (M) that names processes and threads. The process is the rank. The thread is the number of the thread, or, of
 * a lane, TRACK_TID and the number of its name, which is the same in all ranks' processes only by chance.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/label.h"
#include "base/text.h"
#include "base/trace_file.h"
#include "base/trace_ring.h"

#define TRACK_TID 1000000u
/* So many lanes are named once; a name that is told again does no harm. */
#define N_NAMED 64

static const struct {
    const char *category;
    bool is_instant;
} kinds[TRACE_KIND_COUNT] = {
#define TRACE_KIND(NAME, category, is_instant) [TRACE_##NAME] = {category, is_instant},
#include "base/trace_kinds.def"
#undef TRACE_KIND
};

struct writing {
    struct trace_sink *sink;
    const struct trace_process *process;
    size_t n_named;
    struct named {
        int rank;
        uint32_t track;
    } named[N_NAMED];
};

/* With quotes. What is no ASCII becomes the Latin-1 character of that byte, so that the file is always well-formed. */
static const char *quote(const char *name, char *quoted, size_t bytes)
{
    struct text text = text_begin(quoted, bytes);
    text_add(&text, "\"");
    for (const char *at = name; *at; at++) {
        unsigned char byte = (unsigned char)*at;
        if (byte == '"' || byte == '\\') {
            text_add(&text, "\\%c", byte);
        } else if (byte < 0x20 || byte > 0x7e) {
            text_add(&text, "\\u%04x", byte);
        } else {
            text_add(&text, "%c", byte);
        }
    }
    text_add(&text, "\"");
    return quoted;
}
/* Of a label in quotes, when each of its characters is escaped. */
#define QUOTED_BYTES (6 * LABEL_MAX_CHARS + 3)
/* Of what else an event has. */
#define OTHER_BYTES 256
_Static_assert(2 * QUOTED_BYTES + OTHER_BYTES <= TRACE_LINE_BYTES, "room for the longest event");

static int64_t ticks_to_ns(const struct trace_scale *scale, uint64_t ticks)
{
    double whole_ticks = (double)(scale->now_ticks - scale->begin_ticks);
    double share = whole_ticks > 0.0 ? (double)(int64_t)(ticks - scale->begin_ticks) / whole_ticks : 0.0;
    return scale->begin_ns + (int64_t)(share * (double)(scale->now_ns - scale->begin_ns));
}

/* Metadata ----------------------------------------------------------------------------------------------- */

static void put_metadata(struct trace_sink *sink, const char *what, int rank, uint32_t thread,
                         const char *name)
{
    char quoted[QUOTED_BYTES];
    trace_sink_event(sink,
                     "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%" PRIu32 ",\"args\":{\"name\":%s}}",
                     what, rank, thread, quote(name, quoted, sizeof quoted));
}

static void put_order(struct trace_sink *sink, const char *what, int rank, uint32_t thread, uint32_t order)
{
    trace_sink_event(sink,
                     "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%" PRIu32
                     ",\"args\":{\"sort_index\":%" PRIu32 "}}",
                     what, rank, thread, order);
}

static void put_process(struct writing *writing, int rank, uint32_t thread)
{
    char host[64] = "";
    char name[LABEL_MAX_CHARS + 1];
    if (gethostname(host, sizeof host - 1) != 0) {
        host[0] = '\0';
    }
    if (writing->process->n_ranks > 0) {
        (void)snprintf(name, sizeof name, "rank %d of %d (%s, process %d)", rank, writing->process->n_ranks,
                       host, (int)getpid());
    } else {
        (void)snprintf(name, sizeof name, "process %d (%s)", (int)getpid(), host);
    }
    put_metadata(writing->sink, "process_name", rank, thread, name);
    put_order(writing->sink, "process_sort_index", rank, thread, (uint32_t)rank);
}

static void put_thread(struct writing *writing, const struct trace_ring *ring, int rank)
{
    char name[48];
    (void)snprintf(name, sizeof name, "thread %" PRIu32 " (%s)", ring->number, ring->thread_name);
    put_process(writing, rank, ring->number);
    put_metadata(writing->sink, "thread_name", rank, ring->number, name);
    put_order(writing->sink, "thread_sort_index", rank, ring->number, ring->number);
}

static void name_track(struct writing *writing, int rank, uint32_t track)
{
    for (size_t i = 0; i < writing->n_named; i++) {
        if (writing->named[i].rank == rank && writing->named[i].track == track) {
            return;
        }
    }
    if (writing->n_named < N_NAMED) {
        writing->named[writing->n_named++] = (struct named){.rank = rank, .track = track};
    }
    put_metadata(writing->sink, "thread_name", rank, TRACK_TID + track, label_text(track));
    put_order(writing->sink, "thread_sort_index", rank, TRACK_TID + track, TRACK_TID + track);
}

static void put_count(struct trace_sink *sink, const char *what, int rank, uint32_t thread, uint64_t count)
{
    if (count > 0) {
        trace_sink_event(sink,
                         "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%" PRIu32
                         ",\"args\":{\"count\":%" PRIu64 "}}",
                         what, rank, thread, count);
    }
}

/* Events ------------------------------------------------------------------------------------------------- */

/* With its unit, which viewers then show without a click: "all_gather layers.0". */
static void quote_name(const struct trace_event *event, char *quoted, size_t bytes)
{
    char name[LABEL_MAX_CHARS + 1];
    (void)snprintf(name, sizeof name, "%s%s%s", label_text(event->name), event->unit != 0 ? " " : "",
                   label_text(event->unit));
    (void)quote(name, quoted, bytes);
}

/* {"bytes":4096,"op":"all_gather","unit":"layers.0"}, of what there is. Only collectives and waits have units. */
static void write_args(const struct trace_event *event, char *args, size_t bytes)
{
    char quoted[QUOTED_BYTES];
    struct text text = text_begin(args, bytes);
    text_add(&text, "{");
    if (event->kind == TRACE_STEP) {
        text_add(&text, "\"step\":%" PRId64, (int64_t)event->bytes);
    } else if (event->bytes > 0) {
        text_add(&text, "\"bytes\":%" PRIu64, event->bytes);
    }
    if (event->kind == TRACE_COLLECTIVE || event->kind == TRACE_WAIT) {
        text_add(&text, "%s\"op\":\"%s\"", event->bytes > 0 ? "," : "", label_text(event->name));
    }
    if (event->unit != 0) {
        text_add(&text, ",\"unit\":%s", quote(label_text(event->unit), quoted, sizeof quoted));
    }
    text_add(&text, "}");
}

static void put_event(struct writing *writing, const struct trace_event *event, int rank, uint32_t thread)
{
    char name[QUOTED_BYTES];
    char args[QUOTED_BYTES + 64];
    int64_t begin_ns = ticks_to_ns(&writing->process->scale, event->begin_ticks);
    int64_t end_ns = ticks_to_ns(&writing->process->scale, event->end_ticks);
    int64_t duration_ns = end_ns > begin_ns ? end_ns - begin_ns : 0;
    const char *category = kinds[event->kind].category;
    if (event->track != 0) {
        name_track(writing, rank, event->track);
        thread = TRACK_TID + event->track;
    }
    quote_name(event, name, sizeof name);
    write_args(event, args, sizeof args);
    if (kinds[event->kind].is_instant) {
        trace_sink_event(writing->sink,
                         "{\"ph\":\"i\",\"s\":\"p\",\"cat\":\"%s\",\"name\":%s,\"pid\":%d,\"tid\":%" PRIu32
                         ",\"ts\":%" PRId64 ".%03d,\"args\":%s}",
                         category, name, rank, thread, begin_ns / 1000, (int)(begin_ns % 1000), args);
        return;
    }
    trace_sink_event(writing->sink,
                     "{\"ph\":\"X\",\"cat\":\"%s\",\"name\":%s,\"pid\":%d,\"tid\":%" PRIu32 ",\"ts\":%" PRId64
                     ".%03d,\"dur\":%" PRId64 ".%03d,\"args\":%s}",
                     category, name, rank, thread, begin_ns / 1000, (int)(begin_ns % 1000),
                     duration_ns / 1000, (int)(duration_ns % 1000), args);
}

static void put_ring(struct writing *writing, struct trace_ring *ring)
{
    /* Relaxed: a number that stands for itself. */
    int own_rank = atomic_load_explicit(&ring->rank, memory_order_relaxed);
    int rank = own_rank == TRACE_NO_RANK ? writing->process->rank : own_rank;
    if (ring->n_written == ring->n_events) {
        return;
    }
    uint64_t n_dropped = 0;
    uint64_t first = ring->n_written;
    if (ring->n_events - first > ring->capacity) {
        n_dropped = ring->n_events - first - ring->capacity;
        first += n_dropped;
    }
    put_thread(writing, ring, rank);
    put_count(writing->sink, "shoal_dropped", rank, ring->number, n_dropped);
    for (uint64_t i = first; i < ring->n_events; i++) {
        put_event(writing, &ring->events[i % ring->capacity], rank, ring->number);
    }
    ring->n_written = ring->n_events;
}

void trace_put_process(struct trace_sink *sink, struct trace_process *process)
{
    struct writing writing = {.sink = sink, .process = process};
    put_process(&writing, process->rank, 0);
    put_count(sink, "shoal_lost", process->rank, 0, process->n_lost);
    for (struct trace_ring *ring = process->rings; ring; ring = ring->next) {
        put_ring(&writing, ring);
    }
}
