/* SPDX-License-Identifier: MIT */
/*
 * Statuses: how a call ended. Almost every call of the library returns one, and SHOAL_OK is 0. A status is for a
 * program to branch on: it says what kind of failure it was and how much is lost. The error text is for people to read:
 * it says why, with the values that were wrong.
 *
 *     shoal_status status = shoal_scope_begin();
 *     if (status != SHOAL_OK) {
 *         fprintf(stderr, "%s: %s\n", shoal_status_name(status), shoal_error_text());
 *     }
 *
 * Ownership: every returned string belongs to the library.
 * Threads: any. Each thread has an error text of its own.
 * Errors: none of these calls can fail, and none of them changes the error text.
 */
#ifndef SHOAL_STATUS_H
#define SHOAL_STATUS_H

#include "shoal/api.h"

SHOAL_BEGIN_DECLS

/*
 * A call that fails leaves its outputs alone, unless it says otherwise. shoal/group.h says what becomes of a group
 * after a failure, and of other groups.
 */
typedef enum shoal_status {
    SHOAL_OK = 0,
    /* An argument is wrong; nothing was changed, unless the call says otherwise. */
    SHOAL_ERR_INVALID = -1,
    /* An allocation failed; nothing was changed, unless the call says otherwise. */
    SHOAL_ERR_NO_MEMORY = -2,
    /* The call is legal, but not offered for this dtype, device or build. */
    SHOAL_ERR_UNSUPPORTED = -3,
    /* The object is not in a state that allows the call. */
    SHOAL_ERR_STATE = -4,
    /* A deadline passed. If it was the deadline of an operation on a group, the group has failed. If it was only the
       deadline of a wait (shoal_work_wait, shoal_store_get), nothing is lost. */
    SHOAL_ERR_TIMEOUT = -5,
    /* A call of the operating system failed; this operation has no result. */
    SHOAL_ERR_SYSTEM = -6,
    /* The operation was ended on request: by shoal_group_abort, by closing a group or the world, or by a function of
       the program that takes text and returned anything but 0. */
    SHOAL_ERR_CANCELLED = -7,
    /* Another rank died or left. Every group that it is a member of has failed. */
    SHOAL_ERR_PEER = -8,
    /* Ranks called different things. Their group has failed, unless the call says otherwise. */
    SHOAL_ERR_MISMATCH = -9,
    /* The library contradicts itself: a bug in it. Please report the text. */
    SHOAL_ERR_INTERNAL = -10
} shoal_status;

/* How far a failure reaches: the largest thing that cannot be used any more after it. */
typedef enum shoal_reach {
    /* Nothing: correct the arguments and call again. Calls that run functions of the program, as shoal_backward does,
       say what they leave behind. */
    SHOAL_REACH_CALL = 0,
    SHOAL_REACH_OP = 1,     /* the results of this operation */
    SHOAL_REACH_GROUP = 2,  /* the group that the operation ran on, if it ran on one */
    SHOAL_REACH_PROCESS = 3 /* the process */
} shoal_reach;

/*
 * Says how far failures with this status reach: SHOAL_REACH_CALL for SHOAL_ERR_INVALID, NO_MEMORY, UNSUPPORTED and
 * STATE; SHOAL_REACH_OP for SYSTEM; SHOAL_REACH_GROUP for TIMEOUT, CANCELLED, PEER and MISMATCH; SHOAL_REACH_PROCESS
 * for INTERNAL and for a number that is no status. It knows the status only. A TIMEOUT may have been that of a wait,
 * and the group goes on. A NO_MEMORY in the middle of a collective makes its group fail, and so does a SYSTEM of a
 * collective, a send or a receive, also when it could not be started. shoal_group_error tells.
 */
SHOAL_API shoal_reach shoal_status_reach(shoal_status status);

/* The name of a status: "SHOAL_ERR_INVALID"; "SHOAL_ERR_?" for a number that is no status. */
SHOAL_API const char *shoal_status_name(shoal_status status);

/* One sentence that is true of every failure with this status: for programs that have no error text at hand. */
SHOAL_API const char *shoal_status_message(shoal_status status);

/*
 * Says why the last failed call on this thread failed; "" if the last call that can fail succeeded. Longer texts are
 * cut to 511 bytes. Copy it to keep it: the next call of the library on this thread may change it, except the calls of
 * this header. shoal_scope_end and shoal_scope_error do not empty it when they succeed, so that the reason of a call
 * inside a scope can still be read behind it.
 */
SHOAL_API const char *shoal_error_text(void);

SHOAL_END_DECLS

#endif
