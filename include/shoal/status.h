/* SPDX-License-Identifier: MIT */
/*
 * What a call came to. A status says how much is ruined (its scope); the error text says why, with the
 * values that were wrong. Statuses are for programs to branch on, texts for people to read.
 *
 * Ownership: every returned string belongs to the library.
 * Threads: any. The error text is per thread.
 * Errors: none of these calls can fail, and none of them changes the error text.
 *
 *     shoal_status status = shoal_scope_begin();
 *     if (status != SHOAL_OK) {
 *         fprintf(stderr, "%s: %s\n", shoal_status_name(status), shoal_error_text());
 *     }
 */
#ifndef SHOAL_STATUS_H
#define SHOAL_STATUS_H

#include "shoal/api.h"

SHOAL_BEGIN_DECLS

typedef enum shoal_status {
    SHOAL_OK = 0,
    SHOAL_ERR_INVALID = -1,   /* an argument is wrong; nothing was changed, unless the call says otherwise */
    SHOAL_ERR_NO_MEMORY = -2, /* an allocation failed; likewise */
    SHOAL_ERR_UNSUPPORTED = -3, /* legal, but not offered for this dtype, device or build */
    SHOAL_ERR_STATE = -4,       /* the object is not in a state that allows the call */
    SHOAL_ERR_TIMEOUT = -5,     /* the deadline passed; this operation has no result */
    SHOAL_ERR_SYSTEM = -6,      /* a system call failed; this operation has no result */
    SHOAL_ERR_CANCELLED = -7,   /* given up before it finished, on request */
    SHOAL_ERR_PEER = -8,        /* another rank died or left; its groups are unusable */
    SHOAL_ERR_MISMATCH = -9,    /* ranks called different things; their group is unusable */
    SHOAL_ERR_INTERNAL = -10    /* the library contradicts itself: a bug of ours */
} shoal_status;

/* How far a failure reaches: the largest thing that must be thrown away after it. */
typedef enum shoal_reach {
    SHOAL_REACH_CALL = 0,   /* nothing: the call may be made again, corrected. Calls that run functions of
                               the caller's, as shoal_backward does, say what they leave behind instead */
    SHOAL_REACH_OP = 1,     /* the results of this operation */
    SHOAL_REACH_GROUP = 2,  /* the group it ran on */
    SHOAL_REACH_PROCESS = 3 /* the process */
} shoal_reach;

SHOAL_API shoal_reach shoal_status_reach(shoal_status status);

/* "SHOAL_ERR_INVALID"; "SHOAL_ERR_?" for a number that is no status. */
SHOAL_API const char *shoal_status_name(shoal_status status);

/* One sentence that holds for every failure with this status. */
SHOAL_API const char *shoal_status_message(shoal_status status);

/*
 * Why the last call that failed on this thread did. Calls that can fail empty it when they begin, except
 * shoal_scope_end and shoal_scope_error, so that a reason outlives the scope it happened in. Valid until the
 * next call into the library on this thread other than those of this header.
 */
SHOAL_API const char *shoal_error_text(void);

SHOAL_END_DECLS

#endif
