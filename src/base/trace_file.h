/* SPDX-License-Identifier: MIT */
/*
 * The file of a trace, to which several processes add, one after the other. Its lines are
 *
 *   {"displayTimeUnit":"ms","otherData":{"program":"shoal","version":1,"run":"0123...","session":1,"changed":"17..."},
 *    "traceEvents":[
 *   {...},
 *   {...}
 *   ]}
 *
 * (the first two are one line). The file is complete after each addition: whoever adds events overwrites the last line
 * and writes it again at the end. A process that is killed halfway leaves a file without its end; the next process cuts
 * the file off after the last whole event.
 *
 * The header decides whether a file is continued or replaced. A file of another run, or of an earlier session of this
 * run, is replaced, unless another run has written to it since this session began. In that case both runs are active,
 * and this one's events go to a file beside it, whose name ends in the number of the run.
 */
#ifndef BASE_TRACE_FILE_H
#define BASE_TRACE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

/* Of a path, with the 0 at its end. */
#define TRACE_PATH_BYTES 4096

struct trace_file {
    const char *path;
    uint64_t run; /* which file it continues */
    uint64_t session;
    int64_t begin_ns; /* when the session began, by trace_file_clock_ns */
};

/* Events on their way to the file. They are added in pieces, between which other processes may add theirs. */
struct trace_sink {
    const struct trace_file *file;
    int fd;
    shoal_status status; /* of the first failure, with the error text; what came after it was not written */
    bool is_unwanted;    /* the file is of a later session */
    size_t used;
    size_t buffer_bytes;
    char *buffer;
};

/* Nanoseconds since 1970. */
int64_t trace_file_clock_ns(void);

/*
 * The path with %p as the number of the process, %h as the name of the host, %r as the rank and %% as a percent sign.
 * SHOAL_ERR_INVALID for another letter, and for a path that is too long. `path_out` has TRACE_PATH_BYTES.
 */
shoal_status trace_file_expand(const char *pattern, int rank, char *path_out);

/* SHOAL_ERR_SYSTEM, naming the path, if it cannot be written. Makes an empty file if there is none. */
shoal_status trace_file_check(const char *path);

/* Calls `put`, which writes events to the sink. After a failure what others wrote to the file is still there. */
shoal_status trace_file_add(const struct trace_file *file,
                            void (*put)(struct trace_sink *sink, void *context), void *context);

/* Of a line, with its end: room for a name and a unit of which each character is escaped (trace_json.c). */
#define TRACE_LINE_BYTES 2048

/* A line with one event, without the comma before it. One that has no room is an error. */
void trace_sink_event(struct trace_sink *sink, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
