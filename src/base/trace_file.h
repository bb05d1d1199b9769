/* SPDX-License-Identifier: MIT */
/*
 * The file of a trace, to which several processes add, one after the other. Its lines are
 *
 *   {"displayTimeUnit":"ms","otherData":{"program":"shoal","version":1,"run":"0123...","session":1},"traceEvents":[
 *   {...},
 *   {...}
 *   ]}
 *
 * so that it is complete after each of them: who adds writes over the last line, and puts it at the end again. A process
 * that is killed halfway leaves a file without its end; the next one cuts it off behind the last whole event. A file of
 * another run, or of an earlier session of this one, is replaced.
 */
#ifndef BASE_TRACE_FILE_H
#define BASE_TRACE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

struct trace_sink {
    int fd;
    int code;        /* an errno: what came after it was not written */
    uint64_t offset; /* in the file, of the buffer */
    bool has_events;
    size_t used;
    char buffer[16384];
};

struct trace_file {
    const char *path;
    uint64_t run; /* which file it continues */
    uint64_t session;
};

/* SHOAL_ERR_SYSTEM, naming the path, if it cannot be written. Makes an empty file if there is none. */
shoal_status trace_file_check(const char *path);

/* Calls `put`, which writes events to the sink. After a failure the file is as it was. */
shoal_status trace_file_add(const struct trace_file *file,
                            void (*put)(struct trace_sink *sink, void *context), void *context);

/* Of a line, with its end: room for a name and a unit of which each character is escaped (trace_json.c). */
#define TRACE_LINE_BYTES 2048

/* A line with one event, without the comma before it. One that has no room is an error. */
void trace_sink_event(struct trace_sink *sink, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
