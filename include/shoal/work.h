/* SPDX-License-Identifier: MIT */
/*
 * An operation that was started. It goes on whether or not somebody waits.
 *
 * A program waits for it (shoal_work_wait). A binding of another language is told instead when it has ended, keeps the
 * buffers until then, and need not keep the work:
 *
 *     static void on_done(void *context, shoal_status status)
 *     {
 *         struct request *request = context;          ... sets the future: status, and shoal_error_text() if it failed
 *     }
 *     static void release(void *context)
 *     {
 *         struct request *request = context;          ... gives up the tensor whose memory was used
 *         free(request);
 *     }
 *
 *     shoal_collective call = SHOAL_COLLECTIVE_ALL_REDUCE(data, data, count, SHOAL_F32, SHOAL_SUM);
 *     call.timeout_s = 30;                            of this call; 0: the group's
 *     call.on_done = on_done;
 *     call.release = release;
 *     call.context = request;
 *     if (shoal_group_start(group, &call, NULL) != SHOAL_OK) {
 *         ... nothing was started and neither function will be called: report shoal_error_text(), give up the tensor
 *     }
 *
 * Point to point: shoal_group_send_start, then shoal_work_on_done, then shoal_work_free; when the function is called,
 * the buffers are free. A lock that callers hold while they start works must not be taken in these functions: they may
 * run on the thread that starts one.
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

/*
 * Called once when an operation has ended, well or not, whether or not somebody still holds its work. `status` is what
 * shoal_work_wait returns, and while the function runs shoal_error_text() is the failure's.
 *
 * It runs on the thread on which the operation ends: one that waits in a call on the group, the group's own thread, one
 * that aborts or closes the group or the world, or, if the operation has ended before, the one that asks for the call.
 * No lock of the library is held. Whoever waits for the work may go on before the function is called, or while it runs.
 *
 * It may start operations, test and free works, read results and abort groups, and should be short: the group's other
 * operations wait for it. It must not wait for other ranks. These are refused there with SHOAL_ERR_STATE, on any group,
 * and change nothing: blocking collectives and transfers, shoal_work_wait for a work that has not ended, reading or
 * writing a tensor that such a work uses, and closing a group or the world. (The first operation that is started on a
 * group connects it, and waits a moment for the servers of the ranks. What the function waits for by other means, a key
 * of the store or a lock of the program, is its own responsibility.)
 */
typedef void (*shoal_done_function)(void *context, shoal_status status);
/* Called once the operation does not use its buffers any more, after the function above, under the same rules. */
typedef void (*shoal_release_function)(void *context);

/*
 * Asks for a call at the end of the operation, also if that is past. Several calls may be asked for; they come in no
 * order. A work that is asked about goes on to its end although nobody waits for it. (shoal_collective in shoal/group.h
 * takes both functions when the operation starts.)
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_work_on_done(shoal_work *work, shoal_done_function on_done,
                                                           void *context);

/* NULL is allowed. */
SHOAL_API void shoal_work_free(shoal_work *work);

SHOAL_END_DECLS

#endif
