/* SPDX-License-Identifier: MIT */
/*
 * The library's only voice. Silent until a callback is set here or SHOAL_LOG names a level
 * (SHOAL_LOG=warn writes to standard error).
 *
 * Ownership: the message is valid during the callback only.
 * Threads: the callback is called from any thread, one call at a time; it must not call into the library.
 * Errors: none.
 */
#ifndef SHOAL_LOG_H
#define SHOAL_LOG_H

#include "shoal/api.h"

SHOAL_BEGIN_DECLS

typedef enum shoal_log_level {
    SHOAL_LOG_ERROR = 1,
    SHOAL_LOG_WARN = 2,
    SHOAL_LOG_INFO = 3,
    SHOAL_LOG_DEBUG = 4
} shoal_log_level;

typedef void (*shoal_log_function)(void *context, shoal_log_level level, const char *message);

/* Messages up to `level` go to `function`; NULL restores what SHOAL_LOG says. */
SHOAL_API void shoal_log_set(shoal_log_function function, void *context, shoal_log_level level);

/* Writes a message, printf-like, in the library's voice: for libraries on top of it. Lower case, no newline. */
SHOAL_API void shoal_log_write(shoal_log_level level, const char *format, ...)
#if defined(__GNUC__) || defined(__clang__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

SHOAL_END_DECLS

#endif
