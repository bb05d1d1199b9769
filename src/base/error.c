/* SPDX-License-Identifier: MIT */
/*
 * The thread's error text. Every text is put together in a local buffer and copied at the end, because the
 * arguments may point into the text they replace.
 */
#include "base/error.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "shoal/status.h"

static _Thread_local char error_text[ERROR_TEXT_BYTES];
static _Thread_local uint64_t n_texts;

/* Why the last call that returned NULL had nothing to return. */
static _Thread_local struct {
    uint64_t text; /* the number of the text that says it; 0 if there was none */
    size_t at;     /* where it begins there, behind names of calls */
} reason;

/* Appends to a text of `used` bytes and returns its new length; what does not fit marks the text as cut. */
static size_t append_text(char *text, size_t used, const char *more, bool *is_cut)
{
    size_t more_bytes = strlen(more);
    size_t room = ERROR_TEXT_BYTES - 1 - used;
    if (more_bytes > room) {
        more_bytes = room;
        *is_cut = true;
    }
    memcpy(text + used, more, more_bytes);
    text[used + more_bytes] = '\0';
    return used + more_bytes;
}

/* Puts "..." over the end, where a character of several bytes begins, so that the rest stays readable. */
static void mark_cut(char *text)
{
    size_t end = ERROR_TEXT_BYTES - sizeof "...";
    while (end > 0 && ((unsigned char)text[end] & 0xC0u) == 0x80u) {
        end--;
    }
    memcpy(text + end, "...", sizeof "...");
}

/* Takes a text of `used` bytes for the thread's. */
static void replace_text(char *text, size_t used, bool is_cut)
{
    if (is_cut) {
        mark_cut(text);
        used = strlen(text);
    }
    memcpy(error_text, text, used + 1);
    n_texts++;
}

__attribute__((format(printf, 2, 0))) static size_t format_text(char *text, const char *format,
                                                                va_list arguments, bool *is_cut)
{
    int wanted = vsnprintf(text, ERROR_TEXT_BYTES, format, arguments);
    if (wanted < 0) {
        /* The arguments cannot be printed; the words around them still can. */
        text[0] = '\0';
        return append_text(text, 0, format, is_cut);
    }
    *is_cut = *is_cut || wanted >= ERROR_TEXT_BYTES;
    return strlen(text);
}

shoal_status error_set_v(shoal_status status, const char *format, va_list arguments)
{
    char text[ERROR_TEXT_BYTES];
    bool is_cut = false;
    size_t used = format_text(text, format, arguments, &is_cut);
    replace_text(text, used, is_cut);
    return status;
}

shoal_status error_set(shoal_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)error_set_v(status, format, arguments);
    va_end(arguments);
    return status;
}

/* Whether the thread's text has a marked reason. */
static bool is_reason(void)
{
    return reason.text != 0 && reason.text == error_number();
}

shoal_status error_prefix(shoal_status status, const char *format, ...)
{
    char text[ERROR_TEXT_BYTES];
    bool is_cut = false;
    va_list arguments;
    va_start(arguments, format);
    size_t used = format_text(text, format, arguments, &is_cut);
    va_end(arguments);
    bool is_marked = is_reason();
    if (error_text[0]) {
        used = append_text(text, used, ": ", &is_cut);
        reason.at += is_marked ? used : 0;
        used = append_text(text, used, error_text, &is_cut);
    } else {
        used = append_text(text, used, " failed with ", &is_cut);
        used = append_text(text, used, shoal_status_name(status), &is_cut);
    }
    replace_text(text, used, is_cut);
    /* If nothing of the reason is left behind the names, the text is none. */
    reason.text = is_marked && reason.at < strlen(error_text) ? n_texts : 0;
    return status;
}

void error_mark_reason(void)
{
    reason.text = error_number();
    reason.at = 0;
}

shoal_status error_null(const char *what)
{
    return is_reason() ? error_set(SHOAL_ERR_INVALID, "%s", error_text + reason.at)
                       : error_set(SHOAL_ERR_INVALID, "%s is NULL", what);
}

void error_clear(void)
{
    error_text[0] = '\0';
}

uint64_t error_number(void)
{
    return error_text[0] ? n_texts : 0;
}

const char *shoal_error_text(void)
{
    return error_text;
}

/* Codes of the system ------------------------------------------------------------------------------------ */

/* Limits of a process that the kernel reports as a code without saying which, or what it is. Rows: LIMIT(code, resource,
   unit). The resource is a constant where it is used: its type differs between C libraries. */
#define LIMITS(LIMIT)                     \
    LIMIT(EMFILE, RLIMIT_NOFILE, "files") \
    LIMIT(EFBIG, RLIMIT_FSIZE, "bytes")

/* Returns false if no limit stands behind the code. */
static bool find_limit(int code, unsigned long long *limit_out, const char **name_out, const char **unit_out)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    switch (code) {
#define LIMIT(code_, resource, unit)       \
    case code_:                            \
        (void)getrlimit(resource, &limit); \
        *name_out = #resource;             \
        *unit_out = unit;                  \
        break;
        LIMITS(LIMIT)
#undef LIMIT
    default:
        break;
    }
    *limit_out = limit.rlim_cur;
    return limit.rlim_cur != RLIM_INFINITY;
}

/* What the next two return. One for both: libraries that are loaded late have little room for variables of threads. */
static _Thread_local char code_text[160];

const char *error_errno_text(int code)
{
    unsigned long long limit;
    const char *name;
    const char *unit;
    if (!find_limit(code, &limit, &name, &unit)) {
        return strerror(code);
    }
    /* The text may be read by another rank. */
    (void)snprintf(code_text, sizeof code_text, "%s (%s of process %d is %llu %s)", strerror(code), name,
                   (int)getpid(), limit, unit);
    return code_text;
}

const char *error_thread_text(int code)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    if (code != EAGAIN) {
        return error_errno_text(code);
    }
    (void)getrlimit(RLIMIT_NPROC, &limit);
    if (limit.rlim_cur == RLIM_INFINITY) {
        (void)snprintf(code_text, sizeof code_text, "%s (pids.max of a control group, or kernel.threads-max)",
                       strerror(code));
    } else {
        (void)snprintf(code_text, sizeof code_text,
                       "%s (RLIMIT_NPROC, for all threads of the user, is %llu in process %d)",
                       strerror(code), (unsigned long long)limit.rlim_cur, (int)getpid());
    }
    return code_text;
}

void error_keep(struct error_kept *kept)
{
    memcpy(kept->text, error_text, sizeof kept->text);
    kept->numbers[0] = n_texts;
    kept->numbers[1] = reason.text;
    kept->at = reason.at;
}

void error_put_back(const struct error_kept *kept)
{
    memcpy(error_text, kept->text, sizeof kept->text);
    n_texts = kept->numbers[0];
    reason.text = kept->numbers[1];
    reason.at = kept->at;
}
