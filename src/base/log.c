/* SPDX-License-Identifier: MIT */
/*
 * The log: one sink, a callback or standard error, called by one thread at a time.
 *
 * The level of SHOAL_LOG is an option, and reading options may want to log. The circle is cut in options.c:
 * options_log_level reads without reporting, and the report comes when the sink is ready.
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

#include "base/clock.h"
#include "base/options.h"

/* Longer messages are cut, and end in "...". */
#define MESSAGE_BYTES 1024

/* Talkative until the environment was read, so that the first message gets as far as log_write. */
_Atomic int log_threshold = SHOAL_LOG_DEBUG;

static pthread_once_t is_ready = PTHREAD_ONCE_INIT;
static int environment_level; /* of SHOAL_LOG; written once */
static int64_t start_ns;      /* written once */

/* Guards the sink and keeps calls to it apart. */
static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static shoal_log_function sink_function; /* NULL: standard error */
static void *sink_context;

/* Inside the sink: a callback that calls the library after all must not wait for itself. */
static _Thread_local bool is_in_sink;

static void read_environment(void)
{
    start_ns = clock_now_ns();
    environment_level = options_log_level();
    /* Relaxed: the level stands for itself; what the sink needs is under the lock. Likewise every other
       access to log_threshold. */
    atomic_store_explicit(&log_threshold, environment_level, memory_order_relaxed);
}

void log_prepare(void)
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
        ssize_t written = write(STDERR_FILENO, line, line_bytes);
        (void)written;
    }
}

static void call_sink(shoal_log_level level, const char *message)
{
    (void)pthread_mutex_lock(&sink_lock);
    is_in_sink = true;
    /* Relaxed: read again under the lock that every change of the sink holds. */
    if ((int)level > atomic_load_explicit(&log_threshold, memory_order_relaxed)) {
        /* The sink was changed in the meantime and does not want this. */
    } else if (sink_function) {
        sink_function(sink_context, level, message);
    } else {
        write_to_stderr(level, message);
    }
    is_in_sink = false;
    (void)pthread_mutex_unlock(&sink_lock);
}

void log_write(shoal_log_level level, const char *format, ...)
{
    if (is_in_sink) {
        return;
    }
    int saved_errno = errno;
    log_prepare();
    options_report_problems();
    /* Relaxed: see read_environment. */
    if ((int)level <= atomic_load_explicit(&log_threshold, memory_order_relaxed)) {
        char message[MESSAGE_BYTES];
        va_list arguments;
        va_start(arguments, format);
        /* The message may print the system's last error with %m. */
        errno = saved_errno;
        int bytes = vsnprintf(message, sizeof message, format, arguments);
        va_end(arguments);
        if (bytes >= (int)sizeof message) {
            memcpy(message + sizeof message - sizeof "...", "...", sizeof "...");
        }
        call_sink(level, bytes < 0 ? format : message);
    }
    errno = saved_errno;
}

void shoal_log_set(shoal_log_function function, void *context, shoal_log_level level)
{
    if (is_in_sink) {
        return;
    }
    log_prepare();
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
    options_report_problems();
}
