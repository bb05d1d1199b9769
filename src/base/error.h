/* SPDX-License-Identifier: MIT */
/*
 * The thread's error text. The first function that knows the cause of a failure writes it, with the values
 * that were wrong; everybody above only passes the status on (base/try.h).
 *
 * Arguments of the three writers may point into the text that is being replaced.
 */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include <stdarg.h>

#include "shoal/status.h"

/* Longer texts are cut, and end in "...". */
#define ERROR_TEXT_BYTES 512

/* Writes the text and returns `status`: return error_set(SHOAL_ERR_INVALID, "dim %d: ...", dim). */
shoal_status error_set(shoal_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
shoal_status error_set_v(shoal_status status, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));

/* Puts "prefix: " in front of the text there is and returns `status`. Without a text it is the text. */
shoal_status error_prefix(shoal_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* On entry of every public call that returns a status. */
void error_clear(void);

#endif
