/* SPDX-License-Identifier: MIT */
/*
 * The log: where the library reports what no status can report, such as a bad environment variable or a rank that died.
 * It is the only thing that the library prints by itself. It is silent until the program sets a function here, or until
 * SHOAL_LOG is error, warn, info or debug: messages up to that level then go to standard error, one line each. Only
 * what is wrong with a trace (shoal/trace.h) goes to standard error even if neither was done.
 *
 *     static void print(void *context, shoal_log_level level, const char *message)
 *     {
 *         fprintf(context, "%d %s\n", (int)level, message);
 *     }
 *     shoal_log_set(print, stderr, SHOAL_LOG_WARN);
 *
 * Ownership: the message belongs to the library and is valid until the function returns. The context stays the
 * caller's.
 * Threads: any thread of the program or of the library may call the function, one at a time. It must not call the
 * library: messages that it would cause are dropped, and calls that wait for other ranks are refused.
 * Errors: none. Messages are cut to 1023 bytes.
 */
#ifndef SHOAL_LOG_H
#define SHOAL_LOG_H

#include "shoal/api.h"

SHOAL_BEGIN_DECLS

typedef enum shoal_log_level {
    SHOAL_LOG_ERROR = 1, /* a group has failed; a trace could not be written */
    SHOAL_LOG_WARN = 2,  /* a rank died; a variable SHOAL_* is unknown or has a bad value */
    SHOAL_LOG_INFO = 3,  /* what the library chose: launcher, transport, network interface */
    SHOAL_LOG_DEBUG = 4  /* when groups connect and worlds close */
} shoal_log_level;

typedef void (*shoal_log_function)(void *context, shoal_log_level level, const char *message);

/* Sends messages up to `level` to `function` instead of standard error, from now on and in the whole process. NULL goes
   back to what SHOAL_LOG says. Ignored inside a log function. */
SHOAL_API void shoal_log_set(shoal_log_function function, void *context, shoal_log_level level);

/* Writes a message, printf-like, to the same place: for libraries that are built on this one. Write messages in lower
   case and without a newline at the end. */
SHOAL_API void shoal_log_write(shoal_log_level level, const char *format, ...)
#if defined(__GNUC__) || defined(__clang__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

SHOAL_END_DECLS

#endif
