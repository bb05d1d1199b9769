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
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/text.h"
#include "base/try.h"
#include "base/wait.h"
#include "base/write.h"

/* What a header says comes first in it, so that it is found without a reader of JSON. */
#define HEADER_BEGIN \
    "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":\"shoal\",\"version\":1,\"run\":\""
#define HEADER_FORMAT                                                                 \
    HEADER_BEGIN "%016" PRIx64 "\",\"session\":%" PRIu64 ",\"changed\":\"%020" PRId64 \
                 "\"},\"traceEvents\":[\n"
#define HEADER_PARSED "%16" SCNx64 "\",\"session\":%" SCNu64 ",\"changed\":\"%20" SCNd64
#define HEADER_BYTES 192
static const char footer[] = "\n]}\n";
#define FOOTER_BYTES (sizeof footer - 1)

/* How long other processes may take to add theirs: each does so in pieces, of which one takes milliseconds. */
#define LOCK_SECONDS 10.0
#define LOCK_NAP_NS 1000000

/* Of a piece; without memory for it, of a smaller one. */
#define PIECE_BYTES ((size_t)1 << 20)
#define SMALL_PIECE_BYTES ((size_t)4 * TRACE_LINE_BYTES)

int64_t trace_file_clock_ns(void)
{
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Paths -------------------------------------------------------------------------------------------------- */

static shoal_status fail(const char *path, int code)
{
    return error_set(SHOAL_ERR_SYSTEM, "trace %s: %s", path, error_errno_text(code));
}

shoal_status trace_file_expand(const char *pattern, int rank, char *path_out)
{
    char host[128] = "";
    struct text text = text_begin(path_out, TRACE_PATH_BYTES);
    for (const char *at = pattern; *at; at++) {
        if (*at != '%') {
            text_add(&text, "%c", *at);
            continue;
        }
        switch (*++at) {
        case 'p':
            text_add(&text, "%d", (int)getpid());
            break;
        case 'r':
            text_add(&text, "%d", rank);
            break;
        case 'h':
            text_add(&text, "%s", gethostname(host, sizeof host - 1) == 0 ? host : "host");
            break;
        case '%':
            text_add(&text, "%%");
            break;
        default:
            return error_set(
                SHOAL_ERR_INVALID,
                "trace %s: %%%.1s is unknown; %%p (process), %%h (host), %%r (rank) and %%%% are possible",
                pattern, at);
        }
    }
    if (text.length + 1 >= TRACE_PATH_BYTES) {
        return error_set(SHOAL_ERR_INVALID, "trace: the path has more than %d characters",
                         TRACE_PATH_BYTES - 2);
    }
    return SHOAL_OK;
}

/*
 * Never closes a descriptor of a file that is there: another thread of this process may be adding to it, and would
 * lose its lock.
 */
shoal_status trace_file_check(const char *path)
{
    struct stat status;
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) {
        (void)close(fd);
        return SHOAL_OK;
    }
    if (errno != EEXIST || stat(path, &status) != 0) {
        return fail(path, errno);
    }
    if (!S_ISREG(status.st_mode)) {
        return error_set(SHOAL_ERR_SYSTEM, "trace %s: not a regular file", path);
    }
    return faccessat(AT_FDCWD, path, R_OK | W_OK, AT_EACCESS) == 0 ? SHOAL_OK : fail(path, errno);
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

/* The file as it is -------------------------------------------------------------------------------------- */

/* The lock goes with the descriptor. */
static shoal_status lock_file(int fd, const char *path)
{
    int64_t deadline_ns = clock_deadline_after(LOCK_SECONDS);
    while (os_lock_byte(fd, 0) != 0) {
        if (errno != EAGAIN && errno != EACCES && errno != EINTR) {
            return fail(path, errno);
        }
        if (clock_now_ns() >= deadline_ns) {
            return error_set(SHOAL_ERR_TIMEOUT, "trace %s: another process has held its lock for %.0f s",
                             path, LOCK_SECONDS);
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
    char tail[2 * TRACE_LINE_BYTES];
    uint64_t begin = size - least > sizeof tail ? size - sizeof tail : least;
    size_t n_bytes = read_at(fd, begin, tail, (size_t)(size - begin));
    for (size_t i = n_bytes; i >= 3; i--) {
        if (memcmp(tail + i - 3, "},\n", 3) == 0) {
            return begin + i - 2;
        }
    }
    return least;
}

/* What is to become of the file that is there. */
enum fate {
    FATE_CONTINUED,
    FATE_REPLACED,
    FATE_UNWANTED, /* it is of a later session: these events are not wanted any more */
    FATE_OTHERS    /* another run writes to it, too */
};

/* Where events go, if they do, and whether there are some before. */
struct place {
    uint64_t offset;
    bool has_events;
};

static uint64_t find_end(int fd, uint64_t header_bytes, uint64_t size)
{
    char tail[FOOTER_BYTES];
    bool is_whole = read_at(fd, size - FOOTER_BYTES, tail, FOOTER_BYTES) == FOOTER_BYTES &&
                    memcmp(tail, footer, FOOTER_BYTES) == 0;
    return is_whole ? size - FOOTER_BYTES : find_last_event(fd, header_bytes, size);
}

static enum fate find_fate(const struct trace_file *file, int fd, uint64_t size, struct place *place_out)
{
    char header[HEADER_BYTES];
    uint64_t run = 0;
    uint64_t session = 0;
    int64_t changed_ns = 0;
    size_t n_read = read_at(fd, 0, header, sizeof header - 1);
    header[n_read] = '\0';
    const char *end = strchr(header, '\n');
    *place_out = (struct place){0};
    if (!end || strncmp(header, HEADER_BEGIN, sizeof HEADER_BEGIN - 1) != 0 ||
        sscanf(header + sizeof HEADER_BEGIN - 1, HEADER_PARSED, &run, &session, &changed_ns) != 3) {
        return FATE_REPLACED;
    }
    if (run != file->run) {
        return changed_ns >= file->begin_ns ? FATE_OTHERS : FATE_REPLACED;
    }
    if (session != file->session) {
        return session > file->session ? FATE_UNWANTED : FATE_REPLACED;
    }
    uint64_t header_bytes = (uint64_t)(end + 1 - header);
    place_out->offset = find_end(fd, header_bytes, size);
    place_out->has_events = place_out->offset > header_bytes;
    return FATE_CONTINUED;
}

/* Adding ------------------------------------------------------------------------------------------------- */

/* With the lock. Returns 0, or an errno. */
static int write_piece(struct trace_sink *sink, enum fate fate, struct place place)
{
    char header[HEADER_BYTES];
    int length = snprintf(header, sizeof header, HEADER_FORMAT, sink->file->run, sink->file->session,
                          trace_file_clock_ns());
    int code = fate == FATE_REPLACED ? write_resize(sink->fd, 0) : 0;
    place.offset = fate == FATE_REPLACED ? (uint64_t)length : place.offset;
    const struct {
        const char *text;
        size_t bytes;
    } parts[] = {{",\n", place.has_events ? 2 : 0}, {sink->buffer, sink->used}, {footer, FOOTER_BYTES}};
    uint64_t offset = place.offset;
    /* The header always: it says when the file was changed. */
    code = code == 0 ? write_all_at(sink->fd, 0, header, (size_t)length) : code;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && code == 0; i++) {
        code = write_all_at(sink->fd, offset, parts[i].text, parts[i].bytes);
        offset += parts[i].bytes;
    }
    code = code == 0 ? write_resize(sink->fd, offset) : code;
    if (code != 0) {
        /* What was there before, with its end. */
        uint64_t kept_bytes = fate == FATE_CONTINUED ? place.offset : 0;
        if (write_resize(sink->fd, kept_bytes) == 0 && kept_bytes > 0) {
            (void)write_all_at(sink->fd, kept_bytes, footer, FOOTER_BYTES);
        }
    }
    return code;
}

/* Leaves the file to the other run. The file beside it is this run's alone. */
static shoal_status open_other(struct trace_sink *sink, char *path)
{
    int length = snprintf(path, TRACE_PATH_BYTES, "%s.%016" PRIx64, sink->file->path, sink->file->run);
    if (length < 0 || length >= TRACE_PATH_BYTES) {
        return error_set(SHOAL_ERR_STATE, "trace %s: another job writes to the same file", sink->file->path);
    }
    (void)close(sink->fd);
    sink->fd = -1;
    return open_file(path, &sink->fd);
}

static shoal_status add_piece(struct trace_sink *sink)
{
    struct stat status;
    struct place place;
    char other_path[TRACE_PATH_BYTES];
    const char *path = sink->file->path;
    enum fate fate;
    for (;;) {
        TRY(lock_file(sink->fd, path));
        if (fstat(sink->fd, &status) != 0) {
            return fail(path, errno);
        }
        fate = find_fate(sink->file, sink->fd, (uint64_t)status.st_size, &place);
        if (fate != FATE_OTHERS || path == other_path) {
            break;
        }
        TRY(open_other(sink, other_path));
        path = other_path;
        log_answer(SHOAL_LOG_WARN,
                   "trace %s: another job writes to the same file (put %%p into the path to keep them "
                   "apart); this trace is written to %s",
                   sink->file->path, path);
    }
    int code = 0;
    if (fate == FATE_UNWANTED) {
        sink->is_unwanted = true;
        log_answer(SHOAL_LOG_WARN,
                   "trace %s was written by a later session of this job, and is not overwritten", path);
    } else {
        code = write_piece(sink, fate == FATE_OTHERS ? FATE_REPLACED : fate, place);
    }
    os_unlock_byte(sink->fd, 0);
    return code == 0 ? SHOAL_OK : fail(path, code);
}

static void flush(struct trace_sink *sink)
{
    if (sink->status == SHOAL_OK && !sink->is_unwanted && sink->used > 0) {
        sink->status = add_piece(sink);
    }
    sink->used = 0;
}

void trace_sink_event(struct trace_sink *sink, const char *format, ...)
{
    char line[TRACE_LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (bytes < 0 || (size_t)bytes >= sizeof line) {
        sink->status = sink->status != SHOAL_OK ? sink->status : fail(sink->file->path, EOVERFLOW);
        return;
    }
    if (sink->used + (size_t)bytes + 2 > sink->buffer_bytes) {
        flush(sink);
    }
    if (sink->used > 0) {
        memcpy(sink->buffer + sink->used, ",\n", 2);
        sink->used += 2;
    }
    memcpy(sink->buffer + sink->used, line, (size_t)bytes);
    sink->used += (size_t)bytes;
}

shoal_status trace_file_add(const struct trace_file *file,
                            void (*put)(struct trace_sink *sink, void *context), void *context)
{
    char small_piece[SMALL_PIECE_BYTES];
    struct trace_sink sink = {.file = file, .fd = -1};
    TRY(open_file(file->path, &sink.fd));
    char *piece = mem_alloc(PIECE_BYTES);
    if (!piece) {
        error_clear();
    }
    sink.buffer = piece ? piece : small_piece;
    sink.buffer_bytes = piece ? PIECE_BYTES : sizeof small_piece;
    put(&sink, context);
    flush(&sink);
    mem_free(piece);
    if (sink.fd >= 0 && close(sink.fd) != 0 && sink.status == SHOAL_OK) {
        sink.status = fail(file->path, errno);
    }
    return sink.status;
}
