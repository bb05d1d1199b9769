/* SPDX-License-Identifier: MIT */
/* Writing to the log. A message that nobody listens to costs one relaxed load and a branch. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdatomic.h>

#include "shoal/log.h"

/* The most talkative level that anybody listens to; 0 = silent. Changed by log.c only. */
extern _Atomic int log_threshold;

/*
 * Reports, once, what was wrong with the options in the environment, as soon as anybody listens to the log. Every read
 * of an option calls it, and so does every change of the listener.
 */
void log_tell_problems(void);

/* Lower case, no newline, "name value" pairs. */
void log_write(shoal_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * Reports that something which the user asked for by an option cannot be done, such as a trace to a file that cannot be
 * written. It is printed on standard error even if SHOAL_LOG is not set. SHOAL_LOG=off and a listener of the program
 * apply as to any other message.
 */
void log_answer(shoal_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define LOG(level, ...)                                                                   \
    do {                                                                                  \
        if (atomic_load_explicit(&log_threshold, memory_order_relaxed) >= (int)(level)) { \
            log_write((level), __VA_ARGS__);                                              \
        }                                                                                 \
    } while (0)

#endif
