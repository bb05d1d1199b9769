/* SPDX-License-Identifier: MIT */
/*
 * An operation that was started. It goes on whether or not somebody waits.
 *
 * Ownership: shoal_work_free gives up the handle at any time; the operation goes on and keeps what it needs,
 * except the caller's buffers, which must stay until it has ended. Closing the world ends every work; what became of it
 * can still be asked.
 * Threads: any, several at a time.
 * Errors: shoal_work_wait returns what became of the operation, every time it is called.
 */
#ifndef SHOAL_WORK_H
#define SHOAL_WORK_H

#include <stdbool.h>

#include "shoal/api.h"
#include "shoal/status.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_work shoal_work;

/* True once it has ended, well or not. Never blocks. */
SHOAL_API bool shoal_work_test(shoal_work *work);

/*
 * Waits until it has ended and returns its status and text. Negative: as long as the operation's own deadline
 * allows. Past timeout_s: SHOAL_ERR_TIMEOUT, while the operation goes on and can be waited for again.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_work_wait(shoal_work *work, double timeout_s);

/* NULL is allowed. */
SHOAL_API void shoal_work_free(shoal_work *work);

SHOAL_END_DECLS

#endif
