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
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

/* Longer texts are cut, and end in "...". */
#define ERROR_TEXT_BYTES 512

/* Writes the text and returns `status`: return error_set(SHOAL_ERR_INVALID, "dim %d: ...", dim). */
shoal_status error_set(shoal_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
shoal_status error_set_v(shoal_status status, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));

/* Puts "prefix: " in front of the text there is and returns `status`. Without a text it says
   "prefix failed with SHOAL_ERR_...": a function of the program may have none. */
shoal_status error_prefix(shoal_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * What an errno says, for texts. Where a limit is the cause, it names the limit, the process and the value:
 * RLIMIT_NOFILE for EMFILE, RLIMIT_FSIZE for EFBIG. Valid until the thread asks for the next one.
 */
const char *error_errno_text(int code);
/* What an errno says if a thread could not be created: RLIMIT_NPROC for EAGAIN. */
const char *error_thread_text(int code);

/* On entry of every public call that returns a status. */
void error_clear(void);

/*
 * NULL instead of an object. A call that fails and returns NULL marks its text as the reason; error_prefix puts names
 * in front and keeps the mark. If the program passes the NULL on at once, the call that gets it reports that reason.
 *
 * error_null: SHOAL_ERR_INVALID with the marked reason, or with "WHAT is NULL" if the text is not marked. Without the
 * name of a call. Call it before error_clear. For tensors and modules see scope_fail_null.
 */
void error_mark_reason(void);
shoal_status error_null(const char *what);

/* The thread's text, for code whose failures nobody is told of: a call that ends may have such work to do. */
struct error_kept {
    char text[ERROR_TEXT_BYTES];
    uint64_t numbers[2];
    size_t at;
};
void error_keep(struct error_kept *kept);
void error_put_back(const struct error_kept *kept);

/* Which text the thread has: each text that is written has another number. Returns 0 if there is no text. */
uint64_t error_number(void);

#endif
