/* SPDX-License-Identifier: MIT */
/*
 * How the output of ranks reaches the output of `shoal run`. A stream is what one rank writes; a sink is where several
 * streams end. Only whole lines enter a sink, each with the label of its rank in front, so lines never mix.
 *
 * Nothing here blocks. A sink whose reader is slow becomes full; its streams are then not read, and ranks that write
 * wait in their own pipes. Memory is bounded: lines longer than RUN_LINE_BYTES are broken.
 */
#ifndef RUN_OUTPUT_H
#define RUN_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

#define RUN_LINE_BYTES ((size_t)64 << 10)

struct run_buffer {
    char *bytes;
    size_t n_bytes;
    size_t capacity;
};

struct run_sink {
    int fd;
    bool is_file;   /* a write to it never waits */
    int error;      /* errno of the write that failed; nothing is written any more */
    size_t written; /* of `pending` */
    struct run_buffer pending;
};

struct run_stream {
    int fd;                 /* read end of the rank's pipe; -1 if it is closed */
    char label[16];         /* "[3] ", or nothing */
    bool is_raw;            /* bytes pass as they come: there is nobody to mix with */
    struct run_buffer line; /* begun, and not ended yet */
    struct run_sink *sink;
    /* Sees each line before it goes out, its end included, and says how many bytes of it do. If it is NULL, all go
       out. */
    size_t (*take)(void *context, const char *line, size_t n_bytes);
    void *take_context;
};

void run_sink_init(struct run_sink *sink, int fd);
void run_sink_fini(struct run_sink *sink);
bool run_sink_is_empty(const struct run_sink *sink);

/* Writes what can be written without waiting. */
void run_sink_flush(struct run_sink *sink);

/* A line of the launcher itself. */
void run_sink_say(struct run_sink *sink, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Takes what is there. False when there was nothing; the end of a stream closes it. */
bool run_stream_read(struct run_stream *stream);

/* What is left of a line goes out. Closing twice is allowed. */
void run_stream_close(struct run_stream *stream);

#endif
