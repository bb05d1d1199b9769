/* SPDX-License-Identifier: MIT */
/* Lines of ranks, on their way out. See run/output.h. */
#include "run/output.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_BYTES ((size_t)16 << 10)
/* A pipe that is writable takes this many bytes without waiting (POSIX: PIPE_BUF). */
#define WRITE_BYTES ((size_t)4096)

/* Buffers ---------------------------------------------------------------------------------------------- */

/* There is no way to go on without the ranks' output. */
static void buffer_grow(struct run_buffer *buffer, size_t needed)
{
    size_t capacity = buffer->capacity > 0 ? buffer->capacity : 256;
    while (capacity < needed) {
        capacity *= 2;
    }
    char *bytes = realloc(buffer->bytes, capacity);
    if (!bytes) {
        perror("shoal run");
        abort();
    }
    buffer->bytes = bytes;
    buffer->capacity = capacity;
}

static void buffer_append(struct run_buffer *buffer, const char *bytes, size_t n_bytes)
{
    if (n_bytes == 0) {
        return;
    }
    if (buffer->capacity - buffer->n_bytes < n_bytes) {
        buffer_grow(buffer, buffer->n_bytes + n_bytes);
    }
    memcpy(buffer->bytes + buffer->n_bytes, bytes, n_bytes);
    buffer->n_bytes += n_bytes;
}

static void buffer_free(struct run_buffer *buffer)
{
    free(buffer->bytes);
    *buffer = (struct run_buffer){0};
}

/* Sinks ------------------------------------------------------------------------------------------------ */

void run_sink_init(struct run_sink *sink, int fd)
{
    struct stat facts;
    *sink = (struct run_sink){.fd = fd};
    sink->is_file = fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode);
}

void run_sink_fini(struct run_sink *sink)
{
    buffer_free(&sink->pending);
}

bool run_sink_is_empty(const struct run_sink *sink)
{
    return sink->pending.n_bytes == 0;
}

static bool sink_is_writable(const struct run_sink *sink)
{
    struct pollfd look = {.fd = sink->fd, .events = POLLOUT};
    return sink->is_file || poll(&look, 1, 0) > 0;
}

static void sink_clear(struct run_sink *sink)
{
    sink->pending.n_bytes = 0;
    sink->written = 0;
}

void run_sink_flush(struct run_sink *sink)
{
    while (sink->written < sink->pending.n_bytes && sink_is_writable(sink)) {
        size_t left = sink->pending.n_bytes - sink->written;
        size_t piece = !sink->is_file && left > WRITE_BYTES ? WRITE_BYTES : left;
        ssize_t written = write(sink->fd, sink->pending.bytes + sink->written, piece);
        if (written >= 0) {
            sink->written += (size_t)written;
        } else if (errno == EAGAIN) {
            return;
        } else if (errno != EINTR) {
            sink->error = errno;
            sink_clear(sink);
            return;
        }
    }
    if (sink->written == sink->pending.n_bytes) {
        sink_clear(sink);
    }
}

static void sink_append(struct run_sink *sink, const char *bytes, size_t n_bytes)
{
    if (sink->error == 0) {
        buffer_append(&sink->pending, bytes, n_bytes);
    }
}

void run_sink_say(struct run_sink *sink, const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    size_t n_bytes = length < 0 ? 0 : (size_t)length;
    sink_append(sink, line, n_bytes < sizeof line ? n_bytes : sizeof line - 1);
    sink_append(sink, "\n", 1);
    run_sink_flush(sink);
}

/* Streams ---------------------------------------------------------------------------------------------- */

/* The line that was held back, and `bytes` that end it. */
static void put_line(struct run_stream *stream, const char *bytes, size_t n_bytes, bool is_ended)
{
    if (stream->take) {
        buffer_append(&stream->line, bytes, n_bytes);
        n_bytes = 0;
        if (stream->line.n_bytes > 0) {
            stream->line.n_bytes =
                stream->take(stream->take_context, stream->line.bytes, stream->line.n_bytes);
            if (stream->line.n_bytes == 0) {
                return;
            }
        }
    }
    sink_append(stream->sink, stream->label, strlen(stream->label));
    sink_append(stream->sink, stream->line.bytes, stream->line.n_bytes);
    sink_append(stream->sink, bytes, n_bytes);
    stream->line.n_bytes = 0;
    /* Without labels the output is the ranks' bytes and nothing else. */
    if (!is_ended && stream->label[0] != '\0') {
        sink_append(stream->sink, "\n", 1);
    }
}

static void take_bytes(struct run_stream *stream, const char *bytes, size_t n_bytes)
{
    if (stream->is_raw) {
        sink_append(stream->sink, bytes, n_bytes);
        return;
    }
    const char *end;
    while (n_bytes > 0 && (end = memchr(bytes, '\n', n_bytes)) != NULL) {
        size_t line_bytes = (size_t)(end - bytes) + 1;
        put_line(stream, bytes, line_bytes, /*is_ended=*/true);
        bytes += line_bytes;
        n_bytes -= line_bytes;
    }
    buffer_append(&stream->line, bytes, n_bytes);
    if (stream->line.n_bytes >= RUN_LINE_BYTES) {
        put_line(stream, NULL, 0, /*is_ended=*/false);
    }
}

bool run_stream_read(struct run_stream *stream)
{
    char bytes[READ_BYTES];
    ssize_t n_bytes = read(stream->fd, bytes, sizeof bytes);
    if (n_bytes < 0 && (errno == EAGAIN || errno == EINTR)) {
        return false;
    }
    if (n_bytes <= 0) {
        run_stream_close(stream);
        return true;
    }
    take_bytes(stream, bytes, (size_t)n_bytes);
    run_sink_flush(stream->sink);
    return true;
}

void run_stream_close(struct run_stream *stream)
{
    if (stream->fd < 0) {
        return;
    }
    (void)close(stream->fd);
    stream->fd = -1;
    if (stream->line.n_bytes > 0) {
        put_line(stream, NULL, 0, /*is_ended=*/false);
    }
    buffer_free(&stream->line);
    run_sink_flush(stream->sink);
}
