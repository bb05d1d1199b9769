/* SPDX-License-Identifier: MIT */
/*
 * Writes events in Chrome's trace format: complete events (X) with begin and duration in microseconds, instants (i),
 * and metadata (M) that names processes and threads. "pid" is the rank. "tid" is the number of the thread or, for a
 * lane, TRACK_TID plus the label of the lane's name; processes may have different labels for the same name.
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
/* Slots for lanes that were named. Two that share a slot are named again in turns, which does no harm. */
#define N_NAMED 1024u

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
    struct named {
        int rank;
        uint32_t track; /* 0 if there is none */
    } named[N_NAMED];
};

/* How many bytes the UTF-8 character at `at` has; 0 if it is none. */
static size_t measure_character(const unsigned char *at)
{
    static const struct {
        size_t n_bytes;
        uint32_t least;
        unsigned char mask;
        unsigned char mark;
    } forms[] = {{1, 0, 0x80, 0x00}, {2, 0x80, 0xe0, 0xc0}, {3, 0x800, 0xf0, 0xe0}, {4, 0x10000, 0xf8, 0xf0}};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if ((at[0] & forms[i].mask) != forms[i].mark) {
            continue;
        }
        uint32_t character = at[0] & (unsigned char)~forms[i].mask;
        for (size_t k = 1; k < forms[i].n_bytes; k++) {
            if ((at[k] & 0xc0) != 0x80) {
                return 0;
            }
            character = character << 6 | (at[k] & 0x3fu);
        }
        bool is_good = character >= forms[i].least && character <= 0x10ffff && (character >> 11) != 0x1b;
        return is_good ? forms[i].n_bytes : 0;
    }
    return 0;
}

/*
 * Writes the name in quotes. The file contains no \u, because Perfetto's reader refuses it before a time. So control
 * characters become "?", and bytes that are not UTF-8 become U+FFFD. A name that does not fit is cut. (Writing a file
 * spends most of its time here.)
 */
static const char *quote(const char *name, char *quoted, size_t bytes)
{
    static const char unknown[3] = {'\xef', '\xbf', '\xbd'};
    char *to = quoted;
    *to++ = '"';
    for (const unsigned char *at = (const unsigned char *)name; *at && to + 6 < quoted + bytes;) {
        size_t n_bytes = *at < 0x80 ? 1 : measure_character(at);
        if (n_bytes == 0) {
            memcpy(to, unknown, sizeof unknown);
            to += sizeof unknown;
        } else if (*at < 0x20 || *at == 0x7f) {
            *to++ = '?';
        } else {
            *to = '\\';
            to += *at == '"' || *at == '\\';
            memcpy(to, at, n_bytes);
            to += n_bytes;
        }
        at += n_bytes > 0 ? n_bytes : 1;
    }
    memcpy(to, "\"", 2);
    return quoted;
}
/* Of a label in quotes, when none of its bytes is UTF-8. */
#define QUOTED_BYTES (3 * LABEL_MAX_CHARS + 8)
/* Of what else an event has. */
#define OTHER_BYTES 256
_Static_assert(3 * QUOTED_BYTES + OTHER_BYTES <= TRACE_LINE_BYTES, "room for the longest event");

static int64_t interpolate(struct trace_instant a, struct trace_instant b, uint64_t ticks)
{
    double whole_ticks = (double)(b.ticks - a.ticks);
    double share = whole_ticks > 0.0 ? (double)(int64_t)(ticks - a.ticks) / whole_ticks : 0.0;
    return a.ns + (int64_t)(share * (double)(b.ns - a.ns));
}

