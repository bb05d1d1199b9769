/* SPDX-License-Identifier: MIT */
/*
 * A work is an operation that was started: what calls that end in _start give. It goes on while the program computes,
 * whether or not somebody waits.
 *
 *     shoal_work *work;
 *     status = shoal_group_all_reduce_start(group, data, data, count, SHOAL_F32, SHOAL_SUM, &work);
 *     ... compute with other memory ...
 *     status = shoal_work_wait(work, -1);          then data can be used
 *     shoal_work_free(work);
 *
 * A binding for another language can be called when the operation has ended, instead of waiting. It keeps the buffers
 * until `release` is called, and needs no work:
 *
 *     static void on_done(void *context, shoal_status status)
 *     {
 *         struct request *request = context;          ... completes a future: status, and shoal_error_text()
 *     }
 *     static void release(void *context)
 *     {
 *         struct request *request = context;          ... frees the tensor whose memory was used
 *         free(request);
 *     }
 *
 *     shoal_collective call = SHOAL_COLLECTIVE_ALL_REDUCE(data, data, count, SHOAL_F32, SHOAL_SUM);
 *     call.timeout_s = 30;                            for this call; 0 means the group's timeout
 *     call.on_done = on_done;
 *     call.release = release;
 *     call.context = request;
 *     if (shoal_group_collective_start(group, &call, NULL) != SHOAL_OK) {
 *         ... nothing was started and neither function will be called: report shoal_error_text(), free the tensor
 *     }
 *
 * Point to point has no such functions: call shoal_group_send_start, then shoal_work_on_done, then shoal_work_free. The
 * buffers may be reused when the function is called. (shoal_group_transfer_with_start takes a timeout_s.) Do not take a
 * lock in these functions that is held while works are started: they may run on the thread that starts one.
 *
 * Deadlines: a collective that takes longer than its timeout fails the group. A large one, and one with on_done, is
 * carried by a thread of the group, which notices the deadline by itself. The deadline of a small one is noticed when
 * somebody asks: by shoal_work_test, shoal_work_wait or a blocking call on the group, not by shoal_group_error. Until
 * then it does not fail the group, however late it is; the other ranks have all they need of it. If they have done
 * their parts when somebody asks, the collective ends well, even if they did so after the deadline.
 *
 * Ownership: shoal_work_free releases the handle, at any time. The operation goes on and keeps what it needs, except
 * the caller's buffers, which must stay until it has ended. Closing the world ends every work; a work that is still
 * held can be asked afterwards how it ended.
 * Threads: any, several at a time.
 * Errors: shoal_work_wait returns the operation's status, every time it is called.
 */
#ifndef SHOAL_WORK_H
#define SHOAL_WORK_H

#include <stdbool.h>

#include "shoal/api.h"
#include "shoal/status.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_work shoal_work;

/* True once the operation has ended, successfully or not. Never waits. */
SHOAL_API bool shoal_work_test(shoal_work *work);

/*
 * Waits until the operation has ended, and returns its status and text. If it does not end within timeout_s seconds,
 * the call returns SHOAL_ERR_TIMEOUT; the operation goes on and can be waited for again. (shoal_work_test then tells
 * this from an operation that itself ended with SHOAL_ERR_TIMEOUT.) A negative timeout_s waits for the end, which comes
 * at the operation's own deadline at the latest, or over messages up to half a second later, over MPI up to 2 s.
 * SHOAL_ERR_STATE: called in a function of this header, for a work that has not ended.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_work_wait(shoal_work *work, double timeout_s);

/*
 * A function of the program that is called once when an operation has ended, successfully or not, whether or not
 * somebody still holds its work. `status` is what shoal_work_wait returns; while the function runs, shoal_error_text()
 * is the text of the failure.
 *
 * It runs on the thread on which the operation ends: one that waits in a call on the group, the group's own thread, one
 * that aborts or closes the group or the world, or, if the operation has already ended, the thread that calls
 * shoal_work_on_done. No lock of the library is held. A thread that waits for the work may go on before the function is
 * called, or while it runs.
 *
 * It may start operations, test and free works, read results and abort groups. It should be short, because the group's
 * other operations wait for it, and it must not wait for other ranks. Refused there with SHOAL_ERR_STATE, on any group
 * and without any effect, are blocking collectives and transfers, shoal_work_wait for a work that has not ended,
 * reading or writing a tensor that such a work uses, and closing a group or the world. Not refused, but to be avoided:
 * waiting for a key of the store or for a lock. (The first operation that is started on a group connects it, and waits
 * a moment for the servers of the ranks.)
 */
typedef void (*shoal_done_function)(void *context, shoal_status status);
/* A function of the program that is called once, after the one above and under the same rules, when the operation does
   not use its buffers any more. */
typedef void (*shoal_release_function)(void *context);

/*
 * Asks the library to call on_done(context, status) when the operation has ended; at once if it has. Several functions
 * may be given to one work; they are called in no particular order. The operation then goes on to its end although
 * nobody waits for it. (shoal_collective in shoal/group.h takes both functions when an operation starts.) If the call
 * fails, on_done is not called.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_work_on_done(shoal_work *work, shoal_done_function on_done,
                                                           void *context);

/* Releases the handle; the operation goes on. NULL is allowed. */
SHOAL_API void shoal_work_free(SHOAL_TAKES shoal_work *work);

SHOAL_END_DECLS

#endif
