/* SPDX-License-Identifier: MIT */
/*
 * The log: one sink, a callback or standard error, called by one thread at a time.
 *
 * The level is the option SHOAL_LOG, and the log reports invalid options. It reads both from option_values.h, whose
 * functions report nothing themselves; options.h would call the log in turn.
 */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/callback.h"
#include "base/clock.h"
#include "base/option_values.h"
#include "base/write.h"

/* Longer messages are cut, and end in "...". */
#define MESSAGE_BYTES 1024

/* Talkative until the environment was read, so that the first message gets as far as log_write. */
_Atomic int log_threshold = SHOAL_LOG_DEBUG;

static pthread_once_t is_ready = PTHREAD_ONCE_INIT;
static int environment_level; /* of SHOAL_LOG; written once */
static bool is_level_unset;   /* SHOAL_LOG says nothing; written once */
static int64_t start_ns;      /* written once */

/* Guards the sink and keeps calls to it apart. */
static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static shoal_log_function sink_function; /* NULL means standard error */
static void *sink_context;

/* Inside the sink: a callback that calls the library after all must not wait for itself. */
static _Thread_local bool is_in_sink;

static void read_environment(void)
{
    start_ns = clock_now_ns();
    /* The choices are in the order of shoal_log_level, behind "off". */
    environment_level = (int)option_values()[OPTION_LOG].integer;
    is_level_unset = option_values()[OPTION_LOG].source == OPTION_SOURCE_DEFAULT;
    /* Relaxed: the level stands for itself; what the sink needs is under the lock. The same holds for every other
       access to log_threshold. */
    atomic_store_explicit(&log_threshold, environment_level, memory_order_relaxed);
}

/* Settles log_threshold, which is guessed high until SHOAL_LOG was read. */
static void prepare(void)
{
    (void)pthread_once(&is_ready, read_environment);
}

static const char *name_level(shoal_log_level level)
{
    switch (level) {
    case SHOAL_LOG_ERROR:
        return "error";
    case SHOAL_LOG_WARN:
        return "warn";
    case SHOAL_LOG_INFO:
        return "info";
    case SHOAL_LOG_DEBUG:
        return "debug";
    }
    return "?";
}

/* One write per line, so that the lines of several processes do not mix. */
static void write_to_stderr(shoal_log_level level, const char *message)
{
    char line[MESSAGE_BYTES + 64];
    double seconds = (double)(clock_now_ns() - start_ns) * 1e-9;
    int bytes = snprintf(line, sizeof line, "shoal[%d] %.6f %s: %s\n", (int)getpid(), seconds,
                         name_level(level), message);
    if (bytes > 0) {
        size_t line_bytes = (size_t)bytes < sizeof line ? (size_t)bytes : sizeof line - 1;
        /* There is nowhere to complain to when standard error is gone. */
        (void)write_all(STDERR_FILENO, line, line_bytes);
    }
}

/* is_answer: of log_answer. */
static void call_sink(shoal_log_level level, bool is_answer, const char *message)
{
    (void)pthread_mutex_lock(&sink_lock);
    is_in_sink = true;
    bool is_always_heard = is_answer && is_level_unset && !sink_function;
    /* Relaxed: read again under the lock that every change of the sink holds. */
    if (!is_always_heard && (int)level > atomic_load_explicit(&log_threshold, memory_order_relaxed)) {
        /* The sink was changed in the meantime and does not want this. */
    } else if (sink_function) {
        callback_enter();
        sink_function(sink_context, level, message);
        callback_leave();
    } else {
        write_to_stderr(level, message);
    }
    is_in_sink = false;
    (void)pthread_mutex_unlock(&sink_lock);
}

__attribute__((format(printf, 3, 0))) static void write_message(shoal_log_level level, bool is_answer,
                                                                const char *format, va_list arguments)
{
    if (is_in_sink) {
        return;
    }
    int saved_errno = errno;
    prepare();
    log_tell_problems();
    /* Relaxed: see read_environment. */
    if (is_answer || (int)level <= atomic_load_explicit(&log_threshold, memory_order_relaxed)) {
        char message[MESSAGE_BYTES];
        /* The message may print the system's last error with %m. */
        errno = saved_errno;
        int bytes = vsnprintf(message, sizeof message, format, arguments);
        if (bytes >= (int)sizeof message) {
            memcpy(message + sizeof message - sizeof "...", "...", sizeof "...");
        }
        call_sink(level, is_answer, bytes < 0 ? format : message);
    }
    errno = saved_errno;
}

void log_tell_problems(void)
{
    char text[MESSAGE_BYTES];
    (void)option_values();
    if (!option_has_problems()) {
        return;
    }
    prepare();
    /* Relaxed: the level stands for itself. A silent log keeps the problems for a later listener. */
    bool is_heard = atomic_load_explicit(&log_threshold, memory_order_relaxed) >= (int)SHOAL_LOG_WARN;
    if (!is_heard || !option_take_problems()) {
        return;
    }
    for (size_t i = 0; option_describe_problem(i, text, sizeof text); i++) {
        LOG(SHOAL_LOG_WARN, "%s", text);
    }
}

void log_write(shoal_log_level level, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    write_message(level, /*is_answer=*/false, format, arguments);
    va_end(arguments);
}

void log_answer(shoal_log_level level, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    write_message(level, /*is_answer=*/true, format, arguments);
    va_end(arguments);
}

void shoal_log_write(shoal_log_level level, const char *format, ...)
{
    if (!format || (int)level > atomic_load_explicit(&log_threshold, memory_order_relaxed)) {
        return; /* relaxed: see read_environment */
    }
    va_list arguments;
    va_start(arguments, format);
    write_message(level, /*is_answer=*/false, format, arguments);
    va_end(arguments);
}

void shoal_log_set(shoal_log_function function, void *context, shoal_log_level level)
{
    if (is_in_sink) {
        return;
    }
    prepare();
    int threshold = environment_level;
    if (function) {
        threshold = (int)level < 0 ? 0 : (int)level;
        threshold = threshold > (int)SHOAL_LOG_DEBUG ? (int)SHOAL_LOG_DEBUG : threshold;
    }
    (void)pthread_mutex_lock(&sink_lock);
    sink_function = function;
    sink_context = context;
    /* Relaxed: see read_environment. */
    atomic_store_explicit(&log_threshold, threshold, memory_order_relaxed);
    (void)pthread_mutex_unlock(&sink_lock);
    log_tell_problems();
}