static int64_t ticks_to_ns(const struct trace_scale *scale, uint64_t ticks)
{
    return ticks < scale->last.ticks ? interpolate(scale->begin, scale->last, ticks)
                                     : interpolate(scale->last, scale->now, ticks);
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

static void put_count(struct trace_sink *sink, const char *what, int rank, uint32_t thread, uint64_t count)
{
    if (count > 0) {
        trace_sink_event(sink,
                         "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%" PRIu32
                         ",\"args\":{\"count\":%" PRIu64 "}}",
                         what, rank, thread, count);
    }
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
    put_count(writing->sink, "shoal_ranks", rank, thread, (uint64_t)writing->process->n_ranks);
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
    struct named *named = &writing->named[(track * 31u + (uint32_t)rank) % N_NAMED];
    if (named->rank == rank && named->track == track) {
        return;
    }
    *named = (struct named){.rank = rank, .track = track};
    put_metadata(writing->sink, "thread_name", rank, TRACK_TID + track, label_text(track));
    put_order(writing->sink, "thread_sort_index", rank, TRACK_TID + track, TRACK_TID + track);
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

/*
 * Writes the arguments that the event has: {"bytes":4096,"op":"all_gather","carried":12.345,"unit":"layers.0"}. Only
 * collectives and waits have units. Only collectives are carried; carried_ns is -1 for other events.
 */
static void write_args(const struct trace_event *event, int64_t carried_ns, char *args, size_t bytes)
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
        text_add(&text, "%s\"op\":%s", event->bytes > 0 ? "," : "",
                 quote(label_text(event->name), quoted, sizeof quoted));
    }
    if (carried_ns >= 0) {
        text_add(&text, ",\"carried\":%" PRId64 ".%03d", carried_ns / 1000, (int)(carried_ns % 1000));
    }
    if (event->unit != 0) {
        text_add(&text, ",\"unit\":%s", quote(label_text(event->unit), quoted, sizeof quoted));
    }
    text_add(&text, "}");
}

static void put_event(struct writing *writing, const struct trace_event *event, int rank, uint32_t thread)
{
    char name[QUOTED_BYTES];
    char args[2 * QUOTED_BYTES + 128];
    int64_t begin_ns = ticks_to_ns(&writing->process->scale, event->begin_ticks);
    int64_t end_ns = ticks_to_ns(&writing->process->scale, event->end_ticks);
    int64_t duration_ns = end_ns > begin_ns ? end_ns - begin_ns : 0;
    const char *category = kinds[event->kind].category;
    if (event->track != 0) {
        name_track(writing, rank, event->track);
        thread = TRACK_TID + event->track;
    }
    quote_name(event, name, sizeof name);
    /* The last part of it, whose length is the same anywhere. */
    uint64_t carried_from = event->end_ticks - event->carried_ticks;
    int64_t carried_ns = end_ns - ticks_to_ns(&writing->process->scale, carried_from);
    bool is_carried = event->carried_ticks > 0 && carried_ns >= 0;
    write_args(event, is_carried ? carried_ns : -1, args, sizeof args);
    if (kinds[event->kind].is_instant) {
        trace_sink_event(writing->sink,
                         "{\"ph\":\"i\",\"s\":\"p\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%" PRIu32
                         ",\"ts\":%" PRId64 ".%03d,\"name\":%s,\"args\":%s}",
                         category, rank, thread, begin_ns / 1000, (int)(begin_ns % 1000), name, args);
        return;
    }
    trace_sink_event(writing->sink,
                     "{\"ph\":\"X\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%" PRIu32 ",\"ts\":%" PRId64
                     ".%03d,\"dur\":%" PRId64 ".%03d,\"name\":%s,\"args\":%s}",
                     category, rank, thread, begin_ns / 1000, (int)(begin_ns % 1000), duration_ns / 1000,
                     (int)(duration_ns % 1000), name, args);
}

static void put_ring(struct writing *writing, struct trace_ring *ring)
{
    /* Relaxed: a number that stands for itself. */
    int own_rank = atomic_load_explicit(&ring->rank, memory_order_relaxed);
    int rank = own_rank == TRACE_NO_RANK ? writing->process->rank : own_rank;
    if (ring->n_written == ring->n_events) {
        return;
    }
    uint64_t first = trace_ring_first(ring);
    uint64_t n_dropped = ring->n_dropped + first - ring->n_written;
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
