/* SPDX-License-Identifier: MIT */
/* Adding to the file of a trace. trace_file.h says what it looks like. */
#include "base/trace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/os/os.h"
#include "base/try.h"
#include "base/wait.h"
#include "base/write.h"

#define HEADER_FORMAT                                                                                      \
    "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":\"shoal\",\"version\":1,\"run\":\"%016" PRIx64 \
    "\",\"session\":%" PRIu64 "},\"traceEvents\":[\n"
/* The part of it that is the same in all sessions of a run. */
#define HEADER_RUN_BYTES                                                                                   \
    (sizeof "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":\"shoal\",\"version\":1,\"run\":\"\"," \
            "\"s"                                                                                          \
            "ession\":" -                                                                                  \
     1 + 16)
#define HEADER_BYTES 192
static const char footer[] = "\n]}\n";
#define FOOTER_BYTES (sizeof footer - 1)

/* How long another process may take to add its events. */
#define LOCK_SECONDS 30.0
#define LOCK_NAP_NS 1000000

/* Sink --------------------------------------------------------------------------------------------------- */

static void flush(struct trace_sink *sink)
{
    if (sink->code == 0 && sink->used > 0) {
        sink->code = write_all_at(sink->fd, sink->offset, sink->buffer, sink->used);
    }
    sink->offset += sink->used;
    sink->used = 0;
}

static void put(struct trace_sink *sink, const char *text, size_t bytes)
{
    if (sink->used + bytes > sizeof sink->buffer) {
        flush(sink);
    }
    memcpy(sink->buffer + sink->used, text, bytes);
    sink->used += bytes;
}

void trace_sink_event(struct trace_sink *sink, const char *format, ...)
{
    char line[TRACE_LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (bytes < 0 || (size_t)bytes >= sizeof line) {
        sink->code = sink->code ? sink->code : EOVERFLOW;
        return;
    }
    put(sink, ",\n", sink->has_events ? 2 : 0);
    put(sink, line, (size_t)bytes);
    sink->has_events = true;
}

/* The file ----------------------------------------------------------------------------------------------- */

static shoal_status fail(const char *path, int code)
{
    return error_set(SHOAL_ERR_SYSTEM, "trace %s: %s", path, error_errno_text(code));
}

static shoal_status open_file(const char *path, int *fd_out)
{
    struct stat status;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) {
        return fail(path, errno);
    }
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        (void)close(fd);
        return error_set(SHOAL_ERR_SYSTEM, "trace %s: not a regular file", path);
    }
    *fd_out = fd;
    return SHOAL_OK;
}

shoal_status trace_file_check(const char *path)
{
    int fd;
    TRY(open_file(path, &fd));
    (void)close(fd);
    return SHOAL_OK;
}

/* The lock goes with the descriptor. */
static shoal_status lock_file(int fd, const char *path)
{
    int64_t deadline_ns = clock_deadline_after(LOCK_SECONDS);
    while (os_lock_byte(fd, 0) != 0) {
        if (errno != EAGAIN && errno != EACCES && errno != EINTR) {
            return fail(path, errno);
        }
        if (clock_now_ns() >= deadline_ns) {
            return error_set(SHOAL_ERR_TIMEOUT, "trace %s: another process has it locked for %.0f s", path,
                             LOCK_SECONDS);
        }
        wait_sleep(LOCK_NAP_NS);
    }
    return SHOAL_OK;
}

/* Reads what there is of that many bytes; 0 for none, and for a failure. */
static size_t read_at(int fd, uint64_t offset, char *bytes, size_t n_bytes)
{
    size_t n_read = 0;
    while (n_read < n_bytes) {
        ssize_t n = pread(fd, bytes + n_read, n_bytes - n_read, (off_t)(offset + n_read));
        if (n <= 0 && !(n < 0 && errno == EINTR)) {
            break;
        }
        n_read += n > 0 ? (size_t)n : 0;
    }
    return n_read;
}

/* Behind the last whole event of a file without its end, or `least` if there is none near it. */
static uint64_t find_last_event(int fd, uint64_t least, uint64_t size)
{
    char tail[4096];
    uint64_t begin = size - least > sizeof tail ? size - sizeof tail : least;
    size_t n_bytes = read_at(fd, begin, tail, (size_t)(size - begin));
    for (size_t i = n_bytes; i >= 3; i--) {
        if (memcmp(tail + i - 3, "},\n", 3) == 0) {
            return begin + i - 2;
        }
    }
    return least;
}

/*
 * Where events go in the file that is there: behind those of the same run and session, or at the beginning of a new file,
 * which gets its header. False: the file is of a later session, and these events are not wanted any more.
 */
static bool find_end(const struct trace_file *file, struct trace_sink *sink, uint64_t size)
{
    char expected[HEADER_BYTES];
    char found[HEADER_BYTES];
    int length = snprintf(expected, sizeof expected, HEADER_FORMAT, file->run, file->session);
    size_t header_bytes = (size_t)length;
    size_t n_found = read_at(sink->fd, 0, found, sizeof found - 1);
    found[n_found] = '\0';
    if (n_found >= header_bytes && memcmp(found, expected, header_bytes) == 0) {
        char tail[FOOTER_BYTES];
        bool is_whole = read_at(sink->fd, size - FOOTER_BYTES, tail, FOOTER_BYTES) == FOOTER_BYTES &&
                        memcmp(tail, footer, FOOTER_BYTES) == 0;
        sink->offset = is_whole ? size - FOOTER_BYTES : find_last_event(sink->fd, header_bytes, size);
        sink->has_events = sink->offset > header_bytes;
        return true;
    }
    uint64_t session = 0;
    if (n_found > HEADER_RUN_BYTES && memcmp(found, expected, HEADER_RUN_BYTES) == 0 &&
        sscanf(found + HEADER_RUN_BYTES, "%" SCNu64, &session) == 1 && session > file->session) {
        return false;
    }
    sink->code = write_resize(sink->fd, 0);
    put(sink, expected, header_bytes);
    return true;
}

/* After a failure: what was there before, with its end. */
static void restore(const struct trace_sink *sink, uint64_t end)
{
    if (write_resize(sink->fd, end) == 0 && end > 0) {
        (void)write_all_at(sink->fd, end, footer, FOOTER_BYTES);
    }
}

static shoal_status add(const struct trace_file *file, struct trace_sink *sink,
                        void (*put_events)(struct trace_sink *sink, void *context), void *context)
{
    struct stat status;
    TRY(lock_file(sink->fd, file->path));
    if (fstat(sink->fd, &status) != 0) {
        return fail(file->path, errno);
    }
    if (!find_end(file, sink, (uint64_t)status.st_size)) {
        LOG(SHOAL_LOG_WARN, "trace %s is of a later session of this job: it stays as it is", file->path);
        return SHOAL_OK;
    }
    uint64_t end = sink->offset;
    put_events(sink, context);
    put(sink, footer, FOOTER_BYTES);
    flush(sink);
    if (sink->code == 0) {
        sink->code = write_resize(sink->fd, sink->offset);
    }
    if (sink->code != 0) {
        restore(sink, end);
        return fail(file->path, sink->code);
    }
    return SHOAL_OK;
}

shoal_status trace_file_add(const struct trace_file *file,
                            void (*put_events)(struct trace_sink *sink, void *context), void *context)
{
    struct trace_sink sink = {.fd = -1};
    TRY(open_file(file->path, &sink.fd));
    shoal_status status = add(file, &sink, put_events, context);
    if (close(sink.fd) != 0 && status == SHOAL_OK) {
        status = fail(file->path, errno);
    }
    return status;
}
